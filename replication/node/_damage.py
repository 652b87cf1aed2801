"""Logs that followers find damaged: checked where that may wait for the device, given up, and copied again."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import trio

from ...storage import CorruptBatchError, CorruptLogError, Log, StorageError
from ...storage.batch import scan
from ..core.broker.effects import CheckLog
from ..core.broker.events import CopyAgain
from ..core.partition.damaged_copy import may_copy_again, may_give_up
from ..core.types import PartitionId
from .logs import event

if TYPE_CHECKING:
    from ._replicas import Replicas

log = logging.getLogger("insync.node")

MOST_CHECKED = 16 << 20
"""Bytes; no more of one partition is sent at a time."""


class DamagedLogs:
    """Belongs to the event loop."""

    def __init__(self, node: Replicas, nursery: trio.Nursery) -> None:
        self._node = node
        self._nursery = nursery
        self._one = trio.CapacityLimiter(1)
        self._checking: set[PartitionId] = set()
        self._given_up: set[PartitionId] = set()
        """To be copied again as soon as nobody counts on the copy here."""

    def check(self, effect: CheckLog) -> None:
        """A follower doubts what it is sent. Followers ask again and again: one check at a time."""
        host = self._node.hosts.get(effect.partition)
        if host is None or host.log is None or effect.partition in self._checking:
            return
        self._checking.add(effect.partition)
        self._nursery.start_soon(self._check, effect, host.log)

    async def _check(self, effect: CheckLog, opened: Log) -> None:
        size = min(max(0, effect.max_bytes), MOST_CHECKED)
        look = partial(damage_in, opened, effect.offset, size)
        error = await trio.to_thread.run_sync(look, limiter=self._one, abandon_on_cancel=True)
        self._checking.discard(effect.partition)
        host = self._node.hosts.get(effect.partition)
        if error is None:
            self._node.directories.troubles.found_sound(effect.partition, effect.offset)
        elif host is not None and host.log is opened:
            self._damaged(effect.partition, error)
            self._node.settle()

    def _damaged(self, partition: PartitionId, error: CorruptLogError) -> None:
        view = self._node.view
        versioned = view.partitions.get(partition)
        me = self._node.settings.node_id
        if versioned is None or not may_give_up(versioned.record, me, view.live_for(partition)):
            self._node.directories.troubles.found_damaged(partition, error)
            return
        log.error(
            event(
                "log_damaged",
                partition=str(partition),
                path=error.path,
                position=error.position,
                offset=error.offset,
                why=error.reason,
                remedy="a sound replica leads, and this one is copied from it; check the device",
            )
        )
        self.give_up(partition)
        self._node.directories.failed(partition, error)

    def give_up(self, partition: PartitionId) -> None:
        """Its log is not used any more; have it copied again as soon as others have all of it."""
        self._given_up.add(partition)

    def view_changed(self) -> None:
        """Copy again what others lead by now, and nobody counts on."""
        view, me = self._node.view, self._node.settings.node_id
        for partition in list(self._given_up):
            versioned, host = view.partitions.get(partition), self._node.hosts.get(partition)
            if versioned is None or host is None:
                self._given_up.discard(partition)
            elif may_copy_again(versioned.record, me, view.live_for(partition)):
                self._given_up.discard(partition)
                log.warning("%s: the damaged log is deleted and copied again from its leader", partition)
                self._node.step(CopyAgain(partition))


def damage_in(opened: Log, offset: int, size: int) -> CorruptLogError | None:
    """What is wrong with the batches from an offset on; None if nothing is, or nothing is there (any more)."""
    try:
        found = opened.read(offset, max_bytes=size).range
        if found is not None:
            scan(found.read_bytes())
    except CorruptBatchError as error:
        assert found is not None
        path = f"the log of {opened.topic}-{opened.partition}"
        return CorruptLogError(path, found.offset + error.position, offset, error.reason)
    except (StorageError, OSError):
        return None
    return None
