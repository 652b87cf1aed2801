"""The partitions that a log directory has ever held: the proof that one was never there, not even empty.

A folder that is missing tells nothing by itself: it may have been removed. So every folder that is made is written
down, durably, before anything is written into it. It is planned before it is made: of a folder that is planned and
no more, the next start knows that it has never held anything.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable
from pathlib import Path

from .._files import PartitionKey, replace_file
from .._opening import open_file, read_file

FILE_NAME = ".partitions-created"
_PLANNED, _HELD, _GONE = "~+-"
_LINE = re.compile(r"^([~+-]) (\S+) ([0-9]+)\n", re.MULTILINE)


class CreatedPartitions:
    """An append-only list, rewritten at every start. Without its file nothing can be proved.

    Several threads may enter different partitions; each waits for the device by itself.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._held: set[PartitionKey] = set()
        self._planned: set[PartitionKey] = set()
        """Their folders may be there by now, with nothing in them."""
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
        planned: set[PartitionKey] = set()
        for sign, topic, number in _LINE.findall(found):
            key = (topic, int(number))
            (planned.add if sign == _PLANNED else planned.discard)(key)
            if sign != _PLANNED:
                (self._held.add if sign == _HELD else self._held.discard)(key)
        self._held.update(key for key in planned if (self._path.parent / f"{key[0]}-{key[1]}").is_dir())
        lines = _lines(_HELD, sorted(self._held))
        if lines != found:
            replace_file(self._path, lines.encode())

    def never_held(self, key: PartitionKey) -> bool:
        """Whether nothing of this partition has been written here (since its folder was deleted for good)."""
        return self.is_complete and key not in self._held

    def is_planned(self, key: PartitionKey) -> bool:
        """Whether its folder may have been made, but not been added."""
        return key in self._planned

    def plan(self, keys: Iterable[PartitionKey]) -> None:
        """Before the folders are made."""
        new = [key for key in keys if self.never_held(key)]
        if new:
            # From here on lines may be in the file, whatever comes of this.
            self._planned.update(new)
            self._append(_lines(_PLANNED, new))

    def add(self, keys: Iterable[PartitionKey]) -> None:
        """Before anything is written into the folders, whose names are durable by now."""
        keys = list(keys)
        new = [key for key in keys if self.never_held(key)]
        if new:
            self._append(_lines(_HELD, new))
            self._held.update(new)
        self._planned.difference_update(keys)

    def remove(self, keys: Iterable[PartitionKey]) -> None:
        """The partitions were taken from this node; their folders are gone."""
        gone = [key for key in keys if key in self._held or key in self._planned]
        if gone:
            self._append(_lines(_GONE, gone))
            self._held.difference_update(gone)
            self._planned.difference_update(gone)

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


def _lines(sign: str, keys: Iterable[PartitionKey]) -> str:
    return "".join(f"{sign} {topic} {number}\n" for topic, number in keys)
