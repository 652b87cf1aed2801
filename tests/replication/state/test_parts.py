"""Parts of a copy by themselves, at moments that whole copies meet too seldom."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import attrs
import pytest
import trio
import trio.testing

from insync.replication import Producer as RealProducer
from insync.replication.client.errors import RequestTimeoutError
from insync.replication.core import messages as m
from insync.replication.core.types import PartitionId
from insync.replication.state import (
    ChangesLostError,
    Context,
    FencedError,
    LockLostError,
    Replica,
    ReplicatedElection,
    ReplicatedLock,
    ResignedError,
    SnapshotMissingError,
    StateClosedError,
    StateMachine,
    StateSettings,
    coordination,
)
from insync.replication.state import _snapshots as s
from insync.replication.state._applying import Applier
from insync.replication.state._batteries import LockState
from insync.replication.state._copy import Copy
from insync.replication.state._entries import Commands, Open, Snapshotted, decode, encode
from insync.replication.state._keeper import Keeper
from insync.replication.state._session import Session
from insync.replication.state.machine import Read, Write
from insync.replication.state.replica import CLOSE_SECONDS
from insync.replication.state.shards import BlockingShards, Shards
from tests.replication.client.fake_cluster import fake_cluster

AT = PartitionId("state", 0)
NOWHERE = "tcp://127.0.0.1:1"


class Words(StateMachine):
    """What was said, in order."""

    def __init__(self) -> None:
        self.said: list[bytes] = []

    def apply(self, context: Context, command: bytes) -> bytes:
        self.said.append(command)
        return command.upper()

    def snapshot(self, write: Write) -> None:
        for word in self.said:
            write(word)

    def restore(self, read: Read) -> None:
        while (word := read()) is not None:
            self.said.append(word)


@attrs.define
class Sent:
    """A record given to the producer, and its delivery: waits until `over`, then raises `error` if there is one."""

    topic: str
    key: bytes | None
    value: bytes | None
    over: trio.Event = attrs.Factory(trio.Event)
    error: Exception | None = None

    async def wait(self) -> None:
        await self.over.wait()
        if self.error is not None:
            raise self.error


class Producer:
    """Keeps what it is given; no outcome is known until the test says so."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []

    async def send(self, topic: str, value: bytes | None, *, key: bytes | None = None, **_: Any) -> Sent:
        sent = Sent(topic, key, value)
        self.sent.append(sent)
        return sent

    async def send_and_wait(self, topic: str, value: bytes | None, **options: Any) -> None:
        await (await self.send(topic, value, **options)).wait()

    @property
    def commands(self) -> list[tuple[int, list[bytes]]]:
        """Of each record: the number of its first command, and its commands."""
        entries = [decode(each.value) for each in self.sent]
        return [(each.first, each.commands) for each in entries if isinstance(each, Commands)]


def parts(**settings: Any) -> tuple[Copy, Session, Producer]:
    """A copy that nothing reaches, and a session whose name is open since offset 0."""
    made, nobody, producer = StateSettings(**settings), cast(Any, None), Producer()
    copy = Copy(NOWHERE, AT, "topic id", Words, made, nobody, nobody, {})
    session = Session(copy, cast(Any, producer), "me", made, 1 << 20)
    copy.applier.apply(0, 1000, encode(Open("me", session.nonce)))
    session.on_applied([])
    assert session.token == 0
    return copy, session, producer


async def say(session: Session, word: bytes, answers: list[bytes]) -> None:
    """Submit a command and note its answer."""
    answer = (await session.submit(word)).answer
    assert answer is not None
    answers.append(answer.data)


# The session


async def test_a_command_that_is_taken_back_leaves_its_room_to_the_next() -> None:
    _, session, producer = parts(max_under_way=1)
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as first:
            async with trio.open_nursery() as waiting:
                waiting.start_soon(session.submit, b"taken back")
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(session.submit, b"next")
                await trio.testing.wait_all_tasks_blocked()
                first.cancel()
        nursery.start_soon(session.run)
        await trio.testing.wait_all_tasks_blocked()
        assert producer.commands == [(0, [b"next"])]
        nursery.cancel_scope.cancel()


