"""The command line: nodes, topics, producing and consuming, a local cluster and a demonstration.

`main` is the console script `insync`. Plugins add commands through the entry point group `insync.commands`:
the entry point's name is the command, its value a function or a cyclopts `App`, imported when it is called.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence

__all__ = ["main"]

_INTERRUPTED = 128 + signal.SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return its exit status; never raises."""
    if threading.current_thread() is not threading.main_thread():
        return _run(arguments)
    # What the command line is made of takes a tenth of a second to import. A Ctrl-C then is no error to be traced.
    former = signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    try:
        from . import app  # noqa: F401
    finally:
        signal.signal(signal.SIGINT, former)
    return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    from .app import main

    return main(arguments)
