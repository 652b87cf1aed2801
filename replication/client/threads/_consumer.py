"""The consumer for code without trio."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ...core.types import PartitionId
from .. import _arguments as given
from .._settings import ConsumerSettings, make_settings
from ..consumer import Consumer, ConsumerRecord, FetchedBatches, put_back
from ..consumer._corrupt import SkippedRecords
from ..consumer._group import LEAVE_SECONDS, GroupMetadata
from ..consumer._member import Due, OnCommit
from ..errors import ClosedError
from . import _elsewhere as there
from ._client import BlockingClient, client_portal


class BlockingConsumer(BlockingClient[Consumer]):
    """`Consumer` for code without trio; iterating over it gives records without end.

    Its methods may be called from any thread, but whose records are whose is up to the callers: each record goes to
    one of those that poll.

    Args:
      bootstrap_servers: URLs of some nodes, as a list or comma separated; `host:port` means tcp.
      settings: All settings at once; or give single ones as keywords (fields of `ConsumerSettings`).

    Raises:
      InvalidSettingError: A setting that does not exist, or cannot be.
      BootstrapError: No node could be reached.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        settings: ConsumerSettings | None = None,
        **options: Any,
    ) -> None:
        made = make_settings(ConsumerSettings, options, settings)
        self._aheads: list[deque[ConsumerRecord]] = []
        """Of each loop what was polled for it and what it has not come to yet."""
        self._puts_back = threading.RLock()
        """A loop whose records another thread puts back polls when that is done. A loop may be left anywhere."""
        super().__init__(client_portal(lambda: there.consumer_elsewhere(bootstrap_servers, made)))

    def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: object = None,
    ) -> None:
        """See `Consumer.subscribe`; callbacks run in the thread that polls, and must not be async."""
        there.refuse_async(listener)
        self._do(lambda: self._held.subscribe(topics, pattern=pattern, listener=listener))

    def unsubscribe(self) -> None:
        """See `Consumer.unsubscribe`."""
        self._leave(LEAVE_SECONDS, None)

    def subscription(self) -> list[str]:
        """See `Consumer.subscription`."""
        return self._run(self._held.subscription)

    def commit(
        self, offsets: Mapping[tuple[str, int], int] | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """See `Consumer.commit`."""
        unread = there.first_of(self._aheads)
        self._portal.call(lambda: there.commit(self._held, offsets, timeout_ms, unread))

    def commit_nowait(
        self,
        offsets: Mapping[tuple[str, int], int] | None = None,
        on_commit: OnCommit | None = None,
    ) -> None:
        """See `Consumer.commit_nowait`; `on_commit` runs in the client's thread and must not call it."""
        unread = there.first_of(self._aheads)
        self._run(lambda: there.commit_nowait(self._held, offsets, on_commit, unread))

    def committed(self, partitions: Iterable[tuple[str, int]]) -> dict[PartitionId, int | None]:
        """See `Consumer.committed`."""
        return self._portal.call(lambda: self._held.committed(partitions))

    def positions(self) -> dict[PartitionId, int | None]:
        """See `Consumer.positions`."""
        unread = there.first_of(self._aheads)
        return self._run(lambda: there.positions(self._held, unread))

    def lag(self) -> dict[PartitionId, int]:
        """See `Consumer.lag`."""
        unread = there.first_of(self._aheads)
        return self._portal.call(lambda: there.lag(self._held, unread))

    def group_metadata(self) -> GroupMetadata:
        """See `Consumer.group_metadata`."""
        return self._run(self._held.group_metadata)

    def close(self, timeout: float | None = None, *, leave_group: bool | None = None) -> None:
        """Commit what is due, run `on_revoked`, leave the group and end; see `Consumer.close`.

        After `timeout` seconds without what is left of that, beside what `on_revoked` takes. May be called again.
        """
        seconds = given.timeout(timeout)
        if leave_group is not None:
            given.flag("leave_group", leave_group)
        try:
            if not self._portal.closed and there.in_group(self._held):
                with suppress(ClosedError):
                    self._leave(LEAVE_SECONDS if seconds is None else seconds, leave_group)
        finally:
            super().close(timeout)

    def _leave(self, seconds: float, leave_group: bool | None) -> None:
        self._put_back(*self._aheads)
        failure: Exception | None = None
        while (
            due := self._portal.call(lambda: there.close_step(self._held, seconds, leave_group))
        ) is not None:
            try:
                self._listen(due)
            except ClosedError:
                raise
            except Exception as error:  # noqa: BLE001 - the group is left first
                failure = failure or error
        if failure is not None:
            raise failure

    def _listen(self, due: Due) -> None:
        """Run a callback, in this thread."""
        try:
            due.function(due.partitions)
        except Exception:
            self._run(lambda: there.called_back(self._held))
            raise
        self._run(lambda: there.called_back(self._held))

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """See `Consumer.assign`."""
        self._do(lambda: self._held.assign(partitions))

    def assign_topic(self, topic: str) -> list[PartitionId]:
        """See `Consumer.assign_topic`."""
        self._put_back(*self._aheads)
        return self._portal.call(lambda: self._held.assign_topic(topic))

    def pause(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """See `Consumer.pause`."""
        self._do(lambda: self._held.pause(partitions))

    def resume(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """See `Consumer.resume`."""
        self._do(lambda: self._held.resume(partitions))

    def paused(self) -> list[PartitionId]:
        """See `Consumer.paused`."""
        return self._run(self._held.paused)

    def assignment(self) -> list[PartitionId]:
        """See `Consumer.assignment`."""
        return self._run(self._held.assignment)

    def seek(self, partition: tuple[str, int], offset: int, *, topic_id: str = "") -> None:
        """See `Consumer.seek`."""
        self._do(lambda: self._held.seek(partition, offset, topic_id=topic_id))

    def seek_to_beginning(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """See `Consumer.seek_to_beginning`."""
        self._do(lambda: self._held.seek_to_beginning(partitions))

    def seek_to_end(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """See `Consumer.seek_to_end`."""
        self._do(lambda: self._held.seek_to_end(partitions))

    def position(self, partition: tuple[str, int]) -> int | None:
        """See `Consumer.position`."""
        unread = there.first_of(self._aheads)
        return self._run(lambda: there.position(self._held, partition, unread))

    def throttled_ms(self, partition: tuple[str, int]) -> int:
        """See `Consumer.throttled_ms`."""
        return self._run(lambda: self._held.throttled_ms(partition))

    def high_watermark(self, partition: tuple[str, int]) -> int:
        """See `Consumer.high_watermark`."""
        return self._run(lambda: self._held.high_watermark(partition))

    def skipped(self) -> list[SkippedRecords]:
        """See `Consumer.skipped`."""
        return self._run(self._held.skipped)

    def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[PartitionId, int]:
        """See `Consumer.beginning_offsets`."""
        return self._portal.call(lambda: self._held.beginning_offsets(partitions))

    def end_offsets(
        self, partitions: Iterable[tuple[str, int]], *, isolation: str = "known"
    ) -> dict[PartitionId, int]:
        """See `Consumer.end_offsets`."""
        return self._portal.call(lambda: self._held.end_offsets(partitions, isolation=isolation))

    def offsets_for_times(self, timestamps: Mapping[tuple[str, int], int]) -> dict[PartitionId, int | None]:
        """See `Consumer.offsets_for_times`."""
        return self._portal.call(lambda: self._held.offsets_for_times(timestamps))

    def poll(self, timeout_ms: int = 1000) -> list[ConsumerRecord]:
        """See `Consumer.poll`."""
        return self._poll(timeout_ms, batches=False)

    def poll_batches(self, timeout_ms: int = 1000) -> list[FetchedBatches]:
        """See `Consumer.poll_batches`."""
        return self._poll(timeout_ms, batches=True)

    def _poll(self, timeout_ms: int, *, batches: bool) -> Any:
        deadline = time.monotonic() + given.duration("timeout_ms", timeout_ms) / 1000
        while True:
            seconds = max(0.0, deadline - time.monotonic())
            step = self._portal.call(
                lambda: there.poll_step(self._held, seconds, batches=batches),  # noqa: B023 - called at once
                undo=partial(there.undo_step, self._held),
            )
            if not isinstance(step, Due):
                return step
            self._listen(step)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        ahead: deque[ConsumerRecord] = deque()
        with self._puts_back:
            self._aheads.append(ahead)
        try:
            while True:
                while there.may_hand_out(self._held):
                    try:
                        record = ahead.popleft()
                    except IndexError:
                        break
                    there.at_hand(self._held, record)
                    yield record
                self._put_back(ahead)
                ahead.extend(self.poll())
        finally:
            # A loop was left: go on from the first record that it did not see.
            with self._puts_back:
                # Not by `remove`: loops with nothing ahead are equal.
                del self._aheads[[each is ahead for each in self._aheads].index(True)]
                self._put_back(ahead)

    def _put_back(self, *aheads: deque[ConsumerRecord]) -> None:
        """Go on from the first record that a loop has not come to; the loop may be in another thread."""
        unread = []
        with self._puts_back:
            for ahead in aheads:
                with suppress(IndexError):
                    while True:
                        unread.append(ahead.pop())
            if unread:
                unread.sort(key=lambda each: each.offset)
                self._portal.try_post(lambda: put_back(self._held, unread))

    def _do(self, function: Callable[[], Any]) -> Any:
        """For what changes what comes next: a loop must not go on with what was polled before."""
        self._put_back(*self._aheads)
        return self._run(function)

    def _run(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return function()

        return self._portal.call(run)
