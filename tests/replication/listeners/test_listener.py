"""Listeners on a real node."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from insync.replication import Consumer
from insync.replication.client.errors import InvalidSettingError, RequestTimeoutError, UnknownTopicError
from insync.replication.core.types import PartitionId
from insync.replication.listeners import AckMode, HandlerFailedError, Listener, ListenerError, _engine
from insync.replication.listeners._engine import Engine

from .filled import COUNT, committed, filled, until


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[list[str]]:
    async with filled(tmp_path, "dead") as found:
        yield found


def listener(servers: list[str], group: str, **options: Any) -> Listener:
    return Listener(servers, group_id=group, topics=["t"], retry_backoff_ms=1, **options)


@pytest.mark.parametrize("mode", list(AckMode))
async def test_every_mode_handles_all_in_order_and_commits_what_is_done(
    servers: list[str], mode: AckMode
) -> None:
    seen: list[int] = []
    one = listener(servers, mode.value, ack_mode=mode, ack_count=3, ack_time_ms=10, concurrency=2)

    @one.handler
    async def handle(record: Any, ack: Any = None) -> None:
        seen.append(int(record.value))
        if ack is not None:
            await ack.acknowledge()
        if len(seen) == COUNT:
            one.stop()

    with trio.fail_after(30):
        await one.run()
    assert sorted(seen) == list(range(COUNT))
    for partition in (0, 1):
        own = [n for n in seen if n % 2 == partition]
        assert own == sorted(own)
    assert await committed(servers, mode.value) == {0: COUNT // 2, 1: COUNT // 2}


async def test_what_is_not_acknowledged_is_a_gap_that_is_not_committed(servers: list[str]) -> None:
    seen = 0
    one = listener(servers, "g", ack_mode=AckMode.MANUAL)

    @one.handler
    async def handle(record: Any, ack: Any) -> None:
        nonlocal seen
        seen += 1
        if int(record.value) != 4:
            await ack.acknowledge()
        if seen == COUNT:
            one.stop()

    with trio.fail_after(30):
        await one.run()
    assert await committed(servers, "g") == {0: 2, 1: COUNT // 2}


async def test_a_poison_record_stops_its_listener_behind_what_was_done(servers: list[str]) -> None:
    attempts = 0
    one = listener(servers, "g", ack_mode=AckMode.RECORD, retries=2)

    @one.handler
    async def handle(record: Any) -> None:
        nonlocal attempts
        if record.value == b"4":
            attempts += 1
            raise ValueError("poison")

    with trio.fail_after(30), pytest.raises(HandlerFailedError, match=r"offset 2.*poison"):
        await one.run()
    assert attempts == 3
    assert (await committed(servers, "g"))[0] == 2


async def test_each_record_has_all_of_its_attempts(servers: list[str]) -> None:
    """Those of the record before it do not count."""
    tried: Counter[bytes] = Counter()
    one = listener(servers, "g", ack_mode=AckMode.RECORD, retries=1)

    @one.handler
    async def handle(record: Any) -> None:
        tried[record.value] += 1
        if tried[record.value] == 1:
            raise ValueError("the first attempt")
        if tried.total() == 2 * COUNT:
            one.stop()

    with trio.fail_after(60):
        await one.run()
    assert set(tried.values()) == {2} and len(tried) == COUNT


@pytest.mark.parametrize("dead_letter", ["", "dead"])
async def test_other_records_go_on_when_one_is_skipped_or_buried(
    servers: list[str], dead_letter: str
) -> None:
    seen: list[int] = []
    one = listener(
        servers, "g", retries=1, order="key", concurrency=3, on_failure="skip", dead_letter=dead_letter
    )

    @one.handler
    async def handle(record: Any) -> None:
        if record.value == b"4":
            raise ValueError("poison")
        seen.append(int(record.value))
        if len(seen) == COUNT - 1:
            one.stop()

    with trio.fail_after(30):
        await one.run()
    assert sorted(seen) == [n for n in range(COUNT) if n != 4]
    assert await committed(servers, "g") == {0: COUNT // 2, 1: COUNT // 2}
    if dead_letter:
        async with Consumer(servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([("dead", 0)])
            (letter,) = await consumer.poll(5000)
        headers = dict(letter.headers)
        assert (letter.value, letter.key) == (b"4", b"k1")
        assert (headers["dlt-topic"], headers["dlt-partition"], headers["dlt-offset"]) == (b"t", b"0", b"2")
        assert b"poison" in (headers["dlt-error"] or b"")


async def test_what_dies_in_the_middle_is_handled_again(servers: list[str]) -> None:
    """Cancelled inside a handler, as if killed: nothing of it is committed, and it comes again."""
    first = listener(servers, "g", ack_mode=AckMode.RECORD)
    seen: list[int] = []
    with trio.CancelScope() as scope:

        @first.handler
        async def die(record: Any) -> None:
            if record.value == b"6":
                scope.cancel()
                await trio.sleep_forever()
            seen.append(int(record.value))

        with trio.move_on_after(30):
            await first.run()
    assert scope.cancelled_caught
    again: list[int] = []
    second = listener(servers, "g", ack_mode=AckMode.RECORD)

    @second.handler
    async def handle(record: Any) -> None:
        again.append(int(record.value))
        if set(seen) | set(again) == set(range(COUNT)):
            second.stop()

    with trio.fail_after(60):
        await second.run()
    assert 6 in again and 6 not in seen


async def test_a_value_of_which_nothing_can_be_made_fails_by_itself_and_is_buried_as_it_was(
    servers: list[str],
) -> None:
    seen: list[int] = []

    def small(data: bytes) -> int:
        if data == b"4":
            raise ValueError("no number")
        return int(data)

    one = listener(servers, "g", dead_letter="dead", retries=5, value_deserializer=small)

    @one.batch_handler
    async def handle(records: list[Any]) -> None:
        seen.extend(record.value for record in records)
        if len(seen) == COUNT - 1:
            one.stop()

    with trio.fail_after(30):
        await one.run()
    assert sorted(seen) == [n for n in range(COUNT) if n != 4]
    assert one.status().failures == 1, "another attempt would come to the same"
    async with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([("dead", 0)])
        (letter,) = await consumer.poll(5000)
    assert letter.value == b"4"


async def test_a_topic_for_what_fails_must_be_there(servers: list[str]) -> None:
    for options in ({"dead_letter": "nowhere"}, {"retry_topics": {"nowhere": 1}}):
        one = listener(servers, "g", **options)
        one.handler(nothing)
        with pytest.raises(UnknownTopicError, match="nowhere"):
            await one.run()


async def nothing(record: Any) -> None:
    """Handles it."""


async def test_what_is_acknowledged_late_is_committed(servers: list[str]) -> None:
    acks: list[Any] = []
    one = listener(servers, "g", ack_mode=AckMode.MANUAL)

    @one.handler
    async def handle(record: Any, ack: Any) -> None:
        acks.append(ack)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            await until(
                lambda: len(acks) == COUNT and not one.status().partitions[PartitionId("t", 0)].busy_for
            )
            assert await committed(servers, "g") == {}
            for ack in acks:
                await ack.acknowledge()
            while await committed(servers, "g") != {0: COUNT // 2, 1: COUNT // 2}:
                await trio.lowlevel.checkpoint()
            one.stop()


async def test_keys_are_handled_at_a_time_and_each_in_order(servers: list[str]) -> None:
    one = listener(servers, "g", order="key", concurrency=6)
    at_work: set[bytes] = set()
    together, seen = trio.Event(), []

    @one.handler
    async def handle(record: Any) -> None:
        key = record.key + b"%d" % record.partition
        assert key not in at_work, "two records of a key at a time"
        at_work.add(key)
        if len(at_work) == 6:
            together.set()
        await together.wait()
        await trio.testing.wait_all_tasks_blocked(0.01)
        at_work.remove(key)
        seen.append(int(record.value))
        if len(seen) == COUNT:
            one.stop()

    with trio.fail_after(30):
        await one.run()
    for key in range(3):
        for partition in (0, 1):
            own = [n for n in seen if n % 3 == key and n % 2 == partition]
            assert own == sorted(own)


async def test_a_handler_that_takes_too_long_costs_its_listener_the_partitions_until_it_ends(
    servers: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Heartbeats would keep them for ever, and nobody would get on."""
    slow = listener(servers, "g", ack_mode=AckMode.RECORD, concurrency=2, max_poll_interval_ms=300)
    quick = listener(servers, "g", ack_mode=AckMode.RECORD)
    seen: list[tuple[str, int]] = []
    release, again = trio.Event(), trio.Event()

    @slow.handler
    async def stand(record: Any) -> None:
        if record.value == b"2" and not again.is_set():
            again.set()
            await release.wait()
            return
        seen.append(("slow", int(record.value)))

    @quick.handler
    async def go_on(record: Any) -> None:
        seen.append(("quick", int(record.value)))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow.run)
            await again.wait()
            nursery.start_soon(quick.run)
            await until(lambda: ("quick", 2) in seen and len({n for _, n in seen}) == COUNT)
            # A record is seen before it is committed.
            while await committed(servers, "g") != {0: COUNT // 2, 1: COUNT // 2}:
                await trio.lowlevel.checkpoint()
            assert slow.status().state == "running"
            release.set()
            await until(lambda: len(slow.status().partitions) == 1)
            slow.stop()
            quick.stop()
    assert "leaves its group" in caplog.text and "max_poll_interval_ms=300" in caplog.text


async def test_settings_that_cannot_be(servers: list[str]) -> None:
    with pytest.raises(ListenerError, match="no handler"):
        await listener(servers, "g").run()
    for wrong in (
        {"ack_mode": "batch"},
        {"order": "none"},
        {"on_failure": "dead_letter"},
        {"on_failure": "?"},
        {"retries": -1},
        {"concurrency": True},
        {"retry_topics": ["again"]},
        {"retry_topics": {"again": -1}},
        {"no_retry": (7,)},
        {"enable_auto_commit": True},
        {"transactional_id_prefix": "p", "order": "key"},
        {"transactional_id_prefix": "p", "ack_mode": AckMode.MANUAL},
        {"no_such_setting": 1},
    ):
        with pytest.raises(InvalidSettingError):
            listener(servers, "g", **wrong)


async def test_what_is_done_is_committed_before_a_partition_goes_to_another_member(
    servers: list[str],
) -> None:
    seen: list[int] = []

    def member() -> Listener:
        # Nothing but the end, or another member, makes it commit.
        made = listener(servers, "given back", ack_mode=AckMode.COUNT, ack_count=1000)

        @made.handler
        async def handle(record: Any) -> None:
            seen.append(int(record.value))

        return made

    def has_come(of: Listener) -> bool:
        found = of.status().partitions
        return bool(found) and all(each.position == COUNT // 2 for each in found.values())

    async with trio.open_nursery() as nursery:
        one, two = member(), member()
        nursery.start_soon(one.run)
        await until(lambda: len(seen) == COUNT)
        assert await committed(servers, "given back") == {}
        nursery.start_soon(two.run)
        await until(lambda: has_come(two))
        one.stop()
        two.stop()
    assert sorted(seen) == list(range(COUNT)), "nothing is handled by both"


async def test_what_is_done_for_a_partition_that_was_lost_does_not_count(servers: list[str]) -> None:
    one = listener(servers, "lost", ack_mode=AckMode.RECORD, concurrency=2)
    begun, go_on = trio.Event(), trio.Event()
    seen: list[int] = []

    @one.handler
    async def handle(record: Any) -> None:
        if record.partition == 0:
            begun.set()
            await go_on.wait()
        seen.append(int(record.value))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run)
        await begun.wait()
        engine = one._engine
        assert engine is not None
        # As the consumer says it when the group has gone on without this member.
        nursery.start_soon(engine.on_lost, [("t", 0)])
        await until(lambda: ("t", 0) not in engine.commits.partitions)
        go_on.set()
        await until(lambda: len(seen) == COUNT // 2 + 1)
        one.stop()
    assert [n for n in seen if n % 2 == 0] == [0], "nothing further of it is begun"
    assert await committed(servers, "lost") == {1: COUNT // 2}


async def test_a_dead_letter_that_cannot_be_written_for_now_is_written_before_its_offset_is_committed(
    servers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, calls = Engine.forward, 0

    async def failing(self: Engine, *args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            assert (await committed(servers, "buried")).get(0) == 2, "up to the one that fails"
            raise RequestTimeoutError("not now")
        await forward(self, *args)

    monkeypatch.setattr(Engine, "forward", failing)
    monkeypatch.setattr(_engine, "_PAUSE", 0.01)
    one = listener(servers, "buried", ack_mode=AckMode.RECORD, retries=0, dead_letter="dead")
    seen: list[int] = []

    @one.handler
    async def handle(record: Any) -> None:
        if record.value == b"4":
            raise ValueError("poison")
        seen.append(int(record.value))
        if len(seen) == COUNT - 1:
            one.stop()

    with trio.fail_after(60):
        await one.run()
    assert calls == 3
    assert await committed(servers, "buried") == {0: COUNT // 2, 1: COUNT // 2}
    async with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([("dead", 0)])
        (letter,) = await consumer.poll(30_000)
    assert letter.value == b"4"
