"""A batch whose bytes cannot be made or handed over fails alone: the producer goes on, no sequence is skipped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from insync.replication import wire
from insync.replication.client import (
    BatchError,
    BatchProducer,
    ClientError,
    Delivery,
    InvalidRecordError,
    Producer,
)
from insync.replication.client.producer import _batch
from insync.replication.client.producer._batch import Batch
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import Kind
from insync.storage.batch import records
from insync.transport import Connection

from ..fake_cluster import fake_cluster
from ..faults import disconnect, fail_with, random_faults


def failing(bad: Callable[[bytes], bool], error: Exception) -> Callable[..., None]:
    """A `Batch.seal` that does not like some values."""
    real = Batch.seal

    def seal(batch: Batch, *arguments: Any) -> None:
        real(batch, *arguments)
        assert batch.data is not None
        if any(record.value is not None and bad(record.value) for record in records(batch.data)):
            batch.data = None
            raise error

    return seal


@pytest.fixture
def hostile_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch with a value that begins with "bad" can be built, be it small or large."""
    error = MemoryError("no room for a batch")
    monkeypatch.setattr(Batch, "seal", failing(lambda value: value.startswith(b"bad"), error))


@pytest.mark.parametrize("acks", ["all", 1, 0])
@pytest.mark.parametrize("size", [3, 100_000])
async def test_only_the_records_of_that_batch_fail(hostile_codec: None, acks: Any, size: int) -> None:
    async with fake_cluster(nodes=1, t=2) as cluster:
        async with Producer(cluster.urls, linger_ms=0, acks=acks) as producer:
            with trio.fail_after(5):
                before = await producer.send("t", b"a", partition=0)
                await producer.flush()
                bad = await producer.send("t", b"bad" * size, partition=0)
                other = await producer.send("t", b"b", partition=1)
                with pytest.raises(BatchError, match=r"t-0: a batch of 1 record .*no room") as caught:
                    await bad.wait()
                assert caught.value.outcome == "absent"
                assert isinstance(caught.value.__cause__, MemoryError)
                after = await producer.send("t", b"c", partition=0)
                await producer.flush()
                while sum(log.end for log in cluster.topics["t"]) < 3:
                    await trio.lowlevel.checkpoint()  # with acks=0 nobody says when it is there
        assert [each.error for each in (before, other, after)] == [None, None, None]
        assert [log.values() for log in cluster.topics["t"]] == [[b"a", b"c"], [b"b"]]
        # Nothing was missing between the first and the last, so there was no need to begin anew.
        assert cluster.nodes[0].seen[Kind.INIT_PRODUCER_ID] == (1 if acks == "all" else 0)


async def test_who_sends_again_at_once_when_told_does_not_stop_the_program(hostile_codec: None) -> None:
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls, linger_ms=0) as producer:
        told: list[Delivery] = []

        def again(delivery: Delivery) -> None:
            told.append(delivery)
            if len(told) < 2000:
                producer.send_nowait("t", b"bad", on_delivery=again)

        await producer.prepare("t")
        producer.send_nowait("t", b"bad", on_delivery=again)
        with trio.fail_after(10):
            # Without lingering: what is sent again is due at once.
            await producer.flush()
        assert len(told) < 100, "others had a turn in between"


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), bad=st.sets(st.integers(0, 149), max_size=12))
def test_what_can_be_built_arrives_once_and_in_order_among_faults(seed: int, bad: set[int]) -> None:
    unbuildable = {b"%d" % n for n in bad}

    async def main() -> None:
        async with fake_cluster(nodes=3, t=3) as cluster:
            cluster.chaos = random_faults(seed, rate=0.3, budget=10)
            async with Producer(
                cluster.urls,
                batch_size=300,
                linger_ms=1,
                request_timeout_ms=150,
                retry_backoff_ms=5,
                retry_backoff_max_ms=20,
            ) as producer:
                deliveries = []
                for n in range(150):
                    deliveries.append(await producer.send("t", b"%d" % n, key=b"%d" % (n % 7)))
                    if n % 40 == 0:
                        await trio.lowlevel.checkpoint()
                with trio.fail_after(30):
                    await producer.flush()
            sent = defaultdict(list)
            for n, delivery in enumerate(deliveries):
                if delivery.error is None:
                    sent[delivery.partition].append((delivery.result().offset, b"%d" % n))
                else:
                    assert isinstance(delivery.error, BatchError) and delivery.error.outcome == "absent"
            for number, log in enumerate(cluster.topics["t"]):
                assert list(enumerate(log.values())) == sent[number]
            failed = {n for n, delivery in enumerate(deliveries) if delivery.error is not None}
            assert bad <= failed

    with pytest.MonkeyPatch.context() as patch:
        error = ValueError("the codec does not like it")
        patch.setattr(Batch, "seal", failing(unbuildable.__contains__, error))
        trio.run(main)


