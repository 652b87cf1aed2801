"""What a busy machine takes from a time that was measured."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def waited_for_a_processor() -> float:
    """Seconds for which the threads of this process could have run, but others had the processors.

    A bound on a measured time less this holds on a busy machine as on an idle one. 0 where the kernel does not
    count it (the second number of /proc/PID/schedstat).
    """
    nanoseconds = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has ended meanwhile
            nanoseconds += int((task / "schedstat").read_text().split()[1])
    return nanoseconds / 1e9
