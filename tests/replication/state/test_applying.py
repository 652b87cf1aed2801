"""A log applied to a machine: each command once, whatever is repeated, and the same on every copy."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.replication.state._applying import FENCED, FORGOTTEN, WINDOW, Applier
from insync.replication.state._entries import (
    Call,
    Close,
    Commands,
    Digest,
    Entry,
    Join,
    Lease,
    Open,
    Snapshotted,
    decode,
    encode,
)
from insync.replication.state._packing import pack, unpack
from insync.replication.state._snapshots import Chunker, Pieces
from insync.replication.state.errors import UnknownEntryError
from insync.replication.state.machine import Context, Read, StateMachine, Write


class Tape(StateMachine):
    """Remembers every command, and answers with how many there were."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def apply(self, context: Context, command: bytes) -> bytes:
        if command == b"fail":
            raise ValueError("as asked", 7)
        self.seen.append(command)
        return b"%d" % len(self.seen)

    def snapshot(self, write: Write) -> None:
        write(pack(self.seen))

    def restore(self, read: Read) -> None:
        data = read()
        assert data is not None
        self.seen = unpack(data)
        assert read() is None


class Log:
    """Records, and the copies that apply them."""

    def __init__(self) -> None:
        self.applier = Applier(Tape())
        self.records: list[tuple[int, int, bytes | None]] = []

    def add(self, entry: Entry | bytes | None, *, at_ms: int = 1000) -> list[Any]:
        value = entry if entry is None or isinstance(entry, bytes) else encode(entry)
        record = len(self.records), at_ms, value
        self.records.append(record)
        return [each.answer for each in self.applier.apply(*record)]

    def open(self, name: str = "a") -> int:
        self.add(Open(name, b"nonce"))
        return len(self.records) - 1

    @property
    def seen(self) -> list[bytes]:
        machine = self.applier.machine
        assert isinstance(machine, Tape)
        return machine.seen


def send(token: int, first: int, *commands: bytes, low: int = 0, name: str = "a", **keys: Any) -> Commands:
    return Commands(name, token, low, first, list(commands), **keys)


def test_a_record_that_is_sent_twice_is_applied_once_and_answered_the_same() -> None:
    log = Log()
    token = log.open()
    first = log.add(send(token, 0, b"x", b"y"))
    assert [answer.data for answer in first] == [b"1", b"2"]
    assert log.add(send(token, 0, b"x", b"y")) == first
    assert log.seen == [b"x", b"y"]


def test_a_late_copy_of_what_came_after_it_changes_nothing() -> None:
    log = Log()
    token = log.open()
    log.add(send(token, 1, b"second"))
    log.add(send(token, 0, b"first"))
    log.add(send(token, 1, b"second"))
    assert log.seen == [b"second", b"first"], "numbers need not come in order: a record was sent again"


def test_an_answer_that_nobody_can_ask_for_is_forgotten() -> None:
    log = Log()
    token = log.open()
    log.add(send(token, 0, b"x"))
    log.add(send(token, 1, b"y", low=1))
    assert log.add(send(token, 0, b"x")) == [FORGOTTEN]
    assert log.seen == [b"x", b"y"]
    assert set(log.applier.sessions["a"].answers) == {1}


def test_the_first_answer_that_may_be_asked_for_is_kept_also_where_numbers_are_far_apart() -> None:
    log = Log()
    token = log.open()
    log.add(send(token, 0, b"x"))
    answers = log.add(send(token, 1000, b"y"))
    log.add(send(token, 1001, b"z", low=1000))
    assert set(log.applier.sessions["a"].answers) == {1000, 1001}
    assert log.add(send(token, 1000, b"y", low=1000)) == answers
    assert log.seen == [b"x", b"y", b"z"]


def test_the_answers_of_a_session_are_bounded_whatever_it_says() -> None:
    log = Log()
    token = log.open()
    for first in range(0, WINDOW + 2000, 1000):
        log.add(send(token, first, *[b"x"] * 1000))
    assert len(log.applier.sessions["a"].answers) <= WINDOW


