"""Which node is killed and when."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.replication.cli.demo.failover import (
    EARLIEST,
    LATEST,
    NoVictimError,
    Trigger,
    Victim,
    choose_victim,
    last_records,
)
from insync.replication.cli.demo.inputs import open_input

ALL_TO_THE_END = dict.fromkeys(range(6), 999)


def test_the_node_that_leads_most_is_chosen() -> None:
    leaders = {0: 1, 1: 2, 2: 3, 3: 2, 4: 2, 5: 3}
    victim = choose_victim(leaders, ALL_TO_THE_END, 1000, random.Random(1))
    assert (victim.node_id, victim.busy, victim.idle) == (2, {1, 3, 4}, set())


def test_of_equals_the_one_with_more_records_to_come_is_chosen() -> None:
    leaders = {0: 1, 1: 2, 2: 3, 3: 1, 4: 2, 5: 3}
    last = {1: 999, 4: 999, 2: 999, 0: 999}
    victim = choose_victim(leaders, last, 1000, random.Random(1))
    assert (victim.node_id, victim.busy) == (2, {1, 4})


def test_to_lead_most_counts_more_than_records_to_come() -> None:
    leaders = {0: 1, 1: 1, 2: 1, 3: 2, 4: 2}
    victim = choose_victim(leaders, {0: 999, 3: 999, 4: 999}, 1000, random.Random(1))
    assert (victim.node_id, victim.busy, victim.idle) == (1, {0}, {1, 2})


def test_a_leader_without_records_to_come_is_not_killed() -> None:
    victim = choose_victim({0: 1, 1: 1, 2: 2}, {0: 400, 2: 700}, 1000, random.Random(1))
    assert (victim.node_id, victim.busy) == (2, {2})


def test_partitions_without_a_leader_have_nobody_to_kill() -> None:
    with pytest.raises(NoVictimError, match="use more --records"):
        choose_victim({0: -1}, {0: 999}, 1000, random.Random(1))


@given(st.integers(0, 2**32), st.integers(10, 10**6), st.data())
def test_the_point_lies_in_the_window_and_before_the_last_records(
    seed: int, records: int, data: st.DataObject
) -> None:
    leaders = {partition: 1 + partition % 3 for partition in range(6)}
    ends = st.integers(int(records * EARLIEST) + 1, records - 1)
    last = data.draw(st.dictionaries(st.integers(0, 5), ends, min_size=1))
    victim = choose_victim(leaders, last, records, random.Random(seed))
    assert int(records * EARLIEST) <= victim.kill_at <= max(records * LATEST, records * EARLIEST + 1)
    assert victim.kill_at <= victim.patient_until
    assert all(last[partition] >= victim.kill_at for partition in victim.busy)


def test_the_seed_decides() -> None:
    leaders = {0: 1}
    points = [choose_victim(leaders, {0: 999}, 1000, random.Random(seed)).kill_at for seed in (1, 1, 2)]
    assert points[0] == points[1] != points[2]


def test_the_last_record_of_a_partition_is_that_of_its_last_key(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.txt").write_text("line\n" * 3)
    data = open_input(tmp_path)
    last = last_records(data, 24, 2)
    assert max(last.values()) == 23 and len(last) == 2
    assert list(last_records(data, 3, 2).values()) == [2]


def test_the_trigger_waits_for_records_in_flight() -> None:
    kills: list[int] = []
    flying = 0
    victim = Victim(1, frozenset({0}), frozenset({3}), kill_at=100, patient_until=200)
    trigger = Trigger(victim, lambda partitions: flying * len(partitions), lambda: kills.append(1))
    flying = 1000
    assert not trigger.consider(99), "too early"
    flying = 100
    assert not trigger.consider(150), "few in flight, and there is time"
    flying = 0
    assert not trigger.consider(250), "none in flight"
    flying = 1
    assert trigger.consider(251) and kills == [1]
    assert trigger.in_flight_at_kill == 2
