"""Errors in how a node that is asked to stop is let go."""

from __future__ import annotations

from insync.replication.core.control.view import ClusterView

from ..catalogue import Patch, mutant


@mutant("K26", "treat a node that is about to stop as one that stays (KIP-841)")
def _(patch: Patch) -> None:
    patch.setattr(ClusterView, "staying", property(lambda self: dict(self.nodes)))

    def live_for(self: ClusterView, partition: object, *, leaving: bool = False) -> dict[int, int]:
        return {node: record.incarnation for node, record in self.nodes.items()}

    patch.setattr(ClusterView, "live_for", live_for)


@mutant("K27", "let a node stop before other nodes have taken over its leaderships")
def _(patch: Patch) -> None:
    patch.setattr(ClusterView, "is_relieved", lambda self, node_id: True)
