"""Runs are deterministic, replayable and clean; what they count is what happened."""

from __future__ import annotations

import os
import subprocess
import sys

import attrs
import pytest

from insync.replication.core.partition.leader import LeaderRole
from insync.replication.simulation import (
    FAULTS,
    Replay,
    ReplayError,
    Run,
    Settings,
    SimulationError,
    Topic,
    Violated,
    minimise,
    replay_of,
    run,
)
from insync.replication.simulation.errors import require
from insync.replication.simulation.minimise import shrink
from insync.replication.simulation.oracles.recheck import recheck
from insync.replication.simulation.run import REPEAT_EVERY, events_played

SEEDS = 24
KEPT = {"IL": (59, 78), "PS": (5, 37), "FM": (105, 115), "CF": (65, 68)}
"""Seeds in which identity files change, one device is spared, a topic is forgotten, or a wall clock is set."""
QUIET = Settings(faults=(), moves=0.0, reassignments=0.0, changes=0.0)


@pytest.mark.slow
def test_no_promise_is_broken_in_any_of_some_seeds() -> None:
    results = [run(seed) for seed in range(SEEDS)]
    assert [(result.seed, str(result.violation)) for result in results if result.violation] == []
    assert sum(result.events for result in results) > 2000 * SEEDS
    assert sum(result.acknowledged for result in results) > 10 * SEEDS
    assert sum(result.elections for result in results) > 3 * SEEDS
    # None of these seeds hosts transactions, without whose ends nothing of the kind strikes (test_transactions.py).
    # Nor does the store of any forget anything, and few of them have the faults of what a machine keeps.
    for label in FAULTS.keys() - {"TE", "FC", *KEPT}:
        drawn = [result for result in results if label in result.settings.faults]
        assert sum(label in result.faults for result in drawn) > len(drawn) // 4, label


def test_no_promise_is_broken_when_everything_stops_and_the_store_forgets_its_last_commits() -> None:
    results = [run(seed) for seed in (40, 144, 168, 170, 236)]
    assert [(result.seed, str(result.violation)) for result in results if result.violation] == []
    assert sum(result.faults.get("FC", 0) for result in results) > len(results)
    assert sum(result.unclean_elections for result in results) > len(results)


@pytest.mark.parametrize(("label", "seeds"), KEPT.items())
def test_no_promise_is_broken_when_what_a_machine_keeps_is_lost_or_changes(
    label: str, seeds: tuple[int, ...]
) -> None:
    results = [run(seed) for seed in seeds]
    assert [(result.seed, str(result.violation)) for result in results if result.violation] == []
    assert all(result.faults[label] for result in results)


@pytest.mark.slow
def test_every_copy_is_needed_or_one_is_enough() -> None:
    for minimum in (1, 3):
        topics = (Topic(name="t", partitions=2, min_insync_replicas=minimum),)
        for seed in range(4):
            result = run(seed, attrs.evolve(Settings(), topics=topics))
            assert result.violation is None, result.violation


def test_without_faults_the_records_never_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "_probe_outages", lambda self: None)
    monkeypatch.setattr(Run, "_probe_departure", lambda self: None)
    one = Run(4, QUIET)
    one.play()
    (versioned,) = one.cluster.store.partitions.values()
    assert (versioned.version, one.injector.crashes, one.result(None).faults) == (1, 0, {})
    assert one.cluster.requests.acknowledged > 20


def test_topics_are_deleted_and_others_of_their_name_are_made() -> None:
    one = Run(4, attrs.evolve(QUIET, recreations=0.2))
    one.play()
    known = one.cluster.oracle.known
    (here,) = one.cluster.oracle.partitions.values()
    gone = [facts for facts in known.values() if facts is not here]
    assert len(gone) >= 2
    assert all(facts.gone and facts.committed for facts in gone)
    assert here.committed and not here.gone
    assert len({facts.topic_id for facts in known.values()}) == len(known)


