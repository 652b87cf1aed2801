"""The check of histories of transactions notices each way in which one can be wrong, and nothing in a right one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .transaction_history import (
    Fenced,
    Opened,
    Output,
    Polled,
    Transaction,
    TransactionHistory,
    judge_transactions,
)


def value(number: int, copy: int, name: str) -> bytes:
    return Output(0, number, copy, name).encode()


def right() -> TransactionHistory:
    """Two inputs of partition 0: `a.1` is aborted, `a.2` has the first, `b.1` the second; nobody heard of `b.1`."""
    both = frozenset({(0, 0)}), frozenset({(0, 1)})
    history = TransactionHistory(
        transactions={
            "a.1": Transaction(sent=both[0], asked=True, outcome="aborted"),
            "a.2": Transaction(sent=both[0], asked=True, outcome="committed"),
            "b.1": Transaction(sent=both[1], asked=True),
            "b.2": Transaction(),
        },
        opened=[Opened("a", "w1", 1.0, 2.0), Opened("a", "w3", 5.0, 6.0)],
        fenced=[Fenced("a", "w1", 2.0, 7.0)],
        ends={("made", 0): (6, 6), ("made", 1): (4, 4)},
        offsets=[{}, {0: 1}, {0: 1}, {0: 2}],
    )
    history.final = [
        Polled(0, 2, value(0, 0, "a.2")),
        Polled(1, 0, value(0, 1, "a.2")),
        Polled(0, 4, value(1, 0, "b.1")),
        Polled(1, 2, value(1, 1, "b.1")),
    ]
    history.live = list(history.final)
    history.everything = [Polled(0, 0, value(0, 0, "a.1")), *history.final]
    return history


def broken(history: TransactionHistory, inputs: int = 2) -> dict[str, list[str]]:
    return judge_transactions(history, {0: inputs}).violations


def test_a_right_history_passes() -> None:
    verdict = judge_transactions(right(), {0: 2})
    assert (verdict.violations, verdict.outputs) == ({}, 4)


def test_an_input_without_an_output_is_lost() -> None:
    assert broken(right(), 3) == {"lost": ["input 0:2 has no output, copies [0, 1]"]}


def test_one_that_is_there_twice() -> None:
    history = right()
    history.transactions["b.2"] = Transaction(sent=frozenset({(0, 0)}), asked=True)
    history.final += [Polled(0, 5, value(0, 0, "b.2")), Polled(1, 3, value(0, 1, "b.2"))]
    told = broken(history)
    assert list(told) == ["duplicate"]
    assert told["duplicate"][0] == "copy 0 of input 0:0 is there 2 times, by ['a.2', 'b.2']"


def test_an_output_of_nothing() -> None:
    assert list(broken(right(), 1)) == ["made up"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"outcome": "aborted"}, "a.2 was read, and its worker was told that it is aborted"),
        ({"asked": False, "outcome": ""}, "a.2 was read, and nobody had asked to commit it"),
    ],
)
def test_a_record_of_an_aborted_transaction_is_read(change: dict[str, object], said: str) -> None:
    history = right()
    for name, value_of_it in change.items():
        setattr(history.transactions["a.2"], name, value_of_it)
    assert broken(history) == {"aborted read": [said]}


def test_an_aborted_record_that_only_the_live_reader_got() -> None:
    history = right()
    history.live.insert(0, Polled(0, 0, value(0, 0, "a.1")))
    assert list(broken(history)) == ["aborted read", "skipped by polls"]


def test_an_aborted_record_that_a_worker_read() -> None:
    history = right()
    history.transactions["b.1"].reads = {"a.2": 3.0, "a.1": 3.0}
    assert broken(history) == {"aborted read": ["a.1 was read, and its worker was told that it is aborted"]}


@pytest.mark.parametrize("reader", ["live", "worker"])
def test_a_record_that_is_read_before_its_transaction_is_complete(reader: str) -> None:
    history = right()
    history.transactions["a.2"].asked_at = 3.0
    for at, told in (
        (3.5, {}),
        (2.5, {"early read": ["a.2 was read 0.500 s before its worker asked to commit it"]}),
    ):
        if reader == "live":
            history.live[0] = Polled(0, 2, value(0, 0, "a.2"), at)
        else:
            history.transactions["b.1"].reads = {"a.2": at}
        assert broken(history) == told


def test_transactions_that_read_of_each_other() -> None:
    history = right()
    history.transactions["a.2"].reads = {"b.1": 3.0}
    assert broken(history) == {}
    history.transactions["b.1"].reads = {"a.2": 3.0}
    told = broken(history)
    assert list(told) == ["G1c", "against time"]
    assert told["G1c"][0] in ("a.2 -> b.1 -> a.2", "b.1 -> a.2 -> b.1")


def test_offsets_in_an_order_against_time() -> None:
    """`b.1` had ended when `a.2` began, and lies behind it."""
    history = right()
    history.transactions["b.1"].outcome, history.transactions["b.1"].ended = "committed", 3.0
    history.transactions["a.2"].began = 3.5
    assert list(broken(history)) == ["against time"]


def test_writes_that_mix_are_told_and_break_nothing() -> None:
    history = right()
    assert judge_transactions(history, {0: 2}).mixed == {}
    # The second copies of both change places.
    for records in (history.final, history.live):
        records[1], records[3] = Polled(1, 0, value(1, 1, "b.1")), Polled(1, 2, value(0, 1, "a.2"))
    history.everything = [Polled(0, 0, value(0, 0, "a.1")), *history.final]
    verdict = judge_transactions(history, {0: 2})
    assert verdict.violations == {} and set(verdict.mixed) == {"G0", "G1c with ww"}


def test_a_commit_that_is_torn() -> None:
    history = right()
    del history.final[1], history.live[1]
    told = broken(history)
    assert told["torn commit"] == ["a.2 was read in part: 1 of 2 missing, 0 too many"]
    assert told["lost"] == ["input 0:0 has no output, copies [1]"]


def test_a_commit_that_is_lost() -> None:
    history = right()
    history.final = history.live = history.final[2:]
    told = broken(history)
    assert told["lost commit"] == ["a.2 is committed, as its worker was told, and nothing of it is there"]


@pytest.mark.parametrize("offset", [1, 2])
def test_polls_that_go_back(offset: int) -> None:
    history = right()
    history.live.append(Polled(1, offset, value(1, 1, "b.1")))
    told = broken(history)
    assert told["non-monotonic poll"] == [f"the live reader got 1 at {offset} after 2"]


def test_polls_that_skip() -> None:
    history = right()
    del history.live[0]
    assert broken(history) == {
        "skipped by polls": ["the live reader was never given 0 at 2 (1 records)"],
    }


def test_what_was_read_and_is_gone() -> None:
    history = right()
    history.transactions["c.1"] = Transaction(asked=True)
    history.live.insert(0, Polled(0, 1, value(0, 0, "c.1")))
    assert broken(history) == {"skipped by polls": ["0 at 1 was read and is not there any more (1 records)"]}


def test_an_offset_with_two_values() -> None:
    history = right()
    history.everything.append(Polled(0, 2, value(0, 0, "a.1")))
    assert list(broken(history)) == ["offset with two values"]


def test_a_transaction_that_never_ends() -> None:
    history = right()
    history.ends["made", 1] = (3, 4)
    assert broken(history) == {"last stable offset": ["made-1 stays at 3, and the high watermark is 4"]}


@pytest.mark.parametrize("others", [[], [Opened("a", "w3", 8.0, 9.0)], [Opened("b", "w3", 5.0, 6.0)]])
def test_a_producer_that_nobody_has_fenced(others: list[Opened]) -> None:
    history = right()
    history.opened = [history.opened[0], *others]
    assert broken(history) == {
        "fenced by nobody": ["w1 was told that another has a, and nobody had opened it"]
    }


def test_offsets_of_a_group_that_go_back() -> None:
    history = right()
    history.offsets.append({0: 1})
    assert broken(history) == {"offsets go back": ["the group had committed 0 up to 2, and later 1"]}


def test_a_workers_file(tmp_path: Path) -> None:
    file = tmp_path / "log"
    lines: list[dict[str, object]] = [
        {"what": "opening", "id": "a", "since": 1.0, "at": 1.0},
        {"what": "opened", "id": "a", "since": 1.0, "at": 2.0},
        {"what": "begun", "transaction": "w1.1", "at": 2.5},
        {"what": "read", "transaction": "w1.1", "at": 2.7, "of": ["w2.1"]},
        {"what": "asked", "transaction": "w1.1", "at": 3.0, "inputs": {"0": [3, 4], "1": [7]}},
        {"what": "committed", "transaction": "w1.1", "at": 3.5},
        {"what": "begun", "transaction": "w1.2", "at": 4.0},
        {"what": "error", "said": "DeliberateError: ", "at": 4.5},
        {"what": "aborted", "transaction": "w1.2", "at": 4.5},
        {"what": "opening", "id": "a", "since": 4.8, "at": 4.8},
        {"what": "fenced", "id": "a", "opened": 2.0, "at": 5.0},
    ]
    file.write_text("\n".join([json.dumps(each) for each in lines]) + '\n{"what": "as')
    history = TransactionHistory()
    history.read("w1", file)
    sent = frozenset({(0, 3), (0, 4), (1, 7)})
    assert history.transactions == {
        "w1.1": Transaction(sent, True, "committed", reads={"w2.1": 2.7}, began=2.5, asked_at=3.0, ended=3.5),
        "w1.2": Transaction(outcome="aborted", began=4.0, ended=4.5),
    }
    assert history.opened == [Opened("a", "w1", 1.0, 2.0), Opened("a", "w1", 4.8, float("inf"))]
    assert history.fenced == [Fenced("a", "w1", 2.0, 5.0)]
    assert history.errors == {"DeliberateError": 1}
