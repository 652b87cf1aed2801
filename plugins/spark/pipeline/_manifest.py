"""The state that an export keeps between runs, and how a run takes effect as a whole.

A run writes its files below `_insync/staged-...`. Then `_insync/pending.json`, which says where each goes and
what the state will be, is renamed into place: from then on the run counts. Files are moved, the state is replaced,
and the pending file goes; a run that finds one finishes that first. So a run that is killed leaves all of its
records or none, and never one twice. Tools that read the folder pass over names that begin with `_`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from ._parquet import WrittenFile, sync
from .errors import ExportStateError

FOLDER = "_insync"
_STATE, _PENDING, _LOCK = "state.json", "pending.json", "lock"
_VERSION = 1


@attrs.define
class ExportState:
    """The progress of an export. `offsets`: partition -> the first offset that is not exported."""

    topic: str
    layout: str
    """`date` or `keys`."""
    offsets: dict[int, int] = attrs.Factory(dict)
    bounds: tuple[bytes, ...] = ()
    """Of key ranges; later runs keep to them."""
    runs: int = 0
    rows: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "topic": self.topic,
            "layout": self.layout,
            "offsets": {str(partition): offset for partition, offset in sorted(self.offsets.items())},
            "bounds": [bound.hex() for bound in self.bounds],
            "runs": self.runs,
            "rows": self.rows,
        }

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> ExportState:
        if value["version"] != _VERSION:
            raise ValueError(f"version {value['version']}")
        return cls(
            topic=value["topic"],
            layout=value["layout"],
            offsets={int(partition): int(offset) for partition, offset in value["offsets"].items()},
            bounds=tuple(bytes.fromhex(bound) for bound in value["bounds"]),
            runs=value["runs"],
            rows=value["rows"],
        )


class Manifest:
    """The state of one export folder; use within `locked`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folder = root / FOLDER

    @classmethod
    @contextmanager
    def locked(cls, root: Path) -> Iterator[Manifest]:
        """For one run at a time. Finishes or clears away what a run before has left.

        Raises ExportStateError if another run is at work, or the state cannot be read.
        """
        manifest = cls(root)
        try:
            manifest._folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(manifest._folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ExportStateError(f"{root} cannot be written to: {error.strerror}") from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ExportStateError(f"another export into {root} is running; wait until it ends") from None
            manifest._recover()
            yield manifest
        finally:
            os.close(lock)

    def state(self) -> ExportState | None:
        """None before the first run that took effect."""
        found = self._read(_STATE)
        return None if found is None else self._parse(found, _STATE)

    def staging(self) -> Path:
        """A new, empty folder for the files of a run; a task that outlived its run does not write to it."""
        return Path(tempfile.mkdtemp(prefix="staged-", dir=self._folder))

    def commit(self, staged: Path, files: Sequence[WrittenFile], state: ExportState) -> None:
        """Let the staged files take effect, and with them the state."""
        for folder in {staged, *((staged / each.path).parent for each in files)}:
            sync(folder)
        paths = [each.path for each in files]
        self._write(_PENDING, {"staged": staged.name, "files": paths, "state": state.as_json()})
        self._recover()

    def _recover(self) -> None:
        pending = self._read(_PENDING)
        if pending is not None:
            state = self._parse(pending.get("state", {}), _PENDING)
            self._move(self._folder / pending["staged"], pending["files"])
            self._write(_STATE, state.as_json())
            (self._folder / _PENDING).unlink()
            sync(self._folder)
        for left in self._folder.glob("staged-*"):
            shutil.rmtree(left)

    def _move(self, staged: Path, files: Sequence[str]) -> None:
        for each in files:
            target = self.root / each
            target.parent.mkdir(parents=True, exist_ok=True)
            # What is not staged any more has been moved by the run that was interrupted.
            if (staged / each).exists():
                os.replace(staged / each, target)
        for folder in {self.root, *((self.root / each).parent for each in files)}:
            sync(folder)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self._folder / name).read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise self._unreadable(name, error) from error
        return found

    def _parse(self, value: dict[str, Any], name: str) -> ExportState:
        try:
            return ExportState.of_json(value)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._unreadable(name, error) from error

    def _unreadable(self, name: str, error: Exception) -> ExportStateError:
        return ExportStateError(
            f"{self._folder / name} is not what an export writes ({type(error).__name__}: {error}); restore it, or "
            "export into a new folder"
        )

    def _write(self, name: str, value: dict[str, Any]) -> None:
        path = self._folder / name
        temporary = path.with_suffix(".tmp")
        with temporary.open("w") as file:
            json.dump(value, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync(self._folder)
