"""The machines keep every promise in every weather, and come right when it clears."""

from __future__ import annotations

import pytest

from .storm import Storm, run
from .world import Settings

WEATHERS = {
    "mixed": Settings(),
    "one copy is enough": Settings(min_isr=1),
    "all copies are needed": Settings(min_isr=3),
    "late and doubled messages": Settings(
        late=0.4, double=0.3, moves=2.0, faults=0.2, slow_disk=0.02, log_failure=0.01
    ),
    "killing, and a store that does not know": Settings(faults=1.5, unclear=0.3, log_failure=0.01),
    "four nodes, three copies": Settings(nodes=4, min_isr=3, faults=1.0, unclear=0.2),
    "four nodes, epochs unseen": Settings(nodes=4, late=0.2, double=0.1, moves=4.0, unseen=0.7),
}
SEEDS_EACH = 8


@pytest.mark.parametrize("weather", WEATHERS)
def test_no_promise_is_broken(weather: str) -> None:
    promised = epochs = 0
    for seed in range(SEEDS_EACH):
        storm = run(seed, WEATHERS[weather])
        assert storm.store.partition is not None
        promised += len(storm.oracle.promised)
        epochs += storm.store.partition.record.leader_epoch
    assert promised > 2 * SEEDS_EACH, "a storm in which nothing is acknowledged proves nothing"
    assert epochs > 3 * SEEDS_EACH


def test_the_same_seed_gives_the_same_storm() -> None:
    first, second = run(1), run(1)
    assert first.store.history == second.store.history
    assert first.oracle.committed == second.oracle.committed
    assert first.steps == second.steps


def test_without_faults_the_record_never_changes() -> None:
    still = Settings(
        drop=0.0, double=0.0, late=0.0, unclear=0.0, unseen=0.0, log_failure=0.0, slow_disk=0.0, faults=1e-9
    )
    storm = Storm(3, still)
    storm.moving = False
    storm.run()
    assert len(storm.store.history) == 1
