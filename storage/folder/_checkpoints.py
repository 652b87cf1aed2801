"""The checkpoint files of a data folder: one offset of each log, for the next start."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from .._files import PartitionKey, is_checkpoint, read_checkpoint, storage_error, write_checkpoints
from ..disk_log import DiskLog

HIGH_WATERMARKS = "replication-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
NAMES = (HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS, CLEANED)


class Checkpoints:
    """The offsets of open logs as they are, and of others as they were last known.

    The caller holds the data folder's lock.
    """

    def __init__(
        self, folder: Path, logs: Mapping[PartitionKey, DiskLog], check_folder: Callable[[], None]
    ) -> None:
        """
        logs: the open logs; kept up to date by the caller.
        check_folder: raises OSError if another folder has the path; called before each write.
        """
        self._folder = folder
        self._logs = logs
        self._check_folder = check_folder
        self._tables = {name: read_checkpoint(folder / name) for name in NAMES}
        self.lists_log_starts = is_checkpoint(folder / LOG_STARTS)
        """Whether an unlisted log start was never written, instead of lost."""
        self.damaged = [
            path for name in NAMES if os.path.lexists(path := folder / name) and not is_checkpoint(path)
        ]
        """Files that cannot be relied on, as if they were not there."""
        self._written: dict[str, dict[PartitionKey, int]] = {}
        """The last content that this process wrote, by file."""

    def get(self, name: str, key: PartitionKey) -> int | None:
        """The offset of a log in one of the files; None if it is not listed.

        If the file of compacted logs is damaged, any log may lack offsets.
        """
        missing = 0 if name == CLEANED and self._folder / name in self.damaged else None
        return self._tables[name].get(key, missing)

    def table(self, name: str) -> dict[PartitionKey, int]:
        return dict(self._tables[name])

    def of(self, key: PartitionKey) -> dict[str, int]:
        """All offsets of a log, by file name."""
        self._update(NAMES)
        return {name: table[key] for name, table in self._tables.items() if key in table}

    def set(self, key: PartitionKey, offsets: Mapping[str, int]) -> None:
        """Store offsets of a log that is not open, by file name. Raises StorageError."""
        known = {name: offset for name, offset in offsets.items() if name in self._tables}
        for name, offset in known.items():
            self._tables[name][key] = offset
        self.write(*known)

    def forget(self, keys: Collection[PartitionKey]) -> None:
        """Drop logs that are gone: new ones may take their names. Raises StorageError."""
        self.write(
            *(
                name
                for name, table in self._tables.items()
                if [key for key in keys if table.pop(key, None) is not None]
            )
        )

    def write(self, *names: str, high_watermarks: Mapping[PartitionKey, int] | None = None) -> None:
        """Write those of the files that would change.

        Each fsync commits the file system's journal, and appends to all logs wait while that begins. Most of the
        time only the high watermarks move.

        Raises StorageError if the device refuses; the old files stay.
        """
        self._tables[HIGH_WATERMARKS].update(high_watermarks or {})
        self._update(names)
        try:
            # Another process may use a folder that has taken this one's place.
            self._check_folder()
            changed = {
                name: dict(self._tables[name])
                for name in names
                if self._written.get(name) != self._tables[name]
            }
            for name in changed:
                # The content of a file is unknown until all of them are written.
                self._written.pop(name, None)
            if changed:
                write_checkpoints(self._folder, changed)
            self._written.update(changed)
        except OSError as error:
            raise storage_error(error, f"cannot write the checkpoints in {self._folder}") from error

    def write_again(self) -> None:
        """Have the next `write` write whatever the files may contain by now."""
        self._written.clear()

    def _update(self, names: Collection[str]) -> None:
        """Take over the offsets of the open logs."""
        logs = self._logs.items()
        if LOG_STARTS in names:
            self._tables[LOG_STARTS].update({key: log.log_start_offset for key, log in logs})
        if RECOVERY_POINTS in names:
            self._tables[RECOVERY_POINTS].update({key: log.recovery_point for key, log in logs})
        if CLEANED in names:
            found = {key: log.cleaned_offset for key, log in logs}
            self._tables[CLEANED].update({key: offset for key, offset in found.items() if offset is not None})
