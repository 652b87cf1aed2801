"""How far a client has come in proving who it is."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import attrs
import trio

from insync.replication.node.service import ServiceError

from .core import sasl
from .core.sasl import LoginError, ScramLogin
from .protocol.apis import KafkaError

if TYPE_CHECKING:
    from .client import Client

SECONDS = 10.0
"""In which a client proves who it is."""
OF_AN_ADDRESS, OF_A_NAME = 16, 4
"""Attempts from one address that are under way at a time, and those of them for one name; the others wait."""
FAILURE_DELAY = 0.1
"""Seconds before a failure is told (Kafka's `connection.failed.authentication.delay.ms`)."""
_LONGEST_TOKEN = 16 << 10


class Attempts:
    """Few of one address at a time, and fewer for one name: a flood from there keeps out nobody else.

    Names are limited at each address alone. A limit over all addresses would let anybody lock a user out.
    """

    def __init__(self) -> None:
        self._places: WeakValueDictionary[tuple[str, ...], trio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def one(self, client: Client, name: str) -> AsyncIterator[None]:
        """Wait for a place, and keep it meanwhile."""
        address = client.host.rpartition(":")[0]
        # The name's first: attempts that wait for it take no place of other names.
        async with self._place(OF_A_NAME, address, name), self._place(OF_AN_ADDRESS, address):
            yield

    def _place(self, most: int, *key: str) -> trio.Semaphore:
        return self._places.setdefault(key, trio.Semaphore(most))


class Login:
    """How far a client has come. mechanisms: those that its listener offers; empty: it asks for none."""

    def __init__(self, mechanisms: tuple[str, ...], attempts: Attempts) -> None:
        self.mechanisms = mechanisms
        self._attempts = attempts
        self.is_over = not mechanisms
        self.expects_bare_token = False
        self._mechanism = ""
        self._scram: ScramLogin | None = None

    def choose(self, mechanism: str, *, bare: bool) -> int:
        """The client names a mechanism; gives what it is answered."""
        if self.is_over or self._scram is not None:
            return KafkaError.ILLEGAL_SASL_STATE
        if mechanism not in self.mechanisms:
            return KafkaError.UNSUPPORTED_SASL_MECHANISM
        self._mechanism, self.expects_bare_token = mechanism, bare
        return 0

    @property
    def may_go_on(self) -> bool:
        """Whether a token is due."""
        return bool(self._mechanism) and not self.is_over

    async def take(self, client: Client, token: bytes) -> bytes:
        """A token of the client's; gives the answer to it. After the last one `is_over`, and the client has a name.

        Raises:
          LoginError: It has not proved who it is. This is told late.
        """
        async with AsyncExitStack() as places:
            try:
                return await self._take(client, token, places)
            except LoginError:
                # Within its places: they bound how many passwords are tried in a second.
                await trio.sleep(FAILURE_DELAY)
                raise

    async def _take(self, client: Client, token: bytes, places: AsyncExitStack) -> bytes:
        if len(token) > _LONGEST_TOKEN:
            raise LoginError(f"a SASL token of {len(token)} bytes; at most {_LONGEST_TOKEN} are accepted")
        service = client.service
        if self._mechanism == sasl.PLAIN:
            name, password = sasl.plain(token)
            await places.enter_async_context(self._attempts.one(client, name))
            try:
                verified = await service.verify_user(name, password)
            except ServiceError as error:
                # A login that fails is final for clients; if the connection ends they come again.
                client.abort(str(error))
                raise LoginError(str(error)) from error
            if not verified:
                raise sasl.wrong(sasl.PLAIN)
            self._succeed(client, name)
            return b""
        if self._scram is None:
            self._scram = ScramLogin(self._mechanism)
            name = self._scram.first(token)
            kept = await service.credential(name, self._mechanism)
            return self._scram.challenge(kept, lambda: secrets.token_urlsafe(24))
        await places.enter_async_context(self._attempts.one(client, self._scram.name))
        answer = self._scram.final(token)
        self._succeed(client, self._scram.name)
        return answer

    def _succeed(self, client: Client, name: str) -> None:
        client.peer = attrs.evolve(client.peer, method="sasl", name=name)
        self.is_over, self.expects_bare_token, self._scram = True, False, None
