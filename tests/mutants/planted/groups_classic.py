"""Planted errors of the classic protocol, and of groups with members of both."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from insync.replication.core.groups import classic_joins, consumer_members, offset_commits
from insync.replication.core.groups import moves as group_moves
from insync.replication.core.groups import records as r
from insync.replication.core.groups.assignors.balancing import is_uniform
from insync.replication.core.groups.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from insync.replication.core.groups.classic_members import ClassicMembers
from insync.replication.core.groups.classic_state import ClassicPhase, ClassicState
from insync.replication.core.groups.mixed_members import MixedMembers

from ..catalogue import Patch, mutant


@mutant("GZ16", "an old generation may commit")
def _(patch: Patch) -> None:
    right = offset_commits._check_classic

    def check(classic: Any, request: Any) -> None:
        right(classic, structs.replace(request, epoch=classic.generation))

    patch.setattr(offset_commits, "_check_classic", check)


@mutant("GZ24", "an assignment by the leader of an earlier generation is stored")
def _(patch: Patch) -> None:
    right = ClassicMembers._sync

    def sync(self: ClassicMembers, request_id: int, ask: Any, clock: Any) -> Any:
        state = self._groups.get(ask.group)
        if state is not None:
            ask = structs.replace(ask, generation=state.generation)
        return right(self, request_id, ask, clock)

    patch.setattr(ClassicMembers, "_sync", sync)


@mutant("GZ25", "an id that no member came back with blocks the others from joining")
def _(patch: Patch) -> None:
    right, complete = ClassicMembers._set, ClassicMembers.fire

    def set_timer(self: ClassicMembers, kind: str, *rest: Any) -> None:
        if kind != classic_joins.PENDING:
            right(self, kind, *rest)

    def fire(self: ClassicMembers, kind: str, group: str, member_id: str, clock: Any, over: Any) -> Any:
        state = self._groups.get(group)
        if kind == classic_joins.JOINS and state is not None and state.pending:
            over()
            self._set(kind, group, member_id, clock.now + 1.0)
            return None
        return complete(self, kind, group, member_id, clock, over)

    patch.setattr(ClassicMembers, "_set", set_timer)
    patch.setattr(ClassicMembers, "fire", fire)


@mutant("GZ26", "the new id of a static member is reported but not written")
def _(patch: Patch) -> None:
    right = ClassicMembers._replace
    patch.setattr(
        ClassicMembers,
        "_replace",
        lambda self, *rest: structs.replace(right(self, *rest), entries=()),
    )


@mutant("GZ27", "a static member that returns while the others wait for their assignment is admitted")
def _(patch: Patch) -> None:
    right = ClassicMembers._replace

    def replace(self: ClassicMembers, request_id: int, ask: Any, state: Any, *rest: Any) -> Any:
        waits = state.phase is ClassicPhase.COMPLETING
        if waits:
            state.phase = ClassicPhase.STABLE
            state.members[state.holder_of(ask.instance_id)].protocols = classic_joins._protocols(ask)
        decision = right(self, request_id, ask, state, *rest)
        if waits and state.phase is ClassicPhase.STABLE:
            state.phase = ClassicPhase.COMPLETING
        return decision

    patch.setattr(ClassicMembers, "_replace", replace)


@mutant("GZ28", "ids are given out without bound")
def _(patch: Patch) -> None:
    right = ClassicMembers._join
    patch.setattr(classic_joins, "MAX_PENDING", 1 << 30)

    def join(self: ClassicMembers, *rest: Any) -> Any:
        kept, self._settings = self._settings, structs.replace(self._settings, max_size=1 << 30)
        try:
            return right(self, *rest)
        finally:
            self._settings = kept

    patch.setattr(ClassicMembers, "_join", join)


@mutant("GZ29", "members learn their assignment before it is committed")
def _(patch: Patch) -> None:
    right = ClassicMembers._sync

    def sync(self: ClassicMembers, *rest: Any) -> Any:
        decision = right(self, *rest)
        told = tuple([structs.replace(each, groups=frozenset()) for each in decision.replies])
        return structs.replace(decision, replies=told)

    patch.setattr(ClassicMembers, "_sync", sync)


@mutant("GZ56", "a static member that is away counts as heard when the others have joined")
def _(patch: Patch) -> None:
    right = ClassicMembers._complete

    def complete(self: ClassicMembers, state: Any, clock: Any) -> None:
        right(self, state, clock)
        for each in state.members.values():
            self._beat(state, each, clock)

    patch.setattr(ClassicMembers, "_complete", complete)


@mutant("GZ61", "a static member that is away counts as heard when the others have their assignment")
def _(patch: Patch) -> None:
    right = ClassicMembers._sync

    def sync(self: ClassicMembers, request_id: int, ask: Any, clock: Any) -> Any:
        decision = right(self, request_id, ask, clock)
        if not decision.entries:
            return decision

        def then() -> None:
            decision.then()
            for each in self._groups[ask.group].members.values():
                self._beat(self._groups[ask.group], each, clock)

        return structs.replace(decision, then=then)

    patch.setattr(ClassicMembers, "_sync", sync)


@mutant("GZ62", "a group that changes its protocol restarts all sessions")
def _(patch: Patch) -> None:
    patch.setattr(
        ClassicMembers,
        "sessions",
        lambda self, state, clock: {
            name: clock.now + each.session_timeout_ms / 1000 for name, each in state.members.items()
        },
    )
    right = ClassicMembers.moved_down
    patch.setattr(
        ClassicMembers, "moved_down", lambda self, state, clock, left: right(self, state, clock, {})
    )


@mutant("GZ63", "a later coordinator does not distribute the assignment with which a group was downgraded")
def _(patch: Patch) -> None:
    right = ClassicMembers.activate

    def activate(self: ClassicMembers, state: Any, clock: Any) -> None:
        state.leader = state.leader or next(iter(state.members), None)
        right(self, state, clock)

    patch.setattr(ClassicMembers, "activate", activate)
    # A static leader that comes back would have it shared out.
    patch.setattr(ClassicState, "misfit", lambda self, view: "")


@mutant("GZ64", "a static leader that returns gets an unchanged assignment although a topic has grown")
def _(patch: Patch) -> None:
    patch.setattr(ClassicState, "misfit", lambda self, view: "")


@mutant("GZ60", "a classic member of a mixed group avoids a release by joining again and again")
def _(patch: Patch) -> None:
    right = MixedMembers._join

    def join(self: MixedMembers, request_id: int, ask: Any, state: Any, *rest: Any) -> Any:
        self._consumers.is_fenced = lambda *place: False  # type: ignore[method-assign]
        try:
            return right(self, request_id, ask, state, *rest)
        finally:
            del self._consumers.is_fenced

    patch.setattr(MixedMembers, "_join", join)


@mutant("GZ36", "a partition that moves is given to its new owner at once")
def _(patch: Patch) -> None:
    patch.setattr(
        CooperativeStickyAssignor,
        "assign",
        lambda self, counts, members: self._sticky.assign(counts, members),
    )


@mutant("GZ38", "partitions are exchanged although that makes nothing more even")
def _(patch: Patch) -> None:
    right = StickyAssignor.assign

    def assign(self: StickyAssignor, counts: Any, members: Any) -> Any:
        given = right(self, counts, members)
        rich = [each for each in given if given[each]]
        if len(rich) > 1 and is_uniform(members):
            one, other = rich[0], rich[1]
            given[one][0], given[other][0] = given[other][0], given[one][0]
        return given

    patch.setattr(StickyAssignor, "assign", assign)


@mutant("GZ30", "an upgraded group stays a classic one until its next batch")
def _(patch: Patch) -> None:
    right = consumer_members.move_up

    def move_up(draft: Any, classic: Any, context: Any) -> str:
        why = right(draft, classic, context)
        draft.entries = [
            (key, value) for key, value in draft.entries if not isinstance(key, r.ClassicGroupKey)
        ]
        return why

    patch.setattr(consumer_members, "move_up", move_up)


@mutant("GZ53", "an upgraded group keeps the assignment that a client had computed")
def _(patch: Patch) -> None:
    right = consumer_members.move_up

    def move_up(draft: Any, classic: Any, context: Any) -> str:
        right(draft, classic, context)
        return ""

    patch.setattr(consumer_members, "move_up", move_up)


@mutant("GZ58", "a partition that a classic member still has to release is free when its group is upgraded")
def _(patch: Patch) -> None:
    patch.setattr(group_moves, "_held_still", lambda found, given, view: dict.fromkeys(found, frozenset()))


@mutant("GZ59", "a member receives start positions for partitions that it was not given")
def _(patch: Patch) -> None:
    right = offset_commits._check_meaning
    patch.setattr(offset_commits, "_check_meaning", lambda asked, held, view: right(asked, None, view))


@mutant("GZ55", "a member removed from a mixed group joins it again with its former partitions")
def _(patch: Patch) -> None:
    right = MixedMembers._join

    def join(self: MixedMembers, request_id: int, ask: Any, state: Any, *rest: Any) -> Any:
        if ask.member_id and ask.member_id not in state.members and ask.instance_id is None:
            ask = structs.replace(ask, fresh_id=ask.member_id, member_id="", known_member_id=False)
        return right(self, request_id, ask, state, *rest)

    patch.setattr(MixedMembers, "_join", join)
