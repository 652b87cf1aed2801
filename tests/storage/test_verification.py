"""Verification names every defect and its place, and finds none where there is none."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.storage import Defect, DiskLog, LogDirectory, LogNotFoundError, LogSettings, verify
from insync.storage.batch import build_batch, crc32c, scan
from insync.storage.folder._sealed import sealed_table
from insync.storage.verification import partition_folders

from .building import append, batch, open_disk, table_text

SETTINGS = LogSettings(segment_bytes=4096, segment_index_bytes=400, index_interval_bytes=200)
BATCHES = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition of several segments, two epochs and a producer, stopped cleanly."""
    return build(tmp_path)


def build(place: Path) -> Path:
    directory = LogDirectory(place, cluster_id="c", node_id=1, settings=SETTINGS)
    log = directory.open_log("t", 0, create=True)
    for at in range(BATCHES):
        append(
            log,
            batch(3, mark=f"{at}:", producer_id=4, producer_epoch=0, base_sequence=3 * at, size=60),
            leader_epoch=1 + at // 40,
        )
    directory.close(high_watermarks={("t", 0): log.log_end_offset})
    return log.folder


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def change(path: Path, at: int, flip: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= flip
    path.write_bytes(data)


def only(path: Path) -> Defect:
    (defect,) = verify(path).defects
    return defect


def test_nothing_is_wrong_with_a_log_that_was_stopped(folder: Path) -> None:
    seen: list[int] = []
    found = verify(folder.parent, on_bytes=seen.append)
    assert found.defects == []
    assert (found.partitions, found.batches, found.records) == (1, BATCHES, 3 * BATCHES)
    assert found.segments == len(segments(folder)) > 2
    assert found.index_entries > found.segments
    assert sum(seen) == found.bytes == sum(path.stat().st_size for path in segments(folder))
    assert verify(folder).defects == []


def test_nothing_is_changed(folder: Path) -> None:
    change(segments(folder)[0], 100)
    before = {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}
    verify(folder.parent)
    assert before == {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}


def test_every_damaged_batch_is_named(folder: Path) -> None:
    first, second = segments(folder)[:2]
    hurt = [(first, scan(first.read_bytes())[at]) for at in (0, 2, 3)]
    hurt.append((second, scan(second.read_bytes())[1]))
    for path, info in hurt:
        change(path, info.position + 70)
    assert [(each.path, each.position, each.offset) for each in verify(folder).defects] == [
        (str(path), info.position, info.base_offset) for path, info in hurt
    ]
    assert all("CRC-32C" in each.reason for each in verify(folder).defects)


@settings(deadline=None)
@given(st.data())
def test_no_flip_of_a_log_byte_goes_unseen(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(segments(_shared(tmp_path_factory))))
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    (info,) = [each for each in scan(whole) if each.position <= at < each.position + each.size_bytes]
    change(path, at, data.draw(st.integers(1, 255)))
    try:
        defects = verify(path.parent).defects
        assert (str(path), info.position) in [(each.path, each.position) for each in defects] or (
            # A leader epoch too high is seen where the next one falls below it, or in the checkpoint.
            12 <= at - info.position < 16 and defects
        )
    finally:
        path.write_bytes(whole)


_built: list[Path] = []


def _shared(factory: pytest.TempPathFactory) -> Path:
    if not _built:
        _built.append(build(factory.mktemp("verified")))
    return _built[0]


def test_a_torn_tail_and_a_lost_one(folder: Path) -> None:
    last = segments(folder)[-1]
    whole = last.read_bytes()
    info = scan(whole)[-1]
    last.write_bytes(whole[:-5])
    torn, lost = verify(folder).defects
    assert (torn.position, torn.offset) == (info.position, info.base_offset)
    assert f"{info.size_bytes - 5} bytes, up to the end of the file" in torn.reason
    assert (lost.path, lost.offset) == (str(folder), info.base_offset)
    last.write_bytes(whole + bytes(100))
    zeros = only(folder)
    assert (zeros.position, zeros.offset) == (len(whole), info.next_offset)


def test_a_batch_that_does_not_belong_there(folder: Path) -> None:
    path = segments(folder)[0]
    infos = scan(path.read_bytes())
    change(path, infos[3].position + 7, 64)
    first, _, second = verify(folder).defects
    assert (first.position, first.offset) == (infos[3].position, infos[3].base_offset ^ 64)
    assert f"{infos[3].base_offset} should follow" in first.reason
    assert (second.position, second.offset) == (infos[4].position, infos[4].base_offset)


def test_a_false_length_hides_no_batch(folder: Path) -> None:
    path = segments(folder)[0]
    content = bytearray(path.read_bytes())
    infos = scan(content)
    struct.pack_into(">i", content, infos[2].position + 8, infos[2].size_bytes + infos[3].size_bytes - 12)
    path.write_bytes(content)
    found = verify(folder)
    assert [(each.path, each.position, each.offset) for each in found.defects] == [
        (str(path), infos[2].position, infos[2].base_offset)
    ]
    assert found.batches == BATCHES - 1


def test_a_missing_segment_and_a_compacted_log(folder: Path) -> None:
    gone = segments(folder)[1]
    gone.unlink()
    gone.with_suffix(".index").unlink()
    assert "the segment before it ends at offset" in only(folder).reason
    assert verify(folder, compacted=True).defects == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda index: change(index, 7), "no batch starts at byte"),
        (lambda index: change(index, 3), "ends at offset"),
        (lambda index: index.write_bytes(index.read_bytes() + b"\x00\x00\x00"), "not a multiple of 8"),
        (
            lambda index: index.write_bytes(index.read_bytes() + struct.pack(">ii", 9999, 9999)),
            "behind the end",
        ),
    ],
)
def test_a_false_index_entry(folder: Path, damage: Callable[[Path], object], said: str) -> None:
    index = segments(folder)[1].with_suffix(".index")
    size = index.stat().st_size
    damage(index)
    defect = only(folder)
    assert defect.path == str(index)
    assert defect.position in (0, size)
    assert said in defect.reason


