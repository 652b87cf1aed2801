"""The runtime of a shard, with a state machine that keeps one number for each name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from insync.replication.core.coordination import shard_effects as fx
from insync.replication.core.coordination import shard_events as ev
from insync.replication.core.coordination.decisions import Clock, Decision, Proof, Reply
from insync.replication.core.coordination.shard import Shard, ShardSettings
from insync.replication.core.errors import ErrorCode


@attrs.frozen
class Key:
    group: str


class Numbers:
    """`("set", name, value)`, `("get", name)`, `("all",)`, `("park",)`; a timer writes `alarm` to `timer`."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.active_at = 0.0
        self.alarm: float | None = None
        self.ringing = False
        self.slipped = 0.0
        self.gone: list[int] = []
        self.view: Any = None
        self.marks: list[ev.Marker] = []

    def apply(self, entry: ev.Entry) -> None:
        self.values[entry.key.group] = entry.value

    def mark(self, marker: ev.Marker) -> frozenset[str]:
        self.marks.append(marker)
        return frozenset({"marked"})

    def activate(self, clock: Clock) -> None:
        self.active_at = clock.now

    def view_changed(self, view: Any) -> None:
        self.view = view

    def decide(self, request_id: int, message: Any, clock: Clock) -> Decision:
        match message:
            case ("set", name, value):
                reply = Reply(request_id=request_id, body="done", groups=frozenset({name}), proof=Proof.NONE)
                return Decision(request_id=request_id, entries=((Key(name), value),), replies=(reply,))
            case ("get", name):
                body = self.values.get(name)
                reply = Reply(request_id=request_id, body=body, groups=frozenset({name}), proof=Proof.READ)
                return Decision(request_id=request_id, replies=(reply,))
            case ("all",):
                reply = Reply(request_id=request_id, body=dict(self.values), groups=None)
                return Decision(request_id=request_id, replies=(reply,))
        return Decision(request_id=request_id)

    def may_share(self, message: Any) -> bool:
        return bool(message[0] == "set")

    def due(self, clock: Clock) -> Decision | None:
        if not self.ringing:
            return None

        def rung() -> None:
            self.ringing = False

        return Decision(entries=((Key("timer"), clock.wall_ms),), then=rung)

    def tick(self, clock: Clock) -> None:
        if self.alarm is not None and self.alarm <= clock.now:
            self.alarm, self.ringing = None, True

    def slip(self, seconds: float) -> None:
        self.slipped += seconds

    def withdrawn(self, request_id: int, clock: Clock) -> None:
        self.gone.append(request_id)

    def failure(self, message: Any, error: ErrorCode, leader: int = -1, leader_epoch: int = -1) -> Any:
        return error, leader, leader_epoch

    @property
    def deadline(self) -> float | None:
        return self.alarm


class Host:
    """Takes writes at once, unless `refuse`; commits what it is told to."""

    def __init__(self, **led: int) -> None:
        self.shard = Shard(Numbers, ShardSettings())
        self.now, self.end = 100.0, 0
        self.refuse: ErrorCode | None = None
        self.is_refused: Callable[[fx.Write], bool] = lambda write: True
        self.written: list[fx.Write] = []
        self.said: dict[int, Any] = {}
        self.other: list[fx.Effect] = []
        self.ids = 0
        if led.pop("lead", True):
            self.lead(**led)

    def lead(self, epoch: int = 1, start: int = 0, at: int = 0) -> None:
        self.end = at
        self.tell(ev.ShardLed(leader_epoch=epoch, log_start=start, epoch_start=at))
        self.tell(ev.Contacted(since=self.now))

    def tell(self, event: ev.Event) -> None:
        for effect in self.shard.step(event, self.now, int(self.now * 1000)):
            if isinstance(effect, fx.Write):
                self.written.append(effect)
                if self.refuse is not None and self.is_refused(effect):
                    self.tell(ev.Refused(write_id=effect.write_id, error=self.refuse))
                else:
                    base, self.end = self.end, self.end + len(effect.entries)
                    self.tell(ev.Accepted(write_id=effect.write_id, base_offset=base))
            elif isinstance(effect, fx.Answer):
                assert effect.request_id not in self.said, "answered twice"
                self.said[effect.request_id] = effect.reply
            else:
                self.other.append(effect)

    def ask(self, *message: Any, within: float = 60, more: bool = False) -> int:
        self.ids += 1
        self.tell(ev.Ask(request_id=self.ids, message=message, deadline=self.now + within, more=more))
        return self.ids

    def commit(self, to: int | None = None) -> None:
        self.tell(ev.Advanced(high_watermark=self.end if to is None else to))

    def contact(self) -> None:
        self.tell(ev.Contacted(since=self.now))

    def tick(self, at: float) -> None:
        self.now = at
        self.tell(ev.Tick())

    def answer(self, request_id: int) -> Any:
        return self.said.get(request_id, "waits")

    @property
    def machine(self) -> Numbers:
        machine = self.shard.machine
        assert isinstance(machine, Numbers)
        return machine


