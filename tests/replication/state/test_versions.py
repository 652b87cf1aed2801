"""Versions of a state machine's code, by the log alone: old and new copies side by side, and the raise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.replication.state import (
    Context,
    MigrationError,
    ObjectMachine,
    ReplicatedObject,
    StateMachine,
    StateVersionError,
    WrongStateClassError,
    command,
    query,
)
from insync.replication.state import asyncio as for_asyncio
from insync.replication.state import blocking as for_threads
from insync.replication.state import handle as for_trio
from insync.replication.state._applying import FENCED, Applier, differ
from insync.replication.state._entries import Call, Close, Commands, Entry, Join, Lease, Open, Raise, encode
from insync.replication.state._packing import pack, unpack
from insync.replication.state._snapshots import Chunker, Pieces
from insync.replication.state.objects import TAKEN
from tests.replication.state.shops import SHOPS, BrokenShop, ShopV1, ShopV2, ShopV3, Sum, SumAndCount

OLD_SNAPSHOT = bytes.fromhex(
    "0000000998030101a000900101000000119196a16100c401610001919300c40103a00000000d9194"
    "cd03e9a36b6579c40103a00000000d9193a46c656674a46469637401000000079192a3706f7403"
)
"""By a release without versions: 3 pots stocked under the key "key", by session "a"."""
OLD_DIGEST = "1e6bb1c4bd7f4ffaf636a4b4138070f9"


class Log:
    """The records of a topic."""

    def __init__(self) -> None:
        self.records: list[bytes] = []

    def add(self, entry: Entry) -> int:
        self.records.append(encode(entry))
        return len(self.records) - 1

    def open(self, name: str, version: int | None = None, state: str = "Shop") -> int:
        token = self.add(Open(name, name.encode()))
        if version is not None:
            self.add(Join(name, token, state, version))
        return token

    def do(self, token: int, number: int, name: str, method: str, *args: Any, **keys: Any) -> int:
        return self.add(Commands(name, token, 0, number, [pack([method, args, {}])], **keys))

    def read(self, applier: Applier) -> list[Any]:
        """Have a copy apply what it has not; the answers."""
        return [
            each.answer
            for offset in range(applier.position, len(self.records))
            for each in applier.apply(offset, offset, self.records[offset])
        ]


def copy(cls: type) -> Applier:
    made = cls()
    return Applier(made if isinstance(made, StateMachine) else ObjectMachine(made), "id")


def shop(applier: Applier) -> dict[str, Any]:
    machine = applier.machine
    assert isinstance(machine, ObjectMachine)
    return machine.value.get_state()


def restored(applier: Applier, cls: type) -> Applier:
    chunker = Chunker()
    applier.snapshot(chunker.write)
    other = copy(cls)
    other.restore(Pieces(chunker.end()).read)
    return other


# The class


def test_a_class_lacks_no_migration_and_has_none_that_never_runs() -> None:
    with pytest.raises(TypeError, match="migrate_2_to_3"):

        class Lacks(ShopV2):
            state_version = 3

    with pytest.raises(TypeError, match="never run"):

        class Unused(ReplicatedObject):
            def migrate_1_to_2(self) -> None: ...

    with pytest.raises(TypeError, match="migrate_1_to_2"):

        class Machine(Sum):
            state_version = 2

    with pytest.raises(TypeError, match="async"):

        class Async(Sum):
            state_version = 2

            async def migrate_1_to_2(self) -> None: ...

    for wrong in (0, True, "2", 1 << 20):
        with pytest.raises(TypeError, match="state_version"):
            type("Wrong", (Sum,), {"state_version": wrong})
    for name in (7, "n" * 101):
        with pytest.raises(TypeError, match="state_name"):
            type("Wrong", (Sum,), {"state_name": name})
    assert ShopV3.state_version == 3


def test_a_command_is_of_a_version_that_the_class_has() -> None:
    for since in (2, 0, "1"):
        with pytest.raises(TypeError, match=r"Early\.note has since"):

            class Early(ReplicatedObject):
                @command(since=since)  # type: ignore[arg-type]
                def note(self) -> None: ...


@pytest.mark.parametrize("name", ["submit", "name", "command", "close", "state_version", "_hidden"])
@pytest.mark.parametrize("kind", [command, query])
def test_a_name_that_handles_have_for_themselves_is_refused_with_the_list_of_these(
    name: str, kind: Any
) -> None:
    def method(self: Any) -> None: ...

    with pytest.raises(TypeError, match=rf"Clash\.{name}: .*applied, changes, .*wait_until"):
        type("Clash", (ReplicatedObject,), {name: kind(method)})


def test_the_list_has_every_name_of_every_handle() -> None:
    made = for_trio.replicate(ShopV1, "mem://network/nowhere", "shop")
    found = {*vars(made), *dir(type(made)), *dir(for_asyncio.Replicated), *dir(for_threads.Replicated)}
    assert {each for each in found if not each.startswith("_")} - {"stock", "count"} == TAKEN


# The raise


def test_a_copy_of_newer_code_applies_as_the_topic_says_until_the_raise() -> None:
    log, old, new = Log(), copy(ShopV1), copy(ShopV2)
    one, two = log.open("one", 1), log.open("two", 2)
    log.do(one, 0, "one", "stock", "pot", -1)
    log.do(two, 0, "two", "note", "too early")
    told = log.read(old)
    assert log.read(new) == told and told[1].error == "CommandError"
    assert old.digest() == new.digest() and shop(new) == {"left": {"pot": -1}}
    assert set(new.behind(2)) == {"one"} and new.behind(1) == {}
    log.add(Close("one", one))
    log.add(Raise("Shop", 2, len(log.records)))
    log.do(two, 1, "two", "stock", "pot", -1)
    log.do(two, 2, "two", "note", "now")
    refused, noted = log.read(new)
    assert refused.error == "ValueError" and unpack(noted.data) == 2
    assert shop(new) == {"left": {"pot": -1}, "notes": ["raised with -1", "now"]} and new.version == 2
    with pytest.raises(
        StateVersionError, match=r"version 2 of 'Shop'.*version 1.*state_version = 2"
    ) as found:
        log.read(old)
    assert (found.value.topic_version, found.value.code_version) == (2, 1)
    assert shop(old) == {"left": {"pot": -1}}, "it has applied nothing of version 2"
    with pytest.raises(StateVersionError):
        log.read(old)  # nor does it pass the record when it is asked again
    with pytest.raises(StateVersionError):
        restored(new, ShopV1)


def test_steps_run_one_after_the_other_and_each_knows_where_it_leads() -> None:
    log, new = Log(), copy(ShopV3)
    token = log.open("a", 3)
    log.add(Raise("Shop", 3, len(log.records)))
    log.do(token, 0, "a", "note", "x")
    log.read(new)
    assert shop(new) == {"left": {}, "noted": {"raised with 0": 3, "x": 1}} and new.version == 3
    again = restored(new, ShopV3)
    assert again.digest() == new.digest() and (again.version, again.state_name) == (3, "Shop")


def test_a_snapshot_keeps_the_versions_of_copies_and_the_roll_call() -> None:
    log, one = Log(), copy(ShopV2)
    log.open("a", 1)
    log.open("b", 2)
    called = log.add(Call("b"))
    log.open("c", 2)
    log.read(one)
    again = restored(one, ShopV2)
    assert again.sessions == one.sessions and again.called == one.called == called
    assert {name: each.version for name, each in again.sessions.items()} == {"a": 1, "b": 2, "c": 2}
    assert [name for name, each in again.sessions.items() if each.joined > called] == ["c"]


def test_the_time_of_a_raise_is_not_after_that_of_the_next_command() -> None:
    log, one = Log(), copy(ShopV2)
    token = log.open("a", 2)
    log.read(one)
    one.apply(2, 5000, encode(Raise("Shop", 2, 2)))
    (applied,) = one.apply(3, 7, encode(Commands("a", token, 0, 0, [pack(["stock", ["pot", 1], {}])])))
    assert applied.context.timestamp_ms == 5000 and applied.context.version == 2


def test_a_raise_changes_nothing_where_a_copy_has_come_that_its_writer_did_not_see() -> None:
    log, new = Log(), copy(ShopV2)
    log.open("a", 2)
    seen = len(log.records)
    late = log.open("late", 1)
    log.add(Raise("Shop", 2, seen))
    log.add(Raise("Shop", 2, late))
    log.read(new)
    assert new.version == 1
    log.add(Raise("Shop", 2, late + 1))
    log.add(Raise("Shop", 2, late + 1))
    log.read(new)
    assert new.version == 2 and shop(new)["notes"] == ["raised with 0"], "once"


def test_a_migration_that_fails_ends_the_copy_before_the_raise() -> None:
    log, broken = Log(), copy(BrokenShop)
    log.open("a", 2)
    log.add(Raise("Shop", 2, 2))
    with pytest.raises(MigrationError, match=r"migrate_1_to_2 of Shop raised KeyError\('no such field'\)"):
        log.read(broken)
    assert broken.position == 2 and broken.version == 1


def test_a_state_machine_has_versions_like_an_object() -> None:
    log, old, new = Log(), copy(Sum), copy(SumAndCount)
    token = log.open("a", 2, "Sum")
    log.add(Commands("a", token, 0, 0, [pack(5)]))
    log.read(old)
    log.read(new)
    assert old.digest() == new.digest()
    log.add(Raise("Sum", 2, len(log.records)))
    log.add(Commands("a", token, 0, 1, [pack(6)]))
    log.read(new)
    assert isinstance(new.machine, Sum) and new.machine.state == [11, 1]
    with pytest.raises(StateVersionError):
        log.read(old)


# The class of a topic


def test_a_machine_of_another_class_is_refused_with_both_names() -> None:
    log, wrong = Log(), copy(Sum)
    log.open("a", 1)
    with pytest.raises(
        WrongStateClassError, match=r"class 'Shop'.*class 'Sum'.*state_name = 'Shop'"
    ) as found:
        log.read(wrong)
    assert (found.value.topic_class, found.value.code_class) == ("Shop", "Sum")
    right = copy(ShopV1)
    log.read(right)
    with pytest.raises(WrongStateClassError):
        restored(right, Sum)
    # What the wrong one has written already harms nobody.
    token = log.open("wrong", 1, "Sum")
    log.add(Raise("Sum", 2, len(log.records)))
    log.read(right)
    assert right.state_name == "Shop" and right.version == 1
    assert right.sessions["wrong"].version == 0 and right.sessions["wrong"].token == token


def test_a_class_is_named_by_a_session_that_is_there() -> None:
    log, one = Log(), copy(Sum)
    token = log.open("a")
    log.open("a")
    log.add(Join("a", token, "Shop", 1))
    log.read(one)
    assert one.state_name == ""


# Releases without versions


def test_a_snapshot_and_a_log_without_versions_count_as_version_1() -> None:
    old = copy(ShopV2)
    old.restore(Pieces([OLD_SNAPSHOT]).read)
    assert (old.state_name, old.version, old.called) == ("", 1, -1)
    assert old.sessions["a"].version == 0 and set(old.behind(1)) == {"a"}
    assert shop(old) == {"left": {"pot": 3}} and not old.conflicts("key", b"another command")
    log = Log()
    log.records = [b""] * old.position
    log.do(0, 1, "a", "stock", "pot", 4)
    assert [unpack(each.data) for each in log.read(old)] == [7]


def test_the_digest_of_version_1_is_that_of_releases_without_versions_whatever_was_told() -> None:
    """So copies of both compare theirs, and of one topic's copies those may have read what others lost."""
    log, told, silent = Log(), copy(ShopV1), copy(ShopV1)
    token = log.open("a")
    log.do(token, 0, "a", "stock", "pot", 3, keys={0: "key"}, deduplicate_for_ms=1000)
    log.read(told)
    told.apply(2, 2, encode(Join("a", token, "Shop", 1)))
    log.read(silent)
    silent.apply(2, 2, b"")
    assert told.digest() == silent.digest() and len(told.digest()) == 16
    expected = Applier(ObjectMachine(ShopV1()), "id")
    expected.restore(Pieces([OLD_SNAPSHOT]).read)
    assert expected.digest().hex() == OLD_DIGEST


