"""The consumer for asyncio."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self, TypeVar

from ..client import ClosedError, ConsumerRecord, ConsumerSettings, FetchedBatches, SkippedRecords
from ..client import Consumer as TrioConsumer
from ..client import _arguments as given
from ..client._settings import make_settings
from ..client.consumer import put_back
from ..client.consumer._group import LEAVE_SECONDS, GroupMetadata
from ..client.consumer._member import Due, OnCommit
from ..client.threads import _elsewhere as there
from ..client.threads.blocking import client_portal
from ..core.types import PartitionId
from ._bridge import Bridge, soon

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
        made = make_settings(ConsumerSettings, options, settings)
        super().__init__(lambda: client_portal(lambda: there.consumer_elsewhere(bootstrap_servers, made)))
        self._ahead: deque[ConsumerRecord] = deque()
        """Polled by `async for`, and not seen by anybody yet."""

    async def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: object = None,
    ) -> None:
        """See `insync.replication.Consumer.subscribe`; callbacks, plain or async, run in the task that polls."""
        await self._do(lambda: self._held.subscribe(topics, pattern=pattern, listener=listener))

    async def unsubscribe(self) -> None:
        """Leave the group; then `subscribe` or `assign` may be called again."""
        self._put_back()
        await self._leave(LEAVE_SECONDS, None)

    async def subscription(self) -> list[str]:
        """The topics that are subscribed to by name, or that the pattern has found."""
        return await self._run(self._held.subscription)

    async def commit(
        self, offsets: Mapping[tuple[str, int], int] | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """See `insync.replication.Consumer.commit`."""
        unread = there.first_of([self._ahead])
        await self._call(lambda: there.commit(self._held, offsets, timeout_ms, unread))

    async def commit_nowait(
        self,
        offsets: Mapping[tuple[str, int], int] | None = None,
        on_commit: OnCommit | None = None,
    ) -> None:
        """See `insync.replication.Consumer.commit_nowait`; `on_commit` runs in this event loop."""
        unread = there.first_of([self._ahead])
        loop = asyncio.get_running_loop()
        tell: OnCommit | None = None
        if on_commit is not None:
            given.function("on_commit", on_commit)
            tell = partial(soon, loop, on_commit)
        await self._run(lambda: there.commit_nowait(self._held, offsets, tell, unread))

    async def committed(self, partitions: Iterable[tuple[str, int]]) -> dict[PartitionId, int | None]:
        """The group's committed offset of each partition; None: there is none."""
        return await self._call(lambda: self._held.committed(partitions))

    async def positions(self) -> dict[PartitionId, int | None]:
        """Of all assigned partitions the offset of the next record to be handed out; None until it is found."""
        return await self._do(self._held.positions)

    async def lag(self) -> dict[PartitionId, int]:
        """How many offsets are behind the position of each assigned partition."""
        self._put_back()
        return await self._call(self._held.lag)

    async def group_metadata(self) -> GroupMetadata:
        """This consumer's identity in its group now."""
        return await self._run(self._held.group_metadata)

    async def close(self, timeout: float | None = None, *, leave_group: bool | None = None) -> None:
        """Commit what is due, run `on_revoked`, leave the group and end; see `insync.replication.Consumer.close`.

        After `timeout` seconds without what is left of that, beside what `on_revoked` takes. May be called again.
        """
        seconds = given.timeout(timeout)
        if leave_group is not None:
            given.flag("leave_group", leave_group)
        try:
            if not self._portal.closed and seconds != 0 and there.in_group(self._held):
                with suppress(ClosedError):
                    await self._leave(LEAVE_SECONDS if seconds is None else seconds, leave_group)
        finally:
            await super().close(timeout)

    async def _leave(self, seconds: float, leave_group: bool | None) -> None:
        self._put_back()
        failure: Exception | None = None
        while (
            due := await self._call(lambda: there.close_step(self._held, seconds, leave_group))
        ) is not None:
            try:
                await self._listen(due)
            except ClosedError:
                raise
            except Exception as error:  # noqa: BLE001 - the group is left first
                failure = failure or error
        if failure is not None:
            raise failure

    async def _listen(self, due: Due) -> None:
        """Run a callback, in this task."""
        try:
            result = due.function(due.partitions)
            if inspect.isawaitable(result):
                await result
        except Exception:
            await self._run(lambda: there.called_back(self._held))
            raise
        await self._run(lambda: there.called_back(self._held))

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

    async def seek(self, partition: tuple[str, int], offset: int, *, topic_id: str = "") -> None:
        """Read a partition from `offset` on, also if it stopped with an error."""
        await self._do(lambda: self._held.seek(partition, offset, topic_id=topic_id))

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

    async def throttled_ms(self, partition: tuple[str, int]) -> int:
        """How many milliseconds longer the leader gives nothing of a partition because of a quota; 0: no pause."""
        return await self._do(lambda: self._held.throttled_ms(partition))

    async def skipped(self) -> list[SkippedRecords]:
        """The records that `on_corrupt="skip"` has skipped since the last call."""
        return await self._do(self._held.skipped)

    async def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[PartitionId, int]:
        """The oldest offset of each partition; raises `UnknownTopicError`, `RequestTimeoutError`."""
        return await self._call(lambda: self._held.beginning_offsets(partitions))

    async def end_offsets(
        self, partitions: Iterable[tuple[str, int]], *, isolation: str = "known"
    ) -> dict[PartitionId, int]:
        """See `insync.replication.Consumer.end_offsets`."""
        return await self._call(lambda: self._held.end_offsets(partitions, isolation=isolation))

    async def offsets_for_times(
        self, timestamps: Mapping[tuple[str, int], int]
    ) -> dict[PartitionId, int | None]:
        """The first offset of each partition whose record is of at least the given time, in ms since 1970."""
        return await self._call(lambda: self._held.offsets_for_times(timestamps))

    async def poll(self, timeout_ms: int = 1000) -> list[ConsumerRecord]:
        """The next records, at most `max_poll_records`; empty if none came within `timeout_ms`.

        Raises what `insync.replication.Consumer.poll` raises.
        """
        return await self._poll(timeout_ms, batches=False)

    async def poll_batches(self, timeout_ms: int = 1000) -> list[FetchedBatches]:
        """As `poll`, but whole batches as they came."""
        return await self._poll(timeout_ms, batches=True)

    async def _poll(self, timeout_ms: int, *, batches: bool) -> Any:
        self._put_back()
        deadline = time.monotonic() + given.duration("timeout_ms", timeout_ms) / 1000
        while True:
            seconds = max(0.0, deadline - time.monotonic())
            step = await self._call(
                lambda: there.poll_step(self._held, seconds, batches=batches),  # noqa: B023 - called at once
                undo=partial(there.undo_step, self._held),
            )
            if not isinstance(step, Due):
                return step
            await self._listen(step)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        while not (self._ahead and there.may_hand_out(self._held)):
            polled = await self.poll()
            # Another task may have put back meanwhile what was ahead: this is another deque then.
            self._ahead.extend(polled)
        record = self._ahead.popleft()
        there.at_hand(self._held, record)
        return record

    async def _do(self, function: Callable[[], R]) -> R:
        self._put_back()
        return await self._run(function)

    def _put_back(self) -> None:
        """Go on from the first record that nobody saw."""
        if self._ahead:
            unread, self._ahead = list(self._ahead), deque()
            self._portal.try_post(lambda: put_back(self._held, unread))
