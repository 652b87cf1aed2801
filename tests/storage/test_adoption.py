"""Reads and copies of folders that Kafka wrote; `node/recovery/test_kafka_adoption.py` in tests has the whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from insync.storage import adoption
from insync.storage._files import copy_file

from ..replication.node.recovery import kafka_folder as kafka


def test_a_snapshot_of_the_metadata_counts_with_what_follows_it(tmp_path: Path) -> None:
    from insync.storage.batch import build_batch

    place = kafka.make(tmp_path / "kafka", topics=(), records=[])
    snapshot = build_batch([None] * 2, [b"first", b"second"], timestamps_ms=1)
    (place / "__cluster_metadata-0" / f"{7:020}-{3:010}.checkpoint").write_bytes(snapshot)
    kafka.write_metadata_log(place, [b"third"], base=7)
    found = adoption.metadata_log(place)
    assert found is not None and found.values == (b"first", b"second", b"third")
    assert found.position == (1, 8)
    for path in (place / "__cluster_metadata-0").glob("*.checkpoint"):
        path.unlink()
    with pytest.raises(adoption.ForeignFolderError, match="begins at offset 7, but 0 should follow"):
        adoption.metadata_log(place)


def test_files_are_copied_where_blocks_cannot_be_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between file systems of different kinds the kernel refuses, here half way."""
    source, calls = tmp_path / "a", []
    source.write_bytes(os.urandom(100_000))
    real = os.copy_file_range

    def refused(read: int, written: int, count: int) -> int:
        calls.append(count)
        if len(calls) == 1:
            return real(read, written, 40_000)
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refused)
    copy_file(source, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == source.read_bytes()
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600
