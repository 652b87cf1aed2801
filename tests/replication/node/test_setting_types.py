"""Settings that a program gives a node itself are looked at as those from a file are."""

from __future__ import annotations

from typing import Any

import pytest

from insync.replication import NodeSettings
from insync.replication.node.errors import InvalidSettingError

GIVEN: dict[str, Any] = {"node_id": 1, "data_dir": "d", "store": "memory://x"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"node_id": "1"},
        {"session_timeout_ms": "5"},
        {"replica_lag_time_max_ms": 0.5},
        {"quota_producer_default": 1e6},
        {"leader_imbalance_per_broker_percentage": True},
    ],
)
def test_a_number_that_is_none_is_named(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(InvalidSettingError, match=f"{name}={value!r}: use a whole number"):
        NodeSettings(**GIVEN | wrong)


def test_one_listener_and_one_rule_need_no_list() -> None:
    settings = NodeSettings(**GIVEN, listeners="tcp://127.0.0.1:0", allow="client=consume")
    assert settings.listeners == ("tcp://127.0.0.1:0",)
    assert settings.allow == ("client=consume",)
