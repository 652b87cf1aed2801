"""Deltas of the ZooKeeper store on a real server: random histories, and looks that are cut off half-way.

One test gives the mirror a tree that is no server's, and so runs without Java.
"""

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings

from insync.plugins.zookeeper import ZookeeperAddress, ZookeeperStore
from insync.plugins.zookeeper._connection import Connection
from insync.plugins.zookeeper._layout import Layout, Mark, encode
from insync.plugins.zookeeper._mirror import Mirror
from insync.replication.metadata import Delta, Put, StoreUnavailableError
from tests.replication.metadata.test_changes import HISTORIES, follow

from .server import ZookeeperServer

_numbers = count()


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(steps=HISTORIES)
def test_deltas_of_the_zookeeper_store_add_up(server: ZookeeperServer, steps: list) -> None:
    address = ZookeeperAddress(server.hosts, f"/changes-{next(_numbers)}")
    trio.run(follow, lambda: ZookeeperStore(address), steps)


async def test_a_look_that_is_cut_off_loses_no_change(
    server: ZookeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had read already is in the next listing, in the next delta and in the news for watches."""
    address = ZookeeperAddress(server.hosts, "/cut-off")
    async with ZookeeperStore(address) as writer, ZookeeperStore(address) as store:
        await writer.commit([], [Put("k", b"old")])
        held = await store.list("")
        assert store._engine is not None
        connection, reads = store._engine.connection, Connection.read
        calls = 0

        async def cut(self: Connection, *results: Any) -> list[Any]:
            nonlocal calls
            calls += self is connection
            if calls == 3 and self is connection:  # marks, the key, and now the marks again
                raise StoreUnavailableError("a test cuts it off")
            return await reads(self, *results)

        async with store.watch("") as watch:
            await watch.__anext__()
            with monkeypatch.context() as patch:
                patch.setattr(Connection, "read", cut)
                done = await writer.commit([], [Put("k", b"new")])
                while calls < 3:  # by the news of the change, or by our own look
                    try:
                        await store.list("")
                    except StoreUnavailableError:
                        break
            delta = await store.changes("", held.revision)
            assert isinstance(delta, Delta)
            assert delta.entries["k"].value == b"new"
            listing = await store.list("")
            assert listing == delta.apply(held)
            with trio.fail_after(60):
                while (await watch.__anext__()).revision < done.revision:  # type: ignore[union-attr]
                    pass


class Tree:
    """A connection with a tree of a few keys; `gates` opens its answers for all keys one after the other."""

    def __init__(self, layout: Layout, keys: list[str]) -> None:
        self.client = self
        self.gates = trio.Semaphore(0)
        self.asked = trio.Event()
        self._layout = layout
        self._keys = keys

    def check_connected(self) -> None:
        """It always is."""

    def sync_async(self, path: str) -> str:
        return path

    def exists_async(self, path: str) -> Any:
        return SimpleNamespace(mzxid=9)

    def get_async(self, path: str, watch: object = None) -> tuple[bytes, Any]:
        stat = SimpleNamespace(mzxid=7, pzxid=8, version=0, ephemeralOwner=0)
        return Mark("0" * 32).encode() if path == self._layout.keys else encode(b"v", 0), stat

    def get_children_async(self, path: str, watch: object) -> list[str]:
        return self._keys

    async def read(self, *results: Any) -> list[Any]:
        if len(results) == len(self._keys):
            self.asked.set()
            await self.gates.acquire()
        await trio.lowlevel.checkpoint()
        return list(results)


async def test_a_listing_that_is_cancelled_half_way_is_read_again_as_a_whole() -> None:
    layout = Layout("/cancelled")
    tree: Any = Tree(layout, ["a", "b", "c", "d"])
    mirror = Mirror(tree, layout, lambda: None)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mirror.listing, "", lambda _: None)
            await tree.asked.wait()
            nursery.cancel_scope.cancel()
        tree.gates.release()
        listing = await mirror.listing("", lambda _: None)
    assert sorted(listing.entries) == ["a", "b", "c", "d"]