def test_room_that_was_not_used_is_no_defect(folder: Path) -> None:
    index = segments(folder)[-1].with_suffix(".index")
    index.write_bytes(index.read_bytes() + bytes(80))
    assert verify(folder).defects == []


def test_time_index_entries(folder: Path) -> None:
    path = segments(folder)[0]
    infos = scan(path.read_bytes())
    index = path.with_suffix(".timeindex")
    good = struct.pack(">qi", infos[1].max_timestamp, infos[1].next_offset - 1)
    index.write_bytes(good + bytes(24))
    assert verify(folder).defects == []
    index.write_bytes(good + struct.pack(">qi", infos[2].max_timestamp + 1, infos[2].base_offset))
    defect = only(folder)
    assert (defect.path, defect.position, defect.offset) == (str(index), 12, infos[2].base_offset)
    assert "greatest timestamp" in defect.reason
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, 35, 5000)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21 : infos[0].size_bytes])))
    path.write_bytes(data)
    index.write_bytes(struct.pack(">qi", 5000, infos[0].base_offset) + good)
    assert "timestamp 1000 comes after 5000" in only(folder).reason


def test_snapshots_and_epochs(folder: Path) -> None:
    snapshot = sorted(folder.glob("*.snapshot"))[-1]
    change(snapshot, 12)
    assert only(folder).path == str(snapshot)
    change(snapshot, 12)
    epochs = folder / "leader-epoch-checkpoint"
    assert table_text(epochs) == "0\n2\n1 0\n2 120\n"
    for wrong, place, said in [
        ("0\n2\n1 0\n2 123\n", -1, "starts at 123 there, at 120 in the log"),
        ("0\n1\n1 0\n", -1, "leader epoch 2 is missing"),
        ("0\n3\n1 0\n2 120\n", 2, "2 lines follow"),
        ("0\n2\n1 0\n2 x\n", 4, "not epoch, start offset"),
        ("", 1, "version"),
    ]:
        epochs.write_text(wrong)
        defect = only(folder)
        assert (defect.path, defect.position) == (str(epochs), place)
        assert said in defect.reason


def test_epochs_that_were_not_written_yet(tmp_path: Path, folder: Path) -> None:
    """They are written with the recovery point: a process that is killed before that leaves no file."""
    log = LogDirectory(tmp_path / "killed", cluster_id="c", node_id=1, settings=SETTINGS).open_log(
        "t", 0, create=True
    )
    append(log, batch(3, mark="0:"), leader_epoch=1)
    assert not (log.folder / "leader-epoch-checkpoint").exists()
    found = verify(log.folder.parent)
    assert (found.batches, found.defects) == (1, [])
    (folder / "leader-epoch-checkpoint").unlink()
    assert ["is missing" in each.reason for each in verify(folder).defects] == [True, True]


