"""Parts of a node by themselves, at moments that whole nodes meet too seldom."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing
from msgspec import structs

from insync.replication import wire
from insync.replication.core import messages as m
from insync.replication.core.broker import effects as bx
from insync.replication.core.broker.events import OutsideAnswered
from insync.replication.core.control import records as rec
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode
from insync.replication.core.transactions.shard import AllocateIds, IdsAllocated, ReadRevision, RevisionRead
from insync.replication.core.types import PartitionId
from insync.replication.metadata import MemoryHub, Put, StoreUnavailableError
from insync.replication.node import NodeSettings
from insync.replication.node._timers import Timers
from insync.replication.node.coordination._coordination import Coordination
from insync.replication.node.driver import Driver
from insync.replication.node.logs._log_writer import CallWork, Lane, LogWriter
from insync.replication.node.logs._startup_scan import Found
from insync.replication.node.requests._handlers import Handlers
from insync.replication.node.store._cluster_state import ADMIN_TIMEOUT, ClusterState
from insync.replication.node.store._view_reader import ViewReader
from insync.storage import LogDirectory, StorageFullError
from insync.transport import ConnectError

PARTITION = PartitionId("t", 0)


def replicas(folder: Path, nursery: trio.Nursery) -> Driver:
    settings = NodeSettings(node_id=1, data_dir=folder, store="memory://")
    return Driver(settings, Found([LogDirectory(folder, cluster_id="c", node_id=1)]), 1, nursery)


def node_record(incarnation: int) -> rec.NodeRecord:
    return rec.NodeRecord(node_id=2, incarnation=incarnation, endpoints=(f"mem://net/{incarnation}",))


async def test_what_is_done_after_the_node_fell_silent_is_told_to_nobody() -> None:
    told: list[object] = []
    hold = threading.Event()
    writer = LogWriter("test", lambda: told.append("after"), lambda error: told.append(error))
    writer.start()
    writer.submit(CallWork(Lane(failed=told.append), lambda: hold.wait(5), told.append))
    writer.fall_silent()
    hold.set()
    await writer.stop()
    assert told == []


async def test_an_error_nobody_thought_of_ends_the_writer_and_is_told() -> None:
    for broken in ("in the thread", "on the event loop"):
        died: list[BaseException] = []
        failed = trio.Event()

        def report(error: BaseException, died: Any = died, failed: Any = failed) -> None:
            died.append(error)
            failed.set()

        writer = LogWriter("test", lambda: None, report)
        writer.start()

        def fail(_: object = None, broken: str = broken) -> None:
            raise KeyError(broken)

        in_thread = broken == "in the thread"
        nothing = lambda *_: None  # noqa: E731
        writer.submit(
            CallWork(Lane(failed=nothing), fail if in_thread else nothing, nothing if in_thread else fail)
        )
        with trio.fail_after(60):
            await failed.wait()
            await writer.stop()
        assert [str(error) for error in died] == [f"'{broken}'"]


async def test_an_error_that_nobody_expects_in_an_answer_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection would survive what its callbacks raise, and the node go on with a broker amid a step."""

    def step(*_: object) -> None:
        raise KeyError("a mistake of ours")

    with pytest.RaisesGroup(pytest.RaisesExc(KeyError, match="a mistake of ours")):
        async with trio.open_nursery() as nursery:
            dialler = replicas(tmp_path, nursery).dialler
            monkeypatch.setattr(Driver, "step", step)
            ask = bx.Ask(question=1, connection="c", kind=m.Kind.FETCH, message=None, timeout=1.0)
            dialler.done(ask, ConnectError("lost"))
            with trio.fail_after(60):
                await trio.sleep_forever()


async def test_nothing_is_told_of_the_time_before_the_registration(tmp_path: Path) -> None:
    async with MemoryHub().store() as store, trio.open_nursery() as nursery:
        node = replicas(tmp_path, nursery)
        session = await store.open_session(1000)
        await store.commit([], [Put("/somebody", b"wrote")])
        state = ClusterState(store, node, session, nursery)
        answered: list[m.CreateTopicResponse] = []
        request = m.CreateTopicRequest(name="t", partitions=1, replication_factor=1, forwarded=True)
        with trio.fail_after(60):
            async with trio.open_nursery() as creating:
                state._nursery = creating
                state.grant(request, answered.append)
        assert len(answered) == 1
        state.apply(await ViewReader().decoded(await store.list("/")))
        assert node.view.revision == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("hangs", ["commit", "list"])
