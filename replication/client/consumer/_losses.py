"""The errors for a reader when records that it was to read are gone: which ones, and by what."""

from __future__ import annotations

from collections.abc import Mapping

from ...core.types import PartitionId, Value
from ..errors import LossCause, OffsetOutOfRangeError

_REMEDY = "seek to an offset that exists, or set auto_offset_reset to earliest or latest"


def deleted(
    at: PartitionId, offset: int, start: int, end: int, config: Mapping[str, Value]
) -> OffsetOutOfRangeError:
    """The oldest records were deleted before this reader came to them."""
    text = (
        f"{at}: offset {offset} is out of range, the log holds [{start}, {end}); "
        f"offsets {offset} to {start - 1} are gone, deleted by {_deleter(config)}; {_REMEDY}"
    )
    return _error(text, at, offset, start, end, (offset, start), "deletion")


def truncated(at: PartitionId, cut: int, seen: int, start: int, end: int) -> OffsetOutOfRangeError:
    """The log was cut below what this reader has read."""
    text = (
        f"{at}: the log was cut at offset {cut}, and this reader has read up to {seen}: what it read "
        f"at {cut} to {seen - 1} is lost, by an unclean election or damage to a log, and other "
        "records may stand there now "
        f"(the log holds [{start}, {end})); undo the effects of these records, and {_REMEDY}"
    )
    return _error(text, at, seen, start, end, (cut, seen), "truncation")


def past_the_end(at: PartitionId, offset: int, start: int, end: int) -> OffsetOutOfRangeError:
    """Nobody knows whether there ever was a record."""
    text = (
        f"{at}: offset {offset} is out of range, the log holds [{start}, {end}): it was never written, or was lost "
        f"by an unclean election or with a former topic of that name; {_REMEDY}"
    )
    return _error(text, at, offset, start, end, None, "")


def recreated(at: PartitionId, offset: int | None, former: str, present: str) -> OffsetOutOfRangeError:
    """The topic was deleted, and there is another one of its name; ids of both."""
    text = (
        f"{at}: the topic (id {former}) was deleted and another of the same name created (id {present}): records "
        f"of the old topic from offset {offset} on are lost unread, and offsets now refer to the new topic; "
        f"{_REMEDY}"
    )
    error = _error(text, at, -1 if offset is None else offset, -1, -1, None, "recreation")
    error.topic_ids = former, present
    return error


def _deleter(config: Mapping[str, Value]) -> str:
    limits = [
        f"{name}={config[name]}" for name in ("retention_ms", "retention_bytes") if _limits(config, name)
    ]
    if config and (not limits or "delete" not in str(config.get("cleanup_policy", "delete"))):
        return "`insync topic delete-records`"
    said = f" ({', '.join(limits)})" if limits else ""
    return f"retention{said} or `insync topic delete-records`"


def _limits(config: Mapping[str, Value], name: str) -> bool:
    value = config.get(name)
    return isinstance(value, int) and value >= 0


def _error(
    text: str,
    at: PartitionId,
    offset: int,
    start: int,
    end: int,
    lost: tuple[int, int] | None,
    by: LossCause,
) -> OffsetOutOfRangeError:
    error = OffsetOutOfRangeError(text)
    error.topic, error.partition = at
    error.offset, error.log_start_offset, error.end_offset = offset, start, end
    error.lost, error.by = lost, by
    return error
