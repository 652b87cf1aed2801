"""The handle: what a task needs to find the logs. It is pickled into closures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs

from ....replication.client import (
    BlockingAdmin,
    BlockingConsumer,
    BlockingDeliveries,
    BlockingProducer,
    ConsumerRecord,
)
from .._offsets import Range
from ..errors import SchemaError, StalledError

_CHUNK = 4096
"""Records handed over at once."""
_MOST_CHUNKS = 4
"""On their way before the next one is begun."""
_POLL_MS = 1000
_STALLED_POLLS = 30


@attrs.frozen
class LogsHandle:
    """How to reach the logs of an `ExecutorLogs`, from its driver and from every task.

    servers: `spark://host:port`, which leads to the nearest node, wherever it is asked.
    secret: of this run alone.
    """

    servers: str
    secret: str = attrs.field(repr=False)

    def producer(self, **settings: Any) -> BlockingProducer:
        """A producer; settings are fields of `ProducerSettings`. Raises as `BlockingProducer` does."""
        return BlockingProducer(self.servers, secret=self.secret, **settings)

    def consumer(self, **settings: Any) -> BlockingConsumer:
        """A consumer; settings are fields of `ConsumerSettings`. Raises as `BlockingConsumer` does."""
        return BlockingConsumer(self.servers, secret=self.secret, **settings)

    def admin(self, **settings: Any) -> BlockingAdmin:
        """An admin client; settings are fields of `ClientSettings`. Raises as `BlockingAdmin` does."""
        return BlockingAdmin(self.servers, secret=self.secret, **settings)

    @property
    def options(self) -> dict[str, str]:
        """Options of the format `insync`: `df.write.format("insync").options(**logs.options)`."""
        return {"servers": self.servers, "secret": self.secret}

    def write_partition(self, topic: str, **settings: Any) -> Callable[[Iterable[Any]], None]:
        """A function for `foreachPartition`, of an RDD or a DataFrame, that writes all that it is given.

        Elements are values (bytes or text), pairs of key and value, or rows with a column `value` and, where
        wanted, `key`. It comes back when all are committed. A task that Spark runs again writes all of its records
        again; `exactly_once(df)` does not. settings: fields of `ProducerSettings`.

        Raises (in the task):
          SchemaError: An element is none of these.
          ClientError: Records could not be written.
        """
        return PartitionWriter(self, topic, settings)


@attrs.frozen
class PartitionWriter:
    """Writes the elements of one partition; see `LogsHandle.write_partition`."""

    handle: LogsHandle
    topic: str
    settings: dict[str, Any]

    def __call__(self, elements: Iterable[Any]) -> None:
        waiting: list[BlockingDeliveries] = []
        with self.handle.producer(**self.settings) as producer:
            for keys, values in _chunks(elements):
                if len(waiting) >= _MOST_CHUNKS:
                    waiting.pop(0).result()
                waiting.append(producer.send_many(self.topic, values, keys))
            for deliveries in waiting:
                deliveries.result()


def _chunks(elements: Iterable[Any]) -> Iterator[tuple[list[bytes | None] | None, list[bytes | None]]]:
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    for element in elements:
        key, value = _pair(element)
        keys.append(key)
        values.append(value)
        if len(values) == _CHUNK:
            yield (keys if any(key is not None for key in keys) else None), values
            keys, values = [], []
    if values:
        yield (keys if any(key is not None for key in keys) else None), values


def _pair(element: Any) -> tuple[bytes | None, bytes | None]:
    # Rows are tuples, too.
    names = getattr(element, "__fields__", None)
    if names is not None:
        if "value" not in names:
            raise SchemaError(f"a row has no column value, but {', '.join(names)}: select one by that name")
        return _bytes(element["key"] if "key" in names else None), _bytes(element["value"])
    if isinstance(element, tuple) and len(element) == 2:
        return _bytes(element[0]), _bytes(element[1])
    return None, _bytes(element)


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    if value is None or isinstance(value, bytes | bytearray):
        return None if value is None else bytes(value)
    raise SchemaError(f"keys and values are bytes or text, not {type(value).__name__}: {value!r:.80}")


@attrs.frozen
class RangeReader:
    """Reads ranges of partitions in a task."""

    handle: LogsHandle

    def __call__(self, ranges: Iterable[Range]) -> Iterator[ConsumerRecord]:
        wanted: Sequence[Range] = list(ranges)
        if not wanted:
            return
        with self.handle.consumer(auto_offset_reset="none") as consumer:
            for each in wanted:
                yield from _records(consumer, each)


def _records(consumer: BlockingConsumer, wanted: Range) -> Iterator[ConsumerRecord]:
    """The committed records of a range; gaps that compaction left are no loss."""
    at = (wanted.topic, wanted.partition)
    consumer.assign([at])
    consumer.seek(at, wanted.start)
    quiet = 0
    while (consumer.position(at) or 0) < wanted.end:
        found = consumer.poll(_POLL_MS)
        quiet = 0 if found else quiet + 1
        if quiet >= _STALLED_POLLS:
            raise StalledError(f"{wanted.topic}-{wanted.partition}: nothing came for {quiet} s")
        yield from (record for record in found if record.offset < wanted.end)
