"""Nodes of two minor versions side by side: every promise is kept, and runs of one version are what they were."""

from __future__ import annotations

import attrs

from insync.replication.core.messages import FetchResponse, FetchResult
from insync.replication.core.store_transaction import SameValue
from insync.replication.simulation import Run, Settings, run
from insync.replication.simulation.world.versions import LATER_ERROR, MIXED

MIXED_ALONE = Settings(faults=(MIXED, "CS"))


def test_a_cluster_of_two_versions_keeps_every_promise() -> None:
    results = [run(seed, MIXED_ALONE) for seed in range(4)]
    assert [str(result.violation) for result in results if result.violation] == []
    assert sum(MIXED in result.faults for result in results) > 2, "versions have met"


def test_records_are_compared_with_what_a_later_version_put_into_them() -> None:
    one = Run(0, MIXED_ALONE)
    one.play()
    store, of_both = one.cluster.store, 0
    for partition in store.partitions:
        key = f"/partitions/{partition.topic}/{partition.partition}"
        seen = store.get(key)
        assert seen is not None and store.holds(SameValue(key, seen.value))
        store.unknown[key] = store.unknown.get(key, 0) + 1
        assert not store.holds(SameValue(key, seen.value))
        assert not store.holds(SameValue(key, seen.record))
        of_both += 1
    assert of_both


def test_only_the_earlier_version_is_told_errors_that_it_does_not_know() -> None:
    one = Run(0, MIXED_ALONE)
    versions, nodes = one.cluster.versions, one.cluster.nodes
    while versions.is_later(nodes[1]):
        versions.process_begins(nodes[1])
    while not versions.is_later(nodes[2]):
        versions.process_begins(nodes[2])
    said = FetchResponse(partitions=[FetchResult(topic="t", partition=0, error=each) for each in (0, 6)])

    def told(answers: int, asks: int) -> set[tuple[int, ...]]:
        return {
            tuple(each.error for each in versions.answer(nodes[answers], nodes[asks], said).partitions)
            for _ in range(50)
        }

    assert told(2, 1) == {(0, 6), (0, LATER_ERROR + 6)}
    assert told(1, 2) == told(2, 2) == told(1, 1) == {(0, 6)}


def test_runs_of_one_version_draw_nothing_for_it() -> None:
    one = attrs.evolve(MIXED_ALONE, faults=("CS",))
    result = run(3, one)
    assert result.violation is None and MIXED not in result.faults
    drawn = sum(MIXED in Settings.swarm(seed).faults for seed in range(300))
    assert 20 < drawn < 80