def test_a_seed_is_one_run_and_its_script_replays_it() -> None:
    first, again = run(1), run(1)
    assert first.digest == again.digest
    assert first.script.mishaps
    replay = Replay.loads(replay_of(first).dumps())
    assert run(replay.seed, replay.settings, replay.script).digest == first.digest
    assert run(2).digest != first.digest


@pytest.mark.slow
@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_the_digest_does_not_hang_on_the_hash_seed(hash_seed: str) -> None:
    code = "from insync.replication.simulation import run; print(run(1).digest)"
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == run(1).digest


def test_what_the_oracle_works_out_step_by_step_is_what_a_full_look_finds() -> None:
    for seed in range(4):
        result = run(seed, recheck_every=1)
        assert result.violation is None, result.violation


def test_a_full_look_finds_what_is_spoilt_behind_the_oracle() -> None:
    one = Run(4, QUIET)
    one.play()
    disk = one.cluster.nodes[1].hosts[next(iter(one.cluster.store.partitions))].disk
    disk.flat[0] = (disk.flat[0][0], "another")
    with pytest.raises(Violated, match=r"^S[13]"):
        recheck(one.cluster)


def test_nobody_begins_to_write_in_a_lull() -> None:
    busy, resting = run(4, QUIET), run(4, attrs.evolve(QUIET, lull_at=6.0, lull_for=20.0))
    assert busy.violation is None and resting.violation is None
    assert 0 < resting.committed_records < busy.committed_records / 2
    lulls = sum(Settings.swarm(seed).lull_for > 0 for seed in range(300))
    assert 20 < lulls < 80


@pytest.mark.slow
def test_a_failing_run_is_made_short_and_can_be_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaderRole, "_epoch_end", lambda self, event: None)
    found = next(result for result in map(run, range(SEEDS)) if result.violation is not None)
    short = minimise(found, attempts=20)
    assert short.violation is not None
    assert found.violation is not None
    assert short.violation.invariant == found.violation.invariant
    before = len(found.script.schedule) + len(found.script.mishaps)
    assert len(short.script.schedule) + len(short.script.mishaps) < before
    assert short.trace
    replay = Replay.loads(replay_of(short).dumps())
    assert run(replay.seed, replay.settings, replay.script).digest == short.digest


def test_shrinking_leaves_only_what_is_needed() -> None:
    assert shrink(range(100), lambda kept: {17, 42, 91} <= set(kept), 1000) == [17, 42, 91]
    assert shrink(range(8), lambda kept: True, 1000) == []


def test_what_cannot_be_done_is_refused_with_the_remedy() -> None:
    with pytest.raises(SimulationError, match="unknown fault 'XX': the faults are CS"):
        Settings(faults=("XX",))
    with pytest.raises(SimulationError, match="minimum <= replicas <= nodes"):
        Settings(nodes=2)
    with pytest.raises(ReplayError, match="a file that insync simulate wrote"):
        Replay.loads("{}")
    with pytest.raises(ReplayError, match="reads version 1"):
        Replay.loads('{"version": 2}')


def test_the_text_of_an_invariant_is_made_when_it_is_violated_and_not_before() -> None:
    made = []

    class Costly:
        def __str__(self) -> str:
            made.append(self)
            return "costly"

    require(True, "S1", "{} of {}", Costly(), 2)
    assert made == []
    with pytest.raises(Violated, match=r"^S1: costly of 2$"):
        require(False, "S1", "{} of {}", Costly(), 2)
    with pytest.raises(Violated, match=r"^S1: {} as it stands$"):
        require(False, "S1", "{} as it stands")


def test_a_run_that_is_made_again_counts_twice_as_played() -> None:
    once = run(1, attrs.evolve(QUIET, storm=1.0, calm=1.0))
    again, broken = attrs.evolve(once, seed=REPEAT_EVERY), Violated("S22", "")
    assert events_played(attrs.evolve(once, violation=None)) == once.events
    assert events_played(attrs.evolve(again, violation=None)) == 2 * once.events
    assert events_played(attrs.evolve(again, violation=broken)) == once.events
