"""The same memory and the same disk for each measure, so that all measures taken in turn start alike."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

BLOCK = 1 << 20


def touch(folder: Path, size: int) -> None:
    """Write `size` bytes to a file and delete it.

    The next run then writes to memory that was in use a moment ago. Any other memory a virtual machine may have to
    get from its host first, because it has never had it or has given it back in large free blocks (free page
    reporting). 300 MB are then written at 110 to 260 MB/s instead of 2,600, and take some ten times the processor
    time. That says nothing about the programs that write.
    """
    block = os.urandom(BLOCK)
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(size // BLOCK):
            file.write(block)


def settle(folder: Path, size: int) -> None:
    """Prepare for a run that writes `size` bytes in all replicas together.

    No page of the previous run is written back during it, and the memory that it needs is there.
    """
    os.sync()
    touch(folder, size)
