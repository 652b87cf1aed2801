"""The leader's changes of the ISR: one at a time, each a compare-and-set of the partition record (KIP-497)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ..control import transitions
from ..control.records import PartitionRecord, Versioned
from . import effects as fx
from . import events as ev
from . import isr as rules

if TYPE_CHECKING:
    from .leader import LeaderRole


@attrs.define(slots=True)
class PendingChange:
    """A proposal whose fate is not known. `joining` is the member that it adds, if it adds one.

    `unclear`: an attempt to store it may still succeed, even after a later one has been refused. `taken_over`: an
    earlier role of the same epoch has proposed it.
    """

    proposal: fx.ProposeIsr
    joining: int | None
    retry_at: float | None = None
    unclear: bool = False
    taken_over: bool = False


class IsrChange:
    """Proposes, and settles what becomes of the proposal. Belongs to one leader epoch."""

    def __init__(self, leader: LeaderRole) -> None:
        self._leader = leader
        self._replica = leader.replica
        self.pending: PendingChange | None = None

    @property
    def joining(self) -> int | None:
        """The member that counts from its proposal on."""
        return self.pending.joining if self.pending is not None else None

    def maybe_expand(self, follower: rules.Follower) -> None:
        """Propose a follower that is no member and has just fetched, if it may join.

        It must also be caught up in time, or it would be put out again at the next tick: under the minimum ISR
        the high watermark stands still, so that having reached it says little (KAFKA-19996), and above it a
        burst may lie between the high watermark and the end.
        """
        if self.pending is not None:
            return
        leader, log = self._leader, self._replica.log
        if not rules.may_join(follower, log.high_watermark, leader.epoch_start):
            return
        if not rules.has_let_go(follower, log.log_start_offset):
            return
        if not leader.eligible(follower):
            return
        if not leader.caught_up(follower):
            return
        self._propose(
            (*leader.record.isr, follower.node_id),
            joining=follower.node_id,
            reason=f"node {follower.node_id} has caught up to offset {follower.log_end_offset}",
        )

    def _shrink(self) -> None:
        leader, record, replica = self._leader, self._leader.record, self._replica
        out = rules.lagging(
            record.isr,
            replica.node_id,
            leader.followers,
            replica.log.log_end_offset,
            replica.now,
            replica.settings.replica_lag_time_max,
        )
        if out:
            lag_max = replica.settings.replica_lag_time_max
            self._propose(
                [node for node in record.isr if node not in out],
                joining=None,
                reason=f"nodes {list(out)} have not caught up for {lag_max:g} s",
            )

    def _propose(
        self, isr: tuple[int, ...] | list[int], *, joining: int | None, reason: str
    ) -> PendingChange:
        versioned = self._replica.versioned
        assert versioned is not None
        members: tuple[tuple[int, int], ...] = ()
        if joining is not None:
            # The incarnation that proved its offset to us, not the one that the store shows now (KAFKA-15221).
            members = ((joining, self._leader.followers[joining].incarnation),)
        proposal = fx.ProposeIsr(
            proposal_id=self._replica.new_proposal_id(),
            record=transitions.change_isr(versioned.record, isr),
            version=versioned.version,
            joining=members,
            reason=reason,
            removing=tuple(node for node in versioned.record.isr if node not in isr),
        )
        self.pending = PendingChange(proposal, joining)
        self._replica.parts.propose(self._replica.partition, proposal)
        return self.pending

    def on_tick(self) -> None:
        if self.pending is None:
            self._shrink()
        elif self.pending.retry_at is not None and self.pending.retry_at <= self._replica.now:
            self._look_again(self.pending)

    def on_outcome(self, event: ev.IsrStored | ev.IsrRefused | ev.IsrUnclear) -> None:
        pending = self.pending
        if pending is None or pending.proposal.proposal_id != event.proposal_id:
            return
        match event:
            case ev.IsrStored():
                self._install(pending.proposal.record, event.version)
            case ev.IsrRefused() if pending.unclear and pending.joining is not None:
                self._close_off(pending.joining)
            case ev.IsrRefused():
                self.pending = None
            case ev.IsrUnclear():
                # It may be stored: the joining member goes on counting until the record says otherwise.
                pending.unclear = True
                self._look_again(pending)

    def _close_off(self, joining: int) -> None:
        """Store the same ISR once more, so that an earlier attempt that is still on its way finds a newer version.

        The joining member goes on counting until this is stored.
        """
        fence = self._propose(
            self._leader.record.isr,
            joining=None,
            reason=f"node {joining} may not join, but an earlier attempt to add it may still succeed",
        )
        fence.joining = joining

    def take_over(self, earlier: IsrChange) -> None:
        """An earlier role's proposal over the record that we know, so in this epoch, may yet be stored.

        Until it is settled, who joins by it counts: else what it does not hold would be taken for committed.
        """
        pending, known = earlier.pending, self._replica.versioned
        if pending is not None and known is not None and known.version == pending.proposal.version:
            pending.unclear = pending.taken_over = True
            self.pending = pending
            self._look_again(pending)

    def _look_again(self, pending: PendingChange) -> None:
        pending.retry_at = self._replica.now + self._replica.settings.isr_retry_backoff
        self._replica.parts.read_again(fx.ReadRecord(partition=self._replica.partition))

    def _install(self, record: PartitionRecord, version: int) -> None:
        known = self._replica.versioned
        assert known is not None
        self.pending = None
        if version > known.version:
            # Also while a newer epoch waits: until that begins, a member that joined must hold what we commit.
            self._replica.install(Versioned(record, version))

    def on_record(self, unchanged: bool) -> None:
        """The record as read: a newer one settles the proposal, the same one means to send it again."""
        if self.pending is None:
            return
        if not unchanged:
            self.pending = None
        elif self.pending.retry_at is not None:
            self.pending.retry_at = None
            self._replica.parts.propose(self._replica.partition, self.pending.proposal)
