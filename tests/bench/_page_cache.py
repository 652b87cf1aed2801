"""The same memory and the same disk for each measure: what is taken in turn begins alike."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

BLOCK = 1 << 20


def touch(folder: Path, size: int) -> None:
    """Write so many bytes to a file and delete it.

    What a run writes then takes memory that was in use a moment ago. A virtual machine has to get other memory
    from its host first, where it was given no more yet or has given large free blocks back (free page reporting).
    300 MB are then written at 110 to 260 MB/s, not at 2,600, and take some ten times the processor time. That
    tells nothing of those who write.
    """
    block = os.urandom(BLOCK)
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(size // BLOCK):
            file.write(block)


def settle(folder: Path, size: int) -> None:
    """Before a run that writes `size` bytes, of all replicas together: no page of the one before is written back
    meanwhile, and memory for its own is there.
    """
    os.sync()
    touch(folder, size)
