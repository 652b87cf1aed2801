"""Putting a compacted segment in the place of those that it was made of, so that a crash leaves the ones or the
other.

The names are Kafka's: `.cleaned` while it is written, `.swap` once it is whole and the others may go, then its own.
The `.log` is renamed last each time, so that its name tells how far all is.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from .._files import base_offset_in, fsync_file, fsync_folder, write_all
from .._opening import open_file
from .._transactions import TRANSACTION_INDEX_SUFFIX, AbortedTransaction, encode_index
from ..batch._columns import Buffer
from ..errors import CorruptLogError, StorageBrokenError
from ..segment._log_scan import LogScan, scan_log
from ..segment._segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    delete_segment,
    segment_files,
    segment_path,
)

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"

_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, LOG_SUFFIX)
_TIME_ENTRY = struct.Struct(">qi")


class CleanedSegment:
    """The files of a segment in the making."""

    def __init__(self, folder: Path, base_offset: int) -> None:
        self._folder = folder
        self._base = base_offset
        self.size = 0

    def _path(self, suffix: str, state: str) -> Path:
        return segment_path(self._folder, self._base, suffix + state)

    def write(
        self,
        pieces: Iterable[Buffer],
        end_offset: int,
        modified_ns: int,
        interval: int,
        aborted: Callable[[], Sequence[AbortedTransaction]] | None,
    ) -> None:
        """Write the batches, check what was written, and make its indexes; on the device before this returns.

        end_offset: where the last batch must end.
        modified_ns: the time that the file is to have: batches without timestamps are aged by it.
        interval: bytes between index entries.
        aborted: tells, when all batches are written, what the transaction index is to say, be it nothing: an older
        one is replaced by it. None: there is none to replace.

        Raises OSError, StorageBrokenError.
        """
        path = self._path(LOG_SUFFIX, CLEANED_SUFFIX)
        fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            for piece in filter(len, pieces):
                write_all(fd, [piece], self.size)
                self.size += len(piece)
            found = self._check(fd, end_offset, interval)
            os.utime(fd, ns=(modified_ns, modified_ns))
            os.fsync(fd)
        finally:
            os.close(fd)
        self._write_index(INDEX_SUFFIX, bytes(found.index))
        self._write_index(TIME_INDEX_SUFFIX, bytes(found.time_index) + self._last_time(found))
        if aborted is not None:
            self._write_index(TRANSACTION_INDEX_SUFFIX, encode_index(aborted()))
        fsync_folder(self._folder)

    def _check(self, fd: int, end_offset: int, interval: int) -> LogScan:
        found = scan_log(
            fd, self.size, base_offset=self._base, interval=interval, offset=self._base, gaps=True
        )
        if found.reason or found.offset != end_offset:
            reason = found.reason or f"it ends at offset {found.offset}, not at {end_offset}"
            raise StorageBrokenError(
                f"a compacted copy of {self._path(LOG_SUFFIX, '')} is bad at byte {found.position}: {reason}; "
                f"the log is unchanged; check the device"
            )
        return found

    def _last_time(self, found: LogScan) -> bytes:
        """The entry that closes a time index."""
        last = _TIME_ENTRY.unpack(found.time_index[-_TIME_ENTRY.size :])[0] if found.time_index else -1
        if found.max_timestamp <= last:
            return b""
        return _TIME_ENTRY.pack(found.max_timestamp, found.max_timestamp_offset - self._base)

    def _write_index(self, suffix: str, content: bytes) -> None:
        path = self._path(suffix, CLEANED_SUFFIX)
        fd = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            if content:
                write_all(fd, [content], 0)
            os.fsync(fd)
        finally:
            os.close(fd)

    def _there(self, state: str) -> list[str]:
        return [suffix for suffix in _SUFFIXES if self._path(suffix, state).exists()]

    def remove(self) -> None:
        """Leave nothing behind of one that was not offered."""
        for suffix in _SUFFIXES:
            self._path(suffix, CLEANED_SUFFIX).unlink(missing_ok=True)

    def offer(self) -> None:
        """From now on a crash leaves this in the place of the others."""
        for suffix in self._there(CLEANED_SUFFIX):
            os.rename(self._path(suffix, CLEANED_SUFFIX), self._path(suffix, SWAP_SUFFIX))
        fsync_folder(self._folder)

    def take_place(self) -> None:
        """Once the others are out of the way."""
        for suffix in self._there(SWAP_SUFFIX):
            os.rename(self._path(suffix, SWAP_SUFFIX), self._path(suffix, ""))
        fsync_folder(self._folder)


def finish_swaps(folder: Path) -> None:
    """Finish what a crash interrupted: before anything else is done to a partition's folder.

    Raises CorruptLogError if a segment that was offered is damaged and those it was made of are gone.
    """
    if not any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in os.listdir(folder)):
        return
    unfinished = [int(path.name[:20]) for path in folder.glob(f"{'[0-9]' * 20}.*{CLEANED_SUFFIX}")]
    for path in sorted(folder.glob(f"{'[0-9]' * 20}{LOG_SUFFIX}{SWAP_SUFFIX}")):
        base = base_offset_in(path.name[:20])
        if base is None:
            continue
        nothing_moved = segment_path(folder, base, LOG_SUFFIX).exists()
        # Kafka makes several segments out of one too large, and renames them the last first.
        if nothing_moved and any(each <= base for each in unfinished):
            path.unlink()
            continue
        end, reason = _end_of(path, base)
        if reason and nothing_moved:
            path.unlink()
        elif reason:
            raise CorruptLogError(str(path), *reason)
        else:
            _finish(folder, base, end)
    for path in folder.glob(f"*{CLEANED_SUFFIX}"):
        path.unlink()
    for path in folder.glob(f"*{SWAP_SUFFIX}"):
        path.unlink()


def _end_of(path: Path, base: int) -> tuple[int, tuple[int, int, str] | None]:
    """Where the batches of a file end; position, offset and reason if they are damaged."""
    fd = open_file(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        found = scan_log(fd, size, base_offset=base, interval=size, offset=base, gaps=True)
    finally:
        os.close(fd)
    return found.offset, (found.position, found.offset, found.reason) if found.reason else None


def _finish(folder: Path, base: int, end: int) -> None:
    bases = [int(path.stem) for path in segment_files(folder)]
    for old in sorted(each for each in bases if base < each < end):
        delete_segment(folder, old)
    segment_path(folder, base, LOG_SUFFIX).unlink(missing_ok=True)
    fsync_folder(folder)
    for suffix in _SUFFIXES:
        swap = segment_path(folder, base, suffix + SWAP_SUFFIX)
        if swap.exists():
            os.replace(swap, segment_path(folder, base, suffix))
    fsync_file(segment_path(folder, base, LOG_SUFFIX))
    fsync_folder(folder)
