"""The files of a node's replicas, which faults damage and count."""

from __future__ import annotations

from pathlib import Path

from insync.storage.folder._stray import stray_name

from .members import Member


def test_a_stray_log_is_no_replica(tmp_path: Path) -> None:
    """A log that a node has set aside stays after the node is drained, and damage to it is met by nobody."""
    member = Member(1, tmp_path, "tcp://127.0.0.1:0", (), {}, None)
    disk = member.log_dirs[0]
    for folder, size in {"safe-0": 3, "safe-1": 0, "fire-0": 5, stray_name(("safe", 2)): 9}.items():
        (disk / folder).mkdir(parents=True)
        (disk / folder / "00000000000000000000.log").write_bytes(bytes(size))
    assert [path.parent.name for path in member.segments()] == ["fire-0", "safe-0"]
