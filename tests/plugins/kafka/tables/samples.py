"""Random messages of any table, as strategies of hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from insync.plugins.kafka.protocol import Struct
from insync.plugins.kafka.protocol.tables import INTEGERS, Field
from insync.plugins.kafka.protocol.tables import Struct as Layout

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def messages(kind: type[Struct], version: int) -> st.SearchStrategy[Struct]:
    """Of one version: a field that it does not have keeps its default."""
    return _structs(kind, kind, kind.TABLE.struct, version)


def _structs(
    top: type[Struct], made: type[Struct], layout: Layout, version: int
) -> st.SearchStrategy[Struct]:
    flexible = version in top.TABLE.flexible
    fields = {
        each.name: _values(top, each, version)
        for each in layout.fields
        if version in each.versions and (each.tag is None or flexible)
    }
    return st.builds(made, **fields)


def _values(top: type[Struct], field: Field, version: int) -> st.SearchStrategy[Any]:
    one = _one(top, field, version)
    if field.is_array:
        one = st.lists(one, max_size=3)
    return st.none() | one if version in field.nullable else one


def _one(top: type[Struct], field: Field, version: int) -> st.SearchStrategy[Any]:
    if field.struct is not None:
        return _structs(top, getattr(top, field.struct.name), field.struct, version)
    if field.type in INTEGERS:
        half = 1 << (_BITS[field.type] - 1)
        return st.integers(-half, half - 1)
    if field.type == "uuid":
        return st.binary(min_size=16, max_size=16)
    if field.type in ("bytes", "records"):
        return st.binary(max_size=200)
    if field.type == "string":
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=150)
    return {"bool": st.booleans(), "float64": st.floats(allow_nan=False)}[field.type]


def inline(told: Any, buffer: bytes) -> Any:
    """A decoded message with its records as bytes, in place of where they stand in `buffer`."""
    if isinstance(told, list):
        return [inline(each, buffer) for each in told]
    if isinstance(told, Struct):
        for name in told.NAMES:
            value = getattr(told, name)
            if (found := inline(value, buffer)) is not value:
                setattr(told, name, found)
    elif isinstance(told, tuple):
        position, size = told
        return bytes(buffer[position : position + size])
    return told
