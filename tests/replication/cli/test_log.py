"""`insync log`: what it shows of files, what it finds, and what it mends."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from insync.replication.cli import main
from insync.storage import Chunk, LogDirectory, LogSettings
from insync.storage.batch import build_batch, crc32c, scan

Output = pytest.CaptureFixture[str]


def build(place: Path, topics: tuple[str, ...] = ("t",), *, clean: bool = True) -> Path:
    """A data folder with three batches of two records in each topic's partition 0."""
    directory = LogDirectory(place / "data", cluster_id="c", node_id=3)
    for topic in topics:
        log = directory.open_log(topic, 0, create=True)
        for at, codec in enumerate(("none", "zstd", "none")):
            data = build_batch(
                [b"k", None],
                [b"line one\nline \x1b[2J two", b"\xff%d" % at],
                timestamps_ms=[5, 6],
                headers=[[("h", b"1")], []],
                producer_id=9,
                producer_epoch=0,
                base_sequence=2 * at,
                compression=codec,  # type: ignore[arg-type]
            )
            log.append([Chunk(data, scan(data), log.log_end_offset, 1)])
        log.flush()
    directory.write_checkpoints({})
    directory.close(clean, broker_epoch=17)
    return place / "data"


def log_of(data: Path, topic: str = "t") -> Path:
    (path,) = (data / f"{topic}-0").glob("*.log")
    return path


def lines(capsys: Output) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_dump_shows_batches_and_records(tmp_path: Path, capsys: Output) -> None:
    data = build(tmp_path)
    assert main(["log", "dump", str(data / "t-0"), "--records", "--json"]) == 0
    shown = lines(capsys)
    batches = [line for line in shown if "file" in line]
    assert [(each["base_offset"], each["last_offset"]) for each in batches] == [(0, 1), (2, 3), (4, 5)]
    assert [each["compression"] for each in batches] == ["none", "zstd", "none"]
    assert batches[1]["producer_id"] == 9
    assert batches[1]["leader_epoch"] == 1
    records = [line for line in shown if "file" not in line]
    assert [each["offset"] for each in records] == list(range(6))
    assert records[2] == {
        "offset": 2,
        "timestamp_ms": 5,
        "key": "k",
        "value": "line one\nline \x1b[2J two",
        "headers": [{"name": "h", "value": "1"}],
    }
    assert records[3]["value_base64"] == "/zE="


