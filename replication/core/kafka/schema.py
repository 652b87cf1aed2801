"""Kafka's serialization of one message by its schema: plain and flexible versions, tagged fields (KIP-482)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import attrs
import msgspec

_LETTERS = {"int8": "b", "int16": "h", "int32": "i", "int64": "q"}
_NUMBERS = {name: struct.Struct(f">{letter}") for name, letter in _LETTERS.items()}
_REQUIRED = object()
_Writer = Callable[[bytearray, Any], None]
"""Appends the bytes of a value."""
MAX_VERSION = 32767


class RecordFormatError(ValueError):
    """Bytes that are no record of the kind that they claim to be."""


class Array(msgspec.Struct, frozen=True):
    """Elements of one type."""

    element: str | Schema


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a message, by the name of the attribute that holds it.

    `since`, `until`: the versions that have it, both inclusive. A field that a version lacks, and a tagged one that
    is absent, has `default`. `nullable`: None is allowed.
    """

    name: str
    type: str | Array | Schema
    since: int = 0
    until: int = MAX_VERSION
    nullable: bool = False
    tag: int | None = None
    default: Any = _REQUIRED


@attrs.frozen(kw_only=True)
class Schema:
    """A message or a structure in one: how instances of `cls` look in each of `versions` (both inclusive)."""

    cls: Callable[..., Any]
    fields: Sequence[Field]
    versions: tuple[int, int] = (0, 0)
    flexible: int = MAX_VERSION
    """The first flexible version."""
    writers: dict[int, _Writer] = attrs.field(factory=dict, init=False, eq=False, repr=False)
    """Of each version that was written."""


def encode(schema: Schema, value: object, version: int) -> bytes:
    """The bytes of `value` after its version number."""
    write = schema.writers.get(version)
    if write is None:
        write = schema.writers[version] = _struct_writer(schema, version, version >= schema.flexible)
    out = bytearray()
    write(out, value)
    return bytes(out)


def decode(schema: Schema, data: bytes, version: int, *, whole: bool = True) -> Any:
    """The message in `data`; what follows it is refused, unless `whole` is false.

    Raises:
      RecordFormatError: `data` is no such message.
    """
    reader = _Reader(data)
    value = _read_struct(reader, schema, version, version >= schema.flexible)
    if whole and reader.at != len(data):
        raise RecordFormatError(f"{len(data) - reader.at} bytes after the end of the record")
    return value


# Writing


def _struct_writer(schema: Schema, version: int, flexible: bool) -> _Writer:
    """The writer of a structure in one version, made once. Numbers side by side are packed together."""
    present = [field for field in schema.fields if field.since <= version <= field.until]
    tagged = [
        (field.tag, field, _writer(field.type, version, flexible))
        for field in present
        if field.tag is not None
    ]
    steps: list[tuple[Callable[[Any], Any], _Writer]] = []
    for are_numbers, run in groupby((field for field in present if field.tag is None), _is_number):
        if are_numbers:
            steps.append(_numbers_step(list(run)))
        else:
            steps += [(attrgetter(each.name), _writer(each.type, version, flexible)) for each in run]
    tagged.sort(key=lambda each: each[0])

    def write(out: bytearray, value: object) -> None:
        for content_of, step in steps:
            step(out, content_of(value))
        if flexible:
            _write_tagged(out, tagged, value)

    return write


def _is_number(field: Field) -> bool:
    return isinstance(field.type, str) and field.type in _NUMBERS


def _numbers_step(fields: Sequence[Field]) -> tuple[Callable[[Any], Any], _Writer]:
    pack = struct.Struct(">" + "".join([_LETTERS[str(each.type)] for each in fields])).pack
    content_of = attrgetter(*[each.name for each in fields])

    def write(out: bytearray, content: Any) -> None:
        out += pack(*content) if len(fields) > 1 else pack(content)

    return content_of, write


def _write_tagged(out: bytearray, tagged: Sequence[tuple[int, Field, _Writer]], value: object) -> None:
    parts: list[tuple[int, bytearray]] = []
    for tag, field, write in tagged:
        content = getattr(value, field.name)
        if content != field.default:
            part = bytearray(b"\x01" if isinstance(field.type, Schema) and field.nullable else b"")
            write(part, content)
            parts.append((tag, part))
    _write_uvarint(out, len(parts))
    for tag, part in parts:
        _write_uvarint(out, tag)
        _write_uvarint(out, len(part))
        out += part