def test_damaged_checkpoints_of_the_data_folder(folder: Path) -> None:
    table = folder.parent / "replication-offset-checkpoint"
    table.write_text("0\n1\nt 0\n")
    defect = only(folder.parent)
    assert (defect.path, defect.position) == (str(table), 3)
    table.write_bytes(sealed_table("0\n1\nt 0 5\n").replace(b"5", b"6"))
    assert "checksum does not match" in only(folder.parent).reason


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_records_that_no_writer_makes_under_a_good_crc(tmp_path: Path, codec: Any) -> None:
    log = open_disk(tmp_path / "t-0", LogSettings())
    good = build_batch([None] * 3000, [b"v"] * 3000, timestamps_ms=0, compression=codec)
    bad = bytearray(good)
    bad[-1] ^= 0x55
    struct.pack_into(">I", bad, 17, crc32c(bytes(bad[21:])))
    append(log, good, bytes(bad))
    log.close()
    defect = only(log.folder)
    assert (defect.position, defect.offset) == (len(good), 3000)
    assert "records cannot be read" in defect.reason


def test_a_data_folder_may_be_called_like_a_partition(tmp_path: Path) -> None:
    (tmp_path / "node-1").mkdir()
    folder = build(tmp_path / "node-1")
    assert verify(tmp_path / "node-1").batches == verify(folder).batches == BATCHES
    change(segments(folder)[0], 100)
    assert len(verify(tmp_path / "node-1").defects) == 1


def test_what_is_no_data_is_refused(tmp_path: Path) -> None:
    """Nothing that was looked at must not pass for nothing wrong."""
    (tmp_path / "service.log").write_text("started")
    (tmp_path / "backup-2026").mkdir()
    for folder in (tmp_path, tmp_path / "backup-2026"):
        with pytest.raises(LogNotFoundError, match="neither"):
            verify(folder)


def test_the_folder_of_data_folders_is_refused_by_their_names(tmp_path: Path) -> None:
    """As `insync up --data-dir` makes it: the names of nodes could be those of partitions."""
    for node_id in (1, 2):
        folder = tmp_path / f"node-{node_id}"
        LogDirectory(folder, cluster_id="c", node_id=node_id).close(False)
        (folder / "t-0").mkdir()
    with pytest.raises(LogNotFoundError, match=r"name one of them \(node-1, node-2\)"):
        verify(tmp_path)


def test_a_folder_is_told_by_its_files_also_where_it_has_no_records(tmp_path: Path) -> None:
    data, partition = tmp_path / "disk" / "data", tmp_path / "t-0"
    (data / "old").mkdir(parents=True)
    for folder in (data, data / "old"):
        (folder / "meta.properties").touch()
    assert partition_folders(data) == [], "whatever else lies there"
    with pytest.raises(LogNotFoundError, match=r"name one of them \(data\)"):
        partition_folders(data.parent)
    partition.mkdir()
    (partition / "partition.metadata").touch()
    assert partition_folders(partition) == [partition]


@pytest.mark.parametrize("closed", ["lost+found", "other-0"])
def test_a_folder_that_may_not_be_looked_into_is_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    """As `lost+found` on a disk of its own, which is another user's."""
    LogDirectory(tmp_path / "node-1", cluster_id="c", node_id=1).close(False)
    (tmp_path / closed).mkdir()
    exists = Path.exists

    def refused(path: Path) -> bool:
        if path.parent.name == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", refused)
    with pytest.raises(LogNotFoundError, match=r"name one of them \(node-1\)"):
        verify(tmp_path)
    (tmp_path / "node-1" / "meta.properties").unlink()
    with pytest.raises(LogNotFoundError, match="neither"):
        verify(tmp_path)


def test_a_batch_longer_than_the_window_is_followed(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    log = DiskLog(folder, "t", 0)
    append(log, batch(), batch(size=5 << 20), batch(), batch(size=5 << 20), batch())
    log.close()
    assert verify(folder).batches == 5
    assert verify(folder).defects == []
    infos = scan(segments(folder)[0].read_bytes())
    change(segments(folder)[0], infos[1].position + (3 << 20))
    defect = only(folder)
    assert (defect.position, defect.offset) == (infos[1].position, 1)
