"""Errors of current reads: what must be proved before a leader may say how far everybody's writes reach."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from insync.replication.core.broker.fetching.current_reads import CurrentReads
from insync.replication.core.broker.fetching.inquiries import Inquiry
from insync.replication.core.broker.fetching.serving import Serving
from insync.replication.core.control.records import PartitionRecord
from insync.replication.core.coordination.contact import Contact
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition.leader import LeaderRole

from ..catalogue import Patch, mutant


@mutant("K190", "trust the high watermark before it has reached the start of the epoch")
def _(patch: Patch) -> None:
    right = CurrentReads.look

    def look(self: CurrentReads, partition: Any) -> None:
        with Patch.context() as within:
            trusting = lambda role: (ErrorCode.NONE, role.replica.log.high_watermark)  # noqa: E731
            within.setattr(LeaderRole, "latest_offset", trusting)
            right(self, partition)

    patch.setattr(CurrentReads, "look", look)


@mutant("K191", "take the arrival time of a fetch as its proof")
def _(patch: Patch) -> None:
    right = CurrentReads.fetched

    def fetched(self: CurrentReads, inquiry: Inquiry) -> None:
        inquiry.confirmed_at = float("inf")
        right(self, inquiry)

    patch.setattr(CurrentReads, "fetched", fetched)


@mutant("K192", "wait for one follower fewer than may lead next")
def _(patch: Patch) -> None:
    right = CurrentReads.look

    def look(self: CurrentReads, partition: Any) -> None:
        watch = self.watches.get(partition)
        if watch is None:
            return
        needed = watch.role.record.min_isr - 1

        def since(contact: Contact, leader: int, maximal_isr: Iterable[int], now: float) -> float:
            heard = sorted(contact._asked_after.values(), reverse=True)
            return now if not needed else heard[needed - 1] if len(heard) >= needed else float("-inf")

        with Patch.context() as within:
            within.setattr(Contact, "since", since)
            right(self, partition)

    patch.setattr(CurrentReads, "look", look)


@mutant("K193", "count a fetch that continues an answer from before the question")
def _(patch: Patch) -> None:
    right = Serving._inquiry

    def inquiry(self: Serving, event: Any) -> Any:
        found = right(self, event)
        if isinstance(found, Inquiry) and found.sent_at > float("-inf"):
            found.confirmed_at = float("inf")
        return found

    patch.setattr(Serving, "_inquiry", inquiry)


@mutant("K194", "answer while the ISR is below its minimum")
def _(patch: Patch) -> None:
    right = CurrentReads.look

    def look(self: CurrentReads, partition: Any) -> None:
        with Patch.context() as within:
            within.setattr(PartitionRecord, "min_isr", 1)
            right(self, partition)

    patch.setattr(CurrentReads, "look", look)


@mutant("K195", "learn nothing from fetches")
def _(patch: Patch) -> None:
    patch.setattr(CurrentReads, "fetched", lambda self, inquiry: None)
