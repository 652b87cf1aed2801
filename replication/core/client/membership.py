"""A consumer's membership in a group, as its client lives it: the consumer protocol (KIP-848) without I/O.

The guarantee: records of a partition are handed out only from the end of its `assigned` callback to the begin
of `revoked` or `lost`, and never when the coordinator may have given the partition to somebody else.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..errors import ErrorCode, code_of
from ..groups.records import TopicPartition, target_topics
from ..messages import groups as gm
from . import membership_events as me
from .commit_queue import Commit, CommitQueue
from .held_partitions import Held, HeldPartitions

BACKOFF = 0.1
LEASE_SHARE = 0.95
"""Of its session: the member's clock may be slower than the coordinator's by the rest."""
LOOK_AGAIN = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
LATER = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
        # Its former process may be about to end.
        ErrorCode.UNRELEASED_INSTANCE_ID,
    }
)
_OUT = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})


class MembershipSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, but for the names of Kafka's settings. `request_timeout` comes on top of what a request may park."""

    group: str
    member_id: str
    instance_id: str | None = None
    rack: str | None = None
    assignor: str | None = None
    client_id: str = ""
    enable_auto_commit: bool = True
    auto_commit_interval: float = 5.0
    max_poll_interval: float = 300.0
    request_timeout: float = 5.0


