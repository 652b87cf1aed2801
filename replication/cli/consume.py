"""`insync consume`: records to lines."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import Parameter, validators

from ..core.wording import printable
from .clusters import Flag, Json, Servers, as_text, known, moment, warnings_shown
from .errors import UsageError

if TYPE_CHECKING:
    from ..client import Consumer, ConsumerRecord

_POLL_MS = 500
_NotNegative = Parameter(validator=validators.Number(gte=0))


@attrs.frozen
class _Selection:
    topic: str
    partitions: tuple[int, ...]
    offset: int | None
    from_time: int | None
    tail: int | None
    max_records: int | None
    timeout_ms: int | None
    group: str = ""


def consume(
    topic: str,
    /,
    *,
    from_beginning: Flag = False,
    offset: Annotated[int | None, _NotNegative] = None,
    from_time: str | None = None,
    tail: Annotated[int | None, _NotNegative] = None,
    partition: Annotated[
        tuple[int, ...], Parameter(show_default=False, validator=validators.Number(gte=0))
    ] = (),
    max_records: Annotated[int | None, _NotNegative] = None,
    timeout_ms: Annotated[int | None, _NotNegative] = None,
    group: str = "",
    keys: Flag = False,
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Print the records of a topic, one line each, as they are committed.

    Begins with what is written from now on, unless told otherwise, and goes on until Ctrl-C, unless bounded by
    --max-records or --timeout-ms.

    With --group several of these share the topic's partitions; what is printed is committed, so that the next one
    goes on there. --from-beginning then counts only where nothing is committed.

    Example: `insync consume orders --from-beginning --keys --timeout-ms 2000`

    Parameters
    ----------
    topic
        An existing topic.
    from_beginning
        Begin with the oldest record of each partition.
    offset
        Begin at this offset of each partition. Where it is not (any more), a line on standard error says so, and
        what is read is written from now on.
    from_time
        Begin with the first record of each partition that is of this time or later: milliseconds since 1970, or ISO
        8601 such as 2026-03-01T12:00:00 (local time, if it names no zone).
    tail
        Begin this many records before the end of each partition.
    partition
        Read only this partition; may be given several times.
    max_records
        Stop after this number of records.
    timeout_ms
        Stop when no record has arrived for this time.
    group
        The consumer group to read in.
    keys
        Print the key and a tab before the value.
    """
    from .running import run

    starts = {
        "--from-beginning": from_beginning,
        "--offset": offset is not None,
        "--from-time": from_time is not None,
        "--tail": tail is not None,
    }
    if sum(starts.values()) > 1:
        told = " and ".join(name for name, is_given in starts.items() if is_given)
        raise UsageError(f"{told} exclude each other; give one of them")
    if group and (partition or offset is not None or from_time is not None or tail is not None):
        raise UsageError(
            "--group reads what the group assigns, from where it has committed: leave out --partition, --offset, "
            "--from-time and --tail (see: insync group reset-offsets)"
        )
    time = None if from_time is None else moment("--from-time", from_time)
    selection = _Selection(topic, partition, offset, time, tail, max_records, timeout_ms, group)

    async def consume_it() -> None:
        from ..client import Consumer

        reset = "earliest" if from_beginning else "latest"
        with warnings_shown():
            options: dict[str, Any] = {"auto_offset_reset": reset}
            if group:
                options |= {"group_id": group, "enable_auto_commit": False}
            async with Consumer(known(servers), **options) as consumer:
                if group:
                    consumer.subscribe([topic])
                else:
                    await _assign(consumer, selection)
                await _print_all(
                    consumer, selection, _json_line if json else (_key_line if keys else _value_line)
                )

    return run(consume_it)


async def _assign(consumer: Consumer, selection: _Selection) -> None:
    if selection.partitions:
        consumer.assign([(selection.topic, each) for each in selection.partitions])
    else:
        await consumer.assign_topic(selection.topic)
    if selection.offset is not None:
        for partition in consumer.assignment():
            consumer.seek(partition, selection.offset)
    if selection.from_time is not None:
        wanted: dict[tuple[str, int], int] = dict.fromkeys(consumer.assignment(), selection.from_time)
        found = await consumer.offsets_for_times(wanted)
        ends = await consumer.end_offsets(found)
        for partition, offset in found.items():
            consumer.seek(partition, ends[partition] if offset is None else offset)
    if selection.tail is not None:
        starts = await consumer.beginning_offsets(consumer.assignment())
        for partition, end in (await consumer.end_offsets(starts)).items():
            consumer.seek(partition, max(starts[partition], end - selection.tail))


async def _print_all(consumer: Consumer, selection: _Selection, line: Any) -> None:
    import trio

    left = selection.max_records
    timeout = float("inf") if selection.timeout_ms is None else selection.timeout_ms / 1000
    deadline = trio.current_time() + timeout
    while left != 0:
        wait = min(deadline - trio.current_time(), _POLL_MS / 1000)
        if wait < 0:
            return
        records = await consumer.poll(int(1000 * wait))
        if records:
            deadline = trio.current_time() + timeout
            wanted = records if left is None else records[:left]
            _write([line(each) for each in wanted])
            left = None if left is None else left - len(wanted)
            if selection.group:
                await _commit(consumer, records[len(wanted) :])


async def _commit(consumer: Consumer, unprinted: Sequence[ConsumerRecord]) -> None:
    """Commit the printed records, and no more; if the group has gone on without us, others print them again."""
    from ..client import StaleMemberEpochError
    from ..client.consumer import put_back

    put_back(consumer, unprinted)
    with suppress(StaleMemberEpochError):
        await consumer.commit()


def _write(lines: Sequence[bytes]) -> None:
    sys.stdout.buffer.write(b"\n".join(lines) + b"\n")
    sys.stdout.buffer.flush()


def _value_line(record: ConsumerRecord) -> bytes:
    return record.value or b""


def _key_line(record: ConsumerRecord) -> bytes:
    return (record.key or b"") + b"\t" + (record.value or b"")


def _json_line(record: ConsumerRecord) -> bytes:
    """Bytes that are UTF-8 stand as text, others in base64 under `key_base64` and `value_base64`."""
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **as_text("key", record.key),
        **as_text("value", record.value),
    }
    if record.headers:
        fields["headers"] = [{"name": name, **as_text("value", value)} for name, value in record.headers]
    return printable(json_.dumps(fields, ensure_ascii=False)).encode()
