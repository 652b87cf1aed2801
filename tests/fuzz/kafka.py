"""A listener for Kafka's clients under the fuzzer: requests of every API at a live node.

They make sense but for some of their values, and come whole, cut and damaged.
"""

from __future__ import annotations

import atexit
import logging
import resource
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

from insync.plugins.kafka import listener
from insync.plugins.kafka.core import connection, sessions
from insync.plugins.kafka.handlers import (
    OFFERED,
    cluster,
    configs,
    fetch,
    groups,
    offsets,
    produce,
    topics,
    transactions,
)
from insync.plugins.kafka.protocol import MalformedError, Struct, codec, decode, encode, message_of
from insync.plugins.kafka.protocol.apis import Api
from insync.plugins.kafka.protocol.tables import INTEGERS, Field
from insync.plugins.kafka.protocol.tables import Struct as Layout
from insync.storage.batch import build_batch

from ._hosted_node import TOPIC, HostedNode
from ._python import PythonTarget

APIS = sorted(OFFERED.ranges)
_CREATING = (Api.CREATE_TOPICS, Api.DELETE_TOPICS, Api.CREATE_PARTITIONS)
"""They do what they say: topics without end would be the fuzzer's fault."""
_PATIENCE, _SERVED = 0.05, 10.0
"""Seconds for an answer that may not come, and for one that must."""
_ROOM = 512 << 20
"""Bytes by which the process may grow, whatever comes."""
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 16, "uint32": 32}
_TEXTS = (TOPIC, "g", "", "no", "\0", "../..", "x" * 300, "\N{SNOWMAN}", "__consumer_offsets")
_NUMBERS = (0, 1, 2, -1, -2, 5, 1000, 1 << 20, -(1 << 63), (1 << 63) - 1, (1 << 31) - 1, -(1 << 31))


def run_decoder(raw: bytes) -> None:
    """Bytes are refused by name, or are a message."""
    if len(raw) < 2:
        return
    api = APIS[raw[0] % len(APIS)]
    kind = message_of(api, is_request=True)
    assert kind is not None
    least, most = OFFERED.ranges[api]
    version = least + raw[1] % (most - least + 1)
    try:
        told, end = decode(kind, version, raw, 2)
    except MalformedError as error:
        assert kind.TABLE.name in str(error)
        return
    assert type(told) is kind
    assert end <= len(raw)


