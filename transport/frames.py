"""Frames, the preface and HELLO as bytes. Little endian.

A frame is a 48-byte header, a body and a payload. The header's own CRC is checked before its lengths are believed.

    0  u16 magic 0x5249     12.. (see HEADER)           32 u32 crc32c(body)
    2  u8  header words (6) 16 u32 body length          36 u32 crc32c(payload) with flag 1, else 0
    3  u8  type             20 u32 REQUEST: remaining   40 u32 max_response >> 10 (REQUEST)
    4  u16 kind                ms (0: none); REPLY,     44 u32 crc32c(bytes 0..43)
    6  u8  kind version        ERROR: status
    7  u8  flags            24 u64 payload length
    8  u64 correlation: odd from the dialer, even from the acceptor, growing by 2, never reused

A header of more words than 6 is skipped beyond the 48th byte (its CRC covers the first 44 bytes all the same).
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag

import attrs

from . import _framing
from ._native import ffi, lib
from .errors import FrameTooLargeError, ProtocolError
from .parts import Buffer, Payload

MAGIC = 0x5249
HEADER_SIZE = 48

PREFACE_MAGIC = b"\x89ISR\r\n\x1a\n"
PREFACE = struct.Struct("<8sHHIQ")
MAX_HELLO = 16 << 10
LARGE_BODY = 64 << 10
"""Bytes. Larger bodies count, like payloads: from here on they are asked for before they get memory."""
NOT_HERE = b"\x89ISR\r\nno"
"""The answer of a port for other clients to a preface, before it closes: the dialer then knows its mistake."""
WIRE_VERSIONS = (1, 1)
"""Oldest and newest version of this format that this code speaks."""


class FrameType(IntEnum):
    """The type of a frame. A peer ignores unknown types from 128 on; other unknown types end the link."""

    REQUEST = 1
    REPLY = 2
    ERROR = 3
    CANCEL = 4
    PING = 6
    PONG = 7
    GOAWAY = 8
    CREDIT = 9


class Flag(IntFlag):
    PAYLOAD_CRC = 1


PAYLOAD_CRC = int(Flag.PAYLOAD_CRC)
"""As a plain number: an enumeration's operators cost a microsecond for each frame."""


FRAMEWORK_STATUS = 1 << 31


class Status(IntEnum):
    """The framework's own error codes; a handler's codes are below 2**31."""

    INTERNAL = FRAMEWORK_STATUS | 1
    """The handler raised an exception."""
    CANCELLED = FRAMEWORK_STATUS | 2
    """The requester has withdrawn the request; nobody waits for this."""
    RESPONSE_TOO_LARGE = FRAMEWORK_STATUS | 3
    NO_HANDLER = FRAMEWORK_STATUS | 4
    """This side of the connection serves no requests."""
    NOT_AUTHORISED = FRAMEWORK_STATUS | 5
    """This side does not let the peer do that."""
    UNSUPPORTED_VERSION = FRAMEWORK_STATUS | 16
    WRONG_CLUSTER = FRAMEWORK_STATUS | 17
    WRONG_NODE = FRAMEWORK_STATUS | 18
    STALE_INCARNATION = FRAMEWORK_STATUS | 19
    AUTHENTICATION_FAILED = FRAMEWORK_STATUS | 20
    BAD_HELLO = FRAMEWORK_STATUS | 21
    NOT_REGISTERED = FRAMEWORK_STATUS | 22
    """It says that it is a node, which the cluster does not know of, or not yet."""


@attrs.frozen
class Limits:
    """The limits of one side of a connection. Those in HELLO are settled at the smaller of both sides' values."""

    max_body_bytes: int = 1 << 20
    max_payload_bytes: int = 64 << 20
    max_in_flight: int = 1024
    """Requests that may be unanswered at a time, one way; more wait at the requester."""
    max_waiting: int = 16 << 10
    """Requests that may wait for their turn; more are refused with Overloaded."""
    window_bytes: int = 32 << 20
    """Credit: payloads of the peer's requests that may be on their way or with a handler, on one connection."""
    send_budget_bytes: int = 64 << 20
    """Replies, apart from file ranges, that wait to be sent; above it nothing more is read."""
    handshake_timeout: float = 5.0
    max_half_open: int = 64
    """Links that a listener keeps while they shake hands; the oldest makes room for the next."""
    keepalive: float = 3.0
    """Seconds of silence before a PING; after three times as long the peer is taken for dead."""

    def settle(self, peer: Limits) -> Limits:
        """The limits that hold with a peer that states `peer`."""
        return attrs.evolve(
            self,
            max_body_bytes=min(self.max_body_bytes, peer.max_body_bytes),
            max_payload_bytes=min(self.max_payload_bytes, peer.max_payload_bytes),
            max_in_flight=min(self.max_in_flight, peer.max_in_flight),
        )


