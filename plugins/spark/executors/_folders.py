"""Where logs stand on an executor's host: a folder for each run and slot, locked by the node that uses it.

    DIR/insync-executor-logs-UID/RUN/node-SLOT        the log directory of a node
    DIR/insync-executor-logs-UID/RUN/node-SLOT.lock   locked as long as the node's process lives
    DIR/insync-executor-logs-UID/RUN/owner            host:port of the run's directory

An executor that replaces another on the same host finds the logs of the slot, and catches up from there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from .errors import FolderError

_OWNER = "owner"
_LOOK_SECONDS = 1.0
_PRIVATE = 0o700


def run_folders(places: Sequence[str], run: str) -> tuple[Path, ...]:
    """The folders of a run, one in each place; without a place in the system's folder for temporary files."""
    found = places or (tempfile.gettempdir(),)
    return tuple(Path(place) / f"insync-executor-logs-{os.getuid()}" / run for place in found)


def make_run_folder(folder: Path, owner: str) -> None:
    """Make it, for this user alone, and say whose it is.

    Raises:
      FolderError: It cannot be made, or belongs to somebody else.
    """
    try:
        for each in (folder.parent, folder):
            each.mkdir(_PRIVATE, parents=True, exist_ok=True)
            if each.stat().st_uid != os.getuid():
                raise FolderError(f"{each} belongs to another user; give another data_dir")
        (folder / _OWNER).write_text(owner)
    except OSError as error:
        raise FolderError(
            f"{folder} cannot be used for logs: {error.strerror or error}; give another data_dir"
        ) from error


class Claim:
    """The lock on a slot's folder. It goes with the process, however that ends."""

    def __init__(self, folder: Path, slot: int) -> None:
        self._lock = folder / f"node-{slot}.lock"
        self._descriptor = -1
        self.folder = folder / f"node-{slot}"

    def take(self) -> bool:
        """Whether the lock is ours now. OSError if the folder is gone, or cannot be written."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(self._lock), os.fstat(descriptor)):
                self._descriptor, descriptor = descriptor, -1
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return False

    def release(self, *, remove: bool) -> None:
        """Let it go; with `remove` the logs go before."""
        if self._descriptor < 0:
            return
        if remove:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._lock.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1


def remove_run(folder: Path) -> bool:
    """Remove all that no living node uses; whether nothing is left."""
    with contextlib.suppress(OSError):
        for lock in sorted(folder.glob("node-*.lock")):
            claim = Claim(folder, int(lock.stem.removeprefix("node-")))
            if claim.take():
                claim.release(remove=True)
        if not any(folder.glob("node-*")):
            (folder / _OWNER).unlink(missing_ok=True)
            folder.rmdir()
            folder.parent.rmdir()
    return not folder.exists()


def sweep(folder: Path) -> None:
    """Remove what runs have left behind that were killed with all their processes: `folder` is that of ours."""
    for other in _others(folder):
        if _is_over(other):
            remove_run(other)


def _others(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from (each for each in sorted(folder.parent.iterdir()) if each.name != folder.name)


def _is_over(folder: Path) -> bool:
    """Whether the host of the run's directory says that nobody listens there; silence says nothing."""
    try:
        host, _, port = (folder / _OWNER).read_text().rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), _LOOK_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False
    return False