def _writer(type_: str | Array | Schema, version: int, flexible: bool) -> _Writer:
    if isinstance(type_, Schema):
        return _struct_writer(type_, version, flexible)
    if isinstance(type_, Array):
        return _array_writer(type_.element, version, flexible)
    if type_ in _NUMBERS:
        return _numbers_step([Field(name="", type=type_)])[1]
    if type_ == "uuid":
        return _write_uuid
    prefix = "int16" if type_ == "string" else "int32"

    def write(out: bytearray, value: str | bytes | None) -> None:
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        _write_length(out, None if data is None else len(data), prefix, flexible)
        out += data or b""

    return write


def _array_writer(element: str | Array | Schema, version: int, flexible: bool) -> _Writer:
    letter = _LETTERS.get(element) if isinstance(element, str) else None
    write_one = _writer(element, version, flexible)

    def write(out: bytearray, value: Sequence[Any] | None) -> None:
        _write_length(out, None if value is None else len(value), "int32", flexible)
        if letter is not None and value:
            out += struct.pack(f">{len(value)}{letter}", *value)
            return
        for each in value or ():
            write_one(out, each)

    return write


def _write_uuid(out: bytearray, value: str) -> None:
    out += bytes.fromhex(value)


def _write_length(out: bytearray, length: int | None, prefix: str, flexible: bool) -> None:
    """None, for null, is -1 in plain versions; flexible ones add one to every length."""
    if flexible:
        if length is not None and length < 0x7F:  # as almost all are
            out.append(length + 1)
        else:
            _write_uvarint(out, 0 if length is None else length + 1)
    else:
        out += _NUMBERS[prefix].pack(-1 if length is None else length)


def _write_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


# Reading


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise RecordFormatError(
                f"the record ends at byte {len(self.data)}, in a field that ends at {end}"
            )
        part = self.data[self.at : end]
        self.at = end
        return part

    def number(self, type_: str) -> int:
        form = _NUMBERS[type_]
        return form.unpack(self.take(form.size))[0]

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
        raise RecordFormatError("a variable-length number of more than five bytes")

    def length(self, prefix: str, flexible: bool) -> int:
        """Negative for null."""
        return self.uvarint() - 1 if flexible else self.number(prefix)


def _read_struct(reader: _Reader, schema: Schema, version: int, flexible: bool) -> Any:
    found: dict[str, Any] = {}
    tags: dict[int, Field] = {}
    for field in schema.fields:
        present = field.since <= version <= field.until
        if not present or field.tag is not None:
            found[field.name] = field.default
            if present and field.tag is not None:
                tags[field.tag] = field
            continue
        found[field.name] = _read(reader, field.type, field.nullable, version, flexible)
    if flexible:
        _read_tags(reader, tags, found, version)
    return schema.cls(**found)


def _read_tags(reader: _Reader, tags: dict[int, Field], found: dict[str, Any], version: int) -> None:
    """Tags that this software does not know are skipped: a newer writer may add some (KIP-482)."""
    for _ in range(reader.uvarint()):
        tag = reader.uvarint()
        part = _Reader(reader.take(reader.uvarint()))
        field = tags.get(tag)
        if field is None:
            continue
        if isinstance(field.type, Schema) and field.nullable and part.number("int8") < 0:
            found[field.name] = None
        else:
            found[field.name] = _read(part, field.type, field.nullable, version, True)
        if part.at != len(part.data):
            raise RecordFormatError(f"tag {tag} has {len(part.data) - part.at} bytes after its field")


def _read(reader: _Reader, type_: str | Array | Schema, nullable: bool, version: int, flexible: bool) -> Any:
    if isinstance(type_, Schema):
        return _read_struct(reader, type_, version, flexible)
    if isinstance(type_, Array):
        count = reader.length("int32", flexible)
        if count < 0:
            return _null(nullable)
        # Each element takes a byte at least, so a count beyond the rest is refused before anything is made.
        if count > len(reader.data) - reader.at:
            raise RecordFormatError(f"{count} elements in {len(reader.data) - reader.at} bytes")
        return tuple([_read(reader, type_.element, False, version, flexible) for _ in range(count)])
    if type_ in _NUMBERS:
        return reader.number(type_)
    if type_ == "uuid":
        return reader.take(16).hex()
    length = reader.length("int16" if type_ == "string" else "int32", flexible)
    if length < 0:
        return _null(nullable)
    data = reader.take(length)
    if type_ == "bytes":
        return data
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise RecordFormatError(f"a string that is not UTF-8: {error}") from error


def _null(nullable: bool) -> None:
    if not nullable:
        raise RecordFormatError("null in a field that may not be null")
