"""What a compaction meets on its way: a stop, a truncation, damage, batches that nobody can read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from insync.storage import CorruptBatchError, DiskLog, Log
from insync.storage.batch import build_batch, crc32c, records, scan
from insync.storage.compaction import _cleaner

from ..building import all_bytes, append, open_disk
from .compacting import (
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


def test_a_stopped_compaction_leaves_no_trace(log: Log) -> None:
    for at in range(9):
        put(log, [(b"a", b"%d" % at), (b"b", bytes(600))])
    before, asked = all_bytes(log), []
    assert compact(log, stop=lambda: len(asked) > 1 or asked.append(None) is not None) is None
    assert all_bytes(log) == before
    if isinstance(log, DiskLog):
        assert not [path for path in log.folder.iterdir() if path.suffix in (".cleaned", ".swap")]
    assert compact(log) is not None


@pytest.mark.parametrize("again", [False, True])
def test_a_truncation_meanwhile_stops_it(log: Log, again: bool) -> None:
    """Only an unclean election cuts below the high watermark; what was cut must not come back."""
    for at in range(12):
        put(log, [(b"a", b"%d" % at), (b"b", bytes(600))])
    asked: list[None] = []

    def stop() -> bool:
        asked.append(None)
        if len(asked) == 4:
            log.truncate(5)
            if again:
                put(log, [(b"n", b"new")] * 3)
        return False

    assert compact(log, stop=stop) is None
    assert len(asked) >= 4
    assert log.log_end_offset == (7 if again else 4)
    assert {key for _, key, _ in held(log)} == ({b"a", b"b", b"n"} if again else {b"a", b"b"})
    if isinstance(log, DiskLog):
        log = reopen(log)
        assert log.log_end_offset == (7 if again else 4)
        log.close()


def test_a_damaged_batch_stops_it_and_changes_nothing(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0", SETTINGS)
    for at in range(9):
        put(log, [(b"a", b"%d" % at), (b"b", bytes(600))])
    path = log.folder / f"{log.segment_base_offsets[1]:020d}.log"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    before = all_bytes(log)
    with pytest.raises(CorruptBatchError, match="CRC-32C") as caught:
        compact(log)
    assert (caught.value.path, caught.value.position) == (str(path), 0)
    assert all_bytes(log) == before
    log.close(clean=False)


def unreadable(kind: str, key: bytes) -> bytes:
    """One record whose bytes are as they were written, and make no sense."""
    good = build_batch([key, b"other"], [b"new", b"v"], timestamps_ms=5000)
    if kind == "garbage":
        bad = good[:61] + bytes(range(len(good) - 61))
    elif kind == "turns bad in the middle":
        bad = good[:-1] + b"\x09"
    elif kind == "count":
        bad = good[:57] + (1).to_bytes(4) + good[61:]
    elif kind == "unknown codec":
        bad = good[:22] + b"\x07" + good[23:]
    elif kind == "not zstd":
        bad = good[:22] + b"\x04" + good[23:]
    else:
        packed = build_batch([key, b"other"], [b"new", b"v"], timestamps_ms=5000, compression="zstd")
        bad = packed[:23] + (2**31 - 2).to_bytes(4) + packed[27:57] + (2**31 - 1).to_bytes(4) + packed[61:]
        bad = bad if kind == "compressed count" else b""
    assert bad
    return bad[:17] + crc32c(bad[21:]).to_bytes(4) + bad[21:]


KINDS = ("garbage", "turns bad in the middle", "count", "unknown codec", "not zstd", "compressed count")


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_nobody_can_read_ends_no_compaction(log: Log, kind: str) -> None:
    put(log, [(b"a", b"old")])
    put(log, [(b"b", b"old")])
    bad = unreadable(kind, b"a")
    at = log.log_end_offset
    append(log, bad)
    put(log, [(b"b", b"new")])
    close_segment(log)
    before = log.size_bytes
    result = compact(log)
    assert result.batches_unreadable == 1
    assert f"offsets {at} to {at + scan(bad)[0].next_offset - 1}, byte " in result.first_unreadable
    infos = scan(all_bytes(log))
    copied = next(each for each in infos if each.base_offset == at)
    data = all_bytes(log)[copied.position : copied.position + copied.size_bytes]
    assert data[16:] == bad[16:]
    kept = b"".join(
        all_bytes(log)[each.position : each.position + each.size_bytes] for each in infos if each != copied
    )
    values = [(each.key, each.value) for each in records(kept) if each.key != b"filler"]
    assert values == [(b"a", b"old"), (b"b", b"new")], "what cannot be read replaces nothing"
    assert log.size_bytes < before
    put(log, [(b"b", b"newest")])
    close_segment(log)
    assert compact(log).records_removed >= 1


def test_a_batch_that_inflates_beyond_all_bounds_is_copied_as_it_is(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cleaner, "MAX_INFLATED_BYTES", 1 << 20)
    put(log, [(b"a", b"old")])
    put(log, [(b"a", bytes(2 << 20))], compression="zstd")
    put(log, [(b"b", b"x")])
    close_segment(log)
    result = compact(log)
    assert result.batches_unreadable == 1 and "more than 1048576 bytes" in result.first_unreadable
    assert [key for _, key, _ in held(log)] == [b"a", b"a", b"b"]
