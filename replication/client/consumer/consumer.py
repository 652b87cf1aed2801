"""The consumer: reads assigned partitions up to their high watermark, as records or as raw batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import attrs
import trio

from ....storage.batch import (
    BatchInfo,
    CorruptBatchError,
    InflatedTooLargeError,
    Record,
    StorageError,
    records,
)
from ...core import messages as m
from ...core.types import PartitionId
from ...errors import again
from .. import _arguments as given
from .._serializing import Deserializers
from .._settings import ConsumerSettings, make_settings
from ..connection._coordinators import Coordinators
from ..connection._offsets import list_offsets, read_index
from ..errors import (
    ClientError,
    DecompressionBombError,
    DeserializationError,
    NotAssignedError,
    OffsetOutOfRangeError,
    UndecodableError,
)
from ..group_errors import SubscriptionError
from ._corrupt import SkippedRecords
from ._fetcher import Fetcher, Reading
from ._group import GroupReader
from ._isolation import CODEC_BITS, Chunk, cut
from ._member import Due
from ._reads import Reads

_YIELD_EVERY = 256
_LEAST_INFLATED = 16 << 20
"""A compressed batch may always grow to this size, so that consumers with small fetches make progress."""


class ConsumerRecord(NamedTuple):
    """A committed record. It is a tuple because creating tuples is cheap, and each record read needs one.

    `key` and `value` are bytes or None, or the results of the deserializers; `timestamp_ms` counts from 1970.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int


@attrs.frozen(slots=True)
class FetchedBatches:
    """Whole committed batches of one partition: their bytes (`data`) and the result of a scan.

    The offsets in [`start_offset`, `next_offset`) were requested; the first batch may begin below them.
    """

    topic: str
    partition: int
    data: bytes
    batches: Sequence[BatchInfo]
    start_offset: int
    next_offset: int
    high_watermark: int


