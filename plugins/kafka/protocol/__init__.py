"""Kafka's wire protocol: tables of fields, compiled to functions that decode and encode messages."""

from __future__ import annotations

from .codec import MAX_ELEMENTS, MAX_PRODUCED, decode, encode, encode_elements, message, message_of
from .errors import MalformedError, UnknownVersionError
from .structs import Encoded, Struct

__all__ = [
    "MAX_ELEMENTS",
    "MAX_PRODUCED",
    "Encoded",
    "MalformedError",
    "Struct",
    "UnknownVersionError",
    "decode",
    "encode",
    "encode_elements",
    "message",
    "message_of",
]
