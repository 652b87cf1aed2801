"""A consumer's membership by the classic protocol: join, sync, heartbeat (KIP-62, 134, 345, 394, 429).

It differs from `Membership` in how it learns what to hold. A member that all know as the leader computes that for
all of them. With eager assignors everything is let go before a join; with cooperative ones only what moves is, and
the member joins once more when it has let it go.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence

from ..errors import ErrorCode, code_of
from ..groups.assignors.assignment import NO_GENERATION, Assignor, Partition, Subscription
from ..groups.classic_state import CONSUMER_PROTOCOL
from ..groups.embedded import (
    EmbeddedAssignment,
    EmbeddedSubscription,
    as_numbers,
    as_partitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ..groups.records import TopicPartition
from ..kafka.schema import RecordFormatError
from ..messages import groups as gm
from . import membership_events as me
from .membership import BACKOFF, LATER, LEASE_SHARE, LOOK_AGAIN, Membership, MembershipSettings

_COOPERATIVE = "cooperative-sticky"


class ClassicSettings(MembershipSettings, frozen=True, kw_only=True):
    """`assignors`: in order of preference. Seconds, as in `MembershipSettings`."""

    assignors: Sequence[Assignor]
    session_timeout: float = 45.0
    heartbeat_interval: float = 3.0


class _Stage(enum.Enum):
    JOIN = enum.auto()
    """It is to join, once it has let go what it must."""
    SYNC = enum.auto()
    """It has joined a generation, and asks for what it is to hold."""
    STABLE = enum.auto()


def is_cooperative(assignors: Sequence[Assignor]) -> bool:
    """Whether members keep what they hold while they join: only if each of the assignors expects it (KIP-429)."""
    return all(
        getattr(each, "is_cooperative", False) or each.name.startswith(_COOPERATIVE) for each in assignors
    )


class ClassicMembership(Membership):
    """Takes and gives what `Membership` does."""

    settings: ClassicSettings

    def __init__(self, settings: ClassicSettings, now: float) -> None:
        super().__init__(settings, now)
        self.epoch = NO_GENERATION
        self._interval = settings.heartbeat_interval
        self._session = settings.session_timeout
        self._cooperative = is_cooperative(settings.assignors)
        self._stage = _Stage.JOIN
        self._said: tuple[str, ...] = ()
        """The topics that the last join named."""
        self._ids: dict[str, str] = {}
        """Of topics, by name."""
        self._counts: dict[str, int] = {}
        self._looked: set[str] = set()
        self._led: gm.JoinGroupResponse | None = None
        """The generation that this member leads, with all members."""
        self._shared: dict[str, int] = {}
        """Partitions of the topics that it shared out last, or that there were when it came back to lead."""
        self._watched: frozenset[str] = frozenset()
        """The topics that all members read, if it came back to lead and did not share out."""
        self._assignments: list[gm.MemberAssignment] | None = None
        self._told: frozenset[Partition] = frozenset()
        """The partitions that it is to hold, by name."""
        self._meant: dict[str, str] = {}
        """The ids of their topics, by name: of those that had the names when they were first looked at."""

    # Topics

    def _topics_known(self, event: me.TopicsKnown, now: float) -> None:
        super()._topics_known(event, now)
        self._ids.update({name: topic_id for topic_id, name in event.names.items()})
        self._counts.update(event.counts)
        for gone in event.looked - event.counts.keys():
            self._counts.pop(gone, None)
        self._looked |= event.looked | event.counts.keys()
        if self._stage is _Stage.SYNC and self._led is not None and self._assignments is None:
            self._share(now)
        elif self._stage is _Stage.STABLE:
            if self._shared and self._shared != self._counted(self._shared):
                # Its leader notices: what is to be shared has changed.
                self._rejoin(now)
            else:
                self._hold(now)
                if any(self._ids[name] != topic_id for name, topic_id in self._meant.items()):
                    # A topic of that name was made again. Who is to have its partitions the coordinator says.
                    self._rejoin(now)
        self._count_watched()

    def _count_watched(self) -> None:
        for name in self._watched & self._looked:
            self._shared.setdefault(name, self._counts.get(name, 0))

    def _counted(self, topics: Mapping[str, int]) -> dict[str, int]:
        return {name: self._counts.get(name, 0) for name in topics}

    # What is sent

    def _send_beat(self, now: float) -> None:
        if not self._may_beat:
            return
        if self.topics != self._said:
            self._stage = _Stage.JOIN
        if self._stage is _Stage.JOIN and not self._cooperative and self.held.all:
            self._withhold(self.held.assign(set())[0])
            self._call_back(now)
        if not self._known or self._beat is not None or now < self._beat_at:
            return
        if self._stage is _Stage.JOIN and (self._cooperative or not self.held.all):
            self._send_join()
        elif self._stage is _Stage.SYNC:
            if self._led is None or self._assignments is not None:
                self._send_sync()
        elif self._joined:
            self._beat = self._send(
                gm.HeartbeatRequest(
                    group=self.settings.group,
                    member_id=self.member_id,
                    instance_id=self.settings.instance_id,
                    generation=self.epoch,
                )
            )
        self._beat_sent = now

    def _send_join(self) -> None:
        settings = self.settings
        self._said = self.topics
        names = self.held.names
        owned = frozenset(
            Partition(names[each.topic_id], each.partition)
            for each in self.held.all
            if each.topic_id in names
        )
        said = encode_subscription(
            EmbeddedSubscription(
                topics=self.topics,
                owned=as_numbers(owned),
                generation=self.epoch,
                rack=settings.rack,
            )
        )
        self._beat = self._send(
            gm.JoinGroupRequest(
                group=settings.group,
                member_id=self.member_id,
                instance_id=settings.instance_id,
                session_timeout_ms=int(settings.session_timeout * 1000),
                rebalance_timeout_ms=int(settings.max_poll_interval * 1000),
                protocol_type=CONSUMER_PROTOCOL,
                protocols=[gm.GroupProtocol(name=each.name, metadata=said) for each in settings.assignors],
                client_id=settings.client_id,
            ),
            settings.max_poll_interval,
        )
        # While it waits there, the coordinator counts no session.
        self._lease_end = None

    def _send_sync(self) -> None:
        settings = self.settings
        self._beat = self._send(
            gm.SyncGroupRequest(
                group=settings.group,
                member_id=self.member_id,
                instance_id=settings.instance_id,
                generation=self.epoch,
                assignments=self._assignments or [],
            ),
            settings.max_poll_interval,
        )
        self._lease_end = None

    def _rejoin(self, now: float) -> None:
        self._stage = _Stage.JOIN
        self._led, self._assignments = None, None
        self._beat_at = now

    def _forget_coordinator(self, now: float) -> None:
        super()._forget_coordinator(now)
        if self._stage is _Stage.SYNC:
            self._rejoin(now)
        if self._joined and self._lease_end is None:
            self._lease_end = now + self._session * LEASE_SHARE

    # What is heard

    def _heard(self, reply: object, now: float) -> None:
        self._beat = None
        match reply:
            case gm.JoinGroupResponse():
                self._heard_join(reply, now)
            case gm.SyncGroupResponse():
                self._heard_sync(reply, now)
            case gm.HeartbeatResponse():
                if reply.error == ErrorCode.NONE:
                    self._lease_end = self._beat_sent + self._session * LEASE_SHARE
                    self._beat_at = self._beat_sent + self._interval
                else:
                    self._refused(reply.error, reply.message, now)

    def _heard_join(self, reply: gm.JoinGroupResponse, now: float) -> None:
        if reply.error == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
            self._beat_at = now
            return
        if reply.error != ErrorCode.NONE:
            self._refused(reply.error, reply.message, now)
            return
        self.member_id, self.epoch = reply.member_id, reply.generation
        self._joined = True
        # All others have joined just now, too: the session began when this was answered.
        self._lease_end = now + self._session * LEASE_SHARE
        self._stage, self._beat_at = _Stage.SYNC, now
        leads = reply.leader_id == reply.member_id
        self._led = reply if leads and not reply.skip_assignment else None
        self._assignments, self._shared, self._watched = None, {}, frozenset()
        if self._led is not None:
            self._share(now)
        elif leads:
            self._watch(reply)

    def _heard_sync(self, reply: gm.SyncGroupResponse, now: float) -> None:
        if reply.error != ErrorCode.NONE:
            self._refused(reply.error, reply.message, now)
            return
        self._lease_end = now + self._session * LEASE_SHARE
        self._beat_at = now + self._interval
        try:
            self._told = as_partitions(decode_assignment(reply.assignment).partitions)
        except RecordFormatError as error:
            what = f"its leader's assignment cannot be decoded: {error}"
            self._fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, what, now)
            return
        self._stage, self._led, self._assignments, self._meant = _Stage.STABLE, None, None, {}
        unknown = frozenset(each.topic for each in self._told if each.topic not in self._ids)
        if unknown:
            self._effects.append(me.LearnTopics(topics=unknown))
        self._hold(now)

    def _hold(self, now: float) -> None:
        """Take and let go, as the assignment says; a topic that is not known yet follows when it is."""
        for each in self._told:
            if each.topic in self._ids:
                self._meant.setdefault(each.topic, self._ids[each.topic])
        told = {
            TopicPartition(self._meant[each.topic], each.partition)
            for each in self._told
            if self._ids.get(each.topic) == self._meant.get(each.topic, "")
        }
        if told == self.held.all:
            return
        withheld, released = self.held.assign(told)
        self._withhold(withheld)
        if released and self._cooperative:
            self._rejoin(now)

    def _callback_done(self, now: float) -> None:
        was, held = self._callback, self.held.all
        super()._callback_done(now)
        if was is not None and was.kind is me.CallbackKind.REVOKED and held != self.held.all:
            # What is free by now can be given to others.
            self._rejoin(now)

    def _refused(self, number: int, message: str, now: float) -> None:
        error = code_of(number)
        if error in LOOK_AGAIN:
            self._forget_coordinator(now)
        elif error == ErrorCode.REBALANCE_IN_PROGRESS:
            again = self._stage is not _Stage.STABLE
            self._rejoin(now)
            if again:
                self._beat_at = now + BACKOFF
                self._lease_end = now + self._session * LEASE_SHARE if self._joined else None
        elif error in LATER:
            self._beat_at = now + BACKOFF
        elif error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            if error == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            self._is_out(now)
        else:
            self._fail(error, message, now)

    def _is_out(self, now: float) -> None:
        super()._is_out(now)
        self.epoch = NO_GENERATION
        self._told = frozenset()
        self._rejoin(now)

    # What the leader does

    def _watch(self, reply: gm.JoinGroupResponse) -> None:
        """A static leader has come back. All is shared out, but nobody else sees when topics change (KIP-814)."""
        topics: set[str] = set()
        for each in reply.members:
            try:
                topics.update(decode_subscription(each.metadata).topics)
            except RecordFormatError:
                continue  # Its topics cannot be shared out either; who does that next says so.
        self._watched = frozenset(topics)
        unknown = self._watched - self._looked
        if unknown:
            self._effects.append(me.LearnTopics(topics=unknown))
        self._count_watched()

    def _share(self, now: float) -> None:
        """Compute what everybody is to hold, once the topics are known that any of them reads."""
        assert self._led is not None
        members: dict[str, Subscription] = {}
        for each in self._led.members:
            try:
                said = decode_subscription(each.metadata)
            except RecordFormatError as error:
                what = f"member {each.member_id!r} has a subscription that cannot be decoded: {error}"
                self._fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, what, now)
                return
            members[each.member_id] = Subscription(
                topics=frozenset(said.topics),
                instance_id=each.instance_id,
                owned=as_partitions(said.owned),
                generation=said.generation,
            )
        topics = frozenset[str]().union(*[each.topics for each in members.values()])
        if not topics <= self._looked:
            self._beat_at = math.inf
            self._effects.append(me.LearnTopics(topics=topics - self._looked))
            return
        self._beat_at = now
        self._shared = {name: self._counts.get(name, 0) for name in topics}
        counts = {name: count for name, count in self._shared.items() if count}
        assignor = next((each for each in self.settings.assignors if each.name == self._led.protocol), None)
        if assignor is None:
            what = (
                f"the group has chosen the assignor {self._led.protocol!r}, which this member does not have"
            )
            self._fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, what, now)
            return
        try:
            given = assignor.assign(counts, members)
            _check(given, counts, members)
        except Exception as error:  # noqa: BLE001 - a custom assignor may be wrong in any way
            what = f"assignor {assignor.name!r} failed: {error!r}"
            self._fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, what, now)
            return
        self._assignments = [
            gm.MemberAssignment(
                member_id=member_id,
                assignment=encode_assignment(EmbeddedAssignment(partitions=as_numbers(list(found)))),
            )
            for member_id, found in given.items()
        ]

    # The end

    def _leave(self) -> None:
        if not self._leaves_for_good:
            # A static member goes silent: it keeps its partitions for as long as its session lasts.
            self._left()
            return
        self._leaving = self._send(
            gm.LeaveGroupRequest(
                group=self.settings.group,
                members=[gm.LeavingMember(member_id=self.member_id, instance_id=self.settings.instance_id)],
            )
        )


def _check(
    given: Mapping[str, Sequence[Partition]],
    counts: Mapping[str, int],
    members: Mapping[str, Subscription],
) -> None:
    """Raises ValueError for what a group cannot do; a custom assignor may ask for anything."""
    owners: dict[Partition, str] = {}
    for member_id, found in given.items():
        if member_id not in members:
            raise ValueError(f"the group has no member {member_id!r}")
        for each in found:
            if not 0 <= each.partition < counts.get(each.topic, 0):
                raise ValueError(f"there is no partition {each.topic}-{each.partition}")
            if each in owners:
                raise ValueError(
                    f"{each.topic}-{each.partition} is given to {owners[each]!r} and to {member_id!r}"
                )
            owners[each] = member_id
