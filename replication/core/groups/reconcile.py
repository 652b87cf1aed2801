"""One member's way from what it owns to what it is to own (KIP-848): first let go, then be given."""

from __future__ import annotations

from collections.abc import Collection, Set

import msgspec
from msgspec import structs

from .records import CurrentValue, MemberState, TopicPartition, as_owned, owned_topics


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """`owned`: what the member says it owns, None if it does not say. `taken`: what others have or still hold."""

    target: Set[TopicPartition]
    target_epoch: int
    owned: Collection[TopicPartition] | None
    taken: Set[TopicPartition]


def reconcile(current: CurrentValue, seen: Situation) -> CurrentValue:
    """The member's next step; `current` itself if there is none.

    `seen.target` must have nothing of topics that the member has unsubscribed from.
    """
    assigned = as_owned(current.assigned, current.epoch)
    pending = as_owned(current.pending, current.epoch)

    def owns_any(partitions: Collection[TopicPartition]) -> bool:
        return bool(partitions) if seen.owned is None else any(each in partitions for each in seen.owned)

    if current.state == MemberState.UNREVOKED and owns_any(pending):
        return current
    revoke = {each: epoch for each, epoch in assigned.items() if each not in seen.target}
    kept = {each: epoch for each, epoch in assigned.items() if each in seen.target}
    if owns_any(revoke):
        return structs.replace(
            current,
            state=MemberState.UNREVOKED,
            assigned=owned_topics(kept),
            pending=owned_topics(revoke),
        )
    wanted = seen.target - kept.keys()
    # What it has itself let go is not taken by others, whatever it was given it for (KAFKA-19449).
    free = wanted - seen.taken
    epoch = seen.target_epoch
    found = kept | dict.fromkeys(free, epoch)
    return structs.replace(
        current,
        epoch=epoch,
        previous_epoch=current.epoch if epoch != current.epoch else current.previous_epoch,
        state=MemberState.STABLE if free == wanted else MemberState.UNRELEASED,
        assigned=owned_topics(found),
        pending=(),
    )
