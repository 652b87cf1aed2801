"""One meaning in trio, asyncio and threads: the same scenarios, each handled where its handlers are at home."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from insync.replication import BlockingAdmin, BlockingConsumer, BlockingNode, BlockingProducer
from insync.replication._portal import Portal
from insync.replication.client.errors import InvalidArgumentError, NotAssignedError
from insync.replication.core.types import PartitionId
from insync.replication.listeners import (
    AckMode,
    HandlerFailedError,
    Listener,
    ListenerError,
    RecordFailedError,
)
from insync.replication.listeners import asyncio as in_asyncio
from insync.replication.listeners import blocking as in_threads
from tests.replication.node.test_cluster import settings

COUNT = 12
FACES = {"trio": Listener, "asyncio": in_asyncio.Listener, "threads": in_threads.Listener}
PATIENCE = 30


class Face:
    """A face, and how plain functions are used with it; what they return is awaited where that can be."""

    def __init__(self, name: str, servers: list[str]) -> None:
        self.name = name
        self.servers = servers
        self.is_async = name != "threads"

    def listener(self, group: str, **options: Any) -> Any:
        return FACES[self.name](self.servers, group_id=group, topics=["t"], retry_backoff_ms=1, **options)

    def handle(self, listener: Any, function: Callable[..., Any], *, batches: bool = False) -> None:
        async def wrapped(*arguments: Any) -> None:
            result = function(*arguments)
            if inspect.isawaitable(result):
                await result

        use = listener.batch_handler if batches else listener.handler
        use(wrapped if self.is_async else function)

    def run(self, listener: Any, beside: Callable[[], Any] | None = None) -> None:
        """To its end. beside: an async function, or a plain one for threads, that runs at the same time."""
        if self.name == "threads":
            errors: list[BaseException] = []
            thread = threading.Thread(target=_noting(errors, beside)) if beside is not None else None
            if thread is not None:
                thread.start()
            try:
                listener.run()
            finally:
                if thread is not None:
                    thread.join(PATIENCE)
            assert not errors, errors
        elif self.name == "asyncio":
            asyncio.run(self._in_asyncio(listener, beside))
        else:
            trio.run(self._in_trio, listener, beside)

    async def _in_asyncio(self, listener: Any, beside: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            task = asyncio.ensure_future(beside()) if beside is not None else None
            await listener.run()
            if task is not None:
                await task

    async def _in_trio(self, listener: Any, beside: Any) -> None:
        with trio.fail_after(PATIENCE):
            if beside is None:
                await listener.run()
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(beside)
                await listener.run()


def _noting(errors: list[BaseException], function: Any) -> Callable[[], None]:
    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    return run


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    folder: Path = tmp_path_factory.mktemp("node")
    with BlockingNode(settings(folder, 1, session_timeout_ms=60_000)) as node:
        with BlockingAdmin(node.endpoints) as admin, BlockingProducer(node.endpoints) as producer:
            retry = [(f"again-{name}", 1) for name in FACES]
            for topic, partitions in (("t", 2), ("dead", 1), ("out", 1), *retry):
                admin.create_topic(topic, partitions, 1)
            for n in range(COUNT):
                producer.send_and_wait("t", b"%d" % n, key=b"k%d" % (n % 3), partition=n % 2)
        yield list(node.endpoints)


@pytest.fixture(params=list(FACES))
def face(request: pytest.FixtureRequest, servers: list[str]) -> Face:
    return Face(request.param, servers)


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def committed(face: Face, group: str) -> dict[int, int]:
    with BlockingAdmin(face.servers) as admin:
        return {at.partition: offset for at, offset in admin.group_offsets(group).items() if at.topic == "t"}


def read(face: Face, topic: str, isolation: str = "read_uncommitted") -> list[Any]:
    """All that a topic of one partition holds."""
    with BlockingConsumer(face.servers, auto_offset_reset="earliest", isolation_level=isolation) as consumer:
        consumer.assign([(topic, 0)])
        end = consumer.end_offsets([(topic, 0)])[PartitionId(topic, 0)]
        found: list[Any] = []
        while (consumer.position((topic, 0)) or 0) < end:
            found += consumer.poll(500)
        return found


@pytest.mark.parametrize("mode", [AckMode.RECORD, AckMode.BATCH, AckMode.MANUAL, AckMode.MANUAL_IMMEDIATE])
def test_all_is_handled_in_order_and_committed(face: Face, group: str, mode: AckMode) -> None:
    listener = face.listener(group, ack_mode=mode, concurrency=2)
    seen: list[int] = []

    def handle(record: Any, ack: Any = None) -> Any:
        seen.append(int(record.value))
        if len(seen) == COUNT:
            listener.stop()
        return ack.acknowledge() if ack is not None else None

    face.handle(listener, handle)
    face.run(listener)
    for partition in (0, 1):
        own = [n for n in seen if n % 2 == partition]
        assert own == list(range(partition, COUNT, 2))
    assert committed(face, group) == {0: COUNT // 2, 1: COUNT // 2}


def test_a_poison_record_goes_through_retries_a_retry_topic_and_the_dead_letters(
    face: Face, group: str
) -> None:
    listener = face.listener(
        group, retries=1, retry_topics={f"again-{face.name}": 1}, dead_letter="dead", ack_mode=AckMode.RECORD
    )
    attempts: list[tuple[str, bytes]] = []

    def handle(record: Any) -> None:
        attempts.append((record.topic, record.value))
        if record.value == b"4":
            raise ValueError(f"poison of {group}")

    async def until_dead() -> None:
        while (await _called(listener.status)).dead_letters == 0:
            await _sleep(face, 0.01)
        listener.stop()

    def until_dead_blocking() -> None:
        while listener.status().dead_letters == 0:
            threading.Event().wait(0.01)
        listener.stop()

    face.handle(listener, handle)
    face.run(listener, until_dead if face.is_async else until_dead_blocking)
    assert attempts.count(("t", b"4")) == attempts.count((f"again-{face.name}", b"4")) == 2
    (letter, *_) = [each for each in read(face, "dead") if group.encode() in dict(each.headers)["dlt-error"]]
    headers = dict(letter.headers)
    assert (letter.value, letter.key) == (b"4", b"k1")
    assert (headers["dlt-topic"], headers["dlt-partition"], headers["dlt-offset"]) == (b"t", b"0", b"2")


async def _called(function: Callable[[], Any]) -> Any:
    result = function()
    return await result if inspect.isawaitable(result) else result


async def _sleep(face: Face, seconds: float) -> None:
    await (trio.sleep if face.name == "trio" else asyncio.sleep)(seconds)


def test_a_batch_that_tells_which_record_fails_goes_on_with_the_others(face: Face, group: str) -> None:
    listener = face.listener(group, retries=1, on_failure="skip")
    batches: list[list[int]] = []

    def handle(records: list[Any]) -> None:
        values = [int(record.value) for record in records]
        batches.append(values)
        if 4 in values:
            raise RecordFailedError(values.index(4)) from ValueError("poison")
        if [6, 8, 10] in batches and any(COUNT - 1 in each for each in batches):
            listener.stop()

    face.handle(listener, handle, batches=True)
    face.run(listener)
    even = [each for each in batches if each[0] % 2 == 0]
    assert even == [[0, 2, 4, 6, 8, 10], [4, 6, 8, 10], [6, 8, 10]], (
        "2 is done, 4 is tried twice, then skipped"
    )
    assert committed(face, group) == {0: COUNT // 2, 1: COUNT // 2}


def test_what_a_transaction_reads_and_writes_counts_once(face: Face, group: str) -> None:
    listener = face.listener(
        group, transactional_id_prefix=group, retries=0, dead_letter="dead", concurrency=2
    )
    failed = []

    def handle(record: Any, producer: Any) -> Any:
        if record.value == b"4":
            failed.append(record)
            raise ValueError(f"poison of {group}")
        if record.value == b"8" and len(failed) < 2:
            failed.append(record)
            raise ValueError("perhaps")
        return producer.send("out", record.value, key=group.encode())

    async def until_done() -> None:
        while (await _called(listener.status)).lag or (await _called(listener.status)).handled < COUNT - 2:
            await _sleep(face, 0.01)
        listener.stop()

    def until_done_blocking() -> None:
        while listener.status().lag or listener.status().handled < COUNT - 2:
            threading.Event().wait(0.01)
        listener.stop()

    face.handle(listener, handle)
    face.run(listener, until_done if face.is_async else until_done_blocking)
    out = [each.value for each in read(face, "out", "read_committed") if each.key == group.encode()]
    letters = [
        each.value
        for each in read(face, "dead", "read_committed")
        if group.encode() in dict(each.headers)["dlt-error"]
    ]
    assert sorted(out + letters, key=int) == [b"%d" % n for n in range(COUNT)]
    assert b"4" in letters
    assert committed(face, group) == {0: COUNT // 2, 1: COUNT // 2}


def test_a_failure_ends_run_and_is_raised(face: Face, group: str) -> None:
    listener = face.listener(group, retries=2, ack_mode=AckMode.RECORD)

    def handle(record: Any) -> None:
        if record.value == b"4":
            raise ValueError("poison")

    face.handle(listener, handle)
    with pytest.raises(HandlerFailedError, match=r"t-0 offset 2.*poison") as caught:
        face.run(listener)
    assert isinstance(caught.value.__cause__, ValueError)
    assert committed(face, group)[0] == 2


def test_pause_resume_and_status(face: Face, group: str) -> None:
    listener = face.listener(group, ack_mode=AckMode.RECORD, concurrency=2)
    seen: list[int] = []
    facts: dict[str, Any] = {}

    def handle(record: Any) -> Any:
        seen.append(int(record.value))
        if record.value == b"2":
            return paused() if face.is_async else paused_blocking()
        return None

    def noted(status: Any) -> None:
        facts["paused"] = status

    async def paused() -> None:
        await _called(partial(listener.pause, [("t", 0)]))
        with pytest.raises(NotAssignedError):
            await _called(partial(listener.pause, [("t", 7)]))

    def paused_blocking() -> None:
        listener.pause([("t", 0)])
        with pytest.raises(NotAssignedError):
            listener.pause([("t", 7)])

    def is_held(status: Any) -> bool:
        return (
            status.partitions
            and status.partitions[PartitionId("t", 0)].committed == 2
            and status.handled >= 8
        )

    async def watch() -> None:
        while not is_held(status := await _called(listener.status)):
            await _sleep(face, 0.01)
        noted(status)
        await _called(listener.resume)
        while (status := await _called(listener.status)).lag:
            await _sleep(face, 0.01)
        listener.stop()

    def watch_blocking() -> None:
        while not is_held(status := listener.status()):
            threading.Event().wait(0.01)
        noted(status)
        listener.resume()
        while listener.status().lag:
            threading.Event().wait(0.01)
        listener.stop()

    face.handle(listener, handle)
    face.run(listener, watch if face.is_async else watch_blocking)
    assert sorted(seen) == list(range(COUNT))
    status = facts["paused"]
    at = status.partitions[PartitionId("t", 0)]
    assert (status.state, status.handled, status.lag) == ("running", 8, 4)
    assert (at.is_paused, at.position, at.committed, at.lag, at.in_hand) == (True, 2, 2, 4, 4)
    assert f'insync_listener_lag{{group="{group}",topic="t",partition="0"}} 4' in status.metrics(group)
    assert f'insync_listener_handled_total{{group="{group}"}} 8' in status.metrics(group)


def test_sigterm_finishes_what_is_in_hand(face: Face, group: str) -> None:
    listener = face.listener(group, ack_mode=AckMode.BATCH)
    seen: list[int] = []

    async def until_it_has_come() -> None:
        while (await _called(listener.status)).state == "running":
            await _sleep(face, 0.01)

    def until_it_has_come_blocking() -> None:
        while listener.status().state == "running":
            threading.Event().wait(0.01)

    def handle(record: Any) -> Any:
        seen.append(int(record.value))
        if len(seen) < 3:
            return _sleep(face, 0) if face.is_async else None
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        # The signal comes to the main thread, which may be late: handlers would go on to the last record meanwhile.
        return until_it_has_come() if face.is_async else until_it_has_come_blocking()

    face.handle(listener, handle)
    face.run(listener)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert 3 <= len(seen) < COUNT
    assert sum(committed(face, group).values()) == len(seen), "all that was begun is done, and committed"


def test_a_handler_of_the_wrong_kind_and_two_runs_are_refused(face: Face, group: str) -> None:
    listener = face.listener(group)
    with pytest.raises(ListenerError, match="no handler"):
        face.run(listener)

    async def async_handle(record: Any) -> None: ...

    def plain_handle(record: Any) -> None: ...

    for wrong in (plain_handle if face.is_async else async_handle, 7):
        with pytest.raises(InvalidArgumentError):
            listener.handler(wrong)
        with pytest.raises(InvalidArgumentError):
            listener.batch_handler(wrong)
    second: list[BaseException] = []

    def handle(record: Any) -> Any:
        if not second:
            try:
                result = listener.run()
            except ListenerError as error:
                second.append(error)
            else:
                return _expecting(result, second, listener)
            listener.stop()
        return None

    face.handle(listener, handle)
    face.run(listener)
    assert "already running" in str(second[0])


async def _expecting(running: Any, errors: list[BaseException], listener: Any) -> None:
    try:
        await running
    except ListenerError as error:
        errors.append(error)
    listener.stop()


def test_in_asyncio_a_run_that_is_cancelled_cancels_its_handlers(servers: list[str], group: str) -> None:
    listener = Face("asyncio", servers).listener(group)
    ends: list[str] = []

    async def main() -> None:
        begun = asyncio.Event()

        @listener.handler
        async def handle(record: Any) -> None:
            begun.set()
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                await asyncio.sleep(0)
                ends.append("handler")

        task = asyncio.create_task(listener.run())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        ends.append("run")

    asyncio.run(main())
    assert ends == ["handler", "run"]
    assert committed(Face("asyncio", servers), group) == {}


def test_a_stop_before_run_is_a_stop(face: Face, group: str) -> None:
    listener = face.listener(group)
    face.handle(listener, lambda record: pytest.fail("nothing is to be handled"))
    listener.stop()
    face.run(listener)


@pytest.mark.parametrize("name", ["asyncio", "threads"])
def test_what_is_asked_while_the_listeners_thread_begins_is_answered_and_a_stop_is_a_stop(
    name: str, servers: list[str], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    face = Face(name, servers)
    listener = face.listener(group)
    seen: list[int] = []
    states: list[str] = []
    start = Portal.start

    def handle(record: Any) -> None:
        seen.append(int(record.value))
        if len(seen) == COUNT:
            listener.stop()

    def begun(portal: Portal[Any]) -> None:
        if portal._thread.name == "insync-listener":
            if not face.is_async:
                states.append(listener.status().state)
            listener.stop()
        start(portal)

    face.handle(listener, handle)
    with monkeypatch.context() as patch:
        patch.setattr(Portal, "start", begun)
        face.run(listener)
    assert seen == []
    assert states == ([] if face.is_async else ["starting"])
    # What was asked of one run is not asked of the next; nor is a stop that comes when there is nothing to stop.
    listener.stop()
    face.run(listener)
    assert sorted(seen) == list(range(COUNT))
