"""Limits on clients and nodes: which one holds for whom, and what may be asked of them."""

from __future__ import annotations

import attrs
import hypothesis
import pytest
from hypothesis import strategies as st

from insync.replication.core import messages as m
from insync.replication.core.control.admin_requests import Plan
from insync.replication.core.control.quotas import (
    CLIENT_ID,
    CONSUMER,
    NODE,
    PRODUCER,
    USER,
    Entity,
    changed,
    limit_of,
    throttle_of,
)
from insync.replication.core.control.records import QuotaRecord
from insync.replication.core.control.topics import TopicError
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode

from .test_admin_requests import cluster, planned


def record(entity_type: str, name: str, **limits: int) -> QuotaRecord:
    return QuotaRecord(entity_type=entity_type, name=name, limits=limits)


def request(entity_type: str, name: str, *remove: str, **limits: int) -> m.AlterQuotasRequest:
    return m.AlterQuotasRequest(entity_type=entity_type, name=name, limits=limits, remove=list(remove))


NAMES = (Entity(USER, "ann"), Entity(CLIENT_ID, "etl"), Entity(USER, ""), Entity(CLIENT_ID, ""))
"""In the order in which they count for a client `etl` of user `ann` (KIP-13)."""


@hypothesis.given(
    st.dictionaries(
        st.sampled_from((*NAMES, Entity(USER, "bob"), Entity(CLIENT_ID, "web"))), st.integers(1, 9)
    ),
    st.booleans(),
)
def test_the_most_particular_limit_holds(given: dict[Entity, int], proved: bool) -> None:
    quotas = {entity: record(*entity, producer_byte_rate=rate) for entity, rate in given.items()}
    counting = [entity for entity in NAMES if entity in given and (proved or entity.entity_type != USER)]
    found = limit_of(quotas, "ann" if proved else "", "etl", PRODUCER)
    if not counting:
        assert found is None
        return
    assert found is not None
    sharing, rate = found
    assert rate == given[counting[0]]
    # A default limits each of them by itself.
    assert sharing == Entity(counting[0].entity_type, "ann" if counting[0].entity_type == USER else "etl")
    assert limit_of(quotas, "ann" if proved else "", "etl", CONSUMER) is None


@pytest.mark.parametrize(
    ("limits", "rate"), [({"5": 7, "": 3}, 7), ({"": 3}, 3), ({"6": 7}, None), ({"6": 7, "": 3}, 3)]
)
def test_a_node_has_its_own_throttle_or_that_of_all(limits: dict[str, int], rate: int | None) -> None:
    quotas = {
        Entity(NODE, name): record(NODE, name, leader_replication_throttled_rate=value)
        for name, value in limits.items()
    }
    assert throttle_of(quotas, 5, "leader_replication_throttled_rate") == rate
    assert throttle_of(quotas, 5, "follower_replication_throttled_rate") is None


def test_limits_are_added_changed_and_taken_away() -> None:
    first = changed(request(USER, "ann", producer_byte_rate=5), None)
    assert first == record(USER, "ann", producer_byte_rate=5)
    both = changed(request(USER, "ann", consumer_byte_rate=1), first)
    assert list(both.limits.items()) == [("consumer_byte_rate", 1), ("producer_byte_rate", 5)]
    assert changed(request(USER, "ann", producer_byte_rate=6), both).limits["producer_byte_rate"] == 6
    assert changed(request(USER, "ann", "producer_byte_rate"), both).limits == {"consumer_byte_rate": 1}
    assert changed(request(NODE, "5"), None).limits == {}
    assert changed(request(NODE, "", leader_replication_throttled_rate=2**63 - 1), None).limits
    assert changed(request(USER, "x" * 249), None).name == "x" * 249


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (request("group", "g"), "'group' has no limits"),
        (request(USER, "x" * 250), "is not a valid name"),
        (request(USER, "a\nb"), "is not a valid name"),
        (request(NODE, "five"), "'five' is not a node id"),
        (request(NODE, "5", producer_byte_rate=1), "a node has no limit 'producer_byte_rate'"),
        (request(USER, "ann", "colour"), "a user has no limit 'colour'"),
        (request(USER, "ann", producer_byte_rate=0), "producer_byte_rate=0"),
        (request(USER, "ann", producer_byte_rate=2**63), "producer_byte_rate=9223372036854775808"),
    ],
)
def test_limits_that_cannot_be_are_refused(asked: m.AlterQuotasRequest, told: str) -> None:
    with pytest.raises(TopicError, match=told) as raised:
        changed(asked, None)
    assert raised.value.code == ErrorCode.INVALID_CONFIG
    answer = planned(asked, cluster())
    assert isinstance(answer, m.AlterQuotasResponse)
    assert (answer.error, answer.message) == (ErrorCode.INVALID_CONFIG, raised.value.message)


def limited(view: ClusterView, *records: QuotaRecord) -> ClusterView:
    return attrs.evolve(view, quotas={f"/quotas/{r.entity_type}/{r.name}": (r, 9) for r in records})


def test_a_limit_is_one_record_that_goes_with_its_last_limit() -> None:
    first = planned(request(USER, "ann", producer_byte_rate=5), cluster())
    assert isinstance(first, Plan)
    (put,) = first.puts
    assert (put.key, put.record, put.version) == (
        "/quotas/user/ann",
        record(USER, "ann", producer_byte_rate=5),
        0,
    )
    assert first.response == m.AlterQuotasResponse(error=ErrorCode.NONE, limits={"producer_byte_rate": 5})
    there = limited(cluster(), record(USER, "ann", producer_byte_rate=5))
    gone = planned(request(USER, "ann", "producer_byte_rate"), there)
    assert isinstance(gone, Plan)
    (put,) = gone.puts
    assert (put.key, put.record, put.version) == ("/quotas/user/ann", None, 9)


@pytest.mark.parametrize(
    "asked", [request(USER, "ann", producer_byte_rate=5), request(USER, "bob", "producer_byte_rate")]
)
def test_what_is_so_already_is_not_written(asked: m.AlterQuotasRequest) -> None:
    there = limited(cluster(), record(USER, "ann", producer_byte_rate=5))
    assert isinstance(planned(asked, there), m.AlterQuotasResponse)
