"""Who is elected when nobody certainly has everything: by example, and against a slow second version."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st
from msgspec import structs

from insync.replication.core.control import elections
from insync.replication.core.control.elections import (
    AskLogs,
    Elect,
    LogInfo,
    Situation,
    Verdict,
    Wait,
    decide,
)
from insync.replication.core.control.records import PartitionRecord
from insync.replication.core.types import NO_EPOCH, EpochEntry

DARK = PartitionRecord(
    topic="t", partition=0, topic_id="x", replicas=(3, 1, 2), isr=(), leader_epoch=7, min_insync_replicas=2
)


def info(last_epoch: int, end: int) -> LogInfo:
    return LogInfo(incarnation=1, leader_epoch=7, last_epoch=last_epoch, log_end_offset=end)


def situation(
    live: tuple[int, ...],
    logs: dict[int, tuple[int, int]] | None = None,
    *,
    known: tuple[int, ...] = (),
    asked: bool = False,
    rounds: int = 0,
) -> Situation:
    told = {node: info(*log) for node, log in (logs or {}).items()}
    record = structs.replace(DARK, last_known_elr=known)
    return Situation(record=record, live=dict.fromkeys(live, 1), logs=told, asked=asked, rounds=rounds)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("wait", Wait()), ("any", Elect(1)), ("most_complete", AskLogs((1, 2)))],
)
def test_the_policies_when_nothing_is_known_yet(policy: str, expected: Verdict) -> None:
    assert elections.POLICIES[policy](situation((1, 2, 9))) == expected


@pytest.mark.parametrize("policy", elections.POLICIES)
def test_without_a_living_replica_all_wait(policy: str) -> None:
    assert decide(situation((8, 9), known=(1, 2), asked=True), elections.POLICIES[policy]) == Wait()


def test_a_later_epoch_counts_for_more_than_a_longer_log() -> None:
    logs = {1: (4, 100), 2: (5, 60), 3: (5, 59)}
    assert elections.most_complete(situation((1, 2, 3), logs)) == Elect(2)


def test_the_most_complete_waits_for_all_living_until_the_round_is_over() -> None:
    logs = {2: (5, 60)}
    assert elections.most_complete(situation((1, 2), logs)) == AskLogs((1, 2))
    assert elections.most_complete(situation((1, 2), logs, asked=True)) == Elect(2)
    assert elections.most_complete(situation((1, 2), asked=True)) == AskLogs((1, 2))


def test_the_last_known_eligible_ones_are_compared_when_all_of_them_are_back() -> None:
    logs = {1: (5, 60), 2: (5, 61)}
    assert decide(situation((1, 3), known=(1, 2)), elections.wait) == Wait()
    assert decide(situation((1, 2), known=(1, 2)), elections.most_complete) == AskLogs((1, 2))
    assert decide(situation((1, 2), logs, known=(1, 2)), elections.most_complete) == Elect(2)


def test_a_replica_that_is_not_alive_yet_is_waited_for_some_rounds_unless_the_policy_gives_up_records() -> (
    None
):
    """After a loss of all power it may come a moment later, and have the records that the others have lost."""
    logs = {1: (5, 60), 2: (5, 61)}
    for rounds in range(elections.ROUNDS_FOR_ABSENT):
        dark = situation((1, 2), logs, known=(1, 2), asked=rounds > 0, rounds=rounds)
        assert decide(dark, elections.wait) == AskLogs((3, 1, 2))
        assert decide(dark, elections.any_) == Elect(2)
    assert decide(structs.replace(dark, rounds=rounds + 1), elections.wait) == Elect(2)
    silent = situation((1, 2), {2: (5, 61)}, known=(1, 2), asked=True, rounds=rounds + 1)
    assert decide(silent, elections.wait) == AskLogs((3, 1, 2))
    back = situation((1, 2, 3), {**logs, 3: (5, 62)}, known=(1, 2))
    assert decide(back, elections.wait) == Elect(3)


def test_when_they_are_back_every_living_replica_is_asked_and_the_most_complete_leads() -> None:
    """One that came back first has left an ISR that was still large enough: no list names it."""
    logs = {1: (5, 60), 2: (5, 61)}
    assert decide(situation((1, 2, 3), logs, known=(1, 2)), elections.wait) == AskLogs((3, 1, 2))
    assert decide(situation((1, 2, 3), {**logs, 3: (9, 99)}, known=(1, 2)), elections.wait) == Elect(3)
    assert decide(situation((2,), known=(2,)), elections.wait) == AskLogs((3, 1, 2))
    back = situation((2, 3), {2: (5, 9), 3: (5, 10)}, known=(2,), rounds=elections.ROUNDS_FOR_ABSENT)
    assert decide(back, elections.wait) == Elect(3)


def shaped(end: int, *epochs: tuple[int, int], start: int = 0) -> LogInfo:
    """A log of these epochs, each with its first offset."""
    last = epochs[-1][0] if epochs else NO_EPOCH
    entries = tuple(EpochEntry(*each) for each in epochs)
    return structs.replace(info(last, end), log_start_offset=start, epochs=entries)


@pytest.mark.parametrize(
    ("unlisted", "elected"),
    [
        (
            shaped(9, (0, 0), (5, 6)),
            2,
        ),  # of a leader of epoch 5 whom nobody followed: 6 and 7 are another's there
        (shaped(9, (5, 0)), 2),
        (shaped(9, (0, 0), (5, 8)), 3),
        (shaped(9, (0, 0)), 3),
        (shaped(8, (0, 0)), 3),  # the first of equals
        (shaped(9, (5, 8), start=8), 3),  # nothing is deleted that was not committed
        (shaped(8, (5, 7), start=7), 2),
        (info(5, 9), 3),  # a node of an earlier release
    ],
)
def test_a_log_that_no_list_names_leads_only_if_it_goes_on_where_theirs_ends(
    unlisted: LogInfo, elected: int
) -> None:
    dark = situation((1, 2, 3), known=(1, 2))
    dark = structs.replace(dark, logs={1: shaped(7, (0, 0)), 2: shaped(8, (0, 0)), 3: unlisted})
    assert decide(dark, elections.wait) == Elect(elected)
    assert elections.most_complete(dark) == Elect(elected)


def test_of_empty_logs_the_one_that_begins_later_is_extended_by_none_that_ends_before() -> None:
    assert shaped(9, (3, 0)).extends(shaped(9, start=9)) and shaped(9, start=9).extends(shaped(9, (3, 0)))
    assert not shaped(8, (3, 0)).extends(shaped(9, start=9))


@hypothesis.settings(deadline=None)
@hypothesis.given(st.data())
def test_a_log_extends_another_if_that_is_a_beginning_of_it(data: st.DataObject) -> None:
    """Three nodes lead and follow in turn; each record is told by its epoch and offset, as one leader wrote it."""
    logs: list[list[tuple[int, int]]] = [[], [], []]
    nodes = st.sampled_from((0, 1, 2))
    for epoch in range(data.draw(st.integers(1, 5))):
        lead = logs[data.draw(nodes)]
        for _ in range(data.draw(st.integers(0, 3))):
            lead.append((epoch, len(lead)))
        for _ in range(data.draw(st.integers(0, 2))):
            follower = data.draw(nodes)
            own = logs[follower]
            same = next(
                (at for at, pair in enumerate(zip(own, lead, strict=False)) if pair[0] != pair[1]),
                min(len(own), len(lead)),
            )
            logs[follower] = lead[: data.draw(st.integers(same, len(lead)))] if own is not lead else own
            lead = lead if own is not lead else logs[follower]

    def told(log: list[tuple[int, int]]) -> LogInfo:
        firsts = [each for at, each in enumerate(log) if at == 0 or log[at - 1][0] != each[0]]
        return shaped(len(log), *firsts)

    for one in logs:
        for other in logs:
            assert told(one).extends(told(other)) == (one[: len(other)] == other), (one, other)


def test_one_that_no_list_names_is_waited_for_unless_the_policy_gives_up_records() -> None:
    """Its device may be the only one that has kept the last records."""
    logs = {1: (5, 60), 2: (5, 61)}
    silent = situation((1, 2, 3), logs, known=(1, 2), asked=True)
    assert decide(silent, elections.wait) == AskLogs((3, 1, 2))
    assert decide(silent, elections.most_complete) == decide(silent, elections.any_) == Elect(2)
    answered = situation((1, 2, 3), {**logs, 3: (5, 61)}, known=(1, 2), asked=True)
    assert decide(answered, elections.wait) == Elect(3)


def test_if_they_do_not_answer_the_policy_decides_and_wait_asks_again() -> None:
    silent = situation((1, 2, 3), {1: (5, 60)}, known=(1, 2), asked=True)
    assert decide(silent, elections.wait) == AskLogs((3, 1, 2))
    assert decide(silent, elections.any_) == Elect(3)
    assert decide(silent, elections.most_complete) == Elect(1)


def test_while_somebody_is_eligible_the_last_known_are_no_resort() -> None:
    waiting = structs.replace(situation((1, 2), known=(2,)), record=structs.replace(DARK, elr=(1,)))
    assert decide(waiting, elections.wait) == Wait()


# A log has an epoch if, and only if, it has a batch.
logs = st.dictionaries(st.integers(1, 3), st.just((-1, 0)) | st.tuples(st.integers(0, 3), st.integers(1, 3)))


@hypothesis.settings(deadline=None)
@hypothesis.given(st.sets(st.integers(1, 4)), logs, st.sets(st.integers(1, 3)), st.booleans())
def test_whoever_is_elected_lives_and_nobody_who_told_has_more(
    live: set[int], told: dict[int, tuple[int, int]], known: set[int], asked: bool
) -> None:
    heard = {node: log for node, log in told.items() if node in live}
    order = tuple(node for node in DARK.replicas if node in known)
    verdict = decide(situation(tuple(live), heard, known=order, asked=asked), elections.most_complete)
    replicas = live & {1, 2, 3}
    if isinstance(verdict, Elect):
        assert verdict.node in replicas
        assert heard[verdict.node] == max(heard[node] for node in replicas if node in heard)
        assert asked or replicas <= heard.keys()
    elif isinstance(verdict, AskLogs):
        assert set(verdict.nodes) <= replicas and not set(verdict.nodes) <= heard.keys()
    else:
        assert not replicas
