"""`--busy-poll-us N` of the benchmarks: nodes take it from the environment, as they take every setting."""

from __future__ import annotations

import os

BUSY_POLL = "INSYNC_NODE_BUSY_POLL_US"


def of_producer() -> int:
    """`busy_poll_us` of a producer, the same as that of the nodes; 0 without the option."""
    return int(os.environ.get(BUSY_POLL, "0"))
