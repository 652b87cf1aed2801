"""Replicated state on real nodes."""

from __future__ import annotations

import enum
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from insync.replication import Admin, Producer
from insync.replication.client.errors import InvalidArgumentError, InvalidSettingError, RequestTimeoutError
from insync.replication.state import (
    CommandTooLargeError,
    Context,
    DivergedError,
    FencedError,
    IdempotencyConflictError,
    LockLostError,
    PackingError,
    Replica,
    ReplicatedCounter,
    ReplicatedDict,
    ReplicatedElection,
    ReplicatedLock,
    ReplicatedObject,
    ReplicatedQueue,
    ReplicatedSet,
    ResignedError,
    SnapshotMissingError,
    StateClosedError,
    StateError,
    StateMachine,
    command,
    coordination,
    query,
    replicate,
)
from insync.replication.state._snapshots import chunk_key
from insync.replication.state.machine import Read, Write


class SeatTakenError(Exception):
    pass


class Seats(ReplicatedObject):
    errors = (SeatTakenError,)

    def __init__(self) -> None:
        self.taken: dict[str, str] = {}

    @command
    def take(self, seat: str, who: str) -> int:
        if seat in self.taken:
            raise SeatTakenError(seat, self.taken[seat])
        self.taken[seat] = who
        return len(self.taken)

    @query
    def taker(self, seat: str) -> str | None:
        return self.taken.get(seat)


async def test_a_dict_is_current_everywhere(servers: list[str]) -> None:
    async with ReplicatedDict.open(servers, "state", name="api-1") as d:
        await d.put("colour", "red")  # back when committed and applied here
        assert await d.get("colour") == "red"  # current; d.get_stale("colour") for what this copy has
        assert d.get_stale("colour") == "red"
        async with ReplicatedDict.open(servers, "state", name="api-2") as e:
            assert e.get_stale("colour") == "red", "it has caught up before its block begins"
            for number in range(20):
                await d.put("n", number)
                assert await e.get("n") == number
            await e.put_many({"a": 1, b"b": [2, {"c": None}]})
            assert await d.get(b"b") == [2, {"c": None}]
            assert await d.put_if("a", 1, 2) and not await d.put_if("a", 1, 3)
            assert await e.delete("a") and not await e.delete("a")
            assert await e.get("a", "nothing") == "nothing"
            assert await e.get("n", after=d.token) == 19
            assert d.applied >= d.token and e.lag == 0
            await e.wait_until(d.token)
            await d.read()
            await e.read()
            assert d.digest() == e.digest() and len(d) == len(e) == 3
            with pytest.raises(TypeError):
                await d.put(5, "x")  # type: ignore[arg-type]
            with pytest.raises(PackingError):
                await d.put("x", object())
            with pytest.raises(CommandTooLargeError):
                await d.put("x", "y" * (2 << 20))


async def test_a_copy_that_is_behind_answers_when_it_is_not(servers: list[str]) -> None:
    async with (
        ReplicatedDict.open(servers, "state", name="a") as d,
        ReplicatedDict.open(servers, "state", name="b") as e,
    ):
        assert e._copy is not None
        e._copy._consumer.pause()
        await d.put("x", 1)
        found: list[Any] = []

        async def read() -> None:
            found.append(await e.get("x"))
            found.append(await e.get("x", after=d.token))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for _ in range(20):
                await d.read()  # the same round trips, by a copy that is not behind
            assert found == [] and e.get_stale("x") is None and e.applied < d.token
            e._copy._consumer.resume()
        assert found == [1, 1]


async def test_a_question_that_was_asked_before_a_write_is_no_answer_for_who_reads_after_it(
    servers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"snapshot_every": 0, "digest_every": 0}
    async with (
        ReplicatedDict.open(servers, "state", name="one", **options) as one,
        ReplicatedDict.open(servers, "state", name="two", **options) as two,
    ):
        await one.put("n", 1)
        assert await two.get("n") == 1
        copy = two._copy
        assert copy is not None
        ask, asked, go_on = copy.admin.read_index, trio.Event(), trio.Event()

        async def slow(partitions: Any) -> Any:
            found = await ask(partitions)
            asked.set()
            await go_on.wait()
            return found

        monkeypatch.setattr(copy.admin, "read_index", slow)
        early: list[Any] = []
        late: list[Any] = []

        async def read(found: list[Any]) -> None:
            found.append(await two.get("n"))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read, early)
                await asked.wait()
                # Nothing more comes to this copy: only an answer can tell it what it lacks.
                copy._consumer.pause()
                await one.put("n", 2)
                nursery.start_soon(read, late)
                for _ in range(10):
                    await trio.lowlevel.checkpoint()
                go_on.set()
                while not early:
                    await one.read()
                for _ in range(20):
                    await one.read()
                assert (early, late) == ([1], [])
                copy._consumer.resume()
        assert late == [2]


