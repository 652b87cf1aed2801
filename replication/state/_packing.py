"""Values as bytes: MessagePack, the same for equal values wherever it is made."""

from __future__ import annotations

from typing import Any

import msgspec

from .errors import StateError

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


class PackingError(StateError, TypeError, ValueError):
    """A value cannot travel: None, bool, int, float, str, bytes, and lists, tuples and dicts of them can."""


def pack(value: Any) -> bytes:
    """The bytes of a value.

    Raises:
      PackingError: It holds something that has no such form, or an integer of more than 64 bits.
    """
    try:
        return _encoder.encode(value)
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise PackingError(
            f"{value!r:.100} cannot be sent: {error}; use None, bool, int, float, str, bytes, and lists and dicts"
        ) from error


def unpack(data: bytes | memoryview) -> Any:
    """The value; tuples come back as lists.

    Raises:
      PackingError: The bytes are no such value.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise PackingError(f"malformed value: {error}") from error


def own(value: Any) -> Any:
    """A value for a caller, who may change it: what is in a copy's state must stay as it was applied."""
    return unpack(pack(value)) if isinstance(value, list | dict) else value
