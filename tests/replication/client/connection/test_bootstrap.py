"""Opening a client: servers that refuse for a moment, servers that are too busy, addresses that are none."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest
import trio
import trio.testing

from insync.replication.client import (
    BlockingConsumer,
    BootstrapError,
    Consumer,
    InvalidSettingError,
    Producer,
)
from insync.replication.client.connection import _cluster
from insync.replication.core.messages import Kind
from insync.transport import Identity, Limits, serve
from tests.processes import kept_address

from ..fake_cluster import CLUSTER_ID, FakeCluster, FakeNode, fake_cluster


async def test_a_node_that_is_about_to_listen_is_found():
    with kept_address() as url:
        async with trio.open_nursery() as nursery:
            cluster = FakeCluster(nursery)
            node = FakeNode(cluster, 0, url)
            cluster.nodes.append(node)

            async def open_it() -> None:
                async with Consumer([url]):
                    nursery.cancel_scope.cancel()

            with trio.fail_after(30):
                nursery.start_soon(open_it)
                await trio.testing.wait_all_tasks_blocked(0.02)
                await node.start()
                await trio.sleep_forever()
    assert node.seen[Kind.METADATA] == 1


async def test_where_nobody_listens_that_is_told_soon():
    with (
        kept_address() as url,
        trio.fail_after(15),
        pytest.raises(BootstrapError, match=r"no node could be reached; is one running\?"),
    ):
        async with Consumer([url]):
            pass


async def test_clients_that_come_in_a_rush_are_let_in_one_after_the_other():
    """The node has no room for more handshakes, and closes what it has no room for."""
    limits = Limits(max_half_open=1, handshake_timeout=0.5)
    async with fake_cluster(nodes=1, t=1) as cluster, trio.open_nursery() as nursery:
        node = cluster.nodes[0]
        identity = Identity(cluster_id=CLUSTER_ID, node_id=0, incarnation=1)
        serving = await nursery.start(
            partial(serve, "tcp://127.0.0.1:0", node.handle, identity=identity, limits=limits)
        )
        (url,) = serving.endpoints
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        silent = await trio.open_tcp_stream(host, int(port))
        done = []

        async def open_one() -> None:
            async with Producer([url]):
                done.append(True)

        with trio.fail_after(20):
            async with silent, trio.open_nursery() as clients:
                for _ in range(20):
                    clients.start_soon(open_one)
        assert len(done) == 20
        nursery.cancel_scope.cancel()


class Busy:
    """A wire to a node that swallows the first so many connections: somebody listens, and says nothing."""

    def __init__(self, url: str, swallows: int) -> None:
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        self._place = host, int(port)
        self.left = swallows

    async def __call__(self, near: trio.SocketStream) -> None:
        async with near:
            if self.left:
                self.left -= 1
                with contextlib.suppress(trio.BrokenResourceError):
                    while await near.receive_some():
                        pass
                return
            async with await trio.open_tcp_stream(*self._place) as far, trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, near, far)
                await self._pump(far, near)
                nursery.cancel_scope.cancel()

    @staticmethod
    async def _pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in source:
                await sink.send_all(data)


async def test_a_server_that_is_too_busy_for_handshakes_is_waited_for(caplog):
    """For longer than one attempt may take, and with pauses; it would take as long to serve those who gave up."""
    async with fake_cluster(nodes=1, t=1) as cluster, trio.open_nursery() as nursery:
        node = cluster.nodes[0]
        identity = Identity(cluster_id=CLUSTER_ID, node_id=0, incarnation=1)
        serving = await nursery.start(partial(serve, "tcp://127.0.0.1:0", node.handle, identity=identity))
        busy = Busy(serving.endpoints[0], 3)
        listeners = await nursery.start(partial(trio.serve_tcp, busy, 0, host="127.0.0.1"))
        url = f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        with trio.fail_after(20):
            async with Producer([url], connect_timeout_ms=100):
                assert not busy.left
        busy.left = 1_000
        with trio.fail_after(20), pytest.raises(BootstrapError, match="no handshake within"):
            async with Producer(
                [url], connect_timeout_ms=100, request_timeout_ms=3_000, delivery_timeout_ms=5_000
            ):
                pass
        assert busy.left < 999, "it was tried again"
        told = [each.getMessage() for each in caplog.records if "tries again for" in each.getMessage()]
        assert len(told) == 2, "each client tells once"
        assert told[1].endswith("this client tries again for 3 s")
        nursery.cancel_scope.cancel()


def swallow(node: FakeNode, request: object) -> bool:
    """It is not answered."""
    return True


async def test_a_node_that_takes_its_time_to_answer_is_asked_again(monkeypatch):
    monkeypatch.setattr(_cluster, "_LOOK_TIMEOUT", 0.1)
    async with fake_cluster(nodes=1, t=1) as cluster:
        node = cluster.nodes[0]
        node.script(Kind.METADATA, *[swallow] * 4)
        with trio.fail_after(20):
            async with Producer([node.url]):
                assert node.seen[Kind.METADATA] >= 3


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        ("tcp://", "tcp://"),
        ("tcp://127.0.0.1", "port"),
        ("tcp://127.0.0.1:port", "port"),
        ("127.0.0.1:99999", "99999"),
        ("pigeon://somewhere:1", "no transport for pigeon://"),
        ("kafka://127.0.0.1:9092", "kafka:// is for clients of another protocol; name the node's address"),
        ("tcp://127.0.0.1:9092,:://", ":://"),
    ],
)
@pytest.mark.parametrize("cls", [Consumer, BlockingConsumer])
def test_what_is_no_address_is_told_as_that(cls, servers, said):
    with pytest.raises(InvalidSettingError, match=r"bootstrap_servers: .* is not an address") as caught:
        cls(servers)
    assert said in str(caught.value)