def test_who_opens_a_name_shuts_out_who_had_it() -> None:
    log = Log()
    former = log.open()
    latter = log.open()
    assert log.add(send(former, 0, b"old")) == [FENCED]
    assert log.add(send(latter, 0, b"new"))[0].data == b"1"
    assert log.seen == [b"new"]
    log.add(Close("a", former))
    assert "a" in log.applier.sessions
    log.add(Close("a", latter))
    assert log.add(send(latter, 1, b"more")) == [FENCED]


def test_what_a_command_raises_is_its_answer_and_is_repeated_with_it() -> None:
    log = Log()
    token = log.open()
    (answer,) = log.add(send(token, 0, b"fail"))
    assert (answer.error, unpack(answer.data)) == ("ValueError", ["as asked", 7])
    assert log.add(send(token, 0, b"fail")) == [answer]


def test_an_idempotency_key_gives_the_first_answer_from_any_session_for_a_while() -> None:
    log = Log()
    one, other = log.open("a"), log.open("b")
    keyed = {"keys": {0: "order 7"}, "deduplicate_for_ms": 500}
    (first,) = log.add(send(one, 0, b"x", **keyed))
    (again,) = log.add(send(other, 0, b"x", name="b", **keyed), at_ms=1499)
    assert again == first and log.seen == [b"x"]
    (later,) = log.add(send(other, 1, b"x", name="b", **keyed), at_ms=1500)
    assert later.data == b"2", "by then it is forgotten"


def test_keys_that_are_kept_for_different_times_are_forgotten_each_at_its_own() -> None:
    log = Log()
    token = log.open()
    log.add(send(token, 0, b"long", keys={0: "long"}, deduplicate_for_ms=10_000))
    log.add(send(token, 1, b"short", keys={0: "short"}, deduplicate_for_ms=10))
    log.add(send(token, 2, b"x"), at_ms=2000)
    assert set(log.applier.keyed) == {"long"}


def test_time_never_goes_back_within_a_log() -> None:
    log = Log()
    token = log.open()
    log.add(send(token, 0, b"x"), at_ms=9000)
    log.add(send(token, 1, b"y"), at_ms=5)
    assert log.applier.clock_ms == 9000


def test_a_lease_is_its_keepers_until_it_has_run_out() -> None:
    log = Log()
    log.add(Lease("one", 100), at_ms=1000)
    log.add(Lease("two", 100), at_ms=1099)
    assert log.applier.keeper == "one"
    log.add(Lease("one", 100), at_ms=1099)
    log.add(Lease("two", 100), at_ms=1198)
    assert log.applier.keeper == "one"
    log.add(Lease("two", 100), at_ms=1199)
    assert log.applier.keeper == "two"


def test_the_newest_two_snapshots_are_remembered() -> None:
    log = Log()
    for offset in (5, 9, 7, 12):
        log.add(Snapshotted(offset, f"s{offset}", 1))
    assert [each.offset for each in log.applier.snapshots] == [9, 12]


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xff\xff",
        pack("text"),
        pack([2, 1, "of a later version", 3]),
        pack([1, 1, "a", 0, 0, 0, ["not bytes"]]),
        pack([1, 1, "a", 0, 0, -1, [b"x"]]),
        pack([1, 1, "a", 0, 0, 0, [b"x"], [[0]], 5]),
        pack([1, 0, 7, b"nonce"]),
        pack([1, 0, "n" * 1000, b"nonce"]),
        pack([1, 1]),
    ],
)
def test_a_record_of_somebody_else_harms_nobody(value: bytes | None) -> None:
    log = Log()
    token = log.open()
    before = log.applier.digest()
    assert log.add(value) == []
    assert decode(value) is None
    assert log.applier.position == 2
    assert log.add(send(token, 0, b"x"))[0].data == b"1"
    assert before != log.applier.digest()


@given(st.binary(max_size=60))
def test_nothing_that_a_record_may_hold_ends_a_copy(value: bytes) -> None:
    applier = Applier(Tape())
    with suppress(UnknownEntryError):
        applier.apply(0, 0, value)
        assert applier.position == 1


def test_an_entry_of_a_later_release_ends_a_copy_which_would_differ_without_it() -> None:
    log = Log()
    log.open()
    with pytest.raises(UnknownEntryError, match=r"kind 99.*later release"):
        log.add(pack([1, 99, "of an unknown kind"]))
    assert log.applier.position == 1


