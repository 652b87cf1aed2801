"""The parts of a log that a flush brings to the device, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ._files import fsync_file
from ._producers import SNAPSHOT_SUFFIX
from .segment._segment import Segment, segment_path


def bring_to_device(segments: Sequence[Segment], start: int, end: int) -> None:
    """Make the batches of offsets [start, end) durable, and all that is believed of segments below the recovery
    point: their indexes, and the producers at their end. The names of the files are the caller's. Raises OSError.
    """
    for segment, following in pairwise(segments):
        if segment.base_offset >= end:
            break
        # One that ends at `start` may have been cut there; should what was cut off come back, the next one would
        # contradict it.
        if following.base_offset >= start:
            segment.flush()
        if not segment.indexes_synced:
            segment.sync_indexes()
            snapshot = segment_path(segment.path.parent, following.base_offset, SNAPSHOT_SUFFIX)
            if snapshot.exists():
                fsync_file(snapshot)
    if segments[-1].base_offset < end:
        segments[-1].flush()