def read(epoch: int, start: int, *values: int, next_offset: int | None = None) -> ev.LogRead:
    entries = tuple([ev.Entry(start + at, Key("x"), value) for at, value in enumerate(values)])
    end = start + len(values) if next_offset is None else next_offset
    return ev.LogRead(leader_epoch=epoch, entries=entries, next_offset=end)


def refused(error: ErrorCode, leader: int = -1, epoch: int = -1) -> tuple[ErrorCode, int, int]:
    return error, leader, epoch


def test_a_write_is_applied_when_accepted_and_answered_when_committed() -> None:
    host = Host()
    asked = host.ask("set", "x", 1)
    assert host.machine.values == {"x": 1}
    assert host.answer(asked) == "waits"
    host.commit()
    assert host.answer(asked) == "done"
    assert host.shard.open_requests == 0


def test_decisions_that_share_a_batch_are_one_write_and_all_are_answered() -> None:
    host = Host()
    asked = [host.ask("set", f"x{number}", number, more=True) for number in range(1000)]
    assert not host.written and not host.machine.values
    assert host.shard.gathered == 1000
    host.tell(ev.Flush())
    assert [len(each.entries) for each in host.written] == [1000]
    assert host.written[0].parts == tuple([(each, 1) for each in asked])
    assert host.machine.values == {f"x{number}": number for number in range(1000)}
    host.commit(999)
    assert not host.said
    host.commit(1000)
    assert [host.answer(each) for each in asked] == ["done"] * 1000
    host.tell(ev.Flush())
    assert len(host.written) == 1 and host.shard.gathered == 0


def test_what_is_decided_on_gathered_decisions_comes_after_their_write() -> None:
    host = Host()
    first, second = host.ask("set", "x", 1, more=True), host.ask("set", "x", 2, more=True)
    read = host.ask("get", "x", more=True)
    assert [len(each.entries) for each in host.written] == [2]
    third = host.ask("set", "x", 3, more=True)
    alone = host.ask("set", "x", 4)
    assert [each.parts for each in host.written] == [
        ((first, 1), (second, 1)),
        ((third, 1),),
        ((alone, 1),),
    ]
    host.commit()
    assert host.answer(read) == 2
    assert host.machine.values == {"x": 4}


def test_a_timer_decides_on_what_was_gathered_before_it() -> None:
    host = Host()
    host.machine.alarm = host.now
    host.ask("set", "x", 1, more=True)
    host.tell(ev.Tick())
    assert not host.written
    host.tell(ev.Flush())
    assert [each.entries[0][0].group for each in host.written] == ["x", "timer"]


def test_a_refused_write_fails_all_its_decisions() -> None:
    host = Host()
    host.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    asked = [host.ask("set", f"x{number}", number, more=True) for number in range(3)]
    host.tell(ev.Flush())
    assert [host.answer(each) for each in asked] == [refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)] * 3
    assert not host.machine.values and len(host.written) == 1
    assert host.machine.gone == asked


def test_one_decision_that_cannot_be_written_harms_no_other_of_its_batch() -> None:
    for error, told in (
        (ErrorCode.RECORD_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE),
        (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ):
        host = Host()
        host.refuse = error
        host.is_refused = lambda write: any(value == "bad" for _, value in write.entries)
        asked = [
            host.ask("set", name, value, more=True) for name, value in (("x", 1), ("y", "bad"), ("z", 3))
        ]
        read = host.ask("get", "z", more=True)
        host.commit()
        assert [host.answer(each) for each in asked] == ["done", refused(told), "done"]
        assert host.machine.values == {"x": 1, "z": 3}
        assert host.answer(read) == 3
        assert [len(each.entries) for each in host.written] == [3, 1, 1, 1]


def test_gathered_decisions_end_with_the_role_or_their_time() -> None:
    host = Host()
    late = host.ask("set", "x", 1, within=1, more=True)
    host.tick(host.now + 2)
    assert host.answer(late) == refused(ErrorCode.REQUEST_TIMED_OUT)
    other = host.ask("set", "y", 1, more=True)
    host.tell(ev.ShardEnded(leader=2, leader_epoch=7))
    assert host.answer(other) == refused(ErrorCode.NOT_COORDINATOR, 2, 7)
    host.lead(epoch=8)
    host.tell(ev.Flush())
    assert not host.written and not host.machine.values


def test_a_read_waits_for_the_last_write_to_what_it_tells_of() -> None:
    host = Host()
    host.ask("set", "x", 1)
    host.ask("set", "y", 2)
    one, other, every = host.ask("get", "x"), host.ask("get", "z"), host.ask("all")
    assert [host.answer(each) for each in (one, other, every)] == ["waits", None, "waits"]
    host.commit(1)
    assert [host.answer(each) for each in (one, every)] == [1, "waits"]
    host.commit(2)
    assert host.answer(every) == {"x": 1, "y": 2}


def test_a_refused_write_leaves_no_trace() -> None:
    host = Host()
    for said, told in (
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.RECORD_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE),
    ):
        host.refuse = said
        asked = host.ask("set", "x", 1)
        assert host.answer(asked) == refused(told)
    assert host.machine.values == {}
    assert host.machine.gone == [1, 2, 3, 4]


