"""Whatever a plugin raises: a link breaks, an address does not answer, and nothing else happens."""

import logging
from functools import partial
from typing import ClassVar

import pytest
import trio

from insync.transport import (
    ConnectError,
    ConnectionLost,
    Identity,
    TransportError,
    connect,
    connect_nearest,
    registry,
    serve,
)
from insync.transport._memory import MemoryLink, MemoryListener, MemoryTransport
from insync.transport.repeats import BURST, REPEATS


class RemoteProtocolError(Exception):
    """As a library has them."""


ERRORS = [
    RemoteProtocolError("illegal request line"),
    RuntimeError(),
    OSError(113, "No route to host"),
    trio.TooSlowError(),
    ExceptionGroup("of a nursery", [ValueError("inside")]),
    trio.BrokenResourceError("as trio says it"),
]
IDS = [type(error).__name__ for error in ERRORS]


class FaultyLink(MemoryLink):
    """Raises once it is told to, in the calls that are named."""

    def fault(self, name):
        if name in FaultyTransport.faults:
            raise FaultyTransport.faults[name]

    async def send(self, head, parts, *, more=False):
        self.fault("send")
        await super().send(head, parts, more=more)

    async def recv(self):
        self.fault("recv")
        found = await super().recv()
        self.fault("recv")
        return found

    async def recv_many(self):
        self.fault("recv")
        found = await super().recv_many()
        self.fault("recv")
        return found

    async def prepare(self):
        self.fault("prepare")
        await super().prepare()

    @property
    def received(self):
        self.fault("received")
        return super().received

    def abort(self):
        super().abort()
        self.fault("abort")


class FaultyListener(MemoryListener):
    async def accept(self):
        link = await super().accept()
        if "accept" in FaultyTransport.faults:
            link.abort()
            raise FaultyTransport.faults["accept"]
        link.__class__ = FaultyLink
        return link


class FaultyTransport(MemoryTransport):
    schemes = ("faulty",)
    faults: ClassVar[dict[str, BaseException]] = {}

    async def connect(self, endpoint):
        if "connect" in self.faults:
            raise self.faults["connect"]
        link = await super().connect(endpoint)
        link.__class__ = FaultyLink
        return link

    async def listen(self, endpoint):
        if "listen" in self.faults:
            raise self.faults["listen"]
        listener = await super().listen(endpoint)
        listener.__class__ = FaultyListener
        return listener

    def parse(self, url):
        if "parse" in self.faults:
            raise self.faults["parse"]
        return super().parse(url)

    def can_dial(self, endpoint):
        if "can_dial" in self.faults:
            raise self.faults["can_dial"]
        return True


@pytest.fixture
def faults():
    registry.register("faulty", FaultyTransport)
    FaultyTransport.faults = {}
    yield FaultyTransport.faults
    FaultyTransport.faults = {}


def answer(request):
    with request.payload:
        request.reply(request.body)


@pytest.fixture
async def server(faults, nursery):
    url = "faulty://net/server"
    await nursery.start(partial(serve, url, answer, identity=Identity("c", 1, 1)))
    return url


async def dial(url, nursery, **settings):
    return await connect(url, identity=Identity(), nursery=nursery, timeout=2, **settings)


async def works(url, nursery):
    connection = await dial(url, nursery)
    with await connection.request(1, b"hello", timeout=2) as response:
        assert response.body == b"hello"
    connection.abort("for the test")


@pytest.mark.parametrize("error", ERRORS, ids=IDS)
@pytest.mark.parametrize("call", ["connect", "prepare", "recv", "send"])
async def test_a_dial_fails_by_a_connect_error(server, faults, nursery, call, error, caplog):
    faults[call] = error
    with pytest.raises(ConnectError) as caught:
        await dial(server, nursery)
    assert "faulty://net/server" in str(caught.value)
    (line, *_) = [record.getMessage() for record in caplog.records if "raised" in record.getMessage()]
    assert "the transport for faulty:// raised" in line and f" in {call} with faulty://net/" in line
    assert "test_foreign_errors.py:" in line
    faults.clear()
    await works(server, nursery)


@pytest.mark.parametrize("error", ERRORS, ids=IDS)
@pytest.mark.parametrize("call", ["recv", "send", "received", "abort"])
async def test_a_connection_is_lost_and_both_sides_live(server, faults, nursery, call, error):
    connection = await dial(server, nursery)
    faults[call] = error
    if call in ("received", "abort"):
        connection.abort("for the test")
    else:
        with pytest.raises(ConnectionLost):
            await connection.request(1, b"hello", timeout=2)
    await connection.closed.wait()
    faults.clear()
    await works(server, nursery)


@pytest.mark.parametrize("error", ERRORS, ids=IDS)
async def test_a_listener_goes_on(server, faults, nursery, error, autojump_clock):
    faults["accept"] = error
    for _ in range(3):
        with pytest.raises(ConnectError):
            await dial(server, nursery)
    faults.clear()
    await works(server, nursery)


@pytest.mark.parametrize("error", ERRORS, ids=IDS)
@pytest.mark.parametrize("call", ["connect", "can_dial", "parse"])
async def test_another_address_is_tried(server, faults, nursery, call, error):
    await nursery.start(partial(serve, "mem://net/other", answer, identity=Identity("c", 1, 1)))
    faults[call] = error
    connection = await connect_nearest(
        [server, "mem://net/other"], identity=Identity(), nursery=nursery, expect_node=1
    )
    assert connection.url == "mem://net/other"


async def test_listening_fails_by_a_transport_error(faults):
    faults["listen"] = RuntimeError("no room")
    with pytest.raises(TransportError, match="faulty://net/x: RuntimeError: no room"):
        await serve("faulty://net/x", answer, identity=Identity("c", 1, 1))


async def test_cancelling_is_no_error(server, nursery, caplog):
    with trio.move_on_after(0.01) as scope:
        connection = await dial(server, nursery)
        await connection.request(1, timeout=5)
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert not caplog.records


async def test_what_ends_the_process_passes(faults):
    faults["connect"] = KeyboardInterrupt()
    with pytest.raises(BaseExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            await dial("faulty://net/x", nursery)
    assert caught.group_contains(KeyboardInterrupt)


async def test_repeated_errors_are_counted(faults, nursery, caplog, monkeypatch):
    monkeypatch.setattr(REPEATS, "_now", lambda: 0.0)  # another one may be logged after each second
    caplog.set_level(logging.WARNING)
    faults["connect"] = RemoteProtocolError("again")
    for _ in range(200):
        with pytest.raises(ConnectError):
            await dial("faulty://net/x", nursery)
    assert len(caplog.records) == BURST
