"""The columns of the source: those of Spark's Kafka source, by the same names and types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .errors import SchemaError

HEADERS = "headers"

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(_HEADER),
}
_ARROW_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
ARROW_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    HEADERS: pa.list_(pa.field("element", _ARROW_HEADER)),
}
"""The types that Spark wants to be given, to the letter."""


_LAST_MS = (2**63 - 1) // 1000


def micros(times_ms: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Timestamps as Spark counts them, in 64 bits. Those beyond become the last (or the first) of them: a record
    may name any number of milliseconds, and must not look as if it were of another year.
    """
    return np.clip(times_ms, -_LAST_MS, _LAST_MS) * 1000


def source_schema(columns: Sequence[str] | None, include_headers: bool) -> StructType:
    """The schema of a source: all columns, or those named, in their order.

    Raises SchemaError for a column that there is not.
    """
    if columns is None:
        columns = [name for name in _TYPES if name != HEADERS or include_headers]
    by_lower = {name.lower(): name for name in _TYPES}
    fields = []
    if not columns:
        raise SchemaError(f"columns is empty; a topic has {', '.join(_TYPES)}")
    for each in columns:
        name = by_lower.get(each.lower())
        if name is None:
            raise SchemaError(f"there is no column {each!r}; a topic has {', '.join(_TYPES)}")
        fields.append(StructField(name, _TYPES[name]))
    return StructType(fields)


def check_schema(schema: StructType) -> list[str]:
    """The columns that a user's `.schema(...)` asks for. Raises SchemaError if they are no columns of a topic."""
    names: list[str] = []
    for field in schema.fields:
        expected = _TYPES.get(field.name)
        if expected is None:
            raise SchemaError(f"there is no column {field.name!r}; a topic has {', '.join(_TYPES)}")
        if not _same(field.dataType, expected):
            raise SchemaError(
                f"column {field.name!r} is {expected.simpleString()}, not {field.dataType.simpleString()}; "
                "read it as it is and cast it"
            )
        names.append(field.name)
    if not names:
        raise SchemaError("the schema has no column; name those that are wanted")
    if len(set(names)) < len(names):
        raise SchemaError(f"a column stands twice in the schema: {', '.join(names)}")
    return names


def _same(given: DataType, expected: DataType) -> bool:
    """Whether they are equal but for what may be null."""
    return given.simpleString() == expected.simpleString()
