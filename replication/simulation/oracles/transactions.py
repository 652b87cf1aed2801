"""Transactions in committed logs, read by a naive reader of the oracle's own; and what was told of them.

Each transaction has a producer id and epoch of its own (KIP-890), which name it; its markers have the next epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

from ...core.groups.record_codec import Unknown
from ...core.transactions.records import TransactionValue, decode_transaction
from ...core.types import BatchMeta, PartitionId
from ..errors import require
from .committed import Records

if TYPE_CHECKING:
    from .facts import PartitionFacts

Ids = tuple[int, int]
"""Producer id and epoch."""


@attrs.define(eq=False)
class Told:
    """Answers to producers, and what has come of them."""

    owners: dict[Ids, object] = attrs.Factory(dict)
    """The producer that was told to have the ids."""
    latest: dict[int, int] = attrs.Factory(dict)
    """By producer id: the epoch with which its latest holder has begun, which shuts all earlier ones out."""
    outcomes: dict[Ids, bool] = attrs.Factory(dict)
    """Of each transaction, as its first marker says: whether it is committed."""
    ends: dict[Ids, bool] = attrs.Factory(dict)
    """Of each transaction, as its producer was told."""
    acknowledged: dict[Ids, list[PartitionFacts]] = attrs.Factory(dict)
    """Where records of each transaction are certainly committed."""
    prepared: dict[Ids, bool] = attrs.Factory(dict)
    """Of each transaction whose outcome is committed at its coordinator: whether it is committed."""

    def given(self, ids: Ids, holder: object, *, is_first: bool) -> None:
        """S35: nobody else was told to have these ids. `is_first`: it begins with them."""
        known = self.owners.setdefault(ids, holder)
        require(known is holder, "S35", f"{ids} are told to {holder}, and were told to {known}")
        if is_first:
            self.latest[ids[0]] = max(self.latest.get(ids[0], -1), ids[1])

    def ended(self, ids: Ids, committed: bool) -> None:
        """S32: a producer is told what its markers say, and the same again."""
        known = self.ends.setdefault(ids, committed)
        require(known == committed, "S32", f"transaction {ids} is told to be committed: {committed}, {known}")
        found = self.outcomes.get(ids, committed)
        require(found == committed, "S32", f"transaction {ids} is told to be committed: {committed}")

    def decided(self, ids: Ids, committed: bool, where: str) -> None:
        """S32: all markers of a transaction say the same, and what its producer was told."""
        known = self.outcomes.setdefault(ids, committed)
        require(known == committed, "S32", f"{where}: transaction {ids} has markers of both outcomes")
        told = self.ends.get(ids, committed)
        require(told == committed, "S32", f"{where}: transaction {ids} was told to be committed: {told}")

    def marked(self, ids: Ids, committed: bool, where: str) -> None:
        """S32: a marker says what is committed at the coordinator by then."""
        right = self.prepared.get(ids)
        require(
            right == committed, "S32", f"{where}: a marker of {ids}: {committed}, its coordinator: {right}"
        )


@attrs.define(eq=False)
class DecisionLog:
    """One partition of `__transaction_state`, as its committed log has it. `length`: how much of it is read."""

    told: Told
    facts: PartitionFacts
    length: int = 0
    _ending: dict[str, tuple[Ids, frozenset[tuple[str, int]]]] = attrs.Factory(dict)
    """By transactional id: the transaction whose outcome is committed, and its partitions."""

    def read_on(self, records: Mapping[str, Records], ended: Callable[[Ids, PartitionId], None]) -> None:
        """`ended`: told of each partition of each transaction that is said to be complete."""
        committed = self.facts.committed
        while self.length < len(committed):
            found = records[committed[self.length][1]]
            if self.length + len(found) > len(committed):
                return
            self.length += len(found)
            for key, value in found:
                decoded = decode_transaction(key, value)
                assert not isinstance(decoded, Unknown), "a coordinator has written it"
                self._take(decoded[0].transactional_id, decoded[1], ended)

    def _take(
        self, name: str, value: TransactionValue | None, ended: Callable[[Ids, PartitionId], None]
    ) -> None:
        if value is not None and value.status.is_prepared:
            ids = value.producer_id, value.producer_epoch - 1
            self.told.prepared[ids] = value.status.is_committed
            self._ending[name] = ids, value.partitions
        elif name in self._ending:
            ids, places = self._ending.pop(name)
            for topic, partition in sorted(places):
                ended(ids, PartitionId(topic, partition))


@attrs.define(eq=False)
class TransactionLog:
    """The transactions of one partition, as its committed log has them."""

    told: Told
    facts: PartitionFacts
    open: dict[int, tuple[int, int]] = attrs.Factory(dict)
    """By producer id: the epoch of its open transaction, and where that begins."""
    ended: dict[Ids, bool] = attrs.Factory(dict)
    """Whether it is committed, of each that has a marker here."""
    _coordinators: dict[int, int] = attrs.Factory(dict)

    def take(self, meta: BatchMeta, is_blind: bool) -> None:
        """A batch is committed; `is_blind`: whoever took it could not know what came before."""
        facts = self.facts
        if facts.unclean or facts.gone:
            return
        is_blind |= facts.forgot
        if meta.marker is None:
            self._written(meta, is_blind)
        else:
            self._marked(meta, meta.marker.committed, meta.marker.coordinator_epoch, is_blind)

    def _written(self, meta: BatchMeta, is_blind: bool) -> None:
        """S35: nothing of a producer that another has taken the place of. S32: nor behind its own marker."""
        ids, name = (meta.producer_id, meta.producer_epoch), self.facts.name
        latest = self.told.latest.get(meta.producer_id, -1)
        require(meta.producer_epoch >= latest or is_blind, "S35", f"{name}: {meta} after epoch {latest}")
        epoch, _ = self.open.setdefault(meta.producer_id, (meta.producer_epoch, meta.base_offset))
        require(epoch == meta.producer_epoch, "S32", f"{name}: {meta} while {epoch} is open")
        require(ids not in self.ended or is_blind, "S32", f"{name}: {meta} behind the marker of {ids}")

    def _marked(self, meta: BatchMeta, committed: bool, coordinator_epoch: int, is_blind: bool) -> None:
        """S32: a transaction has one marker. S36: no earlier coordinator writes after a later one."""
        ids, name = (meta.producer_id, meta.producer_epoch - 1), self.facts.name
        known = self._coordinators.get(meta.producer_id, -1)
        require(coordinator_epoch >= known or is_blind, "S36", f"{name}: {meta} after coordinator {known}")
        self._coordinators[meta.producer_id] = coordinator_epoch
        epoch, _ = self.open.pop(meta.producer_id, (ids[1], -1))
        require(epoch == ids[1], "S32", f"{name}: {meta} ends the transaction of epoch {epoch}")
        require(ids not in self.ended or is_blind, "S32", f"{name}: {meta} is another marker of {ids}")
        self.ended[ids] = committed
        self.told.decided(ids, committed, name)

    def is_complete(self, ids: Ids) -> None:
        """S32: where a coordinator says that all partitions have their markers, this one has it."""
        epoch, _ = self.open.get(ids[0], (-1, -1))
        require(
            epoch != ids[1], "S32", f"{self.facts.name}: no marker of {ids}, which is said to be complete"
        )


def left_out(aborted: Mapping[int, list[int]], batches: list[BatchMeta]) -> list[bool]:
    """Of each batch that a reader of committed records gets, whether it drops it, as KIP-98 says.

    aborted: the first offsets of the transactions that it was told of, by producer id.
    """
    due = {producer_id: sorted(firsts) for producer_id, firsts in aborted.items()}
    found = []
    for meta in batches:
        firsts = due.get(meta.producer_id, [])
        is_aborted = bool(firsts) and meta.transactional and firsts[0] <= meta.base_offset
        if is_aborted and meta.marker is not None and not meta.marker.committed:
            del firsts[0]
        found.append(is_aborted or meta.marker is not None)
    return found