class _Troubles(logging.Handler):
    """What the node says that it has failed over."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


class _Live:
    """A node of this process, one client that always is served, and what the process took when it began."""

    def __init__(self) -> None:
        self.node = HostedNode("kafka://127.0.0.1:0").__enter__()
        host, _, port = self.node.endpoints[-1].removeprefix("kafka://").rpartition(":")
        self.address = host, int(port)
        self.troubles = _Troubles()
        logging.getLogger("insync").addHandler(self.troubles)
        self.other = self.connected()
        self.before = _resident()

    def connected(self) -> socket.socket:
        made = socket.create_connection(self.address, 10)
        made.setblocking(False)
        return made

    def end(self) -> None:
        logging.getLogger("insync").removeHandler(self.troubles)
        self.other.close()
        self.node.__exit__()

    def exchange(self, client: socket.socket, data: bytes, seconds: float) -> bytes | None:
        """The bytes of the first answer; empty if the node hangs up, None if nothing comes so soon."""
        view, found, over = memoryview(data), bytearray(), False

        def came() -> bool:
            nonlocal view, over
            try:
                if view:
                    view = view[client.send(view) :]
                piece = client.recv(1 << 16)
                over = not piece
                found.extend(piece)
            except BlockingIOError:
                pass
            except OSError:
                over = True
            return over or (len(found) >= 4 and len(found) >= 4 + struct.unpack_from(">i", found)[0])

        end = time.monotonic() + seconds
        while not came() and time.monotonic() < end:
            self.node.turn(came, min(0.01, seconds))
        return bytes(found) if found or over else None


_live: list[_Live] = []


def live() -> _Live:
    """The one node of this process, started when it is first needed."""
    if not _live:
        _live.append(_Live())
    return _live[0]


@atexit.register
def let_go() -> None:
    """Stop it; the next input gets another."""
    while _live:
        _live.pop().end()


def run_node(raw: bytes) -> None:
    """A node answers or hangs up, fails over nothing, stays small, and serves the next who asks."""
    frames = list(_frames(raw))
    if not frames:
        return
    here = live()
    # The fuzzer silences what is logged; what the node has failed over is a finding.
    logging.disable(logging.WARNING)
    try:
        _attempt(here, frames)
    finally:
        logging.disable()


def _attempt(here: _Live, frames: list[bytes]) -> None:
    with here.connected() as client:
        for frame in frames:
            answer = here.exchange(client, frame, _PATIENCE)
            if answer == b"":
                break
            if answer is not None:
                assert len(answer) >= 8, answer
    asked = message_of(Api.METADATA, is_request=True)
    assert asked is not None
    (body,) = encode(asked(topics=[asked.MetadataRequestTopic(name=TOPIC)]), 5)
    answer = here.exchange(here.other, _framed(Api.METADATA, 5, body), _SERVED)
    assert answer, "another client is not served"
    assert here.node.alive, here.node._over
    assert not here.troubles.found, here.troubles.found[0]
    grown = _resident() - here.before
    assert grown < _ROOM, f"the process has grown by {grown >> 20} MiB"


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _frames(raw: bytes) -> Iterator[bytes]:
    """Requests one behind the other: an API, a version, what is done to the bytes, and draws for the values."""
    draws = iter(raw)
    for first in draws:
        api = APIS[first % len(APIS)]
        least, most = OFFERED.ranges[api]
        version = least + next(draws, 0) % (most - least + 1)
        damage, where, what = next(draws, 0), next(draws, 0), next(draws, 0)
        kind = message_of(api, is_request=True)
        if api in _CREATING or kind is None:
            continue
        (body,) = encode(_shaped(kind, kind, kind.TABLE.struct, version, draws), version)
        frame = bytearray(_framed(api, version, body))
        if damage >= 200:
            frame[4 + where % (len(frame) - 4)] = what
        elif damage >= 180:
            del frame[4 + where % (len(frame) - 4) :]
            struct.pack_into(">i", frame, 0, len(frame) - 4)
        elif damage >= 170:
            struct.pack_into(">i", frame, 0, (where - 128) << (what % 24))
        yield bytes(frame)


def _framed(api: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", api, version, 1, 4) + b"fuzz" + b"\0" * OFFERED.is_flexible(api, version)
    return struct.pack(">i", len(head) + len(body)) + head + body


def _shaped(
    top: type[Struct], made: type[Struct], layout: Layout, version: int, draws: Iterator[int]
) -> Struct:
    """A message of a version, whose values make sense unless a draw says otherwise."""
    fields = {}
    for field in layout.fields:
        if version not in field.versions or (field.tag is not None and version not in top.TABLE.flexible):
            continue
        draw = next(draws, 0)
        if version in field.nullable and 150 <= draw < 170:
            fields[field.name] = None
        elif field.is_array:
            count = draw % 3 if draw >= 100 else 1
            fields[field.name] = [_value(top, field, version, draws) for _ in range(count)]
        else:
            fields[field.name] = _value(top, field, version, draws)
    return made(**fields)


def _value(top: type[Struct], field: Field, version: int, draws: Iterator[int]) -> Any:
    if field.struct is not None:
        return _shaped(top, getattr(top, field.struct.name), field.struct, version, draws)
    draw = next(draws, 0)
    if field.type in INTEGERS:
        bits = _BITS[field.type]
        value = _NUMBERS[draw % len(_NUMBERS)] if draw >= 128 else _usual(field.name, draw)
        low, high = (
            (0, (1 << bits) - 1) if field.type.startswith("u") else (-(1 << bits - 1), (1 << bits - 1) - 1)
        )
        return min(high, max(low, value))
    if field.type == "string":
        return _TEXTS[draw % len(_TEXTS)]
    if field.type == "uuid":
        return bytes([draw]) * 16
    if field.type == "records":
        return _batch(draw)
    if field.type == "bytes":
        return bytes(draw)
    return bool(draw & 1) if field.type == "bool" else float(draw)


def _usual(name: str, draw: int) -> int:
    """A number that a client might send: waits are short, so that answers come."""
    if name.endswith(("_ms", "timeout")):
        return draw % 20
    if name in ("replica_id", "acks"):
        return -1
    return draw if name.endswith("bytes") else draw % 4


def _batch(draw: int) -> bytes:
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    now = time.time_ns() // 1_000_000
    made = bytearray(
        build_batch([b"k"] * 3, [b"v" * 50] * 3, timestamps_ms=now, compression=codecs[draw % 5])
    )
    if draw >= 128:
        made[draw % len(made)] ^= draw
    return bytes(made)


def _bodies() -> Iterator[bytes]:
    for number, api in enumerate(APIS):
        kind = message_of(api, is_request=True)
        assert kind is not None
        least, most = OFFERED.ranges[api]
        for version in {least, most}:
            (body,) = encode(_shaped(kind, kind, kind.TABLE.struct, version, iter(())), version)
            yield bytes([number, version - least]) + body


def _scripts() -> Iterator[bytes]:
    """Each API by itself, and after a produce request."""
    produce_first = bytes([APIS.index(Api.PRODUCE), 6, 0, 0, 0])
    for number, _ in enumerate(APIS):
        for version in (0, 5):
            yield bytes([number, version, 0, 0, 0]) + bytes(40)
            yield bytes([number, version, 0, 0, 0]) + bytes((index * 37) % 256 for index in range(60))
    yield produce_first + bytes(60)


_MODULES = (
    listener,
    connection,
    sessions,
    codec,
    cluster,
    configs,
    fetch,
    groups,
    offsets,
    produce,
    topics,
    transactions,
)
TARGETS = (
    PythonTarget("kafka_decoder", run_decoder, (codec,), _bodies, compiled=" decoder>"),
    PythonTarget("kafka_node", run_node, _MODULES, _scripts),
)
