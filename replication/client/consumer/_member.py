"""Hosts a membership in a group for a consumer: clocks, requests, and what may be fetched and handed out.

The machine (`core.client.membership`) decides; this carries it out. Callbacks are the caller's: they are left
here as a `Due`, and whoever polls runs them where it is.
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

import attrs
import trio

from ....transport import TransportError
from ...core import messages as m
from ...core.client import membership_events as me
from ...core.client.membership import Membership
from ...core.errors import ErrorCode
from ...core.groups.records import TopicPartition
from ...core.messages import groups as gm
from ...core.types import PartitionId
from ...errors import again
from ..admin._pages import whole_metadata
from ..connection._cluster import Cluster
from ..connection._coordinators import Coordinators
from ..errors import AuthorizationError, ClientError, error_for
from ._reads import Reads

_log = logging.getLogger("insync.client")
_LOOK_AGAIN = 0.2
_METADATA_TIMEOUT = 5.0
_SYNC_SECONDS = 0.1
"""How seldom an iteration that has nothing else to tell its group does so."""

Listen = Callable[[list[PartitionId]], Awaitable[None] | None]
OnCommit = Callable[[dict[PartitionId, int], Exception | None], None]


@attrs.frozen
class Due:
    """A callback that the caller is to run, where it polls; `Member.called_back` follows."""

    function: Listen
    partitions: list[PartitionId]


@attrs.frozen
class Listener:
    """The callbacks by which the caller hears of its partitions; each may be None."""

    on_assigned: Listen | None = None
    on_revoked: Listen | None = None
    on_lost: Listen | None = None

    def of(self, kind: me.CallbackKind) -> Listen | None:
        """A caller that does not listen to losses hears of them as of revocations, as in Kafka."""
        match kind:
            case me.CallbackKind.ASSIGNED:
                return self.on_assigned
            case me.CallbackKind.REVOKED:
                return self.on_revoked
            case me.CallbackKind.LOST:
                return self.on_lost or self.on_revoked


@attrs.define(eq=False)
class _Commit:
    offsets: dict[PartitionId, int]
    done: Callable[[Exception | None], None]


class Member:
    """A consumer's part in its group. `run` must run in a task; everything else is called in the same thread."""

    def __init__(
        self,
        machine: Membership,
        listener: Listener,
        reads: Reads,
        cluster: Cluster,
        coordinators: Coordinators,
        nursery: trio.Nursery,
        metadata_max_age: float,
    ) -> None:
        self.machine = machine
        self.listener = listener
        self.failure: ClientError | None = None
        """The error that the next poll raises; it stays if the group does not take this consumer."""
        self._watching = trio.CancelScope()
        """Of the pattern by which topics are found."""
        self.held: dict[PartitionId, TopicPartition] = {}
        """All that the caller has been told of and not yet been told to have lost."""
        self._reads = reads
        self._cluster = cluster
        self._coordinators = coordinators
        self._nursery = nursery
        self._max_age = metadata_max_age
        self._group = machine.settings.group
        self._node = -1
        self._callback: me.CallBack | None = None
        self._due: Due | None = None
        self._commits: dict[int, _Commit] = {}
        self._commit_ids = 0
        self._told: tuple[Mapping[str, str], Mapping[str, int]] = ({}, {})
        self._events: deque[me.Event] = deque()
        self._stepping = False
        self._changed = trio.Event()
        self._ended = trio.Event()
        self._synced = float("-inf")
        self._warned: int = ErrorCode.NONE
        self._scope = trio.CancelScope()
        self._silent = False
        self.is_closing = False
        cluster.listeners.append(self._cluster_changed)

    @staticmethod
    def clock() -> float:
        """The machine's clock: unlike trio's it can be read in any thread."""
        return time.monotonic()

    # The machine

    def step(self, *events: me.Event) -> None:
        """Handle events in order; what they bring about is done when this returns."""
        self._events.extend(events)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                for effect in self.machine.step(self._events.popleft(), time.monotonic()):
                    self._do(effect)
        finally:
            self._stepping = False
        self._changed.set()

    def _do(self, effect: me.Effect) -> None:
        match effect:
            case me.FindCoordinator(token=token):
                self._nursery.start_soon(self._find, token)
            case me.Send():
                self._nursery.start_soon(self._send, effect, self._node)
            case me.LearnTopics(topics=topics):
                self._nursery.start_soon(self._learn, topics)
            case me.Withhold(partitions=partitions):
                self._reads.withhold(self._named(partitions))
            case me.CallBack():
                self._call_back(effect)
            case me.Serve(partition=partition):
                # Where it begins was told with the callback, in which the caller may have sought elsewhere.
                self._reads.serve(self._name(partition))
            case me.CommitDone():
                self._commit_done(effect)
            case me.Failed(error=error, message=message):
                self.failure = error_for(error, f"group {self._group!r}", message)
                self._reads.wake()
            case me.Ended():
                self._ended.set()
                self._reads.wake()

    def _name(self, partition: TopicPartition) -> PartitionId:
        return PartitionId(self.machine.held.names[partition.topic_id], partition.partition)

    def _named(self, partitions: Iterable[TopicPartition]) -> list[PartitionId]:
        return sorted(self._name(each) for each in partitions)

    async def run(self) -> None:
        """Give the machine its time; ends with the membership."""
        self._cluster_changed()
        with self._scope:
            while not self.machine.ended:
                self._changed = trio.Event()
                now = time.monotonic()
                due = self.machine.deadline
                wait = float("inf") if due is None else due - now
                if self._has_unnamed:
                    wait = min(wait, _LOOK_AGAIN)
                with trio.move_on_after(max(wait, 0)):
                    await self._changed.wait()
                if due is not None and time.monotonic() >= due:
                    self.step(me.Tick())
                if self._has_unnamed:
                    self._cluster.look()
                await trio.lowlevel.checkpoint()
        self._cluster.listeners.remove(self._cluster_changed)
        self._watching.cancel()
        self._fail_commits(error_for(ErrorCode.UNKNOWN_MEMBER_ID, f"group {self._group!r}", "closed"))

    # Topics

    @property
    def _has_unnamed(self) -> bool:
        """Whether the assignment contains a topic id whose name this client does not know yet."""
        names = self.machine.held.names
        return any(each.topic_id not in names for each in self.machine.held.all)

    def _cluster_changed(self) -> None:
        names, counts = self._cluster.named_topics()
        if (names, counts) != self._told:
            self._told = names, counts
            self.step(me.TopicsKnown(names=names, counts=counts))

    async def _learn(self, topics: frozenset[str]) -> None:
        self._cluster.watch(topics)
        while True:
            try:
                await self._cluster.refresh()
                break
            except ClientError:
                await trio.sleep(_LOOK_AGAIN)
        names, counts = self._cluster.named_topics()
        self.step(me.TopicsKnown(names=names, counts=counts, looked=topics))

    def look_for(self, topics: re.Pattern[str] | Iterable[str]) -> None:
        """Read these from now on, by name or by pattern; what a former pattern finds counts no more."""
        self._watching.cancel()
        self._watching = trio.CancelScope()
        if isinstance(topics, re.Pattern):
            self._nursery.start_soon(self._watch_topics, topics, self._watching)
        else:
            self._read(topics)

    async def _watch_topics(self, pattern: re.Pattern[str], scope: trio.CancelScope) -> None:
        """Find the topics that the pattern means, again and again."""
        with scope:
            while True:
                pause = self._max_age
                try:
                    ask = partial(self._cluster.ask, m.Kind.METADATA, timeout=_METADATA_TIMEOUT)
                    answer = await whole_metadata(ask, m.MetadataRequest(topics=None))
                except ClientError as error:
                    if not error.retriable:
                        self._stumble(error)
                    pause = _LOOK_AGAIN
                else:
                    # An answer that has come is told even if nobody waits for it any more.
                    if not scope.cancel_called:
                        names = [each.name for each in answer.topics if not each.name.startswith("__")]
                        self._read(filter(pattern.fullmatch, names))
                await trio.sleep(pause)

    def _read(self, topics: Iterable[str]) -> None:
        """The topics of the subscription, as they are from now on."""
        wanted = tuple(sorted(topics))
        self._cluster.watch(wanted)
        self.step(me.Subscribed(topics=wanted))
        self._cluster.look()

    # Requests

    async def _find(self, token: int) -> None:
        try:
            found = await self._coordinators.find(self._group)
        except (ClientError, TransportError) as error:
            if isinstance(error, ClientError) and not error.retriable:
                self._stumble(error)
            self.step(me.Lost(token=token))
        else:
            self._node = found.node_id
            self.step(me.CoordinatorFound(token=token, leader_epoch=found.leader_epoch))

    async def _send(self, send: me.Send, node_id: int) -> None:
        try:
            reply = await self._coordinators.send(
                node_id, send.message, send.leader_epoch, timeout=send.timeout
            )
        except TransportError:
            self.step(me.Lost(token=send.token))
        except ClientError as error:
            self._stumble(error)
            self.step(me.Lost(token=send.token))
        else:
            self._warn(reply)
            self.step(me.Answered(token=send.token, reply=reply))

    def _stumble(self, error: ClientError) -> None:
        """Nobody but the caller can mend this; the machine goes on trying."""
        if self.failure is None:
            self.failure = error
        if isinstance(error, AuthorizationError):
            self._fail_commits(error)
        self._reads.wake()

    def _warn(self, reply: Any) -> None:
        """The reason for a silent wait is to be seen somewhere."""
        told = isinstance(reply, gm.ConsumerGroupHeartbeatResponse | gm.JoinGroupResponse)
        if told and not self.is_closing:
            # A number: a coordinator of a later version may answer one that has no name here.
            error: int = reply.error
            if error not in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED, self._warned):
                _log.warning("%s", error_for(error, f"group {self._group!r}", reply.message))
            self._warned = error

    # Polls

    def begin_poll(self) -> None:
        """The caller is done with what it was handed; a seek since then counts."""
        self.step(me.PollEnded(handed=self._handed()), me.PollBegan())

    def end_poll(self) -> None:
        """The caller has what there was."""
        self.step(me.PollEnded(handed=self._handed()))
        self._synced = time.monotonic()

    @property
    def due(self) -> Due | None:
        """The callback that the caller is to run now; the same until `called_back`."""
        return self._due

    def check(self) -> None:
        """Raise what stands in the way; and hand out nothing that another may own by now."""
        if not self.may_hand_out:
            self.step(me.Tick())
        if self.failure is not None:
            failure = self.failure
            if self.machine.topics:
                self.failure = None
            raise again(failure)

    @property
    def may_hand_out(self) -> bool:
        """Whether the lease is not over; may be asked in any thread."""
        end = self.machine.lease_end
        return end is None or time.monotonic() < end

    @property
    def may_go_on(self) -> bool:
        """Whether an iteration may take the next record without a word to the group."""
        if not self.may_hand_out or self.machine.wants_poll or self.failure is not None:
            return False
        return time.monotonic() < self._synced + _SYNC_SECONDS

    def _handed(self) -> dict[TopicPartition, int]:
        handed = {}
        for at, partition in self.held.items():
            reading = self._reads.reading(at)
            if reading is not None and reading.position is not None:
                handed[partition] = reading.position
        return handed

    # Callbacks

    def _call_back(self, callback: me.CallBack) -> None:
        self._callback = callback
        if callback.kind is me.CallbackKind.ASSIGNED:
            for each in sorted(callback.partitions):
                self.held[self._name(each)] = each
                self._reads.prepare(self._name(each), self.machine.held.start_of(each))
        function = self.listener.of(callback.kind)
        if function is None or self._silent:
            self.called_back()
        else:
            self._due = Due(function, self._named(callback.partitions))
            self._reads.wake()

    def called_back(self) -> None:
        """The callback that was due has run."""
        callback, self._callback, self._due = self._callback, None, None
        if callback is None:
            return
        if callback.kind is not me.CallbackKind.ASSIGNED:
            gone = [at for at in self._named(callback.partitions) if self.held.get(at) in callback.partitions]
            for at in gone:
                del self.held[at]
            self._reads.drop(gone)
        self.step(me.CallbackDone())

    # Commits

    def positions(self) -> dict[PartitionId, int]:
        """Of what the caller may commit."""
        held = {partition: at for at, partition in self.held.items()}
        may_commit = self.machine.held.may_commit
        return {held[each]: offset for each, offset in self._handed().items() if may_commit(each)}

    def check_nothing_is_lost(self, so_what: str) -> None:
        """Raise `StaleMemberEpochError` if the caller has not been told yet what it has lost."""
        if self.machine.held.lost:
            lost = ", ".join(map(str, self._named(self.machine.held.lost)))
            raise error_for(
                ErrorCode.STALE_MEMBER_EPOCH,
                f"group {self._group!r}",
                f"{so_what}: the group continued without this consumer, which had {lost}",
            )

    def commit_nowait(
        self, offsets: dict[PartitionId, int], timeout: float, done: Callable[[Exception | None], None]
    ) -> None:
        """Commit in the order of calls; `done` hears what became of it, here or later.

        Raises:
          StaleMemberEpochError: The caller has not been told yet what it has lost.
        """
        self.check_nothing_is_lost("nothing is committed")
        self._commit_ids += 1
        self._commits[self._commit_ids] = _Commit(offsets, done)
        self.step(
            me.CommitAsked(
                commit_id=self._commit_ids,
                offsets={self.held[at]: offset for at, offset in offsets.items()},
                deadline=time.monotonic() + timeout,
            )
        )

    def _commit_done(self, effect: me.CommitDone) -> None:
        commit = self._commits.pop(effect.commit_id, None)
        if commit is None:
            return
        if effect.error == ErrorCode.NONE:
            commit.done(None)
            return
        first, *more = sorted(commit.offsets)
        named = f"{first} and {len(more)} more" if more else str(first)
        outcome = "unknown" if effect.unknown else "absent"
        commit.done(
            error_for(
                effect.error,
                f"group {self._group!r}: commit of {named}",
                effect.message,
                outcome=outcome,  # type: ignore[arg-type]
            )
        )

    def _fail_commits(self, error: ClientError) -> None:
        commits, self._commits = self._commits, {}
        for commit in commits.values():
            commit.done(error)

    # The end

    def begin_to_close(
        self, timeout: float, leave_group: bool | None, at_hand: tuple[PartitionId, int] | None = None
    ) -> None:
        """Commit, run the callbacks and leave, within this number of seconds.

        at_hand: Partition and offset of the one record that the caller may not be done with; None: nobody knows
          what it is done with of the last poll.
        """
        self.is_closing = True
        if at_hand is not None:
            at, offset = at_hand
            done = self._handed()
            partition = self.held.get(at)
            if partition is not None and partition in done:
                committed = self.machine.held.committed_of(partition)
                if committed is None or committed <= offset:
                    done[partition] = min(done[partition], offset)
            self.step(me.PollEnded(handed=done), me.PollBegan())
        self.step(me.Closed(deadline=time.monotonic() + timeout, leave_group=leave_group))

    async def next_of_close(self) -> Due | None:
        """The callback that the caller is to run before it goes on closing; None: it is over."""
        while not self._ended.is_set():
            if self._due is not None:
                return self._due
            changed = self._changed
            await changed.wait()
        return None

    def mute(self) -> None:
        """Nobody is there to run callbacks any more."""
        self._silent = True
        self._due = None
        self.called_back()

    async def abandon(self, seconds: float) -> None:
        """Say goodbye, if that takes no longer than so."""
        with trio.move_on_after(seconds, shield=True):
            self.mute()
            self.begin_to_close(seconds, None)
            await self.next_of_close()
        self._scope.cancel()
