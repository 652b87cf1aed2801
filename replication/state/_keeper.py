"""The work of one copy for all: snapshots, digests, and deleting log that is no longer needed."""

from __future__ import annotations

import logging
import os
from functools import partial

import trio

from ..client.errors import ClientError
from ..client.producer import Producer
from ._applying import Applier
from ._copy import Copy
from ._entries import Digest, Lease, Snapshotted
from ._session import Session
from ._snapshots import Chunker, Marker, checksum, chunk_key, encode_marker, marker_key, new_name, save
from .errors import StateError

log = logging.getLogger("insync.state")

_PAUSE = 1.0


async def chunks_of(applier: Applier) -> list[bytes]:
    """The state as it is now."""
    chunker = Chunker()
    view = applier.view()
    if view is not None:
        await trio.to_thread.run_sync(view, chunker.write)
    else:
        applier.snapshot(chunker.write)
    return chunker.end()


class Keeper:
    """Of one copy. A lease in the log settles which of the copies keeps: the first to ask has it."""

    def __init__(self, copy: Copy, session: Session, producer: Producer) -> None:
        self._copy = copy
        self._session = session
        self._producer = producer
        self._settings = copy.settings
        self._digested = 0

    @property
    def is_keeper(self) -> bool:
        """Whether the lease is this copy's, by the time of the newest record."""
        applier = self._copy.applier
        return applier.keeper == self._session.copy_name and applier.clock_ms < applier.keeper_until

    async def run(self) -> None:
        """Look after each turn whether something is due; for ever."""
        while True:
            try:
                if self._is_due():
                    await self._keep()
                else:
                    await self._copy.moved()
            except ClientError as error:
                if self._copy.error is not None or self._session.error is not None:
                    return
                log.warning("%s: no snapshot or digest for now: %s", self._copy.at, error)
                await trio.sleep(_PAUSE)

    def _is_due(self) -> bool:
        return self._new_digest() is not None or self._snapshot_is_due()

    def _snapshot_is_due(self) -> bool:
        applier, every = self._copy.applier, self._settings.snapshot_every
        return bool(every) and applier.commands - applier.snapshot_commands >= every

    def _new_digest(self) -> int | None:
        newest = max(self._copy.digests, default=0)
        return newest if newest > self._digested else None

    async def _keep(self) -> None:
        applier = self._copy.applier
        if not self.is_keeper and applier.keeper and applier.clock_ms < applier.keeper_until:
            # Another keeps: what is due is its to do, unless it falls silent.
            self._digested = max(self._copy.digests, default=self._digested)
            await self._copy.moved()
            return
        lease = Lease(self._session.copy_name, self._settings.keeper_lease_ms)
        await self._session.send_until_applied(lease, self._somebody_keeps)
        if not self.is_keeper:
            return
        at = self._new_digest()
        if at is not None:
            digest = Digest(at, self._copy.digests[at], self._session.copy_name)
            await self._session.send_until_applied(digest, partial(self._is_told, at))
        if self._snapshot_is_due():
            await self.take_snapshot()

    def _somebody_keeps(self) -> bool:
        applier, mine = self._copy.applier, self._session.copy_name
        left = applier.keeper_until - applier.clock_ms
        return left > (self._settings.keeper_lease_ms // 2 if applier.keeper == mine else 0)

    def _is_told(self, at: int) -> bool:
        told, self._digested = self._digested >= at, max(self._digested, at)
        return told

    async def take_snapshot(self) -> None:
        """Write the state as it is, have all know of it, and delete what it makes superfluous."""
        copy = self._copy
        applier = copy.applier
        position, commands = applier.position, applier.commands
        chunks = await chunks_of(applier)
        name = new_name(position, self._session.name[:100], os.urandom(6))
        marker = Marker(
            name, position, commands, len(chunks), sum(map(len, chunks)), checksum(chunks), copy.topic_id
        )
        topic, partition = f"{copy.at.topic}.snapshots", copy.at.partition
        deliveries = [
            await self._producer.send(topic, chunk, key=chunk_key(name, number), partition=partition)
            for number, chunk in enumerate(chunks)
        ]
        for delivery in deliveries:
            await delivery.wait()
        # Behind all of its chunks: a marker says that they are there.
        await self._producer.send_and_wait(
            topic, encode_marker(marker), key=marker_key(name), partition=partition
        )
        former = list(applier.snapshots)
        await self._session.send_until_applied(
            Snapshotted(position, name, len(chunks)), partial(self._is_known, position)
        )
        if copy.cache_file is not None:
            await trio.to_thread.run_sync(self._cache, marker, chunks)
        await self._tidy(former)

    def _is_known(self, position: int) -> bool:
        return any(each.offset >= position for each in self._copy.applier.snapshots)

    def _cache(self, marker: Marker, chunks: list[bytes]) -> None:
        file = self._copy.cache_file
        assert file is not None
        try:
            save(file, marker, chunks)
        except OSError as error:
            log.warning("%s: the snapshot is not kept in %s: %s", self._copy.at, file, error)

    async def _tidy(self, former: list[Snapshotted]) -> None:
        """Take away older snapshots, what is left of unfinished ones, and the log below the oldest that is kept."""
        copy = self._copy
        kept = copy.applier.snapshots
        topic, partition = f"{copy.at.topic}.snapshots", copy.at.partition
        gone = [(each.name, each.chunks) for each in former if each not in kept]
        gone += [(name, 0) for name in copy.orphans]
        copy.orphans = []
        for name, chunks in gone:
            # Delete the marker first: without its marker a snapshot does not count.
            for key in (marker_key(name), *(chunk_key(name, number) for number in range(chunks))):
                await self._producer.send(topic, None, key=key, partition=partition)
        if kept:
            try:
                await copy.admin.delete_records({copy.at: kept[0].offset})
            except StateError:
                raise
            except ClientError as error:
                log.warning("%s: the log below offset %d stays for now: %s", copy.at, kept[0].offset, error)
