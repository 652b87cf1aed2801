"""The metadata store for ISR changes: reads and writes what the machine asks for, and counts what became of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ... import wire
from ...core import store_transaction as tx
from ...core.broker.effects import IsrSettled, ReadKeys, WriteIsrs
from ...core.broker.events import Event, IsrsWritten, KeysRead
from ...core.control import records as rec
from ...core.partition import events as ev
from ...core.types import PartitionId
from ...core.wording import counted
from ...metadata import MetadataError, MetadataStore, Session
from . import _store

if TYPE_CHECKING:
    from ..driver import Driver

log = logging.getLogger("insync.node")

Spawn = Callable[..., None]


class IsrWriter:
    """Does as the machine says, one thing at a time."""

    def __init__(
        self, store: MetadataStore, driver: Driver, session: Callable[[], Session], spawn: Spawn
    ) -> None:
        """`session` is asked for each transaction; `spawn(function, *arguments)` runs something in a task."""
        self.reasons: dict[tuple[PartitionId, int], str] = {}
        """Why we have written what the store will show us, by partition and partition epoch."""
        self._store = store
        self._driver = driver
        self._session = session
        self._spawn = spawn

    def read(self, effect: ReadKeys) -> None:
        """Read keys, and tell the machine."""
        self._spawn(self._read, effect)

    def write(self, effect: WriteIsrs) -> None:
        """Carry a transaction out, and tell the machine."""
        for each in effect.proposals:
            self.reasons[each.record.id, each.record.partition_epoch] = each.reason
            log.debug("%s: propose ISR %s: %s", each.record.id, list(each.record.isr), each.reason)
        self._spawn(self._write, effect)

    def settled(self, effect: IsrSettled) -> None:
        """Count what became of a change."""
        counters, proposal = self._driver.counters, effect.proposal
        if not isinstance(effect.outcome, ev.IsrStored):
            counters.failed_isr_updates += 1
            self.reasons.pop((proposal.record.id, proposal.record.partition_epoch), None)
        elif proposal.joining:
            counters.isr_expands += 1
        elif proposal.removing:
            counters.isr_shrinks += 1

    def forget_reasons(self, partitions: Mapping[PartitionId, rec.Versioned]) -> None:
        """Those of changes that have been seen by now, or of partitions that are no more."""
        self.reasons = {
            (partition, epoch): why
            for (partition, epoch), why in self.reasons.items()
            if (known := partitions.get(partition)) is not None and epoch > known.record.partition_epoch
        }

    async def _read(self, effect: ReadKeys) -> None:
        seen: Mapping[str, tx.Seen] | None = None
        try:
            seen = await _store.get(self._store, *effect.keys)
        except (MetadataError, wire.WireError) as error:
            log.warning("cannot store ISR changes, because the metadata store cannot be read: %s", error)
        self._tell(KeysRead(seen))

    async def _write(self, effect: WriteIsrs) -> None:
        outcome: tx.Outcome = tx.Unclear()
        try:
            outcome = await _store.commit(self._store, effect.transaction, self._session())
        except (MetadataError, wire.WireError) as error:
            log.warning("cannot store the ISRs of %s: %s", counted(len(effect.proposals), "partition"), error)
        self._tell(IsrsWritten(outcome))

    def _tell(self, event: Event) -> None:
        self._driver.step(event)
        self._driver.settle()
