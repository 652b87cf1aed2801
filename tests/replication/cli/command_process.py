"""Running `insync` as a process of its own, and making sure that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

DEADLINE = 60.0


class Command:
    """A started command whose output is collected while it runs."""

    def __init__(self, arguments: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "insync.replication.cli", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(self.temporary), **env},
            start_new_session=True,
        )
        self.lines: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._grown = threading.Condition()
        self._readers = [threading.Thread(target=self._read, args=(name,)) for name in self.lines]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str) -> None:
        for line in getattr(self.process, name):
            with self._grown:
                self.lines[name].append(line.decode().rstrip("\n"))
                self._grown.notify_all()
        with self._grown:
            self._grown.notify_all()

    def wait_for_line(self, text: str, name: str = "stdout") -> str:
        """The first line that contains `text`; fails if the output ends, or a minute passes, without one."""

        def found() -> str | None:
            return next((line for line in self.lines[name] if text in line), None)

        with self._grown:
            self._grown.wait_for(lambda: found() or not any(r.is_alive() for r in self._readers), DEADLINE)
            line = found()
        assert line is not None, f"no line with {text!r} came: {self.lines}"
        return line

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def finish(self) -> int:
        """Wait for the end; gives the exit status."""
        status = self.process.wait(DEADLINE)
        for reader in self._readers:
            reader.join(DEADLINE)
        for name in self.lines:
            getattr(self.process, name).close()
        return status


@contextmanager
def command(
    arguments: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
) -> Iterator[Command]:
    """Start a command; whatever happens it and its children are gone afterwards."""
    started = Command(arguments, folder, env or {})
    try:
        yield started
    finally:
        left = started.children() if started.process.poll() is None else []
        started.process.kill()
        started.finish()
        for child in left:
            if child.is_running():
                child.kill()


def in_the_end(look: Callable[[], object]) -> None:
    """Look again until all that `look` asserts or takes apart is as it should be, for a minute at most.

    A node that a busy machine stops for a second has lost its session, and is told of as gone until it is back.
    """
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            look()
            return
        except (AssertionError, ValueError):
            if time.monotonic() >= deadline:
                raise


def all_end(processes: Sequence[psutil.Process], seconds: float = 15.0) -> bool:
    """Whether all processes end within so many seconds."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    deadline = time.monotonic() + seconds
    while alive and time.monotonic() < deadline:
        alive = [each for each in alive if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    return not alive