def test_what_is_not_committed_in_time_is_unknown_and_stays() -> None:
    host = Host()
    asked = host.ask("set", "x", 1)
    soon = host.ask("set", "y", 1, within=1)
    assert host.shard.deadline == host.now + 1
    host.tick(host.now + 1)
    assert host.answer(soon) == refused(ErrorCode.REQUEST_TIMED_OUT)
    assert host.shard.deadline == host.now + 4
    host.tick(host.now + 4)
    assert host.answer(asked) == refused(ErrorCode.REQUEST_TIMED_OUT)
    host.commit()
    assert host.machine.values == {"x": 1, "y": 1}


def test_a_parked_request_ends_at_its_own_deadline_and_is_withdrawn() -> None:
    host = Host()
    asked = host.ask("park", within=30)
    assert host.shard.deadline == host.now + 30
    host.tick(host.now + 30)
    assert host.answer(asked) == refused(ErrorCode.REQUEST_TIMED_OUT)
    assert host.machine.gone == [asked]
    assert host.shard.deadline is None


def test_it_serves_when_all_is_read_and_committed() -> None:
    host = Host(at=4, start=1)
    assert host.other == [fx.ReadLog(leader_epoch=1, start=1, end=4)]
    asked = host.ask("get", "x")
    assert host.answer(asked) == refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    # The first range begins below the log start, and the last one reaches over the start of the epoch.
    host.tell(read(1, 0, 7, 8))
    assert host.other[-1] == fx.ReadLog(leader_epoch=1, start=2, end=4)
    host.tell(read(1, 2, 9, 10, 11))
    assert not host.shard.active
    host.commit(3)
    assert not host.shard.active
    host.commit(4)
    assert host.shard.active
    assert host.machine.values == {"x": 10}
    assert host.machine.active_at == host.now


def test_a_load_goes_on_over_a_gap() -> None:
    host = Host(at=9)
    host.tell(read(1, 0, 1, next_offset=5))
    host.tell(read(1, 5, next_offset=9))
    host.commit(9)
    assert host.shard.active


def test_markers_of_the_log_are_loaded_in_their_place() -> None:
    host = Host(at=2)
    marker = ev.Marker(0, ev.ProducerId(7, 0), True)
    unknown = ev.Entry(1, None, None)
    host.tell(ev.LogRead(leader_epoch=1, entries=(marker, unknown), next_offset=2))
    assert host.machine.marks == [marker]
    assert host.shard.skipped == 1


def test_the_answer_to_an_older_leaderships_read_is_dropped() -> None:
    host = Host(at=2)
    host.lead(epoch=3, at=4)
    host.tell(read(1, 0, 1, 1))
    host.tell(ev.LogReadFailed(leader_epoch=1))
    assert host.machine.values == {}
    host.tell(read(3, 0, 5, 6, 7, 8))
    host.commit(4)
    assert host.machine.values == {"x": 8}
    host.tell(read(3, 0, 1))
    host.tell(ev.LogReadFailed(leader_epoch=3))
    assert host.machine.values == {"x": 8}


def test_a_log_that_cannot_be_read_ends_the_leadership() -> None:
    host = Host(at=2)
    host.tell(ev.LogReadFailed(leader_epoch=1))
    host.tell(read(1, 0, next_offset=0))
    assert host.other == [fx.ReadLog(leader_epoch=1, start=0, end=2)] * 3
    for _ in range(2):
        host.tell(ev.LogReadFailed(leader_epoch=1))
    assert host.other[3:] == [fx.Resign(leader_epoch=1)]


def test_failures_of_reads_count_in_a_row() -> None:
    host = Host(at=9)
    for offset in range(6):
        host.tell(ev.LogReadFailed(leader_epoch=1))
        host.tell(read(1, offset, 1))
    assert fx.Resign(leader_epoch=1) not in host.other