_ENTRIES = st.one_of(
    st.builds(Open, st.sampled_from("ab"), st.binary(min_size=1, max_size=3)),
    st.builds(Close, st.sampled_from("ab"), st.integers(0, 30)),
    st.builds(
        Commands,
        st.sampled_from("ab"),
        st.integers(0, 30),
        st.integers(0, 8),
        st.integers(0, 8),
        st.lists(st.sampled_from([b"x", b"y", b"fail"]), max_size=3),
        st.dictionaries(st.integers(0, 2), st.sampled_from(["k1", "k2"]), max_size=2),
        st.integers(0, 30),
    ),
    st.builds(Lease, st.sampled_from(["one", "two"]), st.integers(0, 20)),
    st.builds(Snapshotted, st.integers(0, 30), st.sampled_from(["s1", "s2"]), st.integers(0, 3)),
    st.builds(Digest, st.integers(0, 30), st.just(b"d"), st.just("one")),
    st.builds(Join, st.sampled_from("ab"), st.integers(0, 30), st.just("Tape"), st.integers(0, 2)),
    st.builds(Call, st.just("one")),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(_ENTRIES, st.integers(0, 60)), max_size=30), st.data())
def test_a_copy_that_begins_with_a_snapshot_comes_to_the_same_state(
    entries: list[tuple[Entry, int]], data: st.DataObject
) -> None:
    """Restored anywhere, fed the records before the snapshot as well: they are not applied again."""
    records = [(offset, at_ms, encode(entry)) for offset, (entry, at_ms) in enumerate(entries)]
    one = Applier(Tape(), "id")
    cut = data.draw(st.integers(0, len(records)))
    chunker = Chunker()
    for record in records[:cut]:
        one.apply(*record)
    one.snapshot(chunker.write)
    other = Applier(Tape(), "id")
    other.restore(Pieces(chunker.end()).read)
    assert other.digest() == one.digest()
    for record in records[cut:]:
        assert [a.answer for a in one.apply(*record)] == [a.answer for a in other.apply(*record)]
    for record in records[:cut]:
        assert other.apply(*record) == []
    assert other.digest() == one.digest()


def test_a_copy_that_begins_with_a_snapshot_owes_no_other_of_the_same() -> None:
    log, chunker = Log(), Chunker()
    log.add(send(log.open(), 0, b"x", b"y"))
    log.applier.snapshot(chunker.write)
    other = Applier(Tape())
    other.restore(Pieces(chunker.end()).read)
    assert other.snapshot_commands == other.commands == 2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_every_command_is_done_exactly_once_whatever_is_repeated_and_overtaken(seed: int) -> None:
    """A sender with a window that repeats records at random, as one does that never hears of their outcome."""
    dice = random.Random(seed)
    log = Log()
    token = log.open()
    records: list[Commands] = []
    answered: dict[int, bytes] = {}
    number = 0
    for _ in range(30):
        if dice.random() < 0.6:
            commands = [b"%d" % (number + i) for i in range(dice.randint(1, 3))]
            low = min((n for n in range(number) if n not in answered), default=number)
            records.append(Commands("a", token, low, number, commands))
            number += len(commands)
        elif records:
            repeated = dice.choice(records)
            if any(repeated.first + i not in answered for i in range(len(repeated.commands))):
                _deliver(log, repeated, answered)
        if records and dice.random() < 0.7:
            _deliver(log, records[-1], answered)
    for record in records:
        if any(record.first + i not in answered for i in range(len(record.commands))):
            _deliver(log, record, answered)
    assert sorted(log.seen, key=int) == [b"%d" % each for each in range(number)]


def _deliver(log: Log, record: Commands, answered: dict[int, bytes]) -> None:
    for index, answer in enumerate(log.add(record)):
        known = answered.setdefault(record.first + index, answer.data)
        assert known == answer.data or answer == FORGOTTEN


def test_random_numbers_are_the_same_on_every_copy_and_others_for_each_command() -> None:
    drawn = [Context(offset, index, 0, "a", "id").random.random() for offset in (1, 2) for index in (0, 1)]
    assert drawn == [
        Context(offset, index, 0, "b", "id").random.random() for offset in (1, 2) for index in (0, 1)
    ]
    assert len(set(drawn)) == 4
    assert Context(1, 0, 0, "a", "of another topic").random.random() != drawn[0]
