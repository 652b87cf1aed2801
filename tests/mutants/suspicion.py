"""Errors in when a node is taken for silent."""

from __future__ import annotations

from typing import Any

from insync.replication.core import messages as m
from insync.replication.core.broker.suspicion import Suspicion

from .catalogue import Patch, mutant


@mutant("K220", "take a node for silent that is silent to one of its watchers")
def _(patch: Patch) -> None:
    def tell(self: Suspicion, request: m.IsSilentRequest) -> m.IsSilentResponse:
        return m.IsSilentResponse(silent=True)

    patch.setattr(Suspicion, "tell", tell)


@mutant("K221", "agree that a node is silent which has answered since")
def _(patch: Patch) -> None:
    def is_silent(self: Suspicion, node: Any) -> bool:
        watch = self._watches.get(node.node_id)
        return watch is not None and watch.asked is not None

    patch.setattr(Suspicion, "_is_silent", is_silent)
