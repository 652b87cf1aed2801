"""A thread that hangs in the device is left behind when the event loop ends, and ends quietly if it comes back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from insync.replication.node.logs._log_flusher import LogFlusher
from insync.replication.node.logs._log_writer import AppendWork, CallWork, Lane, LogWriter
from insync.storage import Chunk, LogDirectory, LogSettings
from insync.storage.batch import build_batch, scan


class Hanging:
    """A device of which a call does not return until it is let go, in threads that were not there before."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.before = {*threading.enumerate()}
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        thread = threading.current_thread()
        if thread not in self.before and thread.name.startswith("insync-"):
            self.threads.append(thread)
            self.reached.set()
            assert self.go_on.wait(60)
        return self._call(*arguments, **named)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseException | None]]:
    """The errors that threads have ended with."""
    found: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda told: found.append(told.exc_value))
    yield found


def chunk() -> Chunk:
    data = build_batch(None, [b"x" * 100], timestamps_ms=1)
    return Chunk(data, scan(data), 0, 0)


def writer(directory: LogDirectory) -> LogWriter:
    made = LogWriter("left", lambda: None, lambda error: None)
    made.start()
    opened = directory.open_log("t", 0, create=True)
    made.submit(AppendWork(Lane(failed=lambda error: None, log=opened), chunk(), lambda: None))
    return made


def beside(directory: LogDirectory) -> LogWriter:
    made = LogWriter("left", lambda: None, lambda error: None)
    made.start()
    opened = directory.open_log("t", 0, create=True)
    work = CallWork(
        Lane(failed=lambda error: None, log=opened),
        partial(opened.append, [chunk()]),
        lambda _: None,
        waits=True,
    )
    made.submit(work)
    return made


def flusher(directory: LogDirectory) -> LogFlusher:
    opened = directory.open_log("t", 0, create=True, settings=LogSettings(flush_interval_messages=1))
    opened.append([chunk()])
    made = LogFlusher(directory, 1, lambda *failed: None, lambda error: None)
    made.start()
    return made


@pytest.mark.parametrize(("begin", "call"), [(writer, "pwritev"), (beside, "pwritev"), (flusher, "fsync")])
def test_a_thread_that_comes_back_when_the_loop_has_ended_ends_without_an_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: list[BaseException | None],
    begin: Callable[[LogDirectory], LogWriter | LogFlusher],
    call: str,
) -> None:
    directory = LogDirectory(tmp_path / "data", cluster_id="c", node_id=1)
    device = Hanging(getattr(os, call))

    async def loop() -> None:
        monkeypatch.setattr(os, call, device)
        begun = begin(directory)
        with trio.fail_after(60):
            await trio.to_thread.run_sync(device.reached.wait, 60)
        # As a node that stops gives up a device that hangs.
        with trio.CancelScope() as soon:
            soon.cancel()
            await begun.stop()

    trio.run(loop)
    left = [
        each
        for each in threading.enumerate()
        if each not in device.before and each.name.startswith("insync-")
    ]
    device.go_on.set()
    assert {*device.threads} <= {*left}
    for thread in left:
        thread.join(60)
        assert not thread.is_alive(), thread.name
    assert ends == []
    directory.close(clean=False)
