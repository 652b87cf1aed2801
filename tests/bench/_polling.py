"""Nodes, and a producer, that poll instead of sleeping (`busy_poll_us`): the rows of latency measure these, too."""

from __future__ import annotations

BUSY_POLL_US = 20_000
"""Longer than the time between two records at the lowest rate that is measured."""
ENV = {"INSYNC_NODE_BUSY_POLL_US": str(BUSY_POLL_US)}
TITLE = f"busy_poll_us={BUSY_POLL_US}"
