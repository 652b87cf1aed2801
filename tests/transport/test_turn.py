"""Turns: what is sent inside goes out at the end, by one write for each connection."""

from __future__ import annotations

import os
from functools import partial

import pytest
import trio
import trio.testing

from insync.transport import Connection, ConnectionLost, Identity, Request, Response, connect, serve, turn
from insync.transport.connections._turn import Turn
from insync.transport.stream import StreamLink


def echo(request: Request) -> None:
    request.payload.release()
    request.reply(request.body)


class Sender:
    def __init__(self, log: list[Sender]) -> None:
        self._log = log

    def flush(self) -> None:
        self._log.append(self)


def test_each_is_flushed_once_at_the_end_of_the_outermost_also_after_an_error() -> None:
    log: list[Sender] = []
    one, other = Sender(log), Sender(log)
    ours = Turn()
    with pytest.raises(KeyError), ours:
        ours.note(one)
        with ours:
            ours.note(other)
            ours.note(one)
        assert log == [] and ours.is_open
        raise KeyError
    assert log == [one, other] and not ours.is_open
    with ours:
        pass
    assert log == [one, other]


def test_who_is_waited_for_is_flushed_at_once_and_again_if_noted_again() -> None:
    log: list[Sender] = []
    one, other = Sender(log), Sender(log)
    ours = Turn()
    with ours:
        ours.hurry()
        ours.note(one)
        ours.hurry()
        assert log == [one] and ours.is_open
        ours.note(other)
        ours.note(one)
    assert log == [one, other, one]


async def test_answers_to_several_connections_go_out_by_one_write_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last of the requests has all of them answered; none is left to a writer task."""
    waiting: list[Request] = []
    writes: list[str] = []
    answers: list[bytes] = []
    expected = 6

    def handler(request: Request) -> None:
        request.payload.release()
        waiting.append(request)
        if len(waiting) == expected:
            for each in waiting:
                each.reply(each.body)

    def counted(name: str) -> None:
        right = getattr(StreamLink, name)

        def send(self: StreamLink, *arguments: object) -> object:
            if len(waiting) == expected and not answers:
                writes.append(name)
            return right(self, *arguments)

        monkeypatch.setattr(StreamLink, name, send)

    counted("send_now")
    counted("send_many")

    async def ask(connection: Connection, body: bytes) -> None:
        with await connection.request(1, body, timeout=5) as answer:
            answers.append(answer.body)

    async with trio.open_nursery() as nursery:
        serving = await nursery.start(
            lambda **kw: serve("tcp://127.0.0.1:0", handler, identity=Identity(node_id=1), **kw)
        )
        async with trio.open_nursery() as asking:
            for number in range(expected // 2):
                connection = await connect(serving.endpoints[0], identity=Identity(), nursery=nursery)
                for part in (b"a", b"b"):
                    asking.start_soon(ask, connection, b"%d" % number + part)
        nursery.cancel_scope.cancel()
    assert sorted(answers) == [b"0a", b"0b", b"1a", b"1b", b"2a", b"2b"]
    assert writes == ["send_now"] * (expected // 2)


async def test_requests_of_a_turn_go_out_together_and_of_none_by_the_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writes: list[str] = []
    done: list[object] = []
    right = StreamLink.send_now

    def counted(self: StreamLink, pieces: object) -> object:
        if self is not None and inside:
            writes.append("send_now")
        return right(self, pieces)  # type: ignore[arg-type]

    monkeypatch.setattr(StreamLink, "send_now", counted)
    inside = False
    answered = trio.Event()

    def on_done(outcome: object) -> None:
        done.append(outcome)
        if len(done) == 5:
            answered.set()

    async with trio.open_nursery() as nursery:
        serving = await nursery.start(
            lambda **kw: serve("tcp://127.0.0.1:0", echo, identity=Identity(node_id=1), **kw)
        )
        connection = await connect(serving.endpoints[0], identity=Identity(), nursery=nursery)
        await trio.testing.wait_all_tasks_blocked(0.01)
        inside = True
        with turn():
            for _ in range(5):
                connection.request_nowait(1, b"x", timeout=5, on_done=on_done)
            assert writes == []
        assert writes == ["send_now"]
        inside = False
        with trio.fail_after(5):
            await answered.wait()
        nursery.cancel_scope.cancel()


class Unreadable:
    """A range of something that cannot be read at a position."""

    offset, length = 0, 100

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd


async def test_a_range_that_cannot_be_read_ends_its_own_connection_and_no_other() -> None:
    waiting: list[Request] = []
    reader, writer = os.pipe()

    def handler(request: Request) -> None:
        request.payload.release()
        waiting.append(request)
        if len(waiting) == 2:
            waiting[0].reply(b"", [Unreadable(reader)])
            waiting[1].reply(b"fine")

    try:
        async with trio.open_nursery() as nursery:
            serving = await nursery.start(
                lambda **kw: serve("tcp://127.0.0.1:0", handler, identity=Identity(node_id=1), **kw)
            )
            unlucky, other = [
                await connect(serving.endpoints[0], identity=Identity(), nursery=nursery) for _ in range(2)
            ]
            outcomes: list[object] = []
            unlucky.request_nowait(1, b"", timeout=5, on_done=outcomes.append)
            while not waiting:
                await trio.lowlevel.checkpoint()
            with await other.request(1, b"", timeout=5) as answer:
                assert answer.body == b"fine"
            with trio.fail_after(5):
                await unlucky.closed.wait()
            assert not other.closed.is_set()
            nursery.cancel_scope.cancel()
    finally:
        os.close(reader)
        os.close(writer)
    assert isinstance(outcomes[0], ConnectionLost)


def test_what_a_flush_adds_at_the_end_is_not_left_for_the_next_turn() -> None:
    """A connection notes itself while a turn is open: at its end nobody would come for that."""
    ours = Turn()
    found: list[bool] = []

    class Looking:
        def flush(self) -> None:
            found.append(ours.is_open)

    with ours:
        ours.note(Looking())
        ours.hurry()
        ours.note(Looking())
    assert found == [True, False]


async def test_a_part_that_was_released_before_the_end_of_a_turn_breaks_its_connection_alone() -> None:
    """It cannot be sent any more. Whoever ends the turn may be about something else, and so are others in it."""
    done: dict[bytes, object] = {}
    both = trio.Event()

    def on_done(body: bytes, outcome: object) -> None:
        done[body] = outcome
        if len(done) == 2:
            both.set()

    async with trio.open_nursery() as nursery:
        serving = await nursery.start(
            lambda **kw: serve("tcp://127.0.0.1:0", echo, identity=Identity(node_id=1), **kw)
        )
        broken, other = [
            await connect(serving.endpoints[0], identity=Identity(), nursery=nursery) for _ in range(2)
        ]
        await trio.testing.wait_all_tasks_blocked(0.01)
        with turn():
            part = memoryview(bytearray(b"part"))
            broken.request_nowait(1, b"x", [part], timeout=5, on_done=partial(on_done, b"x"))
            other.request_nowait(1, b"y", timeout=5, on_done=partial(on_done, b"y"))
            part.release()
        with trio.fail_after(5):
            await both.wait()
            await broken.closed.wait()
        answer = done[b"y"]
        assert isinstance(done[b"x"], ConnectionLost) and isinstance(answer, Response)
        answer.release()
        assert not other.closed.is_set()
        nursery.cancel_scope.cancel()
