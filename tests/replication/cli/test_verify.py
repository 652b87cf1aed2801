"""The check finds what is wrong, names it, and is silent about what is right."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from insync.replication.cli.demo.check import Kind, first_divergence, verify
from insync.replication.cli.demo.inputs import UNACKNOWLEDGED, expect
from insync.replication.cli.demo.plant import Plant, PlantError, plant

from .replica_files import (
    PARTITIONS,
    acknowledge,
    batches,
    encode,
    expectation,
    input_lines,
    write_replica,
    write_replicas,
)


def test_whole_replicas_pass(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def note(records: int, size_bytes: int) -> None:
        seen.append((records, size_bytes))

    replicas = write_replicas(tmp_path, input_lines())
    result = verify(replicas, expectation(input_lines()), on_progress=note)
    assert result.ok and result.replicas_identical
    assert result.records == 60 and seen[-1] == (
        60,
        sum(path.stat().st_size for path in tmp_path.rglob("*.log")),
    )
    assert not result.defects


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("kind", "found"),
    [(Plant.DROP, Kind.LOST), (Plant.DOUBLE, Kind.DUPLICATED), (Plant.SWAP, Kind.OUT_OF_ORDER)],
)
def test_a_planted_defect_is_named_by_partition_offset_and_key(
    tmp_path: Path, kind: Plant, found: Kind, seed: int
) -> None:
    replicas = write_replicas(tmp_path, input_lines())
    planted = plant(kind, replicas, random.Random(seed))
    result = verify(replicas, expectation(input_lines()))
    assert result.counts == {found: 1}
    assert result.replicas_identical, "the same was planted in all replicas"
    (defect,) = result.defects
    assert defect.partition == planted.partition
    assert abs(defect.offset - planted.offset) <= 1
    assert defect.key == planted.key
    assert f"{found}: partition {planted.partition}, offset" in str(defect)


@pytest.mark.parametrize("seed", range(8))
def test_a_flipped_byte_of_one_replica_is_named(tmp_path: Path, seed: int) -> None:
    replicas = write_replicas(tmp_path, input_lines())
    planted = plant(Plant.FLIP, replicas, random.Random(seed))
    result = verify(replicas, expectation(input_lines()))
    assert not result.replicas_identical
    differing = [each for each in result.defects if each.kind is Kind.REPLICAS_DIFFER]
    assert {(each.partition, each.offset, each.key) for each in differing} == {
        (planted.partition, planted.offset, planted.key)
    }
    first_replica_is_hit = planted.nodes == (1,)
    assert result.counts[Kind.FOREIGN] == result.counts[Kind.LOST] == int(first_replica_is_hit)
    assert len(differing) == (2 if first_replica_is_hit else 1)


def test_a_byte_flipped_without_care_for_the_checksum_is_found(tmp_path: Path) -> None:
    replicas = write_replicas(tmp_path, input_lines())
    path = sorted(replicas[1][2].glob("*.log"))[0]
    data = bytearray(path.read_bytes())
    data[-3] ^= 0x10
    path.write_bytes(data)
    result = verify(replicas, expectation(input_lines()))
    assert result.counts == {Kind.REPLICAS_DIFFER: 1}
    assert result.defects[0].partition == 1 and result.defects[0].offset == 7


def test_an_unreadable_leader_replica_is_reported_with_what_it_loses(tmp_path: Path) -> None:
    replicas = write_replicas(tmp_path, input_lines())
    path = sorted(replicas[0][1].glob("*.log"))[-1]
    path.write_bytes(path.read_bytes()[:-5])
    result = verify(replicas, expectation(input_lines()))
    assert result.counts[Kind.UNREADABLE] == 1
    assert result.counts[Kind.LOST] > 0
    assert str(path) in str(result.defects[0])


def test_a_missing_tail_is_lost_and_the_replicas_differ(tmp_path: Path) -> None:
    replicas = write_replicas(tmp_path, input_lines())
    sorted(replicas[0][1].glob("*.log"))[-1].unlink()
    result = verify(replicas, expectation(input_lines()))
    assert result.counts[Kind.LOST] == 30 - 28
    assert result.counts[Kind.REPLICAS_DIFFER] == 2


def test_records_of_nobody_are_foreign(tmp_path: Path) -> None:
    lines = input_lines()
    content = [*batches(lines, 0), [(b"key-0", b"never sent")]]
    replicas = {
        partition: {1: write_replica(tmp_path / f"demo-{partition}", content)} for partition in range(1)
    }
    result = verify(replicas, expectation(lines))
    assert result.counts == {Kind.FOREIGN: 1}
    assert result.defects[0].offset == 30 and result.defects[0].key == b"key-0"


def test_a_record_that_was_never_acknowledged_may_be_there(tmp_path: Path) -> None:
    lines = input_lines()
    replicas = write_replicas(tmp_path, lines)
    acks = acknowledge(lines)
    last = len(acks.partitions) - 1
    acks.note(last, UNACKNOWLEDGED, UNACKNOWLEDGED)
    assert acks.count == last
    expected = expect(lambda: lines, acks, PARTITIONS)
    assert expected.records == last
    assert verify(replicas, expected).ok


def test_right_content_at_other_offsets_than_acknowledged_is_misplaced(tmp_path: Path) -> None:
    replicas = write_replicas(tmp_path, input_lines())
    expected = expectation(input_lines())
    expected.partitions[0].offsets[4] = 5
    result = verify(replicas, expected)
    assert result.counts == {Kind.MISPLACED: 1}
    assert "acknowledged at 5" in str(result.defects[0])


def test_offsets_must_run_on(tmp_path: Path) -> None:
    folder = write_replica(tmp_path / "demo-0", batches(input_lines(), 0))
    last = sorted(folder.glob("*.log"))[-1]
    with last.open("ab") as file:
        file.write(encode([(b"key-0", b"late")], 99))
    result = verify({0: {1: folder}}, expectation(input_lines()))
    assert result.counts == {Kind.UNREADABLE: 1}
    assert result.records == 30
    assert "base offset 99" in str(result.defects[0])


def test_a_segment_is_named_after_its_first_offset(tmp_path: Path) -> None:
    folder = write_replica(tmp_path / "demo-0", batches(input_lines(), 0))
    last = sorted(folder.glob("*.log"))[-1]
    last.rename(folder / f"{29:020d}.log")
    result = verify({0: {1: folder}}, expectation(input_lines()))
    assert result.counts == {Kind.UNREADABLE: 1, Kind.LOST: 2}
    assert "should begin at offset 28" in str(result.defects[0])


@pytest.mark.parametrize("extra", [0, 1])
def test_replicas_of_whole_mebibytes_are_compared_to_their_ends(tmp_path: Path, extra: int) -> None:
    folders = [tmp_path / name for name in ("one", "other")]
    for folder, size in zip(folders, (1 << 20, (1 << 20) + extra), strict=True):
        folder.mkdir()
        (folder / f"{0:020d}.log").write_bytes(b"x" * size)
    divergence = first_divergence(*folders)
    assert (divergence is None) == (extra == 0)
    assert divergence is None or divergence.position == 1 << 20


def test_a_replica_without_any_file_lost_everything(tmp_path: Path) -> None:
    (tmp_path / "demo-0").mkdir()
    result = verify({0: {1: tmp_path / "demo-0"}}, expectation(input_lines()))
    assert result.counts == {Kind.LOST: 30}
    assert len(result.defects) == 5, "the first few are named, all are counted"


def test_replicas_may_roll_at_different_offsets(tmp_path: Path) -> None:
    content = batches(input_lines(), 0)
    one = write_replica(tmp_path / "a", content, batches_per_segment=1)
    other = write_replica(tmp_path / "b", content, batches_per_segment=3)
    assert verify({0: {1: one, 2: other}}, expectation(input_lines())).ok


def test_a_plant_needs_two_different_neighbours(tmp_path: Path) -> None:
    folder = write_replica(tmp_path / "demo-0", [[(b"a", b"x")], [(b"b", b"x")]])
    with pytest.raises(PlantError, match="use more input"):
        plant(Plant.SWAP, {0: {1: folder}}, random.Random(1))
