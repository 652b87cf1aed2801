"""`insync` with a dashboard that never rests between two looks, to see in a minute what many minutes do to it."""

from __future__ import annotations

import sys

from insync.plugins.dashboard import _watcher
from insync.plugins.dashboard.pages import _frame
from insync.replication.cli import main

if __name__ == "__main__":
    _watcher.LOOK_EVERY = 0.05
    _watcher.SHARE = 1e9
    _frame.REFRESH = 0.05
    sys.exit(main())