class Membership:
    """Events in, effects out; `deadline` is when the client owes it a `Tick`."""

    def __init__(self, settings: MembershipSettings, now: float) -> None:
        self.settings = settings
        self.member_id = settings.member_id
        self.epoch = 0
        self.topics: tuple[str, ...] = ()
        self.held = HeldPartitions()
        self.commits = CommitQueue()
        self._joined = False
        """Whether the coordinator may count on us: it has not fenced us, and we have not left."""
        self._sequence = 0
        self._tokens = 0
        self._known = False
        """Whether the coordinator is known."""
        self._finding: int | None = None
        self._leader_epoch = -1
        self._beat: int | None = None
        """The heartbeat that is under way; answers to earlier ones say nothing new."""
        self._beat_sent = 0.0
        self._beat_full = True
        self._beat_at = now
        """When the next one is due."""
        self._interval = 5.0
        self._session = 0.0
        self._lease_end: float | None = None
        self._retry_at: float | None = None
        self._offsets_token: int | None = None
        self._offsets_asked: dict[TopicPartition, Held] = {}
        self._offsets_at: float | None = None
        self._wanted = False
        """Whether the caller has polled since it has (last) been given up."""
        self._polling = False
        self._polled_at = now
        self._callback: me.CallBack | None = None
        self._revoke_commit: Commit | None = None
        self._next_auto = now + settings.auto_commit_interval
        self._closing: me.Closed | None = None
        self._leaving: int | None = None
        self.ended = False
        self._effects: list[me.Effect] = []

    @property
    def lease_end(self) -> float | None:
        """Until when (monotonic) what is held may be handed out; None: no coordinator counts on it."""
        return self._lease_end

    @property
    def wants_poll(self) -> bool:
        """Whether a callback waits for its caller to poll."""
        return bool(self.held.lost or self.held.revoking or self.held.ready)

    @property
    def is_member(self) -> bool:
        """Whether the coordinator counts on it, as far as it knows."""
        return self._joined

    @property
    def deadline(self) -> float | None:
        """Monotonic; None: nothing happens by itself."""
        if self.ended:
            return None
        # Only what a Tick at that time would change: else it would be owed again at once.
        times = [self.commits.deadline, self._lease_end]
        if not self._known:
            if self._finding is None and self._wants_coordinator:
                times.append(self._retry_at)
        else:
            if self.commits.waiting and self.commits.token is None:
                times.append(self.commits.again_at)
            if self.held.unknown and self._offsets_token is None and self._joined:
                times.append(self._offsets_at)
            if self._may_beat and self._beat is None:
                times.append(self._beat_at)
        if self._closing is not None:
            times.append(self._closing.deadline)
        elif self._joined and not self._polling:
            times.append(self._polled_at + self.settings.max_poll_interval)
        return min([each for each in times if each is not None], default=None)

    def step(self, event: me.Event, now: float) -> list[me.Effect]:
        """Handle one event."""
        self._effects = []
        if self.ended:
            return []
        # Whatever this is about, it must not find what is lost by now.
        self._check_lease(now)
        match event:
            case me.Subscribed(topics=topics):
                wanted = tuple(sorted(set(topics)))
                if wanted != self.topics:
                    self.topics = wanted
                    self._say_all(now)
            case me.TopicsKnown():
                self._topics_known(event, now)
            case me.PollBegan():
                self._poll_began(now)
            case me.PollEnded(handed=handed):
                self._polling = False
                self._polled_at = now
                self.held.hand_out(handed)
            case me.CoordinatorFound(token=token, leader_epoch=leader_epoch) if token == self._finding:
                self._finding, self._known, self._leader_epoch = None, True, leader_epoch
                self._retry_at = None
            case me.Answered():
                self._answered(event, now)
            case me.Lost(token=token):
                self._lost_answer(token, now)
            case me.CallbackDone():
                self._callback_done(now)
            case me.CommitAsked():
                self._commit_asked(event)
            case me.Closed():
                self._closing = event
            case me.Tick():
                self._tick(now)
        self._go_on(now)
        return self._effects

    def _topics_known(self, event: me.TopicsKnown, now: float) -> None:
        self.held.names.update(event.names)

    # What is to be done next

    def _go_on(self, now: float) -> None:
        if self.ended:
            return
        self._call_back(now)
        if self._closing is not None:
            self._close(now)
        if not self.ended:
            self._find(now)
            self._send_beat(now)
            self._fetch_offsets(now)
            self._send_commit(now)

    @property
    def _may_beat(self) -> bool:
        """A fenced member says nothing until its caller knows: it may still work on what it has lost."""
        wanted = self._wanted and bool(self.topics)
        return wanted and not self.held.lost and self._leaving is None and self._closing is None

    @property
    def _wants_coordinator(self) -> bool:
        return self._may_beat or bool(self.commits.waiting) or (self._closing is not None and self._joined)

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _find(self, now: float) -> None:
        if self._known or self._finding is not None or not self._wants_coordinator:
            return
        if self._retry_at is not None and now < self._retry_at:
            return
        self._retry_at = None
        self._finding = self._token()
        self._effects.append(me.FindCoordinator(token=self._finding))

    def _send(self, message: object, wait: float = 0.0) -> int:
        token = self._token()
        self._effects.append(
            me.Send(
                token=token,
                message=message,
                timeout=wait + self.settings.request_timeout,
                leader_epoch=self._leader_epoch,
            )
        )
        return token

    def _forget_coordinator(self, now: float) -> None:
        self._known = False
        self._beat = None
        self._retry_at = now + BACKOFF
        self._say_all(now)
        if self.commits.token is not None:
            self.commits.token = None
        if self._offsets_token is not None:
            self._offsets_token = None

    # Heartbeats

    def _say_all(self, now: float) -> None:
        """The next heartbeat says everything, at once: the coordinator may not know what the last one said."""
        self._beat_full = True
        self._beat_at = now
        self._beat = None

    def _send_beat(self, now: float) -> None:
        if not self._may_beat or not self._known or self._beat is not None or now < self._beat_at:
            return
        full = self._beat_full or self.epoch == gm.JOIN
        settings = self.settings
        wait = 0.0 if full else self._interval
        self._sequence += 1
        owned = None
        if full:
            owned = [
                gm.TopicPartitionList(topic_id=each.topic_id, partitions=list(each.partitions))
                for each in target_topics(self.held.all)
            ]
        self._beat = self._send(
            gm.ConsumerGroupHeartbeatRequest(
                group=settings.group,
                member_id=self.member_id,
                member_epoch=self.epoch,
                instance_id=settings.instance_id,
                rack=settings.rack if full else None,
                rebalance_timeout_ms=int(settings.max_poll_interval * 1000) if full else -1,
                topics=list(self.topics) if full else None,
                assignor=settings.assignor if full else None,
                owned=owned,
                max_wait_ms=int(wait * 1000),
                sequence=self._sequence,
                client_id=settings.client_id,
            ),
            wait,
        )
        # The session counts from here: the coordinator's began later, when this arrived.
        self._beat_sent = now
        self._beat_full = False

    def _heard(self, reply: gm.ConsumerGroupHeartbeatResponse, now: float) -> None:
        self._beat = None
        error = code_of(reply.error)
        if error == ErrorCode.NONE:
            self._take(reply, now)
        elif error in LOOK_AGAIN:
            self._forget_coordinator(now)
        elif error in LATER:
            self._say_all(now)
            self._beat_at = now + BACKOFF
        elif error in _OUT:
            self._is_out(now)
        else:
            self._fail(error, reply.message, now)

    def _fail(self, error: ErrorCode, message: str, now: float) -> None:
        """The caller's poll raises this; it may subscribe again."""
        self._is_out(now)
        self.topics = ()
        self._effects.append(me.Failed(error=error, message=message))

    def _take(self, reply: gm.ConsumerGroupHeartbeatResponse, now: float) -> None:
        self._joined = True
        self.epoch = reply.member_epoch
        self._interval = reply.heartbeat_interval_ms / 1000
        self._session = reply.session_timeout_ms / 1000
        self._lease_end = self._beat_sent + self._session * LEASE_SHARE
        # The next one parks at the coordinator, so it goes out at once.
        self._beat_at = now
        if reply.assignment is not None:
            told = {
                TopicPartition(each.topic_id, number)
                for each in reply.assignment
                for number in each.partitions
            }
            withheld, released = self.held.assign(told)
            self._withhold(withheld)
            self._beat_full = released

    def _withhold(self, partitions: frozenset[TopicPartition]) -> None:
        if partitions:
            self._effects.append(me.Withhold(partitions=partitions))

    def _is_out(self, now: float) -> None:
        """Another may own what is held here: nothing is handed out or committed from now on."""
        self._joined = False
        self.epoch = gm.JOIN
        self._lease_end = None
        self._beat = None
        self._say_all(now)
        self._withhold(self.held.lose())
        self._revoke_commit = None
        for commit in list(self.commits.waiting):
            self._commit_over(commit, ErrorCode.STALE_MEMBER_EPOCH, "the member has lost its partitions")

    def _check_lease(self, now: float) -> None:
        if self._lease_end is not None and now >= self._lease_end:
            self._is_out(now)

    # Answers

    def _answered(self, event: me.Answered, now: float) -> None:
        token, reply = event.token, event.reply
        if token == self._beat:
            self._heard(reply, now)
        elif token == self._offsets_token:
            self._offsets_token = None
            self._offsets_known(reply, now)
        elif token == self.commits.token:
            self.commits.token = None
            self._commit_answered(reply, now)
        elif token == self._leaving:
            self._left()

    def _lost_answer(self, token: int, now: float) -> None:
        if token == self._finding:
            self._finding = None
            self._retry_at = now + BACKOFF
        elif token == self._leaving:
            self._left()
        elif token in (self._beat, self._offsets_token, self.commits.token):
            # Nobody knows whether it is alive: another may be the coordinator by now.
            self._forget_coordinator(now)

    # Positions

    def _fetch_offsets(self, now: float) -> None:
        wanted = self.held.unknown
        if not wanted or self._offsets_token is not None or not self._known or not self._joined:
            return
        if self._offsets_at is not None and now < self._offsets_at:
            return
        self._offsets_at = None
        self._offsets_asked = wanted
        names = self.held.names
        self._offsets_token = self._send(
            gm.GroupOffsetsRequest(
                group=self.settings.group,
                member_id=self.member_id,
                epoch=self.epoch,
                partitions=[
                    gm.TopicPartitionName(
                        topic=names[each.topic_id], partition=each.partition, topic_id=each.topic_id
                    )
                    for each in wanted
                ],
                require_stable=True,
            )
        )

    def _offsets_known(self, reply: gm.GroupOffsetsResponse, now: float) -> None:
        error = code_of(reply.error)
        if error in LOOK_AGAIN:
            self._forget_coordinator(now)
        elif error != ErrorCode.NONE:
            self._offsets_at = now + BACKOFF
        else:
            found = {(each.topic, each.partition): each for each in reply.offsets}
            for partition, held in self._offsets_asked.items():
                place = self.held.names[partition.topic_id], partition.partition
                told = found.get(place)
                if told is None or told.error:
                    self._offsets_at = now + BACKOFF
                else:
                    self.held.found(held, told.offset if told.offset >= 0 else None)

    # Polls and callbacks

    def _poll_began(self, now: float) -> None:
        self._polling = self._wanted = True
        self._polled_at = now
        # Not what this poll will return: a crash in the middle of it would lose that (at-least-once).
        self.held.consume()
        if self.settings.enable_auto_commit and now >= self._next_auto and self._joined:
            self._next_auto = now + self.settings.auto_commit_interval
            offsets = self.held.uncommitted()
            if offsets and not any(each.commit_id is None for each in self.commits.waiting):
                self._own_commit(offsets, now + self.settings.auto_commit_interval)

    def _own_commit(self, offsets: Mapping[TopicPartition, int], deadline: float) -> Commit:
        commit = Commit(None, offsets, deadline)
        self.commits.add(commit)
        return commit

    def _call_back(self, now: float) -> None:
        """The next callback, if the caller is there to run it: what is lost first, what is new last."""
        if not (self._polling or self._closing is not None) or self._callback is not None:
            return
        held = self.held
        if held.lost:
            self._run(me.CallbackKind.LOST, held.lost)
        elif held.revoking:
            if self._revoke_commit is None and self.settings.enable_auto_commit:
                offsets = held.uncommitted(held.revoking)
                if offsets:
                    limit = now + self.settings.request_timeout
                    self._revoke_commit = self._own_commit(offsets, limit)
            if self._revoke_commit is None:
                self._run(me.CallbackKind.REVOKED, frozenset(held.revoking))
        elif held.ready and self._closing is None:
            ready = frozenset(held.ready)
            held.tell(ready)
            self._run(me.CallbackKind.ASSIGNED, ready)

    def _run(self, kind: me.CallbackKind, partitions: frozenset[TopicPartition]) -> None:
        self._callback = me.CallBack(kind=kind, partitions=partitions)
        self._effects.append(self._callback)

    def _callback_done(self, now: float) -> None:
        callback, self._callback = self._callback, None
        if callback is None:
            return
        match callback.kind:
            case me.CallbackKind.LOST:
                self.held.lost -= callback.partitions
                self._say_all(now)
            case me.CallbackKind.REVOKED:
                self.held.revoked(callback.partitions)
                self._say_all(now)
            case me.CallbackKind.ASSIGNED:
                for partition, offset in self.held.serve(callback.partitions):
                    self._effects.append(me.Serve(partition=partition, offset=offset))

    # Commits

    def _commit_asked(self, event: me.CommitAsked) -> None:
        foreign = [each for each in event.offsets if not self.held.may_commit(each)]
        if foreign:
            names = self.held.names
            named = ", ".join(
                f"{names.get(each.topic_id, each.topic_id)}-{each.partition}" for each in foreign
            )
            message = f"{named}: not owned by this consumer; commit only what it is assigned"
            self._effects.append(
                me.CommitDone(commit_id=event.commit_id, error=ErrorCode.STALE_MEMBER_EPOCH, message=message)
            )
        else:
            self.held.done_with(event.offsets)
            self.commits.add(Commit(event.commit_id, dict(event.offsets), event.deadline))

    def _send_commit(self, now: float) -> None:
        if not self._known:
            return
        commit = self.commits.next(now)
        if commit is None:
            return
        names = self.held.names
        commit.tries += 1
        commit.epoch = self.epoch
        self.commits.token = self._send(
            gm.CommitGroupOffsetsRequest(
                group=self.settings.group,
                member_id=self.member_id,
                epoch=self.epoch,
                instance_id=self.settings.instance_id,
                offsets=[
                    gm.GroupOffset(
                        topic=names[each.topic_id],
                        partition=each.partition,
                        offset=offset,
                        topic_id=each.topic_id,
                    )
                    for each, offset in sorted(commit.offsets.items())
                ],
            )
        )

    def _commit_answered(self, reply: gm.CommitGroupOffsetsResponse, now: float) -> None:
        commit = self.commits.waiting[0]
        outcome = self.commits.judge(reply, self.epoch)
        if outcome.error is None:
            self.commits.again_at = now + BACKOFF
            if reply.error in LOOK_AGAIN:
                self._forget_coordinator(now)
        else:
            self._commit_over(commit, outcome.error, outcome.message)

    def _commit_over(self, commit: Commit, error: ErrorCode, message: str = "") -> None:
        if commit in self.commits.waiting:
            if self.commits.waiting[0] is commit:
                self.commits.token = None
            self.commits.waiting.remove(commit)
        if error == ErrorCode.NONE:
            self.held.committed(commit.offsets)
        if commit is self._revoke_commit:
            self._revoke_commit = None
            # What could not be committed is read again by the next owner; it is not worth another try.
            self.held.committed(commit.offsets)
        if commit.commit_id is not None:
            unknown = error != ErrorCode.NONE and commit.tries > 0
            self._effects.append(
                me.CommitDone(commit_id=commit.commit_id, error=error, message=message, unknown=unknown)
            )

    # Time, and the end

    def _tick(self, now: float) -> None:
        for commit in self.commits.expired(now):
            self._commit_over(commit, ErrorCode.REQUEST_TIMED_OUT, "not committed in time")
        idle = self._joined and not self._polling and self._closing is None
        if idle and now >= self._polled_at + self.settings.max_poll_interval:
            # Nobody takes records: others shall. What is in the caller's hands is lost to it.
            if self._known:
                self._leave()
            self._wanted = False
            self._is_out(now)

    @property
    def _leaves_for_good(self) -> bool:
        """A static member comes back, unless its caller says that it does not."""
        return self.settings.instance_id is None or (
            self._closing is not None and self._closing.leave_group is True
        )

    def _leave(self) -> None:
        epoch = gm.LEAVE if self._leaves_for_good else gm.LEAVE_STATIC
        self._sequence += 1
        self._leaving = self._send(
            gm.ConsumerGroupHeartbeatRequest(
                group=self.settings.group,
                member_id=self.member_id,
                member_epoch=epoch,
                instance_id=self.settings.instance_id,
                sequence=self._sequence,
            )
        )

    def _left(self) -> None:
        self._leaving = None
        if self._closing is not None:
            self._end()

    def _close(self, now: float) -> None:
        closing = self._closing
        assert closing is not None
        if now >= closing.deadline:
            self._end()
            return
        if self._leaving is not None or self._callback is not None:
            return
        if self.held.all:
            self._withhold(self.held.assign(set())[0])
            self._call_back(now)
            if self.held.all or self._callback is not None:
                return
        if self.held.lost or self.commits.waiting:
            return
        if closing.leave_group is False or not self._joined:
            self._end()
        elif self._known:
            self._leave()

    def _end(self) -> None:
        self.ended = True
        self._withhold(self.held.lose())
        for commit in list(self.commits.waiting):
            self._commit_over(commit, ErrorCode.REQUEST_TIMED_OUT, "the consumer was closed")
        self._effects.append(me.Ended())