async def test_a_admin_request_is_answered_though_the_store_never_is(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    hangs: str,
) -> None:
    async def hang(*arguments: object, **named: object) -> None:
        await trio.sleep_forever()

    answers: list[tuple[float, m.CreateTopicResponse]] = []
    async with MemoryHub().store() as store, trio.open_nursery() as nursery:
        state = ClusterState(store, replicas(tmp_path, nursery), await store.open_session(60_000), nursery)
        me = rec.NodeRecord(node_id=1, incarnation=1, endpoints=())
        await store.commit([], [Put(rec.node_key(1), wire.encode_record(me))])
        state.registered(1)
        monkeypatch.setattr(store, "commit", hang)
        state.apply(await ViewReader().decoded(await store.list("/")))
        monkeypatch.setattr(store, hangs, hang)
        request = m.CreateTopicRequest(name="t", partitions=1, replication_factor=1, forwarded=True)
        began = trio.current_time()
        async with trio.open_nursery() as admin_requesting:
            state._nursery = admin_requesting
            state.grant(request, lambda answer: answers.append((trio.current_time() - began, answer)))
        nursery.cancel_scope.cancel()
    ((after, answer),) = answers
    assert answer.error == ErrorCode.REQUEST_TIMED_OUT
    assert after == pytest.approx(ADMIN_TIMEOUT)
    assert "gave up CreateTopicRequest: not granted within 9 s" in caplog.messages


