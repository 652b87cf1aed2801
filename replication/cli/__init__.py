"""The command line: nodes, topics, producing and consuming, a local cluster and a demonstration.

`main` is the console script `insync`. Plugins add commands through the entry point group `insync.commands`:
the entry point's name is the command, its value a function or a cyclopts `App`, imported when it is called.
"""

from __future__ import annotations

from .app import main

__all__ = ["main"]