async def test_what_a_snapshot_does_not_answer_is_sent_again() -> None:
    """The copy jumps over records. What they held of this session is answered; the rest may never have arrived."""
    copy, session, producer = parts()
    answers: list[bytes] = []

    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.run)
        for word in (b"one", b"two"):
            nursery.start_soon(say, session, word, answers)
            await trio.testing.wait_all_tasks_blocked()
        assert producer.commands == [(0, [b"one"]), (1, [b"two"])]
        restored = Applier(Words())
        restored.apply(0, 1000, encode(Open("me", session.nonce)))
        restored.apply(1, 1000, producer.sent[0].value)
        copy.applier = restored
        session.on_restored()
        await trio.testing.wait_all_tasks_blocked()
        assert answers == [b"ONE"]
        assert producer.commands[2:] == [(1, [b"two"])]
        session.on_applied(restored.apply(2, 1000, producer.sent[2].value))
        await trio.testing.wait_all_tasks_blocked()
        assert answers == [b"ONE", b"TWO"]
        nursery.cancel_scope.cancel()


async def test_what_was_sent_before_the_name_was_opened_again_is_sent_again() -> None:
    """The record that opens a session may stand in the log twice, if it was unclear what became of the first."""
    copy, session, producer = parts()
    answers: list[bytes] = []

    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.run)
        nursery.start_soon(say, session, b"word", answers)
        await trio.testing.wait_all_tasks_blocked()
        session.on_applied(copy.applier.apply(1, 1000, encode(Open("me", session.nonce))))
        await trio.testing.wait_all_tasks_blocked()
        assert session.token == 1
        assert producer.commands == [(0, [b"word"]), (0, [b"word"])]
        for offset, sent in enumerate(producer.sent, 2):
            session.on_applied(copy.applier.apply(offset, 1000, sent.value))
        await trio.testing.wait_all_tasks_blocked()
        assert answers == [b"WORD"]
        assert copy.applier.commands == 1
        nursery.cancel_scope.cancel()


# The copy


