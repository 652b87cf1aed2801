"""Logins of clients: SaslHandshake and SaslAuthenticate, and the bare tokens of older clients (KIP-43, KIP-152)."""

from __future__ import annotations

import logging

from insync.transport.repeats import limited

from ..client import Client
from ..core.sasl import LoginError
from ..protocol import Struct, message
from ..protocol.apis import Api, KafkaError
from .table import Offer

log = limited(logging.getLogger("insync.kafka"))

_TOKENS_BARE = 0

_Handshake = message("SaslHandshakeResponse")
_Authenticated = message("SaslAuthenticateResponse")


async def handshake(client: Client, request: Struct, version: int) -> Struct:
    """The mechanism that the client wants; tokens follow, in version 0 without any header."""
    login = client.login
    error = login.choose(request.mechanism, bare=version == _TOKENS_BARE)
    return _Handshake(error_code=error, mechanisms=list(login.mechanisms))


async def authenticate(client: Client, request: Struct, version: int) -> Struct:
    """One token in a request. A failure is told late, and the connection ends with it."""
    if not client.login.may_go_on:
        return _Authenticated(
            error_code=KafkaError.ILLEGAL_SASL_STATE,
            error_message="a SaslAuthenticate request that no SaslHandshake came before",
        )
    try:
        answer = await take(client, request.auth_bytes)
    except LoginError as error:
        return _Authenticated(error_code=KafkaError.SASL_AUTHENTICATION_FAILED, error_message=str(error))
    return _Authenticated(error_message=None, auth_bytes=answer)


async def take(client: Client, token: bytes) -> bytes:
    """The answer to a token.

    Raises:
      LoginError: It proves nothing; the connection ends when this is told.
    """
    try:
        return await client.login.take(client, token)
    except LoginError as error:
        log.warning("Kafka client at %s: %s", client.host, error)
        client.close(f"login: {error}")
        raise


OFFERS = (
    Offer(Api.SASL_HANDSHAKE, 0, 1, handshake),
    Offer(Api.SASL_AUTHENTICATE, 0, 2, authenticate),
)
