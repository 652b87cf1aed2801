"""Planted errors of members that commit in transactions: an input counts twice, or never."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from insync.replication.core.broker.coordination.transacting import Transacting
from insync.replication.core.client.membership import Membership
from insync.replication.core.groups import offset_commits
from insync.replication.core.messages import groups as gm

from ..catalogue import Patch, mutant


@mutant("TZ37", "offsets of a transaction are accepted from any member, of any generation (KIP-447)")
def _(patch: Patch) -> None:
    right = offset_commits._check_sender

    def check_sender(state: Any, classic: Any, request: Any) -> Any:
        return None if isinstance(request, gm.TxnOffsetCommitRequest) else right(state, classic, request)

    patch.setattr(offset_commits, "_check_sender", check_sender)


@mutant("TZ48", "a new owner begins although a transaction is about to move the offset (KIP-447)")
def _(patch: Patch) -> None:
    right = Membership._send

    def send(self: Membership, message: Any, wait: float = 0.0) -> int:
        if isinstance(message, gm.GroupOffsetsRequest):
            message = structs.replace(message, require_stable=False)
        return right(self, message, wait)

    patch.setattr(Membership, "_send", send)


@mutant("TZ54", "markers that are written in one turn are told to a shard in the reverse order")
def _(patch: Patch) -> None:
    right = Transacting._appended

    def appended(self: Transacting, *rest: Any) -> None:
        before = len(self._first)
        right(self, *rest)
        if len(self._first) > before:
            self._first.appendleft(self._first.pop())

    patch.setattr(Transacting, "_appended", appended)
