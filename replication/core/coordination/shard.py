"""One partition of an internal topic as a replicated state machine: decide, apply, answer (KIP-848's runtime).

A decision is one batch. It is taken on the state with all accepted entries applied, offered to the log, applied as
soon as the log accepts it, and answered when the high watermark has passed it. Nothing is ever taken back: an
accepted batch is committed, or this node's leadership ends and the whole state with it. So there are no snapshots
and no reverts. Decisions that read nothing of what the others write may share a batch: they are gathered, and
neither offered nor applied before the host says so (`Flush`), or before something else is to be decided.

A shard serves once it has read its log up to the start of its leader epoch and all of that is committed; what an
earlier leader accepted is then decided for good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from ..errors import ErrorCode
from . import shard_effects as fx
from . import shard_events as ev
from .decisions import Clock, Decision, OutwardMachine, StateMachine
from .shard_replies import Replies

FAILED_READS = 3
"""In a row; then somebody else may have a log that can be read."""


class ShardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `isolation`: for how long a leader that has lost its followers may still renew leases.

    `commit`: for how long a reply waits for its write; `retry`: until a refused timer decision is taken again.
    """

    isolation: float = 3.0
    commit: float = 5.0
    retry: float = 0.1


class Shard:
    """Events in, effects out; `deadline` is when the host owes it a `Tick`.

    machine: makes the empty state; called once for each leadership.
    """

    def __init__(self, machine: Callable[[], StateMachine], settings: ShardSettings | None = None) -> None:
        self._make = machine
        self._settings = settings if settings is not None else ShardSettings()
        self._view: object | None = None
        self._leader = self._leader_epoch = -1
        """The node to ask instead, as far as is known."""
        self.skipped = 0
        """Records of the log that were not understood."""
        self._reset()

    def _reset(self) -> None:
        self.machine: StateMachine | None = None
        self._outward: OutwardMachine | None = None
        """The same machine, if it has to do with others than its log."""
        self.active = False
        self._role: ev.ShardLed | None = None
        self._failed_reads = 0
        self._next_read = 0
        self._replies = Replies(self._settings.isolation, self._settings.commit)
        self._writing: tuple[Decision, ...] = ()
        """The decisions of the write under way."""
        self._gathered: list[Decision] = []
        """The decisions to write by one batch; none of them is applied."""
        self.gathered = 0
        """Records of it, which wait for `Flush`."""
        self._behind: deque[Decision | ev.Ask] = deque()
        """The decisions and requests after the write under way, one after the other."""
        self._write_id = 0
        self._retry_at: float | None = None
        self._effects: list[fx.Effect] = []
        self._early: list[ev.Marker] = []
        """Markers that came before the load was over."""

    @property
    def deadline(self) -> float | None:
        """Monotonic; None: nothing will happen by itself."""
        first = self._replies.deadline
        if self.active and self.machine is not None:
            first = _sooner(first, self.machine.deadline)
        return _sooner(first, self._retry_at)

    @property
    def awaits_proof(self) -> bool:
        """Whether a reply waits for nothing but `Contacted`: the host had better hear of all who could lead."""
        return self._replies.awaits_proof

    @property
    def open_requests(self) -> int:
        """Requests that have not been answered."""
        return len(self._replies.opened)

    @property
    def is_writing(self) -> bool:
        """Whether something that the log has accepted is not committed."""
        return self._replies.last_write > self._replies.high_watermark

    @property
    def is_settled(self) -> bool:
        """Whether the state is the committed one: all is loaded, and nothing waits to be written or committed."""
        return self.active and not (self._writing or self._gathered or self._behind or self.is_writing)

    def step(self, event: ev.Event, now: float, wall_ms: int) -> list[fx.Effect]:
        """Handle one event. After a `Write` the host tells what became of it before anything else happens.

        Effects of the event itself come in order; the caller carries them out in this order.
        """
        self._effects = []
        clock = Clock(now, wall_ms)
        match event:
            case ev.Accepted():
                self._accepted(event, clock)
            case ev.Refused():
                self._refused(event, clock)
            case ev.ShardLed():
                self._led(event, clock)
            case ev.ShardEnded():
                self._ended(event.leader, event.leader_epoch)
            case _:
                # A decision taken between a write and its acceptance would not see that write.
                assert not self._writing, f"{event} came before the outcome of write {self._write_id}"
                self._take(event, clock)
        self._go_on(clock)
        self._release(clock)
        if self.active and self._outward is not None:
            self._send(self._outward, clock)
            # What is not to be asked for any more may be all that was waited for.
            self._go_on(clock)
        return self._effects

    def _send(self, machine: OutwardMachine, clock: Clock) -> None:
        assert self._role is not None
        for message in machine.send(self._replies.high_watermark, self._role.leader_epoch, clock):
            self._effects.append(fx.Outward(leader_epoch=self._role.leader_epoch, message=message))

    def _go_on(self, clock: Clock) -> None:
        """One decision after the other: each is taken on what the one before it has written."""
        while self.active and not self._writing and self._behind:
            behind = self._behind.popleft()
            if isinstance(behind, Decision):
                self._offer((behind,))
            else:
                self._ask(behind, clock)
        while self.active and not self._writing and not self._gathered and self._retry_at is None:
            decision = self._machine.due(clock)
            if decision is None:
                break
            self._decided(decision, clock)

    def _take(self, event: ev.Event, clock: Clock) -> None:
        match event:
            case ev.Ask(since=since):
                self._replies.since = max(self._replies.since, since)
                self._ask(event, clock)
            case ev.LogRead():
                self._read(event, clock)
            case ev.LogReadFailed():
                self._read_failed(event)
            case ev.Advanced(high_watermark=high_watermark):
                self._replies.high_watermark = max(self._replies.high_watermark, high_watermark)
                self._try_activate(clock)
            case ev.Contacted(since=since):
                self._replies.since = max(self._replies.since, since)
            case ev.Flush():
                self._flush()
            case ev.MarkerWritten(marker=marker):
                self._mark(marker)
            case ev.Heard(leader_epoch=leader_epoch, message=message):
                if self.active and self._role is not None and leader_epoch == self._role.leader_epoch:
                    assert self._outward is not None
                    self._outward.heard(message, clock)
            case ev.ViewChanged(view=view):
                self._view = view
                if self.machine is not None:
                    self.machine.view_changed(view)
            case ev.Tick():
                self._tick(clock)

    # The role

    def _led(self, event: ev.ShardLed, clock: Clock) -> None:
        """A later epoch of the same leader begins from nothing too: others may have written between the two."""
        self._ended(-1, -1)
        self._role = event
        self.machine = self._make()
        # Asked once: to ask whether an object is of an abstract class takes longer than most decisions.
        self._outward = self.machine if isinstance(self.machine, OutwardMachine) else None
        if self._view is not None:
            self.machine.view_changed(self._view)
        self._next_read = event.log_start
        if event.log_start < event.epoch_start:
            self._read_on()
        self._try_activate(clock)

    def _ended(self, leader: int, leader_epoch: int) -> None:
        opened, machine, effects = self._replies.opened, self.machine, self._effects
        self._reset()
        self._effects = effects
        self._leader, self._leader_epoch = leader, leader_epoch
        if machine is not None:
            for request_id, each in opened.items():
                reply = machine.failure(each.message, ErrorCode.NOT_COORDINATOR, leader, leader_epoch)
                self._effects.append(fx.Answer(request_id=request_id, reply=reply))

    def _read_on(self) -> None:
        assert self._role is not None
        self._effects.append(
            fx.ReadLog(
                leader_epoch=self._role.leader_epoch, start=self._next_read, end=self._role.epoch_start
            )
        )

    def _read(self, event: ev.LogRead, clock: Clock) -> None:
        # The answer to a read of an earlier leadership may come at any time (KAFKA-9307).
        if self._role is None or event.leader_epoch != self._role.leader_epoch or self.active:
            return
        if event.next_offset <= self._next_read:
            # A range in which compaction has left nothing still leads on (KAFKA-9065); one that does not, failed.
            self._read_failed(ev.LogReadFailed(leader_epoch=event.leader_epoch))
            return
        self._failed_reads = 0
        for entry in event.entries:
            # A batch may begin below the log start or reach over the end of the range.
            if not self._next_read <= entry.offset < self._role.epoch_start:
                continue
            if isinstance(entry, ev.Marker):
                self._machine.mark(entry)
            else:
                self._apply(entry)
        self._next_read = event.next_offset
        if self._next_read < self._role.epoch_start:
            self._read_on()
        self._try_activate(clock)

    def _read_failed(self, event: ev.LogReadFailed) -> None:
        if self._role is None or event.leader_epoch != self._role.leader_epoch or self.active:
            return
        self._failed_reads += 1
        if self._failed_reads < FAILED_READS:
            self._read_on()
        elif self._failed_reads == FAILED_READS:
            self._effects.append(fx.Resign(leader_epoch=event.leader_epoch))

    def _try_activate(self, clock: Clock) -> None:
        if self.active or self._role is None or self._next_read < self._role.epoch_start:
            return
        if self._replies.high_watermark < self._role.epoch_start:
            return
        self.active = True
        self._machine.activate(clock)
        # Markers of transactions' coordinators may have come meanwhile; nothing else is written here.
        markers, self._early = self._early, []
        for marker in markers:
            self._mark(marker)

    @property
    def _machine(self) -> StateMachine:
        assert self.machine is not None
        return self.machine

    # Requests

    def _ask(self, event: ev.Ask, clock: Clock) -> None:
        known = self._role is not None and event.leader_epoch in (-1, self._role.leader_epoch)
        if not self.active or not known:
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if known else ErrorCode.NOT_COORDINATOR
            machine = self.machine if self.machine is not None else self._make()
            reply = machine.failure(event.message, error, self._leader, self._leader_epoch)
            self._effects.append(fx.Answer(request_id=event.request_id, reply=reply))
            return
        may_share = event.more and self._machine.may_share(event.message)
        if self._gathered and not may_share:
            # It is decided on what was decided before it, so that is written first.
            self._behind.append(event)
            self._flush()
            return
        self._replies.open(event.request_id, event.message, clock.now, event.deadline)
        decision = self._machine.decide(event.request_id, event.message, clock)
        if may_share and decision.entries:
            self._gathered.append(decision)
            self.gathered += len(decision.entries)
        else:
            self._decided(decision, clock)

    def _decided(self, decision: Decision, clock: Clock) -> None:
        if decision.entries:
            self._offer((decision,))
        else:
            self._settle(decision, clock)

    def _flush(self) -> None:
        gathered, self._gathered, self.gathered = tuple(self._gathered), [], 0
        if gathered:
            self._offer(gathered)

    def _offer(self, decisions: tuple[Decision, ...]) -> None:
        """Offer decisions as one batch."""
        self._writing = decisions
        self._write_id += 1
        self._effects.append(
            fx.Write(
                write_id=self._write_id,
                entries=tuple([entry for each in decisions for entry in each.entries]),
                producer=decisions[0].producer,
                parts=tuple([(each.request_id, len(each.entries)) for each in decisions]),
            )
        )

    def _accepted(self, event: ev.Accepted, clock: Clock) -> None:
        if not self._writing or event.write_id != self._write_id:
            return
        decisions, self._writing = self._writing, ()
        offset = event.base_offset
        end = offset + sum(len(each.entries) for each in decisions)
        for decision in decisions:
            written = None
            for key, value in decision.entries:
                self._apply(ev.Entry(offset, key, value, decision.producer))
                offset += 1
                if key.group != written:
                    written = key.group
                    self._replies.wrote(written, end)
            self._settle(decision, clock)

    def _refused(self, event: ev.Refused, clock: Clock) -> None:
        if not self._writing or event.write_id != self._write_id:
            return
        decisions, self._writing = self._writing, ()
        if len(decisions) > 1 and event.error in _OF_ONE:
            # One of them is to blame, or all together: each goes by itself, before what has come after them.
            self._behind.extendleft(reversed(decisions))
            return
        error = _REFUSALS.get(event.error, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        for decision in decisions:
            if decision.request_id is None:
                self._retry_at = clock.now + self._settings.retry
            elif decision.request_id in self._replies.opened:
                self._fail(decision.request_id, error, clock)

    def _settle(self, decision: Decision, clock: Clock) -> None:
        if decision.then is not None:
            decision.then()
        for note in decision.notes:
            self._effects.append(fx.Noted(group=note.group, reason=note.reason, details=note.details))
        for reply in decision.replies:
            self._replies.add(reply, clock.now)

    def _release(self, clock: Clock) -> None:
        for reply in self._replies.release(clock):
            self._effects.append(fx.Answer(request_id=reply.request_id, reply=reply.body))

    def _fail(self, request_id: int, error: ErrorCode, clock: Clock) -> None:
        opened = self._replies.opened.pop(request_id)
        self._machine.withdrawn(request_id, clock)
        reply = self._machine.failure(opened.message, error)
        self._effects.append(fx.Answer(request_id=request_id, reply=reply))

    # The log

    def _apply(self, entry: ev.Entry) -> None:
        if entry.key is None:
            self.skipped += 1
        else:
            self._machine.apply(entry)

    def _mark(self, marker: ev.Marker) -> None:
        if self._role is None:
            return
        if not self.active:
            self._early.append(marker)
            return
        for group in self._machine.mark(marker):
            self._replies.wrote(group, marker.offset + 1)
        self._effects.append(fx.MarkerApplied(offset=marker.offset))

    # Time

    def _tick(self, clock: Clock) -> None:
        self._retry_at = None
        if self.active:
            due = self._machine.deadline
            if due is not None and clock.now >= due:
                # Whoever was to be heard in the time by which this is late could not be: nobody is blamed for it.
                self._machine.slip(clock.now - due)
                self._machine.tick(clock)
        for request_id in self._replies.overdue(clock.now):
            self._fail(request_id, ErrorCode.REQUEST_TIMED_OUT, clock)


def _sooner(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


_REFUSALS = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.RECORD_TOO_LARGE: ErrorCode.RECORD_LIST_TOO_LARGE,
}
_OF_ONE = (ErrorCode.RECORD_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR)
"""Refusals for what a batch holds, which need not be meant for each part of it."""
