"""A group of the classic protocol as its coordinator sees it now; the log has what survives it."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping

import attrs

from ..coordination.refusals import refuse_if
from ..coordination.topics_view import TopicsView
from ..errors import ErrorCode
from ..kafka.schema import RecordFormatError
from .assignors.assignment import Partition
from .embedded import as_partitions, decode_assignment, decode_subscription
from .records import ClassicGroupValue, ClassicMemberValue, ClassicProtocol

CONSUMER_PROTOCOL = "consumer"


class ClassicPhase(enum.Enum):
    """Only EMPTY and STABLE are ever stored: another coordinator begins a rebalance under way again."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    """Members join; who does not in time is out."""
    COMPLETING = "CompletingRebalance"
    """All have joined, and wait for what the leader assigns."""
    STABLE = "Stable"


@attrs.define
class ClassicMember:
    """`joining`, `syncing`: the request that is parked here."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[ClassicProtocol, ...]
    assignment: bytes = b""
    joining: int | None = None
    syncing: int | None = None

    def metadata(self, protocol: str | None) -> bytes:
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")


class _Supporters:
    """How many members support each protocol.

    It follows the members as they are when it is asked, and takes only those apart whose protocols are new since
    the last time: a group may have thousands of members, of which each may name a hundred.
    """

    __slots__ = ("_counts", "_known")

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._known: dict[str, tuple[ClassicProtocol, ...]] = {}

    def follow(self, members: Mapping[str, ClassicMember]) -> Counter[str]:
        """By name."""
        known = self._known
        for member_id, member in members.items():
            before = known.get(member_id, ())
            # A tuple is never changed, and as long as it is here no other one is it.
            if before is not member.protocols:
                self._forget(before)
                self._counts.update(_names(member.protocols))
                known[member_id] = member.protocols
        if len(known) > len(members):
            for member_id in known.keys() - members.keys():
                self._forget(known.pop(member_id))
        return self._counts

    def _forget(self, protocols: tuple[ClassicProtocol, ...]) -> None:
        for name in _names(protocols):
            self._counts[name] -= 1
            if not self._counts[name]:
                del self._counts[name]


def _names(protocols: tuple[ClassicProtocol, ...]) -> set[str]:
    return {each.name for each in protocols}


@attrs.define
class ClassicState:
    """`pending`: ids that were given out and have not joined yet (KIP-394)."""

    group: str
    phase: ClassicPhase = ClassicPhase.EMPTY
    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, ClassicMember] = attrs.Factory(dict)
    pending: set[str] = attrs.Factory(set)
    began: float = 0.0
    """When the rebalance under way began."""
    joined_at: float = 0.0
    """When the last new member came."""
    why: str = ""
    """The cause of the rebalance under way, for the operator."""
    was_empty: bool = False
    """Whether the rebalance under way is the first one of an empty group."""
    returned: bool = False
    """Whether the leader has come back since the last rebalance, and did not assign (KIP-814)."""
    _supporters: _Supporters = attrs.field(factory=_Supporters, init=False, eq=False, repr=False)

    @property
    def rebalance_timeout(self) -> float:
        """Seconds: the greatest of all members."""
        return max((each.rebalance_timeout_ms for each in self.members.values()), default=0) / 1000

    def vote(self) -> str:
        """The protocol that all members support and most prefer; of equal ones, the first by name."""
        common = self.common()
        votes = dict.fromkeys(common, 0)
        for each in self.members.values():
            votes[next(name.name for name in each.protocols if name.name in common)] += 1
        return max(sorted(votes), key=votes.__getitem__)

    def common(self, but: str = "") -> set[str]:
        """The protocols that all members support, leaving one member out."""
        one = next((each for each in self.members.values() if each.member_id != but), None)
        if one is None:
            return set()
        counts, out = self._supporters.follow(self.members), self.members.get(but)
        left_out = _names(out.protocols) if out is not None else set()
        all_others = len(self.members) - (out is not None)
        return {name for name in _names(one.protocols) if counts[name] - (name in left_out) == all_others}

    @classmethod
    def of(cls, group: str, value: ClassicGroupValue) -> ClassicState:
        """As the log has it: all ids stay valid over a change of the coordinator."""
        members = {
            each.member_id: ClassicMember(
                member_id=each.member_id,
                instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                rebalance_timeout_ms=max(each.rebalance_timeout_ms, each.session_timeout_ms),
                session_timeout_ms=each.session_timeout_ms,
                protocols=(ClassicProtocol(name=value.protocol or "", metadata=each.subscription),),
                assignment=each.assignment,
            )
            for each in value.members
        }
        return cls(
            group=group,
            phase=ClassicPhase.STABLE if members else ClassicPhase.EMPTY,
            protocol_type=value.protocol_type,
            generation=value.generation,
            protocol=value.protocol,
            leader=value.leader,
            members=members,
        )

    def value(self, now_ms: int) -> ClassicGroupValue:
        """The group's value for the log: as it is when its members have their assignments."""
        return ClassicGroupValue(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol if self.members else None,
            leader=self.leader if self.members else None,
            state_timestamp=now_ms,
            members=tuple(
                [
                    ClassicMemberValue(
                        member_id=each.member_id,
                        instance_id=each.instance_id,
                        client_id=each.client_id,
                        client_host=each.client_host,
                        rebalance_timeout_ms=each.rebalance_timeout_ms,
                        session_timeout_ms=each.session_timeout_ms,
                        subscription=each.metadata(self.protocol),
                        assignment=each.assignment,
                    )
                    for each in self.members.values()
                ]
            ),
        )

    def holder_of(self, instance_id: str) -> str | None:
        """The member that has a static instance."""
        for each in self.members.values():
            if each.instance_id == instance_id:
                return each.member_id
        return None

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """Raises `GroupRefusal` for who is no member; an instance that another has taken over is told so."""
        holder = None if instance_id is None else self.holder_of(instance_id)
        fenced = holder is not None and holder != member_id
        refuse_if(
            fenced, ErrorCode.FENCED_INSTANCE_ID, f"instance {instance_id!r} is member {holder!r} by now"
        )
        # Nor is it one with an instance that nobody has.
        unknown = member_id not in self.members or (instance_id is not None and holder is None)
        refuse_if(unknown, ErrorCode.UNKNOWN_MEMBER_ID, f"group {self.group!r} has no member {member_id!r}")

    def topics(self) -> frozenset[str] | None:
        """The topics that members read; None: they are no consumers, or say it in a way that is not understood."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        found: set[str] = set()
        for each in self.members.values():
            for protocol in each.protocols:
                try:
                    found.update(decode_subscription(protocol.metadata).topics)
                except RecordFormatError:
                    return None
        return frozenset(found)

    def misfit(self, view: TopicsView) -> str:
        """The partitions the assignment lacks of the read topics, or has though they are not there; "" if none.

        Also "" if the members are no consumers, or say what they read or have in a way that is not understood.
        """
        if self.protocol_type != CONSUMER_PROTOCOL:
            return ""
        topics: set[str] = set()
        given: set[Partition] = set()
        try:
            for each in self.members.values():
                topics.update(decode_subscription(each.metadata(self.protocol)).topics)
                given |= as_partitions(decode_assignment(each.assignment).partitions)
        except RecordFormatError:
            return ""
        counts = view.counts(topics)
        there = {Partition(name, number) for name, count in counts.items() for number in range(count)}
        if left := there - given:
            found = min(left)
            return f"{found.topic}-{found.partition} is assigned to nobody"
        gone = {each for each in given if each.topic in topics} - there
        # Their names may be anything.
        return "partitions are assigned that do not exist" if gone else ""
