"""Which partitions a log directory has ever held: the proof that one was never there, not even empty.

A folder that is missing tells nothing by itself: it may have been removed. So every folder that is made is written
down, durably, before anything is written into it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable
from pathlib import Path

from ._files import PartitionKey, replace_file
from ._opening import open_file, read_file

FILE_NAME = ".partitions-created"
_LINE = re.compile(r"^([+-]) (\S+) ([0-9]+)\n", re.MULTILINE)


class CreatedPartitions:
    """An append-only list, rewritten at every start. Without its file nothing can be proved.

    Several threads may enter different partitions; each waits for the device by itself.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._held: set[PartitionKey] = set()
        self._writing = threading.Lock()
        self._torn = False
        self.is_complete = os.path.lexists(self._path)
        if self.is_complete:
            self._read()

    @classmethod
    def begin(cls, folder: Path) -> None:
        """In a log directory that has just been made."""
        replace_file(folder / FILE_NAME, b"")

    def _read(self) -> None:
        """A line that a crash has cut short was never relied upon."""
        found = read_file(self._path).decode(errors="replace")
        for sign, topic, number in _LINE.findall(found):
            (self._held.add if sign == "+" else self._held.discard)((topic, int(number)))
        lines = "".join(f"+ {topic} {number}\n" for topic, number in sorted(self._held))
        if lines != found:
            replace_file(self._path, lines.encode())

    def never_held(self, key: PartitionKey) -> bool:
        """Whether no folder of this partition has been made here (since one was deleted for good)."""
        return self.is_complete and key not in self._held

    def add(self, keys: Iterable[PartitionKey]) -> None:
        """Before the folders are made."""
        new = [key for key in keys if self.never_held(key)]
        if new:
            self._append("".join(f"+ {topic} {number}\n" for topic, number in new))
            self._held.update(new)

    def remove(self, keys: Iterable[PartitionKey]) -> None:
        """The partitions were taken from this node; their folders are gone."""
        gone = [key for key in keys if key in self._held]
        if gone:
            self._append("".join(f"- {topic} {number}\n" for topic, number in gone))
            self._held.difference_update(gone)

    def _append(self, lines: str) -> None:
        fd = open_file(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            with self._writing:
                # Behind a line that a full device has cut short: it must not spoil this one.
                rest = f"\n{lines}".encode() if self._torn else lines.encode()
                self._torn = True
                while rest:
                    rest = rest[os.write(fd, rest) :]
                self._torn = False
            os.fdatasync(fd)
        finally:
            os.close(fd)