def test_digests_of_different_versions_are_not_compared() -> None:
    log, one = Log(), copy(ShopV2)
    log.open("a", 2)
    log.read(one)
    before = one.digest()
    log.add(Raise("Shop", 2, 2))
    log.read(one)
    after = one.digest()
    assert unpack(after[16:]) == ["Shop", 2]
    assert before != after and not differ(before, after)
    assert differ(after, b"x" * 16 + after[16:]) and differ(before, b"x" * 16) and not differ(after, after)


# Idempotency keys


def test_another_command_under_a_known_key_is_told_from_the_same_one() -> None:
    log, one = Log(), copy(ShopV1)
    token = log.open("a", 1)
    log.do(token, 0, "a", "stock", "pot", 3, keys={0: "key"}, deduplicate_for_ms=5)
    log.read(one)
    same, other = pack(["stock", ["pot", 3], {}]), pack(["stock", ["pot", 4], {}])
    for each in (one, restored(one, ShopV1)):
        assert not each.conflicts("key", same) and each.conflicts("key", other)
        assert not each.conflicts("another key", other)
    for _ in range(10):
        log.add(Lease("a", 1))
    log.do(token, 1, "a", "stock", "pot", 4)
    log.read(one)
    assert not one.conflicts("key", other), "it is forgotten with the key"


