"""Messages to bytes and back, for the wire (MessagePack) and for the metadata store (JSON)."""

from ._codec import (
    REQUEST_TYPES,
    RESPONSE_TYPES,
    WireError,
    decode_record,
    decode_request,
    decode_response,
    encode,
    encode_record,
)

__all__ = [
    "encode",
    "decode_request",
    "decode_response",
    "encode_record",
    "decode_record",
    "REQUEST_TYPES",
    "RESPONSE_TYPES",
    "WireError",
]