async def test_who_waits_for_a_question_that_is_not_asked_yet_hears_that_the_copy_has_stopped() -> None:
    copy, *_ = parts()
    told: list[str] = []

    async def ask() -> None:
        try:
            await copy.catch_up()
        except StateClosedError as error:
            told.append(str(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        copy.stop(StateClosedError("it has stopped"))
        await trio.testing.wait_all_tasks_blocked()
        assert told == ["it has stopped"] * 2
        nursery.cancel_scope.cancel()


class Silent:
    """An admin whose cluster does not answer."""

    async def read_index(self, partitions: object) -> dict[PartitionId, int]:
        await trio.sleep_forever()
        raise AssertionError("unreachable")


async def test_who_waits_for_an_answer_hears_that_the_copy_was_closed() -> None:
    """The tasks of a copy are cancelled when it is closed, and with them the question."""
    copy, *_ = parts()
    copy.admin = cast(Any, Silent())
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as tasks:
            async with trio.open_nursery() as own:
                own.start_soon(copy.answer_rounds)
                nursery.start_soon(_is_refused, copy.catch_up)
                await trio.testing.wait_all_tasks_blocked()
                copy.stop(StateClosedError("it has stopped"))
                tasks.cancel()
        with trio.fail_after(10):
            while nursery.child_tasks:
                await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize(
    "opened", [lambda: Replica(NOWHERE, "state", Words), lambda: ReplicatedElection.open(NOWHERE, "state")]
)
@pytest.mark.parametrize("error", [None, ValueError("the caller's own")])
async def test_leaving_takes_five_seconds_whatever_the_cluster_does(
    opened: Callable[[], Replica],
    error: Exception | None,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nodes that have stopped answer no record: neither the command under way nor the end of the session."""
    replica = opened()
    copy, *_ = parts()

    async def open_() -> None:
        producer = await replica._stack.enter_async_context(RealProducer(cluster.urls, linger_ms=0))
        session = Session(copy, producer, "me", StateSettings(), 1 << 20)
        session.token = 1
        await producer.send("state", b"under way")
        replica._stack.push_async_callback(replica._close, session, copy)
        replica._session = session

    async def run(_: ReplicatedElection) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(replica, "_open", open_)
    monkeypatch.setattr(ReplicatedElection, "_run", run)
    async with fake_cluster(1, state=1) as cluster:
        cluster.chaos = lambda _, request: request.kind == m.Kind.PRODUCE
        began = trio.current_time()
        with pytest.raises(ValueError, match="own") if error else nullcontext():
            async with replica:
                began = trio.current_time()
                if error is not None:
                    raise error
        assert trio.current_time() - began == pytest.approx(CLOSE_SECONDS, abs=0.5)
        assert isinstance(copy.error, StateClosedError)


async def test_a_question_that_is_cancelled_is_no_answer() -> None:
    """Whoever waits must hear that, also if nobody has stopped the copy yet: another task of it has failed."""
    copy, *_ = parts()
    copy.admin = cast(Any, Silent())
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as tasks:
            async with trio.open_nursery() as own:
                own.start_soon(copy.answer_rounds)
                nursery.start_soon(_is_refused, copy.catch_up)
                await trio.testing.wait_all_tasks_blocked()
                tasks.cancel()
        with trio.fail_after(10):
            while nursery.child_tasks:
                await trio.testing.wait_all_tasks_blocked()


async def test_whoever_waits_is_told_if_the_block_of_a_copy_is_cancelled() -> None:
    copy, session, _ = parts()
    copy.on_turn = session.on_turn
    replica = Replica(NOWHERE, "state", Words)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_is_refused, copy.catch_up)
        nursery.start_soon(_is_refused, partial(session.submit, b"word"))
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as block:
            block.cancel()
            await replica._close(session, copy)
        with trio.fail_after(10):
            while nursery.child_tasks:
                await trio.testing.wait_all_tasks_blocked()


async def _is_refused(what: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(StateClosedError):
        await what()


class Empty:
    """A cluster whose log has lost what a copy has applied, without a snapshot."""

    async def read_index(self, partitions: list[PartitionId]) -> dict[PartitionId, int]:
        return dict.fromkeys(partitions, 0)

    beginning_offsets = read_index

    def assign(self, partitions: object) -> None:
        pass

    def seek(self, partition: object, offset: int) -> None:
        pass


async def test_who_reads_changes_is_told_that_a_copy_has_begun_anew() -> None:
    """What happened up to there is in the new state, and was never applied here."""
    copy, session, _ = parts()
    copy.admin = copy._consumer = cast(Any, Empty())
    async with copy.changes() as changes:
        record = encode(Commands("me", session.token, 0, 0, [b"told"]))
        copy._after_record(copy.applier.apply(1, 1000, record))
        await copy.restore(anew=True)
        assert (await anext(changes)).command == b"told"
        with trio.fail_after(10), pytest.raises(ChangesLostError, match="restored at offset 0"):
            await anext(changes)
    async with copy.changes() as again, trio.open_nursery() as nursery:
        nursery.start_soon(anext, again)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_who_reads_changes_too_slowly_is_told_so_after_those_that_waited() -> None:
    """Without a word the reader would take what is missing for never said; whoever keeps up misses nothing."""
    copy, session, _ = parts()

    def apply(first: int, count: int) -> None:
        words = [b"%d" % number for number in range(first, first + count)]
        record = encode(Commands("me", session.token, 0, first, words))
        copy._after_record(copy.applier.apply(1 + first, 1000, record))

    async with copy.changes() as slow, copy.changes() as quick:
        with trio.fail_after(30):
            apply(0, 10_000)
            assert [(await anext(quick)).command for _ in range(10_000)][-1] == b"9999"
            apply(10_000, 2)
            assert [(await anext(quick)).command for _ in range(2)] == [b"10000", b"10001"]
            assert [(await anext(slow)).command for _ in range(10_000)][-1] == b"9999"
            with pytest.raises(ChangesLostError, match="more than 10000 changes waited to be read"):
                await anext(slow)


async def test_who_reads_changes_of_a_copy_that_has_stopped_is_told_why() -> None:
    copy, *_ = parts()
    async with copy.changes() as changes:
        copy.stop(StateClosedError("a test has stopped it"))
        with pytest.raises(StateClosedError, match="a test has stopped it"):
            await anext(changes)


@pytest.mark.parametrize(
    ("mine", "left", "enough"), [(True, 0.4, False), (True, 0.6, True), (False, 0.4, True)]
)
def test_who_keeps_prolongs_its_lease_when_half_of_it_is_over(mine: bool, left: float, enough: bool) -> None:
    copy, session, _ = parts()
    keeper = Keeper(copy, session, cast(Any, None))
    copy.applier.keeper = session.copy_name if mine else "another"
    copy.applier.keeper_until = copy.applier.clock_ms + round(left * copy.settings.keeper_lease_ms)
    assert keeper._somebody_keeps() == enough


async def test_a_kept_snapshot_of_more_than_the_log_holds_is_not_used(tmp_path: Path) -> None:
    """The log has lost its end: a copy that went on behind it would find nothing there, and begin anew for ever."""
    copy, *_ = parts(cache_dir=tmp_path)
    copy.admin = copy._consumer = cast(Any, Empty())
    chunker = s.Chunker()
    copy.applier.snapshot(chunker.write)
    chunks, file = chunker.end(), copy.cache_file
    assert file is not None and copy.applier.position == 1
    marker = s.Marker("name", 1, 0, len(chunks), sum(map(len, chunks)), s.checksum(chunks), "topic id")
    s.save(file, marker, chunks)
    await copy.restore()
    assert (copy.applied, copy.restored) == (0, None)


@pytest.mark.parametrize("start", [1, 5])
async def test_a_log_that_begins_later_than_every_snapshot_is_not_read(
    tmp_path: Path, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state would lack what has been deleted."""

    class Deleted(Empty):
        async def read_index(self, partitions: list[PartitionId]) -> dict[PartitionId, int]:
            return dict.fromkeys(partitions, 9)

        async def beginning_offsets(self, partitions: list[PartitionId]) -> dict[PartitionId, int]:
            return dict.fromkeys(partitions, start)

    async def no_snapshot(*_: int) -> None:
        return None

    copy, *_ = parts(cache_dir=tmp_path)
    copy.admin = copy._consumer = cast(Any, Deleted())
    monkeypatch.setattr(copy, "_from_records", no_snapshot)
    if start > 1:
        chunker = s.Chunker()
        copy.applier.snapshot(chunker.write)
        chunks, file = chunker.end(), copy.cache_file
        assert file is not None and copy.applier.position < start
        marker = s.Marker("name", 1, 0, len(chunks), sum(map(len, chunks)), s.checksum(chunks), "topic id")
        s.save(file, marker, chunks)
    with pytest.raises(SnapshotMissingError, match=f"begins at offset {start}, and no whole snapshot"):
        await copy.restore()


# Snapshots


class Deleting:
    """An admin that is told which records may go."""

    def __init__(self) -> None:
        self.deleted: list[dict[PartitionId, int]] = []

    async def delete_records(self, offsets: dict[PartitionId, int]) -> None:
        self.deleted.append(offsets)


async def test_a_snapshot_that_is_taken_away_loses_its_marker_first_and_the_log_begins_at_the_older_kept() -> (
    None
):
    copy, session, producer = parts()
    admin = Deleting()
    copy.admin = cast(Any, admin)
    older, newer = Snapshotted(9, "older", 1), Snapshotted(12, "newer", 1)
    copy.applier.snapshots = [older, newer]
    await Keeper(copy, session, cast(Any, producer))._tidy([Snapshotted(5, "gone", 2), older])
    assert [each.key for each in producer.sent] == [
        s.marker_key("gone"),
        s.chunk_key("gone", 0),
        s.chunk_key("gone", 1),
    ]
    assert {each.value for each in producer.sent} == {None}
    assert admin.deleted == [{AT: 9}]


class Quiet:
    """As much of a session as a snapshot needs after its marker: nothing."""

    name = "me"

    async def send_until_applied(self, entry: object, is_done: object) -> None:
        raise AssertionError(f"{entry} is told before the marker is delivered")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_snapshots_marker_is_sent_when_all_of_its_chunks_are_delivered(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(s, "CHUNK", 4)
    copy, _, producer = parts()
    machine = copy.applier.machine
    assert isinstance(machine, Words)
    machine.said.append(b"something longer than one chunk")
    keeper = Keeper(copy, cast(Any, Quiet()), cast(Any, producer))
    failed: list[str] = []

    def is_marked() -> bool:
        return any(s.decode_marker(each.value or b"") is not None for each in producer.sent)

    async def snapshot() -> None:
        try:
            await keeper.take_snapshot()
        except RequestTimeoutError as error:
            failed.append(str(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(snapshot)
        await trio.testing.wait_all_tasks_blocked()
        chunks = list(producer.sent)
        assert len(chunks) > 2 and not is_marked()
        for chunk in chunks[:-1]:
            chunk.over.set()
        await trio.testing.wait_all_tasks_blocked()
        assert not is_marked()
        chunks[-1].error = RequestTimeoutError("not delivered") if fails else None
        chunks[-1].over.set()
        await trio.testing.wait_all_tasks_blocked()
        assert is_marked() != fails and len(failed) == fails
        nursery.cancel_scope.cancel()


async def test_a_copy_that_has_stopped_says_so_at_the_same_length_each_time() -> None:
    replica = Replica(NOWHERE, "state", Words)
    copy: Any = Copy.__new__(Copy)
    copy.error = StateClosedError("gone")
    replica._copy = copy
    depths = []
    for _ in range(4):
        with pytest.raises(StateClosedError) as told:
            await replica.read()
        depths.append(sum(1 for _ in traceback.walk_tb(told.value.__traceback__)))
    assert len(set(depths)) == 1


# Leases


async def test_the_lease_of_a_lock_counts_from_the_question(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """The log may have granted it at any moment since; counted from the answer, two could hold the lock."""
    lock = ReplicatedLock.open(NOWHERE, "locks", name="one")
    began, asked = trio.current_time(), list[float]()

    async def acquire(name: str, lease_ms: int) -> int:
        asked.append(trio.current_time() - began)
        if len(asked) == 2:
            await trio.sleep(1.5)
        elif len(asked) > 2:
            await trio.sleep_forever()
        return 7

    monkeypatch.setattr(lock, "acquire_nowait", acquire)
    with pytest.raises(LockLostError):
        async with lock.hold("x", lease_ms=3000):
            await trio.sleep_forever()
    assert asked == pytest.approx([0.0, 1.0, 3.5])
    assert trio.current_time() - began == pytest.approx(1.0 + 3.0), "from the second question"


async def test_the_first_lease_of_a_lock_counts_from_the_question_too(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    lock = ReplicatedLock.open(NOWHERE, "locks", name="one")
    began, asked = trio.current_time(), list[float]()

    async def acquire(name: str, lease_ms: int) -> int:
        asked.append(trio.current_time() - began)
        await trio.sleep(1.5 if len(asked) == 1 else 1000)
        return 7

    monkeypatch.setattr(lock, "acquire_nowait", acquire)
    with pytest.raises(LockLostError):
        async with lock.hold("x", lease_ms=3000):
            await trio.sleep_forever()
    assert trio.current_time() - began == pytest.approx(3.0)


async def test_the_lease_of_a_lock_does_not_count_while_another_holds_it(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Counted from when the waiting began, a lock that was waited for would be lost as soon as it was held."""
    lock = ReplicatedLock.open(NOWHERE, "locks", name="one")
    asked = 0

    async def acquire(name: str, lease_ms: int) -> int | None:
        nonlocal asked
        asked += 1
        await trio.sleep(0.5)
        return None if asked < 10 else 7

    monkeypatch.setattr(lock, "acquire_nowait", acquire)
    monkeypatch.setattr(ReplicatedLock, "_state", LockState())
    monkeypatch.setattr(lock, "release", AsyncMock())
    began = trio.current_time()
    async with lock.hold("x", lease_ms=3000):
        assert trio.current_time() - began > 3.0, "longer than the lease"
        await trio.sleep(10)
    assert asked > 12


async def test_the_lease_of_a_leader_counts_from_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    election = ReplicatedElection.open(NOWHERE, "cron", name="one", lease_ms=1_000_000)
    now = 5000.0
    clock = SimpleNamespace(monotonic=lambda: now, time=lambda: now)
    monkeypatch.setattr(coordination, "time", clock)

    async def acquire(name: str, lease_ms: int) -> int:
        nonlocal now
        now += 300  # on its way
        return 7

    monkeypatch.setattr(election, "acquire_nowait", acquire)
    monkeypatch.setattr(election, "_seat_is_free", trio.sleep_forever)
    election._campaign, election._over = trio.CancelScope(), None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(election._run)
        assert await election.wait_for_leadership() == 7
        assert now == 5300 and election.is_leader
        now = 5899
        assert election.is_leader
        now = 5900
        assert not election.is_leader, "nine tenths of the lease since the question are over"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("answers", [1, 2])
async def test_an_answer_that_comes_as_a_handle_resigns_does_not_make_it_lead(
    monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    """The answer to its first question, or to a renewal, has woken the campaign's task before it is cancelled."""
    election = ReplicatedElection.open(NOWHERE, "cron", name="one", lease_ms=100)
    asked = 0
    answered = trio.Event()
    released: list[int] = []

    async def acquire(name: str, lease_ms: int) -> int:
        nonlocal asked
        asked += 1
        if asked == answers:
            await answered.wait()
        return 7

    async def release(name: str, token: int) -> bool:
        released.append(token)
        return True

    monkeypatch.setattr(coordination, "time", SimpleNamespace(monotonic=lambda: 5000.0))
    monkeypatch.setattr(election, "acquire_nowait", acquire)
    monkeypatch.setattr(election, "release", release)
    monkeypatch.setattr(election, "_seat_is_free", trio.lowlevel.checkpoint)
    election._over = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(election._run)
        await trio.testing.wait_all_tasks_blocked()
        assert asked == answers and election.is_leader == (answers == 2)
        answered.set()
        await election.resign()
        await trio.testing.wait_all_tasks_blocked()
        assert not election.is_leader
        assert released == [7], "nobody waits for the end of a lease"
        with pytest.raises(ResignedError):
            await election.wait_for_leadership()


async def test_a_campaign_that_is_told_that_its_copy_has_stopped_tells_who_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    election = ReplicatedElection.open(NOWHERE, "cron", name="one")
    fenced = FencedError("another has the name")
    monkeypatch.setattr(election, "acquire_nowait", AsyncMock(side_effect=fenced))
    election._over = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(election._run)
        with trio.fail_after(30), pytest.raises(FencedError) as told:
            await election.wait_for_leadership()
    assert told.value is fenced and election._ended.is_set()


async def test_why_a_handle_does_not_lead_is_what_came_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has resigned is told so, though its copy stops later; who was shut out is, though it resigns later."""
    monkeypatch.setattr(ReplicatedElection, "release", AsyncMock())
    resigned, fenced = (ReplicatedElection.open(NOWHERE, "cron", name=name) for name in ("one", "two"))
    for each in (resigned, fenced):
        each._over = None
        each._ended.set()
    await resigned.resign()
    resigned._stopped(FencedError("another has the name"))
    with pytest.raises(ResignedError):
        await resigned.wait_for_leadership()
    fenced._stopped(FencedError("another has the name"))
    await fenced.resign()
    with pytest.raises(FencedError):
        await fenced.wait_for_leadership()


async def test_a_lock_whose_lease_has_ended_has_no_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the time of the newest record, though nobody has taken it since."""
    lock, state, now = ReplicatedLock.open(NOWHERE, "locks", name="one"), LockState(), 1000
    state.held["x"] = ["one", 7, 1500]
    monkeypatch.setattr(lock, "read", AsyncMock())
    monkeypatch.setattr(ReplicatedLock, "_state", state)
    monkeypatch.setattr(ReplicatedLock, "clock_ms", property(lambda _: now))
    held = await lock.holder("x")
    assert held is not None and (held.owner, held.token) == ("one", 7)
    now = 1499
    assert await lock.holder("x") is not None
    now = 1500
    assert await lock.holder("x") is None


# Shards


async def test_shards_are_used_within_their_block_alone() -> None:
    def opened(**_: object) -> Any:
        return AsyncExitStack()

    def opened_by_threads(**_: object) -> Any:
        return ExitStack()

    shards: Shards[Any] = Shards(opened, shards=2)
    async with shards:
        assert shards.of("key") in list(shards)
    blocking: BlockingShards[Any] = BlockingShards(opened_by_threads, shards=2)
    with blocking:
        assert blocking.of("key") in list(blocking)
    for each in (shards, blocking):
        with pytest.raises(StateClosedError, match="the shards are not open"):
            each.of("key")