class Consumer(GroupReader):
    """Reads topics together with its group (`subscribe`), or given partitions (`assign`).

    With a `group_id` the consumer can commit offsets, at which the next reader of the group continues
    (`docs/groups.md`). A reader that stores its position with its results, in one transaction, needs no group
    (`docs/delivery-semantics.md`).

    Args:
      bootstrap_servers: URLs of some nodes, as a list or comma separated; `host:port` means tcp.
      settings: All settings; alternatively single settings as keywords (fields of `ConsumerSettings`).

    Raises:
      InvalidSettingError: An unknown setting or an impossible value.
      BootstrapError: On entering the block: no node could be reached.

    `async for record in consumer` never ends; `poll` returns after its timeout. Only one task at a time may poll.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        settings: ConsumerSettings | None = None,
        **options: Any,
    ) -> None:
        self._settings = make_settings(ConsumerSettings, options, settings)
        super().__init__(bootstrap_servers, self._settings)
        self._deserializers = Deserializers(self._settings)
        self._inflated = 0
        """Bytes of records from compressed batches that the call under way has decoded."""
        self._unyielded = 0

    def _start(self) -> None:
        self._fetcher = Fetcher(self._settings, self._cluster, self._nursery)
        self._reads = Reads(self._fetcher)
        self._coordinators = Coordinators(self._cluster)
        self._nursery.start_soon(self._fetcher.run)

    # Partitions and positions

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions from now on; partitions that stay keep their positions and pauses.

        A new partition starts where `auto_offset_reset` says, unless `seek` is called before the next poll. With a
        `group_id` it starts at the group's committed offset, if there is one; only `commit` commits. The next
        `poll` raises for a partition that does not exist.

        Raises `SubscriptionError` if the consumer has subscribed to topics.
        """
        self._check_open()
        wanted = given.partitions(partitions)
        if self._member is not None:
            raise SubscriptionError(
                "this consumer is subscribed, so its group assigns to it; call unsubscribe before assign"
            )
        new = self._reads.assign(wanted)
        if self._settings.group_id and new:
            self._start_at_committed(new)

    async def assign_topic(self, topic: str) -> list[PartitionId]:
        """Assign all partitions of one topic.

        Raises:
          UnknownTopicError: It does not exist; nothing was changed.
          MetadataTimeoutError: No node described it within `request_timeout_ms`.
        """
        self._check_open()
        found = await self._cluster.topic(topic, timeout=self._settings.request_timeout_ms / 1000)
        partitions = [PartitionId(topic, n) for n in range(len(found.leaders))]
        self.assign(partitions)
        return partitions

    def assignment(self) -> list[PartitionId]:
        """The partitions that are read, as (topic, partition)."""
        self._check_open()
        return list(self._fetcher.readings)

    def seek(self, partition: tuple[str, int], offset: int, *, topic_id: str = "") -> None:
        """Read a partition from `offset` on, even if it stopped with an error.

        Drops records that were read ahead. The next poll checks whether the log has the offset.

        Args:
          topic_id: The id of the topic (`Admin.describe_topics`) to which the offset belongs. If another topic has
            the name now, it is not read at this offset: that is a loss "by recreation". By default the offset is of
            whichever topic has the name.

        Raises:
          InvalidArgumentError: The offset is negative or above the maximum.
          ClientError: The partition is not assigned.
        """
        at = given.whole("offset", offset, least=0)
        self._restart([partition], at, None, given.text("topic_id", topic_id))

    def seek_to_beginning(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Read these (or all assigned) partitions from their oldest record."""
        self._restart(partitions, None, m.EARLIEST_TIMESTAMP)

    def seek_to_end(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Read these (or all assigned) partitions from their current high watermark."""
        self._restart(partitions, None, m.LATEST_TIMESTAMP)

    def _restart(
        self,
        partitions: Iterable[tuple[str, int]] | None,
        offset: int | None,
        reset: int | None,
        topic_id: str = "",
    ) -> None:
        chosen = self.assignment() if partitions is None else given.partitions(partitions)
        for reading in [self._reading(at) for at in chosen]:
            reading.restart(offset, reset, topic_id)
        self._fetcher.interrupt()

    def pause(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Return and fetch no records of these (or all assigned) partitions until `resume`.

        Positions and records that were read ahead are kept. Like `resume`, raises `ClientError` for a partition
        that is not assigned.
        """
        self._set_paused(partitions, True)

    def resume(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Continue with these (or all assigned) partitions where `pause` stopped them."""
        self._set_paused(partitions, False)

    def paused(self) -> list[PartitionId]:
        """The partitions that are paused."""
        self._check_open()
        return [at for at, reading in self._fetcher.readings.items() if reading.paused]

    def _set_paused(self, partitions: Iterable[tuple[str, int]] | None, paused: bool) -> None:
        chosen = self.assignment() if partitions is None else given.partitions(partitions)
        for reading in [self._reading(at) for at in chosen]:
            reading.paused = paused
        if not paused:
            # A long poll that is under way does not include them.
            self._fetcher.interrupt()
            self._fetcher.arrived.set()

    def position(self, partition: tuple[str, int]) -> int | None:
        """The offset of the next record that `poll` returns; None while it is unknown."""
        return self._reading(partition).position

    def high_watermark(self, partition: tuple[str, int]) -> int:
        """The high watermark as of the last answer, -1 before the first."""
        return self._reading(partition).high_watermark

    def throttled_ms(self, partition: tuple[str, int]) -> int:
        """How many milliseconds longer the leader gives nothing of a partition, because of a quota; 0: no pause.

        As its last answer told: since then others with the same `client_id` may have used the quota up.
        """
        return self._fetcher.throttled_ms(self._reading(partition).at)

    def skipped(self) -> list[SkippedRecords]:
        """The batches that `on_corrupt="skip"` has skipped since the last call, at most the 1,000 newest."""
        self._check_open()
        return self._fetcher.skips.taken()

    async def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[PartitionId, int]:
        """The oldest offset of each partition; raises `UnknownTopicError`, `RequestTimeoutError`."""
        return await self._offsets(partitions, m.EARLIEST_TIMESTAMP)

    async def end_offsets(
        self, partitions: Iterable[tuple[str, int]], *, isolation: str = "known"
    ) -> dict[PartitionId, int]:
        """The high watermark of each partition; raises `UnknownTopicError`, `RequestTimeoutError`.

        With `isolation_level=read_committed` the last stable offset: every transaction below it is decided.

        Args:
          partitions: (topic, partition) of each.
          isolation: "known": the leader answers at once; a leader that does not know of its successor may return an
            earlier end. "current": an offset after every write that any leader acknowledged before the call. This
            costs the leader a round trip to its followers, but no record. It covers all records, regardless of
            `isolation_level`.
        """
        if not isinstance(isolation, str) or isolation not in ("known", "current"):
            raise given.refused("isolation", isolation, 'it must be "known" or "current"')
        if isolation == "current":
            self._check_open()
            timeout = self._settings.request_timeout_ms / 1000
            return await read_index(self._cluster, given.partitions(partitions), timeout=timeout)
        return await self._offsets(partitions, m.LATEST_TIMESTAMP)

    async def offsets_for_times(
        self, timestamps: Mapping[tuple[str, int], int]
    ) -> dict[PartitionId, int | None]:
        """The first offset of each partition whose record has at least the given timestamp.

        Args:
          timestamps: For each partition, milliseconds since 1970.

        The value is None for a partition without such a record. Raises the errors of `end_offsets`.
        """
        asked: dict[int, list[tuple[str, int]]] = {}
        for partition, timestamp in given.offsets("timestamp", timestamps, least=0).items():
            asked.setdefault(timestamp, []).append(partition)
        found: dict[PartitionId, int | None] = {}
        for timestamp, partitions in asked.items():
            for partition, offset in (await self._offsets(partitions, timestamp)).items():
                found[partition] = offset if offset >= 0 else None
        return found

    async def _offsets(self, partitions: Iterable[tuple[str, int]], timestamp: int) -> dict[PartitionId, int]:
        self._check_open()
        timeout = self._settings.request_timeout_ms / 1000
        return await list_offsets(
            self._cluster,
            given.partitions(partitions),
            timestamp,
            timeout=timeout,
            isolation_level=self._settings.wire_isolation,
        )

    def _reading(self, partition: tuple[str, int]) -> Reading:
        self._check_open()
        at = given.partition(partition)
        reading = self._fetcher.readings.get(at)
        if reading is None:
            raise NotAssignedError(
                f"{at} is not assigned; call assign first, or wait until the group assigns it"
            )
        return reading

    # Reading

    async def poll(self, timeout_ms: int = 1000) -> list[ConsumerRecord]:
        """The next records, at most `max_poll_records`; empty if none arrived within `timeout_ms`.

        Raises:
          OffsetOutOfRangeError: The log does not have the position, and `auto_offset_reset` is none.
          CorruptMessageError: A leader keeps sending batches that do not match their checksum.
          UndecodableError: A batch has an unsupported compression or no valid records.
          DecompressionBombError: A compressed batch is larger than `fetch_max_bytes`.
          DeserializationError: A deserializer raised; the position stays at that record.
          AuthorizationError: This client may not read the topic.
          ClosedError: The consumer is not open.
          NotAssignedError: Nothing is assigned.
          UnknownTopicError: The topic or partition does not exist.

        The call first returns all records before the error. It then raises the error, and again at each call until
        `seek` or `assign`. A cancelled call loses no record.
        """
        return await self._wait(lambda: self._take(self._settings.max_poll_records), timeout_ms)

    async def poll_batches(self, timeout_ms: int = 1000) -> list[FetchedBatches]:
        """Like `poll`, but returns all batches that were read ahead, whole, undecoded and not deserialized.

        With `isolation_level=read_committed` it omits the batches of aborted transactions. The result includes
        transaction markers (control batches).
        """
        return await self._wait(self._take_batches, timeout_ms)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        self._unyielded += 1
        if self._unyielded >= _YIELD_EVERY:
            self._unyielded = 0
            await trio.lowlevel.checkpoint()
        quick = not self._closed and (self._member is None or self._member.may_go_on)
        taken: list[ConsumerRecord] = self._take(1) if quick else []
        while not taken:
            taken = await self._wait(lambda: self._take(1), self._settings.fetch_max_wait_ms)
        record = taken[0]
        if self._member is not None:
            self._at_hand = PartitionId(record.topic, record.partition), record.offset
        return record

    async def _step(self, deadline: float, *, batches: bool) -> Any:
        """A part of a poll, for a façade; see `_advance`."""
        self._check_open()
        return await self._advance(
            self._take_batches if batches else lambda: self._take(self._settings.max_poll_records), deadline
        )

    async def _wait(self, take: Any, timeout_ms: int) -> Any:
        self._check_open()
        deadline = trio.current_time() + given.duration("timeout_ms", timeout_ms) / 1000
        while True:
            step = await self._advance(take, deadline)
            if not isinstance(step, Due):
                return step
            await self._listen(step)

    def _raise_error(self) -> None:
        if not self._reads.turns:
            if self._member is not None:
                return
            raise NotAssignedError(
                "nothing is assigned to this consumer; call subscribe, assign or assign_topic first"
            )
        for reading in self._reads.turns:
            if reading.paused:
                continue
            if reading.error is not None:
                raise again(reading.error)
            if reading.position is None and reading.reset is None and not reading.resolving:
                raise OffsetOutOfRangeError(
                    f"{reading.at} has no position and auto_offset_reset is none; seek before the first poll"
                )

    def _take(self, limit: int) -> list[ConsumerRecord]:
        """Decode up to `limit` records from what has been read ahead, partitions taking turns."""
        taken: list[ConsumerRecord] = []
        self._inflated = 0
        for _ in range(len(self._reads.turns)):
            self._take_from(self._reads.turns[0], taken, limit)
            if len(taken) >= limit or self._is_enough:
                break
            self._reads.turns.rotate(-1)
        return taken

    @property
    def _is_enough(self) -> bool:
        """A few compressed bytes may expand to fill the memory, so decompressed sizes count."""
        return self._inflated >= self._settings.fetch_max_bytes

    def _take_from(self, reading: Reading, taken: list[ConsumerRecord], limit: int) -> None:
        while reading.chunks and len(taken) < limit and not self._is_enough and not reading.paused:
            chunk = reading.chunks[0]
            if reading.records is None:
                found = self._decode(reading.at, chunk)
                reading.records = self._deserializers.applied(found) if self._deserializers else found
            before = len(taken)
            try:
                # Records before an error are returned, too.
                ended = self._fill(chunk, reading.records, taken, limit)
            except ClientError as error:
                self._stop_at(reading, chunk, taken[before:], error)
                continue
            if ended:
                self._finish_chunk(reading, chunk)
            else:
                reading.position = taken[-1].offset + 1

    def _fill(self, chunk: Chunk, found: Iterator[Any], taken: list[ConsumerRecord], limit: int) -> bool:
        """Take records until there are enough. Returns whether no more are available."""
        while len(taken) < limit and not self._is_enough:
            step = 1 if chunk.is_compressed else limit - len(taken)
            before = len(taken)
            taken.extend(itertools.islice(found, step))
            if len(taken) - before < step:
                return True
        return False

    def _decode(self, at: PartitionId, chunk: Chunk) -> Iterator[ConsumerRecord]:
        topic, partition = at
        new = tuple.__new__
        for run in _runs(chunk):
            epoch = run[0].leader_epoch
            for row in self._rows(at, chunk, run):
                # tuple.__new__ is half the cost of calling the named tuple's class.
                yield new(ConsumerRecord, (topic, partition, *row, epoch))

    def _rows(self, at: PartitionId, chunk: Chunk, run: Sequence[BatchInfo]) -> Iterator[Record]:
        """The records of adjacent batches; no copy if they make up the whole chunk."""
        start, end = run[0].position, run[-1].position + run[-1].size_bytes
        data = chunk.data if len(run) == len(chunk.batches) else chunk.data[start:end]
        largest = max(self._settings.fetch_max_bytes, _LEAST_INFLATED)
        try:
            found = records(data, start_offset=chunk.start_offset, max_inflated_bytes=largest)
            if not run[0].attributes & CODEC_BITS:
                yield from found
                return
            for row in found:
                self._inflated += 1 + len(row.key or b"") + len(row.value or b"")
                yield row
        except StorageError as error:
            raise _unreadable(at, run, error) from error

    def _stop_at(
        self, reading: Reading, chunk: Chunk, last: list[ConsumerRecord], error: ClientError
    ) -> None:
        """The next batch is unreadable: stay at its position and drop everything after it.

        With `on_corrupt="skip"`, skip the batch instead.
        """
        position = last[-1].offset + 1 if last else reading.position
        if isinstance(error, UndecodableError):
            # An earlier call may have returned records of this batch.
            position = max(error.offset, position or 0)
            error.offset = position
            if self._settings.on_corrupt == "skip":
                self._step_over(reading, chunk, error)
                return
        reading.restart(error.offset if isinstance(error, DeserializationError) else position)
        reading.error = error

    def _step_over(self, reading: Reading, chunk: Chunk, error: UndecodableError) -> None:
        self._fetcher.skips.note(reading.at, error.offset, error.next_offset, str(error))
        rest = [info for info in chunk.batches if info.base_offset >= error.next_offset]
        reading.chunks[0] = cut(chunk, rest, error.next_offset, chunk.next_offset)
        reading.records, reading.position = None, error.next_offset

    def _finish_chunk(self, reading: Reading, chunk: Chunk) -> None:
        reading.position = chunk.next_offset
        reading.records = None
        reading.chunks.popleft()
        self._fetcher.wake()

    def _take_batches(self) -> list[FetchedBatches]:
        taken: list[FetchedBatches] = []
        for reading in self._reads.turns:
            while reading.chunks and not reading.paused:
                chunk = reading.chunks[0]
                begun = reading.records is not None and reading.position is not None
                start = reading.position if begun and reading.position is not None else chunk.start_offset
                if chunk.batches and start < chunk.next_offset:
                    taken.append(_fetched(reading, chunk, start))
                self._finish_chunk(reading, chunk)
        return taken


def put_back(consumer: Consumer, unread: Sequence[ConsumerRecord]) -> None:
    """Put back records that were polled for a caller that has gone: the next poll returns them."""
    _go_back(consumer, {(each.topic, each.partition): each.offset for each in reversed(unread)})


def put_back_batches(consumer: Consumer, unread: Sequence[FetchedBatches]) -> None:
    """Like `put_back`, for batches."""
    _go_back(consumer, {(each.topic, each.partition): each.start_offset for each in reversed(unread)})


def _go_back(consumer: Consumer, offsets: Mapping[tuple[str, int], int]) -> None:
    for partition, offset in offsets.items():
        if not consumer._closed and partition in consumer._fetcher.readings:
            consumer.seek(partition, offset)


def _fetched(reading: Reading, chunk: Chunk, start: int) -> FetchedBatches:
    return FetchedBatches(
        *reading.at, chunk.data, chunk.batches, start, chunk.next_offset, reading.high_watermark
    )


def _runs(chunk: Chunk) -> Iterator[list[BatchInfo]]:
    """Adjacent batches of one leader epoch. A compressed batch stands alone, so that an error can name it."""

    def key(info: BatchInfo) -> tuple[int, int]:
        return info.leader_epoch, info.base_offset if info.attributes & CODEC_BITS else -1

    for _, run in itertools.groupby(chunk.batches, key=key):
        yield list(run)


def _unreadable(at: PartitionId, run: Sequence[BatchInfo], error: StorageError) -> UndecodableError:
    """The error for the batch at which the decoding of a run failed."""
    batch = run[0]
    if isinstance(error, CorruptBatchError):
        batch = next(
            (info for info in reversed(run) if info.position - run[0].position <= error.position), batch
        )
    bomb = isinstance(error, InflatedTooLargeError)
    remedy = "raise fetch_max_bytes to read it" if bomb else "its producer created it in this form"
    failure = (DecompressionBombError if bomb else UndecodableError)(
        f"{at} between offsets {batch.base_offset} and {batch.next_offset}: {error}; {remedy}, or seek to "
        f"{batch.next_offset} to step over it (on_corrupt=skip always does)"
    )
    failure.topic, failure.partition = at
    failure.offset, failure.next_offset = batch.base_offset, batch.next_offset
    failure.__cause__ = error
    return failure
