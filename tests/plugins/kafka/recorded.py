"""What clients say to a node and are answered, byte by byte, with nothing between them changed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import attrs

from insync.plugins.kafka.handlers import OFFERED
from insync.plugins.kafka.protocol import decode, message_of
from insync.plugins.kafka.protocol.apis import Api


@attrs.define
class Connection:
    """Both directions of one connection, from its beginning."""

    asked: bytearray = attrs.field(factory=bytearray)
    answered: bytearray = attrs.field(factory=bytearray)


@attrs.frozen
class Recorder:
    """address: where clients connect in place of the node. connections: theirs, in order."""

    address: str
    connections: list[Connection]

    def logins(self) -> list[Login]:
        """The logins that ended well."""
        found = [login_of(each) for each in list(self.connections)]
        return [each for each in found if each is not None]


@contextmanager
def recording(target: str) -> Iterator[Recorder]:
    """Connections to a node at HOST:PORT that pass through here; they are cut when the block is left."""
    host, _, port = target.rpartition(":")
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        recorder = Recorder(f"127.0.0.1:{server.getsockname()[1]}", [])

        def pass_on(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
            with suppress(OSError):
                while piece := source.recv(1 << 16):
                    kept += piece
                    sink.sendall(piece)
            for each in (source, sink):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    held.append(client)
                    node = socket.create_connection((host, int(port)))
                    held.append(node)
                    kept = Connection()
                    recorder.connections.append(kept)
                    for ends in ((client, node, kept.asked), (node, client, kept.answered)):
                        threading.Thread(target=pass_on, args=ends, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield recorder
        finally:
            # `close` alone does not wake a thread that accepts.
            server.shutdown(socket.SHUT_RDWR)
            for each in held:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()


@attrs.frozen
class Login:
    """An exchange: the mechanism, and each token with its answer."""

    mechanism: str
    tokens: tuple[tuple[bytes, bytes], ...]

    def is_by(self, name: str) -> bool:
        """Whether this user has logged in; its name needs no escapes."""
        first = self.tokens[0][0]
        return f"\0{name}\0".encode() in first or f"n={name},".encode() in first


def login_of(connection: Connection) -> Login | None:
    """The login of a connection by SaslHandshake 1 and SaslAuthenticate; None without one that ended well."""
    answers = {struct.unpack_from(">i", each)[0]: each for each in _frames(bytes(connection.answered))}
    mechanism, tokens = "", []
    for frame in _frames(bytes(connection.asked)):
        key, version, correlation = struct.unpack_from(">hhi", frame)
        if key not in (Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE):
            continue
        if correlation not in answers:
            return None
        asked, told = _request(frame), _answer(answers[correlation], Api(key), version)
        if told.error_code:
            return None
        if key == Api.SASL_HANDSHAKE:
            mechanism = asked.mechanism
        else:
            tokens.append((bytes(asked.auth_bytes), bytes(told.auth_bytes)))
    expected = 1 if mechanism == "PLAIN" else 2
    return Login(mechanism, tuple(tokens)) if len(tokens) == expected else None


def _frames(data: bytes) -> Iterator[bytes]:
    """The whole ones."""
    start = 0
    while len(data) >= start + 4 and len(data) >= (
        end := start + 4 + struct.unpack_from(">i", data, start)[0]
    ):
        yield data[start + 4 : end]
        start = end


def _request(frame: bytes) -> Any:
    key, version, _, named = struct.unpack_from(">hhih", frame)
    start = 10 + max(0, named) + OFFERED.is_flexible(Api(key), version)
    kind = message_of(Api(key), is_request=True)
    assert kind is not None
    return decode(kind, version, frame, start)[0]


def _answer(frame: bytes, api: Api, version: int) -> Any:
    kind = message_of(api, is_request=False)
    assert kind is not None
    return decode(kind, version, frame, 4 + OFFERED.is_flexible(api, version))[0]


def check(login: Login, name: str, password: str) -> None:
    """That an exchange is RFC 4616's or RFC 5802's for this name and password, computed here from its text alone.

    Raises:
      AssertionError: It is not.
    """
    if login.mechanism == "PLAIN":
        assert login.tokens in (
            ((f"\0{name}\0{password}".encode(), b""),),
            ((f"{name}\0{name}\0{password}".encode(), b""),),
        )
        return
    (first, challenge), (final, verdict) = login.tokens
    digest = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[login.mechanism]

    def mac(key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, digest).digest()

    head, bare = first[:3], first[3:]
    assert head == b"n,,"
    escaped = name.replace("=", "=3D").replace(",", "=2C").encode()
    who, _, drawn = bare.partition(b",r=")
    assert who == b"n=" + escaped
    drawn = drawn.partition(b",")[0]  # Kafka's own client adds extensions
    said = dict(part.split(b"=", 1) for part in challenge.split(b","))
    assert list(said) == [b"r", b"s", b"i"]
    assert said[b"r"].startswith(drawn) and len(said[b"r"]) >= len(drawn) + 20
    without_proof, _, proof = final.partition(b",p=")
    assert without_proof == b"c=biws,r=" + said[b"r"]
    exchange = b",".join((bare, challenge, without_proof))
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), base64.b64decode(said[b"s"]), int(said[b"i"]))
    client_key = mac(salted, b"Client Key")
    signature = mac(hashlib.new(digest, client_key).digest(), exchange)
    assert base64.b64decode(proof) == bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    assert verdict == b"v=" + base64.b64encode(mac(mac(salted, b"Server Key"), exchange))
