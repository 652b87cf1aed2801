"""`sticky` and `cooperative-sticky`: as even as can be, and of that what moves least (KIP-54, KIP-429)."""

from __future__ import annotations

import heapq

from .assignment import Assignment, Counts, Members, Partition, claims
from .balancing import is_uniform, keep_quotas, share_unequal


class StickyAssignor:
    """Members keep what they own as far as that is even; what is free goes to the least loaded in order."""

    name = "sticky"

    def assign(self, counts: Counts, members: Members) -> Assignment:
        if not members:
            return {}
        owners = claims(counts, members)
        if not is_uniform(members):
            return share_unequal(counts, members, owners).assignment()
        sharing, _, _ = keep_quotas(counts, members, owners)
        # Kept quotas differ by one at most from what is due, so dealing to the least loaded ends even.
        loads = [(len(sharing.held[member_id]), place) for place, member_id in enumerate(sharing.order)]
        heapq.heapify(loads)
        for partition in sharing.free:
            load, place = loads[0]
            sharing.held[sharing.order[place]].add(partition)
            heapq.heapreplace(loads, (load + 1, place))
        return sharing.assignment()


class CooperativeStickyAssignor:
    """As `sticky`, but nobody is given what another member still owns: that is withheld for one round.

    Its owner revokes it, joins again without it, and the next round gives it on (KIP-429).
    """

    name = "cooperative-sticky"

    def __init__(self) -> None:
        self._sticky = StickyAssignor()

    def assign(self, counts: Counts, members: Members) -> Assignment:
        newest: dict[Partition, int] = {}
        for said in members.values():
            for partition in said.owned:
                newest[partition] = max(said.generation, newest.get(partition, said.generation))
        # Of equal claims none is believed, and each may be true: all who make them must let go first.
        holders: dict[Partition, set[str]] = {}
        for member_id, said in members.items():
            for partition in said.owned:
                if said.generation == newest[partition]:
                    holders.setdefault(partition, set()).add(member_id)
        return {
            member_id: [
                partition for partition in given if holders.get(partition, {member_id}) == {member_id}
            ]
            for member_id, given in self._sticky.assign(counts, members).items()
        }
