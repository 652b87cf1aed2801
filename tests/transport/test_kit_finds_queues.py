"""The kit fails when it should: frames that wait, are held, cancelled or grow, by a message link and by a stream.

Each broken transport differs in a few lines from one that passes (`packet://` of docs/writing-a-transport.md, or
TCP), and what the kit says of it names the promise.
"""

from __future__ import annotations

import itertools
import select
import shutil
import socket
import tempfile
import warnings
from collections import deque
from contextlib import suppress

import pytest
import trio

from insync.plugins.tcp import TcpTransport
from insync.plugins.tcp._transport import TcpListener
from insync.transport import URL, EndOfLink, LinkBroken, register, split_host_port
from insync.transport._payload import BufferPayload
from insync.transport.buffers import LazyBuffer
from insync.transport.frames import PREFACE_MAGIC
from insync.transport.sockets import SocketStream
from insync.transport.testing import Env, NotTestedWarning, cases_for, run_case

from .test_docs_page import NAMES

MIB = 1 << 20
PacketLink, PacketListener, PacketTransport = (
    NAMES[f"Packet{name}"] for name in ("Link", "Listener", "Transport")
)


@pytest.fixture(autouse=True)
def tcp_as_it_was():
    """The kit registers what it tests."""
    yield
    register("tcp", TcpTransport, override=True)


def by_message(link=PacketLink, listener=PacketListener):
    """packet://, but with other links, or another listener."""

    class Broken(PacketTransport):
        async def connect(self, endpoint):
            return changed(await super().connect(endpoint))

        async def listen(self, endpoint):
            made = await super().listen(endpoint)
            made.__class__ = type("BrokenListener", (listener,), {"accept": accept})
            return made

    async def accept(self):
        return changed(await listener.accept(self))

    def changed(found):
        found.__class__ = link
        return found

    return Broken


def by_stream(stream=SocketStream, listener=None):
    """TCP, but with other streams."""

    class Broken(TcpTransport):
        def make_stream(self, sock, endpoint):
            return stream(sock, self.caps, endpoint, endpoint)

        def make_listener(self, sock, endpoint):
            made = super().make_listener(sock, endpoint)
            if listener is not None:
                made.__class__ = listener
            made.make_stream = lambda sock, local, remote: stream(sock, self.caps, local, remote)
            return made

    return Broken


class TcpEnv(Env):
    def __init__(self, transport):
        self.transport = transport()

    def listen_url(self):
        return "tcp://127.0.0.1:0"

    def dead_url(self):
        return "tcp://127.0.0.1:1"

    def malformed_urls(self):
        return ["tcp://"]

    async def open_raw(self, url):
        return socket.create_connection(split_host_port(URL.parse(url)))


class PacketEnv(TcpEnv):
    numbers = itertools.count()

    def __init__(self, transport):
        super().__init__(transport)
        self.folder = tempfile.mkdtemp()

    def listen_url(self):
        return f"packet://{self.folder}/socket-{next(self.numbers)}"

    async def open_raw(self, url):
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stranger.connect(url.removeprefix("packet://"))
        return stranger


async def outcome(transport, name):
    """The case, and what the kit says; None if it passes."""
    env = (PacketEnv if issubclass(transport, PacketTransport) else TcpEnv)(transport)
    with warnings.catch_warnings(action="ignore", category=NotTestedWarning):  # its class is not importable
        (case,) = [case for case in cases_for(env) if case.name == name]
    try:
        await run_case(case, env)
    except AssertionError as error:
        return case, error
    finally:
        shutil.rmtree(getattr(env, "folder", "/nowhere"), ignore_errors=True)
    return case, None


# Order.


class Swaps(PacketLink):
    """Of frames that are there together the fourth is handed out before the third."""

    async def recv(self):
        ready = self.__dict__.setdefault("ready", deque())
        while len(ready) < 5:
            with trio.move_on_after(0.02 if ready else float("inf")) as scope:
                ready.append(await super().recv())
            if scope.cancelled_caught:
                break
        if len(ready) == 5:
            ready[2], ready[3] = ready[3], ready[2]
            self.ready = deque(itertools.islice(ready, 1, None))
        return ready.popleft()


class Overtaken(SocketStream):
    """When the socket is full, what is sent next goes first."""

    async def send(self, parts):
        data, held = b"".join(map(bytes, parts)), self.__dict__.pop("held", None)
        if held is None and not select.select([], [self.socket], [], 0)[1]:
            self.held = data
            return
        await super().send([data, held or b""])


