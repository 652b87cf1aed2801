"""Where other people's code begins: whatever a plugin raises, what comes out is an error of `insync.transport`.

A plugin stands on libraries with errors of their own, and has bugs. Neither may end the process that uses it: the
link that is concerned is broken, an address that cannot be dialled is one that does not answer. The log says which
transport it was, with whom, in which call, and where the error was raised; see `repeats` for how often.
"""

from __future__ import annotations

import errno
import logging
import os
import traceback
from collections.abc import Sequence

import trio

from .abc import Buffer, Gate, Link, LinkTransport, Listener, Part, Payload
from .errors import ConnectError, LinkBroken, LinkClosed, TransportError
from .frames import Frame, Limits
from .repeats import limited
from .urls import Endpoint

log = limited(logging.getLogger("insync.transport"))

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors that a listener may raise in good faith: they pass."""


async def dial(transport: LinkTransport, endpoint: Endpoint) -> Link:
    """A link of a plugin's, guarded. Raises TransportError; ConnectError for whatever else the plugin raises."""
    try:
        return GuardedLink(await transport.connect(endpoint), endpoint.scheme)
    except TransportError:
        raise
    except BaseException as error:
        text = told(error, endpoint.scheme, "connect", str(endpoint))
        raise ConnectError(f"{endpoint}: {text}", peer=str(endpoint)) from error


async def listen(transport: LinkTransport, endpoint: Endpoint) -> Listener:
    """A listener of a plugin's, guarded. Raises TransportError, OSError, ValueError."""
    try:
        return GuardedListener(await transport.listen(endpoint), endpoint.scheme)
    except (TransportError, OSError, ValueError):
        raise
    except BaseException as error:
        raise TransportError(
            f"{endpoint}: {told(error, endpoint.scheme, 'listen', str(endpoint))}"
        ) from error


class GuardedListener(Listener):
    """Its `accept` raises LinkClosed after `aclose`, OSError that is worth waiting out, and LinkBroken else."""

    def __init__(self, inner: Listener, scheme: str) -> None:
        self.endpoints = inner.endpoints
        self._inner, self._scheme = inner, scheme
        self._closed = False

    async def accept(self) -> Link:
        try:
            return GuardedLink(await self._inner.accept(), self._scheme)
        except BaseException as error:
            if self._closed and isinstance(error, Exception):
                raise LinkClosed(f"the listener on {self.endpoints[0]} was closed here") from error
            if isinstance(error, TransportError) or (isinstance(error, OSError) and error.errno in EXHAUSTED):
                raise
            at = str(self.endpoints[0])
            raise LinkBroken(f"{at}: {told(error, self._scheme, 'accept', at)}", peer=at) from error

    async def aclose(self) -> None:
        self._closed = True
        try:
            await self._inner.aclose()
        except TransportError:
            return
        except BaseException as error:  # noqa: BLE001 - `told` raises what ends or cancels us
            told(error, self._scheme, "aclose", str(self.endpoints[0]))


