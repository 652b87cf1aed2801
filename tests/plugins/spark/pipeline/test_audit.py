"""The audit passes what is well and names the exact place of what is not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from insync.plugins.spark import SparkMissingError
from insync.storage import LogDirectory
from insync.storage.folder._sealed import sealed, unsealed
from tests.requires import missing
from tests.storage.building import table_text

from . import data_folders as data

try:
    from insync.plugins.spark.pipeline import AuditReport, DataFolderError, audit
except (ImportError, SparkMissingError) as error:
    missing(str(error))

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 2000
"""Of a partition: 200 batches of 10; epochs 0, 2 and 5 begin at 0, 670 and 1340."""


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return data.three(tmp_path, {0: data.batches(), 3: data.batches(20)})


def check(
    spark: SparkSession, folders: list[Path], *, range_bytes: int = 200_000, **options: object
) -> AuditReport:
    return audit(spark, folders, range_bytes=range_bytes, **options)  # type: ignore[arg-type]


def test_healthy_replicas_pass(spark: SparkSession, folders: list[Path]) -> None:
    report = check(spark, folders, range_bytes=20_000)
    assert report.ok, report
    assert (report.partitions, report.replicas, report.records) == (2, 6, 3 * (RECORDS + 200))
    assert report.offsets_compared == RECORDS + 200
    assert report.bytes == sum(path.stat().st_size for path in folders[0].parent.rglob("*.log"))
    assert report.segments == len(list(folders[0].parent.rglob("*.log")))
    assert not report.notes


def test_a_flipped_bit(spark: SparkSession, folders: list[Path]) -> None:
    data.flip_bit(folders[1], 1234)
    report = check(spark, folders)
    [defect] = report.defects
    assert (defect.replica, defect.partition, defect.offset) == ("node 2", 0, 1230)
    assert defect.reason == "CRC-32C does not match"
    assert defect.position == data.find(folders[0], 1234)[1].position
    [difference] = report.differences
    assert (difference.offset, difference.outvoted) == (1230, ("node 2",))


def test_a_missing_batch(spark: SparkSession, folders: list[Path]) -> None:
    data.remove_batch(folders[2], 555)
    report = check(spark, folders)
    [defect] = report.defects
    assert (defect.replica, defect.offset) == ("node 3", 550)
    assert "560 stands where 550 should follow" in defect.reason
    [difference] = report.differences
    assert (difference.offset, difference.reason) == (550, "a batch is missing or unreadable")
    assert difference.replicas["node 3"] == "no batch"


def test_a_missing_segment(spark: SparkSession, folders: list[Path]) -> None:
    gone, following = sorted((folders[0] / "orders-0").glob("*.log"))[1:3]
    gone.unlink()
    report = check(spark, folders)
    [defect] = report.defects
    assert defect.path == str(following)
    assert (defect.offset, defect.replica) == (int(gone.stem), "node 1")
    assert [each.offset for each in report.differences] == [int(gone.stem)]


def test_a_divergent_suffix(spark: SparkSession, tmp_path: Path) -> None:
    """One replica went on by itself from offset 1500; everything in it is sound."""
    same = data.batches()
    other = same[:150] + data.batches(mark="other")[150:]
    folders = [
        data.write_folder(tmp_path / f"node-{node}", node, {0: other if node == 2 else same})
        for node in (1, 2, 3)
    ]
    report = check(spark, folders)
    assert not report.defects
    [difference] = report.differences
    assert (difference.offset, difference.outvoted) == (1500, ("node 2",))
    assert difference.reason == "the content of the record"


def test_one_record_that_differs(spark: SparkSession, folders: list[Path]) -> None:
    data.change_record(folders[0], 1777)
    report = check(spark, folders)
    assert not report.defects
    [difference] = report.differences
    assert (difference.offset, difference.batch_offset) == (1777, 1770)
    assert difference.outvoted == ("node 1",)


@pytest.mark.parametrize(("offset", "epoch"), [(1010, 3), (1010, 1), (670, 0), (1990, 6)])
def test_a_wrong_epoch(spark: SparkSession, folders: list[Path], offset: int, epoch: int) -> None:
    data.change_epoch(folders[1], offset + 3, epoch)
    report = check(spark, folders)
    [defect] = report.defects
    assert (defect.replica, defect.offset) == ("node 2", offset)
    assert f"leader epoch {epoch} is not the" in defect.reason
    [difference] = report.differences
    assert (difference.offset, difference.reason) == (offset, "the leader epoch of the batch")


def test_a_wrong_epoch_without_a_checkpoint(spark: SparkSession, folders: list[Path]) -> None:
    data.change_epoch(folders[1], 1010, 1)
    (folders[1] / "orders-0" / "leader-epoch-checkpoint").unlink()
    falling, missing = sorted(check(spark, folders).defects, key=lambda each: -each.position)
    assert (falling.offset, falling.reason) == (1010, "leader epoch 1 is below the 2 before it")
    assert "leader-epoch-checkpoint is missing" in missing.reason


def test_nodes_that_were_killed_before_they_wrote_their_epochs(spark: SparkSession, tmp_path: Path) -> None:
    """Epochs are written with the recovery point: what lies behind that is found again in the batches."""
    content, folders = data.batches(), [tmp_path / "node-1", tmp_path / "node-2"]
    killed = []
    for number, path in enumerate(folders, 1):
        directory = LogDirectory(path, cluster_id=data.CLUSTER, node_id=number, settings=data.SMALL)
        first, second = (directory.open_log(data.TOPIC, partition, create=True) for partition in (0, 1))
        data.append(first, content[:100])
        data.append(second, content[:3])
        if number == 1:
            first.flush()
        directory.write_checkpoints({(data.TOPIC, 0): 1000, (data.TOPIC, 1): 30})
        data.append(first, content[100:])
        killed.append(directory)
    listed = table_text(folders[0] / f"{data.TOPIC}-0" / "leader-epoch-checkpoint")
    assert listed == "0\n2\n0 0\n2 670\n", "5 is not there yet"
    assert not (folders[0] / f"{data.TOPIC}-1" / "leader-epoch-checkpoint").exists()
    report = check(spark, folders)
    assert report.ok, report.defects
    for directory in killed:
        directory.close(False)


def test_a_checkpoint_that_is_wrong(spark: SparkSession, folders: list[Path]) -> None:
    path = folders[0] / "orders-0" / "leader-epoch-checkpoint"
    path.write_text(path.read_text().replace("2 670", "2 675"))
    [defect] = check(spark, folders).defects
    assert (defect.replica, defect.offset) == ("node 1", 670)
    path.write_text("0\n2\n0 0\n5 1340\n")
    report = check(spark, folders)
    assert report.defects[0].offset == 670
    assert {each.reason for each in report.defects} == {
        "leader epoch 2 is not the 0 that leader-epoch-checkpoint has for it"
    }


def test_a_log_that_lost_its_end(spark: SparkSession, folders: list[Path]) -> None:
    path, info = data.find(folders[2], 1990)
    path.write_bytes(path.read_bytes()[: info.position])
    report = check(spark, folders)
    assert [(each.offset, each.reason) for each in report.defects] == [
        (1990, "the log ends at 1990, below its high watermark 2000")
    ]
    assert [each.offset for each in report.differences] == [1990]


def test_a_torn_tail_behind_the_high_watermark_is_no_defect(spark: SparkSession, tmp_path: Path) -> None:
    folders = data.three(tmp_path, {0: data.batches()}, high_watermark=1900)
    (folders[0] / "recovery-point-offset-checkpoint").unlink()
    path, info = data.find(folders[0], 1990)
    path.write_bytes(path.read_bytes()[: info.position + 100])
    report = check(spark, folders)
    assert report.ok
    assert "at offset 1990" in report.notes[0]
    again = check(spark, folders, up_to="end")
    assert [each.offset for each in again.differences] == [1990]


def test_what_is_not_committed_may_differ(spark: SparkSession, tmp_path: Path) -> None:
    """A leader that was alone with its last batches when it died; its followers went on with another."""
    same = data.batches(150)
    old = data.write_folder(
        tmp_path / "node-1", 1, {0: [*same, (5, data.batch(10, "alone"))]}, high_watermark=1500
    )
    later = [*same, (6, data.batch(10, "elected"))]
    others = [data.write_folder(tmp_path / f"node-{node}", node, {0: later}) for node in (2, 3)]
    report = check(spark, [old, *others])
    assert report.ok
    assert report.offsets_compared == 1510
    [difference] = check(spark, [old, *others], up_to="end").differences
    assert (difference.offset, difference.outvoted) == (1500, ("node 1",))


def test_replicas_of_which_one_has_deleted_more(spark: SparkSession, tmp_path: Path) -> None:
    def retain(log: data.DiskLog) -> None:
        log.advance_log_start_offset(903)
        log.maintain(now_ms=data.TIME_MS, high_watermark=log.log_end_offset)

    folders = data.three(tmp_path, {0: data.batches()})
    folders.append(data.write_folder(tmp_path / "node-4", 4, {0: data.batches()}, then=retain))
    assert len(list(folders[3].rglob("*.log"))) < len(list(folders[0].rglob("*.log")))
    report = check(spark, folders)
    assert report.ok, report
    data.change_record(folders[0], 500)
    data.change_record(folders[3], 1204)
    [difference] = check(spark, folders).differences
    assert (difference.offset, difference.outvoted) == (500, ("node 1",))


def test_a_wrong_index_misleads_nobody(spark: SparkSession, tmp_path: Path) -> None:
    big = attrs.evolve(data.SMALL, segment_bytes=1 << 20, segment_index_bytes=1 << 16)
    folders = data.three(tmp_path, {0: data.batches()}, settings=big)
    index = folders[0] / "orders-0" / f"{0:020d}.index"
    raw = bytearray(index.read_bytes())
    for at in range(4, len(raw), 8):
        raw[at + 3] ^= 7
    index.write_bytes(raw)
    report = check(spark, folders, range_bytes=20_000)
    assert report.ok, report
    assert report.records == 3 * RECORDS
    data.flip_bit(folders[0], 1234)
    assert [each.offset for each in check(spark, folders, range_bytes=20_000).defects] == [1230]


def test_folders_that_cannot_be_audited(spark: SparkSession, folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(DataFolderError, match="is not a node's data folder"):
        check(spark, [tmp_path])
    with pytest.raises(DataFolderError, match="given twice"):
        check(spark, [folders[0], folders[0] / ".." / folders[0].name])
    with pytest.raises(DataFolderError, match="no partition of payments"):
        check(spark, folders, topics=["payments"])
    meta = folders[1] / "meta.properties"
    text = unsealed(meta.read_bytes())
    assert text is not None
    meta.write_bytes(sealed(text.replace(data.CLUSTER, "another"), comment="#"))
    with pytest.raises(DataFolderError, match="belongs to cluster"):
        check(spark, folders)


def test_a_checkpoint_that_cannot_be_read(spark: SparkSession, folders: list[Path]) -> None:
    (folders[0] / "recovery-point-offset-checkpoint").write_text("0\n5\norders 0 2000\n")
    [defect] = check(spark, folders).defects
    assert "1 lines follow" in defect.reason


# Compaction

COMPACT = attrs.evolve(
    data.SMALL, segment_bytes=4_000, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0
)


def compacted(root: Path, node: int, up_to: int) -> Path:
    """A replica whose cleaner has got so far."""

    def clean(log: data.DiskLog) -> None:
        if up_to:
            log.maintain(now_ms=data.TIME_MS, high_watermark=up_to)

    return data.write_folder(root / f"node-{node}", node, {0: data.batches(40)}, settings=COMPACT, then=clean)


@pytest.fixture
def uneven(tmp_path: Path) -> list[Path]:
    """Each key of seven recurs in every batch, so nearly all goes where a cleaner has been."""
    return [compacted(tmp_path, node, up_to) for node, up_to in ((1, 0), (2, 150), (3, 350))]


def test_replicas_that_are_compacted_differently_pass(spark: SparkSession, uneven: list[Path]) -> None:
    report = check(spark, uneven)
    assert report.ok, report
    assert report.offsets_compared == 400
    assert 400 < report.records < 1200 - 200


def test_a_record_that_differs_below_the_cleaner(spark: SparkSession, uneven: list[Path]) -> None:
    left = [
        info
        for path in sorted((uneven[2] / "orders-0").glob("*.log"))
        for info in data.scan(path.read_bytes())
    ]
    kept = next(info.next_offset - 1 for info in left if info.record_count)
    data.change_record(uneven[0], kept)
    [difference] = check(spark, uneven).differences
    assert (difference.offset, difference.reason) == (kept, "the content of the record")
    assert difference.outvoted == ("node 1",) or len(set(difference.replicas.values())) == 2


def test_a_record_that_compaction_must_keep(spark: SparkSession, tmp_path: Path) -> None:
    """Node 2 lacks the only record of a key, though nothing else shows it: offsets have gaps there anyway."""
    only = (2, data.batch(1, "only", keys=[b"once"]))
    content = [*data.batches(20, epochs=(0, 2)), only, *data.batches(40, epochs=(2, 5))]
    folders = []
    for node in (1, 2, 3):
        folders.append(
            data.write_folder(
                tmp_path / f"node-{node}",
                node,
                {0: content},
                settings=COMPACT,
                then=lambda log: log.maintain(now_ms=data.TIME_MS, high_watermark=500),
            )
        )
    assert check(spark, folders).ok
    data.remove_batch(folders[1], 200)
    report = check(spark, folders)
    [difference] = report.differences
    assert (difference.offset, difference.replicas["node 2"]) == (200, "no record")
    assert difference.reason == "a record is missing that compaction must keep"