def test_dump_for_people_keeps_to_one_line_each(tmp_path: Path, capsys: Output) -> None:
    data = build(tmp_path)
    assert main(["log", "dump", str(log_of(data)), "--records"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 9
    assert "\x1b" not in shown
    assert "base_offset=2 last_offset=3" in shown
    assert "is_control" not in shown


def test_dump_shows_damage_where_it_is(tmp_path: Path, capsys: Output) -> None:
    data = build(tmp_path)
    path = log_of(data)
    content = bytearray(path.read_bytes())
    second = scan(content)[1]
    content[second.position + 65] ^= 1
    path.write_bytes(content)
    assert main(["log", "dump", str(path), "--json"]) == 1
    shown = lines(capsys)
    assert [bool(each.get("damaged")) for each in shown] == [False, True, False]
    assert shown[1]["position"] == second.position


def test_dump_shows_what_ends_transactions(tmp_path: Path, capsys: Output) -> None:
    marker = bytearray(build_batch([struct.pack(">hh", 0, 1)], [b"\x00" * 6], timestamps_ms=8))
    marker[22] |= 0x30
    struct.pack_into(">I", marker, 17, crc32c(bytes(marker[21:])))
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(marker)
    assert main(["log", "dump", str(path), "--records", "--json"]) == 0
    batch, record = lines(capsys)
    assert batch["is_control"]
    assert batch["is_transactional"]
    assert record == {"offset": 0, "timestamp_ms": 8, "type": "commit"}


def test_dump_shows_the_small_files(tmp_path: Path, capsys: Output) -> None:
    data = build(tmp_path)
    (snapshot,) = (data / "t-0").glob("*.snapshot")
    assert main(["log", "dump", str(snapshot), "--json"]) == 0
    batches = lines(capsys)
    assert [each["producer_id"] for each in batches] == [9, 9, 9]
    assert [(each["last_sequence"], each["last_offset"]) for each in batches] == [(1, 1), (3, 3), (5, 5)]
    assert main(["log", "dump", str(data / "t-0" / "leader-epoch-checkpoint"), "--json"]) == 0
    assert [each["line"] for each in lines(capsys)] == ["0", "1", "1 0"]
    folder = tmp_path / "indexes"
    folder.mkdir()
    for name, entry, expected in [
        (f"{40:020d}.index", struct.pack(">ii", 2, 77), {"offset": 42, "position": 77}),
        (f"{40:020d}.timeindex", struct.pack(">qi", 99, 3), {"timestamp_ms": 99, "offset": 43}),
    ]:
        (folder / name).write_bytes(entry + bytes(len(entry)))
        assert main(["log", "dump", str(folder / name), "--json"]) == 0
        assert lines(capsys) == [{"file": name, **expected}]
    snapshot.write_bytes(b"nonsense")
    assert main(["log", "dump", str(snapshot)]) == 1


@pytest.mark.parametrize("name", ["nothing", "other.txt"])
def test_dump_refuses_what_is_no_file_of_a_log(tmp_path: Path, capsys: Output, name: str) -> None:
    (tmp_path / "other.txt").write_text("x")
    assert main(["log", "dump", str(tmp_path / name)]) == 1
    assert name in capsys.readouterr().err


def test_verify_is_silent_about_what_is_good(tmp_path: Path, capsys: Output) -> None:
    data = build(tmp_path, ("t", "u"))
    assert main(["log", "verify", str(data)]) == 0
    shown, complaints = capsys.readouterr()
    assert "2 partitions" in shown
    assert "6 batches, 12 records" in shown
    assert shown.rstrip().endswith("0 defects")
    assert complaints == ""


def test_verify_names_file_position_and_offset(tmp_path: Path, capsys: Output) -> None:
    data = build(tmp_path, ("t", "u"))
    path = log_of(data, "u")
    content = bytearray(path.read_bytes())
    third = scan(content)[2]
    content[third.position + 65] ^= 1
    path.write_bytes(content)
    assert main(["log", "verify", str(data), "--json"]) == 1
    (found,) = lines(capsys)
    (defect,) = found["defects"]
    assert (defect["path"], defect["position"], defect["offset"]) == (str(path), third.position, 4)
    assert main(["log", "verify", str(data)]) == 1
    assert f"{path} at {third.position} (offset 4): CRC-32C" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["verify", "recover"])
def test_what_is_no_data_folder_is_refused_and_left_alone(
    tmp_path: Path, capsys: Output, command: str
) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        assert main(["log", command, str(folder)]) == 1
        assert str(folder) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_recover_cuts_a_torn_tail_and_leaves_no_false_marker(tmp_path: Path, capsys: Output) -> None:
    data = build(tmp_path, clean=False)
    path = log_of(data)
    with path.open("ab") as file:
        file.write(b"torn" * 30)
    assert main(["log", "recover", str(data)]) == 0
    assert "cut 120 bytes" in capsys.readouterr().out
    assert not (data / ".kafka_cleanshutdown").exists()
    assert main(["log", "verify", str(data)]) == 0
    capsys.readouterr()
    assert main(["log", "recover", str(data), "--json"]) == 0
    (report,) = lines(capsys)
    assert (report["bytes_cut"], report["log_end_offset"]) == (0, 6)


def test_recover_leaves_a_clean_folder_clean(tmp_path: Path, capsys: Output) -> None:
    data = build(tmp_path)
    before = (data / ".kafka_cleanshutdown").read_bytes()
    assert main(["log", "recover", str(data)]) == 0
    assert "t-0: clean, offsets 0 to 6" in capsys.readouterr().out
    assert (data / ".kafka_cleanshutdown").read_bytes() == before


def test_recover_makes_no_unclean_stop_a_clean_one(tmp_path: Path) -> None:
    data = build(tmp_path, (), clean=False)
    assert main(["log", "recover", str(data)]) == 0
    assert not (data / ".kafka_cleanshutdown").exists()


def test_recover_rebuilds_wrong_indexes_when_asked_to(tmp_path: Path, capsys: Output) -> None:
    data = tmp_path / "data"
    settings = LogSettings(segment_bytes=20_000)
    directory = LogDirectory(data, cluster_id="c", node_id=3, settings=settings)
    log = directory.open_log("t", 0, create=True)
    for _ in range(30):
        batch = build_batch([None], [b"x" * 2000], timestamps_ms=1)
        log.append([Chunk(batch, scan(batch), log.log_end_offset, 0)])
    directory.close()
    index = min(log.folder.glob("*.index"))
    good = index.read_bytes()
    index.write_bytes(bytes([*good[:7], good[7] ^ 1, *good[8:]]))
    assert main(["log", "verify", str(data)]) == 1
    assert f"{index} at 0" in capsys.readouterr().out
    assert main(["log", "recover", str(data)]) == 0
    assert index.read_bytes() != good
    assert main(["log", "recover", str(data), "--indexes"]) == 0
    assert main(["log", "verify", str(data)]) == 0
    assert (data / ".kafka_cleanshutdown").exists()
    assert index.read_bytes() == good


def test_recover_goes_on_past_a_damaged_log_and_says_so(tmp_path: Path, capsys: Output) -> None:
    data = build(tmp_path, ("t", "u"), clean=False)
    path = log_of(data, "t")
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    assert main(["log", "recover", str(data)]) == 1
    shown = capsys.readouterr().out
    assert f"t-0: DAMAGED: {path} is damaged at byte 0" in shown
    assert "u-0: " in shown
    assert path.read_bytes() == content


def test_recover_keeps_away_from_a_folder_in_use(tmp_path: Path, capsys: Output) -> None:
    data = build(tmp_path)
    directory = LogDirectory(data, cluster_id="c", node_id=3)
    try:
        assert main(["log", "recover", str(data)]) == 1
        assert "in use by process" in capsys.readouterr().err
    finally:
        directory.close(clean=False)


@pytest.mark.parametrize("command", ["dump", "verify", "recover"])
def test_each_explains_itself_by_an_example(command: str, capsys: Output) -> None:
    assert main(["log", command, "--help"]) == 0
    assert f"Example: insync log {command}" in " ".join(capsys.readouterr().out.split())


def on_terminal(*arguments: str, out: int) -> bytes:
    """Run a command whose standard error is a terminal; what it wrote there."""
    ours, theirs = os.openpty()
    try:
        subprocess.run(
            [sys.executable, "-m", "insync.replication.cli", *arguments],
            stdout=out,
            stderr=theirs,
            check=True,
        )
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:
            pass  # a terminal that nobody writes to any more ends in an error
        return shown
    finally:
        os.close(ours)


@pytest.mark.parametrize(
    ("what", "said"), [("dump", b"dumping"), ("verify", b"verifying"), ("recover", b"recovering")]
)
def test_long_work_shows_its_progress_on_a_terminal(tmp_path: Path, what: str, said: bytes) -> None:
    data = build(tmp_path)
    target = data / "t-0" if what == "dump" else data
    with (tmp_path / "out").open("wb") as out:
        assert said in on_terminal("log", what, str(target), out=out.fileno())
    assert (tmp_path / "out").read_text().count("\n") == (3 if what == "dump" else 1)


def test_a_dump_for_a_pager_leaves_the_terminal_alone(tmp_path: Path) -> None:
    data = build(tmp_path)
    read, write = os.pipe()
    try:
        assert on_terminal("log", "dump", str(data / "t-0"), out=write) == b""
    finally:
        os.close(write)
        os.close(read)


def test_files_that_are_named_after_no_offset_are_not_shown(tmp_path: Path, capsys: Output) -> None:
    folder = log_of(build(tmp_path)).parent
    for name in (f"{'9' * 60}.log", "copy.log", "copy.index", f"{1 << 63}.timeindex"):
        (folder / name).write_bytes(b"x" * 100)
        assert main(["log", "dump", str(folder / name)]) == 1
        assert "is not named after an offset" in capsys.readouterr().err
    assert main(["log", "dump", str(folder), "--json"]) == 0
    assert all(each["file"] == f"{0:020}.log" for each in lines(capsys) if "file" in each)
    assert main(["log", "verify", str(folder)]) == 0
