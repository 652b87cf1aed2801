"""Logs that are set aside: where they go, what they keep, how they come back."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from insync.storage import LogDirectory, LogDirectoryError, Stray, find_strays, remove_stray, verify
from insync.storage.batch import records
from insync.storage.folder._stray import STRAY_SUFFIX

from ..building import SMALL, fill

KEY = ("orders", 3)


def opened(path: Path) -> LogDirectory:
    return LogDirectory(path, cluster_id="c", node_id=1)


def set_one_aside(path: Path, *, topic: str = "orders", open_first: bool = True) -> Stray:
    """Of a log with seven records, of which two are deleted."""
    directory = opened(path)
    log = directory.open_log(topic, 3, create=True, topic_id="one")
    fill(log, [2, 5])
    log.advance_log_start_offset(2)
    directory.write_checkpoints({(topic, 3): 6})
    if not open_first:
        directory.close()
        directory = opened(path)
    stray = directory.set_aside((topic, 3), "nobody knows it", 1234)
    assert stray is not None
    directory.close()
    return stray


@pytest.mark.parametrize("open_first", [True, False])
def test_a_log_that_is_set_aside_can_be_restored(tmp_path: Path, open_first: bool) -> None:
    stray = set_one_aside(tmp_path, open_first=open_first)
    assert stray.path.name.startswith("orders-3.") and stray.path.name.endswith(STRAY_SUFFIX)
    assert (stray.key, stray.why, stray.since_ms) == (KEY, "nobody knows it", 1234)
    assert stray.size_bytes == sum(each.stat().st_size for each in stray.path.iterdir())
    assert find_strays(tmp_path) == [stray]
    directory = opened(tmp_path)
    assert directory.partitions() == []
    assert KEY not in directory.high_watermarks()
    log = directory.restore(stray)
    assert (log.log_start_offset, log.log_end_offset) == (2, 7)
    assert directory.open_log(*KEY, create=False, topic_id="one") is log
    directory.close()
    directory = opened(tmp_path)
    assert directory.high_watermarks()[KEY] == 6
    log = directory.open_log(*KEY, create=False, topic_id="one")
    assert (log.log_start_offset, log.log_end_offset) == (2, 7)
    assert find_strays(tmp_path) == []
    assert directory.is_restored(*KEY)
    directory.settle_restored()
    assert not directory.is_restored(*KEY)
    assert not (tmp_path / "orders-3" / "stray.json").exists()
    directory.close()


def test_a_partition_whose_log_was_set_aside_is_not_one_that_never_was(tmp_path: Path) -> None:
    """A node that has never had a log counts as complete without one."""
    set_one_aside(tmp_path)
    directory = opened(tmp_path)
    assert not directory.never_held(*KEY)
    directory.delete_log(*KEY)
    assert directory.never_held(*KEY)
    directory.close()


def test_the_partition_begins_again_beside_it(tmp_path: Path) -> None:
    stray = set_one_aside(tmp_path)
    directory = opened(tmp_path)
    log = directory.open_log(*KEY, create=True, topic_id="two")
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    with pytest.raises(LogDirectoryError, match="orders-3 exists: set it aside"):
        directory.restore(stray)
    assert find_strays(tmp_path) == [stray]
    directory.close()


def test_a_log_of_another_topic_id_is_restored_under_its_name_when_told_to(tmp_path: Path) -> None:
    stray = set_one_aside(tmp_path)
    directory = opened(tmp_path)
    directory.restore(stray, trust_name=True)
    directory.close()
    directory = opened(tmp_path)
    assert directory.open_log(*KEY, create=False, topic_id="two").log_end_offset == 7
    directory.close()


def test_a_torn_tail_of_a_restored_log_is_cut(tmp_path: Path) -> None:
    """The stop of the folder was clean, but the log was not part of it."""
    stray = set_one_aside(tmp_path)
    note = json.loads((stray.path / "stray.json").read_text().splitlines()[0])
    assert note["checkpoints"]["recovery-point-offset-checkpoint"] <= 7
    (segment,) = stray.path.glob("*.log")
    with segment.open("ab") as file:
        file.write(b"\0" * 7)
    directory = opened(tmp_path)
    assert directory.was_clean
    assert directory.restore(stray).recovery.bytes_cut == 7
    directory.close()


def test_nothing_is_set_aside_where_nothing_is(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    assert directory.set_aside(KEY, "why", 1) is None
    directory.close()


def test_a_long_name_is_shortened_and_kept_in_the_note(tmp_path: Path) -> None:
    stray = set_one_aside(tmp_path, topic="t" * 240)
    assert len(stray.path.name) < 255
    assert find_strays(tmp_path)[0].topic == "t" * 240


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[1]", b"\xff", b"flipped"])
def test_a_note_that_cannot_be_relied_on_says_nothing(tmp_path: Path, content: bytes | None) -> None:
    """Least of all how old the log is, by which it may be deleted."""
    stray = set_one_aside(tmp_path)
    note = stray.path / "stray.json"
    if content == b"flipped":
        content = note.read_bytes().replace(b"1234", b"1235")
    if content is None:
        note.unlink()
    else:
        note.write_bytes(content)
    (found,) = find_strays(tmp_path)
    assert (found.path, found.key, found.since_ms) == (stray.path, KEY, None)
    assert "cannot be read" in found.why


def test_a_stray_log_is_deleted_for_good(tmp_path: Path) -> None:
    stray = set_one_aside(tmp_path)
    remove_stray(stray)
    assert [each.name for each in tmp_path.iterdir() if each.is_dir()] == []
    remove_stray(stray)


def values(folder: Path) -> dict[int, bytes | None]:
    """Of all records in a log's files, by offset."""
    files = sorted(folder.glob("*.log"))
    return {each.offset: each.value for path in files for each in records(path.read_bytes())}


@pytest.mark.parametrize("offset", [0, 1, 30, 31, 59, None])
def test_the_tail_that_is_kept_is_what_a_cut_takes(tmp_path: Path, offset: int | None) -> None:
    """By links where the cut removes whole segments, by a copy where it shortens one."""
    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1, settings=SMALL)
    log = directory.open_log(*KEY, create=True, topic_id="one")
    fill(log, [2] * 30, leader_epoch=4)
    before = values(tmp_path / "orders-3")
    segment = len(before) // len(list((tmp_path / "orders-3").glob("*.log"))) + 2
    assert segment < len(before) // 2
    stray = directory.keep_tail(KEY, offset, "the leader lacks it", 5)
    if offset is None:
        log.truncate_fully(7)
    else:
        log.truncate(offset)
    fill(log, [1] * 40, leader_epoch=6)
    assert find_strays(tmp_path) == [stray]
    kept = values(stray.path)
    lost = {at: value for at, value in before.items() if offset is None or at >= offset}
    assert kept.items() >= lost.items() and kept.items() <= before.items()
    assert len(kept) < len(lost) + segment, "no more than the segment around the cut"
    assert not verify(stray.path).defects
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in stray.path.iterdir())
    directory.close()
