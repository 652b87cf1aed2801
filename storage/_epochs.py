"""The offsets that each leader epoch wrote (KIP-101), kept in `leader-epoch-checkpoint`.

The epoch of an appended batch stands in the batch, and recovery reads every batch from the recovery point on. So
the file has to have an epoch when the recovery point moves past its first batch (`save`), and neither an append nor
the begin of a leader's epoch waits for a device. An epoch without a batch is dropped when the log is opened,
wherever it was written.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from ._files import read_table, replace_file, table
from .log import EpochEntry

FILE_NAME = "leader-epoch-checkpoint"
NO_EPOCH = -1


class EpochCache:
    """The entries in rising order. Readers take `entries`, an immutable tuple, at any time; the writer of the log
    and who deletes its old segments may both change them.
    """

    def __init__(self, path: Path | None, entries: Iterable[EpochEntry] = ()) -> None:
        self._path = path
        self.is_damaged = False
        """Whether there is a file that cannot be relied on: only the batches know the epochs then."""
        self.entries = tuple(entries)
        self._unsaved = False
        """Whether the file lacks some of the entries."""
        self._lock = threading.RLock()

    @classmethod
    def load(cls, folder: Path) -> EpochCache:
        """From a partition's folder; a missing or damaged file gives an empty cache, for the log to fill."""
        path = folder / FILE_NAME
        rows = read_table(path)
        try:
            entries = [EpochEntry(int(epoch), int(start)) for epoch, start in rows or ()]
        except ValueError:
            rows = None
        if rows is None or not all(_rise(before, after) for before, after in pairwise(entries)):
            cache = cls(path)
            cache.is_damaged = os.path.lexists(path)
            return cache
        return cls(path, entries)

    @property
    def latest(self) -> int:
        """The last epoch, -1 if there is none."""
        return self.entries[-1].epoch if self.entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """Enter an epoch, dropping what contradicts it. The file gets it by `save`."""
        with self._lock:
            kept = [each for each in self.entries if each.epoch < epoch and each.start_offset < start_offset]
            self._show((*kept, EpochEntry(epoch, start_offset)))

    def add(self, entries: Sequence[EpochEntry]) -> None:
        """Enter the epochs of appended batches, in order. The file gets them by `save`."""
        if not entries:
            return
        with self._lock:
            result = list(self.entries)
            for entry in entries:
                while result and result[-1].start_offset >= entry.start_offset:
                    result.pop()
                if not result or result[-1].epoch < entry.epoch:
                    result.append(entry)
            self._show(tuple(result))

    def merge(self, entries: Iterable[EpochEntry], log_start_offset: int) -> None:
        """Enter the epochs of the batches of a log with missing offsets, where they contradict what is known.

        The first batch of an epoch that is still there may stand far behind where the epoch began; and before it,
        where the log start lies inside of it. Of offsets that are missing at the log start, nobody but the file
        knows the epoch.
        """
        with self._lock:
            result = list(self.entries)
            for entry in _from(log_start_offset, entries):
                at = bisect_right(result, entry.start_offset, key=lambda each: each.start_offset) - 1
                at_start = entry.start_offset <= log_start_offset
                if at < 0 or (result[at].epoch != entry.epoch and not at_start):
                    kept = [each for each in result if _rise(each, entry) or _rise(entry, each)]
                    result = sorted((*kept, entry))
            self.replace(tuple(result))

    def trim_end(self, log_end_offset: int) -> None:
        """Drop the entries that start at or above the log end."""
        with self._lock:
            self.replace(tuple(entry for entry in self.entries if entry.start_offset < log_end_offset))

    def trim_start(self, log_start_offset: int) -> None:
        """Drop the epochs that end at or below the log start; the one that covers it starts there."""
        with self._lock:
            self.replace(tuple(_from(log_start_offset, self.entries)))

    def _show(self, entries: tuple[EpochEntry, ...]) -> None:
        if entries != self.entries:
            self.entries, self._unsaved = entries, True

    def replace(self, entries: tuple[EpochEntry, ...]) -> None:
        """Write the file, then show the entries; nothing if it has them."""
        with self._lock:
            if entries == self.entries and not self._unsaved:
                return
            if self._path is not None:
                replace_file(self._path, _content(entries))
            self.entries, self._unsaved = entries, False

    def save(self, *, sync: bool = True) -> None:
        """Before the recovery point moves: have the file hold all entries. sync: wait for the device."""
        with self._lock:
            if self._unsaved and self._path is not None:
                replace_file(self._path, _content(self.entries), sync=sync)
            self._unsaved = False


def _content(entries: Sequence[EpochEntry]) -> bytes:
    return table([f"{entry.epoch} {entry.start_offset}\n" for entry in entries])


def _from(log_start_offset: int, entries: Iterable[EpochEntry]) -> list[EpochEntry]:
    """Those that end above the log start; the one that covers it starts there."""
    kept: list[EpochEntry] = []
    covering: list[EpochEntry] = []
    for entry in entries:
        (covering if entry.start_offset <= log_start_offset else kept).append(entry)
    if covering:
        kept.insert(0, EpochEntry(covering[-1].epoch, log_start_offset))
    return kept


def _rise(first: EpochEntry, second: EpochEntry) -> bool:
    return first.epoch < second.epoch and first.start_offset < second.start_offset
