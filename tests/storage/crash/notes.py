"""What a writer notes down before and after each thing it does, one line each, to be read after its death."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import attrs

from insync.storage.batch import SEQUENCE_MODULUS, build_batch

KEYS = 50


class Plan(NamedTuple):
    """A batch that is to be written. All that is in it follows from these numbers."""

    base: int
    count: int
    epoch: int
    serial: int
    size: int
    """Of each value, about."""
    keyed: bool

    @property
    def end(self) -> int:
        return self.base + self.count

    def key(self, offset: int) -> bytes | None:
        return b"%d" % ((offset * 31 + self.serial) % KEYS) if self.keyed else None

    def value(self, offset: int) -> bytes | None:
        """Some are tombstones."""
        if self.keyed and (offset + self.serial) % 11 == 0:
            return None
        return b"%d/%d:" % (offset, self.serial) + b"%d;" % self.serial * (self.size // 8)

    def build(self) -> bytes:
        """The batch as a producer sends it."""
        offsets = range(self.base, self.end)
        return build_batch(
            [self.key(offset) for offset in offsets],
            [self.value(offset) for offset in offsets],
            timestamps_ms=1_000_000 + self.serial,
            producer_id=self.serial % 3,
            producer_epoch=0,
            base_sequence=self.serial * 100 % SEQUENCE_MODULUS,
        )


@attrs.frozen
class Note:
    """`done`: it was; else it is about to be."""

    done: bool
    what: str
    numbers: tuple[int, ...]


class Notebook:
    """A file to which one process adds lines; each is one write, so a kill tears none but the last."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def will(self, what: str, *numbers: int) -> None:
        self._write("will", what, numbers)

    def did(self, what: str, *numbers: int) -> None:
        self._write("did", what, numbers)

    def _write(self, when: str, what: str, numbers: tuple[int, ...]) -> None:
        os.write(self._fd, f"{when} {what} {' '.join(map(str, map(int, numbers)))}\n".encode())


def read_notes(path: Path) -> Iterator[Note]:
    """Those that were finished."""
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            when, what, *numbers = line.split()
            yield Note(when == "did", what, tuple(map(int, numbers)))
