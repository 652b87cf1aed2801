"""The check of groups' histories notices each way in which one can be wrong, and nothing in a right one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .group_history import Commit, GroupHistory, Handed, Span, judge_group


def right() -> GroupHistory:
    """A has partition 0 and is handed ten records, then B takes it over and is handed ten more."""
    history = GroupHistory(
        spans=[Span("A", 0, 1.0, 5.0), Span("B", 0, 6.0, float("inf"))],
        handed=[
            Handed("A", 0, 0, 10, 2.0, 2.1),
            Handed("A", 0, 10, 12, 3.0, 3.1),
            Handed("B", 0, 10, 20, 7.0, 7.1),
        ],
        commits=[Commit(0, 10, 4.0), Commit(0, 20, 8.0)],
    )
    history.done = [Handed(h.member, 0, h.first, h.end, h.at, h.at + 0.1) for h in history.handed]
    return history


def test_a_right_history_passes() -> None:
    verdict = judge_group(right(), {0: 20})
    assert (verdict.violations, verdict.processed, verdict.repeated) == ([], 20, 2)


def test_what_nobody_has_processed() -> None:
    assert judge_group(right(), {0: 21}).violations == ["nobody has processed 0 at 20 (1 records)"]


def test_a_commit_that_passes_what_was_processed() -> None:
    history = right()
    history.commits.append(Commit(0, 13, 3.5))
    [said] = judge_group(history, {0: 20}).violations
    assert said == "0 was committed up to 13, but only [0, 12) was processed"


def test_two_owners() -> None:
    history = right()
    history.handed.append(Handed("B", 0, 10, 12, 2.3, 2.4))
    history.spans.append(Span("B", 0, 2.2, 2.5))
    [said] = judge_group(history, {0: 20}).violations
    assert said == "B was handed 0 [10, 12) while A had it"


def test_a_member_of_the_classic_protocol_may_learn_late_that_it_is_out(tmp_path: Path) -> None:
    file = tmp_path / "b.jsonl"
    said = [
        {"what": "began", "at": 2.0, "classic": "range"},
        {"what": "assigned", "at": 2.2, "partitions": [0]},
        {"what": "handed", "since": 2.3, "at": 2.4, "records": {"0": [10, 12]}},
        {"what": "lost", "at": 2.5, "partitions": [0]},
    ]
    for classic in ("range", ""):
        history = right()
        said[0]["classic"] = classic
        file.write_text("".join(json.dumps(each) + "\n" for each in said))
        history.read("B", file)
        assert bool(judge_group(history, {0: 20}).violations) is not bool(classic)
    # It has learned in time that it has to let go: then nothing is excused.
    said[0]["classic"], said[3]["what"] = "range", "revoked"
    file.write_text("".join(json.dumps(each) + "\n" for each in said))
    history = right()
    history.read("B", file)
    assert judge_group(history, {0: 20}).violations == ["B was handed 0 [10, 12) while A had it"]


def test_a_poll_in_which_a_partition_is_lost_and_given_again() -> None:
    history = right()
    # B's poll began at 7.5; C had the partition meanwhile, B heard of that at 7.6 and was given it again at 7.7.
    history.spans[1] = Span("B", 0, 6.0, 7.6)
    history.spans += [Span("C", 0, 7.2, 7.4), Span("B", 0, 7.7, float("inf"))]
    history.handed += [Handed("C", 0, 12, 20, 7.3, 7.35), Handed("B", 0, 12, 20, 7.5, 7.8)]
    assert judge_group(history, {0: 20}).violations == []


@pytest.mark.parametrize("since", [0.1, 5.1])
def test_handed_out_before_assigned_or_after_revoked(since: float) -> None:
    history = right()
    history.handed.append(Handed("A", 0, 5, 6, since, since + 0.2))
    [said] = judge_group(history, {0: 20}).violations
    assert said == "A was handed 0 [5, 6) and did not have it"


def test_a_members_file(tmp_path: Path) -> None:
    file = tmp_path / "log"
    lines = [
        {"what": "assigned", "at": 1.0, "partitions": [0, 1]},
        {"what": "handed", "since": 1.5, "at": 2.0, "records": {"0": [0, 4]}},
        {"what": "done", "at": 2.5, "records": {"0": [0, 4]}},
        {"what": "lost", "at": 3.0, "partitions": [0]},
        {"what": "error", "at": 3.5, "said": "StaleMemberEpochError: too late"},
    ]
    file.write_text("\n".join([json.dumps(each) for each in lines]) + '\n{"what": "do')
    history = GroupHistory()
    history.read("A", file, 9.0)
    assert history.spans == [Span("A", 0, 1.0, 3.0), Span("A", 1, 1.0, 9.0)]
    assert history.handed == [Handed("A", 0, 0, 4, 1.5, 2.0)]
    assert history.done == [Handed("A", 0, 0, 4, 2.5, 2.5)]
    assert history.errors == {"StaleMemberEpochError": 1}
