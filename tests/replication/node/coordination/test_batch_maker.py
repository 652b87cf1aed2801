"""Batches that a node makes itself: markers of one transaction are the same bytes, those of others are not."""

from __future__ import annotations

from typing import Any

import pytest

from insync.replication.node.coordination._shard_reader import BatchMaker
from insync.storage.batch import build_marker

SAID: dict[str, Any] = {"committed": True, "coordinator_epoch": 3, "timestamp_ms": 1_700_000_000_000}


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"producer_id": 8},
        {"producer_epoch": 2},
        {"committed": False},
        {"coordinator_epoch": 4},
        {"timestamp_ms": 1_700_000_000_001},
    ],
)
def test_a_marker_says_what_it_was_asked_to_say_whatever_came_before(other: dict[str, Any]) -> None:
    maker, first = BatchMaker(), {"producer_id": 7, "producer_epoch": 1, **SAID}
    one, two = maker.marker(**first), maker.marker(**first | other)
    assert one is not two, "each partition's batch is taken and released by itself"
    assert bytes(one.data) == build_marker(**first)
    assert bytes(two.data) == build_marker(**first | other)
    (info,) = two.infos
    assert (info.producer_id, info.producer_epoch) == (
        other.get("producer_id", 7),
        other.get("producer_epoch", 1),
    )
