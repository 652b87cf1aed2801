"""What a job is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from .cluster import Cluster

Tell = Callable[[str, Any], None]
"""A title, and plain values."""
Job = Callable[[Cluster, Tell], Awaitable[None]]
