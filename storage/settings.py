"""Settings of a log: Kafka's topic settings under their names, with Kafka's defaults."""

from __future__ import annotations

from collections.abc import Callable

import attrs

MAX_SEGMENT_BYTES = (1 << 31) - 1
NEVER = (1 << 63) - 1
"""As a number of records or of milliseconds."""


Check = Callable[[object, "attrs.Attribute[int]", int], None]


def _between(low: int, high: int) -> Check:
    def check(settings: object, attribute: attrs.Attribute[int], value: int) -> None:
        if not low <= value <= high:
            raise ValueError(f"{attribute.name} must be from {low} to {high}, not {value}")

    return check


@attrs.frozen(kw_only=True)
class LogSettings:
    """Raises ValueError, naming the setting, for a value out of its range."""

    segment_bytes: int = attrs.field(default=1 << 30, validator=_between(1 << 10, MAX_SEGMENT_BYTES))
    """A segment that would grow over this is closed and the next one begun."""
    segment_index_bytes: int = attrs.field(default=10 << 20, validator=_between(64, MAX_SEGMENT_BYTES))
    """Room for the offset index of a segment; a full index also closes the segment."""
    index_interval_bytes: int = attrs.field(default=4096, validator=_between(0, MAX_SEGMENT_BYTES))
    """About how many bytes of log lie between two index entries."""
    flush_interval_messages: int = attrs.field(default=NEVER, validator=_between(1, NEVER))
    """So many records that are not on the device yet make a flush due. Replication makes acknowledged records
    safe, so by default only closed segments are flushed."""
    flush_interval_ms: int = attrs.field(default=NEVER, validator=_between(1, NEVER))
    """So long after the last flush another is due, if there is anything to flush."""
    file_delete_delay_ms: int = attrs.field(default=60_000, validator=_between(0, NEVER))
    """How long the files of deleted segments are kept, under another name."""
