"""SASL without sockets: what clients say to prove who they are, and what they are answered (RFC 4616, RFC 5802)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable

import attrs

from insync.replication.core import scram
from insync.replication.core.scram import ScramCredential

PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *scram.HASHES)
LONGEST_NAME = 1024
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,256}")
_FIRST = re.compile(r"([ny]|p=[^,]*),(a=[^,]*)?,(n=([^,]*),r=([^,]*)(?:,.*)?)", re.DOTALL)
_FINAL = re.compile(r"(c=([^,]*),r=([^,]*)(?:,.*)?),p=([^,]*)", re.DOTALL)


class LoginError(Exception):
    """The client has not proved who it is. The text is told to it, and says nothing of who exists."""


def wrong(mechanism: str) -> LoginError:
    """The one answer to a name that does not exist and to a password that is wrong."""
    return LoginError(
        f"authentication failed: the name or the password is wrong (SASL mechanism {mechanism})"
    )


def plain(token: bytes) -> tuple[str, str]:
    """The name and the password of a PLAIN token.

    Raises:
      LoginError: It is none, or asks to act for somebody else.
    """
    parts = _text(token).split("\0")
    if len(parts) != 3:
        raise LoginError("a PLAIN token has three parts: who to act for, name, password")
    acts_for, name, password = parts
    if not name or not password or len(name) > LONGEST_NAME:
        raise LoginError("a PLAIN token without a name or a password")
    if acts_for not in ("", name):
        raise LoginError("acting for another user is not supported: leave the authorization id empty")
    return name, password


@attrs.define
class ScramLogin:
    """One exchange, from the node's side: `first`, then `challenge`, then `final`."""

    mechanism: str
    name: str = ""
    is_over: bool = False
    _first_bare: str = ""
    _gs2: str = ""
    _client_nonce: str = ""
    _nonce: str = ""
    """The client's and ours."""
    _challenge: str = ""
    _kept: ScramCredential | None = None

    def first(self, token: bytes) -> str:
        """Read the client's first message; gives the name that it wants to log in by.

        Raises:
          LoginError: It is none.
        """
        found = _FIRST.fullmatch(_text(token))
        if found is None:
            raise LoginError("the first SCRAM message is malformed")
        binding, acts_for, bare, escaped, nonce = found.groups()
        if binding.startswith("p="):
            raise LoginError("SCRAM with channel binding is not offered")
        name = _unescaped(escaped)
        if acts_for is not None and _unescaped(acts_for[2:]) != name:
            raise LoginError("acting for another user is not supported: leave the authorization id empty")
        if not _NONCE.fullmatch(nonce):
            raise LoginError("the nonce of the first SCRAM message is malformed")
        self.name, self._first_bare, self._client_nonce = name, bare, nonce
        self._gs2 = f"{binding},{acts_for or ''},"
        return name

    def challenge(self, kept: ScramCredential, draw: Callable[[], str]) -> bytes:
        """The node's first message. draw: a nonce that nobody can guess."""
        self._kept = kept
        self._nonce = self._client_nonce + draw()
        salt = base64.b64encode(kept.salt).decode()
        self._challenge = f"r={self._nonce},s={salt},i={kept.iterations}"
        return self._challenge.encode()

    def final(self, token: bytes) -> bytes:
        """Check the client's proof; gives the node's own.

        Raises:
          LoginError: The message is malformed, or the proof is wrong.
        """
        assert self._kept is not None, "the challenge comes first"
        found = _FINAL.fullmatch(_text(token))
        if found is None:
            raise LoginError("the final SCRAM message is malformed")
        without_proof, binding, nonce, proof = found.groups()
        # librdkafka before 2.6.1, and so the kcat of distributions, puts its own nonce before it once more. The
        # proof covers our nonce in both messages: one of another exchange does not fit in either case.
        nonces = (self._nonce, self._client_nonce + self._nonce)
        if _decoded(binding) != self._gs2.encode() or nonce not in nonces:
            raise LoginError("the final SCRAM message belongs to another exchange")
        exchange = f"{self._first_bare},{self._challenge},{without_proof}".encode()
        if not scram.is_proof(self.mechanism, self._kept, _decoded(proof), exchange):
            raise wrong(self.mechanism)
        self.is_over = True
        signature = scram.signature(self.mechanism, self._kept, exchange)
        return b"v=" + base64.b64encode(signature)


def _text(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError as error:
        raise LoginError("a SASL token that is not UTF-8") from error


def _unescaped(escaped: str) -> str:
    """A name: `=2C` is a comma, `=3D` an equals sign, and nothing else is escaped (RFC 5802, 5.1)."""
    if not escaped or len(escaped) > LONGEST_NAME or re.search("=(?!2C|3D)", escaped):
        raise LoginError("the name in the first SCRAM message is malformed")
    return escaped.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise LoginError("the final SCRAM message is malformed") from error
