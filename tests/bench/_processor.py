"""Processor time and memory of processes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path


def seconds_of(processes: Sequence[int]) -> float:
    """What these processes, by id, have used so far, in seconds; to a hundredth of one or so."""
    total = 0
    for each in processes:
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def share_of(processes: Sequence[int], seconds: float) -> float:
    """The share of a core that these processes use together during `seconds`; 1 is one core."""
    before, start = seconds_of(processes), time.monotonic()
    time.sleep(seconds)
    return (seconds_of(processes) - before) / (time.monotonic() - start)


def resident(pid: int) -> int:
    """Bytes of memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
