"""The consumer's part about groups: subscriptions, commits, and what becomes of partitions that come and go."""

from __future__ import annotations

import inspect
import logging
import re
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

import attrs
import trio

from ...core import messages as m
from ...core.client.classic_membership import ClassicMembership, ClassicSettings
from ...core.client.membership import Membership, MembershipSettings
from ...core.errors import ErrorCode
from ...core.messages import groups as gm
from ...core.types import PartitionId
from .. import _arguments as given
from .._assignors import find_assignors
from .._settings import ConsumerSettings
from ..connection._client import Client
from ..connection._cluster import check_topic_name
from ..connection._coordinators import Coordinators
from ..connection._offsets import list_offsets
from ..errors import ClientError, NotAssignedError, error_for
from ..group_errors import SubscriptionError
from ._fetcher import Fetcher, Reading
from ._member import Due, Listener, Member, OnCommit
from ._reads import Reads

_log = logging.getLogger("insync.client")
CALLBACKS = ("on_assigned", "on_revoked", "on_lost")
LEAVE_SECONDS = 10.0
"""How long a consumer takes at most to leave its group, unless it is told."""
_GOODBYE = 1.0
"""Seconds for which a consumer whose block is cancelled tells its group so."""


@attrs.frozen(kw_only=True)
class GroupMetadata:
    """A consumer's identity in its group, for a producer that commits offsets in a transaction (KIP-447).

    `member_id` empty: it is no member. With `epoch` -1 its offsets are taken without a check if the group has no
    members; with 0 they are refused, since it is yet to join.
    """

    group_id: str
    member_id: str = ""
    epoch: int = -1
    instance_id: str | None = None


