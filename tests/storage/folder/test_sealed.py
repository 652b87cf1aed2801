"""Small files with a checksum: no damage of one byte, and no shorter file, says anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from insync.storage import FolderProof, LogDirectory, LogDirectoryError, read_identity, verify
from insync.storage._files import read_table, table
from insync.storage.folder._checkpoints import NAMES
from insync.storage.folder._sealed import sealed, unsealed, unsealed_table

from ..building import fill, table_text
from .test_whose_folder import damaged_forms

KEY = ("t", 0)


@pytest.mark.parametrize("rows", [["t 0 5\n"], ["a-1 10 900\n", "b 2 0\n"], ["3 0\n", "5 120\n"]])
def test_damage_of_a_table_is_seen(tmp_path: Path, rows: list[str]) -> None:
    path = tmp_path / "table"
    content = table(rows)
    path.write_bytes(content)
    right = read_table(path)
    assert right == [row.split() for row in rows]
    for name, damaged in damaged_forms(content).items():
        path.write_bytes(damaged)
        assert read_table(path) is None, name


def test_kafkas_readers_find_the_rows_of_a_table() -> None:
    """They split a row at white space, and drop what is empty at its end."""
    version, count, *rows = table(["t 0 5\n", "u 1 7\n"]).decode().splitlines()
    assert (version, count) == ("0", "2")
    assert [row.split() for row in rows] == [["t", "0", "5"], ["u", "1", "7"]]


@pytest.mark.parametrize("content", [b"0\n0\n", b"0\n1\nt 0 5\n", b"0\n2\nt 0 5\nu 0 1\n"])
def test_a_table_of_kafkas_needs_no_checksum(content: bytes) -> None:
    assert unsealed_table(content) == content.decode()


def test_damage_of_lines_is_seen() -> None:
    content = sealed("one\ntwo\n")
    assert unsealed(content) == "one\ntwo\n"
    for name, damaged in damaged_forms(content).items():
        # A file that lost its last line, or the word that begins it, is for its reader to judge.
        assert unsealed(damaged) in (None, damaged.decode(errors="replace")), name


def opened(path: Path) -> LogDirectory:
    return LogDirectory(path, cluster_id="c", node_id=1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_checkpoint_is_named_and_costs_no_record(tmp_path: Path, name: str, clean: bool) -> None:
    directory = opened(tmp_path)
    log = directory.open_log(*KEY, create=True, topic_id="i")
    fill(log, [3, 4])
    log.flush()
    directory.write_checkpoints({KEY: 7})
    directory.close(clean)
    path = tmp_path / name
    path.write_bytes(table(["t 0 5\n"]).replace(b"5", b"7"))
    directory = opened(tmp_path)
    assert directory.damaged == {path: "the logs are read without it"}
    log = directory.open_log(*KEY, create=False, topic_id="i")
    assert (log.log_start_offset, log.log_end_offset) == (0, 7)
    directory.write_checkpoints({KEY: 7})
    directory.close()
    directory = opened(tmp_path)
    assert name == "cleaner-offset-checkpoint" or table_text(path).endswith(("7\n", "0\n"))
    directory.open_log(*KEY, create=False, topic_id="i")
    directory.close()


@pytest.mark.parametrize("clean", [True, False])
def test_damaged_epochs_are_found_again_in_the_batches(tmp_path: Path, clean: bool) -> None:
    mended: list[Path] = []
    directory = opened(tmp_path)
    log = directory.open_log(*KEY, create=True, topic_id="i")
    for epoch in (2, 5, 9):
        fill(log, [3, 4], leader_epoch=epoch)
    epochs = log.epochs
    log.flush()
    directory.write_checkpoints({KEY: 21})
    directory.close(clean)
    path = tmp_path / "t-0" / "leader-epoch-checkpoint"
    right = path.read_bytes()
    path.write_bytes(right.replace(b"5 7", b"5 8"))
    directory = LogDirectory(
        tmp_path, cluster_id="c", node_id=1, on_mended=lambda key, path, why: mended.append(path)
    )
    log = directory.open_log(*KEY, create=False, topic_id="i")
    assert log.epochs == epochs
    assert mended == [path]
    directory.close()
    assert path.read_bytes() == right
    assert not verify(tmp_path).defects


def test_a_damaged_identity_is_refused(tmp_path: Path) -> None:
    """It would be that of another cluster, node or directory."""
    opened(tmp_path).close()
    path = tmp_path / "meta.properties"
    right = path.read_bytes()
    for name, damaged in damaged_forms(right).items():
        path.write_bytes(damaged)
        try:
            found = read_identity(tmp_path)
        except LogDirectoryError as error:
            assert str(path) in str(error)
        else:
            path.write_bytes(right)
            assert found == read_identity(tmp_path), name


def test_a_damaged_proof_is_named(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    assert directory.damaged == {}
    directory.write_proof(FolderProof(incarnation=3, stored=4, pulse=5, revision=6))
    directory.close()
    path = tmp_path / "insync.proof"
    path.write_bytes(path.read_bytes().replace(b"5", b"4"))
    directory = opened(tmp_path)
    assert directory.proof is None
    assert directory.damaged == {path: "the directory counts as one that was restored to an older state"}
    directory.close()
