"""The same state from asyncio and from threads."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
from contextlib import suppress

import pytest

from insync.replication import state
from insync.replication.state import FencedError, ReplicatedObject, VersionNotRaisedError, command, query
from insync.replication.state import asyncio as on_asyncio
from insync.replication.state import blocking as in_threads
from tests.replication.state.shops import ShopV2


class Seats(ReplicatedObject):
    def __init__(self) -> None:
        self.taken: dict[str, str] = {}

    @command
    def take(self, seat: str, who: str) -> int:
        if seat in self.taken:
            raise ValueError(seat)
        self.taken[seat] = who
        return len(self.taken)

    @query
    def taker(self, seat: str) -> str | None:
        return self.taken.get(seat)


@pytest.mark.slow
def test_the_program_on_asyncio(threaded_servers: list[str]) -> None:
    servers = threaded_servers

    async def main() -> None:
        async with on_asyncio.ReplicatedDict.open(servers, "state", name="api-1") as d:
            await d.put("colour", "red")
            assert await d.get("colour") == "red"
            assert await d.get_stale("colour") == "red"
            assert d.applied >= d.token > 0 and d.name == "api-1"
            async with d.changes() as changes:
                await asyncio.gather(*(d.put(f"k{n}", n) for n in range(50)))
                assert len([await anext(changes) for _ in range(50)]) == 50
            async with on_asyncio.ReplicatedDict.open(servers, "state", name="api-1") as e:
                with pytest.raises(FencedError):
                    await d.put("colour", "blue")
                assert len(await e.items()) == 51
        async with on_asyncio.replicate(Seats, servers, "seats", name="one") as seats:
            assert await seats.take("1", "alice") == 1
            with pytest.raises(ValueError, match="1"):
                await seats.take("1", "bob")
            assert await seats.taker("1") == await seats.taker.stale("1") == "alice"
            assert await seats.take.once("id", "2", "bob") == await seats.take.once("id", "2", "bob")
            assert await seats.taker.after(seats.token, "2") == "bob"
        async with (
            on_asyncio.ReplicatedQueue.open(servers, "work", name="one") as queue,
            on_asyncio.ReplicatedElection.open(servers, "cron", name="one") as election,
        ):
            waiting = asyncio.ensure_future(queue.take())
            await queue.put("x")
            assert await queue.ack(await waiting)
            assert await election.wait_for_leadership() == election.leader_token
            assert election.is_leader
        async with (
            on_asyncio.ReplicatedLock.open(servers, "locks", name="one") as lock,
            on_asyncio.ReplicatedDict.open(servers, "state", name="w") as d,
            d.watch("colour") as values,
        ):
            assert await anext(values) == "red"
            async with lock.hold("x", 5000) as token:
                await d.put("colour", str(token))
                assert await anext(values) == str(token)
                assert await lock.acquire_nowait("x") == token
            assert await lock.holder("x") is None

    asyncio.run(main())


@pytest.mark.slow
def test_the_program_in_threads(threaded_servers: list[str]) -> None:
    servers = threaded_servers
    with in_threads.ReplicatedDict.open(servers, "state", name="api-1") as d:
        d.put("colour", "red")
        assert d.get("colour") == "red"
        assert d.get_stale("colour") == "red" and d.lag == 0

        def write(number: int) -> None:
            for each in range(20):
                d.put(f"{number}-{each}", each)

        with d.changes() as changes:
            threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len([next(changes) for _ in range(80)]) == 80
        assert len(d.items()) == 81
    with in_threads.replicate(Seats, servers, "seats", name="one") as seats:
        assert seats.take("1", "alice") == 1
        with pytest.raises(ValueError, match="1"):
            seats.take("1", "bob")
        assert seats.taker("1") == seats.taker.stale("1") == "alice"
        assert seats.take.once("id", "2", "bob") == seats.take.once("id", "2", "bob") == 2
        assert seats.taker.after(seats.token, "2") == "bob"
    with (
        in_threads.ReplicatedLock.open(servers, "locks", name="one") as lock,
        in_threads.ReplicatedCounter.open(servers, "counts", name="one") as counter,
    ):
        token = lock.acquire("x", 5000)
        assert lock.holder("x").token == token and lock.release("x", token)  # type: ignore[union-attr]
        assert counter.add("n", 3) == counter.value("n") == 3
        with lock.hold("x", 5000) as token:
            assert lock.holder("x").token == token  # type: ignore[union-attr]
        with pytest.raises(ZeroDivisionError), lock.hold("y"):
            raise ZeroDivisionError
        assert lock.holder("x") is None
    with in_threads.ReplicatedDict.open(servers, "state", name="w") as d, d.watch("colour") as values:
        assert next(values) == "red"
        d.put("colour", "green")
        assert next(values) == "green"


_TRIO_ONLY = {"machine", "settings", "stale", "command"}


@pytest.mark.parametrize("face", [on_asyncio, in_threads])
@pytest.mark.parametrize(
    "name", [name for name in on_asyncio.__all__ if name not in ("replicate", "Replicated")]
)
def test_every_face_has_every_method(face: object, name: str) -> None:
    theirs, ours = getattr(state, name), getattr(face, name)
    for method, _ in inspect.getmembers(theirs, lambda value: inspect.isfunction(value)):
        if not method.startswith("_") and method not in _TRIO_ONLY:
            assert hasattr(ours, method), f"{name}.{method}"


def test_on_asyncio_who_reads_with_a_timeout_reads_on_after_it(threaded_servers: list[str]) -> None:
    """What comes just as the reader gives up comes again."""

    async def main() -> None:
        async with (
            on_asyncio.ReplicatedDict.open(threaded_servers, "d", name="one") as one,
            one.watch("k") as values,
            one.changes() as changes,
        ):
            assert await anext(values) is None
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(values), 0.01)
            count = 100

            async def put() -> None:
                for number in range(count):
                    await one.put("k", number)

            putting = asyncio.create_task(put())
            heard: list[int] = []
            seen = None
            # From what is too short for anything to what is long enough for a slow machine.
            limits = itertools.cycle([0.0002, 0.0005, 0.001, 0.002, 0.005, 1.0])
            async with asyncio.timeout(120):
                while len(heard) < count:
                    with suppress(asyncio.TimeoutError):
                        change = await asyncio.wait_for(anext(changes), next(limits))
                        heard.append(change.offset)
                while seen != count - 1:
                    with suppress(asyncio.TimeoutError):
                        seen = await asyncio.wait_for(anext(values), next(limits))
            await putting
            assert heard == sorted(set(heard))

    asyncio.run(main())


def test_a_block_that_is_read_can_be_left_at_any_time(threaded_servers: list[str]) -> None:
    """By a timeout, while it opens or waits: what is raised is the timeout, and nothing stays open."""

    async def main() -> None:
        async with on_asyncio.ReplicatedDict.open(threaded_servers, "state", name="one") as d:
            for n in range(40):
                for block in (d.changes, lambda: d.watch("colour")):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.0005 * n), block() as read:
                            async for _ in read:
                                pass
            await d.read()
            assert not d._held._copy._listeners

    asyncio.run(main())


@pytest.mark.slow
def test_the_version_is_raised_from_asyncio_and_from_threads(threaded_servers: list[str]) -> None:
    async def main() -> None:
        async with on_asyncio.replicate(ShopV2, threaded_servers, "one", raise_version=False) as shop:
            with pytest.raises(VersionNotRaisedError):
                await shop.note("x")
            with pytest.raises(VersionNotRaisedError):
                await shop.all_notes.stale()
            assert shop.state_version == 1
            await shop.raise_version()
            assert shop.state_version == 2 and await shop.note("x") == 2

    asyncio.run(main())
    with in_threads.replicate(ShopV2, threaded_servers, "two", raise_version=False) as shop:
        with pytest.raises(VersionNotRaisedError):
            shop.note("x")
        with pytest.raises(VersionNotRaisedError):
            shop.all_notes.stale()
        assert shop.state_version == 1
        shop.raise_version()
        assert shop.state_version == 2 and shop.note("x") == 2
