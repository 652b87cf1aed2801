"""Messages by name: their classes, decoders and encoders, each compiled when it is first used."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import attrs

from .. import schema
from . import decoding, encoding
from .errors import MalformedError, UnknownVersionError
from .structs import Struct, make
from .tables import Table, read

MAX_ELEMENTS = 20_000
"""Array elements of one message: a fetch can name 10,000 partitions, and forget almost as many. Each takes a node
up to 7 us, and up to 600 bytes of memory. Eight ids of nodes, of which answers say nothing, count as one element.
"""
MAX_PRODUCED = 12_000
"""Those of a Produce request, whose batches are taken in one turn of the loop."""


@attrs.define(eq=False)
class _Message:
    table: Table
    made: type[Struct]
    classes: dict[str, type[Struct]]
    decoders: dict[int, decoding.Decoder] = attrs.Factory(dict)
    encoders: dict[int, encoding.Encoder] = attrs.Factory(dict)

    def checked(self, version: int) -> int:
        if version not in self.table.versions:
            known = self.table.versions
            raise UnknownVersionError(
                f"{self.table.name} has versions {known.start} to {known.stop - 1}, and not {version}"
            )
        return version


@cache
def _tables() -> dict[str, Table]:
    return {table.name: table for text in schema.TEXTS for table in read(text)}


@cache
def _by_key() -> dict[tuple[int, bool], str]:
    return {(table.key, table.is_request): table.name for table in _tables().values()}


@cache
def _message(name: str) -> _Message:
    table = _tables().get(name)
    if table is None:
        raise UnknownVersionError(f"no table knows a message {name!r}")
    made, classes = make(table)
    return _Message(table, made, classes)


def message(name: str) -> Any:
    """The class of a message, such as `FetchResponse`; its parts are attributes: `FetchResponse.PartitionData`.

    Raises:
      UnknownVersionError: No table knows it.
    """
    return _message(name).made


@cache
def message_of(key: int, *, is_request: bool) -> type[Struct] | None:
    """The class of an API's request or answer; None if no table knows the API."""
    name = _by_key().get((key, is_request))
    return None if name is None else message(name)


def decode(
    kind: type[Struct], version: int, buffer: Any, position: int = 0, *, elements: int = MAX_ELEMENTS
) -> tuple[Struct, int]:
    """The message that begins at `position` of `buffer` (any bytes-like of whole bytes), and where it ends.

    elements: How many array elements it may have in all.

    Raises:
      MalformedError: It is none.
      UnknownVersionError: There is no such version of it.
    """
    known = _message(kind.TABLE.name)
    decoder = known.decoders.get(version)
    if decoder is None:
        decoder = known.decoders[version] = decoding.compiled(
            known.table, known.checked(version), known.classes
        )
    try:
        return decoder(buffer, position, elements)
    except MalformedError as error:
        raise MalformedError(f"{known.table.name} v{version}: {error}") from None
    except (struct.error, IndexError):
        raise MalformedError(f"{known.table.name} v{version}: it ends too early") from None
    except UnicodeDecodeError as error:
        raise MalformedError(f"{known.table.name} v{version}: text is not UTF-8: {error.reason}") from None


def encode(told: Struct, version: int) -> list[bytes]:
    """A message as bytes, in parts: after each but the last follow records for which only a size was given.

    Raises:
      UnknownVersionError: There is no such version of it.
    """
    known = _message(told.TABLE.name)
    encoder = known.encoders.get(version)
    if encoder is None:
        encoder = known.encoders[version] = encoding.compiled(
            known.table, known.checked(version), known.classes
        )
    return encoder(told)


@cache
def _elements(name: str, field: str, version: int) -> Callable[[Iterable[Struct]], bytes]:
    known = _message(name)
    return encoding.compiled_elements(known.table, field, known.checked(version), known.classes)


def encode_elements(kind: type[Struct], field: str, elements: Sequence[Struct], version: int) -> bytes:
    """Elements of an array that messages of this kind have, for `Encoded`.

    Raises:
      UnknownVersionError: There is no such version of it.
    """
    return _elements(kind.TABLE.name, field, version)(elements)
