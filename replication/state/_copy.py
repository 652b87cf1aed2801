"""One copy: follows the log of a partition, applies what is committed, and tells who waits for it."""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from ..client.admin import Admin
from ..client.consumer import Consumer
from ..client.errors import ClientError, OffsetOutOfRangeError
from ..core.types import PartitionId
from ..errors import again
from ._applying import Applied, Applier, differ
from ._entries import Digest
from ._resumable import Resumable
from ._snapshots import Marker, Pieces, Shelf, load
from .errors import (
    ChangesLostError,
    DivergedError,
    SnapshotMissingError,
    StateClosedError,
    StateError,
    UnfitCodeError,
)
from .settings import StateSettings

if TYPE_CHECKING:
    from .machine import StateMachine

log = logging.getLogger("insync.state")

_YIELD_EVERY = 2000
"""Commands that are applied before others of the program have their turn."""
_POLL_MS = 500
_PAUSE = 0.1
_MOST_CHANGES = 10_000
_REMEMBERED_DIGESTS = 64


@attrs.frozen(slots=True)
class Change:
    """A command that this copy has applied, and what came of it."""

    offset: int
    timestamp_ms: int
    name: str
    command: bytes
    answer: bytes
    error: str


class Copy:
    """Reads one partition into a state machine for a `Replica`, as long as `run` runs."""

    def __init__(
        self,
        servers: str | Sequence[str],
        at: PartitionId,
        topic_id: str,
        make: Callable[[], StateMachine],
        settings: StateSettings,
        admin: Admin,
        consumer: Consumer,
        options: dict[str, object],
    ) -> None:
        self.at = at
        self.topic_id = topic_id
        self.settings = settings
        self.applier = Applier(make(), topic_id)
        self.admin = admin
        self.applied = 0
        """Everything below this offset is in the state."""
        self.begins_at = 0
        """Where the log ended when this copy was restored."""
        self.restored: Marker | None = None
        self.orphans: list[str] = []
        """Snapshots that were begun and never finished."""
        self.error: StateError | None = None
        """Why this copy has stopped."""
        self.digests: dict[int, bytes] = {}
        """By offset, the oldest first: what distinguishes this copy's state there from a wrong one."""
        self.on_applied: Callable[[list[Applied]], None] = lambda applied: None
        self.on_turn: Callable[[], None] = lambda: None
        self.on_restored: Callable[[], None] = lambda: None
        self.make = make
        self._servers = servers
        self._options = options
        self._consumer = consumer
        self._waiting: list[tuple[int, int, trio.Event]] = []
        self._numbers = itertools.count()
        self._moved = trio.Event()
        self._listeners: dict[trio.MemorySendChannel[Change], None] = {}
        self._lost: dict[trio.MemorySendChannel[Change], str] = {}
        """Why a listener hears nothing more."""
        self._round: _Round | None = None
        self._asked = trio.Event()

    # Reading

    @property
    def lag(self) -> int:
        """Records that are committed, as far as this copy knows, and not applied."""
        return max(0, self._consumer.high_watermark(self.at) - self.applied)

    async def wait_until(self, offset: int) -> None:
        """Come back when everything below `offset` is applied."""
        self.check()
        if self.applied < offset:
            event = trio.Event()
            heapq.heappush(self._waiting, (offset, next(self._numbers), event))
            await event.wait()
            self.check()
        else:
            await trio.lowlevel.checkpoint()

    async def moved(self) -> None:
        """Come back when something more is applied."""
        self.check()
        await self._moved.wait()
        self.check()

    async def catch_up(self) -> int:
        """Apply everything that was acknowledged to anybody before this call; gives up to where.

        Calls that come while one asks share the next question.
        """
        self.check()
        if self._round is None:
            self._round = _Round()
            self._asked.set()
        mine = self._round
        await mine.done.wait()
        self.check()
        if mine.error is not None:
            raise mine.error
        return mine.offset

    async def answer_rounds(self) -> None:
        """Ask for current offsets, for all who have called `catch_up` meanwhile; for ever."""
        while True:
            await self._asked.wait()
            mine, self._round = self._round, None
            self._asked = trio.Event()
            assert mine is not None
            try:
                mine.offset = (await self.admin.read_index([self.at]))[self.at]
                await self.wait_until(mine.offset)
            except ClientError as error:
                mine.error = error
            except BaseException:
                # Whoever waits outside of the cancelled block must not take this for an answer.
                mine.error = StateClosedError(
                    f"the copy of {self.at} was closed before it was brought up to date"
                )
                raise
            finally:
                mine.done.set()

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[AsyncIterator[Change]]:
        """The changes that are applied from now on."""
        self.check()
        send, receive = trio.open_memory_channel[Change](_MOST_CHANGES)
        self._listeners[send] = None
        try:
            yield Resumable(partial(self._heard, send, receive))
        finally:
            self._listeners.pop(send, None)
            self._lost.pop(send, None)
            receive.close()

    async def _heard(
        self, send: trio.MemorySendChannel[Change], receive: trio.MemoryReceiveChannel[Change]
    ) -> Change:
        try:
            return await receive.receive()
        except trio.EndOfChannel:
            self.check()
            raise ChangesLostError(self._lost[send]) from None
        except trio.ClosedResourceError:
            # The block was left.
            raise StopAsyncIteration from None

    def check(self) -> None:
        """Raise what has stopped this copy, if anything has."""
        if self.error is not None:
            raise again(self.error)

    def stop(self, error: StateError) -> None:
        """Apply nothing more, and tell all who wait."""
        if self.error is not None:
            return
        self.error = error
        for _, _, event in self._waiting:
            event.set()
        self._waiting.clear()
        self._moved.set()
        for send in list(self._listeners):
            send.close()
        if self._round is not None:
            self._round.error = error
            self._round.done.set()
        self.on_turn()

    # Following

    async def restore(self, *, anew: bool = False) -> None:
        """Begin with the newest snapshot that can be used; `anew`: what this copy has is of no use any more.

        Raises:
          SnapshotMissingError: None reaches to where the log begins.
          UnfitCodeError: It is of a class or version that this copy's code does not know.
        """
        start = (await self._consumer.beginning_offsets([self.at]))[self.at]
        self.begins_at = end = (await self.admin.read_index([self.at]))[self.at]
        found = await self._from_cache()
        if found is None or not start <= found[0].position <= end:
            found = await self._from_records(start, end)
        self.applier = Applier(self.make(), self.topic_id)
        if found is None:
            if start > 0:
                raise SnapshotMissingError(
                    f"{self.at} begins at offset {start}, and no whole snapshot in {self.at.topic}.snapshots "
                    "reaches to there: restore the records or the snapshots from a backup"
                )
        else:
            marker, chunks = found
            self.applier.restore(Pieces(chunks).read)
            self.restored = marker
        self.applied = self.applier.position
        self.digests.clear()
        self._consumer.assign([self.at])
        self._consumer.seek(self.at, self.applied)
        if anew:
            for send in list(self._listeners):
                self._lose(
                    send,
                    f"{self.at}: the copy fell behind and was restored at offset {self.applied}; changes() skips "
                    "the commands before that offset: open changes() again, then read the state",
                )
            self.on_restored()
            self._wake()

    async def _from_cache(self) -> tuple[Marker, list[bytes]] | None:
        file = self.cache_file
        return await trio.to_thread.run_sync(load, file, self.topic_id) if file is not None else None

    @property
    def cache_file(self) -> Path | None:
        """Where the last snapshot is kept in this machine, if anywhere."""
        folder = self.settings.cache_dir
        return folder / f"{self.at.topic}-{self.at.partition}.snapshot" if folder is not None else None

    async def _from_records(self, start: int, end: int) -> tuple[Marker, list[bytes]] | None:
        shelf = Shelf(self.topic_id)
        at = PartitionId(f"{self.at.topic}.snapshots", self.at.partition)
        stop = (await self.admin.read_index([at]))[at]
        if stop > 0:
            async with Consumer(
                self._servers,
                auto_offset_reset="earliest",
                **self._options,  # type: ignore[arg-type]
            ) as consumer:
                consumer.assign([at])
                while (consumer.position(at) or 0) < stop:
                    for record in await consumer.poll(_POLL_MS):
                        shelf.take(record.key, record.value)
        whole = shelf.whole()
        sound = {marker.name for marker, _ in whole}
        self.orphans = [name for name in shelf.names() if name not in sound]
        for marker, chunks in whole:
            if start <= marker.position <= end:
                return marker, chunks
        return None

    async def run(self) -> None:
        """Follow the log, for ever, or until this copy has stopped."""
        while self.error is None:
            try:
                records = await self._consumer.poll(_POLL_MS)
            except OffsetOutOfRangeError:
                await self._behind()
                continue
            except ClientError as error:
                if not error.retriable:
                    self.stop(_as_state_error(error))
                    return
                log.warning("%s cannot be read for now: %s", self.at, error)
                await trio.sleep(_PAUSE)
                continue
            count = 0
            for record in records:
                try:
                    applied = self.applier.apply(record.offset, record.timestamp_ms, record.value)
                except UnfitCodeError as error:
                    self.stop(error)
                    return
                self._after_record(applied)
                if self.error is not None:
                    return
                count += len(applied)
                if count >= _YIELD_EVERY:
                    count = 0
                    self._advance(record.offset + 1)
                    await trio.lowlevel.checkpoint()
            self._advance(max(self._consumer.position(self.at) or 0, self.applier.position))

    async def _behind(self) -> None:
        """The log begins behind this copy, which was away, or slower than snapshots are taken."""
        try:
            await self.restore(anew=True)
        except (SnapshotMissingError, UnfitCodeError) as error:
            self.stop(error)
        except ClientError as error:
            log.warning("%s cannot be restored for now: %s", self.at, error)
            await trio.sleep(_PAUSE)

    def _after_record(self, applied: list[Applied]) -> None:
        applier = self.applier
        if applied:
            every = self.settings.digest_every
            fresh = sum(not each.repeated for each in applied) if every else 0
            if fresh and applier.commands // every != (applier.commands - fresh) // every:
                self.digests[applier.position] = applier.digest()
                while len(self.digests) > _REMEMBERED_DIGESTS:
                    del self.digests[next(iter(self.digests))]
            if self._listeners:
                self._tell_listeners(applied)
        elif isinstance(applier.entry, Digest):
            self._compare(applier.entry)
        self.on_applied(applied)

    def _compare(self, told: Digest) -> None:
        mine = self.digests.get(told.offset)
        if mine is not None and differ(mine, told.digest):
            self.stop(
                DivergedError(
                    f"{self.at}: at offset {told.offset} this copy's digest is {mine.hex()} and that of copy "
                    f"{told.copy!r} is {told.digest.hex()}: a machine does not depend on the log alone, or its "
                    "code was changed without a new state_version; this copy has stopped"
                )
            )

    def _tell_listeners(self, applied: list[Applied]) -> None:
        for each in applied:
            if each.repeated:
                continue
            change = Change(
                each.context.offset,
                each.context.timestamp_ms,
                each.name,
                each.command,
                each.answer.data,
                each.answer.error,
            )
            for send in list(self._listeners):
                try:
                    send.send_nowait(change)
                except (trio.WouldBlock, trio.BrokenResourceError):
                    self._lose(
                        send,
                        f"{self.at}: more than {_MOST_CHANGES} changes waited to be read: open changes() again, "
                        "then read the state, and read changes faster",
                    )

    def _lose(self, send: trio.MemorySendChannel[Change], why: str) -> None:
        del self._listeners[send]
        self._lost[send] = why
        send.close()

    def _advance(self, position: int) -> None:
        if position > self.applied:
            self.applied = position
            self._wake()

    def _wake(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= self.applied:
            heapq.heappop(waiting)[2].set()
        moved, self._moved = self._moved, trio.Event()
        moved.set()
        self.on_turn()


class _Round:
    """A question for the current offset, and those who wait for it."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.offset = -1
        self.error: ClientError | None = None


def _as_state_error(error: ClientError) -> StateError:
    failure = StateClosedError(f"the log cannot be read any more: {error}")
    failure.__cause__ = error
    return failure
