"""The settings of groups that an operator may choose; Kafka's names, and its defaults but for those marked."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .assignors.assignment import Assignor
from .assignors.names import SERVER_ASSIGNORS


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in milliseconds, sizes in bytes."""

    consumer_session_timeout_ms: int = 10_000  # Kafka: 45,000, for which partitions of a killed member wait
    consumer_heartbeat_interval_ms: int = 3_000  # Kafka: 5,000
    consumer_max_size: int = 2**31 - 1
    consumer_assignors: Sequence[Assignor] = SERVER_ASSIGNORS
    consumer_migration_policy: str = "bidirectional"
    """Whether groups move between the protocols: `bidirectional`, `upgrade`, `downgrade` or `disabled`."""
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 86_400_000
    offsets_retention_check_interval_ms: int = 600_000
    isolation_timeout_ms: int = 3_000
    """Ours: for how long a coordinator that has lost its followers may renew leases."""
