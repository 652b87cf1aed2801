"""The promises of transactions, seen from outside: by logs, and by what producers did and were told."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from ...core.transactions.records import LAST_EPOCH, Status, TransactionValue
from ...core.types import BatchMeta

Place = tuple[str, int]


class Violated(Exception):
    """A promise is broken; `invariant` is its name in docs/transactions.md."""

    def __init__(self, invariant: str, why: str) -> None:
        super().__init__(f"{invariant}: {why}")
        self.invariant = invariant


@attrs.define(eq=False)
class Intent:
    """One transaction as its producer sees it. `told`: whether it is committed, None while that is unknown."""

    owner: int
    number: int
    acknowledged: dict[Place, int] = attrs.Factory(dict)
    told: bool | None = None


@attrs.frozen
class Logged:
    """A batch in the log of a partition; `intent` is None for a marker, and outside of transactions."""

    offset: int
    meta: BatchMeta
    intent: Intent | None


@attrs.define(eq=False)
class Oracle:
    """Keeps what was promised, and compares."""

    logs: dict[Place, list[Logged]]
    owners: dict[tuple[int, int], int] = attrs.Factory(dict)
    """To whom producer ids and epochs were told."""
    shut_out: dict[int, str] = attrs.Factory(dict)
    """Producers whose transactional id another one was told to have."""
    stable: dict[Place, int] = attrs.Factory(dict)
    outcomes: dict[tuple[int, int], bool] = attrs.Factory(dict)
    deleted: set[Place] = attrs.Factory(set)
    """Partitions of topics that were deleted, and may be there again: nothing that was told of them holds."""
    committed: dict[Place, int] = attrs.Factory(dict)

    def forget(self, place: Place) -> None:
        """A topic is deleted."""
        self.logs[place].clear()
        self.stable[place] = self.committed[place] = 0
        self.deleted.add(place)

    def told_ids(
        self, owner: int, others: Iterable[int], ids: tuple[int, int], *, first: bool, goes_on: bool = False
    ) -> None:
        """A producer was told its ids. `first`: by opening, which shuts all others out.

        `goes_on`: by the ids that it had.
        """
        if goes_on and owner in self.shut_out:
            raise Violated("T3", f"producer {owner} is let in again by ids of old: {self.shut_out[owner]}")
        if ids[1] > LAST_EPOCH:
            raise Violated("T9", f"producer {owner} was told epoch {ids[1]}")
        holder = self.owners.setdefault(ids, owner)
        if holder != owner:
            raise Violated("T9", f"{ids} was told to producers {holder} and {owner}")
        if first:
            self.shut_out.pop(owner, None)
            for each in others:
                self.shut_out[each] = f"producer {owner} was told {ids}"

    def appended(self, place: Place, logged: Logged, known: TransactionValue | None) -> None:
        """`known`: what is committed of the transactional id at its coordinator."""
        log = self.logs[place]
        if not logged.meta.transactional:
            if self._open(place, logged.meta.producer_id):
                raise Violated("T1", f"{place}: {logged.meta} belongs to no transaction, and one is open")
        elif logged.intent is None:
            self._marked(place, logged, known)
        else:
            self._written(place, logged, known)
        log.append(logged)

    def _written(self, place: Place, logged: Logged, known: TransactionValue | None) -> None:
        meta, intent = logged.meta, logged.intent
        assert intent is not None
        if intent.owner in self.shut_out:
            raise Violated("T3", f"producer {intent.owner} writes to {place}: {self.shut_out[intent.owner]}")
        begun = self._open(place, meta.producer_id)
        if begun and begun[0].intent is not intent:
            raise Violated("T7", f"{place}: two transactions of {meta.producer_id} and no marker between")
        # Of clients whose transactions share an epoch they go on; else each transaction begins at 0.
        ids = meta.producer_id, meta.producer_epoch
        expected = sum(
            each.meta.offset_count
            for each in self.logs[place]
            if each.intent is not None and (each.meta.producer_id, each.meta.producer_epoch) == ids
        )
        if meta.base_sequence != expected and place not in self.deleted:
            raise Violated("T10", f"{place}: sequence {meta.base_sequence} comes where {expected} is due")
        held = known is not None and known.producer_id == meta.producer_id and place in known.partitions
        if not held or known is None or known.status not in _UNDER_WAY:
            raise Violated(
                "T5", f"{place}: producer {meta.producer_id} writes, and its coordinator has {known}"
            )

    def _marked(self, place: Place, logged: Logged, known: TransactionValue | None) -> None:
        meta = logged.meta
        assert meta.marker is not None
        earlier = [
            each.meta.marker.coordinator_epoch
            for each in self.logs[place]
            if each.meta.producer_id == meta.producer_id and each.meta.marker is not None
        ]
        if earlier and meta.marker.coordinator_epoch < earlier[-1]:
            raise Violated(
                "T8", f"{place}: coordinator epoch {meta.marker.coordinator_epoch} after {earlier[-1]}"
            )
        begun = self._open(place, meta.producer_id)
        if not begun:
            return
        if (
            known is None
            or not known.status.is_prepared
            or known.status.is_committed != meta.marker.committed
        ):
            raise Violated("T6", f"{place}: a marker {meta.marker} stands, and its coordinator has {known}")
        intent = begun[0].intent
        assert intent is not None
        key = intent.owner, intent.number
        if self.outcomes.setdefault(key, meta.marker.committed) != meta.marker.committed:
            raise Violated("T1", f"transaction {key} is committed in one partition and aborted in another")
        if intent.told is not None and intent.told != meta.marker.committed:
            raise Violated(
                "T2", f"transaction {key} ends otherwise than its producer was told ({intent.told})"
            )

    def _open(self, place: Place, producer_id: int) -> list[Logged]:
        """The batches of a producer's open transaction, by the log alone."""
        found: list[Logged] = []
        for each in self.logs[place]:
            if each.meta.producer_id == producer_id and each.meta.transactional:
                found = [*found, each] if each.meta.marker is None else []
        return found

    def told_outcome(self, intent: Intent, committed: bool) -> None:
        """A producer was told what became of its transaction."""
        if intent.told is not None and intent.told != committed:
            raise Violated("T2", f"transaction {intent.number} of producer {intent.owner} has two outcomes")
        intent.told = committed
        known = self.outcomes.get((intent.owner, intent.number))
        if known is not None and known != committed:
            raise Violated("T2", f"{intent.number} of {intent.owner} was told {committed}, but is {known}")
        if committed:
            for place, count in intent.acknowledged.items():
                if place in self.deleted:
                    continue
                there = sum(each.meta.offset_count for each in self.logs[place] if each.intent is intent)
                if there < count:
                    raise Violated(
                        "T2", f"{place}: of {count} records acknowledged and committed there are {there}"
                    )

    def completed(self, value: TransactionValue) -> None:
        """The coordinator has written that every partition knows the outcome."""
        for place in value.partitions:
            if place in self.deleted:
                continue
            if self._open(place, value.producer_id):
                raise Violated("T6", f"{place}: the transaction is complete, and open there")
            ends = [each for each in self.logs[place] if each.meta.producer_id == value.producer_id]
            if ends and ends[-1].meta.next_offset > self.committed[place]:
                raise Violated(
                    "T6", f"{place}: the transaction is complete, and its marker may be lost there"
                )

    def looked_at(self, place: Place, high_watermark: int, found: int) -> None:
        """`found`: the last stable offset that the leader goes by."""
        self.committed[place] = high_watermark
        begun: dict[int, int] = {}
        unsettled = [high_watermark]
        for each in self.logs[place]:
            if not each.meta.transactional:
                continue
            if each.meta.marker is None:
                begun.setdefault(each.meta.producer_id, each.offset)
            else:
                first = begun.pop(each.meta.producer_id, None)
                if first is not None and each.offset >= high_watermark:
                    unsettled.append(first)
        expected = min([*unsettled, *begun.values()])
        if found != expected or found < self.stable.get(place, 0):
            raise Violated("T4", f"{place}: the last stable offset is {found}, not {expected}")
        self.stable[place] = found


_UNDER_WAY = (Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT)
