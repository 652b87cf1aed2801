"""The right to connect: the cluster's secret, certificates, and when neither is needed.

A peer that proves nothing is accepted only where nobody else can be: on loopback, and by transports that stay on
one machine. Everywhere else both sides prove that they know the cluster's secret, or show certificates, unless
`allow_insecure` is given.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import attrs

from .errors import InsecureAddressError, SecretError
from .urls import Endpoint

SECRET_VARIABLE = "INSYNC_SECRET"
SECRET_FILE_VARIABLE = "INSYNC_SECRET_FILE"
TLS_VARIABLES = ("INSYNC_TLS_CERTIFICATE", "INSYNC_TLS_KEY", "INSYNC_TLS_AUTHORITIES")
SHORTEST_SECRET = 16
"""Bytes. A secret that people can remember is one that machines can guess from a recorded handshake."""


MOST_SECRETS = 2
"""Of one kind that are valid at a time, while one takes the place of the other."""


def _usable(instance: Security, attribute: attrs.Attribute[bytes | None], value: bytes | None) -> None:
    if value is None:
        return
    lines = _lines(value)
    shortest = min(map(len, lines), default=0)
    if shortest < SHORTEST_SECRET:
        raise SecretError(
            f"the {attribute.name} has {shortest} bytes, fewer than {SHORTEST_SECRET}: "
            "make one by `openssl rand -hex 32`"
        )
    if len(lines) > MOST_SECRETS:
        raise SecretError(
            f"the {attribute.name} has {len(lines)} lines: give one secret, or two while one replaces the other"
        )


_TEXT = frozenset(b"\t\n\r" + bytes(range(32, 127)))


def _lines(value: bytes | None) -> tuple[bytes, ...]:
    """Lines of text, without white space around them; raw bytes are one secret, whatever they hold."""
    if value and not _TEXT.issuperset(value):
        return (value,)
    return tuple(line.strip() for line in (value or b"").splitlines() if line.strip())


class Proving(Protocol):
    """As much of a transport's capabilities as `Security` looks at."""

    @property
    def authenticated(self) -> bool: ...


class Reaching(Protocol):
    """As much of a transport as `Security` looks at."""

    @property
    def caps(self) -> Proving: ...
    def is_local(self, endpoint: Endpoint) -> bool: ...


@attrs.frozen(kw_only=True)
class Security:
    """The proofs that a process gives, and asks of its peers.

    secret: the same in all nodes and clients of a cluster, at least 16 bytes; never shown, sent or logged. Two
      lines are two secrets: the first is proved, and a peer may prove either.
    node_secret: the same in all nodes, and served stores, and known to no client; it may have two lines likewise. A
      peer that says that it is a node proves that it knows this one. Without it every peer that knows `secret` may
      call itself a node.
    tls: the files of `tls://`, see `TlsFiles`.
    allow_insecure: also without proof from other machines, for networks where nobody else is.
    """

    secret: bytes | None = attrs.field(default=None, repr=False, validator=_usable)
    tls: TlsFiles | None = None
    allow_insecure: bool = False
    node_secret: bytes | None = attrs.field(default=None, repr=False, validator=_usable)

    def __attrs_post_init__(self) -> None:
        if set(self.node_secrets) & set(self.secrets):
            raise SecretError(
                "the nodes' secret is the clients' secret: make another one for the nodes alone"
            )

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """Those of `secret`, the one to prove first; empty without one."""
        return _lines(self.secret)

    @property
    def node_secrets(self) -> tuple[bytes, ...]:
        """Those of `node_secret`, the one to prove first; empty without one."""
        return _lines(self.node_secret)

    @classmethod
    def load(
        cls,
        *,
        secret: str | None = None,
        secret_file: str | Path | None = None,
        tls: TlsFiles | None = None,
        allow_insecure: bool = False,
        node_secret: str | None = None,
        node_secret_file: str | Path | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> Security:
        """With this secret, a file's, or the environment's: INSYNC_SECRET_FILE names a file, INSYNC_SECRET is it.

        The files of `tls` likewise come from INSYNC_TLS_CERTIFICATE, INSYNC_TLS_KEY and INSYNC_TLS_AUTHORITIES.
        White space around a secret is no part of it.

        Raises:
          SecretError: The file cannot be read, a secret is too short, or there are more than two.
        """
        tls = tls or TlsFiles.of(environment)
        found = _found(secret, secret_file or environment.get(SECRET_FILE_VARIABLE))
        return cls(
            secret=_told(environment) if found is None else found,
            node_secret=_found(node_secret, node_secret_file),
            tls=tls,
            allow_insecure=allow_insecure,
        )

    def check_address(self, transport: Reaching, endpoint: Endpoint) -> None:
        """Refuse to talk to strangers.

        Raises:
          InsecureAddressError: Other machines can be at this address, and nobody would have to prove anything.
        """
        if self.allow_insecure or self.secret is not None or transport.caps.authenticated:
            return
        if not transport.is_local(endpoint):
            raise InsecureAddressError(
                f"{endpoint} is reachable from other machines, and peers would not have to prove their identity: "
                f"set a secret (secret_file, or {SECRET_FILE_VARIABLE} in the environment), use tls://, "
                "or set allow_insecure if nobody else can reach this network",
                peer=str(endpoint),
            )


@attrs.frozen
class TlsFiles:
    """Files in PEM: this process's certificate (with its chain) and key, and whose certificates it believes."""

    certificate: str
    key: str
    authorities: str

    @classmethod
    def given(
        cls, certificate: str | Path | None, key: str | Path | None, authorities: str | Path | None
    ) -> TlsFiles | None:
        """From three settings; None if none is given. SecretError if only some are."""
        files = {"tls_certificate": certificate, "tls_key": key, "tls_authorities": authorities}
        if not any(files.values()):
            return None
        missing = [name for name, path in files.items() if not path]
        if missing:
            raise SecretError(f"give {' and '.join(missing)} too: TLS needs {', '.join(files)}")
        return cls(*map(str, files.values()))

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> TlsFiles | None:
        """As the environment names them; None if it names none. SecretError if it names only some."""
        given = [environment.get(name, "") for name in TLS_VARIABLES]
        if not any(given):
            return None
        if not all(given):
            missing = [name for name, value in zip(TLS_VARIABLES, given, strict=True) if not value]
            raise SecretError(f"set {' and '.join(missing)} too: TLS needs {', '.join(TLS_VARIABLES)}")
        return cls(*given)


def proof(secret: bytes, role: bytes, dialer_hello: bytes, acceptor_hello: bytes) -> bytes:
    """That `role` (b"dialer", b"acceptor") knows the secret, for this handshake alone: both HELLOs have nonces."""
    message = b"\0".join((b"insync handshake 1", role, dialer_hello + acceptor_hello))
    return hmac.digest(secret, message, hashlib.sha256)


def is_proof(given: bytes, expected: bytes) -> bool:
    """Compare, taking the same time whatever differs."""
    return hmac.compare_digest(given, expected)


def _found(given: str | None, file: str | Path | None) -> bytes | None:
    """A secret that was given, or a file's."""
    if given is not None:
        return given.encode().strip()
    return _read(Path(file)) if file else None


def _told(environment: Mapping[str, str]) -> bytes | None:
    """The environment's own."""
    told = environment.get(SECRET_VARIABLE)
    return told.encode().strip() if told else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes().strip()
    except OSError as error:
        raise SecretError(f"the secret file {path} cannot be read: {error.strerror or error}") from error
