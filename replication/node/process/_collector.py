"""Python's garbage collector in a process that is a node and nothing else."""

from __future__ import annotations

import gc

THRESHOLDS = 2_000, 10, 400
"""As many objects are gone through in all as with 20,000, 20 and 20, but 22,000 at a time and not 420,000: that
takes 10 ms and not 60 to 80."""


def collect_seldom() -> None:
    """Look for garbage less often than Python does by itself; for the main program of a process.

    A node keeps hundreds of objects for each partition, and hardly any of what it drops is in cycles. By default
    Python goes through all of them again each time that they have grown by a quarter: while 10,000 partitions were
    made that took 3.9 of 13 s of processor time, and nothing else ran for up to 0.5 s at a time.
    """
    gc.set_threshold(*THRESHOLDS)
