"""Whose limit holds for a client, what may be limited, and that the controller writes it once."""

from __future__ import annotations

import attrs
import pytest

from insync.replication.core import messages as m
from insync.replication.core.control import quotas
from insync.replication.core.control.controller import (
    AdminRequest,
    CommitDone,
    Controller,
    Reply,
    ViewChanged,
)
from insync.replication.core.control.quotas import CONSUMER, PRODUCER, Entity, limit_of, throttle_of
from insync.replication.core.control.records import QuotaRecord, quota_key
from insync.replication.core.control.topics import TopicError
from insync.replication.core.errors import ErrorCode

from .test_controller import ME, only_commit, view


def known(**limits: int) -> dict[Entity, QuotaRecord]:
    """`user_etl=5` limits producers of that user; `user_=5` is the default of users."""
    found = {}
    for named, limit in limits.items():
        kind, _, name = named.rpartition("_")
        found[Entity(kind, name)] = QuotaRecord(entity_type=kind, name=name, limits={PRODUCER: limit})
    return found


@pytest.mark.parametrize(
    ("limits", "user", "client_id", "entity", "limit"),
    [
        ({}, "etl", "app", None, None),
        (
            {"user_": 1, "client_id_": 2, "client_id_app": 3, "user_etl": 4},
            "etl",
            "app",
            Entity("user", "etl"),
            4,
        ),
        ({"user_": 1, "client_id_": 2, "client_id_app": 3}, "etl", "app", Entity("client_id", "app"), 3),
        ({"user_": 1, "client_id_": 2}, "etl", "app", Entity("user", "etl"), 1),
        ({"client_id_": 2}, "etl", "app", Entity("client_id", "app"), 2),
        ({"user_": 1}, "", "app", None, None),
        ({"user_other": 1, "client_id_other": 2}, "etl", "app", None, None),
    ],
)
def test_the_nearest_limit_holds_and_a_default_is_for_each(
    limits: dict[str, int], user: str, client_id: str, entity: Entity | None, limit: int | None
) -> None:
    found = limit_of(known(**limits), user, client_id, PRODUCER)
    assert found == (None if entity is None else (entity, limit))
    assert limit_of(known(**limits), user, client_id, CONSUMER) is None, (
        "the other direction is another limit"
    )


def test_a_node_has_its_own_throttle_or_that_of_all() -> None:
    name = quotas.LEADER_THROTTLE
    every = QuotaRecord(entity_type="node", name="", limits={name: 10})
    own = QuotaRecord(entity_type="node", name="3", limits={name: 20})
    assert throttle_of({}, 3, name) is None
    assert throttle_of({Entity("node", ""): every}, 3, name) == 10
    assert throttle_of({Entity("node", ""): every, Entity("node", "3"): own}, 3, name) == 20
    assert throttle_of({Entity("node", ""): every}, 3, quotas.FOLLOWER_THROTTLE) is None


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (m.AlterQuotasRequest(entity_type="group", limits={PRODUCER: 1}), "user, client_id, node"),
        (m.AlterQuotasRequest(entity_type="user", limits={"speed": 1}), "producer_byte_rate or consumer"),
        (m.AlterQuotasRequest(entity_type="user", remove=["speed"]), "no limit 'speed'"),
        (m.AlterQuotasRequest(entity_type="user", limits={quotas.LEADER_THROTTLE: 1}), "a user has no limit"),
        (
            m.AlterQuotasRequest(entity_type="node", name="one", limits={quotas.LEADER_THROTTLE: 1}),
            "not a node id",
        ),
        (m.AlterQuotasRequest(entity_type="user", limits={PRODUCER: 0}), "1 byte a second or more"),
        (m.AlterQuotasRequest(entity_type="user", limits={PRODUCER: -5}), "1 byte a second or more"),
        (m.AlterQuotasRequest(entity_type="user", limits={PRODUCER: 2**63}), "producer_byte_rate="),
        (m.AlterQuotasRequest(entity_type="user", name="a\nb", limits={PRODUCER: 1}), "is not a valid name"),
        (
            m.AlterQuotasRequest(entity_type="user", name="x" * 250, limits={PRODUCER: 1}),
            "is not a valid name",
        ),
    ],
)
def test_what_cannot_be_limited_is_refused_in_words(request_: m.AlterQuotasRequest, said: str) -> None:
    with pytest.raises(TopicError) as caught:
        quotas.changed(request_, None)
    assert caught.value.code == ErrorCode.INVALID_CONFIG and said in caught.value.message


def test_limits_that_are_not_named_stay() -> None:
    record = QuotaRecord(entity_type="user", name="etl", limits={PRODUCER: 1, CONSUMER: 2})
    request = m.AlterQuotasRequest(entity_type="user", name="etl", limits={PRODUCER: 5})
    assert quotas.changed(request, record).limits == {PRODUCER: 5, CONSUMER: 2}
    request = m.AlterQuotasRequest(entity_type="user", name="etl", remove=[PRODUCER])
    assert quotas.changed(request, record).limits == {CONSUMER: 2}


def test_the_controller_writes_a_limit_once_and_deletes_what_is_empty() -> None:
    controller = Controller(ME, 10 + ME)
    controller.step(ViewChanged(view=view(5)))
    admin_request = m.AlterQuotasRequest(entity_type="client_id", name="etl", limits={PRODUCER: 7})
    (put,) = only_commit(controller.step(AdminRequest(request_id=1, request=admin_request))).puts
    key = quota_key("client_id", "etl")
    record = QuotaRecord(entity_type="client_id", name="etl", limits={PRODUCER: 7})
    assert (put.key, put.record, put.version) == (key, record, 0)
    (reply,) = controller.step(CommitDone(outcome="committed", revision=6))
    assert isinstance(reply, Reply) and isinstance(reply.response, m.AlterQuotasResponse)
    assert (reply.response.error, reply.response.limits) == (ErrorCode.NONE, {PRODUCER: 7})
    controller.step(ViewChanged(view=attrs.evolve(view(6), quotas={key: (record, 1)})))
    (again,) = controller.step(AdminRequest(request_id=2, request=admin_request))
    assert isinstance(again, Reply), "what stands there already is not written anew"
    without = m.AlterQuotasRequest(entity_type="client_id", name="etl", remove=[PRODUCER])
    (put,) = only_commit(controller.step(AdminRequest(request_id=3, request=without))).puts
    assert (put.key, put.record, put.version) == (key, None, 1)
