"""State machines under the simulator's faults, and the search for an order that explains what was seen."""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.replication.core.broker.current_reads import CurrentReads
from insync.replication.simulation.linearizable import UNKNOWN, Call, is_linearizable
from insync.replication.simulation.service import run_service
from insync.replication.state import _applying
from insync.replication.state._batteries import DictMachine, SetState
from insync.replication.state._packing import pack
from insync.replication.state.machine import Context, Read, StateMachine, Write
from insync.replication.state.objects import ObjectMachine
from insync.replication.state.testing import MachineService

REGISTER = [pack([0, "x", value]) for value in range(4)] + [pack([2, "x", 1, 2]), pack([1, "x"])]


class Queue(StateMachine):
    """First in, first out."""

    def __init__(self) -> None:
        self.items: list[bytes] = []

    def apply(self, context: Context, command: bytes) -> bytes:
        if command == b"take":
            return self.items.pop(0)
        self.items.append(command)
        return b""

    def snapshot(self, write: Write) -> None:
        write(pack(self.items))

    def restore(self, read: Read) -> None:
        from insync.replication.state._packing import unpack

        self.items = unpack(read() or b"")


@pytest.mark.parametrize(
    "service",
    [
        MachineService(DictMachine, REGISTER),
        MachineService(Queue, [b"a", b"b", b"take"]),
        MachineService(
            lambda: ObjectMachine(SetState()), [pack(["add", ["x"], {}]), pack(["discard", ["x"], {}])]
        ),
    ],
    ids=["register", "queue", "set"],
)
def test_histories_are_linearizable_under_all_faults(service: MachineService) -> None:
    done = reads = 0
    for seed in range(8):
        found = run_service(service, seed)
        assert found.result.violation is None, (seed, str(found.result.violation)[:500])
        done += sum(op.outcome is not None and op.outcome.kind == "ok" for op in found.history.operations)
        reads += sum("CurrentRead" in repr(op.command) for op in found.history.operations)
    assert done > 100 and reads > 50


def _found(service: MachineService, seeds: int = 60) -> str:
    for seed in range(seeds):
        violation = run_service(service, seed).result.violation
        if violation is not None:
            return violation.invariant
    return ""


def test_a_machine_that_forgets_what_it_has_seen_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(dict[int, object]):
        def get(self, key: int, default: object = None) -> object:  # type: ignore[override]
            return None

    right = _applying.Session

    def made(*args: object, **options: object) -> object:
        session = right(*args, **options)  # type: ignore[arg-type]
        session.answers = Forgetful()  # type: ignore[assignment]
        return session

    monkeypatch.setattr(_applying, "Session", made)
    assert _found(MachineService(Queue, [b"a", b"b", b"take"])) in ("STATE", "LINEARIZABLE")


def test_reads_that_are_not_current_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CurrentReads._finish

    def finish(self: CurrentReads, partition: object, reads: list[object], *error: object) -> None:
        for read in reads:
            read.offset = max(0, read.offset - 1) if read.offset > 0 else read.offset  # type: ignore[attr-defined]
        right(self, partition, reads, *error)  # type: ignore[arg-type]

    monkeypatch.setattr(CurrentReads, "_finish", finish)
    assert _found(MachineService(DictMachine, REGISTER)) in ("S25", "LINEARIZABLE")


def register(state: int, action: Hashable) -> tuple[int, object]:
    assert isinstance(action, tuple)
    do, value = action
    return (value, None) if do == "write" else (state, state)


def call(began: float, ended: float, *action: object, answer: object = None) -> Call:
    return Call(began=began, ended=ended, action=action, answer=answer)


def test_a_read_of_what_is_no_longer_there_is_no_order() -> None:
    write, late = call(0, 1, "write", 1), call(2, 3, "read", None, answer=0)
    assert not is_linearizable([write, late], 0, register)
    assert is_linearizable([write, call(0.5, 3, "read", None, answer=0)], 0, register)


def test_reads_that_go_back_in_time_are_no_order() -> None:
    write = call(0, 10, "write", 1)
    new, old = call(1, 2, "read", None, answer=1), call(3, 4, "read", None, answer=0)
    assert not is_linearizable([write, new, old], 0, register)
    assert is_linearizable(
        [write, call(1, 2, "read", None, answer=0), call(3, 4, "read", None, answer=1)], 0, register
    )


def test_a_call_without_an_answer_may_have_been_done_or_not() -> None:
    lost = Call(began=0, action=("write", 1), answer=UNKNOWN)
    for seen in (0, 1):
        assert is_linearizable([lost, call(5, 6, "read", None, answer=seen)], 0, register)
    assert not is_linearizable([lost, call(5, 6, "read", None, answer=7)], 0, register)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_what_a_real_register_answers_is_linearizable_and_a_changed_answer_mostly_not(seed: int) -> None:
    dice = random.Random(seed)
    state, now, calls = 0, 0.0, []
    for _ in range(12):
        now += 1
        action = ("write", dice.randint(1, 50)) if dice.random() < 0.5 else ("read", None)
        state, answer = register(state, action)
        # It took effect at `now`, and was under way for some time around.
        calls.append(
            Call(began=now - 3 * dice.random(), ended=now + 3 * dice.random(), action=action, answer=answer)
        )
    assert is_linearizable(calls, 0, register)
    reads = [index for index, each in enumerate(calls) if each.answer is not None]
    if reads:
        index = dice.choice(reads)
        wrong = Call(began=calls[index].began, ended=calls[index].ended, action=("read", None), answer=-1)
        assert not is_linearizable([*calls[:index], wrong, *calls[index + 1 :]], 0, register)
