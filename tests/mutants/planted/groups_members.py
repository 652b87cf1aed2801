"""Planted errors of a client's membership."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from insync.replication.core.client.held_partitions import HeldPartitions
from insync.replication.core.client.membership import Membership
from insync.replication.core.groups.consumer_members import ConsumerMembers

from ..catalogue import Patch, mutant


@mutant("GZ40", "a commit includes the records that the running poll returns")
def _(patch: Patch) -> None:
    right = HeldPartitions.hand_out

    def hand_out(self: HeldPartitions, handed: Any) -> None:
        right(self, handed)
        self.consume()

    patch.setattr(HeldPartitions, "hand_out", hand_out)
    went_on = Membership._go_on

    def go_on(self: Membership, now: float) -> None:
        offsets = self.held.uncommitted()
        if self.settings.enable_auto_commit and self._joined and offsets and not self.commits.waiting:
            self._own_commit(offsets, now + 1)
        went_on(self, now)

    patch.setattr(Membership, "_go_on", go_on)


@mutant("GZ41", "a partition that is assigned again continues where it was left")
def _(patch: Patch) -> None:
    left: dict[tuple[int, Any], int | None] = {}
    right, found = HeldPartitions.revoked, HeldPartitions.serve

    def revoked(self: HeldPartitions, partitions: Any) -> None:
        for each in partitions:
            if each in self._held:
                left[id(self), each] = self._held[each].handed
        right(self, partitions)

    def serve(self: HeldPartitions, partitions: Any) -> Any:
        return [(each, left.get((id(self), each)) or start) for each, start in found(self, partitions)]

    patch.setattr(HeldPartitions, "revoked", revoked)
    patch.setattr(HeldPartitions, "serve", serve)


@mutant("GZ42", "records are handed out while the revocation commits")
def _(patch: Patch) -> None:
    right = Membership._withhold

    def withhold(self: Membership, partitions: Any) -> None:
        if not self.held.revoking:
            right(self, partitions)

    patch.setattr(Membership, "_withhold", withhold)


@mutant("GZ43", "a fenced member continues to send heartbeats")
def _(patch: Patch) -> None:
    right = Membership._send_beat

    def send_beat(self: Membership, now: float) -> None:
        lost, self.held.lost = self.held.lost, frozenset()
        right(self, now)
        self.held.lost = lost

    patch.setattr(Membership, "_send_beat", send_beat)


@mutant("GZ44", "a client keeps a coordinator that does not answer")
def _(patch: Patch) -> None:
    right = Membership._forget_coordinator

    def forget(self: Membership, now: float) -> None:
        right(self, now)
        self._known = True
        self._beat_at = now + 0.1

    patch.setattr(Membership, "_forget_coordinator", forget)


@mutant("GZ50", "a member continues after its session")
def _(patch: Patch) -> None:
    def check(self: Membership, now: float) -> None:
        if self._lease_end is not None and now >= self._lease_end:
            self._lease_end = None

    patch.setattr(Membership, "_check_lease", check)


@mutant("GZ51", "a member reports a release before its caller has released")
def _(patch: Patch) -> None:
    right = HeldPartitions.assign

    def assign(self: HeldPartitions, told: Any) -> Any:
        withheld, _ = right(self, told)
        for each in withheld:
            del self._held[each]
        return frozenset(), bool(withheld)

    patch.setattr(HeldPartitions, "assign", assign)


@mutant("GZ52", "a parked heartbeat of a static member that is away is looked at again")
def _(patch: Patch) -> None:
    right = ConsumerMembers._leave

    def leave(self: ConsumerMembers, request_id: int, beat: Any, *rest: Any) -> Any:
        parked = self._find(beat.group, beat.member_id)
        self._find = lambda *place: None  # type: ignore[method-assign]
        decision = right(self, request_id, beat, *rest)
        del self._find

        def then() -> None:
            decision.then()
            if parked is not None:
                self._dirty[beat.group] = None

        return structs.replace(decision, then=then)

    patch.setattr(ConsumerMembers, "_leave", leave)
