"""Batches in smaller ones, because their topic does not take them (any more)."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Sequence

from ....storage.batch import BATCH_OVERHEAD_BYTES, Headers, records
from ._accumulator import RECORD_OVERHEAD, headers_size
from ._batch import Batch


def divided(batch: Batch, largest: int) -> tuple[list[Batch], list[int]]:
    """A batch of several records as at least two, in order, and the index of the first record of each.

    Each is of at most `largest` bytes (compressed ones are counted as if they were not), or of one record. A batch
    that is not above that is halved: who refused it knows of a lower limit. Raises what decompressing raises.
    """
    keys, values, headers = _columns(batch)
    sizes = [
        RECORD_OVERHEAD + len(value or b"") + len(key or b"") + (headers_size(header) if header else 0)
        for key, value, header in zip(
            keys or itertools.repeat(None), values, headers or itertools.repeat(()), strict=False
        )
    ]
    room = largest - BATCH_OVERHEAD_BYTES if batch.size > largest else sum(sizes) // 2
    starts = _starts(sizes, room)
    parts = []
    for start, stop in itertools.pairwise([*starts, len(values)]):
        part = Batch(batch.topic, batch.partition, batch.created, batch.deadline)
        part.values = list(values[start:stop])
        part.keys = None if keys is None else list(keys[start:stop])
        part.headers = None if headers is None else list(headers[start:stop])
        dated = batch.timestamps[start:stop]
        part.timestamps = dated + array("q", [batch.timestamp_ms]) * (stop - start - len(dated))
        part.timestamp_ms = part.timestamps[-1]
        part.size += sum(sizes[start:stop])
        parts.append(part)
    return parts, starts


def _starts(sizes: Sequence[int], room: int) -> list[int]:
    """The first of each part, if each takes what it has room for, and at least one."""
    starts, used = [0], 0
    for index, size in enumerate(sizes):
        if used and used + size > room:
            starts.append(index)
            used = 0
        used += size
    return starts


def _columns(
    batch: Batch,
) -> tuple[Sequence[bytes | None] | None, Sequence[bytes | None], Sequence[Headers] | None]:
    """Keys, values and headers; of keys and headers None if there are none."""
    if batch.data is None:
        return batch.keys, batch.values, batch.headers
    found = list(records(batch.data))
    keys = [record.key for record in found]
    headers = [record.headers for record in found]
    return _unless_empty(keys), [record.value for record in found], headers if any(headers) else None


def _unless_empty(keys: Iterable[bytes | None]) -> Sequence[bytes | None] | None:
    keys = list(keys)
    return None if all(key is None for key in keys) else keys