Header = _framing.Header
"""A frame's header, decoded."""
Frame = _framing.Frame
"""A received frame. Its taker releases the payload."""
encode_header = _framing.encode_header
"""Header and body of a frame."""


def crc32c(data: Buffer) -> int:
    """CRC-32C of a contiguous buffer."""
    if type(data) is bytes:
        return lib.isr_crc32c(0, data, len(data))
    view = memoryview(data)
    return lib.isr_crc32c(0, ffi.from_buffer(view), view.nbytes)


def decode_header(raw: bytes, limits: Limits) -> Header:
    """Decode the first 48 bytes of a frame.

    Raises:
      ProtocolError: It is no header, or it is damaged.
      FrameTooLargeError: Its lengths are above the limits.
    """
    header = _framing.decode_header(raw)
    if isinstance(header, int):
        raise _no_header(raw, header)
    if header.body_length > limits.max_body_bytes or header.payload_length > limits.max_payload_bytes:
        raise _too_large(header.body_length, header.payload_length, limits)
    return header


def _no_header(raw: bytes, wrong: int) -> ProtocolError:
    if wrong == _framing.NO_FRAME:
        return ProtocolError(f"expected a frame, received {raw[:16]!r}")
    if wrong == _framing.DAMAGED:
        return ProtocolError("a frame's header is damaged: its CRC does not match")
    return ProtocolError(f"a frame's header is said to have {raw[2]} words")


def decode_frame(head: memoryview, payload: Payload, limits: Limits) -> Frame:
    """A frame of a link that carries messages, with all its checks.

    Raises:
      ProtocolError: Damaged, or the lengths do not match.
      FrameTooLargeError: Above the limits.
    """
    if len(head) < HEADER_SIZE:
        raise ProtocolError(f"a frame of {len(head)} bytes is shorter than a header")
    header = decode_header(bytes(head[:HEADER_SIZE]), limits)
    if header.size + header.body_length != len(head) or header.payload_length != payload.nbytes:
        raise ProtocolError("a frame's lengths do not match its header")
    frame = Frame(header, bytes(head[header.size :]), payload)
    check_frame(frame)
    return frame


def check_frame(frame: Frame) -> None:
    """Compare the CRCs of body and payload with the header's.

    Raises:
      ProtocolError: One does not match.
    """
    header, body = frame.header, frame.body
    is_body_right = not body or crc32c(body) == header.body_crc
    is_whole = header.flags & PAYLOAD_CRC == 0 or crc32c(frame.payload.view()) == header.payload_crc
    if not (is_body_right and is_whole):
        raise damaged(header, body)


def damaged(header: Header, body: bytes) -> ProtocolError:
    """The error for a frame of which the CRC of the body, or else that of the payload, does not match."""
    is_body = body and crc32c(body) != header.body_crc
    return ProtocolError(f"a frame's {'body' if is_body else 'payload'} is damaged: its CRC does not match")


def _too_large(body: int, payload: int, limits: Limits) -> FrameTooLargeError:
    return FrameTooLargeError(
        f"the peer announces a frame with a body of {body} and a payload of {payload} bytes; "
        f"the limits are {limits.max_body_bytes} and {limits.max_payload_bytes}"
    )


@attrs.frozen
class Hello:
    """A side's introduction of itself, and (the dialer) whom it wants."""

    cluster_id: str
    node_id: int
    incarnation: int
    lane: str
    expected_node: int | None = None
    limits: Limits = Limits()
    min_version: int = WIRE_VERSIONS[0]
    max_version: int = WIRE_VERSIONS[1]
    nonce: int = 0
    window: int | None = None
    """Bytes of request payloads that it takes before it returns credit; None: it knows no credit."""
    proves: bool = False
    """Whether it will prove that it knows the cluster's secret, and asks for the same."""
    proves_node: bool = False
    """The same of the nodes' own secret, between a node and who answers it."""


class _Tag(IntEnum):
    """Tags of HELLO: each u16, then u16 length, then the value. Unknown tags are skipped."""

    CLUSTER_ID = 1
    NODE_ID = 2
    INCARNATION = 3
    EXPECTED_NODE = 4
    LANE = 5
    LIMITS = 6
    PROOF = 7
    """Methods of proof, one byte each: HMAC-SHA256 by the cluster's secret is 1, by the nodes' own secret 2."""
    WINDOW = 8
    """u64, see `Hello.window`. Only who sends it gets CREDIT frames: their correlation number is the credit."""


_TOKEN, _NODE_TOKEN = b"\x01", b"\x02"
_TLV = struct.Struct("<HH")
_LIMITS = struct.Struct("<IQI")


