"""`insync bench`: how fast a cluster takes records, and gives them back."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
from cyclopts import App, Parameter, validators

from .clusters import Flag, Json, Servers, known, print_json, say
from .errors import CommandError, UsageError

if TYPE_CHECKING:
    from ..client import Consumer, Deliveries, Producer

app = App(
    name="bench", help="Measure the produce and consume throughput of a cluster.", help_format="markdown"
)

_CHUNK = 1000
_PERCENTILES = (50, 95, 99, 99.9)
_AtLeastOne = Parameter(validator=validators.Number(gte=1))
_NotNegative = Parameter(validator=validators.Number(gte=0))
_Above = Parameter(validator=validators.Number(gt=0))


@attrs.frozen
class _Load:
    topic: str
    records: int
    record_size: int
    rate: float | None


@app.command
def produce(
    topic: str,
    /,
    *,
    records: Annotated[int, _AtLeastOne] = 100_000,
    record_size: Annotated[int, _AtLeastOne] = 1024,
    rate: Annotated[float | None, _Above] = None,
    acks: Literal["all", "1", "0"] = "all",
    batch_size: Annotated[int, _AtLeastOne] = 16_384,
    linger_ms: Annotated[int, _NotNegative] = 5,
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none",
    client_id: str = "insync-bench",
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Write records of random bytes to a topic, and say how many went per second and how long they took.

    The latency is from handing records to the producer until all of them are acknowledged: a thousand at a time, or
    with --rate the records that are due at once (one, at low rates).

    Example: `insync bench produce load --records 100000 --record-size 100 --json`

    Parameters
    ----------
    topic
        An existing topic; it keeps the records.
    records
        How many.
    record_size
        Bytes of each value.
    rate
        Records a second to keep to; as many as go if left out.
    acks
        When a record counts as written: all in-sync replicas have it, its leader (1) has it, or it was sent (0).
    batch_size
        Bytes of records that go into one batch.
    linger_ms
        How long a batch waits to become full.
    compression_type
        Random bytes do not become smaller by it.
    client_id
        What the producer calls itself; the nodes may have a limit for it.
    """
    from .running import run

    load = _Load(topic, records, record_size, rate)
    options: dict[str, Any] = {
        "acks": acks if acks == "all" else int(acks),
        "batch_size": batch_size,
        "linger_ms": linger_ms,
        "compression_type": compression_type,
        "client_id": client_id,
    }

    async def measure() -> None:
        from ..client import Producer

        async with Producer(known(servers), **options) as producer:
            await producer.prepare(topic)
            report = await _produce(producer, load)
        _print(report, json)

    return run(measure)


async def _produce(producer: Producer, load: _Load) -> dict[str, Any]:
    import trio

    latencies: list[float] = []
    value = os.urandom(load.record_size)
    start = trio.current_time()

    async def await_all(deliveries: Deliveries, since: float) -> None:
        await deliveries.wait()
        latencies.append(trio.current_time() - since)

    async with trio.open_nursery() as nursery:
        sent = 0
        while sent < load.records:
            count = min(_CHUNK, load.records - sent)
            if load.rate is not None:
                due = int((trio.current_time() - start) * load.rate) + 1 - sent
                if due <= 0:
                    await trio.sleep_until(start + sent / load.rate)
                    continue
                count = min(count, due)
            since = trio.current_time()
            deliveries = await producer.send_many(load.topic, [value] * count)
            nursery.start_soon(await_all, deliveries, since)
            sent += count
    return _report(load.records, load.records * load.record_size, trio.current_time() - start, latencies)


@app.command
def consume(
    topic: str,
    /,
    *,
    records: Annotated[int | None, _AtLeastOne] = None,
    seconds: Annotated[float | None, _Above] = None,
    follow: Flag = False,
    client_id: str = "insync-bench",
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Read a topic from its beginning to what is its end now, and say how many records went per second.

    With --follow it reads what is written from now on, for --seconds or --records. Then the latency is from a
    record's timestamp (the producer's clock) until it was read here.

    Example: `insync bench consume load --json`

    Parameters
    ----------
    topic
        An existing topic.
    records
        Stop after this number of records.
    seconds
        Stop after this time.
    follow
        Read what comes, not what is there.
    client_id
        What the consumer calls itself; the nodes may have a limit for it.
    """
    from .running import run

    if follow and records is None and seconds is None:
        raise UsageError("--follow never ends: limit it with --seconds or --records")

    async def measure() -> None:
        from ..client import Consumer

        reset: Any = "latest" if follow else "earliest"
        async with Consumer(known(servers), auto_offset_reset=reset, client_id=client_id) as consumer:
            report = await _consume(consumer, topic, records, seconds, follow)
        _print(report, json)

    return run(measure)


async def _consume(
    consumer: Consumer, topic: str, records: int | None, seconds: float | None, follow: bool
) -> dict[str, Any]:
    import trio

    partitions = await consumer.assign_topic(topic)
    ends = {} if follow else await consumer.end_offsets(partitions)
    if not follow and ends == await consumer.beginning_offsets(partitions):
        raise CommandError(f"topic {topic!r} is empty: write to it first, e.g. insync bench produce {topic}")
    start = trio.current_time()
    deadline = start + (seconds if seconds is not None else float("inf"))
    count, size, latencies = 0, 0, []
    while (records is None or count < records) and trio.current_time() < deadline:
        if not follow and all((consumer.position(each) or 0) >= ends[each] for each in partitions):
            break
        wait = min(0.2, max(0.0, deadline - trio.current_time()))
        found = await consumer.poll(timeout_ms=int(1000 * wait) + 1)
        count += len(found)
        size += sum(len(each.value or b"") + len(each.key or b"") for each in found)
        if follow and found:
            now = time.time() * 1000
            latencies += [max(0.0, now - each.timestamp_ms) / 1000 for each in found]
    return _report(count, size, trio.current_time() - start, latencies)


def _report(records: int, size: int, seconds: float, latencies: Sequence[float]) -> dict[str, Any]:
    seconds = max(seconds, 1e-9)
    return {
        "records": records,
        "bytes": size,
        "seconds": round(seconds, 3),
        "records_per_second": round(records / seconds, 1),
        "mib_per_second": round(size / seconds / (1 << 20), 3),
        "latency_ms": {f"p{at:g}": round(1000 * percentile(latencies, at), 3) for at in _PERCENTILES}
        | {"max": round(1000 * max(latencies), 3)}
        if latencies
        else {},
    }


def percentile(values: Sequence[float], at: float) -> float:
    """The least value that is not below `at` percent of them (nearest rank)."""
    ordered = sorted(values)
    rank = -(-len(ordered) * at // 100)
    return ordered[max(0, min(len(ordered), int(rank)) - 1)]


def _print(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    say(
        f"{report['records']:,} records, {report['bytes']:,} bytes in {report['seconds']:g} s: "
        f"{report['records_per_second']:,.0f} records/s, {report['mib_per_second']:,.1f} MiB/s"
    )
    if report["latency_ms"]:
        say("latency " + ", ".join(f"{name} {value:g} ms" for name, value in report["latency_ms"].items()))
