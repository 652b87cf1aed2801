"""`uniform`: the server's assignor by default; even over all topics, and sticky (KIP-848)."""

from __future__ import annotations

from .assignment import Assignment, Counts, Members, claims
from .balancing import is_uniform, keep_quotas, share_unequal


class UniformAssignor:
    """Members keep what their last target gave them up to their quota; the rest is dealt to them in turn."""

    name = "uniform"

    def assign(self, counts: Counts, members: Members) -> Assignment:
        if not members:
            return {}
        owners = claims(counts, members)
        if not is_uniform(members):
            return share_unequal(counts, members, owners).assignment()
        sharing, quota, extras = keep_quotas(counts, members, owners)
        turn = 0
        for partition in sharing.free:
            while True:
                held = sharing.held[sharing.order[turn % len(sharing.order)]]
                turn += 1
                if len(held) < quota:
                    break
                if len(held) == quota and extras:
                    extras -= 1
                    break
            held.add(partition)
        return sharing.assignment()
