"""Batches in smaller ones, because their topic does not take them (any more)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ....storage.batch import BATCH_OVERHEAD_BYTES, encode_headers, records
from ._accumulator import most_bytes
from ._batch import Batch


def divided(batch: Batch, largest: int) -> tuple[list[Batch], list[int]]:
    """A batch of several records as at least two, in order, and the index of the first record of each.

    Each is of at most `largest` bytes (compressed ones are counted as if they were not), or of one record. A batch
    that is not above that is halved: who refused it knows of a lower limit. Raises what decompressing raises.
    """
    if batch.data is None:
        batch.seal(None, -1, "none")
    assert batch.data is not None
    found = list(records(batch.data))
    headers = [encode_headers(record.headers) if record.headers else None for record in found]
    sizes = [
        most_bytes(record.key, record.value, header) for record, header in zip(found, headers, strict=True)
    ]
    room = largest - BATCH_OVERHEAD_BYTES if batch.size > largest else sum(sizes) // 2
    starts = _starts(sizes, room)
    parts = []
    for start, stop in itertools.pairwise([*starts, len(found)]):
        part = Batch(batch.topic, batch.partition, batch.created, batch.deadline)
        for record, header in zip(found[start:stop], headers[start:stop], strict=True):
            part.append(record.key, record.value, header, record.timestamp_ms)
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
