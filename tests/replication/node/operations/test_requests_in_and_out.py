"""What a node keeps of requests: of its own until they are answered, and of others' times and failures."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from insync.replication import wire
from insync.replication.core import messages as m
from insync.replication.core.broker import effects as fx
from insync.replication.core.broker import events as ev
from insync.replication.node._dialler import Dialler
from insync.replication.node.operations.counters import BUCKETS, Counters
from insync.replication.node.requests._handlers import Handlers
from insync.transport import ConnectError, Connection, Response
from insync.transport._payload import BytesPayload

IS_SILENT = m.Kind.IS_SILENT


class Line(Connection):
    """A connection that takes requests and lets the test answer them."""

    def __init__(self, *, is_gone: bool = False) -> None:
        self.is_gone = is_gone
        self.answers: list[Callable[[Any], None]] = []
        self.cancelled: list[int] = []

    def request_nowait(self, kind: int, *body: Any, on_done: Any, **options: Any) -> Any:
        at = len(self.answers)
        self.answers.append(on_done)
        if self.is_gone:
            on_done(ConnectError("it is gone"))
        return SimpleNamespace(cancel=lambda: self.cancelled.append(at))


class Asker:
    """A dialler and what it tells the broker."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.told: list[Any] = []
        driver: Any = SimpleNamespace(step=self.told.append, settle=lambda: None, now=trio.current_time)
        self.dialler = Dialler(driver, Counters(), nursery)

    def ask(self, question: int, line: Line) -> None:
        message = m.IsSilentRequest(node_id=1, incarnation=1)
        ask = fx.Ask(question=question, connection=line, kind=IS_SILENT, message=message, timeout=1.0)
        self.dialler.obey[fx.Ask](ask)

    def give_up(self, question: int) -> None:
        self.dialler.obey[fx.GiveUp](fx.GiveUp(question=question))


def answer() -> Response:
    return Response(wire.encode(m.IsSilentResponse(silent=True)), BytesPayload(b""))


async def test_a_question_that_is_given_up_is_withdrawn_and_no_other() -> None:
    async with trio.open_nursery() as nursery:
        asker, line = Asker(nursery), Line()
        for question in (7, 8, 9):
            asker.ask(question, line)
        line.answers[0](answer())
        for question in (7, 9, 9, 10):
            asker.give_up(question)
        assert line.cancelled == [2]
        line.answers[1](answer())
        assert [type(each) for each in asker.told] == [ev.Answered, ev.Answered]
        assert [each.question for each in asker.told] == [7, 8]
        assert not asker.dialler._handles


async def test_nothing_is_kept_of_a_question_that_cannot_be_sent() -> None:
    async with trio.open_nursery() as nursery:
        asker, line = Asker(nursery), Line(is_gone=True)
        asker.ask(7, line)
        (told,) = asker.told
        assert isinstance(told, ev.AskFailed) and (told.question, told.reason) == (7, "it is gone")
        assert not asker.dialler._handles
        asker.give_up(7)
        assert not line.cancelled


class Arrived(SimpleNamespace):
    """A request as a transport brings it."""

    def __init__(self, kind: int, body: bytes, arrived: float) -> None:
        super().__init__(
            kind=kind, body=body, arrived=arrived, payload=BytesPayload(b""), connection=object()
        )
        self.answers: list[object] = []

    def reply(self, body: bytes, parts: object) -> None:
        self.answers.append(body)

    def fail(self, code: int, detail: str) -> None:
        self.answers.append(code)


@pytest.mark.parametrize("is_well_formed", [True, False])
async def test_a_request_is_counted_from_its_arrival_and_a_failed_one_as_such(is_well_formed: bool) -> None:
    counters = Counters()
    replicas: Any = SimpleNamespace(
        counters=counters,
        now=lambda: 100.0,
        settle=lambda: None,
        settle_later=lambda: None,
        produces=SimpleNamespace(serve=None, serve_deletion=None),
        fetches=SimpleNamespace(serve=None),
        coordination=SimpleNamespace(serve=None),
        broker=SimpleNamespace(
            suspicion=SimpleNamespace(tell=lambda _: m.IsSilentResponse(silent=False)),
        ),
    )
    nothing: Any = None
    handlers = Handlers(replicas, nothing, nothing, nothing, nothing, nothing)
    body = wire.encode(m.IsSilentRequest(node_id=1, incarnation=1)) if is_well_formed else b"?"
    request: Any = Arrived(IS_SILENT, body, 97.0)
    handlers.serve(request)
    assert len(request.answers) == 1
    (times,) = counters.requests.values()
    assert (times.total, times.count, times.failed) == (3.0, 1, 0 if is_well_formed else 1)
    assert times.counts[BUCKETS.index(5.0)] == 1
