"""`insync top` as people watch it: on a terminal, over the end of a node, until Ctrl-C."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from tests.processes import cluster

_PATIENCE_SECONDS = 40


@attrs.define
class Screen:
    """What a program writes on its terminal, from the last look on."""

    process: subprocess.Popen[bytes]
    terminal: int
    text: str = ""

    def wait_for(self, words: str) -> None:
        """Return when `words` are written after what was waited for before."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while words not in self.text:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.terminal], [], [], left)[0]:
                raise AssertionError(f"{words!r} is not in {self.text!r}")
            self.text += os.read(self.terminal, 65536).decode(errors="replace")
        self.text = self.text.partition(words)[2]


@contextmanager
def on_a_terminal(*arguments: str) -> Iterator[Screen]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "insync.replication.cli", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "140", "LINES": "40"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Screen(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.slow
def test_top_renews_its_picture_until_it_is_interrupted(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as nodes:
        servers = ",".join(node.endpoint for node in nodes)
        with on_a_terminal("top", "--interval", "0.2", "--servers", servers) as screen:
            screen.wait_for("cluster ")
            screen.wait_for("cluster ")
            nodes[1].kill()
            screen.wait_for("DOWN")
            nodes[0].kill()
            screen.wait_for("no answer: ")
            screen.process.send_signal(signal.SIGINT)
            # Read on while it ends: it would wait for room on a terminal that nobody reads.
            screen.wait_for("\x1b[?25h")  # the cursor is shown again
            assert screen.process.wait(_PATIENCE_SECONDS) == 130
