"""Settings of a log: Kafka's topic settings under their names, with Kafka's defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

MAX_SEGMENT_BYTES = (1 << 31) - 1
NEVER = (1 << 63) - 1
"""As a number of records or of milliseconds: no limit."""
UNLIMITED = -1
"""As a retention: no limit."""

_DAY_MS = 24 * 3600 * 1000
_POLICIES = {"delete", "compact"}

Check = Callable[[object, "attrs.Attribute[Any]", float], None]


def _between(low: float, high: float) -> Check:
    def check(settings: object, attribute: attrs.Attribute[Any], value: float) -> None:
        if not low <= value <= high:
            raise ValueError(f"{attribute.name} must be from {low} to {high}, not {value}")

    return check


def _policy(value: str) -> str:
    """The normal form: sorted, without blanks. The check reports unknown policies."""
    return ",".join(sorted({each.strip() for each in value.split(",")}))


def _known_policy(settings: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not {*value.split(",")} <= _POLICIES:
        raise ValueError(f"{attribute.name} must be delete, compact or compact,delete, not {value!r}")


@attrs.frozen(kw_only=True)
class LogSettings:
    """The settings of a log. Raises ValueError, naming the setting, for a value out of its range."""

    segment_bytes: int = attrs.field(default=1 << 30, validator=_between(1 << 10, MAX_SEGMENT_BYTES))
    """Maximum size of a segment; then the next one begins."""
    segment_ms: int = attrs.field(default=7 * _DAY_MS, validator=_between(1, NEVER))
    """A batch begins a new segment if its timestamp is more than this above the first one of the segment. Without
    timestamps the age of the segment by this machine's clock counts."""
    segment_jitter_ms: int = attrs.field(default=0, validator=_between(0, NEVER))
    """Each segment is closed earlier than `segment_ms` by a random time up to this, so that the segments of many
    partitions are not all closed at once."""
    segment_index_bytes: int = attrs.field(default=10 << 20, validator=_between(64, MAX_SEGMENT_BYTES))
    """Maximum size of a segment's offset index; a full index also closes the segment."""
    index_interval_bytes: int = attrs.field(default=4096, validator=_between(0, MAX_SEGMENT_BYTES))
    """Approximate number of log bytes between two index entries."""
    flush_interval_messages: int = attrs.field(default=NEVER, validator=_between(1, NEVER))
    """Number of unflushed records at which a flush is due. Replication makes acknowledged records safe, so by
    default
    only closed segments are flushed."""
    flush_interval_ms: int = attrs.field(default=NEVER, validator=_between(1, NEVER))
    """Time after the last flush at which another is due, if there is unflushed data."""
    durability: str = attrs.field(
        default="replicated", validator=attrs.validators.in_(("replicated", "flushed"))
    )
    """With `flushed` the thread that appends has the log flushed before it reports the append."""
    file_delete_delay_ms: int = attrs.field(default=60_000, validator=_between(0, NEVER))
    """How long the renamed files of deleted segments are kept."""
    cleanup_policy: str = attrs.field(default="delete", converter=_policy, validator=_known_policy)
    """Treatment of old segments: `delete` them when past a limit, `compact` them to the latest record of each
    key, or both (`compact,delete`)."""
    retention_ms: int = attrs.field(default=7 * _DAY_MS, validator=_between(UNLIMITED, NEVER))
    """With `delete`: segments whose newest record is older are deleted; -1: none."""
    retention_bytes: int = attrs.field(default=UNLIMITED, validator=_between(UNLIMITED, NEVER))
    """With `delete`: the oldest segments are deleted while at least this much is left; -1: none."""
    min_cleanable_dirty_ratio: float = attrs.field(default=0.5, validator=_between(0, 1))
    """With `compact`: the share of bytes never compacted, of those that may be, that starts a compaction."""
    min_compaction_lag_ms: int = attrs.field(default=0, validator=_between(0, NEVER))
    """With `compact`: records younger than this are not compacted, nor is the rest of their segment."""
    max_compaction_lag_ms: int = attrs.field(default=NEVER, validator=_between(1, NEVER))
    """With `compact`: records older than this are compacted regardless of the dirty ratio; segments are closed
    after
    this time at the latest."""
    delete_retention_ms: int = attrs.field(default=_DAY_MS, validator=_between(0, NEVER))
    """With `compact`: how long after its key was first compacted a record without a value (a tombstone) stays, for
    readers to learn of the deletion."""
    producer_id_expiration_ms: int = attrs.field(default=_DAY_MS, validator=_between(1, NEVER))
    """With `compact`: the last batch of an idempotent producer stays, without records if need be, until it is
    older than this."""

    def __attrs_post_init__(self) -> None:
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ValueError(
                f"min_compaction_lag_ms ({self.min_compaction_lag_ms}) must not be above max_compaction_lag_ms "
                f"({self.max_compaction_lag_ms})"
            )

    @property
    def flushes(self) -> bool:
        """Whether an append counts only when the device has it."""
        return self.durability == "flushed"

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def roll_ms(self) -> int:
        """Maximum age of the segment that is being written, because only closed segments are compacted."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms
