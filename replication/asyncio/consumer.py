"""The consumer for asyncio."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

from ..client import Consumer as TrioConsumer
from ..client import ConsumerRecord, ConsumerSettings, FetchedBatches, SkippedRecords
from ..client import _arguments as given
from ..client._settings import make_settings
from ..client.blocking import client_portal
from ..client.consumer import put_back, put_back_batches
from ..core.types import PartitionId
from ._bridge import Bridge

R = TypeVar("R")


class Consumer(Bridge[TrioConsumer]):
    """`insync.replication.Consumer` for asyncio, with the same methods, all of them async.

    Args:
      bootstrap_servers: URLs of some nodes, as a list or comma separated; `host:port` means tcp.
      settings: All settings at once; or give single ones as keywords (fields of `ConsumerSettings`).

    Raises:
      InvalidSettingError: A setting that does not exist, or cannot be.
      BootstrapError: On entering the block: no node could be reached.

    `async for record in consumer` never ends. A `poll` that is cancelled loses nothing: what it would have given
    comes with the next one.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        settings: ConsumerSettings | None = None,
        **options: Any,
    ) -> None:
        settings = make_settings(ConsumerSettings, options, settings)
        super().__init__(lambda: client_portal(lambda: TrioConsumer(bootstrap_servers, settings=settings)))
        self._ahead: deque[ConsumerRecord] = deque()
        """Polled by `async for`, and not seen by anybody yet."""

    async def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """See `insync.replication.Consumer.assign`; so do the methods below."""
        wanted = given.partitions(partitions)
        await self._do(lambda: self._held.assign(wanted))

    async def assign_topic(self, topic: str) -> list[PartitionId]:
        """Assign all partitions of one topic; raises `UnknownTopicError`, `MetadataTimeoutError`."""
        self._put_back()
        return await self._call(lambda: self._held.assign_topic(topic))

    async def assignment(self) -> list[PartitionId]:
        """The partitions that are read."""
        return await self._do(self._held.assignment)

    async def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Read a partition from `offset` on, also if it stopped with an error."""
        await self._do(lambda: self._held.seek(partition, offset))

    async def seek_to_beginning(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Read these (or all assigned) partitions from the oldest record that they still hold."""
        await self._do(lambda: self._held.seek_to_beginning(partitions))

    async def seek_to_end(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Read these (or all assigned) partitions from their high watermark at this time."""
        await self._do(lambda: self._held.seek_to_end(partitions))

    async def pause(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Hand out nothing of these (or all assigned) partitions until `resume`."""
        await self._do(lambda: self._held.pause(partitions))

    async def resume(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Go on with these (or all assigned) partitions where `pause` stopped them."""
        await self._do(lambda: self._held.resume(partitions))

    async def paused(self) -> list[PartitionId]:
        """The partitions that are paused."""
        return await self._do(self._held.paused)

    async def position(self, partition: tuple[str, int]) -> int | None:
        """The offset of the next record to be handed out; None until it has been found."""
        return await self._do(lambda: self._held.position(partition))

    async def high_watermark(self, partition: tuple[str, int]) -> int:
        """The high watermark as of the last answer, -1 before the first."""
        return await self._do(lambda: self._held.high_watermark(partition))

    async def skipped(self) -> list[SkippedRecords]:
        """What `on_corrupt="skip"` has stepped over since this was called last."""
        return await self._do(self._held.skipped)

    async def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[PartitionId, int]:
        """The oldest offset of each partition; raises `UnknownTopicError`, `RequestTimeoutError`."""
        return await self._call(lambda: self._held.beginning_offsets(partitions))

    async def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[PartitionId, int]:
        """The high watermark of each partition; raises `UnknownTopicError`, `RequestTimeoutError`."""
        return await self._call(lambda: self._held.end_offsets(partitions))

    async def offsets_for_times(
        self, timestamps: Mapping[tuple[str, int], int]
    ) -> dict[PartitionId, int | None]:
        """The first offset of each partition whose record is of at least the given time, in ms since 1970."""
        return await self._call(lambda: self._held.offsets_for_times(timestamps))

    async def poll(self, timeout_ms: int = 1000) -> list[ConsumerRecord]:
        """The next records, at most `max_poll_records`; empty if none came within `timeout_ms`.

        Raises what `insync.replication.Consumer.poll` raises.
        """
        self._put_back()
        return await self._call(lambda: self._held.poll(timeout_ms), undo=partial(put_back, self._held))

    async def poll_batches(self, timeout_ms: int = 1000) -> list[FetchedBatches]:
        """As `poll`, but whole batches as they came."""
        self._put_back()
        return await self._call(
            lambda: self._held.poll_batches(timeout_ms),
            undo=partial(put_back_batches, self._held),
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        while not self._ahead:
            self._ahead.extend(await self.poll())
        return self._ahead.popleft()

    async def _do(self, function: Callable[[], R]) -> R:
        self._put_back()
        return await self._run(function)

    def _put_back(self) -> None:
        """Go on from the first record that nobody saw."""
        if self._ahead:
            unread, self._ahead = list(self._ahead), deque()
            self._portal.try_post(lambda: put_back(self._held, unread))
