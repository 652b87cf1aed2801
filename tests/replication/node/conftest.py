"""What several tests of nodes share."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from insync.replication.client import ProducerSettings
from insync.replication.core.broker.context import Context


class Wall:
    """The wall clock of the nodes in this process: a transaction is late when a test wants it to be.

    With a short timeout a machine that stands still makes it late before it is written.
    """

    def __init__(self) -> None:
        self.ahead_ms = 0

    def pass_timeout(self) -> None:
        """As long as a transaction may be open by default."""
        self.ahead_ms += ProducerSettings().transaction_timeout_ms + 1


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    wall, measured = Wall(), Context.wall_ms.fget
    assert measured is not None
    monkeypatch.setattr(Context, "wall_ms", property(lambda context: measured(context) + wall.ahead_ms))
    return wall


class Device:
    """Lets calls on files below a folder fail, or never come to an end.

    The others write, but flush nothing: the machine's own device stands still when others keep it busy, and would
    be one that hangs.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pwritev = os.pwritev
        self.refused: dict[str, int] = {}
        self.hanging: set[str] = set()
        self.go_on = threading.Event()
        monkeypatch.setattr(os, "pwritev", lambda fd, *rest: self._call("pwritev", _path(fd), fd, *rest))
        monkeypatch.setattr(os, "fsync", lambda fd: self._call("fsync", _path(fd), fd))

    def refuse(self, folder: Path, error: int) -> None:
        self.refused[str(folder)] = error

    def heal(self) -> None:
        self.refused.clear()
        self.hanging.clear()
        self.go_on.set()

    def hang(self, folder: Path) -> None:
        self.hanging.add(str(folder))

    def _call(self, name: str, path: str, *arguments: Any) -> Any:
        for folder in list(self.hanging):
            if path.startswith(folder):
                self.go_on.wait(60)
        for folder, error in list(self.refused.items()):
            if path.startswith(folder) and path.endswith(".log"):
                raise OSError(error, os.strerror(error))
        return self._pwritev(*arguments) if name == "pwritev" else None


def _path(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    device = Device(monkeypatch)
    yield device
    device.go_on.set()
