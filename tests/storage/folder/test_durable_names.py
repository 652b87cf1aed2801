"""A name is on the device before anything refers to it.

Folders come before the store knows them, and partition folders before the list and before their contents.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from insync.storage import FolderProof, LogDirectory
from insync.storage import directory as directory_module
from insync.storage.directory import MANY_FOLDERS, META
from insync.storage.folder._created import FILE_NAME

IDENTITY = {"cluster_id": "c", "node_id": 1}


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The changes and syncs of names below `tmp_path`, in order; it is "." itself."""
    events: list[str] = []

    def name(path: object) -> str:
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        return os.path.relpath(os.fspath(path), tmp_path)  # type: ignore[call-overload]

    def noting(what: str, real: Callable[..., Any], which: int = 0) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            events.append(f"{what} {name(arguments[which])}")
            return real(*arguments, **options)

        return call

    for what, which in (("mkdir", 0), ("fsync", 0), ("fdatasync", 0), ("replace", 1)):
        monkeypatch.setattr(os, what, noting(what, getattr(os, what), which))
    whole = directory_module.sync_filesystem
    monkeypatch.setattr(directory_module, "sync_filesystem", noting("syncfs", whole))
    return events


def in_order(events: list[str], *wanted: str) -> bool:
    """Whether all of these are among the events, in this order."""
    left = iter(events)
    return all(each in left for each in wanted)


def test_a_new_folder_cannot_vanish_once_it_has_an_identity(tmp_path: Path, done: list[str]) -> None:
    directory = LogDirectory(tmp_path / "above" / "data", **IDENTITY)  # type: ignore[arg-type]
    directory.write_proof(FolderProof(incarnation=1, stored=0, pulse=1, revision=1))
    directory.close()
    named = f"replace above/data/{META}"
    for above in ("above", "."):
        assert in_order(done, "mkdir above/data", f"fsync {above}", named), done
    proven = "replace above/data/insync.proof"
    assert in_order(done, f"fsync above/data/{META}.tmp", named, "fsync above/data", proven), done
    assert in_order(done, f"replace above/data/{FILE_NAME}", "fsync above/data", named), done
    done.clear()
    LogDirectory(tmp_path / "above" / "data", **IDENTITY).close()  # type: ignore[arg-type]
    assert "fsync above" not in done, "once is enough"


@pytest.mark.parametrize("number", [1, MANY_FOLDERS])
def test_folders_are_planned_made_durable_and_then_said_to_be_there(
    tmp_path: Path, done: list[str], number: int
) -> None:
    directory = LogDirectory(tmp_path, **IDENTITY)  # type: ignore[arg-type]
    done.clear()
    directory.make_folders([(("t", each), "id") for each in range(number)])
    listed = f"fdatasync {FILE_NAME}"
    for each in range(number):
        made = f"mkdir t-{each}", f"replace t-{each}/partition.metadata"
        if number < MANY_FOLDERS:
            synced = [f"fsync t-{each}", "fsync ."]
        else:
            synced = [next(event for event in done if event.startswith("syncfs"))]
        assert in_order(done, listed, *made, *synced, listed), done
    assert done[0] == done[-1] == listed and done.count(listed) == 2
    directory.close()
