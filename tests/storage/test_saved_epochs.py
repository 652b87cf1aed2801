"""When leader epochs reach the file: with the recovery point, as the batches from there on tell them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from insync.storage import EpochEntry
from insync.storage import _epochs as epochs

from .building import fill, open_disk, table_text


def entries(path: Path) -> str:
    return table_text(path / "leader-epoch-checkpoint")


def test_neither_an_append_nor_an_epoch_that_begins_writes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_disk(tmp_path / "t-0")
    with monkeypatch.context() as patch:
        patch.setattr(epochs, "replace_file", None)
        log.assign_epoch(3, 0)
        fill(log, [2], leader_epoch=3)
        log.assign_epoch(4, 2)
        fill(log, [2], leader_epoch=5)
    assert log.epochs == (EpochEntry(3, 0), EpochEntry(4, 2), EpochEntry(5, 2))[::2]
    log.close()


def test_a_crash_after_a_flush_loses_no_epoch_below_the_recovery_point(tmp_path: Path) -> None:
    """What lies below is not read again at the next start."""
    folder = tmp_path / "t-0"
    log = open_disk(folder)
    fill(log, [2] * 3, leader_epoch=1)
    fill(log, [2] * 3, leader_epoch=2)
    log.flush()
    point = log.recovery_point
    fill(log, [2] * 3, leader_epoch=7)
    expected = log.epochs
    assert entries(folder) == "0\n2\n1 0\n2 6\n"
    log.close(clean=False)
    log = open_disk(folder, recovery_point=point)
    assert log.epochs == expected == (EpochEntry(1, 0), EpochEntry(2, 6), EpochEntry(7, 12))
    log.close()


def test_a_clean_stop_leaves_all_epochs(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log = open_disk(folder)
    fill(log, [2], leader_epoch=4)
    log.settle()
    log.settled()
    log.close()
    assert entries(folder) == "0\n1\n4 0\n"


def test_an_entry_that_only_memory_had_is_written_with_what_is_cut(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log = open_disk(folder)
    fill(log, [2], leader_epoch=4)
    fill(log, [2], leader_epoch=6)
    log.truncate(2)
    assert entries(folder) == "0\n1\n4 0\n"
    log.close()
