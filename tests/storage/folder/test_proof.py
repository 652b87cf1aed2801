"""What a folder remembers of its own age, in the files of every release."""

from __future__ import annotations

import json
from pathlib import Path

from insync.storage import FolderProof
from insync.storage.folder._proof import PROOF, read_proof, write_proof

PROVED = FolderProof(incarnation=3, stored=4, pulse=5, revision=6, leader_epoch=7)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_proof(tmp_path, "own") is None
    write_proof(tmp_path, PROVED, "own")
    assert read_proof(tmp_path, "own") == PROVED


def test_a_file_of_a_release_that_knew_no_leader_epochs_still_counts(tmp_path: Path) -> None:
    """Without it the folder would count as one that has never been: its replicas would be copied again."""
    (tmp_path / PROOF).write_text(json.dumps({"incarnation": 3, "stored": 4, "pulse": 5, "revision": 6}))
    assert read_proof(tmp_path, "own") == FolderProof(
        incarnation=3, stored=4, pulse=5, revision=6, leader_epoch=0
    )


def test_a_file_that_lacks_what_every_release_wrote_proves_nothing(tmp_path: Path) -> None:
    for text in (
        '{"incarnation": 3, "stored": 4, "pulse": 5}',
        '{"incarnation": "3"}',
        "[]",
        "",
        "{",
        "[" * 100_000,
    ):
        (tmp_path / PROOF).write_text(text)
        assert read_proof(tmp_path, "own") is None, text[:80]


def test_a_damaged_file_proves_nothing(tmp_path: Path) -> None:
    """A changed digit would make the folder older, or the store."""
    write_proof(tmp_path, PROVED, "own")
    sound = (tmp_path / PROOF).read_bytes()
    for at in range(len(sound)):
        (tmp_path / PROOF).write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        assert read_proof(tmp_path, "own") is None, at


def test_the_file_of_another_folder_proves_nothing(tmp_path: Path) -> None:
    write_proof(tmp_path, PROVED, "another")
    assert read_proof(tmp_path, "own") is None
