"""Known ways to get replication wrong, each planted over the core; the simulator must notice every one of them."""

from __future__ import annotations
