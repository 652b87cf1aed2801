"""The frame of the conformance kit: cases, what they need, and how one is run."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from enum import Enum
from functools import partial
from typing import Any

import attrs
import trio

from ..abc import Link, LinkTransport, Listener, Part
from ..connections._outgoing import size_of
from ..connections.connection import Connection, Handler, connect
from ..connections.request import Request
from ..connections.server import serve
from ..frames import Frame, FrameType, Limits, decode_frame, encode_header
from ..patience import PATIENCE, bear_with
from ..registry import register
from ..requests import Identity
from ..security import Security
from ..stream import ByteStream, StreamTransport
from ..urls import URL
from ..verdicts import judged, not_tested
from ..versions import FIRST
from ._failures import broken, explain

CASE_TIMEOUT = 10.0 * PATIENCE
_CLOSING_SECONDS = 5.0 * PATIENCE
"""How long threads may take for descriptors that a case has let go of."""


class Needs(Enum):
    """The demands of a case on a transport beyond links."""

    STREAM = "a byte stream"
    HALF_CLOSE = "half close"
    WIRE = "two ends that need not be in one process"
    RAW = "a way for strangers to its door (`Env.open_raw`)"
    PROCESSES = "reach beyond one process, and a class that another process can import"
    DETERMINISM = "nothing but the trio clock and a seed to drive it"


class Env(ABC):
    """A transport under test, and addresses to test it at. Cases of an environment run one after the other."""

    transport: LinkTransport
    stands_on_sockets: bool = True
    """Whether strangers find a socket where a listener listens; `open_raw` then gives one."""

    @abstractmethod
    def listen_url(self) -> str:
        """An address to listen on, free at the moment; port 0 and its like are welcome."""

    @abstractmethod
    def dead_url(self) -> str:
        """A well-formed address at which nobody listens."""

    @abstractmethod
    def malformed_urls(self) -> Sequence[str]:
        """URLs of the transport's scheme that `parse` must refuse."""

    def security_for(self, identity: Identity) -> Security:
        """The means by which somebody proves itself, if the transport asks for that: cluster "kit" or "other"."""
        return Security()

    async def open_raw(self, url: str) -> socket.socket:
        """A connected socket to what a listener listens on, on which nothing was said: strangers come like that.

        Override it if listeners of this transport stand on sockets, over TCP by `socket.create_connection`.
        """
        raise NotImplementedError

    @property
    def lacks_raw(self) -> str:
        """The remedy if strangers cannot come; empty if they can, or there is no door to come to."""
        if not self.stands_on_sockets or self.transport.caps.one_process or self.has(Needs.RAW):
            return ""
        return (
            f"override {type(self).__name__}.open_raw, or set stands_on_sockets = False if no socket of a listener "
            "is open to strangers"
        )

    @property
    def lacks_import(self) -> str:
        """The remedy if another process cannot use the transport; empty if it can, or may not."""
        if self.transport.caps.one_process or self.has(Needs.PROCESSES):
            return ""
        kind = type(self.transport)
        where = "at the top of a module other than __main__"
        return f"another process cannot import {kind.__qualname__}; define it {where}"

    def has(self, need: Needs) -> bool:
        """Whether the transport can do what a case needs."""
        caps = self.transport.caps
        if need is Needs.STREAM:
            return isinstance(self.transport, StreamTransport)
        if need is Needs.WIRE:
            return not caps.one_process
        if need is Needs.RAW:
            return type(self).open_raw is not Env.open_raw
        if need is Needs.PROCESSES:
            return not caps.one_process and _is_importable(type(self.transport))
        return caps.half_close if need is Needs.HALF_CLOSE else caps.deterministic


@attrs.frozen
class Case:
    """One promise. `name` is its group's letter and a few words."""

    name: str
    promise: str
    needs: tuple[Needs, ...]
    run: Callable[[Env], Awaitable[None]]
    is_long: bool = False
    """It opens hundreds of links, one after the other, or measures beside a load of its own."""
    since: tuple[int, int] = FIRST
    """The version of the interface, as (major, minor), that brought this case."""

    @property
    def timeout(self) -> float:
        """Seconds; on a busy machine other processes, hundreds of links and loads may take their time."""
        return CASE_TIMEOUT * 4 if self.is_long or Needs.PROCESSES in self.needs else CASE_TIMEOUT


