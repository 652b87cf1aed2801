"""ISR changes on their way into the metadata store: those that leaders on this node propose at a time go together.

After a node has come back, hundreds of partitions take it into their ISR within a moment. Each transaction has
every node read the store again, so one for each partition would cost the square of their number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import trio

from .. import wire
from ..core import transaction as tx
from ..core.broker import proposing
from ..core.broker.proposing import MOST_TOGETHER
from ..core.control import records as rec
from ..core.partition import effects as fx
from ..core.partition import events as ev
from ..core.types import PartitionId
from ..metadata import MetadataError, MetadataStore, Session
from . import _store
from ._replica_host import ReplicaHost

if TYPE_CHECKING:
    from ._replicas import Replicas

log = logging.getLogger("insync.node")

RETRY_PAUSE = 0.1

Outcome = ev.IsrStored | ev.IsrRefused | ev.IsrUnclear
Spawn = Callable[..., None]


@attrs.frozen(eq=False)
class Proposed:
    """A proposal and who made it."""

    host: ReplicaHost
    proposal: fx.ProposeIsr

    @property
    def key(self) -> str:
        return rec.partition_key(self.host.partition)

    @property
    def unclear(self) -> Outcome:
        return ev.IsrUnclear(proposal_id=self.proposal.proposal_id)


class IsrWriter:
    """Writes for the leaders on one node, one transaction at a time."""

    def __init__(
        self, store: MetadataStore, replicas: Replicas, session: Callable[[], Session], spawn: Spawn
    ) -> None:
        """`session` is asked for each transaction; `spawn(function, *arguments)` runs something in a task."""
        self.reasons: dict[tuple[PartitionId, int], str] = {}
        """Why we have written what the store will show us, by partition and partition epoch."""
        self._store = store
        self._replicas = replicas
        self._session = session
        self._spawn = spawn
        self._waiting: list[Proposed] = []
        self._running = False

    def propose(self, host: ReplicaHost, proposal: fx.ProposeIsr) -> None:
        """Store it soon, and tell `host` what has become of it."""
        self.reasons[host.partition, proposal.record.partition_epoch] = proposal.reason
        self._waiting.append(Proposed(host, proposal))
        if not self._running:
            self._running = True
            self._spawn(self._run)

    def forget_reasons(self, partitions: Mapping[PartitionId, rec.Versioned]) -> None:
        """Those of changes that have been seen by now, or of partitions that are no more."""
        self.reasons = {
            (partition, epoch): why
            for (partition, epoch), why in self.reasons.items()
            if (known := partitions.get(partition)) is not None and epoch > known.record.partition_epoch
        }

    async def _run(self) -> None:
        try:
            while self._waiting:
                taken = self._take()
                for each, outcome in zip(taken, await self._store_all(taken), strict=True):
                    self._count(each, outcome)
                    if isinstance(outcome, ev.IsrRefused):
                        self._spawn(self._tell_later, each, outcome)
                    else:
                        each.host.step(outcome)
                self._replicas.settle()
        finally:
            self._running = False

    def _take(self) -> list[Proposed]:
        """The oldest proposals, one for each partition at most."""
        taken: dict[str, Proposed] = {}
        left = []
        for each in self._waiting:
            if len(taken) < MOST_TOGETHER and each.key not in taken:
                taken[each.key] = each
            else:
                left.append(each)
        self._waiting = left
        return list(taken.values())

    async def _tell_later(self, each: Proposed, outcome: Outcome) -> None:
        """The core may propose it again as soon as it hears, and what stands against it takes a moment to go."""
        await trio.sleep(RETRY_PAUSE)
        each.host.step(outcome)
        self._replicas.settle()

    async def _store_all(self, taken: Sequence[Proposed]) -> list[Outcome]:
        """What has become of each, in order."""
        if len(taken) > 1:
            together = await self._store_together(taken)
            if together is not None:
                return together
        return [await self._store_one(each) for each in taken]

    async def _store_together(self, taken: Sequence[Proposed]) -> list[Outcome] | None:
        """None if nothing was written because one of them met a conflict: nobody knows which others would have."""
        judged: dict[Proposed, list[tx.Compare] | Outcome] = {}
        try:
            keys = dict.fromkeys(key for each in taken for key in proposing.keys(each.proposal))
            seen = await _store.get(self._store, *keys)
            judged = {each: proposing.conditions(each.proposal, seen) for each in taken}
            compares = [compare for found in judged.values() if isinstance(found, list) for compare in found]
            puts = [proposing.put(each.proposal) for each, found in judged.items() if isinstance(found, list)]
            result: tx.Outcome = tx.Unclear()
            if puts:
                transaction = tx.Transaction(compares=tuple(dict.fromkeys(compares)), puts=tuple(puts))
                result = await _store.commit(self._store, transaction, self._session())
        except (MetadataError, wire.WireError) as error:
            log.warning("the ISRs of %d partitions could not be stored: %s", len(taken), error)
            return [
                found if isinstance(found := judged.get(each), Outcome) else each.unclear for each in taken
            ]
        if isinstance(result, tx.Conflict):
            return None

        def outcome(each: Proposed) -> Outcome:
            found = judged[each]
            return proposing.settled(each.proposal, result) if isinstance(found, list) else found

        return [outcome(each) for each in taken]

    async def _store_one(self, each: Proposed) -> Outcome:
        try:
            seen = await _store.get(self._store, *proposing.keys(each.proposal))
            found = proposing.conditions(each.proposal, seen)
            if not isinstance(found, list):
                return found
            transaction = tx.Transaction(compares=tuple(found), puts=(proposing.put(each.proposal),))
            result = await _store.commit(self._store, transaction, self._session())
        except (MetadataError, wire.WireError) as error:
            log.warning("%s: the ISR could not be stored: %s", each.host.partition, error)
            return each.unclear
        return proposing.settled(each.proposal, result)

    def _count(self, each: Proposed, outcome: Outcome) -> None:
        counters, proposal = self._replicas.counters, each.proposal
        if not isinstance(outcome, ev.IsrStored):
            counters.failed_isr_updates += 1
            self.reasons.pop((each.host.partition, proposal.record.partition_epoch), None)
        elif proposal.joining:
            counters.isr_expands += 1
        elif proposal.removing:
            counters.isr_shrinks += 1