@pytest.mark.parametrize("handed_over", [False, True])
async def test_a_request_that_cannot_be_made_or_handed_over(
    monkeypatch: pytest.MonkeyPatch, handed_over: bool
) -> None:
    """Its batches have sequences already: the partition begins anew, whether they are in the log or not."""
    async with fake_cluster(nodes=1, t=2) as cluster:
        async with Producer(cluster.urls, linger_ms=0) as producer:
            await (await producer.send("t", b"first", partition=0)).wait()
            real = Connection.request_nowait if handed_over else wire.encode
            broken = [True]

            def fails(*arguments: Any, **options: Any) -> Any:
                if broken and (not handed_over or arguments[1] == Kind.PRODUCE):
                    broken.clear()
                    raise RuntimeError("a bug")
                return real(*arguments, **options)  # type: ignore[operator]

            if handed_over:
                monkeypatch.setattr(Connection, "request_nowait", fails)
            else:
                monkeypatch.setattr(wire, "encode", fails)
            lost = await producer.send("t", b"lost", partition=0)
            with trio.fail_after(5), pytest.raises(BatchError, match="a bug") as caught:
                await lost.wait()
            assert caught.value.outcome == ("unknown" if handed_over else "absent")
            with trio.fail_after(5):
                assert (await (await producer.send("t", b"next", partition=0)).wait()).offset == 1
            assert producer._sender._in_flight[0] == 0
        assert cluster.topics["t"][0].values() == [b"first", b"next"]
        assert cluster.nodes[0].seen[Kind.INIT_PRODUCER_ID] == 2


async def test_a_batch_that_cannot_be_stamped_for_the_next_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those behind it move to the epoch without it, and their sequences have no hole."""
    async with fake_cluster(nodes=1, t=1) as cluster:
        node = cluster.nodes[0]
        async with Producer(cluster.urls, linger_ms=0, batch_size=300) as producer:
            await (await producer.send("t", b"first")).wait()
            real, calls = _batch.restamp_producer, []

            def once(*arguments: Any) -> Any:
                calls.append(arguments)
                if len(calls) == 2:
                    raise MemoryError("no room to stamp")
                return real(*arguments)

            monkeypatch.setattr(_batch, "restamp_producer", once)
            node.script(Kind.PRODUCE, fail_with(ErrorCode.INVALID_RECORD))
            values = [b"%06d" % n for n in range(100)]
            deliveries = await producer.send_many("t", values)
            with trio.fail_after(5):
                await producer.flush()
        assert len(calls) > 2
        arrived = [value for value, each in zip(values, deliveries, strict=True) if each.error is None]
        unstamped = [each for each in deliveries if isinstance(each.error, BatchError)]
        assert unstamped and {each.error.outcome for each in unstamped if each.error} == {"absent"}
        assert {type(each.error) for each in deliveries} == {type(None), InvalidRecordError, BatchError}
        assert cluster.topics["t"][0].values() == [b"first", *arrived]
        assert arrived and arrived[-1] == values[-1]


async def test_a_producer_of_whole_batches_tells_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_cluster(nodes=1, t=1) as cluster, BatchProducer(cluster.urls) as producer:
        real = Connection.request_nowait

        def fails(*arguments: Any, **options: Any) -> Any:
            if arguments[1] == Kind.PRODUCE:
                raise RuntimeError("a bug")
            return real(*arguments, **options)

        monkeypatch.setattr(Connection, "request_nowait", fails)
        await producer.send("t", 0, b"batch")
        with trio.fail_after(5), pytest.raises(BatchError, match=r"t-0: .*a bug") as caught:
            await producer.flush()
        assert caught.value.outcome == "unknown" and isinstance(caught.value, ClientError)


async def test_a_fault_of_the_network_is_none_of_these(hostile_codec: None) -> None:
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls, linger_ms=0) as producer:
        cluster.nodes[0].script(Kind.PRODUCE, disconnect)
        with trio.fail_after(5):
            assert (await (await producer.send("t", b"x")).wait()).offset == 0