# Payloads in hand.


class OneBuffer(PacketLink):
    """All payloads lie in one buffer."""

    async def recv(self):
        head, payload = await super().recv()
        buffer = self.__dict__.setdefault("one", bytearray(2 * MIB))
        if payload.nbytes > len(buffer):
            return head, payload
        buffer[: payload.nbytes] = payload.view()
        return head, BufferPayload(memoryview(buffer)[: payload.nbytes])


class LateWriter(SocketStream):
    """Writes into the buffer of the call before."""

    async def receive_into(self, buffer, at_least=1):
        count = await super().receive_into(buffer, at_least)
        before = self.__dict__.get("before")
        if before is not None and count < 200_000:
            before[-1:] = b"?"
        self.before = buffer[:count]
        return count


# Cancelled receives.


class LosesWhatIsReady(PacketLink):
    """A checkpoint between taking a frame and handing it out."""

    async def recv(self):
        found = await super().recv()
        await trio.lowlevel.checkpoint()
        return found


class LosesBytes(SocketStream):
    async def receive_into(self, buffer, at_least=1):
        count = await super().receive_into(buffer, at_least)
        await trio.lowlevel.checkpoint()
        return count


class ShortAfterCancel(PacketLink):
    """What had come of a payload when `recv` was cancelled is missing in it."""

    async def recv(self):
        try:
            return await super().recv()
        except trio.Cancelled:
            if self._lengths is not None:
                head, payload = self._lengths
                self._lengths = head, payload - len(self._there[head:])
                del self._there[head:]
            raise


class ShortBytesAfterCancel(SocketStream):
    """The same, of what is read at once of a large frame."""

    async def receive_into(self, buffer, at_least=1):
        count = await super().receive_into(buffer, at_least)
        if count > 4096:
            await trio.lowlevel.checkpoint()
        return count


# Memory given back.


class ForgetsHalfAFrame(PacketLink):
    def trim(self):
        self._there.clear()


class TrimsWhileItReads(SocketStream):
    """Gives its own memory back while it receives there."""

    async def receive_into(self, buffer, at_least=1):
        own = self.__dict__.setdefault("own", LazyBuffer(1 << 18))
        count = await super().receive_into(own.view[: len(buffer)], min(at_least, 1 << 18))
        await trio.lowlevel.cancel_shielded_checkpoint()
        buffer[:count] = own.view[:count]
        return count

    def trim(self):
        if "own" in self.__dict__:
            self.own.give_back()


# Cancelled sends.


class GoesOn(PacketLink):
    """A task of its own sends what lies in the buffers by then."""

    async def send(self, head, parts, *, more=False):
        done = trio.Event()

        async def go_on():
            with suppress(Exception):
                await PacketLink.send(self, head, parts)
            done.set()

        trio.lowlevel.spawn_system_task(go_on)
        await done.wait()


class GoesOnBytes(SocketStream):
    async def send(self, parts):
        parts, done = list(parts), trio.Event()

        async def go_on():
            with suppress(Exception):
                await SocketStream.send(self, parts)
            done.set()

        trio.lowlevel.spawn_system_task(go_on)
        try:
            await done.wait()
        except trio.Cancelled:
            self.spared = True
            raise

    def abort(self):
        if not self.__dict__.pop("spared", False):
            super().abort()


# Sizes.


class Boundless(PacketLink):
    """Whatever is announced is taken in."""

    def _checked(self, packet):
        return NAMES["LENGTHS"].unpack(packet)


class ReadsAhead(SocketStream):
    """Takes in all that is there before it hands any of it out."""

    async def receive_into(self, buffer, at_least=1):
        kept = self.__dict__.setdefault("kept", bytearray())
        while not kept:
            chunk = bytearray(1 << 20)
            with trio.move_on_after(0.3):
                while len(kept) < 64 * MIB:
                    count = await SocketStream.receive_into(self, memoryview(chunk))
                    kept += chunk[:count]
                    if count == 0:
                        return 0
        count = min(len(buffer), len(kept))
        buffer[:count] = kept[:count]
        del kept[:count]
        return count

    @property
    def unread(self):
        return len(self.__dict__.get("kept", b"")) + super().unread


# Signs of life.


class CountsWholeFrames(PacketLink):
    async def recv(self):
        found = await super().recv()
        self.whole = self.counted
        return found

    @property
    def received(self):
        return self.__dict__.get("whole", 0)

    @received.setter
    def received(self, value):
        self.counted = value


