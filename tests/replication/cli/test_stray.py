"""`insync stray`: what it lists, puts back and deletes."""

from __future__ import annotations

from pathlib import Path

import pytest

from insync.replication.cli import main
from insync.storage import LogDirectory, Stray, find_strays

from .test_log import Output, build, lines


def with_stray(place: Path, topics: tuple[str, ...] = ("t",)) -> tuple[Path, Stray]:
    """A data folder whose log of t-0 was set aside."""
    data = build(place, topics)
    directory = LogDirectory(data, cluster_id="c", node_id=3)
    stray = directory.set_aside(("t", 0), "the store knows no topic t", 86_400_000)
    directory.close(broker_epoch=17)
    assert stray is not None
    return data, stray


def test_strays_are_listed(tmp_path: Path, capsys: Output) -> None:
    data, stray = with_stray(tmp_path)
    assert main(["stray", "list", str(data)]) == 0
    shown = capsys.readouterr().out
    assert f"{stray.path}: {stray.size_bytes} bytes, set aside 1970-01-02T00:00:00+00:00: the store" in shown
    assert main(["stray", "list", str(data), "--json"]) == 0
    assert lines(capsys) == [
        [
            {
                "path": str(stray.path),
                "topic": "t",
                "partition": 0,
                "size_bytes": stray.size_bytes,
                "set_aside": "1970-01-02T00:00:00+00:00",
                "why": "the store knows no topic t",
            }
        ]
    ]


def test_a_stray_is_put_back_and_what_is_in_its_place_becomes_one(tmp_path: Path, capsys: Output) -> None:
    data, stray = with_stray(tmp_path)
    assert main(["stray", "restore", str(stray.path)]) == 0
    assert "t-0 is restored, offsets 0 to 6" in capsys.readouterr().out
    assert find_strays(data) == []
    directory = LogDirectory(data, cluster_id="c", node_id=3)
    assert directory.was_clean and directory.previous_broker_epoch == 17
    again = directory.set_aside(("t", 0), "again", 1)
    assert again is not None
    directory.open_log("t", 0, create=True)
    directory.close()
    assert main(["stray", "restore", str(again.path), "--json"]) == 0
    (told,) = lines(capsys)
    (empty,) = find_strays(data)
    assert told == {
        "topic": "t",
        "partition": 0,
        "path": str(data / "t-0"),
        "log_start_offset": 0,
        "log_end_offset": 6,
        "replaced": str(empty.path),
    }
    assert empty.why == f"{again.path.name} was restored"


def test_nothing_is_put_back_under_a_running_node(tmp_path: Path, capsys: Output) -> None:
    data, stray = with_stray(tmp_path)
    directory = LogDirectory(data, cluster_id="c", node_id=3)
    try:
        assert main(["stray", "restore", str(stray.path)]) == 1
        assert "in use by process" in capsys.readouterr().err
    finally:
        directory.close(clean=False)
    assert find_strays(data) == [stray]


def test_strays_are_deleted_by_name(tmp_path: Path, capsys: Output) -> None:
    data, stray = with_stray(tmp_path, ("t", "u"))
    assert main(["stray", "delete", str(stray.path)]) == 0
    assert f"{stray.path} is deleted" in capsys.readouterr().out
    assert not stray.path.exists()
    assert (data / "u-0").is_dir()


@pytest.mark.parametrize("command", ["restore", "delete"])
def test_what_is_no_stray_is_left_alone(tmp_path: Path, capsys: Output, command: str) -> None:
    data = build(tmp_path)
    assert main(["stray", command, str(data / "t-0")]) == 1
    assert "t-0 is not a stray log" in capsys.readouterr().err
    assert (data / "t-0").is_dir()


@pytest.mark.parametrize("command", ["list", "delete"])
def test_what_is_meant_must_be_named(capsys: Output, command: str) -> None:
    assert main(["stray", command]) == 2
    assert "name the" in capsys.readouterr().err