class GroupReader(Client):
    """Subscriptions and commits; a part of `Consumer`."""

    _settings: ConsumerSettings
    _fetcher: Fetcher
    _reads: Reads
    _coordinators: Coordinators
    _says_goodbye = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._member: Member | None = None
        self._at_hand: tuple[PartitionId, int] | None = None
        """The record with which an iteration is not done, by its partition and offset."""
        self._listens_elsewhere = False
        """Whether callbacks are run by a façade, in another thread."""

    # What is read

    def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: object = None,
    ) -> None:
        """Read these topics together with the other members of the group `group_id`, from the next poll on.

        Each partition goes to one member at a time. A former subscription is replaced. A topic that does not exist
        yet is read when it does.

        Args:
          topics: Names; or a compiled pattern, as below.
          pattern: A regular expression that a whole name must match; internal topics never do. The client looks for
            new topics each `metadata_max_age_ms`.
          listener: Has `on_assigned`, `on_revoked` and `on_lost`, or some of them (`Listener` makes one of
            functions), plain or async. Each takes a list of (topic, partition) and runs inside `poll`, in the task
            that polls; heartbeats go on meanwhile. Records of a partition are handed out from the end of
            `on_assigned` until `on_revoked` or `on_lost` begins. In `on_revoked` what was handed out can still be
            committed; in `on_lost` it cannot: another member may have the partition. Without `on_lost`,
            `on_revoked` is called. A callback that raises ends the poll with its exception. One that is cancelled
            runs again in the next poll.

        Raises:
          SubscriptionError: There is no `group_id`, or partitions are assigned.
          InvalidArgumentError: It is not given as above.
          InvalidTopicError: No topic can be called so.
        """
        self._check_open()
        heard = _listener(listener)
        if isinstance(topics, re.Pattern):
            topics, pattern = None, topics
        compiled = _compiled(pattern)
        if (topics is None) == (pattern is None):
            raise given.refused("topics", topics, "give names or a pattern, and not both")
        names = self._checked_names(topics)
        if not self._settings.group_id:
            raise SubscriptionError("subscribe needs a group_id; set one, or use assign or assign_topic")
        if self._member is None and self._fetcher.readings:
            raise SubscriptionError(
                "partitions are assigned to this consumer; call assign([]) first, or use another consumer"
            )
        member = self._member
        if member is None:
            member = self._member = self._join(heard)
        member.listener, member.failure = heard, None
        member.look_for(names if compiled is None else compiled)

    def _checked_names(self, topics: object) -> list[str]:
        if topics is None:
            return []
        names = given.names("topics", topics)
        if not names:
            raise given.refused("topics", topics, "name at least one topic; unsubscribe ends a subscription")
        for name in names:
            check_topic_name(name)
        return names

    def _join(self, listener: Listener) -> Member:
        settings = self._settings
        common: dict[str, Any] = {
            "group": settings.group_id,
            "instance_id": settings.group_instance_id or None,
            "client_id": settings.client_id,
            "enable_auto_commit": settings.enable_auto_commit,
            "auto_commit_interval": settings.auto_commit_interval_ms / 1000,
            "max_poll_interval": settings.max_poll_interval_ms / 1000,
            "request_timeout": min(settings.request_timeout_ms / 1000, 5.0),
        }
        machine: Membership
        now = Member.clock()
        if settings.group_protocol == "classic":
            machine = ClassicMembership(
                ClassicSettings(
                    member_id="",
                    assignors=find_assignors(settings.partition_assignment_strategy),
                    session_timeout=settings.session_timeout_ms / 1000,
                    heartbeat_interval=settings.heartbeat_interval_ms / 1000,
                    **common,
                ),
                now,
            )
        else:
            machine = Membership(
                MembershipSettings(
                    member_id=str(uuid.uuid4()), assignor=settings.group_remote_assignor or None, **common
                ),
                now,
            )
        member = Member(
            machine,
            listener,
            self._reads,
            self._cluster,
            self._coordinators,
            self._nursery,
            settings.metadata_max_age_ms / 1000,
        )
        self._nursery.start_soon(member.run)
        return member

    def subscription(self) -> list[str]:
        """The topics that are subscribed to by name, or that the pattern has found."""
        self._check_open()
        return [] if self._member is None else list(self._member.machine.topics)

    async def unsubscribe(self) -> None:
        """Leave the group, as `close` does; then `subscribe` or `assign` may be called again."""
        self._check_open()
        await self._end_membership(self._settings.request_timeout_ms / 1000, None)

    def _start_at_committed(self, readings: list[Reading]) -> None:
        """Where partitions begin that are assigned to a consumer with a `group_id`."""
        for reading in readings:
            reading.resolving = True
        marked = [(reading, reading.generation) for reading in readings]
        self._nursery.start_soon(self._find_committed, marked)

    async def _find_committed(self, marked: list[tuple[Reading, int]]) -> None:
        """Nothing is handed out of these before it is known where; unless the caller seeks meanwhile."""
        attempt = 0
        while marked:
            error: ClientError | None = None
            found: dict[PartitionId, int | None] = {}
            try:
                found = await self.committed([reading.at for reading, _ in marked])
            except ClientError as failure:
                error = failure
            marked = [(reading, at) for reading, at in marked if reading.generation == at]
            if error is not None and error.retriable:
                attempt += 1
                await trio.sleep(self._coordinators.backoff(attempt))
                continue
            for reading, _ in marked:
                reading.resolving, reading.error = False, error
                offset = found.get(reading.at)
                if offset is not None:
                    reading.restart(offset)
            break
        self._fetcher.interrupt()
        self._reads.wake()

    # Polls

    async def _advance(self, take: Callable[[], Any], deadline: float) -> Any:
        """The result of `take` by `deadline`; or a `Due`, which is to be run before this is called again."""
        await trio.lowlevel.checkpoint()
        self._at_hand = None
        member = self._member
        if member is not None:
            member.begin_poll()
        try:
            with trio.move_on_at(deadline):
                while True:
                    self._fetcher.arrived = trio.Event()
                    found = self._next(member, take)
                    if found:
                        return found
                    await self._fetcher.arrived.wait()
            return self._next(member, take)
        finally:
            if member is not None:
                member.end_poll()

    def _next(self, member: Member | None, take: Callable[[], Any]) -> Any:
        if member is not None:
            if member.due is not None:
                return member.due
            member.check()
            if member.due is not None:
                return member.due
        taken = take()
        if not taken:
            self._raise_error()
        return taken

    @abstractmethod
    def _raise_error(self) -> None:
        """Raise what keeps this consumer from reading; come back if nothing does, or not for long."""

    async def _listen(self, due: Due) -> None:
        """Run a callback, in this task."""
        member = self._member
        assert member is not None
        try:
            result = due.function(due.partitions)
            if inspect.isawaitable(result):
                await result
        except Exception:
            member.called_back()
            raise
        member.called_back()

    # Commits

    async def commit(
        self, offsets: Mapping[tuple[str, int], int] | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """Store how far the group has read: by default all that polls have returned, the last one too.

        Returns when it is stored. In an iteration that includes the record at hand.

        Args:
          offsets: For partitions that this consumer has, the offset of the next record to read.
          timeout_ms: How long to try, at most; by default `request_timeout_ms`.

        Raises:
          NotAssignedError: A partition is not assigned to this consumer.
          NonEmptyGroupError: This consumer has no subscription, and the group has members.
          StaleMemberEpochError: The group has gone on without this consumer: poll, so that it joins again.
          SubscriptionError: There is no `group_id`.
          ClientError: It could not be stored; `outcome` "unknown": it may be stored nevertheless.
        """
        self._check_open()
        timeout = self._commit_timeout(timeout_ms)
        wanted = self._to_commit(offsets)
        if self._member is None:
            await self._commit_alone(wanted, timeout)
            return
        over = trio.Event()
        outcome: list[Exception | None] = []

        def done(error: Exception | None) -> None:
            outcome.append(error)
            over.set()

        if not self._begin_commit(wanted, timeout, done):
            await trio.lowlevel.checkpoint()
            return
        await over.wait()
        if outcome[0] is not None:
            raise outcome[0]

    def commit_nowait(
        self,
        offsets: Mapping[tuple[str, int], int] | None = None,
        on_commit: OnCommit | None = None,
    ) -> None:
        """As `commit`, without waiting for it; commits are carried out in the order of calls.

        Args:
          on_commit: Called in the client's loop with the offsets, and with the error or None; must be quick.

        Raises what `commit` raises before anything is sent; of what comes later only `on_commit` hears, or the log.
        """
        self._check_open()
        if on_commit is not None:
            given.function("on_commit", on_commit)
        wanted = self._to_commit(offsets)
        if self._member is None:
            raise SubscriptionError("commit_nowait needs a subscription; use commit with assign")
        self._begin_commit(wanted, self._commit_timeout(None), lambda error: _tell(on_commit, wanted, error))

    def _commit_timeout(self, timeout_ms: int | None) -> float:
        chosen = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        return given.duration("timeout_ms", chosen) / 1000

    def _begin_commit(
        self, wanted: dict[PartitionId, int], timeout: float, done: Callable[[Exception | None], None]
    ) -> bool:
        assert self._member is not None
        if not wanted and not self._member.machine.held.lost:
            done(None)
            return False
        self._member.commit_nowait(wanted, timeout, done)
        return True

    def _to_commit(self, offsets: Mapping[tuple[str, int], int] | None) -> dict[PartitionId, int]:
        wanted = None if offsets is None else given.offsets("offset", offsets, least=0)
        if not self._settings.group_id:
            raise SubscriptionError("a commit needs a group_id: offsets are stored for a group; set one")
        if wanted is None:
            if self._member is not None:
                return self._member.positions()
            readings = self._fetcher.readings.values()
            return {each.at: each.position for each in readings if each.position is not None}
        for at in wanted:
            if at not in self._fetcher.readings:
                raise NotAssignedError(
                    f"{at} is not assigned to this consumer; commit only offsets of assigned partitions"
                )
        return wanted

    def _read_but(
        self, offsets: Mapping[tuple[str, int], int] | None, unread: Mapping[PartitionId, int]
    ) -> Mapping[tuple[str, int], int] | None:
        """The offsets up to which a façade's caller has read; the façade polls ahead of it."""
        if offsets is not None or not unread or not self._settings.group_id:
            return offsets
        return {at: min(end, unread.get(at, end)) for at, end in self._to_commit(None).items()}

    async def _commit_alone(self, offsets: dict[PartitionId, int], timeout: float) -> None:
        """Without membership: for a group that has no members."""
        if not offsets:
            await trio.lowlevel.checkpoint()
            return
        request = gm.CommitGroupOffsetsRequest(
            group=self._settings.group_id,
            offsets=[
                gm.GroupOffset(topic=at.topic, partition=at.partition, offset=offset)
                for at, offset in offsets.items()
            ],
        )
        await change_offsets(self._coordinators, request, what="commit", timeout=timeout)

    async def committed(self, partitions: Iterable[tuple[str, int]]) -> dict[PartitionId, int | None]:
        """The group's committed offset of each partition: that of the next record to read; None: there is none.

        An offset that a transaction is about to replace is waited for.

        Raises:
          SubscriptionError: There is no `group_id`.
          RequestTimeoutError: The coordinator has not answered within `request_timeout_ms`.
        """
        self._check_open()
        wanted = given.partitions(partitions)
        group = self._settings.group_id
        if not group:
            raise SubscriptionError("committed needs a group_id: offsets are stored for a group; set one")
        names = [gm.TopicPartitionName(topic=at.topic, partition=at.partition) for at in wanted]
        request = gm.GroupOffsetsRequest(group=group, partitions=names, require_stable=True)
        found = await group_offsets(
            self._coordinators, request, timeout=self._settings.request_timeout_ms / 1000
        )
        return {at: found.get(at) for at in wanted}

    def positions(self) -> dict[PartitionId, int | None]:
        """Of all assigned partitions the offset of the next record to be handed out; None until it is found."""
        self._check_open()
        return {at: reading.position for at, reading in self._fetcher.readings.items()}

    async def lag(self) -> dict[PartitionId, int]:
        """How many offsets are behind the position of each assigned partition, up to the end of what it may read.

        A partition whose position is not known yet is left out. Raises what `end_offsets` raises.
        """
        positions = {at: position for at, position in self.positions().items() if position is not None}
        timeout = self._settings.request_timeout_ms / 1000
        ends = await list_offsets(
            self._cluster,
            positions,
            m.LATEST_TIMESTAMP,
            timeout=timeout,
            isolation_level=self._settings.wire_isolation,
        )
        return {at: max(0, end - positions[at]) for at, end in ends.items()}

    def group_metadata(self) -> GroupMetadata:
        """This consumer's identity in its group now.

        Raises:
          SubscriptionError: There is no `group_id`.
          StaleMemberEpochError: The group has gone on without this consumer, and the caller has not been told yet
            what it has lost: the next poll tells.
        """
        self._check_open()
        group = self._settings.group_id
        if not group:
            raise SubscriptionError("group_metadata needs a group_id; set one")
        instance = self._settings.group_instance_id or None
        member = self._member
        if member is None:
            return GroupMetadata(group_id=group, instance_id=instance)
        member.check_nothing_is_lost("it may not commit their offsets")
        machine = member.machine
        if not machine.is_member:
            # An epoch, if only the lowest: offsets that say nothing of a member are taken from anybody (KIP-447).
            return GroupMetadata(group_id=group, epoch=0, instance_id=instance)
        return GroupMetadata(
            group_id=group, member_id=machine.member_id, epoch=machine.epoch, instance_id=instance
        )

    # The end

    async def close(self, timeout: float | None = None, *, leave_group: bool | None = None) -> None:
        """Commit what is due, run `on_revoked`, leave the group and end. Leaving the block does the same.

        Only `commit` commits the records of the last poll: the caller may not be done with them.

        Args:
          timeout: How many seconds this may take, beside what `on_revoked` takes; by default 10.
          leave_group: None: leave, but a static member only says that it is away: its partitions wait for it until
            its session ends. True: leave for good. False: say nothing; the group waits until the session ends.

        Raises what `on_revoked` raises, when all is done.
        """
        if leave_group is not None:
            given.flag("leave_group", leave_group)
        chosen = given.timeout(timeout)
        seconds = LEAVE_SECONDS if chosen is None else chosen
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        try:
            await self._end_membership(seconds, leave_group)
        finally:
            self._closed = True

    async def _end_membership(self, seconds: float, leave_group: bool | None) -> None:
        await trio.lowlevel.checkpoint()
        failure: Exception | None = None
        while (due := await self._closing(seconds, leave_group)) is not None:
            try:
                await self._listen(due)
            except Exception as error:  # noqa: BLE001 - the group is left first
                failure = failure or error
        if failure is not None:
            raise failure

    async def _closing(self, seconds: float, leave_group: bool | None) -> Due | None:
        """Go on leaving the group: what is to be run first, or None when it is over."""
        member = self._member
        if member is None:
            return None
        if not member.is_closing:
            member.begin_to_close(seconds, leave_group, self._at_hand)
        due = await member.next_of_close()
        if due is None:
            self._member = None
            self._reads.assign([])
        return due

    async def _finish(self) -> None:
        if self._member is not None and self._listens_elsewhere:
            self._member.mute()
        await self._end_membership(LEAVE_SECONDS, None)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, Exception) and self._member is not None:
            await self._member.abandon(_GOODBYE)
            self._member = None
        await super().__aexit__(kind, error, traceback)


