"""Errors that show beside nodes of a later minor version alone: in what they write, and in what they answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from insync.replication.core.broker.fetching import following
from insync.replication.core.broker.membership import proposing
from insync.replication.core.broker.membership.registration import Membership
from insync.replication.core.errors import ErrorCode
from insync.replication.core.store_transaction import Seen

from ..catalogue import Patch, mutant


def _as_known(seen: Mapping[str, Seen]) -> dict[str, Seen]:
    """What is compared has the fields that this version knows, and no others."""
    return {key: structs.replace(each, value=each.record) for key, each in seen.items()}


@mutant("K226", "compare only the fields that this version knows of a stored record when the ISR changes")
def _(patch: Patch) -> None:
    right = proposing.conditions
    patch.setattr(proposing, "conditions", lambda proposal, seen: right(proposal, _as_known(seen)))


@mutant(
    "K227",
    "compare only the fields that this version knows of a stored record when a node is evicted or enters",
)
def _(patch: Patch) -> None:
    for owner, name in ((Membership, "enter"), (Membership, "enter_again")):
        right = getattr(owner, name)

        def write(self: Membership, seen: Any, *args: Any, right: Any = right) -> Any:
            return right(self, _as_known(seen), *args)

        patch.setattr(owner, name, write)


@mutant("K228", "treat an error code that this version does not know as news of another leader epoch")
def _(patch: Patch) -> None:
    def error(code: int) -> ErrorCode:
        known = {int(each) for each in ErrorCode}
        return ErrorCode(code) if code in known else ErrorCode.FENCED_LEADER_EPOCH

    patch.setattr(following, "code_of", error)
