"""In a part of the seeds the simulated nodes coordinate groups; the others are as they were."""

from __future__ import annotations

import attrs

from insync.replication.core.coordination.routing import GROUP_TOPIC
from insync.replication.simulation import Replay, Run, Settings, Topic, replay_of, run

TOPICS = (Topic(name="t", partitions=2), Topic(name=GROUP_TOPIC, partitions=2))
GROUPS = Settings(faults=(), moves=0.0, reassignments=0.0, changes=0.0, topics=TOPICS, groups=1)


def test_without_faults_members_join_commit_and_are_told_what_is_committed() -> None:
    one = Run(4, GROUPS)
    one.play()
    coordinators = one.cluster.coordinators
    assert coordinators.commits > 50
    assert coordinators.reads > 50
    assert coordinators.beats > 50
    assert coordinators.loads > 0
    assert one.cluster.groups.handing.handed > 100


def test_a_leadership_that_moves_has_the_next_leader_read_the_log() -> None:
    one = Run(4, attrs.evolve(GROUPS, moves=1.0))
    one.play()
    assert one.cluster.coordinators.loads > 5


def test_about_one_of_ten_seeds_hosts_groups_and_such_a_run_can_be_played_again() -> None:
    drawn = [seed for seed in range(500) if Settings.swarm(seed).groups]
    assert 30 < len(drawn) < 90
    for seed in range(500):
        settings = Settings.swarm(seed)
        kept_in = GROUP_TOPIC in {each.name for each in settings.topics}
        assert bool(settings.groups or settings.transactions) == kept_in
    first = run(drawn[0])
    again = Replay.loads(replay_of(first).dumps())
    assert again.settings.groups == first.settings.groups
    assert run(again.seed, again.settings, again.script).digest == first.digest


def test_a_service_has_a_cluster_without_groups() -> None:
    assert not any(Settings.swarm(seed, (Topic(name="t"),)).groups for seed in range(100))
