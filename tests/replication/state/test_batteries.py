"""The machines of the collections, locks and queues by themselves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.replication.state._batteries import CounterState, DictMachine, LockState, QueueState, SetState
from insync.replication.state._packing import PackingError, pack, unpack
from insync.replication.state._snapshots import Chunker, Pieces
from insync.replication.state.errors import CommandError
from insync.replication.state.machine import Context, StateMachine
from insync.replication.state.objects import ObjectMachine, ReplicatedObject, command, raise_answer


class Driver:
    """Calls commands of an object, one offset after the other."""

    def __init__(self, value: ReplicatedObject) -> None:
        self.machine = ObjectMachine(value)
        self.offset = 0
        self.now = 1000

    def __call__(self, method: str, *args: Any) -> Any:
        self.offset += 1
        context = Context(self.offset, 0, self.now, "a")
        return unpack(self.machine.apply(context, pack([method, args, {}])))


def restored(machine: StateMachine, fresh: StateMachine) -> StateMachine:
    chunker = Chunker()
    machine.snapshot(chunker.write)
    fresh.restore(Pieces(chunker.end()).read)
    return fresh


def test_an_item_is_given_out_again_when_its_lease_is_over() -> None:
    queue = Driver(QueueState())
    first, second = queue("put", "a"), queue("put", "b")
    number, token, value, deliveries = queue("take", 100)
    assert (number, value, deliveries) == (first, "a", 1)
    assert queue("take", 100)[0] == second
    assert queue("take", 100) is None
    queue.now += 100
    again = queue("take", 100)
    assert again[0] == first and again[3] == 2, "the older one goes first"
    assert queue("ack", number, token) is False, "its lease had run out"
    assert queue("ack", again[0], again[1]) is True
    assert queue("ack", again[0], again[1]) is False


def test_what_is_given_back_goes_before_what_was_never_given_out() -> None:
    queue = Driver(QueueState())
    for each in "abc":
        queue("put", each)
    one, two = queue("take", 100), queue("take", 100)
    assert queue("nack", two[0], two[1]) and queue("nack", one[0], one[1])
    assert [queue("take", 100)[2] for _ in range(3)] == ["a", "b", "c"]


def test_after_so_many_deliveries_an_item_is_a_dead_letter() -> None:
    queue = Driver(QueueState(most_deliveries=2))
    queue("put", "poison")
    for _ in range(2):
        taken = queue("take", 100)
        queue("nack", taken[0], taken[1])
    assert queue("take", 100) is None
    state = queue.machine.value
    assert isinstance(state, QueueState)
    assert state.counts() == {"waiting": 0, "taken": 0, "dead": 1}
    assert [item.value for item in state.dead_letters()] == ["poison"]
    assert queue("requeue_dead") == 1
    assert queue("take", 100)[2:] == ["poison", 1]


def test_a_lease_that_is_prolonged_does_not_run_out() -> None:
    queue = Driver(QueueState())
    queue("put", "a")
    number, token, *_ = queue("take", 100)
    queue.now += 99
    assert queue("prolong", number, token, 100)
    queue.now += 99
    assert queue("take", 100) is None
    queue.now += 1
    assert queue("take", 100) is not None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["put", "take", "ack", "nack", "later"]), st.integers(0, 3))))
def test_no_item_is_lost_and_none_has_two_takers(steps: list[tuple[str, int]]) -> None:
    queue = Driver(QueueState(most_deliveries=3))
    state = queue.machine.value
    assert isinstance(state, QueueState)
    put, done, held = 0, 0, list[Any]()
    for do, choice in steps:
        if do == "put":
            queue("put", put)
            put += 1
        elif do == "take":
            if (taken := queue("take", 50)) is not None:
                held.append(taken)
        elif do == "later":
            queue.now += 30
        elif held:
            taken = held[choice % len(held)]
            done += queue(do, taken[0], taken[1]) and do == "ack"
        counts = state.counts()
        assert sum(counts.values()) + done == put
        copy = restored(queue.machine, ObjectMachine(QueueState()))
        assert copy.digest() == queue.machine.digest()


def test_a_lock_has_one_holder_and_its_tokens_grow() -> None:
    lock = Driver(LockState())
    mine, token, until = lock("acquire", "x", "a", 100)
    assert mine and until == 1100
    assert lock("acquire", "x", "b", 100)[:2] == [False, token]
    assert lock("acquire", "x", "a", 200) == [True, token, 1200], "prolonged under the same token"
    lock.now = 1200
    taken, later, _ = lock("acquire", "x", "b", 100)
    assert taken and later > token
    assert lock("release", "x", token) is False
    assert lock("release", "x", later) is True
    assert lock("acquire", "x", "a", 100)[1] > later


def test_a_lock_that_had_run_out_is_a_new_one_for_the_same_owner() -> None:
    lock = Driver(LockState())
    first = lock("acquire", "x", "a", 100)[1]
    lock.now = 1100
    assert lock("acquire", "x", "a", 100)[1] > first


def test_counters_and_sets() -> None:
    counter = Driver(CounterState())
    assert [counter("add", "n", 5), counter("add", "n", -7), counter("add", "m", 0)] == [5, -2, 0]
    with pytest.raises(OverflowError):
        counter("add", "n", -(1 << 63))
    with pytest.raises(TypeError):
        counter("add", "n", 0.5)
    members = Driver(SetState())
    assert [members("add", 1), members("add", 1), members("discard", 1), members("discard", 1)] == [
        True,
        False,
        True,
        False,
    ]
    with pytest.raises(TypeError):
        members("add", [1])


_KEYS = st.one_of(st.text(max_size=2), st.binary(max_size=2))
_DO = st.one_of(
    st.tuples(st.just(0), _KEYS, st.integers(0, 3)),
    st.tuples(st.just(1), _KEYS),
    st.tuples(st.just(2), _KEYS, st.one_of(st.none(), st.integers(0, 3)), st.one_of(st.none(), st.just(9))),
    st.tuples(st.just(3), st.lists(st.tuples(_KEYS, st.integers(0, 3)), max_size=3)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_DO, max_size=20))
def test_the_digest_of_a_dict_follows_every_change(commands: list[Any]) -> None:
    """Kept step by step it is what it is for a dict that is filled at once."""
    machine, model = DictMachine(), dict[Any, Any]()
    for offset, each in enumerate(commands):
        answer = unpack(machine.apply(Context(offset, 0, 0, "a"), pack(each)))
        do, *args = each
        if do == 0:
            model[args[0]] = args[1]
        elif do == 1:
            assert answer == (args[0] in model)
            model.pop(args[0], None)
        elif do == 2:
            assert answer == (model.get(args[0]) == args[1])
            if answer and args[2] is None:
                model.pop(args[0], None)
            elif answer:
                model[args[0]] = args[2]
        else:
            model.update(args[0])
    assert machine.data == model
    fresh = DictMachine()
    for key, value in sorted(model.items(), key=repr):
        fresh.apply(Context(0, 0, 0, "a"), pack([0, key, value]))
    assert fresh.digest() == machine.digest() == restored(machine, DictMachine()).digest()
    pieces: list[bytes] = []
    view = machine.view()
    machine.apply(Context(99, 0, 0, "a"), pack([0, "after", 1]))
    view(pieces.append)
    assert {key: value for piece in pieces for key, value in unpack(piece)} == model, "a view stays as it was"


class TooFewError(Exception):
    def __init__(self, left: int) -> None:
        super().__init__(left)
        self.left = left


class Seats(ReplicatedObject):
    errors = (TooFewError,)

    def __init__(self) -> None:
        self.left = 1
        self.taken: dict[str, str] = {}
        self.marks: set[str] = set()

    @command
    def take(self, who: str) -> int:
        if not self.left:
            raise TooFewError(self.left)
        self.left -= 1
        self.taken[who] = "seat"
        self.marks.add(who)
        return self.left


def test_an_object_is_restored_as_it_was_and_raises_its_own_errors() -> None:
    seats = Driver(Seats())
    assert seats("take", "alice") == 0
    with pytest.raises(TooFewError):
        seats("take", "bob")
    copy = restored(seats.machine, ObjectMachine(Seats()))
    assert isinstance(copy, ObjectMachine) and isinstance(copy.value, Seats)
    assert (copy.value.left, copy.value.taken, copy.value.marks) == (0, {"alice": "seat"}, {"alice"})
    with pytest.raises(TooFewError) as raised:
        raise_answer("TooFewError", pack([0]), (TooFewError,))
    assert raised.value.left == 0
    with pytest.raises(KeyError):
        raise_answer("KeyError", pack(["x"]), ())
    with pytest.raises(CommandError, match="Odd: x"):
        raise_answer("Odd", pack(["x"]), ())
    with pytest.raises(CommandError, match="no command 'leave'"):
        seats("leave")


def test_what_cannot_travel_is_refused_by_name() -> None:
    with pytest.raises(PackingError, match="cannot be sent"):
        pack({"a": object()})
    with pytest.raises(PackingError):
        pack(1 << 70)
    with pytest.raises(PackingError):
        unpack(b"\xc1")
    with pytest.raises(TypeError, match="async"):

        @command
        async def never(self: Any) -> None: ...


def test_big_states_are_written_in_pieces() -> None:
    counters = CounterState()
    counters.counts = {f"c{n}": n + 1 for n in range(10_001)}
    pieces: list[bytes] = []
    ObjectMachine(counters).snapshot(pieces.append)
    assert len(pieces) > 5
    copy = restored(ObjectMachine(counters), ObjectMachine(CounterState()))
    assert isinstance(copy, ObjectMachine) and isinstance(copy.value, CounterState)
    assert copy.value.counts == counters.counts
