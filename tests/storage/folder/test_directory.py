"""The data folder: its owner, its lock, its checkpoints and its clean-stop marker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from insync.storage import (
    CorruptLogError,
    DiskLog,
    InvalidTopicError,
    LogClosedError,
    LogDirectory,
    LogDirectoryError,
    LogDirectoryLockedError,
    LogNotFoundError,
    LogSettings,
    StorageError,
    WrongClusterError,
    WrongNodeError,
    WrongTopicIdError,
    _maintenance,
)
from insync.storage import directory as directory_module

from ..building import fill, offsets, table_text


def opened(path: Path, cluster_id: str = "c", node_id: int = 1) -> LogDirectory:
    return LogDirectory(
        path, cluster_id=cluster_id, node_id=node_id, settings=LogSettings(segment_bytes=1024)
    )


def test_is_made_with_an_identity(tmp_path: Path) -> None:
    first = opened(tmp_path / "a" / "b")
    identity = first.directory_id
    assert not first.was_clean
    first.close()
    again = opened(tmp_path / "a" / "b")
    assert again.directory_id == identity
    assert again.was_clean
    again.close()
    other = opened(tmp_path / "other")
    assert other.directory_id != identity
    other.close()
    meta = (tmp_path / "a" / "b" / "meta.properties").read_text().splitlines()
    assert meta[:-1] == ["version=1", "cluster.id=c", "node.id=1", f"directory.id={identity}"]
    assert meta[-1].startswith("#crc32c: ")


def test_is_locked_against_everyone_else(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(
        LogDirectoryLockedError, match=f"in use by process {os.getpid()}: stop it first"
    ) as caught:
        opened(tmp_path)
    assert caught.value.pid == os.getpid()
    program = "import sys; from insync.storage import *; LogDirectory(sys.argv[1], cluster_id='c', node_id=1)"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert f"in use by process {os.getpid()}" in done.stderr
    first.close()
    opened(tmp_path).close()


def test_a_dead_owners_lock_holds_nobody_up(tmp_path: Path) -> None:
    program = """
import os, sys
from insync.storage import *
LogDirectory(sys.argv[1], cluster_id='c', node_id=1)
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60, check=False)
    directory = opened(tmp_path)
    assert not directory.was_clean
    directory.close()


def test_another_clusters_or_nodes_folder_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(WrongClusterError, match="cluster c, not of other"):
        opened(tmp_path, cluster_id="other")
    with pytest.raises(WrongNodeError, match="node 1, not of node 2"):
        opened(tmp_path, node_id=2)
    directory = opened(tmp_path)
    assert directory.was_clean, "a refused opening leaves the marker alone"
    directory.close()


@pytest.mark.parametrize("content", ["", "cluster.id=c\n", "cluster.id=c\nnode.id=x\ndirectory.id=d\n"])
def test_damaged_meta_properties_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "meta.properties").write_text(content)
    with pytest.raises(LogDirectoryError, match=r"meta\.properties does not name"):
        opened(tmp_path)


def test_a_path_that_cannot_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot use"):
        opened(tmp_path / "file")


def test_the_marker_is_gone_once_opened_and_written_last(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    fill(directory.open_log("t", 0, create=True), [2])
    marker = tmp_path / ".kafka_cleanshutdown"
    assert not marker.exists()
    directory.close(broker_epoch=42)
    assert json.loads(marker.read_text().splitlines()[0]) == {"version": 0, "brokerEpoch": 42}
    directory = opened(tmp_path)
    assert (directory.was_clean, directory.previous_broker_epoch) == (True, 42)
    assert not marker.exists()
    directory.close(clean=False)
    directory = opened(tmp_path)
    assert (directory.was_clean, directory.previous_broker_epoch) == (False, -1)
    directory.close()


DAMAGED = [b"", b"{", b"[]", b'{"brokerEpoch": null}', b'{"brokerEpoch": Infinity}', b"[" * 100_000, b"\xff"]


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: repr(content[:24]))
def test_a_damaged_marker_is_no_marker(tmp_path: Path, content: bytes) -> None:
    opened(tmp_path).close()
    (tmp_path / ".kafka_cleanshutdown").write_bytes(content)
    directory = opened(tmp_path)
    assert not directory.was_clean
    assert directory.damaged == {tmp_path / ".kafka_cleanshutdown": "the last stop counts as a crash"}
    directory.close()


def test_every_changed_byte_of_a_marker_is_seen(tmp_path: Path) -> None:
    """A changed digit would be the broker epoch of another process."""
    marker = tmp_path / ".kafka_cleanshutdown"
    opened(tmp_path).close(broker_epoch=42)
    sound = marker.read_bytes()
    for at in range(len(sound)):
        marker.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        directory = opened(tmp_path)
        assert (directory.was_clean, directory.previous_broker_epoch) == (False, -1), at
        directory.close(clean=False)