class CountsLate(SocketStream):
    """Waits until the buffer is full."""

    unread = 0

    async def receive_into(self, buffer, at_least=1):
        if len(buffer) <= 1 << 20:
            return await super().receive_into(buffer, at_least)
        done = 0
        while done < len(buffer):
            count = await super().receive_into(buffer[done:], 1)
            if not count:
                break
            done += count
        return done


# Strangers.


class Waits(PacketListener):
    """Does not accept the next before the one before has said something."""

    async def accept(self):
        link = await super().accept()
        with suppress(LinkBroken, EndOfLink):
            await trio.lowlevel.wait_readable(link._sock.fileno())
        return link


class WaitsForBytes(TcpListener):
    async def accept(self):
        stream = await super().accept()
        await trio.lowlevel.wait_readable(stream.socket)
        return stream


class DiesOfGarbage(PacketListener):
    """Looks at first words before it hands a link out; words that are none end the task that does."""

    async def accept(self):
        link = await super().accept()
        with trio.move_on_after(0.1):
            if len(await link._sock.recv(64, socket.MSG_PEEK)) != NAMES["LENGTHS"].size:
                self.is_dead = True
        if "is_dead" in self.__dict__:
            link.abort()
            await trio.sleep_forever()
        return link


class DiesOfGarbageBytes(TcpListener):
    async def accept(self):
        stream = await super().accept()
        with trio.move_on_after(0.1):
            await trio.lowlevel.wait_readable(stream.socket)
            if stream.socket.recv(8, socket.MSG_PEEK) != PREFACE_MAGIC:
                self.is_dead = True
        if "is_dead" in self.__dict__:
            stream.abort()
            await trio.sleep_forever()
        return stream


BROKEN = [
    ("B_order_is_kept_under_backlog", by_message(Swaps)),
    ("B_order_is_kept_under_backlog", by_stream(Overtaken)),
    ("B_payloads_in_hand_stay_as_they_are", by_message(OneBuffer)),
    ("B_payloads_in_hand_stay_as_they_are", by_stream(LateWriter)),
    ("B_a_ready_frame_survives_a_cancelled_receive", by_message(LosesWhatIsReady)),
    ("B_a_ready_frame_survives_a_cancelled_receive", by_stream(LosesBytes)),
    ("B_a_cancelled_receive_loses_nothing", by_message(ShortAfterCancel)),
    ("B_a_cancelled_receive_loses_nothing", by_stream(ShortBytesAfterCancel)),
    ("B_trimming_loses_nothing", by_message(ForgetsHalfAFrame)),
    ("B_trimming_loses_nothing", by_stream(TrimsWhileItReads)),
    ("B_a_cancelled_send_does_not_go_on", by_message(GoesOn)),
    ("B_a_cancelled_send_does_not_go_on", by_stream(GoesOnBytes)),
    ("F_a_frame_above_the_limits_is_not_taken_in", by_message(Boundless)),
    ("F_a_frame_above_the_limits_is_not_taken_in", by_stream(ReadsAhead)),
    ("F_a_hello_without_end_is_not_taken_in", by_message(Boundless)),
    ("F_a_hello_without_end_is_not_taken_in", by_stream(ReadsAhead)),
    ("F_strangers_at_the_door_keep_nobody_out", by_message(listener=Waits)),
    ("F_strangers_at_the_door_keep_nobody_out", by_stream(listener=WaitsForBytes)),
    ("F_strangers_at_the_door_keep_nobody_out", by_message(listener=DiesOfGarbage)),
    ("F_strangers_at_the_door_keep_nobody_out", by_stream(listener=DiesOfGarbageBytes)),
    ("G_a_large_frame_gives_signs_of_life", by_message(CountsWholeFrames)),
    ("G_a_large_frame_gives_signs_of_life", by_stream(CountsLate)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "broken"), BROKEN, ids=lambda each: each if isinstance(each, str) else "")
async def test_a_broken_transport_fails_and_the_promise_is_named(name, broken):
    case, error = await outcome(broken, name)
    assert error is not None, f"{name} passes over a transport that breaks it"
    said = str(error)
    assert said.startswith(f"{name}: broken is the promise: {' '.join(case.promise.split())}")
    assert len(said.partition(" Seen: ")[2]) > 20, said


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({name for name, _ in BROKEN}))
@pytest.mark.parametrize("whole", [by_message(), by_stream()], ids=["message", "stream"])
async def test_without_the_defect_it_passes(name, whole):
    assert (await outcome(whole, name))[1] is None
