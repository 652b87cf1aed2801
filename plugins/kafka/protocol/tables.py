"""Reads the tables of `schema`: which fields a message has, in which versions, with which defaults.

A table is text, one field a line, nested by indentation:

    FetchResponse 1 response 4-18 flexible 12+      name, API key, direction, versions, flexible versions
      session_id int32 7+                           a field: name, type, versions
      responses []FetchableTopicResponse 0+         its fields stand below it
        current_leader LeaderIdAndEpoch 12+ tag 0   a tagged field (KIP-482); its versions are the tag's
        rack string 16+ null 16+ = null             versions in which it may be null, and a default
      struct Assignment                             a part that several fields share; before its first use
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

INTEGERS = {"int8": "b", "int16": "h", "int32": "i", "int64": "q"}
FIXED = {**INTEGERS, "bool": "?", "float64": "d"}
"""Types of a fixed size, by their letters in `struct`."""
_FIXED_SIZE = {"uuid": 16}
_PLAIN = {*FIXED, "string", "bytes", "records", "uuid"}
NODES = frozenset({"broker_ids", "replicas"})
"""Arrays of requests in which each element is a replica's node: reading and comparing them costs little."""
NO_VERSION = range(0)
_LAST = 32767
"""Versions are 16-bit integers; `7+` means all from 7 on."""


def versions(text: str) -> range:
    """`4-18`, `7+`, `3` or `none`."""
    if text == "none":
        return NO_VERSION
    first, dash, last = text.removesuffix("+").partition("-")
    if text.endswith("+"):
        return range(int(first), _LAST + 1)
    return range(int(first), int(last if dash else first) + 1)


@attrs.frozen(kw_only=True, slots=True)
class Field:
    """`type`: of the value, or of an array's elements. `struct`: the fields of a value that has some."""

    name: str
    type: str
    is_array: bool
    versions: range
    nullable: range = NO_VERSION
    tag: int | None = None
    default: str | None = None
    struct: Struct | None = None


@attrs.frozen(kw_only=True, slots=True)
class Struct:
    name: str
    fields: tuple[Field, ...]

    def at(self, version: int) -> list[Field]:
        """The fields of one version that stand in order, without tags."""
        return [each for each in self.fields if version in each.versions and each.tag is None]

    def tagged_at(self, version: int) -> list[Field]:
        """The tagged fields of one version, in the order of their tags."""
        found = [each for each in self.fields if version in each.versions and each.tag is not None]
        return sorted(found, key=lambda each: each.tag or 0)


@attrs.frozen(kw_only=True, slots=True)
class Table:
    """One message. `versions`: those that the table describes, which is not to say that all are served."""

    name: str
    key: int
    is_request: bool
    versions: range
    flexible: range
    struct: Struct


@attrs.define
class _Line:
    words: list[str]
    below: list[_Line] = attrs.Factory(list)


def read(text: str) -> Iterator[Table]:
    """The messages of one text, in order."""
    for line in _nested(text):
        name, key, direction, valid, _, flexible = line.words
        shared: dict[str, Struct] = {}
        for each in line.below:
            if each.words[0] == "struct":
                shared[each.words[1]] = _struct(each.words[1], each.below, shared)
        fields = [each for each in line.below if each.words[0] != "struct"]
        yield Table(
            name=name,
            key=int(key),
            is_request=direction == "request",
            versions=versions(valid),
            flexible=versions(flexible),
            struct=_struct(name, fields, shared),
        )


def _nested(text: str) -> list[_Line]:
    top: list[_Line] = []
    levels = [top]
    for row in text.splitlines():
        if row.strip():
            depth = (len(row) - len(row.lstrip())) // 2
            line = _Line(row.split())
            levels[depth + 1 :] = []
            levels[depth].append(line)
            levels.append(line.below)
    return top


def _struct(name: str, lines: list[_Line], shared: dict[str, Struct]) -> Struct:
    # One that is described where a field first uses it may be used again by its name.
    return Struct(name=name, fields=tuple([_field(line, shared) for line in lines]))


def _field(line: _Line, shared: dict[str, Struct]) -> Field:
    name, kind, when, *rest = line.words
    options = _options(rest)
    is_array, kind = kind.startswith("[]"), kind.removeprefix("[]")
    struct = None
    if kind not in _PLAIN:
        if line.below:
            shared[kind] = _struct(kind, line.below, shared)
        struct = shared[kind]
    return Field(
        name=name,
        type=kind,
        is_array=is_array,
        versions=versions(when),
        nullable=versions(options.get("null", "none")),
        tag=int(options["tag"]) if "tag" in options else None,
        default=options.get("="),
        struct=struct,
    )


def _options(words: list[str]) -> Mapping[str, str]:
    return dict(zip(words[::2], words[1::2], strict=True))
