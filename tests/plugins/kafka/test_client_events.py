"""The comparison of what a client hears here and at Kafka: that it compares, and a part of it at our nodes."""

from __future__ import annotations

from typing import Any

import pytest

from ...interop import client_events
from .conftest import Cluster
from .test_python_clients import librdkafka as librdkafka

ACCEPTED = [[None, 0], [None, 1]]


@pytest.mark.interop
@pytest.mark.xdist_group("kafka")
def test_librdkafka_hears_what_is_too_large(cluster: Cluster, librdkafka: Any) -> None:
    told = dict(client_events.Program(cluster.servers).parts()["sizes"]())
    assert told["acks=all"] == ACCEPTED
    assert told["too large"] == told["too large, idempotent"] == [[["MSG_SIZE_TOO_LARGE"], None]]
    assert told["zstd"] == [[None, 9]], "acks=0 has written two as well"


def test_a_difference_is_named_and_one_that_is_gone_is_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_events, "ALLOWED", {"a: on purpose": "why", "a: gone": "why"})
    ours = {"a: on purpose": 1, "a: gone": [0], "a: same": None, "a: wrong": [1]}
    theirs = {"a: on purpose": 2, "a: gone": [0], "a: same": None, "a: wrong": [2]}
    assert client_events.compare(ours, theirs) == [
        "a: wrong: ours [1], Kafka's [2]",
        "a: gone: allowed, and not met any more",
    ]
