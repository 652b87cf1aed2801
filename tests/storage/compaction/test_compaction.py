"""Compaction: which records stay, what batches look like then, and when it runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.storage import (
    EpochEntry,
    Log,
    LogSettings,
)
from insync.storage._native import ffi, lib
from insync.storage.batch import Compression, build_batch, records, scan

from ..building import all_bytes, append
from ..memory_log import MemoryLog
from .compacting import (
    CODECS,
    NOW,
    SETTINGS,
    Pair,
    close_segment,
    compact,
    either_log,
    held,
    latest,
    put,
)


@pytest.fixture(params=["disk", "memory"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    yield from either_log(request.param, tmp_path)


def test_the_latest_record_of_each_key_stays_at_its_offset(log: Log) -> None:
    put(log, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")])
    put(log, [(b"a", b"3"), (b"c", b"1")])
    put(log, [(b"b", b"2")])
    close_segment(log)
    end = log.log_end_offset
    result = compact(log)
    assert result is not None
    assert held(log) == [(3, b"a", b"3"), (4, b"c", b"1"), (5, b"b", b"2")]
    assert (log.log_start_offset, log.log_end_offset) == (0, end)
    assert result.records_removed >= 3
    assert result.bytes_removed > 0
    assert result.cleaned_offset == log.segment_base_offsets[-1]


def test_batches_keep_their_offsets_and_go_only_as_a_whole(log: Log) -> None:
    put(log, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")], epoch=3)
    put(log, [(b"b", b"2")], epoch=3)
    put(log, [(b"a", b"3")], epoch=4)
    put(log, [(b"x", b"1"), (b"a", b"4"), (b"y", b"1"), (b"a", b"5")], epoch=4)
    for _ in range(4):
        put(log, [(b"filler", bytes(700))], epoch=4)
    compact(log)
    found = [
        (each.base_offset, each.next_offset, each.leader_epoch, each.record_count)
        for each in scan(all_bytes(log))
    ]
    assert found[:2] == [(3, 4, 3, 1), (5, 9, 4, 3)]
    assert log.epochs == (EpochEntry(3, 0), EpochEntry(4, 4))


def test_reading_at_an_offset_that_is_gone_gives_what_follows(log: Log) -> None:
    put(log, [(b"a", b"1")])
    put(log, [(b"a", b"2")])
    put(log, [(b"b", b"1")])
    put(log, [(b"a", b"3")])
    close_segment(log)
    compact(log)
    for offset in (0, 1, 2):
        result = log.read(offset, max_bytes=1)
        assert result.range is not None
        assert scan(result.range.read_bytes())[0].base_offset == 2
        assert result.next_offset == 3


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_batches_stay_compressed(log: Log, codec: Compression) -> None:
    put(log, [(b"a", b"1"), (b"b", bytes(300))], compression=codec)
    put(log, [(b"a", b"2")], compression=codec)
    close_segment(log)
    whole = all_bytes(log)
    compact(log)
    assert held(log) == [(1, b"b", bytes(300)), (2, b"a", b"2")]
    infos = scan(all_bytes(log))
    assert [each.compression for each in infos[:2]] == [codec] * 2
    data = all_bytes(log)
    size = infos[1].size_bytes
    assert data[infos[1].position : infos[1].position + size] in whole, (
        "what nothing was taken from is as it was"
    )


def test_headers_timestamps_and_producers_are_kept(log: Log) -> None:
    data = build_batch(
        [b"a", b"b", b"c"],
        [b"1", b"2", b"3"],
        timestamps_ms=[7000, 9000, 8000],
        headers=[[("h", b"x")], [], [("n", None)]],
        producer_id=4,
        producer_epoch=1,
        base_sequence=10,
    )
    append(log, data)
    put(log, [(b"b", b"4")])
    close_segment(log)
    compact(log)
    info = scan(all_bytes(log))[0]
    assert (info.producer_id, info.producer_epoch, info.base_sequence, info.last_sequence) == (4, 1, 10, 12)
    assert info.max_timestamp == 8000, "of the records that stayed"
    found = list(records(all_bytes(log), max_records=2))
    assert [(each.timestamp_ms, each.headers) for each in found] == [
        (7000, (("h", b"x"),)),
        (8000, (("n", None),)),
    ]


def test_a_producers_last_batch_stays_without_records(log: Log) -> None:
    put(log, [(b"a", b"1"), (b"a", b"2")], at=NOW, producer_id=9, producer_epoch=2, base_sequence=5)
    put(log, [(b"a", b"3")], at=NOW)
    put(log, [(b"b", b"1")], at=1, producer_id=8, producer_epoch=0, base_sequence=0)
    put(log, [(b"b", b"2")], at=1)
    close_segment(log)
    states = log.producer_states()
    compact(log, NOW + 1000)
    first = scan(all_bytes(log))[0]
    assert (first.base_offset, first.next_offset, first.record_count, first.last_sequence) == (0, 2, 0, 6)
    assert held(log) == [(2, b"a", b"3"), (4, b"b", b"2")]
    assert [each.producer_id for each in scan(all_bytes(log))].count(8) == 1
    compact(log, NOW + 10**9)
    assert states == log.producer_states()


def test_of_several_batches_of_a_producer_the_last_stays_without_records(log: Log) -> None:
    """It alone tells which sequence follows."""
    for number in range(3):
        put(log, [(b"a", b"%d" % number)], at=NOW, producer_id=9, producer_epoch=2, base_sequence=number)
    put(log, [(b"a", b"3")], at=NOW)
    close_segment(log)
    compact(log, NOW + 1000)
    of_producer = [info for info in scan(all_bytes(log)) if info.producer_id == 9]
    assert [(info.base_offset, info.record_count, info.last_sequence) for info in of_producer] == [(2, 0, 2)]


def test_tombstones_stay_for_a_while_then_go(log: Log) -> None:
    put(log, [(b"a", b"1"), (b"b", b"1")])
    put(log, [(b"a", None), (b"c", b"1")], at=6000)
    close_segment(log)
    compact(log, NOW)
    assert held(log) == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    marked = next(each for each in scan(all_bytes(log)) if each.base_offset == 2)
    assert (marked.attributes & 0x40, marked.base_timestamp, marked.max_timestamp) == (0x40, NOW + 1000, 6000)
    assert {each.timestamp_ms for each in records(all_bytes(log), start_offset=2, max_records=2)} == {6000}
    close_segment(log)
    compact(log, NOW + 999)
    assert (2, b"a", None) in held(log)
    close_segment(log)
    compact(log, NOW + 1000)
    assert held(log) == [(1, b"b", b"1"), (3, b"c", b"1")]


def test_records_without_a_key_go_and_are_counted(log: Log) -> None:
    put(log, [(None, b"1"), (b"a", b"1"), (None, b"2")])
    close_segment(log)
    result = compact(log)
    assert result is not None
    assert (result.records_without_key, held(log)) == (2, [(1, b"a", b"1")])


def test_nothing_above_the_high_watermark_or_in_the_last_segment_counts(log: Log) -> None:
    put(log, [(b"a", b"1")])
    close_segment(log)
    first_end = log.segment_base_offsets[1]
    put(log, [(b"a", b"2")])
    close_segment(log)
    put(log, [(b"a", b"3")])
    log.maintain(NOW, high_watermark=first_end)
    assert held(log)[0] == (0, b"a", b"1"), "the replacement is not committed"
    log.maintain(NOW, high_watermark=log.segment_base_offsets[2] - 1)
    assert held(log)[0] == (0, b"a", b"1"), "nor is all of its segment"
    compact(log)
    assert [value for _, _, value in held(log)] == [b"2", b"3"]


def test_lags(log: Log) -> None:
    put(log, [(b"a", b"1")], at=NOW - 500)
    put(log, [(b"a", b"2")], at=NOW - 400)
    close_segment(log, at=NOW - 400)
    log.configure(attrs.evolve(SETTINGS, min_compaction_lag_ms=500))
    assert compact(log, NOW) is None
    assert compact(log, NOW + 101) is not None
    assert held(log) == [(1, b"a", b"2")]
    put(log, [(b"a", b"3")], at=NOW)
    log.configure(attrs.evolve(SETTINGS, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=10_000))
    assert compact(log, NOW + 9_600) is None
    assert compact(log, NOW + 9_601) is not None, "an idle segment is closed as well"
    assert held(log) == [(log.segment_base_offsets[-1] - 1, b"a", b"3")]
    assert log.segment_base_offsets[-1] == log.log_end_offset


def test_what_is_compacted_already_keeps_nothing_from_being_compacted_by_its_age(log: Log) -> None:
    """The minimal lag was raised later, or the clocks of producers differ."""
    put(log, [(b"a", b"1")], at=NOW)
    close_segment(log, at=NOW - 10_000)
    assert compact(log, NOW + 1) is not None
    put(log, [(b"a", b"2")], at=NOW - 10_000)
    close_segment(log, at=NOW - 10_000)
    log.configure(attrs.evolve(SETTINGS, min_compaction_lag_ms=5_000))
    assert compact(log, NOW + 2) is not None
    assert [value for _, key, value in held(log) if key == b"a"] == [b"2"]


def test_the_dirty_ratio_decides(log: Log) -> None:
    put(log, [(b"a%d" % at, bytes(90)) for at in range(17)])
    close_segment(log)
    assert compact(log) is not None
    log.configure(attrs.evolve(SETTINGS, min_cleanable_dirty_ratio=0.9))
    close_segment(log)
    assert compact(log) is None
    log.configure(attrs.evolve(SETTINGS, min_cleanable_dirty_ratio=0.1))
    assert compact(log) is not None
    assert compact(log) is None, "all is clean now"


def test_neighbours_that_have_shrunk_become_one_segment(log: Log) -> None:
    for at in range(12):
        put(log, [(b"a", b"%d" % at), (b"b", bytes(600))])
    before = log.segment_base_offsets
    assert len(before) == 4
    compact(log)
    assert log.segment_base_offsets == before, "going by their sizes before"
    close_segment(log)
    compact(log)
    result = log.segment_base_offsets
    assert result[0] == before[0]
    assert len(result) < len(before)
    read = log.read(0, max_bytes=10**6)
    assert read.next_offset == result[1], "each reaches up to the next"
    assert [(key, value) for _, key, value in held(log)] == [(b"a", b"11"), (b"b", bytes(600))]


def test_keys_that_do_not_fit_take_several_passes(log: Log) -> None:
    chance = random.Random(4)
    pairs: list[Pair] = []
    for _ in range(60):
        some = [(b"k%d" % chance.randrange(40), b"%d" % chance.randrange(10**6)) for _ in range(6)]
        put(log, some)  # type: ignore[arg-type]
        pairs += some
    close_segment(log)
    expected = latest(list(enumerate(pairs)))
    cut = log.segment_base_offsets[-1]
    result = compact(log, key_map_bytes=24 * 16)
    assert result is not None
    assert result.passes > 3
    assert [each for each in held(log) if each[0] < cut] == [each for each in expected if each[0] < cut]


def test_ranges_keep_their_bytes(log: Log) -> None:
    put(log, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")])
    put(log, [(b"a", b"3")])
    close_segment(log)
    range_ = log.read(0, max_bytes=10**6).range
    assert range_ is not None
    before = range_.read_bytes()
    compact(log)
    log.maintain(NOW + 1, high_watermark=0)
    assert len(all_bytes(log)) < len(before) + 5000
    assert range_.read_bytes() == before


def test_the_pace_is_kept(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("insync.storage.compaction._compaction.time.monotonic", lambda: now[0])
    monkeypatch.setattr("insync.storage.compaction._compaction.time.sleep", sleep)
    for at in range(9):
        put(log, [(b"a", b"%d" % at), (b"b", bytes(600))])
    result = compact(log, bytes_per_second=10_000)
    assert result is not None
    assert sum(slept) == pytest.approx(result.bytes_moved / 10_000)
    assert max(slept) <= 0.1


@settings(deadline=None)
@given(
    batches=st.lists(
        st.tuples(
            st.lists(
                st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 99))), min_size=1, max_size=5
            ),
            st.sampled_from(CODECS),
        ),
        min_size=1,
        max_size=25,
    ),
    passes=st.integers(1, 3),
)
def test_it_is_what_a_plain_dictionary_says(batches: list, passes: int) -> None:
    log = MemoryLog("t", 0, settings=attrs.evolve(SETTINGS, segment_bytes=1024, delete_retention_ms=10**9))
    pairs: list[Pair] = []
    for some, codec in batches:
        made = [(b"%d" % key, None if value is None else b"%d" % value) for key, value in some]
        put(log, made, compression=codec)
        pairs += made
    for at in range(passes):
        compact(log, NOW + at)
        close_segment(log)
    compact(log)
    assert held(log) == latest(list(enumerate(pairs)))


def test_with_both_policies_old_segments_go_too(log: Log) -> None:
    log.configure(attrs.evolve(SETTINGS, cleanup_policy="compact, delete", retention_ms=1000))
    put(log, [(b"old", b"1")], at=NOW - 2000)
    while len(log.segment_base_offsets) < 3:
        put(log, [(b"filler", bytes(700))], at=NOW - 2000)
    for at in range(9):
        put(log, [(b"a", b"%d" % at), (b"b", bytes(600))], at=NOW)
    result = log.maintain(NOW, high_watermark=log.log_end_offset)
    assert result.segments_deleted >= 2
    assert result.log_start_offset == log.log_start_offset > 0
    assert result.compaction is not None
    assert b"old" not in {key for _, key, _ in held(log)}


def test_the_hash_is_siphash() -> None:
    """The first and last of the reference implementation's vectors: key 00..0f, messages 00, 01, ..."""
    out = ffi.new("uint8_t[16]")
    lib.isr_siphash(ffi.from_buffer(bytes(range(16))), ffi.from_buffer(b""), 0, out)
    assert bytes(ffi.buffer(out)).hex() == "a3817f04ba25a8e66df67214c7550293"
    lib.isr_siphash(ffi.from_buffer(bytes(range(16))), ffi.from_buffer(b"\0"), 1, out)
    assert bytes(ffi.buffer(out)).hex() == "da87c1d86b99af44347659119b22fc45"


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="cleanup_policy must be delete, compact or compact,delete"):
        LogSettings(cleanup_policy="shrink")
    with pytest.raises(ValueError, match="min_cleanable_dirty_ratio must be from 0 to 1"):
        LogSettings(min_cleanable_dirty_ratio=2)
    with pytest.raises(ValueError, match=r"min_compaction_lag_ms \(5\) must not be above"):
        LogSettings(min_compaction_lag_ms=5, max_compaction_lag_ms=4)
    assert LogSettings(cleanup_policy="delete,compact") == LogSettings(cleanup_policy="compact, delete")
