"""Record batches of the log into record batches of Arrow; Python sees batches only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from ...storage.batch import BatchInfo, ColumnMemory, PackedColumn, PackedRecords, pack_in_parts
from ._columns import ARROW_TYPES, HEADERS, micros

ROWS = 10_000
"""Of an Arrow batch at most: what Spark takes best lies between 4,000 and 10,000 rows."""
BYTES = 8 << 20
"""Of an Arrow batch about; larger ones slow Spark down."""

_FIELDS = ("key", "value", HEADERS)
_LOG_APPEND_TIME = 1 << 3


@attrs.define
class Decoder:
    """Makes Arrow batches of the columns `names`, in that order, for one partition of one topic.

    The memory of a batch that nobody has any more is that of a later one.
    """

    topic: str
    partition: int
    names: Sequence[str]
    _memory: ColumnMemory = attrs.field(factory=ColumnMemory, init=False)
    _constants: dict[tuple[str, object], pa.Array] = attrs.field(factory=dict, init=False)

    @cached_property
    def _schema(self) -> pa.Schema:
        return pa.schema([(name, ARROW_TYPES[name]) for name in self.names])

    def decode(
        self, data: bytes, infos: Sequence[BatchInfo], start: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """The records with offsets in [start, end) of whole batches.

        Raises CorruptBatchError, UnsupportedCompressionError, InflatedTooLargeError.
        """
        fields = [name for name in _FIELDS if name in self.names]
        for group in _groups([info for info in infos if start < info.next_offset and info.base_offset < end]):
            for packed in pack_in_parts(
                data,
                group,
                start_offset=start,
                fields=fields,  # type: ignore[arg-type]
                memory=self._memory,
            ):
                yield from self._arrow(packed, group, end)
                del packed

    def _arrow(self, packed: PackedRecords, infos: Sequence[BatchInfo], end: int) -> Iterator[pa.RecordBatch]:
        offsets = np.frombuffer(packed.offsets, np.int64)
        count = int(np.searchsorted(offsets, end))
        if count == 0:
            return
        columns = [self._column(name, packed, offsets, infos) for name in self.names]
        whole = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        rows = max(1, min(ROWS, count * BYTES // max(1, whole.nbytes)))
        for at in range(0, count, rows):
            yield whole.slice(at, min(rows, count - at))

    def _column(
        self, name: str, packed: PackedRecords, offsets: np.ndarray[Any, Any], infos: Sequence[BatchInfo]
    ) -> pa.Array:
        kind = ARROW_TYPES[name]
        if name == "topic":
            return self._repeated(name, self.topic, packed.count)
        if name == "partition":
            return self._repeated(name, self.partition, packed.count)
        if name == "offset":
            return pa.array(offsets)
        if name == "timestamp":
            return pa.array(micros(np.frombuffer(packed.timestamps_ms, np.int64))).view(kind)
        if name == "timestampType":
            kinds = {bool(info.attributes & _LOG_APPEND_TIME) for info in infos}
            if len(kinds) == 1:
                return self._repeated(name, int(kinds.pop()), packed.count)
            return pa.array(_timestamp_types(offsets, infos))
        if name == HEADERS:
            return _headers(packed, kind)
        column = packed.key if name == "key" else packed.value
        assert column is not None
        return _bytes(column, packed.count, kind)

    def _repeated(self, name: str, value: object, count: int) -> pa.Array:
        """Made once for as many rows as any batch so far has had."""
        found = self._constants.get((name, value))
        if found is None or len(found) < count:
            found = pa.repeat(pa.scalar(value, ARROW_TYPES[name]), count)
            self._constants[name, value] = found
        return found.slice(0, count)


def _groups(infos: Sequence[BatchInfo]) -> Iterator[list[BatchInfo]]:
    """Neighbouring batches that make about one Arrow batch together."""
    group: list[BatchInfo] = []
    rows = size = 0
    for info in infos:
        if group and (rows + info.record_count > ROWS or size + info.size_bytes > BYTES // 2):
            yield group
            group, rows, size = [], 0, 0
        group.append(info)
        rows += info.record_count
        size += info.size_bytes
    if group:
        yield group


def _bytes(column: PackedColumn, count: int, kind: pa.DataType) -> pa.Array:
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, count, buffers, column.null_count)


def _timestamp_types(offsets: np.ndarray[Any, Any], infos: Sequence[BatchInfo]) -> np.ndarray[Any, Any]:
    """0: the producer's time, 1: the log's; it stands in the header of a record's batch."""
    kinds = np.array([bool(info.attributes & _LOG_APPEND_TIME) for info in infos], np.int32)
    bases = np.array([info.base_offset for info in infos], np.int64)
    return kinds[np.searchsorted(bases, offsets, side="right") - 1]


def _headers(packed: PackedRecords, kind: pa.DataType) -> pa.Array:
    """Null for a record that has none, as Spark's Kafka source has it."""
    headers = packed.headers
    assert headers is not None
    names = _bytes(headers.keys, headers.count, pa.string())
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        # Names are UTF-8 by Kafka's rule, but nobody checks a producer.
        names = pa.array(
            [raw.decode(errors="replace") for raw in names.cast(pa.binary()).to_pylist()], pa.string()
        )
    values = _bytes(headers.values, headers.count, pa.binary())
    pairs = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
    lists = np.frombuffer(headers.list_offsets, np.int32)
    none = lists[1:] == lists[:-1]
    found = pa.ListArray.from_arrays(pa.array(lists), pairs, mask=pa.array(none))
    return found.cast(kind) if found.type != kind else found