async def test_a_reading_that_is_asked_for_during_another_one_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one under way may show what the store held before there was a reason to ask."""
    asked, answers = 0, trio.Event()
    async with MemoryHub().store() as store, trio.open_nursery() as nursery:
        state = ClusterState(store, replicas(tmp_path, nursery), await store.open_session(60_000), nursery)
        real = store.list

        async def listed(prefix: str) -> Any:
            nonlocal asked
            asked += 1
            await answers.wait()
            return await real(prefix)

        nursery.start_soon(state.follow)
        await trio.testing.wait_all_tasks_blocked()
        monkeypatch.setattr(store, "list", listed)
        for _ in range(2):
            state.read_again()
            await trio.testing.wait_all_tasks_blocked()
            assert asked == 1
        answers.set()
        await trio.testing.wait_all_tasks_blocked()
        assert asked == 2
        nursery.cancel_scope.cancel()


async def test_replicas_hear_of_a_node_that_is_about_to_stop(tmp_path: Path) -> None:
    """Else a leader would go on proposing it, which the store refuses, and keep others from joining meanwhile."""
    async with trio.open_nursery() as nursery:
        node = replicas(tmp_path, nursery)
        config = rec.TopicConfig()
        topic = rec.TopicRecord(name="t", topic_id="x", partitions=1, replication_factor=2, config=config)
        record = rec.PartitionRecord(
            topic="t", partition=0, topic_id="x", replicas=(1, 2), isr=(1,), leader=1, min_insync_replicas=1
        )
        view = ClusterView(
            nodes={2: node_record(1)}, topics={"t": topic}, partitions={PARTITION: rec.Versioned(record, 1)}
        )
        node.apply(view)
        replica = node.hosts[PARTITION].replica
        assert replica.live == {2: 1}
        node.apply(attrs.evolve(view, nodes={2: structs.replace(node_record(1), leaving=True)}))
        assert replica.live == {}
        node.apply(attrs.evolve(view, nodes={2: node_record(2)}))
        assert replica.live == {2: 2}
        nursery.cancel_scope.cancel()


async def test_cancelled_timers_take_no_memory_for_long() -> None:
    timers = Timers()
    for _ in range(10_000):
        timers.call_after(3600, lambda: None).cancel()
    assert len(timers) < 1000


async def test_a_timer_that_is_the_soonest_is_not_late_for_those_that_wait_already(
    autojump_clock: trio.testing.MockClock,
) -> None:
    timers, began = Timers(), trio.current_time()
    came: list[tuple[str, float]] = []

    def note(name: str) -> None:
        came.append((name, trio.current_time() - began))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        for name, seconds in (("last", 10.0), ("first", 1.0), ("second", 5.0)):
            await trio.testing.wait_all_tasks_blocked()
            timers.call_after(seconds, partial(note, name))
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert [name for name, _ in came] == ["first", "second", "last"]
    assert [when for _, when in came] == pytest.approx([1.0, 5.0, 10.0])


async def test_a_revision_that_the_store_does_not_tell_is_unknown_to_its_coordinator() -> None:
    """Revision 0 would be an answer: everything that a transaction waits to see is as old as that."""
    told: list[object] = []

    async def revision() -> int:
        raise StoreUnavailableError("the store is away")

    async def producer_ids(count: int) -> int:
        raise StoreUnavailableError("the store is away")

    async with trio.open_nursery() as nursery:
        node = SimpleNamespace(
            store=SimpleNamespace(revision=revision, producer_ids=producer_ids),
            step=told.append,
            settle=lambda: None,
        )
        nowhere = cast(Any, None)
        coordination = Coordination(cast(Any, node), {}, nowhere, nowhere, nursery)
        for question in (ReadRevision(), AllocateIds(5)):
            coordination.obey[bx.AskOutside](bx.AskOutside(PARTITION, 3, question))
            await trio.testing.wait_all_tasks_blocked()
    assert told == [
        OutsideAnswered(PARTITION, 3, RevisionRead(None)),
        OutsideAnswered(PARTITION, 3, IdsAllocated(0, 0)),
    ]


async def test_an_error_nobody_thought_of_ends_the_flusher_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1)

    def fail(now: float) -> None:
        raise KeyError("flush")

    monkeypatch.setattr(directory, "flush_due", fail)
    async with trio.open_nursery() as nursery:
        settings = NodeSettings(node_id=1, data_dir=tmp_path, store="memory://", flush_interval_ms=1)
        node = Driver(settings, Found([directory]), 1, nursery)
        (home,) = node.directories
        home.flusher.start()
        with trio.fail_after(60):
            await node.failed.wait()
            await home.flusher.stop()
    assert "KeyError('flush')" in str(node.failure)


async def test_work_that_waits_for_the_device_waits_together_and_in_order_within_a_log() -> None:
    done: list[tuple[int, int]] = []
    failed: list[object] = []
    together = threading.Barrier(3)
    begun, hold = threading.Event(), threading.Event()
    writer = LogWriter("test", lambda: None, failed.append)
    writer.start()
    lanes = [Lane(failed=failed.append) for _ in range(3)]

    def work(lane: int, number: int, *, waits: bool) -> CallWork:
        def function() -> None:
            if number == 0:
                together.wait(5)
            if lane == 1 and number == 2:
                raise StorageFullError("no space")

        return CallWork(
            lanes[lane], function, lambda _: done.append((lane, number)), waits=waits, dropped=lambda: None
        )

    def wait_for_the_rest() -> None:
        begun.set()
        hold.wait(5)

    writer.submit(CallWork(Lane(failed=failed.append), wait_for_the_rest, lambda _: None, waits=True))
    # Else the thread might take with it some of what is to wait together, without the rest.
    while not begun.is_set():
        await trio.lowlevel.checkpoint()
    for number, waits in ((0, True), (1, False), (2, True), (3, False)):
        for lane in range(3):
            writer.submit(work(lane, number, waits=waits))
    with trio.fail_after(60):
        while len(writer._beside._queue) < 3:
            await trio.lowlevel.checkpoint()
    hold.set()
    with trio.fail_after(60):
        while len(done) < 10 or not failed:
            await trio.lowlevel.checkpoint()
        await writer.stop()
    assert [str(error) for error in failed] == ["no space"]
    assert [number for lane, number in done if lane == 0] == [0, 1, 2, 3]
    assert [number for lane, number in done if lane == 1] == [0, 1]
    assert writer.signs_of_life == (0, 0, 0)


async def test_each_of_many_that_wait_together_is_a_sign_of_life() -> None:
    """Else hundreds on a slow device, done one after the other, would be taken for one write that hangs."""
    seen: set[int] = set()
    hold, finished = threading.Event(), trio.Event()
    writer = LogWriter("test", lambda: None, lambda error: None)
    writer.start()
    writer.submit(CallWork(Lane(failed=lambda _: None), lambda: hold.wait(5), lambda _: None))
    for _ in range(50):
        lane = Lane(failed=lambda _: None)
        writer.submit(CallWork(lane, lambda: seen.add(max(writer.signs_of_life)), lambda _: None, waits=True))
    # Behind the last of them.
    writer.submit(CallWork(lane, lambda: None, lambda _: finished.set()))
    hold.set()
    with trio.fail_after(60):
        await finished.wait()
        await writer.stop()
    assert len(seen) > 10
    assert 0 not in seen and writer.signs_of_life == (0, 0, 0)


async def test_an_error_nobody_thought_of_among_those_that_wait_ends_the_writer() -> None:
    died: list[Exception] = []
    hold, reported = threading.Event(), trio.Event()

    def died_of(error: Exception) -> None:
        died.append(error)
        reported.set()

    writer = LogWriter("test", lambda: None, died_of)
    writer.start()
    writer.submit(CallWork(Lane(failed=lambda _: None), lambda: hold.wait(5), lambda _: None))
    for number in range(4):
        writer.submit(
            CallWork(Lane(failed=lambda _: None), partial(pow, 1, -1, number), lambda _: None, waits=True)
        )
    hold.set()
    with trio.fail_after(60):
        await reported.wait()
        await writer.stop()
    assert isinstance(died[0], ValueError)


async def test_who_could_not_be_taken_out_is_taken_out_when_it_is_suspected_again(tmp_path: Path) -> None:
    hub = MemoryHub()
    suspect = node_record(1)
    async with hub.store() as store, trio.open_nursery() as nursery:
        session = await store.open_session(60_000)
        state = ClusterState(store, replicas(tmp_path, nursery), session, nursery)
        key = rec.node_key(suspect.node_id)
        await store.commit([], [Put(key, wire.encode_record(suspect))])
        for is_reached in (False, True):
            if not is_reached:
                hub.start_outage()
            with trio.fail_after(30):
                async with trio.open_nursery() as suspecting:
                    state._nursery = suspecting
                    state.suspect(suspect, "it refuses connections")
            hub.end_outage()
            assert ((await store.get(key)).entry is None) == is_reached
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_remote", [True, False])
def test_that_an_internal_topic_cannot_be_created_is_logged_with_the_controllers_words(
    is_remote: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Groups cannot be used until it is there; nobody else hears why."""

    def answered(error: ErrorCode, message: str = "") -> list[str]:
        caplog.clear()
        response = m.CreateTopicResponse(error=error, message=message)
        Coordination._created(bytes(wire.encode(response)) if is_remote else response)
        return [each.getMessage() for each in caplog.records]

    assert answered(ErrorCode.NONE) == answered(ErrorCode.TOPIC_ALREADY_EXISTS) == []
    (said,) = answered(ErrorCode.POLICY_VIOLATION, "4 nodes are full")
    assert said == "the topic was not created: 4 nodes are full"
    assert len(answered(ErrorCode.POLICY_VIOLATION)) == 1


def test_the_ends_of_epochs_are_told_for_each_partition_in_order() -> None:
    def epoch_end(asked: m.EpochEndPartition) -> m.EpochEndResult:
        return m.EpochEndResult(
            topic=asked.topic, partition=asked.partition, error=0, epoch=asked.leader_epoch, end_offset=7
        )

    said: list[m.EpochEndsResponse] = []
    asked = [m.EpochEndPartition(topic="t", partition=number, leader_epoch=4) for number in (1, 0)]
    handlers = SimpleNamespace(
        _driver=SimpleNamespace(broker=SimpleNamespace(queries=SimpleNamespace(epoch_end=epoch_end)))
    )
    request = SimpleNamespace(message=m.EpochEndsRequest(partitions=asked), reply=said.append)
    Handlers._epoch_ends(cast(Any, handlers), cast(Any, request))
    assert said == [m.EpochEndsResponse(partitions=[epoch_end(each) for each in asked])]
