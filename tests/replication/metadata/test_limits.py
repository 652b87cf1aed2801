"""What a transaction may hold: the figures, and who tells them."""

import pytest
import trio

from insync.replication.metadata import (
    Limits,
    MemoryHub,
    MemoryStore,
    Missing,
    Put,
    RemoteStore,
    StoreUnsupportedError,
    TransactionTooLargeError,
    ValueIs,
    serve_store,
)
from insync.transport import Identity
from insync.transport import Limits as FrameLimits

from .benches import RemoteBench


def test_sizes_are_counted_as_the_store_says() -> None:
    limits = Limits(max_bytes=100, item_bytes=10, key_bytes=3)
    assert limits.size_of(Put("é", b"12")) == 10 + 6 + 2
    assert limits.size_of(Missing("k"), ValueIs("k", b"123")) == 13 + 16
    limits.check([], [Put("k", bytes(87))])
    with pytest.raises(TransactionTooLargeError, match="101 bytes; the store takes 100"):
        limits.check([], [Put("k", bytes(88))])


def test_what_is_within_both_is_within_each() -> None:
    one = Limits(max_operations=5, max_bytes=1000, item_bytes=1, key_bytes=3)
    assert one.with_also(Limits(max_bytes=700, item_bytes=9)) == Limits(
        max_operations=5, max_bytes=700, item_bytes=9, key_bytes=3
    )
    assert Limits().with_also(Limits()) == Limits()


async def test_compares_count_by_themselves() -> None:
    limits = Limits(max_operations=2)
    limits.check([Missing("a"), Missing("b")], [Put("a", b""), Put("b", b"")])
    with pytest.raises(TransactionTooLargeError, match="0 operations and 3 compares; the store takes 2"):
        limits.check([Missing("a"), Missing("b"), Missing("c")], [])


class Narrow(MemoryStore):
    """It refuses more than it says at first, as a store whose operator has lowered its limit."""

    limits = Limits(max_operations=128)  # type: ignore[assignment]

    async def raise_revision(self, floor: int, *, store_id: str | None = None) -> int:
        raise StoreUnsupportedError("this one cannot raise its revision")


async def test_served_store_passes_limits_and_refusals_on() -> None:
    puts = [Put(f"k{number}", b"") for number in range(129)]
    async with Narrow(MemoryHub()) as inner, trio.open_nursery() as nursery:
        served = await nursery.start(serve_store, inner, "mem://limits/narrow")
        async with RemoteStore(served.endpoints[0], identity=Identity(node_id=1)) as store:
            assert store.limits.max_operations == 128
            with pytest.raises(TransactionTooLargeError, match="129 operations"):
                await store.commit([], puts)
            store._limits = Limits()
            with pytest.raises(TransactionTooLargeError, match=r"mem://limits/narrow.*129 operations"):
                await store.commit([], puts)
            with pytest.raises(StoreUnsupportedError, match="cannot raise"):
                await store.raise_revision(7)
        nursery.cancel_scope.cancel()


async def test_transaction_larger_than_a_frame_is_refused_and_not_tried(tmp_path: object) -> None:
    hub = MemoryHub()
    async with hub.store() as inner, trio.open_nursery() as nursery:
        served = await nursery.start(serve_store, inner, "mem://limits/frame")
        async with RemoteStore(served.endpoints[0], identity=Identity(node_id=1)) as store:
            frame = FrameLimits().max_body_bytes
            assert store.limits.max_bytes is not None and store.limits.max_bytes < frame
            with pytest.raises(TransactionTooLargeError, match="Split it"):
                await store.commit([], [Put("k", bytes(frame))])
            store._limits = Limits()
            with pytest.raises(TransactionTooLargeError, match="mem://limits/frame"):
                await store.commit([], [Put("k", bytes(frame))])
            assert hub.revision == 0
        nursery.cancel_scope.cancel()


async def test_sqlite_behind_a_server_is_bounded_by_the_frame(tmp_path) -> None:  # type: ignore[no-untyped-def]
    bench = RemoteBench(tmp_path, "mem://limits/sqlite")
    async with bench.serving(), bench.handle() as store:
        assert store.limits == bench.inner.limits.with_also(store.limits)
        assert store.limits.max_operations == bench.inner.limits.max_operations
