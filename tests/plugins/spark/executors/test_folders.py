"""Folders of runs on a host: who holds one, and what is removed when."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from insync.plugins.spark.executors import FolderError
from insync.plugins.spark.executors._folders import Claim, make_run_folder, remove_run, run_folders, sweep


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (found,) = run_folders([str(tmp_path)], "run-1")
    make_run_folder(found, "127.0.0.1:1")
    return found


def written(folder: Path, slot: int) -> Claim:
    claim = Claim(folder, slot)
    assert claim.take()
    claim.folder.mkdir(exist_ok=True)
    (claim.folder / "file").write_text("x")
    return claim


def test_each_place_has_a_folder_for_this_user_and_run(folder: Path, tmp_path: Path) -> None:
    assert folder == tmp_path / f"insync-executor-logs-{os.getuid()}" / "run-1"
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700
    assert len(run_folders(["/a", "/b"], "r")) == 2 and len(run_folders([], "r")) == 1


def test_a_slot_has_one_holder_and_the_next_one_finds_its_files(folder: Path) -> None:
    first = written(folder, 1)
    assert not Claim(folder, 1).take() and Claim(folder, 2).take()
    first.release(remove=False)
    second = Claim(folder, 1)
    assert second.take() and (second.folder / "file").exists()
    second.release(remove=True)
    assert not second.folder.exists()
    second.release(remove=True)


def test_what_a_living_node_uses_stays(folder: Path) -> None:
    living, dead = written(folder, 1), written(folder, 2)
    dead.release(remove=False)
    assert not remove_run(folder)
    assert living.folder.exists() and not dead.folder.exists()
    living.release(remove=True)
    assert remove_run(folder) and not folder.parent.exists()


def test_only_runs_whose_keeper_refuses_are_swept(tmp_path: Path) -> None:
    ours, over, alive, unclear = (run_folders([str(tmp_path)], name)[0] for name in ("a", "b", "c", "d"))
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        refusing = f"127.0.0.1:{bound.getsockname()[1]}"
        make_run_folder(ours, refusing)
        make_run_folder(over, refusing)
        make_run_folder(alive, f"127.0.0.1:{listening.getsockname()[1]}")
        make_run_folder(unclear, "no such host.invalid:1")
        for folder in (ours, over, alive, unclear):
            written(folder, 1).release(remove=False)
        sweep(ours)
    assert [each.exists() for each in (ours, over, alive, unclear)] == [True, False, True, True]


def test_a_place_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="give another data_dir"):
        make_run_folder(run_folders([str(tmp_path / "file")], "r")[0], "127.0.0.1:1")