_CASES: list[Case] = []


def case(
    group: str, *needs: Needs, is_long: bool = False, since: tuple[int, int] = FIRST
) -> Callable[[Callable[[Any], Awaitable[None]]], None]:
    """Make a case of a coroutine function: its name and docstring become the case's."""

    def add(run: Callable[[Any], Awaitable[None]]) -> None:
        name = f"{group}_{run.__name__}"
        _CASES.append(Case(name, (run.__doc__ or "").strip(), needs, run, is_long, since))

    return add


def cases_for(env: Env) -> list[Case]:
    """The cases that apply to a transport. Those that apply and that `env` cannot run are a `NotTestedWarning`."""
    for need, lacks in ((Needs.RAW, env.lacks_raw), (Needs.PROCESSES, env.lacks_import)):
        if lacks:
            names = ", ".join(one.name for one in _all_cases() if need in one.needs)
            not_tested(f"{names}:", lacks)
    return [one for one in _all_cases() if all(map(env.has, one.needs))]


def skipped_for(env: Env) -> list[Case]:
    """The cases that do not, by what the transport says of itself. Its tests write down which these are."""
    return [one for one in _all_cases() if not all(map(env.has, one.needs))]


def _all_cases() -> list[Case]:
    for name in (
        "links",
        "queues",
        "ranges",
        "requests",
        "processes",
        "hostile",
        "flow",
        "identity",
        "determinism",
    ):
        importlib.import_module(f"._{name}", __package__)
    return _CASES


def _is_importable(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    return cls.__module__ != "__main__" and getattr(module, cls.__qualname__, None) is cls


async def run_case(one: Case, env: Env) -> None:
    """Run a case: it ends within its timeout and leaves no descriptor open.

    A case that fails while this process was held up is repeated (see `insync.transport.patience`).

    A case that cannot go on here is a `NotTestedWarning`.

    Raises:
      AssertionError: The promise is broken; it says which, and what was seen.
      BenchError: The environment itself failed.
    """
    for scheme in type(env.transport).schemes:
        register(scheme, type(env.transport), override=True)
    await bear_with(one.name, one.timeout, partial(_attempt, one, env), trio.lowlevel.checkpoint)


async def _attempt(one: Case, env: Env) -> None:
    before = _descriptors()
    with trio.move_on_after(one.timeout) as scope:
        try:
            await one.run(env)
        except Exception as error:
            if judged(one.name, env, error, tries=("open_raw",)):
                raise AssertionError(explain(one.name, one.promise, error)) from error
    assert not scope.cancelled_caught, f"{broken(one.name, one.promise)} Seen: no end within {one.timeout} s"
    # Connections that a case leaves behind are closed by the tasks that just ended.
    left = _left_open(before)
    assert not left, f"{broken(one.name, one.promise)} Seen: descriptors left open: {left}"


def _left_open(before: set[str]) -> set[str]:
    """Descriptors that a case leaves open. A thread may still be at it: `shm://` closes large deleted files in one.

    Nothing else has to run now, and a clock of trio's need not follow the time that a thread takes.
    """
    until = time.monotonic() + _CLOSING_SECONDS
    while (left := _descriptors() - before) and time.monotonic() < until:
        time.sleep(0.001)
    return left


def _descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name}: {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:
            continue
    return found


# What cases are made of.


@asynccontextmanager
async def listening(env: Env) -> AsyncIterator[Listener]:
    listener = await env.transport.listen(env.transport.parse(URL.parse(env.listen_url())))
    try:
        yield listener
    finally:
        with trio.CancelScope(shield=True):
            await listener.aclose()


@asynccontextmanager
async def pair(env: Env, limits: Limits | None = None) -> AsyncIterator[tuple[Link, Link]]:
    """The two ends of a link: the dialer's and the acceptor's."""
    async with listening(env) as listener:
        dialer = await env.transport.connect(env.transport.parse(listener.endpoints[0]))
        acceptor = await listener.accept()
        await prepare(dialer, acceptor)
        for link in (dialer, acceptor):
            link.set_limits(limits or Limits())
        try:
            yield dialer, acceptor
        finally:
            dialer.abort()
            acceptor.abort()


@asynccontextmanager
async def served_stream(env: Env) -> AsyncIterator[tuple[Link, ByteStream]]:
    """The acceptor's link of a byte stream, and the dialer's stream under none."""
    async with listening(env) as listener:
        assert isinstance(env.transport, StreamTransport)
        stream = await env.transport.open_stream(env.transport.parse(listener.endpoints[0]))
        link = await listener.accept()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.prepare)
            nursery.start_soon(link.prepare)
        try:
            yield link, stream
        finally:
            stream.abort()
            link.abort()


