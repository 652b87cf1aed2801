"""What is read in one place and ended in another; and what members of a set become."""

from __future__ import annotations

import enum
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from insync.replication._portal import Portal
from insync.replication.client import ClosedError, InvalidArgumentError
from insync.replication.state import LockLostError, ReplicatedLock
from insync.replication.state._faces import Reading
from insync.replication.state.collections import _member

PATIENCE = 20.0


class Silent:
    """A block in which nothing comes."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def __aenter__(self) -> Silent:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.log.append("left")

    async def __anext__(self) -> None:
        await trio.sleep_forever()


@pytest.mark.parametrize("readers", [1, 2, 3])
async def test_who_reads_ends_before_the_block_is_left(readers: int) -> None:
    log: list[str] = []
    reading = Reading(Silent(log))
    await reading.begin()

    async def read() -> None:
        with pytest.raises(StopAsyncIteration):
            log.append(str(await reading.next()))
        log.append("read")

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for _ in range(readers):
                nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            await reading.end()
    assert sorted(log) == ["left", *["read"] * readers]


def test_a_block_that_nobody_took_ends_with_what_it_reads() -> None:
    """That has failed by itself, and takes no tasks any more, when the block is to be left."""
    fails, may_end, has_run = threading.Event(), threading.Event(), threading.Event()

    @asynccontextmanager
    async def make() -> AsyncIterator[None]:
        try:
            yield
        finally:
            fails.set()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(may_end.wait)

    portal = Portal(make, name="fails", closed_error=ClosedError)
    portal.open()
    reading = Reading(Silent([]))
    portal.call(reading.begin)
    assert portal.nursery is not None
    portal.post(portal.nursery.cancel_scope.cancel)
    assert fails.wait(PATIENCE)
    portal.post(lambda: reading.end_in(portal)(None))
    portal.post(has_run.set)
    has_run.wait(PATIENCE)
    may_end.set()
    assert portal.ended.exception(PATIENCE) is None


class LateLock(ReplicatedLock):
    """Its lease is over when the answer comes."""

    def __init__(self) -> None:
        self._blocks = {}

    async def _acquire(self, name: str, lease_ms: int) -> tuple[int, float]:
        return 1, trio.current_time() - lease_ms / 1000

    async def acquire_nowait(self, name: str, lease_ms: int = 30_000) -> int | None:
        await trio.sleep_forever()
        return None


async def test_a_lock_whose_answer_came_too_late_is_lost_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    began = trio.current_time()
    with pytest.raises(LockLostError, match="its lease of 9000 ms was not prolonged"):
        async with LateLock().hold("x", lease_ms=9_000):
            await trio.sleep_forever()
    assert trio.current_time() == began


class Colour(enum.StrEnum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Bytes(bytes):
    pass


@pytest.mark.parametrize(("given", "kept"), [(Colour.RED, "red"), (Number.ONE, 1), (Bytes(b"b"), b"b")])
def test_members_are_what_they_stand_for(given: Any, kept: Any) -> None:
    """As they are after their way through the log."""
    member = _member(given)
    assert member == kept and type(member) is type(kept)


@pytest.mark.parametrize("given", [True, None, 1.0, ("a",), bytearray(b"b")])
def test_what_is_no_member_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="member"):
        _member(given)
