"""Transactions in committed logs, read by a naive reader of the oracle's own; and what was told of them.

A batch of a transaction names it: producers say which of theirs each of their batches is of. A marker ends what is
open of its producer; by which version, and with which outcome, the committed log of its coordinator says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

from ...core.groups.record_codec import Unknown
from ...core.transactions.epochs import FIRST_VERSION
from ...core.transactions.records import TransactionValue, decode_transaction
from ...core.types import BatchMeta, PartitionId
from ..errors import require
from .groups.log import Records

if TYPE_CHECKING:
    from .facts import PartitionFacts

Ids = tuple[int, int]
"""Producer id and epoch."""


@attrs.define(eq=False)
class Intent:
    """One transaction as its producer, `owner`, means it."""

    name: str
    """The transactional id."""
    owner: object
    ids: Ids
    is_over: bool = False
    """Whether its producer has gone on to another one."""
    is_given_up: bool = False
    """Whether its producer ends it with some of it still on its way."""
    told: bool | None = None
    """Whether it is committed, as its producer was told."""
    next_ids: Ids | None = None
    """The ids that its producer was told at its end."""
    outcome: bool | None = None
    """Whether it is committed, as its first marker says."""
    acknowledged: list[PartitionFacts] = attrs.Factory(list)
    """Where records of it are certainly committed."""

    def __str__(self) -> str:
        return f"the transaction {self.ids} of {self.owner}"


@attrs.define(eq=False)
class Told:
    """Answers to producers, and what has come of them."""

    last_epoch: int
    """Of a producer id, for producers."""
    owners: dict[Ids, object] = attrs.Factory(dict)
    """The producer that was told to have the ids."""
    holders: dict[str, tuple[Ids, object]] = attrs.Factory(dict)
    """The producer that has taken a transactional id over last, of those that were told so, and its first ids."""
    order: dict[Ids, int] = attrs.Factory(dict)
    """Numbers ids in the order in which their coordinators have committed them."""
    sharing: set[str] = attrs.Factory(set)
    """Transactional ids of which several transactions may have the same epoch."""
    intents: dict[str, Intent] = attrs.Factory(dict)
    """The transaction of each batch, by its payload."""
    latest: dict[Ids, Intent] = attrs.Factory(dict)
    """The transaction that was last begun with the ids."""
    values: dict[str, TransactionValue | None] = attrs.Factory(dict)
    """The last that coordinators have committed of each transactional id; None of one that has expired."""
    decided: dict[Ids, list[TransactionValue]] = attrs.Factory(dict)
    """The outcomes that coordinators have committed, by the producer id and epoch of their markers."""
    expired: set[str] = attrs.Factory(set)
    """Transactional ids that coordinators have forgotten."""

    def given(self, name: str, ids: Ids, holder: object, *, is_first: bool, goes_on: bool) -> None:
        """S35: the ids are committed, of an epoch that there is, and of nobody else.

        `is_first`: their holder begins with them, and shuts out all others. `goes_on`: it has asked as the holder
        of the transactional id, which it is not once it is shut out. Anybody gets an id that has expired.
        """
        require(ids[1] <= self.last_epoch, "S35", f"{ids} are of an epoch past {self.last_epoch}")
        require(ids in self.order, "S35", f"{ids} are told to {holder}, and not committed")
        known = self.owners.setdefault(ids, holder)
        require(known is holder, "S35", f"{ids} are told to {holder}, and were told to {known}")
        before, latest = self.holders.get(name, (ids, holder))
        if is_first and self.order[before] <= self.order[ids]:  # else the answer comes late
            right = not goes_on or latest is holder or name in self.expired
            require(right, "S35", f"{holder} is let in by ids that it had before {before} of {latest}")
            self.holders[name] = ids, holder

    def later(self, intent: Intent) -> Ids | None:
        """The first ids of another producer that has taken over the transactional id since."""
        ids, holder = self.holders[intent.name]
        is_later = holder is not intent.owner and self.order[ids] > self.order[intent.ids]
        return ids if is_later else None

    def begun(self, intent: Intent) -> None:
        """A producer begins a transaction."""
        self.latest[intent.ids] = intent

    def ended(self, intent: Intent, committed: bool, ids: Ids | None = None) -> None:
        """S32: a producer is told what its markers say, and the same again. `ids`: its next ones."""
        if ids is not None:
            right = intent.next_ids in (None, ids)
            require(right, "S32", f"the end of {intent} is told to give {ids}, and gave {intent.next_ids}")
            intent.next_ids = ids
        for known in (intent.told, intent.outcome):
            right = known is None or known == committed
            require(right, "S32", f"{intent} is told to be committed: {committed}, and is: {known}")
        intent.told = committed

    def marked(self, intent: Intent, committed: bool, where: str) -> None:
        """S32: all markers of a transaction say the same, and what its producer was told."""
        for known in (intent.told, intent.outcome):
            right = known is None or known == committed
            require(right, "S32", f"{where}: a marker of {intent}: {committed}, and it is: {known}")
        intent.outcome = committed


@attrs.define(eq=False)
class DecisionLog:
    """One partition of `__transaction_state`, as its committed log has it. `length`: how much of it is read."""

    told: Told
    facts: PartitionFacts
    length: int = 0

    def read_on(self, records: Mapping[str, Records], ended: Callable[[int, PartitionId], None]) -> None:
        """`ended`: told of each partition of each transaction that is said to be complete, and its producer id."""
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
        self, name: str, value: TransactionValue | None, ended: Callable[[int, PartitionId], None]
    ) -> None:
        before, self.told.values[name] = self.told.values.get(name), value
        if value is None:
            self.told.expired.add(name)
        else:
            self.told.order.setdefault(value.told, len(self.told.order))
        if value is not None and value.status.is_prepared:
            self.told.decided.setdefault((value.producer_id, value.producer_epoch), []).append(value)
        elif before is not None and before.status.is_prepared:
            for topic, partition in sorted(before.partitions):
                ended(before.producer_id, PartitionId(topic, partition))


@attrs.define(eq=False)
class TransactionLog:
    """The transactions of one partition, as its committed log has them."""

    told: Told
    facts: PartitionFacts
    open: dict[int, Intent] = attrs.Factory(dict)
    """The open transaction, by producer id."""
    ended: dict[Intent, bool] = attrs.Factory(dict)
    """Whether it is committed, of each that has a marker here."""
    _coordinators: dict[int, int] = attrs.Factory(dict)
    _marked: set[Ids] = attrs.Factory(set)
    """Producer ids and epochs of markers that are here."""

    def take(self, meta: BatchMeta, payload: str, is_blind: bool) -> None:
        """A batch of a producer is committed; `is_blind`: its leader may not have known what came before."""
        facts = self.facts
        if facts.unclean or facts.gone:
            return
        is_blind |= facts.forgot
        if meta.marker is not None:
            self._end(meta, meta.marker.committed, meta.marker.coordinator_epoch, is_blind)
        elif meta.transactional:
            intent = self.told.intents[payload]
            if intent in self.ended and intent.is_given_up and intent.name in self.told.sharing:
                # It has begun another one of the epoch, which nobody means and nobody is told about.
                intent = self.open.get(meta.producer_id) or Intent(intent.name, intent.owner, intent.ids)
                self.told.intents[payload] = intent
            self._written(meta, intent, is_blind)
        else:
            open_one = self.open.get(meta.producer_id)
            require(
                open_one is None, "S32", f"{facts.name}: {meta} is in no transaction, and {open_one} is open"
            )

    def _written(self, meta: BatchMeta, intent: Intent, is_blind: bool) -> None:
        """S35: nothing of a producer that another has taken the place of. S32: nor behind its own marker."""
        name, later = self.facts.name, self.told.later(intent)
        require(later is None or is_blind, "S35", f"{name}: {meta} after {later} of another producer")
        open_one = self.open.setdefault(meta.producer_id, intent)
        require(open_one is intent, "S32", f"{name}: {meta} of {intent} while {open_one} is open")
        require(intent not in self.ended or is_blind, "S32", f"{name}: {meta} behind the marker of {intent}")

    def _end(self, meta: BatchMeta, committed: bool, coordinator_epoch: int, is_blind: bool) -> None:
        """S32: a transaction has one marker, of the outcome that is committed at its coordinator by then.

        By the first version its marker may be repeated, and an earlier one may have had the same epoch.
        S36: no earlier coordinator writes after a later one.
        """
        ids, name = (meta.producer_id, meta.producer_epoch), self.facts.name
        known = self._coordinators.get(meta.producer_id, -1)
        require(coordinator_epoch >= known or is_blind, "S36", f"{name}: {meta} after coordinator {known}")
        self._coordinators[meta.producer_id] = coordinator_epoch
        decided = self.told.decided.get(ids, [])
        require(bool(decided), "S32", f"{name}: {meta}, and no coordinator has decided anything")
        outcomes = [each.status.is_committed for each in decided]
        require(committed in outcomes, "S32", f"{name}: {meta}, and its coordinator has decided otherwise")
        is_again = ids in self._marked and all(each.client_version > FIRST_VERSION for each in decided)
        require(not is_again or is_blind, "S32", f"{name}: {meta} is there twice")
        self._marked.add(ids)
        intent = self.open.pop(meta.producer_id, None)
        if intent is None:
            return
        require(
            committed == outcomes[-1], "S32", f"{name}: {meta}, and its coordinator has decided otherwise"
        )
        epoch = meta.producer_epoch - (decided[-1].client_version > FIRST_VERSION)
        require(epoch == intent.ids[1], "S32", f"{name}: {meta} ends {intent}")
        self.ended[intent] = committed
        self.told.marked(intent, committed, name)

    def is_complete(self, producer_id: int) -> None:
        """S32: where a coordinator says that all partitions have their markers, this one has it."""
        open_one = self.open.get(producer_id)
        require(open_one is None, "S32", f"{self.facts.name}: no marker of {open_one}, said to be complete")


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
