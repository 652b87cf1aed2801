"""The segments that are too old to keep, and the files of those that were deleted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from ._files import fsync_folder
from .segment._segment import Spot, delete_segment, segment_files
from .settings import UNLIMITED


class Held(Protocol):
    """A segment as retention sees it."""

    base_offset: int
    end: Spot

    @property
    def last_written_ms(self) -> int: ...


def expired(
    segments: Sequence[Held],
    now_ms: int,
    *,
    retention_ms: int,
    retention_bytes: int,
    log_start_offset: int,
    high_watermark: int,
) -> int:
    """How many segments from the oldest on may go: whole ones that end at or below the high watermark
    (KAFKA-5634) and, like every one before them, lie below the log start, or are older than `retention_ms`, or
    without which at least `retention_bytes` are left. The last segment stays.
    """
    left = sum(segment.end.position for segment in segments)
    for count, (segment, following) in enumerate(pairwise(segments)):
        left -= segment.end.position
        below = following.base_offset <= log_start_offset
        old = retention_ms != UNLIMITED and now_ms - segment.last_written_ms > retention_ms
        large = retention_bytes != UNLIMITED and left >= retention_bytes
        if following.base_offset > high_watermark or not (below or old or large):
            return count
    return len(segments) - 1


class SetAside:
    """Files that were renamed, and are deleted only after a while: who has begun to read them may end first."""

    def __init__(self) -> None:
        self._files: list[tuple[int, Path]] = []

    def add(self, now_ms: int, files: Sequence[Path]) -> None:
        self._files += [(now_ms, path) for path in files]

    def remove(self, before_ms: int) -> int:
        """Delete those set aside at that time or earlier; returns their number. Raises OSError."""
        due = [path for since, path in self._files if since <= before_ms]
        for path in due:
            path.unlink(missing_ok=True)
        self._files = [each for each in self._files if each[0] > before_ms]
        return len(due)


def remove_below(folder: Path, base_offset: int) -> None:
    """Delete the segments that retention had given up but not yet renamed for good."""
    bases = [int(path.stem) for path in segment_files(folder)]
    old = [base for base in bases if base < base_offset]
    for base in sorted(old):
        delete_segment(folder, base)
    if old:
        fsync_folder(folder)