async def test_a_key_is_watched(servers: list[str]) -> None:
    async with (
        ReplicatedDict.open(servers, "state", name="a") as d,
        ReplicatedDict.open(servers, "state", name="b") as e,
        e.watch("x") as values,
    ):
        assert await anext(values) is None
        await d.put("x", 1)
        assert await anext(values) == 1
        await d.put("y", 5)
        await d.delete("x")
        assert await anext(values) is None


async def test_an_object_answers_with_what_its_commands_return_and_raise(servers: list[str]) -> None:
    async with (
        replicate(Seats, servers, "seats", name="one") as one,
        replicate(Seats, servers, "seats", name="other") as other,
    ):
        assert await one.take("12A", "alice") == 1
        with pytest.raises(SeatTakenError) as raised:
            await other.take("12A", "bob")
        assert raised.value.args == ("12A", "alice")
        assert await other.taker("12A") == "alice"
        assert other.taker.stale("12B") is None
        assert await other.taker.after(one.token, "12A") == "alice"
        # An HTTP client repeats its request at another process.
        first = await one.take.once("request 7", "12B", "carol")
        assert await other.take.once("request 7", "12B", "carol") == first == 2
        with pytest.raises(TypeError):
            await one.take("too few")
        with pytest.raises(AttributeError, match="no command or query"):
            one.leave  # noqa: B018


async def test_opening_a_name_shuts_out_who_had_it(servers: list[str]) -> None:
    async with ReplicatedCounter.open(servers, "state", name="one") as former:
        assert await former.add("n") == 1
        async with ReplicatedCounter.open(servers, "state", name="one") as latter:
            with pytest.raises(FencedError, match="opened elsewhere"):
                await former.add("n")
            assert await latter.add("n") == 2
            assert await former.value("n") == 2, "it may still look"


async def test_a_command_that_is_cancelled_is_done_or_not_and_harms_nobody(servers: list[str]) -> None:
    dice = random.Random(1)
    async with ReplicatedCounter.open(servers, "state", name="one") as counter:
        done = cancelled = 0

        async def add() -> None:
            nonlocal done, cancelled
            with trio.move_on_after(dice.random() * 0.004) as scope:
                await counter.add("n")
                done += 1
            cancelled += scope.cancelled_caught

        for _ in range(20):
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(add)
        assert cancelled and done + cancelled == 200
        assert done <= await counter.value("n") <= 200
        assert await counter.add("n") == await counter.value("n")


async def test_changes_are_told_in_order(servers: list[str]) -> None:
    async with (
        ReplicatedCounter.open(servers, "state", name="a") as counter,
        ReplicatedCounter.open(servers, "state", name="b") as other,
        other.changes() as changes,
    ):
        for amount in (1, 2, 3):
            await counter.add("n", amount)
        seen = [await anext(changes) for _ in range(3)]
        assert [change.name for change in seen] == ["a"] * 3
        assert [change.offset for change in seen] == sorted({change.offset for change in seen})


