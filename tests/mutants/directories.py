"""Errors about log directories that are offline while their node lives."""

from __future__ import annotations

from insync.replication.core.control.view import ClusterView

from .catalogue import Patch, mutant


@mutant("K40", "count a replica as alive although its log directory is offline")
def _(patch: Patch) -> None:
    def live_for(self: ClusterView, partition: object, *, leaving: bool = False) -> dict[int, int]:
        return {node: each.incarnation for node, each in self.nodes.items() if leaving or not each.leaving}

    patch.setattr(ClusterView, "live_for", live_for)
