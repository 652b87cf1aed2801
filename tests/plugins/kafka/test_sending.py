"""Answers of a connection whose client takes them slowly: all of them, once, in order."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import trio
import trio.testing

from insync.plugins.kafka.core.connection import Request
from insync.plugins.kafka.listener import STUCK, Link, Links

from .test_connection import PRODUCE, feed, frame, new, started


class Slow:
    """A stream that takes nothing at once, and of what is sent as much as the test lets through."""

    def __init__(self) -> None:
        self.came = b""
        self.sent = 0
        self.through = trio.Event()

    def send_now(self, parts: Sequence[Any]) -> int:
        return 0

    async def send(self, parts: Sequence[Any]) -> None:
        data = b"".join(parts)
        await self.through.wait()
        self.through = trio.Event()
        self.came += data
        self.sent += len(data)


async def test_what_is_answered_while_earlier_answers_are_sent_is_sent_behind_them() -> None:
    stream, machine = Slow(), new()
    link = Link(cast(Any, stream), machine, Links(cast(Any, None)), "a client")
    assert not feed(machine, b"".join(frame(PRODUCE, 8, number) for number in range(4)))
    requests = started(machine)
    expected = b""

    def answer(request: Request, word: bytes) -> None:
        """The frame is its size, the correlation id and the word."""
        nonlocal expected
        machine.answer(request, [word])
        expected += struct.pack(">ii", 4 + len(word), request.correlation) + word
        link.flush()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(link._write)
        answer(requests[0], b"one")
        await trio.testing.wait_all_tasks_blocked()
        answer(requests[1], b"two")
        answer(requests[2], b"three")
        assert stream.came == b""
        for word in (b"one", b"three"):
            stream.through.set()
            await trio.testing.wait_all_tasks_blocked()
            assert stream.came.endswith(word)
        assert stream.came == expected and not link._unsent
        answer(requests[3], b"four")
        stream.through.set()
        await trio.testing.wait_all_tasks_blocked()
        assert stream.came == expected
        nursery.cancel_scope.cancel()


async def test_a_client_is_given_its_time_from_the_answer_that_it_did_not_take(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A connection that was quiet for long before has not been slow."""
    machine = new()
    link = Link(cast(Any, Slow()), machine, Links(cast(Any, None)), "a client")
    link.client = cast(Any, SimpleNamespace(login=SimpleNamespace(is_over=True)))
    said: list[str] = []
    link.abort = said.append  # type: ignore[method-assign]
    await trio.sleep(STUCK + 1)
    assert not feed(machine, frame(PRODUCE, 8, 0))
    (request,) = started(machine)
    machine.answer(request, [b"one"])
    link.flush()
    link.look(trio.current_time() + STUCK - 1)
    assert said == []
    link.look(trio.current_time() + STUCK + 1)
    assert said == [f"it has read none of its answers for {STUCK:g} s"]
