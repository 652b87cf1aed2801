"""Errors about log directories: offline while their node lives, or with identity files that prove nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from insync.replication.core.broker.membership import registration
from insync.replication.core.broker.membership.registration import Evidence, Held, Membership, NextProof
from insync.replication.core.control.records import PartitionRecord
from insync.replication.core.control.view import ClusterView, Standing

from ..catalogue import Patch, mutant


@mutant("K40", "count a replica as alive although its log directory is offline")
def _(patch: Patch) -> None:
    def live_for(self: ClusterView, partition: object, *, leaving: bool = False) -> dict[int, int]:
        return {node: each.incarnation for node, each in self.nodes.items() if leaving or not each.leaving}

    patch.setattr(ClusterView, "live_for", live_for)


@mutant("K294", "delete a log under an unknown topic id, as that of an earlier topic, and lead without it")
def _(patch: Patch) -> None:
    right = ClusterView.standing_of

    def standing_of(self: ClusterView, topic_id: str) -> Standing:
        found = right(self, topic_id)
        return Standing.DELETED if found is Standing.UNKNOWN else found

    patch.setattr(ClusterView, "standing_of", standing_of)


@mutant("K295", "count a replica whose log was set aside as one that never had a log")
def _(patch: Patch) -> None:
    right = Membership._return_to

    def return_to(self: Membership, partition: PartitionRecord, *given: object) -> PartitionRecord | None:
        holdings = self.holdings
        held = holdings.held(partition.id)
        never = structs.replace(held, never=held.home is None)
        self.holdings = structs.replace(holdings, held=lambda each: never)
        try:
            return right(self, partition, *given)  # type: ignore[arg-type]
        finally:
            self.holdings = holdings

    patch.setattr(Membership, "_return_to", return_to)


@mutant("K296", "take a log directory that has lost its proof for complete")
def _(patch: Patch) -> None:
    right = registration._is_behind

    def is_behind(found: Evidence, pulses: Mapping[str, int]) -> bool:
        return found.proof is not None and right(found, pulses)

    patch.setattr(registration, "_is_behind", is_behind)


@mutant("K297", "count a log that an operator has restored as complete")
def _(patch: Patch) -> None:
    def is_whole(self: Held) -> bool:
        return self.home is not None and self.log_end_offset >= self.committed

    patch.setattr(Held, "is_whole", property(is_whole))


@mutant("K302", "write a count into the folder as confirmed before the store has it")
def _(patch: Patch) -> None:
    right = Membership.next_proofs

    def next_proofs(self: Membership, *given: Any) -> dict[str, NextProof]:
        proofs = right(self, *given)
        return {each: structs.replace(proof, stored=proof.pulse) for each, proof in proofs.items()}

    patch.setattr(Membership, "next_proofs", next_proofs)
