"""A compacted log: what it is when it is opened again, to those that copy it, and when it is truncated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.storage import (
    AppendError,
    Chunk,
    CorruptLogError,
    DiskLog,
    EpochEntry,
    Log,
    LogDirectory,
    verify,
)
from insync.storage.batch import Compression, scan

from ..building import all_bytes, open_disk, table_text
from ..memory_log import MemoryLog
from .compacting import (
    CODECS,
    SETTINGS,
    close_segment,
    compact,
    either_log,
    held,
    put,
    reopen,
)


@pytest.fixture(params=["disk", "memory"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    yield from either_log(request.param, tmp_path)


def test_opened_again_it_is_the_same(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1, settings=SETTINGS)
    log = directory.open_log("t", 0, create=True)
    for at in range(60):
        put(
            log,
            [(b"a%d" % (at % 7), b"%d" % at), (b"b", bytes(100))],
            epoch=at // 20,
            producer_id=at % 2,
            producer_epoch=0,
            base_sequence=2 * (at // 2),
        )
    compact(log)
    found = held(log), log.epochs, log.segment_base_offsets, log.producer_states()
    directory.write_checkpoints({})
    assert table_text(tmp_path / "cleaner-offset-checkpoint") == f"0\n1\nt 0 {log.cleaned_offset}\n"
    for clean in (True, False, True):
        directory.close(clean)
        directory = LogDirectory(tmp_path, cluster_id="c", node_id=1, settings=SETTINGS)
        log = directory.open_log("t", 0, create=False)
        assert log.recovery.bytes_cut == 0
        assert (held(log), log.epochs, log.segment_base_offsets) == found[:3]
        assert {each.producer_id: each.batches[-1] for each in log.producer_states()} == {
            each.producer_id: each.batches[-1] for each in found[3]
        }
    directory.close()
    assert not verify(tmp_path).defects


def test_gaps_are_damage_in_a_log_that_was_never_compacted(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0", SETTINGS)
    for at in range(4):
        put(log, [(b"a", b"%d" % at)])
    close_segment(log)
    compact(log)
    log.close(clean=False)
    with pytest.raises(CorruptLogError, match="base offset"):
        open_disk(tmp_path / "t-0", SETTINGS)
    reopen_ = open_disk(tmp_path / "t-0", SETTINGS, cleaned_offset=0)
    assert held(reopen_) == [(3, b"a", b"3")]
    reopen_.close()


def test_followers_take_gaps_when_told(tmp_path: Path, log: Log) -> None:
    leader = open_disk(tmp_path / "leader", SETTINGS)
    put(leader, [(b"x", b"0")], epoch=1)
    put(leader, [(b"a", b"1")], epoch=1)
    put(leader, [(b"a", b"2")], epoch=2)
    put(leader, [(b"b", b"1")], epoch=2)
    put(leader, [(b"a", b"3")], epoch=2)
    close_segment(leader, epoch=2)
    compact(leader)
    data = all_bytes(leader)
    with pytest.raises(AppendError, match="should be at 2"):
        log.append([Chunk(data, scan(data), 0, None)])
    log.append([Chunk(data, scan(data), 0, None, may_skip=True)])
    assert all_bytes(log) == data
    assert log.epochs == leader.epochs == (EpochEntry(1, 0), EpochEntry(2, 2))
    assert log.log_end_offset == leader.log_end_offset
    again = scan(data)[-1:]
    with pytest.raises(AppendError):
        log.append([Chunk(b"", again, 0, None, may_skip=True)])
    if isinstance(log, DiskLog):
        log = reopen(log)
        assert all_bytes(log) == data
        log.close()
    leader.close()


@settings(deadline=None)
@given(
    epochs=st.lists(st.integers(0, 3), min_size=2, max_size=12),
    keys=st.lists(st.integers(0, 2), min_size=12, max_size=12),
    codec=st.sampled_from(CODECS),
)
def test_who_copies_a_compacted_log_learns_where_each_leader_epoch_began(
    epochs: list[int], keys: list[int], codec: Compression
) -> None:
    """Else it would tell a reader that stands there, once it leads, that the log was cut (KIP-320)."""
    leader, follower = (MemoryLog("t", 0, settings=SETTINGS) for _ in range(2))
    for epoch, key in zip(sorted(epochs), keys, strict=False):
        put(leader, [(b"%d" % key, b"v")], epoch=epoch, compression=codec)
    close_segment(leader, epoch=max(epochs))
    begun = leader.epochs
    compact(leader)
    put(leader, [(b"0", b"v"), (b"1", b"v"), (b"2", b"v")], epoch=max(epochs) + 1)
    close_segment(leader, epoch=max(epochs) + 1)
    compact(leader)
    data = all_bytes(leader)
    follower.append([Chunk(data, scan(data), 0, None, may_skip=True)])
    assert follower.epochs == leader.epochs
    assert follower.epochs[:-1] == begun


def test_of_a_gap_before_a_leader_epoch_nobody_knows_whose_it_is(log: Log) -> None:
    """Others than we compact so: it is counted to the later epoch, because what stood there may have lost."""
    whole = MemoryLog("t", 0, settings=SETTINGS)
    for epoch in (1, 1, 2):
        put(whole, [(b"a", b"1")], epoch=epoch)
    data = all_bytes(whole)
    _, second, third = scan(data)
    data = data[: second.position] + data[third.position :]
    log.append([Chunk(data, scan(data), 0, None, may_skip=True)])
    assert log.epochs == (EpochEntry(1, 0), EpochEntry(2, 1))


def test_truncating_into_a_compacted_part(log: Log) -> None:
    for at in range(6):
        put(log, [(b"a", b"%d" % at), (b"k%d" % at, b"")])
    close_segment(log)
    compact(log)
    log.truncate(6)
    assert log.log_end_offset == 6
    assert held(log) == [(1, b"k0", b""), (3, b"k1", b""), (5, b"k2", b"")]
    put(log, [(b"a", b"new")])
    assert held(log)[-1] == (6, b"a", b"new")
    if isinstance(log, DiskLog):
        assert log.cleaned_offset == 6
        log = reopen(log)
        assert held(log)[-1] == (6, b"a", b"new")
        log.close()
