"""A data folder's notes of its own age, so that an older copy of it is told from the folder itself."""

from __future__ import annotations

import json
from pathlib import Path

import attrs

from .._files import replace_file, storage_error
from .._opening import read_file
from ._sealed import sealed, unsealed

PROOF = "insync.proof"
_DIRECTORY = "directory_id"


@attrs.frozen(kw_only=True)
class FolderProof:
    """A point in the life of a data folder. Each number only rises; the metadata store keeps a copy of `pulse`.

    The folder is written before the store, so the store's copy lies between `stored` and `pulse`: a greater one
    shows that the folder was put back to an older state, a lower one that the store was.

    incarnation: the process that wrote this.
    stored: the greatest pulse that the store is known to have.
    pulse: the greatest pulse that the store may have.
    revision: the greatest revision of the store that any process of this folder has seen.
    leader_epoch: the greatest leader epoch that the store had when a process of this folder came in.
    """

    incarnation: int
    stored: int
    pulse: int
    revision: int
    leader_epoch: int = 0


def read_proof(folder: Path, directory_id: str) -> FolderProof | None:
    """The last written proof; None if there is none, none that can be read, or that of another folder."""
    try:
        text = unsealed(read_file(folder / PROOF))
        if text is None:
            return None
        found = json.loads(text)
        # Earlier releases wrote neither.
        found = {"leader_epoch": 0, _DIRECTORY: directory_id, **found}
        if found[_DIRECTORY] != directory_id:
            return None
        values = {field.name: found[field.name] for field in attrs.fields(FolderProof)}
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return FolderProof(**values) if all(type(value) is int for value in values.values()) else None


def write_proof(folder: Path, proof: FolderProof, directory_id: str) -> None:
    """Make it durable before anything else is done.

    Raises StorageError if the device refuses; what was there before stands then.
    """
    try:
        text = json.dumps({_DIRECTORY: directory_id, **attrs.asdict(proof)})
        replace_file(folder / PROOF, sealed(text + "\n"))
    except OSError as error:
        raise storage_error(error, f"cannot write {folder / PROOF}") from error
