"""Which topics may be made: names, counts and settings at their limits, and the reason for each refusal."""

from __future__ import annotations

import pytest

from insync.replication.core.control.records import TopicConfig
from insync.replication.core.control.topics import TopicError, check_count, check_request, parse_config
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import CreateTopicRequest
from insync.replication.core.types import Value


def asked(
    name: str = "t", partitions: int = 1, factor: int = 3, **config: int | float | str
) -> CreateTopicRequest:
    return CreateTopicRequest(name=name, partitions=partitions, replication_factor=factor, config=config)


@pytest.mark.parametrize(
    ("request_", "code", "told"),
    [
        (asked("a/b"), ErrorCode.INVALID_TOPIC, "a/b"),
        (asked(partitions=0), ErrorCode.INVALID_PARTITIONS, "0 partitions"),
        (asked(factor=0), ErrorCode.INVALID_REPLICATION_FACTOR, "0 replicas"),
        (asked(factor=4), ErrorCode.INVALID_REPLICATION_FACTOR, r"3 nodes are alive \(1, 2, 3\)"),
        (asked(colour=1), ErrorCode.INVALID_CONFIG, "colour"),
        (asked(min_insync_replicas=4), ErrorCode.INVALID_CONFIG, "more than the 3 replicas"),
        (asked(unclean_leader_election="both"), ErrorCode.INVALID_CONFIG, "any, most_complete, wait"),
    ],
)
def test_what_cannot_be_made_is_refused_with_the_reason(
    request_: CreateTopicRequest, code: ErrorCode, told: str
) -> None:
    with pytest.raises(TopicError, match=told) as raised:
        check_request(request_, [1, 2, 3])
    assert raised.value.code == code


@pytest.mark.parametrize("name", ["retention_ms", "min_insync_replicas", "min_cleanable_dirty_ratio"])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), "inf", "1e999", "nan"])
def test_a_setting_that_is_no_finite_number_is_refused(name: str, value: Value) -> None:
    with pytest.raises(TopicError, match=name) as raised:
        check_request(asked(**{name: value}), [1, 2, 3])
    assert raised.value.code == ErrorCode.INVALID_CONFIG


def test_without_a_living_node_nothing_is_made() -> None:
    with pytest.raises(TopicError, match=r"0 nodes are alive \(none\)"):
        check_request(asked(factor=1), [])


@pytest.mark.parametrize(
    ("factor", "config", "minimum"),
    [
        (3, {}, 2),
        (2, {}, 2),
        (1, {}, 1),
        (3, {"min_insync_replicas": 3}, 3),
        (1, {"min_insync_replicas": 1}, 1),
    ],
)
def test_the_minimum_isr_is_two_but_never_more_than_there_are_replicas(
    factor: int, config: dict[str, Value], minimum: int
) -> None:
    config = dict(config)
    request = CreateTopicRequest(name="t", partitions=1, replication_factor=factor, config=config)
    assert check_request(request, [1, 2, 3]).min_insync_replicas == minimum


LIMITS: tuple[tuple[str, float, float], ...] = (
    ("min_insync_replicas", 1, 2**31 - 1),
    ("max_message_bytes", 62, 2**31 - 1),
    ("segment_bytes", 1024, 2**31 - 1),
    ("segment_ms", 1, 2**63 - 1),
    ("retention_ms", -1, 2**63 - 1),
    ("retention_bytes", -1, 2**63 - 1),
    ("file_delete_delay_ms", 0, 2**63 - 1),
    ("min_cleanable_dirty_ratio", 0, 1),
    ("min_compaction_lag_ms", 0, 2**63 - 1),
    ("max_compaction_lag_ms", 1, 2**63 - 1),
    ("delete_retention_ms", 0, 2**63 - 1),
)


@pytest.mark.parametrize(("name", "least", "most"), LIMITS, ids=[name for name, *_ in LIMITS])
def test_each_setting_may_be_at_its_limits_and_not_beyond(name: str, least: float, most: float) -> None:
    others: dict[str, Value] = {"min_compaction_lag_ms": 0} if name.startswith("max_comp") else {}
    for value in (least, most):
        assert getattr(parse_config({**others, name: value}), name) == value
        assert getattr(parse_config({**others, name: str(value)}), name) == value
    step = 0.1 if name == "min_cleanable_dirty_ratio" else 1
    for value in (least - step, most + step):
        with pytest.raises(TopicError, match=name):
            parse_config({**others, name: value})


def test_the_compaction_lags_may_be_equal_and_not_crossed() -> None:
    parse_config({"min_compaction_lag_ms": 7, "max_compaction_lag_ms": 7})
    with pytest.raises(TopicError, match="min_compaction_lag_ms=8 is above max_compaction_lag_ms=7"):
        parse_config({"min_compaction_lag_ms": 8, "max_compaction_lag_ms": 7})


@pytest.mark.parametrize(
    ("policy", "deletes", "compacts"),
    [
        ("delete", True, False),
        ("compact", False, True),
        ("compact,delete", True, True),
        ("delete,compact", True, True),
    ],
)
def test_a_cleanup_policy_deletes_compacts_or_both(policy: str, deletes: bool, compacts: bool) -> None:
    config = parse_config({"cleanup_policy": policy})
    assert (config.deletes, config.compacts) == (deletes, compacts)


def test_the_durability_is_one_of_two() -> None:
    assert TopicConfig().durability == "replicated"
    assert parse_config({"durability": "flushed"}).durability == "flushed"
    with pytest.raises(TopicError, match="durability='on disk': use replicated or flushed"):
        parse_config({"durability": "on disk"})


def test_more_partitions_need_as_many_nodes_as_there_are_replicas() -> None:
    check_count("t", 3, {1, 2, 3})
    with pytest.raises(TopicError, match="only 2 nodes are alive") as raised:
        check_count("t", 3, {1, 2})
    assert raised.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
