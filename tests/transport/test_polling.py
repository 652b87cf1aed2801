"""An event loop that polls for a while where it expects something, in place of going to sleep."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import trio
import trio.testing

from insync.transport import polling
from insync.transport._native import lib
from insync.transport.polling import CannotPollError, Polling, poll_when_expecting

MICROSECONDS = 500
FAR = 60_000_000_000
"""Nanoseconds; no test takes that long."""


class Polls:
    """Stands in for the polling itself, with a clock that only the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000
        self.asked: list[tuple[int, int]] = []
        self.answer: Callable[[], int] = lambda: 1
        monkeypatch.setattr(polling, "lib", self)
        monkeypatch.setattr(polling, "monotonic_ns", lambda: self.now)

    def isr_poll_until(self, fd: int, until_ns: int) -> int:
        self.asked.append((fd, until_ns))
        return self.answer()


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> Polls:
    return Polls(monkeypatch)


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, others = socket.socketpair()
    with ours, others:
        yield ours, others


def can_be_read(fd: int) -> bool:
    looks = select.poll()
    looks.register(fd, select.POLLIN)
    return bool(looks.poll(0))


async def epoll_is_ours(found: Polling, nursery: trio.Nursery) -> None:
    """It can be read when something arrives that this event loop waits for, and not before."""
    with pair() as (ours, others):
        nursery.start_soon(trio.lowlevel.wait_readable, ours)
        await trio.testing.wait_all_tasks_blocked()
        assert not can_be_read(found._epoll)
        others.send(b"x")
        assert can_be_read(found._epoll)
        await trio.testing.wait_all_tasks_blocked()


async def test_each_loop_finds_its_own_epoll() -> None:
    async def alone() -> None:
        async with trio.open_nursery() as nursery:
            found = await nursery.start(poll_when_expecting, MICROSECONDS)
            await epoll_is_ours(found, nursery)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        found = await nursery.start(poll_when_expecting, MICROSECONDS)
        await trio.to_thread.run_sync(trio.run, alone)
        await epoll_is_ours(found, nursery)
        nursery.cancel_scope.cancel()


async def test_polls_only_while_something_is_expected_and_until_it_ends(polls: Polls) -> None:
    polled, token = trio.Event(), trio.lowlevel.current_trio_token()

    def seen() -> int:
        token.run_sync_soon(polled.set)
        return 1

    polls.answer = seen
    async with trio.open_nursery() as nursery:
        found = await nursery.start(poll_when_expecting, MICROSECONDS)
        await trio.sleep(0.001)
        assert polls.asked == []
        found.expect()
        with trio.fail_after(20):
            await polled.wait()
        assert polls.asked[0] == (found._epoll, polls.now + MICROSECONDS * 1000)
        polls.now += MICROSECONDS * 1000
        polls.asked.clear()
        await trio.sleep(0.001)
        assert polls.asked == []
        found.expect()
        nursery.cancel_scope.cancel()
    # Nobody polls any more, though it is still expected.
    polls.asked.clear()
    await trio.sleep(0.001)
    assert polls.asked == []


async def test_polls_no_longer_than_the_loop_would_sleep(polls: Polls) -> None:
    async with trio.open_nursery() as nursery:
        found = await nursery.start(poll_when_expecting, MICROSECONDS)
        found.expect()
        polls.asked.clear()
        found.before_io_wait(0)
        assert polls.asked == []
        found.before_io_wait(100e-6)
        found.before_io_wait(1)
        assert [until - polls.now for _, until in polls.asked] == [100_000, MICROSECONDS * 1000]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seen", [0, -1])
async def test_a_loop_that_polled_in_vain_looks_at_its_timers_again_before_it_sleeps(
    polls: Polls, monkeypatch: pytest.MonkeyPatch, seen: int
) -> None:
    monkeypatch.setattr(polling, "REST_NANOSECONDS", 0)
    enough = trio.Event()
    token = trio.lowlevel.current_trio_token()
    async with trio.open_nursery() as nursery:
        found = await nursery.start(poll_when_expecting, MICROSECONDS)

        def in_vain() -> int:
            # Each turn polls again, as the clock stands still.
            if len(polls.asked) == 10:
                token.run_sync_soon(enough.set)
            return seen

        polls.answer = in_vain
        found.expect()
        with trio.fail_after(20):
            await enough.wait()
        nursery.cancel_scope.cancel()


async def test_a_processor_that_others_want_is_left_to_them_for_a_while(polls: Polls) -> None:
    async with trio.open_nursery() as nursery:
        found = await nursery.start(poll_when_expecting, polling.MOST_MICROSECONDS)
        polls.answer = lambda: -1
        found.expect()
        found.before_io_wait(1)
        polls.asked.clear()
        polls.now += polling.REST_NANOSECONDS - 1
        found.before_io_wait(1)
        assert polls.asked == []
        polls.now += 1
        found.before_io_wait(1)
        assert len(polls.asked) == 1
        nursery.cancel_scope.cancel()


def test_sees_what_arrives_and_when_the_time_is_over() -> None:
    with pair() as (ours, others):
        until = time.monotonic_ns() + 1_000_000
        while (seen := lib.isr_poll_until(ours.fileno(), until)) < 0:
            # Others wanted the processor meanwhile.
            pass
        assert seen == 0 and time.monotonic_ns() >= until
        others.send(b"x")
        assert lib.isr_poll_until(ours.fileno(), 0) == 1
    assert lib.isr_poll_until(1 << 20, time.monotonic_ns() + FAR) == 1


def test_other_threads_go_on_while_one_polls() -> None:
    with pair() as (ours, others):
        polls = threading.Event()

        def send() -> None:
            polls.wait()
            others.send(b"x")

        thread = threading.Thread(target=send)
        thread.start()
        until = time.monotonic_ns() + FAR
        polls.set()
        while (seen := lib.isr_poll_until(ours.fileno(), until)) < 0:
            pass
        assert seen == 1
        thread.join()


def test_stops_when_another_thread_has_had_the_processor() -> None:
    processors = os.sched_getaffinity(0)
    one = {min(processors)}
    busy = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import os\nos.sched_setaffinity(0, {one})\nprint(flush=True)\nwhile True: pass",
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert busy.stdout is not None and busy.stdout.readline()
        os.sched_setaffinity(0, one)
        with pair() as (ours, _):
            assert lib.isr_poll_until(ours.fileno(), time.monotonic_ns() + FAR) == -1
    finally:
        os.sched_setaffinity(0, processors)
        busy.kill()
        busy.communicate()


async def test_says_so_where_the_epoll_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str) -> list[str]:
        raise FileNotFoundError(path)

    monkeypatch.setattr(polling, "_epolls", lambda: iter(()))
    async with trio.open_nursery() as nursery:
        with pytest.raises(CannotPollError, match="/proc/self/fdinfo"):
            await nursery.start(poll_when_expecting, MICROSECONDS)
    monkeypatch.undo()
    monkeypatch.setattr(os, "listdir", refused)
    assert list(polling._epolls()) == []
