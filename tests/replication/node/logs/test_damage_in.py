"""What a look at a doubted part of a log finds: where the damage is, in the file and in the log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

from insync.replication.node.logs._damage import damage_in
from insync.storage import CorruptBatchError, DiskLog, LogSettings
from insync.storage.batch import scan
from tests.storage.building import append, batch, open_disk

FOUR = LogSettings(segment_bytes=1 << 20)


def log_of_four(folder: Path) -> tuple[DiskLog, Path]:
    """Batches of one record each, all in one segment."""
    log = open_disk(folder / "t-0", FOUR)
    append(log, *[batch() for _ in range(4)])
    (path,) = log.folder.glob("*.log")
    return log, path


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        (byte,) = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte ^ 4]), at)


def test_a_rotten_batch_is_found_at_its_byte(tmp_path: Path) -> None:
    log, path = log_of_four(tmp_path)
    third = scan(path.read_bytes())[2]
    flip(path, third.position + third.size_bytes - 1)
    found = damage_in(log, 1, 1 << 20)
    assert found is not None
    assert (found.position, found.offset) == (third.position, 1)
    assert found.path == "the log of t-0" and "CRC-32C" in found.reason
    assert damage_in(log, 0, third.position) is None, "what was asked about is sound"
    log.close(clean=False)


def test_a_header_without_sense_is_found_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up of the offset meets it, before anything is read."""

    def read(self: DiskLog, offset: int, max_bytes: int) -> NoReturn:
        raise CorruptBatchError(700, "its header is invalid", path="t-0/0.log")

    log, _ = log_of_four(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(DiskLog, "read", read)
        found = damage_in(log, 2, 1 << 20)
    assert found is not None
    assert (found.path, found.position, found.offset) == ("t-0/0.log", 700, 2)
    log.close(clean=False)


def test_what_is_not_there_is_not_damaged(tmp_path: Path) -> None:
    log, _ = log_of_four(tmp_path)
    assert damage_in(log, 4, 1 << 20) is None
    assert damage_in(log, 9, 1 << 20) is None
    log.close(clean=False)
    assert damage_in(log, 0, 1 << 20) is None