class GuardedLink(Link):
    """A plugin's link. Its errors beside TransportError become LinkBroken, and the link is aborted."""

    def __init__(self, inner: Link, scheme: str) -> None:
        self._inner, self._scheme = inner, scheme
        self._closed = False
        self.caps, self.local, self.remote = inner.caps, inner.local, inner.remote

    @property
    def inner(self) -> Link:
        """For who calls it for each message and has `broken` make the errors: a coroutine less above each wait."""
        return self._inner

    async def send(self, head: Buffer, parts: Sequence[Part], *, more: bool = False) -> None:
        try:
            await self._inner.send(head, parts, more=more)
        except TransportError:
            raise
        except BaseException as error:
            raise self.broken("send", error) from error

    async def send_many(self, frames: Sequence[tuple[Buffer, Sequence[Part]]]) -> None:
        try:
            await self._inner.send_many(frames)
        except TransportError:
            raise
        except BaseException as error:
            raise self.broken("send", error) from error

    def send_now(self, pieces: Sequence[Part]) -> bool:
        try:
            return self._inner.send_now(pieces)
        except TransportError:
            raise
        except BaseException as error:
            raise self.broken("send_now", error) from error

    @property
    def has_rest(self) -> bool:
        return self._inner.has_rest

    async def recv(self) -> tuple[memoryview, Payload]:
        try:
            return await self._inner.recv()
        except TransportError:
            raise
        except BaseException as error:
            raise self.broken("recv", error) from error

    async def recv_many(self) -> list[Frame]:
        try:
            return await self._inner.recv_many()
        except TransportError:
            raise
        except BaseException as error:
            raise self.broken("recv", error) from error

    async def recv_hello(self) -> bytes:
        try:
            return await self._inner.recv_hello()
        except TransportError:
            raise
        except BaseException as error:
            raise self.broken("recv", error) from error

    async def prepare(self) -> None:
        try:
            await self._inner.prepare()
        except TransportError:
            raise
        except BaseException as error:
            raise self.broken("prepare", error) from error

    async def send_eof(self) -> None:
        try:
            await self._inner.send_eof()
        except TransportError:
            raise
        except BaseException as error:
            raise self.broken("send_eof", error) from error

    async def aclose(self) -> None:
        self._closed = True
        try:
            await self._inner.aclose()
        except TransportError:
            raise
        except BaseException as error:
            raise self.broken("aclose", error) from error

    def abort(self) -> None:
        self._closed = True
        try:
            self._inner.abort()
        except Exception as error:  # noqa: BLE001 - a plugin's
            told(error, self._scheme, "abort", str(self.remote))

    @property
    def peer_name(self) -> str | None:
        try:
            return self._inner.peer_name
        except Exception as error:
            raise self.broken("peer_name", error) from error

    @property
    def peer_uid(self) -> int | None:
        try:
            return self._inner.peer_uid
        except Exception as error:
            raise self.broken("peer_uid", error) from error

    @property
    def sent(self) -> int:
        try:
            return self._inner.sent
        except Exception as error:
            raise self.broken("sent", error) from error

    @property
    def received(self) -> int:
        try:
            return self._inner.received
        except Exception as error:
            raise self.broken("received", error) from error

    def trim(self) -> None:
        try:
            self._inner.trim()
        except Exception as error:
            raise self.broken("trim", error) from error

    def set_limits(self, limits: Limits) -> None:
        super().set_limits(limits)
        self._inner.set_limits(limits)

    def set_gate(self, gate: Gate) -> None:
        super().set_gate(gate)
        self._inner.set_gate(gate)

    def broken(self, call: str, error: BaseException) -> TransportError:
        """The error to raise in place of what a call of `inner` has raised, unless that is a TransportError.

        A link that was closed here may end its calls as it likes.

        Raises:
          BaseException: The same, if it ends or cancels who called.
        """
        peer = str(self.remote)
        if self._closed and isinstance(error, Exception):
            return LinkClosed(f"the link to {peer} was closed here", peer=peer)
        text = told(error, self._scheme, call, peer)
        self.abort()
        return LinkBroken(f"the link to {peer} broke: {text}", peer=peer)


def told(error: BaseException, scheme: str, call: str, peer: str) -> str:
    """Say in the log what a plugin has raised; the words for an error of ours.

    Raises:
      BaseException: The same, if it ends or cancels what called the plugin.
    """
    foreign = _foreign(error)
    if foreign is None:
        raise error
    where = place_of(foreign if foreign.__traceback__ is not None else error)
    what = f"{type(foreign).__name__}: {foreign}" if str(foreign) else type(foreign).__name__
    log.warning(
        "the transport for %s:// raised %s in %s with %s (at %s)",
        scheme,
        what,
        call,
        peer,
        where,
        extra={"fault": (scheme, call, type(foreign), where)},
    )
    return what


def place_of(error: BaseException) -> str:
    """The line that raised it, as file:line in function."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "an unknown place"
    last = frames[-1]
    folder, name = os.path.split(last.filename)
    return f"{os.path.join(os.path.basename(folder), name)}:{last.lineno} in {last.name}"


def _foreign(error: BaseException) -> BaseException | None:
    """The error itself, of a group the first one; None if there is nothing but what ends or cancels us."""
    if isinstance(error, BaseExceptionGroup):
        if error.subgroup((KeyboardInterrupt, SystemExit)) is not None:
            return None
        found = [each for each in map(_foreign, error.exceptions) if each is not None]
        return found[0] if found else None
    return error if isinstance(error, Exception) and not isinstance(error, trio.Cancelled) else None


__all__ = ["EXHAUSTED", "GuardedLink", "GuardedListener", "dial", "listen", "told"]