class Wild(StateMachine):
    """Its answers depend on who asks: what a machine must never do."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.seen: list[str] = []

    def apply(self, context: Context, command: bytes) -> bytes:
        self.seen.append(self.mark)
        return b""

    def snapshot(self, write: Write) -> None:
        write("".join(self.seen).encode())

    def restore(self, read: Read) -> None:
        self.seen = list((read() or b"").decode())


async def test_a_copy_that_differs_stops(servers: list[str]) -> None:
    options: dict[str, Any] = {"digest_every": 5}
    async with (
        Replica(servers, "state", lambda: Wild("x"), name="one", **options) as one,
        Replica(servers, "state", lambda: Wild("x"), name="same", **options) as same,
        Replica(servers, "state", lambda: Wild("y"), name="other", **options) as other,
    ):
        for _ in range(5):
            await one.submit(b"go")
        stopped = []
        with trio.fail_after(60):
            while not stopped:
                for each in (one, same, other):
                    try:
                        await each.read()
                    except DivergedError as error:
                        stopped.append((each, str(error)))
        assert all(each in (one, same, other) for each, _ in stopped)
        assert "digest" in stopped[0][1] and "offset" in stopped[0][1]
        with pytest.raises(DivergedError):
            await stopped[0][0].submit(b"go")


async def test_a_new_process_begins_with_a_snapshot_and_the_log_below_it_is_deleted(
    servers: list[str], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"snapshot_every": 40, "digest_every": 10, "keeper_lease_ms": 2000}
    async with Admin(servers) as admin:
        async with (
            ReplicatedDict.open(servers, "state", name="one", **options) as one,
            ReplicatedDict.open(servers, "state", name="two", cache_dir=tmp_path / "cache", **options) as two,
        ):

            async def begins() -> int:
                found = await admin.delete_records({("state", 0): 0})
                return found["state", 0]

            number = 0
            with trio.fail_after(40):
                while await begins() == 0:
                    await (one, two)[number % 2].put(f"k{number % 50}", number)
                    number += 1
            await one.put("last", number)
            everything = await one.items()
            assert await two.items() == everything
            state = one.digest()
            assert two.digest() == state
            with trio.fail_after(40):  # the lease is over if they stood still for as long
                while [one.is_keeper, two.is_keeper].count(True) != 1:
                    await one.put("last", number)
        async with ReplicatedDict.open(servers, "state", name="three", **options) as three:
            assert three.restored_from > 0
            assert await three.items() == everything
            # A repeated command of before the snapshot is still known.
            await three.put("again", 1, id="key")
            await three.snapshot()
        async with ReplicatedDict.open(
            servers, "state", name="four", cache_dir=tmp_path / "four", **options
        ) as four:
            await four.put("again", 1, id="key")
            with pytest.raises(IdempotencyConflictError, match=r"'key'.*other arguments"):
                await four.put("again", 2, id="key")
            assert await four.get("again") == 1
            await four.snapshot()
            assert list((tmp_path / "four").iterdir())
        async with ReplicatedDict.open(
            servers, "state", name="five", cache_dir=tmp_path / "four", **options
        ) as five:
            assert five.restored_from > 0 and await five.get("again") == 1


async def test_the_log_reaches_back_to_the_older_snapshot_for_when_the_newer_is_of_no_use(
    servers: list[str], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"snapshot_every": 0, "digest_every": 0}
    async with Admin(servers) as admin, Producer(servers) as producer:
        cached = {**options, "cache_dir": tmp_path / "cache"}
        async with ReplicatedDict.open(servers, "state", name="cached", **cached) as early:
            await early.put("n", -1)
            await early.snapshot()
        async with ReplicatedDict.open(servers, "state", name="one", **options) as one:
            for number in range(3):
                await one.put("n", number)
                await one.snapshot()
            await one.put("last", 1)
            assert one._copy is not None
            older, newer = one._copy.applier.snapshots
            begins = (await admin.delete_records({("state", 0): 0}))["state", 0]
            assert begins == older.offset < newer.offset
            await producer.send_and_wait(
                "state.snapshots", b"damaged", key=chunk_key(newer.name, 0), partition=0
            )
            async with ReplicatedDict.open(servers, "state", name="late", **options) as late:
                assert late.restored_from == older.offset
                assert await late.items() == {"n": 2, "last": 1}
            # What is kept in a file ends before the log begins: of no use either.
            async with ReplicatedDict.open(servers, "state", name="cached", **cached) as again:
                assert again.restored_from == older.offset
                assert await again.items() == {"n": 2, "last": 1}


@pytest.mark.parametrize("is_written", [False, True])
async def test_a_record_of_which_nobody_knows_what_became_is_sent_again_and_counts_once(
    servers: list[str], is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ReplicatedCounter.open(servers, "counts", name="one") as counter:
        assert counter._session is not None
        producer = counter._session._producer
        send, sent = producer.send, 0

        async def unclear(*args: Any, on_delivery: Any = None, **options: Any) -> Any:
            nonlocal sent
            sent += 1
            if sent > 1:
                return await send(*args, on_delivery=on_delivery, **options)
            if is_written:
                await send(*args, **options)
            on_delivery(SimpleNamespace(error=RequestTimeoutError("nobody knows")))
            return None

        monkeypatch.setattr(producer, "send", unclear)
        with trio.fail_after(60):
            assert await counter.add("n", 1) == 1
            assert await counter.add("n", 1) == 2
        assert sent == 3 and await counter.value("n") == 2


async def test_a_copy_that_fell_behind_what_is_deleted_goes_on_from_a_snapshot(
    servers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        ReplicatedDict.open(servers, "state", name="quick", snapshot_every=0) as quick,
        ReplicatedDict.open(servers, "state", name="slow", snapshot_every=0) as slow,
        Admin(servers) as admin,
    ):
        await slow.put("mine", 1)
        assert slow._copy is not None
        slow._copy._consumer.pause()
        for number in range(10):
            await quick.put("n", number)
        await quick.snapshot()
        await quick.put("n", 10)
        await admin.delete_records({("state", 0): quick.applied})
        begins = (await admin.delete_records({("state", 0): 0}))["state", 0]
        assert begins > slow.applied
        slow._copy._consumer.resume()
        with pytest.raises(SnapshotMissingError, match="no whole snapshot"):
            await slow.read()
        with pytest.raises(SnapshotMissingError):
            async with ReplicatedDict.open(servers, "state", name="late"):
                pass
        await quick.snapshot()
        async with ReplicatedDict.open(servers, "state", name="later") as later:
            assert await later.get("n") == 10


async def test_records_of_strangers_and_wrong_topics(servers: list[str]) -> None:
    async with Admin(servers) as admin, Producer(servers) as producer:
        async with ReplicatedSet.open(servers, "state", name="one") as members:
            await producer.send_and_wait("state", b"\xff nonsense")
            await producer.send_and_wait("state", None, key=b"k")
            assert await members.add("x") and not await members.add("x")
            assert await members.contains("x") and members.contains_stale("x")
            assert await members.discard("x") and await members.members() == []
        await admin.create_topic("kept", config={"retention_ms": 1000})
        await admin.create_topic("kept.snapshots", config={"cleanup_policy": "compact"})
        with pytest.raises(StateError, match="lose commands"):
            async with ReplicatedSet.open(servers, "kept"):
                pass
        with pytest.raises(InvalidSettingError, match="snapshot_evry"):
            ReplicatedSet.open(servers, "x", snapshot_evry=1)
        with pytest.raises(InvalidSettingError, match="snapshot_every"):
            ReplicatedSet.open(servers, "x", snapshot_every=-1)
        with pytest.raises(InvalidArgumentError):
            ReplicatedSet.open(servers, "x", name="n" * 300)
        with pytest.raises(StateClosedError, match="not open"):
            await ReplicatedSet.open(servers, "x").add("y")


async def test_a_queue_gives_every_item_to_one_worker(servers: list[str]) -> None:
    done: list[int] = []
    async with (
        ReplicatedQueue.open(servers, "work", name="one") as one,
        ReplicatedQueue.open(servers, "work", name="two") as two,
    ):

        async def work(queue: ReplicatedQueue) -> None:
            while True:
                item = await queue.take()
                done.append(item.value)
                assert await queue.ack(item)

        async with trio.open_nursery() as nursery:
            for queue in (one, two):
                nursery.start_soon(work, queue)
            for number in range(20):
                await one.put(number)
            assert await two.put(99, id="once") == await one.put(99, id="once")
            with trio.fail_after(60):
                while (await one.counts()) != {"waiting": 0, "taken": 0, "dead": 0}:
                    pass
            nursery.cancel_scope.cancel()
        assert sorted(done) == [*range(20), 99]
        await one.put("slow")
        kept = await one.take(lease_ms=50)
        again = await two.take()
        assert again.id == kept.id and again.deliveries == 2
        assert not await one.ack(kept) and not await one.prolong(kept) and await two.prolong(again)
        assert await two.nack(again) and await one.size() == 1


async def test_what_a_dict_gives_is_its_callers_to_change(servers: list[str]) -> None:
    """Changed in place, the value of one copy would differ, and the digest with it."""
    async with (
        ReplicatedDict.open(servers, "d", name="one", digest_every=2) as one,
        ReplicatedDict.open(servers, "d", name="two", digest_every=2) as two,
    ):
        await one.put("cart", {"teapots": [1]})
        async with one.watch("cart") as values:
            found = [
                await one.get("cart"),
                one.get_stale("cart"),
                (await one.items())["cart"],
                one.items_stale()["cart"],
                await anext(values),
            ]
        for each in found:
            each["teapots"].append(2)
        assert await one.get("cart") == await two.get("cart") == {"teapots": [1]}
        assert await one.put_if("cart", {"teapots": [1]}, found[0])
        for each in (one, two):
            assert await each.get("cart") == {"teapots": [1, 2]}
        for number in range(10):
            cart = await one.get("cart")
            cart["teapots"].append(number)
            await one.put("cart", cart)
        assert await two.get("cart") == await one.get("cart")
        await two.read(after=await one.read())
        assert one.applied == two.applied and one.digest() == two.digest()


async def test_dead_letters_are_their_callers_to_change(servers: list[str]) -> None:
    async with ReplicatedQueue.open(servers, "q", name="one") as one:
        await one.put(["a"])
        for _ in range(5):
            item = await one.take_nowait()
            assert item is not None and await one.nack(item)
        (dead,) = await one.dead_letters()
        dead.value.append("b")
        assert [each.value for each in await one.dead_letters()] == [["a"]]


async def test_a_watch_goes_by_what_a_value_is_and_not_by_what_it_equals(servers: list[str]) -> None:
    async with ReplicatedDict.open(servers, "d", name="one") as one, one.watch("k") as values:
        for value in (None, 1, True, 1.0, float("nan"), "end"):
            if value is not None:
                await one.put("k", value)
            with trio.fail_after(40):
                seen = await anext(values)
            assert type(seen) is type(value) and (seen == value or value != value)


async def test_who_reads_with_a_timeout_reads_on_after_it(servers: list[str]) -> None:
    async with (
        ReplicatedDict.open(servers, "d", name="one") as one,
        one.watch("k") as values,
        one.changes() as changes,
    ):
        assert await anext(values) is None
        for number in range(3):
            for reader in (values, changes):
                with trio.move_on_after(0.01) as scope:
                    await anext(reader)
                assert scope.cancelled_caught
            await one.put("k", number)
            with trio.fail_after(40):
                assert await anext(values) == number and (await anext(changes)).name == "one"
        held = values, changes
        with trio.fail_after(40):
            async with trio.open_nursery() as nursery:

                async def read_on(reader: Any) -> None:
                    with pytest.raises(StopAsyncIteration):
                        while True:
                            await anext(reader)

                async with one.changes() as ended, one.watch("k") as ended_too:
                    nursery.start_soon(read_on, ended)
                    assert await anext(ended_too) == 2
    for reader in (ended, ended_too, *held):
        with pytest.raises(StopAsyncIteration):
            await anext(reader)


async def test_a_lock_is_held_by_one_and_its_tokens_grow(servers: list[str]) -> None:
    inside, tokens = 0, []
    async with (
        ReplicatedLock.open(servers, "locks", name="one") as one,
        ReplicatedLock.open(servers, "locks", name="two") as two,
    ):

        async def use(lock: ReplicatedLock) -> None:
            nonlocal inside
            for _ in range(5):
                async with lock.hold("x", lease_ms=60_000) as token:
                    tokens.append(token)
                    inside += 1
                    assert inside == 1
                    await trio.lowlevel.checkpoint()
                    inside -= 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(use, one)
            nursery.start_soon(use, two)
        assert tokens == sorted(set(tokens)) and len(tokens) == 10
        token = await one.acquire("x", lease_ms=60_000)
        assert await two.acquire_nowait("x") is None
        held = await two.holder("x")
        assert held is not None and held.owner == "one"
        assert await one.acquire_nowait("x", lease_ms=100) == token, "prolonged, for less"
        with trio.fail_after(40):
            assert await two.acquire("x") > token
        assert not await one.release("x", token)


async def test_the_tasks_of_a_handle_hold_a_lock_one_at_a_time(servers: list[str]) -> None:
    inside, tokens = 0, []
    async with ReplicatedLock.open(servers, "locks", name="one") as lock:

        async def use() -> None:
            nonlocal inside
            async with lock.hold("x", lease_ms=60_000) as token:
                tokens.append(token)
                inside += 1
                # A round through the log, for which the others would come in.
                await lock.holder("x")
                assert inside == 1
                inside -= 1

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(use)
        assert len(set(tokens)) == 4
        assert lock._blocks == {}
        with pytest.raises(RuntimeError):
            async with lock.hold("x", lease_ms=60_000), lock.hold("x"):
                pass
        assert await lock.holder("x") is None and lock._blocks == {}


async def test_a_block_that_fails_raises_its_own_error_and_gives_back_what_it_held(
    servers: list[str],
) -> None:
    async with ReplicatedLock.open(servers, "locks", name="one") as lock:
        with pytest.raises(SeatTakenError, match="mine"):
            async with lock.hold("x", lease_ms=60_000):
                raise SeatTakenError("mine")
        assert await lock.holder("x") is None
        with pytest.raises(ExceptionGroup) as caught:
            async with lock.hold("x"):
                raise ExceptionGroup("of the block", [SeatTakenError("mine")])
        assert caught.value.message == "of the block"
    with pytest.raises(SeatTakenError, match="mine"):
        async with ReplicatedElection.open(servers, "cron", name="one", lease_ms=60_000) as one:
            first = await one.wait_for_leadership()
            raise SeatTakenError("mine")
    async with ReplicatedElection.open(servers, "cron", name="two", lease_ms=60_000) as two:
        with trio.fail_after(40):  # less than the lease: it was given back
            assert await two.wait_for_leadership() > first


async def test_a_lock_whose_lease_is_not_prolonged_cancels_its_block(
    servers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ReplicatedLock.open(servers, "locks", name="one") as lock:
        acquire, calls = lock.acquire_nowait, 0

        async def once(name: str, lease_ms: int = 0) -> int | None:
            nonlocal calls
            calls += 1
            return await acquire(name, lease_ms) if calls == 1 else None

        monkeypatch.setattr(lock, "acquire_nowait", once)
        with trio.fail_after(40), pytest.raises(LockLostError, match="was not prolonged"):
            async with lock.hold("x", lease_ms=1000):
                await trio.sleep_forever()


async def test_who_leads_stops_believing_so_before_its_lease_is_over(
    servers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ReplicatedElection.open(servers, "cron", name="one", lease_ms=1_000_000) as one:
        await one.wait_for_leadership()
        ahead = 0.0
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead, time=time.time)
        monkeypatch.setattr(coordination, "time", clock)
        ahead = 800
        assert one.is_leader
        ahead = 900
        assert not one.is_leader


async def test_who_takes_over_a_name_does_not_take_over_its_lock(servers: list[str]) -> None:
    async with ReplicatedLock.open(servers, "locks", name="one") as former:
        token = await former.acquire("x", lease_ms=60_000)
        assert await former.acquire("x", lease_ms=60_000) == token
        assert await former.command("acquire", "y", "one", 60_000), "as an earlier version wrote it"
        async with ReplicatedLock.open(servers, "locks", name="one") as one:
            for name in "x", "y":
                assert await one.acquire_nowait(name) is None
                held = await one.holder(name)
                assert held is not None and held.owner == "one"
            assert await one.release("x", token), "who knows the token may"
            assert await one.acquire("x") > token


async def test_a_leader_whose_name_is_opened_elsewhere_stands_down_as_soon_as_it_hears_of_it(
    servers: list[str],
) -> None:
    async with ReplicatedElection.open(servers, "cron", name="same", lease_ms=60_000) as one:
        token = await one.wait_for_leadership()
        async with ReplicatedElection.open(servers, "cron", name="same", lease_ms=60_000) as two:
            await one.wait_until(two.applied)
            assert not one.is_leader, "long before it renews its lease"
            with pytest.raises(FencedError):
                await one.wait_for_leadership()
            assert await two.acquire_nowait("leader") is None, "the lease of the former one holds"
            assert not two.is_leader and await two.leader() == "same"
            assert await two.release("leader", token)
            with trio.fail_after(40):
                assert await two.wait_for_leadership() > token


async def test_one_of_all_leads_and_hands_over(servers: list[str]) -> None:
    async with ReplicatedElection.open(servers, "cron", name="one", lease_ms=60_000) as one:
        first = await one.wait_for_leadership()
        async with ReplicatedElection.open(servers, "cron", name="two", lease_ms=60_000) as two:
            assert one.is_leader and not two.is_leader
            assert await two.leader() == "one"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.resign)
                with trio.fail_after(40):  # less than the lease: it was given back
                    assert await two.wait_for_leadership() > first
            assert not one.is_leader
            with trio.fail_after(40), pytest.raises(ResignedError, match="'one' has resigned"):
                await one.wait_for_leadership()


async def test_who_cannot_lead_any_more_does_not_wait_for_it(servers: list[str]) -> None:
    """Neither before its block, nor when it resigns, its name is opened elsewhere, or its block ends."""
    told: list[type[StateError]] = []

    async def wait(handle: ReplicatedElection, heard: trio.Event) -> None:
        with pytest.raises(StateError) as raised:
            await handle.wait_for_leadership()
        told.append(type(raised.value))
        heard.set()

    def elected(name: str) -> ReplicatedElection:
        return ReplicatedElection.open(servers, "cron", name=name, lease_ms=60_000)

    async with elected("one") as one:
        await one.wait_for_leadership()
        two = elected("two")
        with trio.fail_after(40):
            await wait(two, trio.Event())
            await two.resign()
            for ends in ("resigns", "is fenced", "closes"):
                async with trio.open_nursery() as nursery, two:
                    heard = trio.Event()
                    nursery.start_soon(wait, two, heard)
                    await trio.testing.wait_all_tasks_blocked()
                    if ends == "resigns":
                        await two.resign()
                        await heard.wait()
                    elif ends == "is fenced":
                        async with elected("two"):
                            await heard.wait()
    assert told == [StateClosedError, ResignedError, FencedError, StateClosedError]


async def test_members_of_enumerations_are_what_they_stand_for(servers: list[str]) -> None:
    class Colour(enum.StrEnum):
        RED = "red"

    class Size(enum.IntEnum):
        BIG = 3

    class Former(str, enum.Enum):  # noqa: UP042 - others have them
        OLD = "old"

    async with ReplicatedSet.open(servers, "state", name="one") as s:
        for member, plain in (Colour.RED, "red"), (Size.BIG, 3), (Former.OLD, "old"):
            assert await s.add(member) and await s.contains(member) and await s.contains(plain)
            assert s.contains_stale(member)
        assert {(type(each), each) for each in await s.members()} == {(str, "red"), (int, 3), (str, "old")}
        assert await s.discard(Colour.RED) and not await s.contains("red")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "call"),
    [
        (ReplicatedDict, lambda handle: handle.put_many([("a", 1)])),
        (ReplicatedCounter, lambda handle: handle.add(7)),
        (ReplicatedCounter, lambda handle: handle.add("a", 1.5)),
        (ReplicatedCounter, lambda handle: handle.add("a", True)),
        (ReplicatedCounter, lambda handle: handle.value(["a"])),
        (ReplicatedSet, lambda handle: handle.add(None)),
        (ReplicatedSet, lambda handle: handle.add(True)),
        (ReplicatedSet, lambda handle: handle.discard(["a"])),
        (ReplicatedSet, lambda handle: handle.contains(["a"])),
        (ReplicatedQueue, lambda handle: handle.ack(7)),
        (ReplicatedQueue, lambda handle: handle.nack(None)),
        (ReplicatedQueue, lambda handle: handle.prolong("a")),
        (ReplicatedLock, lambda handle: handle.holder(["a"])),
    ],
)
async def test_what_is_no_argument_writes_no_command(servers: list[str], made: Any, call: Any) -> None:
    async with made.open(servers, "state", name="one") as handle:
        before = handle.token
        with pytest.raises(InvalidArgumentError, match=r" is .*; "):
            await call(handle)
        assert handle.token == before
