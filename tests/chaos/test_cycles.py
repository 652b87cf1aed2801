"""Each kind of cycle among transactions is found, and none where there is none."""

from __future__ import annotations

import pytest

from .cycles import Done, Logs, against_time, mixed_cycle, read_cycle, write_cycle


def done(name: str, *reads: str, began: float = 0.0, ended: float = float("inf")) -> Done:
    return Done(name, frozenset(reads), began, ended)


def logs(*partitions: str) -> Logs:
    """A letter for each record: its transaction."""
    return {number: list(enumerate(names)) for number, names in enumerate(partitions)}


def turns(*cycles: list[str]) -> set[tuple[str, ...]]:
    """Cycles, whatever they start with."""
    found = set()
    for cycle in cycles:
        assert cycle[0] == cycle[-1], cycle
        start = cycle.index(min(cycle))
        found.add((*cycle[start:-1], *cycle[:start]))
    return found


ORDERED = logs("aab", "abc")
IN_TURN = [done("a", ended=1), done("b", "a", began=2, ended=3), done("c", "a", "b", began=4, ended=5)]


def test_one_after_the_other_is_no_cycle() -> None:
    assert write_cycle(ORDERED) == read_cycle(IN_TURN) == mixed_cycle(IN_TURN, ORDERED) == []
    assert against_time(IN_TURN, ORDERED) == []


def test_writes_in_opposite_orders() -> None:
    """G0. Both were open at once, so that it may be."""
    mixed = logs("ab", "bca")
    assert turns(write_cycle(mixed)) <= {("a", "b"), ("a", "b", "c")}
    assert write_cycle(mixed)
    assert against_time([done("a", ended=1), done("b", ended=1), done("c", ended=1)], mixed) == []


def test_reads_of_each_other() -> None:
    """G1c, also over a third one."""
    three = [done("a", "c"), done("b", "a"), done("c", "b")]
    assert turns(read_cycle(three)) == {("a", "b", "c")}
    assert read_cycle(three[:2]) == []
    # Each was committed before its records were read: there is no order in time, either.
    assert against_time(three, logs("abc"))


def test_a_read_of_its_own() -> None:
    assert read_cycle([done("a", "a")]) == mixed_cycle([done("a", "a")], logs("a")) == []
    assert against_time([done("a", "a")], logs("a")) == []


def test_a_read_of_what_was_written_behind() -> None:
    """G1c in the wide sense: `a` wrote before `b`, and read what `b` wrote elsewhere. It may be."""
    both = [done("a", "b", ended=5), done("b", ended=3)]
    assert turns(mixed_cycle(both, logs("ab", "b"))) == {("a", "b")}
    assert read_cycle(both) == against_time(both, logs("ab", "b")) == []


@pytest.mark.parametrize(
    ("what", "records"),
    [
        ([done("a", ended=1), done("b", began=2)], logs("ba")),
        ([done("a", ended=1), done("b", began=2)], logs("bca", "a")),
        ([done("a", "b", ended=1), done("b", began=2)], logs("a", "b")),
        ([done("a", ended=1), done("c", "b", ended=3), done("b", "a", began=4)], logs("b")),
    ],
)
def test_an_order_against_time(what: list[Done], records: Logs) -> None:
    """`b` began after `a` had ended; the logs, or what was read, have it the other way round."""
    cycle = against_time([*what, *([done("c")] if len(what) == 2 else [])], records)
    assert cycle and cycle[0] == cycle[-1]


def test_ends_that_nobody_was_told_of_order_nothing() -> None:
    assert against_time([done("a"), done("b", began=2)], logs("ba")) == []


def test_what_began_at_the_moment_of_an_end_may_have_begun_before() -> None:
    assert against_time([done("a", ended=2), done("b", began=2)], logs("ba")) == []


def test_a_long_history_is_judged() -> None:
    many = [done(f"t{n}", f"t{n - 1}", began=2 * n, ended=2 * n + 1) for n in range(5_000)]
    records = {at: [(2 * n + copy, f"t{n}") for n in range(5_000) for copy in (0, 1)] for at in range(4)}
    assert against_time(many, records) == mixed_cycle(many, records) == []
    records[3][-1] = (9_999, "t0")
    assert against_time(many, records) and write_cycle(records)