async def prepare(*links: Link) -> None:
    """Let both ends do what comes before frames."""
    async with trio.open_nursery() as nursery:
        for link in links:
            nursery.start_soon(link.prepare)


@asynccontextmanager
async def served(env: Env, handler: Handler, **settings: Any) -> AsyncIterator[tuple[trio.Nursery, str]]:
    """A server; gives a nursery for connections, and the URL."""
    settings.setdefault("identity", Identity("kit", 1, 1))
    settings.setdefault("security", env.security_for(settings["identity"]))
    settings.setdefault("limits", Limits(handshake_timeout=5.0 * PATIENCE))

    async def start(task_status: trio.TaskStatus[Any]) -> None:
        await serve(env.listen_url(), handler, **settings, task_status=task_status)

    async with trio.open_nursery() as nursery:
        serving = await nursery.start(start)
        try:
            yield nursery, serving.endpoints[0]
        finally:
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected(env: Env, handler: Handler, **settings: Any) -> AsyncIterator[Connection]:
    """A client's connection to a server."""
    async with served(env, handler, **settings) as (nursery, url):
        yield await dial(env, url, nursery)


async def dial(
    env: Env, url: str, nursery: trio.Nursery, identity: Identity | None = None, **settings: Any
) -> Connection:
    """A connection to a server, as somebody."""
    me = identity or Identity()
    settings.setdefault("security", env.security_for(me))
    settings.setdefault("timeout", 5.0 * PATIENCE)
    return await connect(url, identity=me, nursery=nursery, **settings)


def echo(request: Request) -> None:
    """A handler that answers with what it got."""
    with request.payload as payload:
        request.reply(request.body, [bytes(payload.view())])


def message(body: bytes = b"", parts: Sequence[Part] = (), *, corr: int = 0) -> bytes:
    """Header and body of a frame with this payload."""
    return encode_header(FrameType.REQUEST, corr, body=body, payload_length=size_of(parts))


async def receive(link: Link) -> tuple[Frame, bytes]:
    """The next frame, and its payload copied."""
    head, payload = await link.recv()
    with payload:
        return decode_frame(head, payload, link.limits), bytes(payload.view())


async def raw_dial(env: Env, url: str) -> ByteStream:
    """A byte stream to a server that expects a peer."""
    assert isinstance(env.transport, StreamTransport)
    return await env.transport.open_stream(env.transport.parse(URL.parse(url)))


@attrs.frozen
class FileSlice:
    """A file range for tests."""

    fd: int
    offset: int
    length: int

    def fileno(self) -> int:
        return self.fd


@contextmanager
def file_of(data: bytes, folder: str | None = None) -> Iterator[int]:
    """The descriptor of a file with this content: unnamed, or the only one of `folder`."""
    with tempfile.TemporaryFile() if folder is None else open(os.path.join(folder, "log"), "wb+") as file:
        file.write(data)
        file.flush()
        yield file.fileno()


async def until(condition: Callable[[], bool], what: str, timeout: float = 5.0) -> None:
    """Wait until something observable holds, for `timeout` seconds of a usual machine."""
    timeout *= PATIENCE
    with trio.move_on_after(timeout):
        while not condition():  # noqa: ASYNC110 - a condition of any thing
            await trio.sleep(0.002)
        return
    raise AssertionError(f"not within {timeout} s: {what}")