def test_the_state_ends_with_the_role_and_all_are_told_who_leads() -> None:
    host = Host()
    waits, parked = host.ask("set", "x", 1), host.ask("park")
    host.tell(ev.ShardEnded(leader=3, leader_epoch=9))
    assert host.answer(waits) == host.answer(parked) == refused(ErrorCode.NOT_COORDINATOR, 3, 9)
    assert host.shard.machine is None and host.shard.deadline is None
    assert host.answer(host.ask("get", "x")) == refused(ErrorCode.NOT_COORDINATOR, 3, 9)
    host.commit(5)
    host.tell(ev.ViewChanged(view="later"))
    host.tell(ev.MarkerWritten(marker=ev.Marker(9, ev.ProducerId(1, 0), True)))
    host.tell(read(1, 0, 1))
    assert host.shard.machine is None
    host.lead(epoch=10)
    assert host.machine.values == {} and host.machine.view == "later"


def test_a_write_under_way_ends_with_the_role() -> None:
    """The replica failed while it took the batch: the host says that the role is over instead of the outcome."""
    shard = Shard(Numbers)
    shard.step(ev.ShardLed(leader_epoch=1, log_start=0, epoch_start=0), 1, 1)
    shard.step(ev.Ask(request_id=1, message=("set", "x", 1), deadline=9), 1, 1)
    told = shard.step(ev.ShardEnded(), 1, 1)
    assert told == [fx.Answer(request_id=1, reply=refused(ErrorCode.NOT_COORDINATOR))]
    assert shard.step(ev.Accepted(write_id=1, base_offset=0), 1, 1) == []
    assert shard.step(ev.Refused(write_id=1, error=ErrorCode.RECORD_TOO_LARGE), 1, 1) == []


def test_a_renewal_needs_recent_contact() -> None:
    host = Host()
    host.now += 3
    assert host.answer(host.ask("all")) == {}
    host.now += 0.1
    asked = host.ask("all")
    assert host.answer(asked) == "waits"
    host.tell(ev.Contacted(since=host.now - 3))
    assert host.answer(asked) == {}


def test_a_read_needs_contact_since_it_was_asked_and_no_clock() -> None:
    host = Host()
    host.now += 1
    asked = host.ask("get", "x")
    host.tell(ev.Contacted(since=host.now - 0.1))
    assert host.answer(asked) == "waits"
    host.now += 50
    host.tell(ev.Contacted(since=host.now - 50))
    assert host.answer(asked) is None


def test_contact_never_goes_back() -> None:
    host = Host()
    host.tell(ev.Contacted(since=0))
    assert host.answer(host.ask("all")) == {}


def test_an_unproved_reply_ends_at_its_deadline() -> None:
    host = Host()
    host.now += 4
    asked = host.ask("all")
    host.tick(host.now + 5)
    assert host.answer(asked) == refused(ErrorCode.REQUEST_TIMED_OUT)
    host.contact()


def test_a_timer_decides_when_it_is_due() -> None:
    host = Host()
    host.machine.alarm = host.now + 2
    assert host.shard.deadline == host.now + 2
    host.tick(host.now + 1)
    assert host.written == []
    host.tick(host.now + 1)
    assert host.machine.values == {"timer": 102_000}
    assert host.machine.slipped == 0


def test_a_late_tick_is_nobodys_fault() -> None:
    host = Host()
    host.machine.alarm = host.now + 2
    host.tick(host.now + 9)
    assert host.machine.slipped == 7


def test_a_refused_timer_decision_is_taken_again_from_the_state_of_then() -> None:
    host = Host()
    host.machine.alarm = host.now + 2
    host.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    host.tick(host.now + 2)
    assert len(host.written) == 1 and host.machine.values == {}
    host.refuse = None
    asked = host.ask("get", "x")
    assert len(host.written) == 1
    assert host.shard.deadline == host.now + 0.1
    host.tick(host.now + 0.1)
    assert host.machine.values == {"timer": 102_100}
    host.contact()
    assert host.answer(asked) is None


def test_markers_are_applied_in_their_turn_and_never_before_the_load_is_over() -> None:
    host = Host(at=1)
    marker = ev.Marker(1, ev.ProducerId(7, 0), True)
    host.tell(ev.MarkerWritten(marker=marker))
    host.tell(read(1, 0, 1))
    assert host.machine.marks == [] and fx.MarkerApplied(offset=1) not in host.other
    host.commit(1)
    assert host.machine.marks == [marker] and host.other[-1] == fx.MarkerApplied(offset=1)
    asked = host.ask("get", "marked")
    assert host.answer(asked) == "waits"
    host.commit(2)
    assert host.answer(asked) is None


def test_what_is_committed_is_forgotten() -> None:
    host = Host()
    for number in range(50):
        host.ask("set", f"x{number}", 1)
        host.commit()
    assert len(host.shard._replies._written) <= 2