# Any order of all of it


class World:
    """Copies come and go with code of versions 1 to 3, and a model of one copy answers as they must."""

    def __init__(self) -> None:
        self.log = Log()
        self.alive: dict[str, tuple[Applier, int, int]] = {}
        """By name: the copy, its token, and the number of its next command."""
        self.state: dict[str, Any] = {"left": {}}
        self.version = 1
        self.lost: list[str] = []
        self.count = 0

    def open(self, version: int, other: str | None) -> None:
        """A new process with this code, which begins with another one's snapshot if there is one."""
        self.count += 1
        name, cls = f"c{self.count}", SHOPS[version]
        try:
            applier = restored(self.alive[other][0], cls) if other is not None else copy(cls)
            self.log.read(applier)
        except StateVersionError as error:
            assert version < self.version and error.topic_version > version
            return
        assert version >= self.version
        token = self.log.open(name, version)
        self.alive[name] = applier, token, 0

    def do(self, name: str, method: str, arg: Any) -> None:
        applier, token, number = self.alive[name]
        if method == "note" and applier.version < 2:
            return  # its handle refuses it
        args = ("pot", arg) if method == "stock" else (str(arg),)
        self.log.do(token, number, name, method, *args)
        self.alive[name] = applier, token, number + 1
        (answer,) = self.read()
        if applier.sessions.get(name) is None:
            # Closed for a raise that came to nothing, because another copy opened meanwhile.
            assert answer is FENCED
            del self.alive[name]
            return
        assert (answer.error, unpack(answer.data)) == self.expected(method, arg)

    def expected(self, method: str, arg: Any) -> tuple[str, Any]:
        left, version = self.state["left"], self.version
        if method == "stock":
            if version >= 2 and arg <= 0:
                return "ValueError", [f"{arg} cannot be stocked"]
            left["pot"] = left.get("pot", 0) + arg
            return "", left["pot"]
        if version >= 3:
            self.state["noted"][str(arg)] = len(self.state["noted"])
            return "", len(self.state["noted"])
        self.state["notes"].append(str(arg))
        return "", len(self.state["notes"])

    def raises(self, name: str, late: int | None, force: bool) -> None:
        """A copy judges as `Raiser` does; `late`: another one opens before the record is written."""
        applier, _, _ = self.alive[name]
        self.read()
        state, version = applier.code
        behind = applier.behind(version)
        if version <= applier.version or (behind and not force):
            return
        seen = applier.position
        for each, session in behind.items():
            self.log.add(Close(each, session.token))
        if late is not None:
            self.open(late, name)
        self.log.add(Raise(state, version, seen))
        if late is None or late < self.version:
            self.migrate(version)
        self.read()

    def migrate(self, version: int) -> None:
        if self.version < 2 <= version:
            self.state["notes"] = [f"raised with {sum(self.state['left'].values())}"]
        if self.version < 3 <= version:
            self.state["noted"] = dict.fromkeys(self.state.pop("notes"), 3)
        self.version = version

    def read(self) -> list[Any]:
        """All copies apply the log; their common answers."""
        answers: list[Any] | None = None
        for name, (applier, _, _) in list(self.alive.items()):
            try:
                mine = self.log.read(applier)
            except StateVersionError:
                assert applier.code[1] < self.version
                del self.alive[name]
                continue
            assert applier.code[1] >= self.version == applier.version
            assert answers is None or mine == answers
            answers = mine
        return answers or []

    def check(self) -> None:
        self.read()
        fresh = copy(SHOPS[3])
        self.log.read(fresh)
        assert shop(fresh) == self.state and fresh.version == self.version
        assert {fresh.digest(), *(each.digest() for each, _, _ in self.alive.values())} == {fresh.digest()}


_VERSION = st.integers(1, 3)
_STEPS = st.one_of(
    st.tuples(st.just("open"), _VERSION, st.booleans()),
    st.tuples(st.just("stop"), st.booleans()),
    st.tuples(st.just("do"), st.sampled_from(["stock", "note"]), st.integers(-2, 5)),
    st.tuples(st.just("raise"), st.none() | _VERSION, st.booleans()),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(_STEPS, max_size=25), st.randoms(use_true_random=False))
def test_copies_are_equal_and_answer_as_one_through_deploys_and_rollbacks(
    steps: list[Any], dice: Any
) -> None:
    world = World()
    for what, *args in steps:
        names = sorted(world.alive)
        name = dice.choice(names) if names else None
        if what == "open":
            world.read()
            world.open(args[0], name if args[1] and name in world.alive else None)
        elif name is None:
            continue
        elif what == "stop":
            _, token, _ = world.alive.pop(name)
            if args[0]:
                world.log.add(Close(name, token))  # else it was killed
        elif what == "do":
            world.read()
            if name in world.alive:
                world.do(name, *args)
        else:
            world.raises(name, *args)
    world.check()


def test_context_tells_the_version() -> None:
    assert Context(0, 0, 0, "a").version == 1
