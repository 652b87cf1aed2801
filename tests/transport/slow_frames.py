"""Frames as Python would take and make them: `insync.transport._framing` is held against it."""

from __future__ import annotations

import struct
from typing import Any

from insync.transport._payload import BytesPayload
from insync.transport.frames import Frame, FrameTooLargeError, Limits, ProtocolError, crc32c, decode_header

HEADER = struct.Struct("<HBBHBBQIIQIIII")
_UNSEALED = struct.Struct("<HBBHBBQIIQIII")
NAMES = (
    "type",
    "kind",
    "kind_version",
    "flags",
    "corr",
    "body_length",
    "aux",
    "payload_length",
    "body_crc",
    "payload_crc",
    "max_response",
)


def encode_header(frame_type: int, corr: int, **named: Any) -> bytes:
    """As `frames.encode_header`; struct.error for a number that does not fit its place."""
    body = named.get("body", b"")
    if named.get("max_response", 0) < 0:
        raise struct.error("less than 0")
    numbers = [named.get(name, 0) for name in ("kind", "kind_version", "flags")]
    head = _UNSEALED.pack(
        0x5249,
        6,
        frame_type,
        *numbers,
        corr,
        len(body),
        named.get("aux", 0),
        named.get("payload_length", 0),
        crc32c(body) if body else 0,
        named.get("payload_crc", 0),
        (named.get("max_response", 0) + 1023) >> 10,
    )
    return head + struct.pack("<I", crc32c(head)) + body


def fields(raw: bytes) -> dict[str, int]:
    """All that a header says."""
    _, words, *numbers, most, _ = HEADER.unpack(raw)
    return {**dict(zip(NAMES, [*numbers, most << 10], strict=True)), "size": words * 8}


def take_frames(
    buffer: Any, start: int, end: int, max_body: int, max_payload: int, large: int, most: int, kind: Any
) -> tuple[list[Frame], int]:
    """As `_framing.take_frames`."""
    assert kind is BytesPayload
    data, frames = bytes(buffer), []
    while len(frames) < most and end - start >= 48:
        try:
            header = decode_header(
                data[start : start + 48], Limits(max_body_bytes=max_body, max_payload_bytes=max_payload)
            )
        except (FrameTooLargeError, ProtocolError):
            break
        body_at = start + header.size
        payload_at = body_at + header.body_length
        stop = payload_at + header.payload_length
        body, payload = data[body_at:payload_at], data[payload_at:stop]
        is_right = not body or crc32c(body) == header.body_crc
        is_right = is_right and (not header.flags & 1 or crc32c(payload) == header.payload_crc)
        if stop > end or header.payload_length >= large or not is_right:
            break
        frames.append(Frame(header, body, BytesPayload(payload)))
        start = stop
    return frames, start