def encode_hello(hello: Hello) -> bytes:
    """Preface and HELLO, the first bytes that a side sends."""
    limits = hello.limits
    values = {
        _Tag.CLUSTER_ID: hello.cluster_id.encode(),
        _Tag.NODE_ID: struct.pack("<q", hello.node_id),
        _Tag.INCARNATION: struct.pack("<Q", hello.incarnation),
        _Tag.LANE: hello.lane.encode(),
        _Tag.LIMITS: _LIMITS.pack(limits.max_body_bytes, limits.max_payload_bytes, limits.max_in_flight),
    }
    if hello.window is not None:
        values[_Tag.WINDOW] = struct.pack("<Q", hello.window)
    if hello.proves or hello.proves_node:
        values[_Tag.PROOF] = (_TOKEN if hello.proves else b"") + (_NODE_TOKEN if hello.proves_node else b"")
    if hello.expected_node is not None:
        values[_Tag.EXPECTED_NODE] = struct.pack("<q", hello.expected_node)
    body = b"".join(_TLV.pack(tag, len(value)) + value for tag, value in values.items())
    if len(body) > MAX_HELLO:
        raise ValueError(f"cluster id and lane name make a HELLO of {len(body)} bytes, above {MAX_HELLO}")
    return PREFACE.pack(PREFACE_MAGIC, hello.min_version, hello.max_version, len(body), hello.nonce) + body


def check_magic(first: bytes) -> None:
    """Judge the first bytes that a peer sends, at least as many as `PREFACE_MAGIC` has.

    Raises:
      ProtocolError: No peer of this protocol begins so.
    """
    if not first.startswith(PREFACE_MAGIC):
        # ApiVersions (18), by which Kafka's clients begin, behind the size of a small frame.
        is_kafka = first.startswith(b"\0\0") and first[4:6] == b"\0\x12"
        hint = (
            "; it looks like a Kafka client, which needs a kafka:// address of the node" if is_kafka else ""
        )
        if first.startswith(NOT_HERE):
            hint = (
                "; this is a node's port for other clients, such as those of Kafka (kafka://): give the address by "
                "which nodes and insync's own clients reach it, such as its tcp:// address"
            )
        raise ProtocolError(f"no peer of this protocol: it sent {first[:16]!r}{hint}")


def hello_length(preface: bytes) -> int:
    """The length of the HELLO that follows a 24-byte preface.

    Raises:
      ProtocolError: These are not the first bytes of a peer.
    """
    check_magic(preface)
    _, _, _, length, _ = PREFACE.unpack(preface)
    if length > MAX_HELLO:
        raise ProtocolError(f"a HELLO of {length} bytes is announced, above {MAX_HELLO}")
    return length


def decode_hello(raw: bytes) -> Hello:
    """The reverse of `encode_hello`.

    Raises:
      ProtocolError: It is malformed, or lacks what every HELLO has.
    """
    if len(raw) < PREFACE.size or hello_length(raw[: PREFACE.size]) != len(raw) - PREFACE.size:
        raise ProtocolError("a HELLO is shorter or longer than its preface says")
    _, oldest, newest, _, nonce = PREFACE.unpack_from(raw)
    tags = _decode_tags(raw[PREFACE.size :])
    try:
        expected = tags.get(_Tag.EXPECTED_NODE)
        window = tags.get(_Tag.WINDOW)
        body, payload, in_flight = _LIMITS.unpack(tags[_Tag.LIMITS])
        return Hello(
            cluster_id=tags[_Tag.CLUSTER_ID].decode(),
            node_id=_integer(tags[_Tag.NODE_ID], signed=True),
            incarnation=_integer(tags[_Tag.INCARNATION], signed=False),
            lane=tags[_Tag.LANE].decode(),
            expected_node=None if expected is None else _integer(expected, signed=True),
            limits=Limits(max_body_bytes=body, max_payload_bytes=payload, max_in_flight=in_flight),
            min_version=oldest,
            max_version=newest,
            nonce=nonce,
            window=None if window is None else _integer(window, signed=False),
            proves=_TOKEN in tags.get(_Tag.PROOF, b""),
            proves_node=_NODE_TOKEN in tags.get(_Tag.PROOF, b""),
        )
    except KeyError as error:
        raise ProtocolError(f"a HELLO lacks {error.args[0]!r}") from error
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"a HELLO is malformed: {error}") from error


def _integer(raw: bytes, *, signed: bool) -> int:
    (value,) = struct.unpack("<q" if signed else "<Q", raw)
    return int(value)


def _decode_tags(body: bytes) -> dict[int, bytes]:
    tags: dict[int, bytes] = {}
    position = 0
    while position < len(body):
        if position + _TLV.size > len(body):
            raise ProtocolError("a HELLO ends inside a tag")
        tag, length = _TLV.unpack_from(body, position)
        position += _TLV.size
        if position + length > len(body):
            raise ProtocolError(f"a HELLO ends inside the value of tag {tag}")
        tags[tag] = body[position : position + length]
        position += length
    return tags
