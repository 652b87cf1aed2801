"""When a damaged replica may be given up, and when it may be deleted to be copied again."""

from __future__ import annotations

import pytest
from msgspec import structs

from insync.replication.core.control.records import PartitionRecord
from insync.replication.core.partition.damaged_copy import may_copy_again, may_give_up, must_step_back
from insync.replication.core.types import NO_LEADER

LED_HERE = PartitionRecord(
    topic="t", partition=0, topic_id="i", replicas=(1, 2, 3), isr=(1, 2), leader=1, min_insync_replicas=2
)
LED_BY_2 = structs.replace(LED_HERE, isr=(2, 3), leader=2)


@pytest.mark.parametrize(
    ("isr", "live", "may"),
    [((1, 2), {1, 2, 3}, True), ((1, 2), {1, 3}, False), ((1,), {1, 2, 3}, False), ((1, 2, 3), {1, 3}, True)],
)
def test_it_is_given_up_to_a_living_member_of_the_isr(
    isr: tuple[int, ...], live: set[int], may: bool
) -> None:
    assert may_give_up(structs.replace(LED_HERE, isr=isr), 1, live) == may


def test_it_is_given_up_to_an_eligible_leader() -> None:
    under = structs.replace(LED_HERE, isr=(1,), elr=(2,))
    assert may_give_up(under, 1, {1, 2})
    assert not may_give_up(under, 1, {1, 3})


def test_it_steps_back_only_where_nobody_else_can_fill_the_isr() -> None:
    led = structs.replace(LED_BY_2, isr=(2,), elr=(1,))
    assert must_step_back(led, 1, {1, 2}), "node 3 is not there"
    assert not must_step_back(led, 1, {1, 2, 3}), "node 3 may join"
    assert must_step_back(structs.replace(led, replicas=(1, 2)), 1, {1, 2, 3})
    assert not must_step_back(structs.replace(led, elr=()), 1, {1, 2}), "nobody counts on it"
    assert not must_step_back(structs.replace(led, leader=NO_LEADER), 1, {1, 2})


def test_it_is_deleted_once_another_leads_and_nobody_counts_on_it() -> None:
    assert may_copy_again(LED_BY_2, 1, {1, 2, 3})
    assert not may_copy_again(LED_HERE, 1, {1, 2, 3})
    assert not may_copy_again(structs.replace(LED_BY_2, leader=NO_LEADER), 1, {1, 2, 3})
    assert not may_copy_again(LED_BY_2, 1, {1, 3}), "its leader is not there to copy from"
    counted = (
        structs.replace(LED_BY_2, isr=(2, 1)),
        structs.replace(LED_BY_2, elr=(1,)),
        structs.replace(LED_BY_2, last_known_elr=(1,)),
    )
    assert not any(may_copy_again(each, 1, {1, 2, 3}) for each in counted)
