"""A request counts as never answered once its time is over, and not before."""

from __future__ import annotations

import pytest

from insync.replication.core.broker.events import ProduceArrived
from insync.replication.simulation import Run, Settings, Topic
from insync.replication.simulation.driver.requests import REQUEST_TIMEOUT
from insync.replication.simulation.oracles.watched import WatchedBroker

QUIET = Settings(faults=(), moves=0.0, reassignments=0.0, changes=0.0, topics=(Topic(name="t"),))


def test_a_request_is_overdue_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Run(0, QUIET)
    cluster = one.cluster
    cluster.begin()
    cluster.later(2.0, one._clients_begin)
    right = WatchedBroker.step

    def deaf(self: WatchedBroker, event: object, now: float) -> object:
        return [] if isinstance(event, ProduceArrived) else right(self, event, now)

    monkeypatch.setattr(WatchedBroker, "step", deaf)
    while not cluster.requests._waiting:
        cluster.run_until(cluster.now + 0.1)
    assert not cluster.requests.overdue()
    cluster.run_until(cluster.now + 2 * REQUEST_TIMEOUT + 0.1)
    assert cluster.requests.overdue()