def test_a_marker_of_kafkas_needs_no_checksum(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":42}')
    directory = opened(tmp_path)
    assert (directory.was_clean, directory.previous_broker_epoch) == (True, 42)
    assert directory.damaged == {}
    directory.close()


def test_no_marker_if_a_log_could_not_be_closed(tmp_path: Path, monkeypatch) -> None:
    directory = opened(tmp_path)
    log = directory.open_log("t", 0, create=True)
    fill(log, [2])

    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(StorageError, match="cannot flush t-0"):
            directory.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    opened(tmp_path).close()


CHECKPOINTS = (
    "replication-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
)


def inodes(folder: Path) -> list[int]:
    """Of the checkpoints; a file that is written anew has another one."""
    return [(folder / name).stat().st_ino for name in CHECKPOINTS]


def rewritten(folder: Path, before: list[int]) -> set[str]:
    return {name for name, old, new in zip(CHECKPOINTS, before, inodes(folder), strict=True) if old != new}


def test_only_checkpoints_that_change_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fsync has the appends of all logs wait for the file system's journal."""
    directory = opened(tmp_path)
    log = directory.open_log("t", 0, create=True)
    fill(log, [3, 3])
    directory.write_checkpoints({("t", 0): 1})
    before = inodes(tmp_path)
    synced: list[str] = []
    real = os.fsync

    def counted(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        real(fd)

    monkeypatch.setattr(os, "fsync", counted)
    directory.write_checkpoints({("t", 0): 1})
    assert not rewritten(tmp_path, before) and not synced
    directory.write_checkpoints({("t", 0): 2})
    assert rewritten(tmp_path, before) == {"replication-offset-checkpoint"}
    assert synced == ["replication-offset-checkpoint.tmp", tmp_path.name]
    log.advance_log_start_offset(1)
    log.flush()
    before = inodes(tmp_path)
    synced.clear()
    directory.write_checkpoints({("t", 0): 3})
    assert rewritten(tmp_path, before) == {
        "replication-offset-checkpoint",
        "recovery-point-offset-checkpoint",
    }
    assert synced.count(tmp_path.name) == 1 and synced[-1] == tmp_path.name
    directory.close()


@pytest.mark.parametrize("broken", ["replication-offset-checkpoint.tmp", "folder"])
def test_what_a_checkpoint_says_after_a_failed_fsync_is_not_taken_for_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """It may hold what could not be fsynced: what it held before is written again."""
    folder = tmp_path / "folder"
    directory = opened(folder)
    directory.write_checkpoints({("t", 0): 1})
    real = os.fsync

    def breaks(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().name == broken:
            raise OSError(5, "Input/output error")
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", breaks)
        with pytest.raises(StorageError, match="cannot write the checkpoints"):
            directory.write_checkpoints({("t", 0): 2})
    before = inodes(folder)
    directory.write_checkpoints({("t", 0): 1})
    assert rewritten(folder, before) == {"replication-offset-checkpoint"}
    assert table_text(folder / "replication-offset-checkpoint") == "0\n1\nt 0 1\n"
    directory.close()


def test_a_clean_stop_writes_checkpoints_that_somebody_has_removed(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    fill(directory.open_log("t", 0, create=True), [3])
    directory.write_checkpoints({("t", 0): 3})
    for name in CHECKPOINTS:
        (tmp_path / name).unlink()
    directory.close()
    assert table_text(tmp_path / "replication-offset-checkpoint") == "0\n1\nt 0 3\n"
    assert table_text(tmp_path / "log-start-offset-checkpoint") == "0\n1\nt 0 0\n"


def test_checkpoints_are_kafkas_text(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    for topic, partition in (("b", 1), ("a", 10), ("a", 2)):
        fill(directory.open_log(topic, partition, create=True), [3])
    directory.open_log("b", 1, create=False).flush()
    directory.open_log("a", 2, create=False).advance_log_start_offset(2)
    directory.write_checkpoints({("a", 2): 3, ("b", 1): 1})
    assert table_text(tmp_path / "replication-offset-checkpoint") == "0\n2\na 2 3\nb 1 1\n"
    assert table_text(tmp_path / "recovery-point-offset-checkpoint") == "0\n3\na 2 0\na 10 0\nb 1 3\n"
    assert table_text(tmp_path / "log-start-offset-checkpoint") == "0\n3\na 2 2\na 10 0\nb 1 0\n"
    directory.close(high_watermarks={("a", 10): 3})
    directory = opened(tmp_path)
    assert directory.high_watermarks() == {("a", 2): 3, ("a", 10): 3, ("b", 1): 1}
    assert directory.open_log("a", 2, create=False).log_start_offset == 2
    directory.close()


@pytest.mark.parametrize("content", [b"", b"1\n0\n", b"0\n5\na 1 2\n", b"0\n1\na b c\n", b"\xff"])
def test_damaged_checkpoints_cost_nothing_but_time(tmp_path: Path, content: bytes) -> None:
    directory = opened(tmp_path)
    fill(directory.open_log("t", 0, create=True), [3] * 30)
    directory.close(high_watermarks={("t", 0): 90})
    for path in tmp_path.glob("*-checkpoint"):
        path.write_bytes(content)
    directory = opened(tmp_path)
    assert directory.high_watermarks() == {}
    log = directory.open_log("t", 0, create=False)
    assert offsets(log) == list(range(90))
    assert not log.recovery.clean
    directory.close()


def test_lists_and_opens_partitions(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    for topic, partition in (("a-b", 0), ("a", 11), ("a", 2)):
        directory.open_log(topic, partition, create=True)
    for name in ("stray-2-delete", "no", "a-02", "a-"):
        (tmp_path / name).mkdir()
    (tmp_path / "file-3").write_bytes(b"")
    assert directory.partitions() == [("a", 2), ("a", 11), ("a-b", 0)]
    assert directory.open_log("a", 2, create=True) is directory.open_log("a", 2, create=False)
    with pytest.raises(LogNotFoundError, match="no partition 7 of topic a"):
        directory.open_log("a", 7, create=False)
    directory.close()
    with pytest.raises(LogClosedError):
        directory.open_log("a", 2, create=False)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "ä", "a b", "x" * 250, "a\n"])
def test_illegal_topic_names(tmp_path: Path, topic: str) -> None:
    directory = opened(tmp_path)
    with pytest.raises(InvalidTopicError, match="is not a topic name"):
        directory.open_log(topic, 0, create=True)
    assert directory.partitions() == []
    directory.close()


def test_a_topic_created_again_is_told_from_the_old(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.open_log("t", 0, create=True, topic_id="first")
    directory.close()
    assert (tmp_path / "t-0" / "partition.metadata").read_text() == (
        "version: 0\ntopic_id: first\ntopic: t\npartition: 0\ncrc32c: 3dd8a6f4\n"
    )
    directory = opened(tmp_path)
    with pytest.raises(WrongTopicIdError, match="topic id first, not to second"):
        directory.open_log("t", 0, create=True, topic_id="second")
    directory.open_log("t", 0, create=True, topic_id="first")
    directory.close()


@pytest.mark.parametrize("cleanly", [True, False])
def test_a_folder_moved_aside_makes_room_for_a_fresh_log(tmp_path: Path, cleanly: bool) -> None:
    """The remedy that CorruptLogError names must work, also if the next process dies at once."""
    directory = opened(tmp_path)
    fill(directory.open_log("t", 0, create=True), [3] * 30)
    directory.close(high_watermarks={("t", 0): 90})
    last = max((tmp_path / "t-0").glob("*.log"))
    data = bytearray(last.read_bytes())
    data[100] ^= 1
    last.write_bytes(data)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    directory = opened(tmp_path)
    with pytest.raises(CorruptLogError):
        directory.open_log("t", 0, create=False)
    directory.close(clean=False)
    (tmp_path / "t-0").rename(tmp_path / "aside")
    for _ in range(2):
        directory = opened(tmp_path)
        log = directory.open_log("t", 0, create=True)
        assert (log.log_start_offset, log.log_end_offset) == (0, 0)
        directory.close(cleanly)


def test_truncation_lowers_the_stored_recovery_point_first(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    log = directory.open_log("t", 0, create=True)
    fill(log, [3] * 30)
    log.flush()
    directory.write_checkpoints({})
    log.truncate(40)
    assert table_text(tmp_path / "recovery-point-offset-checkpoint") == "0\n1\nt 0 39\n"
    directory.close(clean=False)
    directory = opened(tmp_path)
    assert directory.open_log("t", 0, create=False).log_end_offset == 39
    directory.close()


def test_a_restart_far_ahead_survives_a_crash(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    log = directory.open_log("t", 0, create=True)
    fill(log, [3] * 30)
    log.flush()
    directory.write_checkpoints({})
    log.truncate_fully(500)
    directory.close(clean=False)
    directory = opened(tmp_path)
    log = directory.open_log("t", 0, create=False)
    assert (log.log_start_offset, log.log_end_offset) == (500, 500)
    directory.close()


def test_a_restart_far_ahead_may_be_interrupted(tmp_path: Path, monkeypatch) -> None:
    directory = opened(tmp_path)
    log = directory.open_log("t", 0, create=True)
    fill(log, [3] * 30)
    log.flush()
    directory.write_checkpoints({})

    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(_maintenance, "Segment", refuse)
        with pytest.raises(StorageError, match="cannot truncate t-0"):
            log.truncate_fully(500)
    directory.close(clean=False)
    directory = opened(tmp_path)
    log = directory.open_log("t", 0, create=False)
    assert (log.log_start_offset, log.log_end_offset) == (500, 500)
    directory.close()


def test_a_clean_start_checks_crcs_within_a_budget(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    for partition in range(2):
        fill(directory.open_log("t", partition, create=True), [3] * 30)
    size = directory.open_log("t", 0, create=False).size_bytes
    directory.close()
    flipped = max((tmp_path / "t-1").glob("*.log"))
    data = bytearray(flipped.read_bytes())
    data[-1] ^= 1
    flipped.write_bytes(data)
    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1, verify_on_open_bytes=size)
    verified = [directory.open_log("t", at, create=False).recovery.bytes_verified for at in range(2)]
    assert verified == [size, 0], "the first log takes all of it"
    directory.close()
    directory = opened(tmp_path)
    directory.open_log("t", 0, create=False)
    with pytest.raises(CorruptLogError, match=r"t-1/.*CRC-32C does not match"):
        directory.open_log("t", 1, create=False)
    directory.close(clean=False)


def test_settings_name_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="segment_bytes must be from 1024"):
        LogSettings(segment_bytes=5)
    with pytest.raises(ValueError, match="index_interval_bytes must be from 0"):
        LogSettings(index_interval_bytes=-1)


def test_a_log_may_have_settings_of_its_own(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    logs = [
        directory.open_log("t", 0, create=True),
        directory.open_log("t", 1, create=True, settings=LogSettings(segment_bytes=2048)),
    ]
    for log in logs:
        fill(log, [3] * 40)
    small, large = (len(log.segment_base_offsets) for log in logs)
    assert small > large > 1
    directory.close()


def test_threads_open_many_logs_at_once(tmp_path: Path) -> None:
    directory = opened(tmp_path / "d")
    with ThreadPoolExecutor(8) as threads:

        def open_log(number: int) -> DiskLog:
            return directory.open_log("t", number % 50, create=True, topic_id="x")

        logs = list(threads.map(open_log, range(100)))
    assert logs[:50] == logs[50:], "one log for each partition, whoever opens it"
    assert len({id(log) for log in logs}) == 50
    assert [key for key, _ in directory.logs()] == [("t", number) for number in range(50)]
    directory.close(clean=False)
    again = opened(tmp_path / "d")
    assert [again.never_held("t", number) for number in range(51)] == [False] * 50 + [True]
    again.close()


def test_who_makes_a_log_has_nobody_else_wait_for_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = opened(tmp_path / "d")
    fill(directory.open_log("t", 0, create=True), [3])
    waits, go_on = threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        waits.set()
        assert go_on.wait(10)

    with monkeypatch.context() as patch, ThreadPoolExecutor(3) as threads:
        patch.setattr(directory_module, "fsync_folder", slow)
        made = threads.submit(directory.open_log, "t", 1, create=True)
        assert waits.wait(10)
        assert threads.submit(directory.open_log, "t", 0, create=False).result(10).log_end_offset == 3
        threads.submit(directory.write_checkpoints, {("t", 0): 2}).result(10)
        assert not made.done()
        go_on.set()
        assert made.result(10).log_end_offset == 0
    directory.close()


def test_a_log_that_is_opened_while_its_directory_is_closed_is_closed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = opened(tmp_path / "d")

    def closes(folder: Path) -> None:
        directory.close(clean=False)

    with monkeypatch.context() as patch:
        patch.setattr(directory_module, "fsync_folder", closes)
        with pytest.raises(LogClosedError):
            directory.open_log("t", 0, create=True)
    assert directory.logs() == []


def test_a_topic_made_anew_begins_at_zero_though_nothing_was_written_down_in_between(tmp_path: Path) -> None:
    """The log start of the former topic was, and nothing else of it; and no checkpoint comes before the crash."""
    directory = opened(tmp_path)
    former = directory.open_log("t", 0, create=True, topic_id="former")
    fill(former, [5, 5])
    former.advance_log_start_offset(8)
    directory.delete_log("t", 0)
    anew = directory.open_log("t", 0, create=True, topic_id="anew")
    fill(anew, [3])
    anew.flush()
    directory.close(clean=False)
    again = opened(tmp_path)
    assert offsets(again.open_log("t", 0, create=False, topic_id="anew")) == [0, 1, 2]
    again.close()
