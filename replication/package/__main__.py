"""`python -m insync` is the command line `insync`."""

from __future__ import annotations

import sys

from insync.replication.cli import main

if __name__ == "__main__":
    sys.exit(main())
