"""Sessions by the token in a browser's cookie: who is logged in, for how long, and how fast one can try."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from ipaddress import IPv6Address, ip_address
from typing import Any

import attrs

from ...replication.client import ClientError
from ...transport import TransportError
from ._login import Door, Login, LoginError, WrongPasswordError

log = logging.getLogger("insync.dashboard")

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MOST_SESSIONS = 1000
CHECK_EVERY = 2.0
"""Seconds between two looks at whether the users who are logged in are still what they were."""
WRONG_SECONDS = 1.0
"""For which the answer to a wrong password is kept back from the address that gave it, and nobody else."""
MOST_OF_ONE, MOST_OF_ALL = 5, 100
"""Attempts that are under way or wait, of one address and of all: less than there are connections."""


@attrs.define(eq=False)
class Session:
    """over: set when it has ended, by whatever."""

    login: Login
    over: asyncio.Event = attrs.Factory(asyncio.Event)

    def kept_open(self, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """A WebSocket that is closed when the session ends. Later messages of the application go nowhere."""
        coming: asyncio.Future[MutableMapping[str, Any]] | None = None
        closed = False

        async def receive_until_over() -> MutableMapping[str, Any]:
            nonlocal coming, closed
            if coming is None:
                coming = asyncio.ensure_future(receive())
            ended = asyncio.ensure_future(self.over.wait())
            try:
                await asyncio.wait(
                    (coming, ended), timeout=max(0.0, self.login.left), return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                ended.cancel()
            if self.over.is_set() or self.login.left <= 0:
                coming.cancel()
                closed = True
                await send({"type": "websocket.close", "code": 1008, "reason": "the session has ended"})
                return {"type": "websocket.disconnect", "code": 1008}
            message = coming.result()
            coming = None
            return message

        async def send_until_over(message: MutableMapping[str, Any]) -> None:
            if not closed and not self.over.is_set() and self.login.left > 0:
                await send(message)

        return receive_until_over, send_until_over


class Sessions:
    """All of one dashboard."""

    def __init__(self) -> None:
        self._open: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, login: Login) -> str:
        """Its token. Where there are too many the oldest ends."""
        token = secrets.token_urlsafe(32)
        self._open[token] = Session(login)
        while len(self._open) > MOST_SESSIONS:
            self.end(next(iter(self._open)))
        return token

    def find(self, token: str) -> Session | None:
        """None if there is none, or it has ended."""
        found = self._open.get(token)
        if found is not None and found.login.left <= 0:
            self.end(token)
            return None
        return found

    def end(self, token: str) -> None:
        """It is forgotten, and its WebSockets are closed."""
        ended = self._open.pop(token, None)
        if ended is not None:
            ended.over.set()

    async def end_changed(self, door: Door) -> None:
        """End those whose users were deleted or changed. While the cluster is silent, which shows nothing new
        either, all go on.
        """
        logins = {each.login for each in self._open.values() if each.login.user is not None}
        if not logins:
            return
        try:
            changed = await door.changed(logins)
        except (ClientError, TransportError, RuntimeError) as failure:
            # RuntimeError: the client is being closed, and another one comes. The watch has to outlive that.
            log.debug("cannot read the users of the cluster: %s", failure)
            return
        for token in [token for token, each in self._open.items() if each.login in changed]:
            log.info("the session of %s ends: the user was changed", self._open[token].login.name)
            self.end(token)

    async def watch(self, door: Door) -> None:
        """End sessions until it is cancelled."""
        while True:
            await self.end_changed(door)
            for token in list(self._open):
                self.find(token)
            await asyncio.sleep(CHECK_EVERY)


@attrs.define
class _Line:
    """The attempts from one address, one after the other."""

    turn: asyncio.Lock = attrs.Factory(asyncio.Lock)
    waiting: int = 0


class Attempts:
    """Attempts to log in: one at a time of each address, so that who guesses delays nobody but neighbours."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._under_way = 0

    async def enter(self, door: Door, source: str, name: str, password: str) -> Login:
        """source: the address of who tries. Raises `LoginError`."""
        async with self._turn(_network(source)):
            try:
                return await door.enter(name, password)
            except WrongPasswordError:
                await asyncio.sleep(WRONG_SECONDS)
                raise

    @asynccontextmanager
    async def _turn(self, network: str) -> AsyncIterator[None]:
        line = self._lines.setdefault(network, _Line())
        if line.waiting >= MOST_OF_ONE or self._under_way >= MOST_OF_ALL:
            self._forget(network, line)
            raise LoginError("Too many logins at once: try again in a minute.")
        line.waiting += 1
        self._under_way += 1
        try:
            async with line.turn:
                yield
        finally:
            line.waiting -= 1
            self._under_way -= 1
            self._forget(network, line)

    def _forget(self, network: str, line: _Line) -> None:
        if not line.waiting:
            self._lines.pop(network, None)


def _network(source: str) -> str:
    """Of IPv6 the first 64 bits: who has one address there has all of them."""
    try:
        address = ip_address(source.partition("%")[0])
    except ValueError:
        return source
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return address.packed[:8].hex()
    return str(address)