async def change_offsets(
    coordinators: Coordinators,
    request: gm.CommitGroupOffsetsRequest | gm.DeleteGroupOffsetsRequest,
    *,
    what: str,
    timeout: float,
) -> None:
    """Have offsets changed of a group that has no members.

    Raises:
      NonEmptyGroupError: The group has members.
      ClientError: What `Coordinators.ask` raises, and what the coordinator refuses.
    """
    thing = f"group {request.group!r}: {what}"
    answer = await coordinators.ask(request.group, request, timeout=timeout, thing=thing)
    _check_change(answer.error, thing, answer.message)
    for each in answer.partitions:
        _check_change(each.error, f"{thing} of {PartitionId(each.topic, each.partition)}")


def _check_change(code: int, thing: str, message: str = "") -> None:
    if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION):
        # A change without a member is refused with the words for members, which do not help here.
        raise error_for(ErrorCode.NON_EMPTY_GROUP, thing, "it has members")
    if code != ErrorCode.NONE:
        raise error_for(code, thing, message)


async def group_offsets(
    coordinators: Coordinators, request: gm.GroupOffsetsRequest, *, timeout: float
) -> dict[PartitionId, int]:
    """A group's committed offsets, by partition; raises what `Coordinators.ask` raises."""
    thing = f"group {request.group!r}: offsets"
    deadline = trio.current_time() + timeout
    attempt = 0
    while True:
        left = max(0.0, deadline - trio.current_time())
        answer: gm.GroupOffsetsResponse = await coordinators.ask(
            request.group, request, timeout=left, thing=thing
        )
        if answer.error != ErrorCode.NONE:
            raise error_for(answer.error, thing, answer.message)
        refused = [each for each in answer.offsets if each.error != ErrorCode.NONE]
        if not refused:
            return {
                PartitionId(each.topic, each.partition): each.offset
                for each in answer.offsets
                if each.offset >= 0
            }
        failure = error_for(refused[0].error, f"{thing} of {refused[0].topic}-{refused[0].partition}")
        attempt += 1
        pause = coordinators.backoff(attempt)
        if not failure.retriable or trio.current_time() + pause >= deadline:
            raise failure
        await trio.sleep(pause)


def _compiled(pattern: object) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    try:
        return re.compile(given.text("pattern", pattern))
    except re.error as error:
        raise given.refused("pattern", pattern, f"that is not a regular expression: {error}") from error


def _listener(listener: object) -> Listener:
    if listener is None:
        return Listener()
    found = {name: getattr(listener, name, None) for name in CALLBACKS}
    if not any(found.values()):
        raise given.refused("listener", listener, f"it needs at least one of {', '.join(CALLBACKS)}")
    for name, function in found.items():
        if function is not None:
            given.function(f"the listener's {name}", function)
    return Listener(**found)


def _tell(on_commit: OnCommit | None, offsets: dict[PartitionId, int], error: Exception | None) -> None:
    if on_commit is None:
        if error is not None:
            _log.warning("%s", error)
        return
    try:
        on_commit(offsets, error)
    except Exception:  # noqa: BLE001 - it is the caller's, and must not end the client
        _log.exception("on_commit %r raised", on_commit)
