"""The planted errors. They stand in the machines of groups and members; the transactions are the model's."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from insync.replication.core.client.membership import Membership
from insync.replication.core.groups import offset_commits
from insync.replication.core.messages import groups as gm
from insync.replication.simulation.groups.exactly_once import run as play

from ..registry import Patch, Registry

__all__ = ["REGISTRY", "SEEDS", "play"]
SEEDS = 1_000
REGISTRY = Registry()
mutant = REGISTRY.mutant


@mutant("TZ37", "offsets of a transaction are accepted from any member, of any generation (KIP-447)", "T11")
def _(patch: Patch) -> None:
    right = offset_commits._check_sender

    def check_sender(state: Any, classic: Any, request: Any) -> Any:
        return None if isinstance(request, gm.TxnOffsetCommitRequest) else right(state, classic, request)

    patch.setattr(offset_commits, "_check_sender", check_sender)


@mutant("TZ48", "a new owner begins although a transaction is about to move the offset (KIP-447)", "T11")
def _(patch: Patch) -> None:
    right = Membership._send

    def send(self: Membership, message: Any, wait: float = 0.0) -> int:
        if isinstance(message, gm.GroupOffsetsRequest):
            message = structs.replace(message, require_stable=False)
        return right(self, message, wait)

    patch.setattr(Membership, "_send", send)
