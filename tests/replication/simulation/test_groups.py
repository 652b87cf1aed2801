"""Consumer groups in the simulated cluster: members, coordinators, transactions, and the oracle of all three."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from insync.replication.core.coordination.topics_view import TopicInfo, TopicsView
from insync.replication.core.groups import record_codec
from insync.replication.core.groups import records as r
from insync.replication.core.messages import groups as gm
from insync.replication.simulation import Run, Settings, Topic, Violated, run
from insync.replication.simulation.errors import SimulationError
from insync.replication.simulation.oracles.facts import PartitionFacts
from insync.replication.simulation.oracles.groups.facts import COPIES, LAZY, Part, Topics, Written
from insync.replication.simulation.oracles.groups.log import GroupLog

SEEDS = 40


def of(seed: int) -> Run:
    return Run(seed, Settings.swarm(seed, profile="groups"))


def test_the_profile_has_groups_in_every_seed_and_nobody_writes_to_their_topics() -> None:
    drawn = [Settings.swarm(seed, profile="groups") for seed in range(100)]
    assert {each.groups for each in drawn} == {1, 2}
    assert {each.producers for each in drawn} == {0}
    assert 20 < sum(bool(each.transactions) for each in drawn) < 60
    assert all(topic.replication_factor == 1 for each in drawn for topic in each.topics[:2])
    assert not Settings.swarm(1, (Topic(name="t"),), profile="groups").groups
    with pytest.raises(
        SimulationError, match="unknown profile 'group': the profiles are transactions, groups"
    ):
        Settings.swarm(1, profile="group")


def test_a_seed_is_one_run() -> None:
    settings = Settings.swarm(14, profile="groups")
    assert settings.transactions
    assert run(14, settings).digest == run(14, settings).digest


@pytest.mark.slow
def test_no_promise_is_broken_in_any_of_some_seeds() -> None:
    runs = [of(seed) for seed in range(SEEDS)]
    for one in runs:
        one.play()
    groups = [one.cluster.groups for one in runs]
    assert all(each.handing.handed > 20 for each in groups)
    members = [member for each in groups for member in each.handing.clients]
    assert {member.group for member in members} >= {"g0", LAZY, COPIES}
    assert {member.classic for member in members} == {True, False}
    assert sum(member.instance is not None for member in members) > SEEDS
    coordinators = [one.cluster.coordinators for one in runs]
    assert sum(each.commits for each in coordinators) > 50 * SEEDS
    assert sum(each.loads for each in coordinators) > 5 * SEEDS
    inputs = [each.inputs for each in groups if COPIES in each.names]
    assert sum(each.counted for each in inputs) > 100 * len(inputs)
    assert sum(each.aborted for each in inputs) > len(inputs)


# The oracle


TOPICS = TopicsView({"a": TopicInfo("1" * 32, 2)})
PARTITIONS = tuple(r.TopicPartition("1" * 32, number) for number in range(2))
SUBSCRIBED = r.MemberValue(topics=("a",))
ALL = r.target_topics(PARTITIONS)
HELD = r.CurrentValue(epoch=1, assigned=r.owned_topics(dict.fromkeys(PARTITIONS, 1)))
GROUP = (
    (r.ConsumerGroupKey("g"), r.ConsumerGroupValue(epoch=1, metadata_hash=TOPICS.digest(("a",)))),
    (r.MemberKey("g", "m"), SUBSCRIBED),
    (r.TargetEpochKey("g"), r.TargetEpochValue(epoch=1)),
    (r.TargetKey("g", "m"), r.TargetValue(topics=ALL)),
    (r.CurrentKey("g", "m"), HELD),
)
"""A group with one member, which has everything."""
JOINED = gm.ConsumerGroupHeartbeatRequest(group="g", member_id="m", member_epoch=0)
OFFSET = r.OffsetKey("g", "a", 0)


class Story:
    """Decisions of a coordinator, each a batch of its own, as they are committed."""

    def __init__(self) -> None:
        self.facts = PartitionFacts("o-0", "id", 1)
        topics = Topics()
        topics.saw(TOPICS)
        self.log = GroupLog(self.facts, topics)
        self._records: dict[str, Any] = {}
        self._written: dict[str, Written] = {}

    def commits(
        self, *entries: tuple[Any, Any], message: Any = None, silence: Sequence[float] = (), at: float = 0.0
    ) -> None:
        payload = f"{len(self._written)}"
        found = {("g", "m"): (silence[0], silence[1])} if silence else {}
        part = Part(message, len(entries), found)
        self._written[payload] = Written((part,), at, int(1000 * at), payload, self.log.length)
        self._records[payload] = tuple(
            (record_codec.encode_key(key), None if value is None else record_codec.encode_value(key, value))
            for key, value in entries
        )
        self.facts.committed += [(0, payload)] * len(entries)
        self.log.read_on(self._records, {}, self._written)


def commit(member_id: str, epoch: int) -> gm.CommitGroupOffsetsRequest:
    return gm.CommitGroupOffsetsRequest(group="g", member_id=member_id, epoch=epoch, offsets=[])


def breaks(invariant: str, *entries: tuple[Any, Any], message: Any = None, **told: Any) -> None:
    """A group with a member comes to be, and then there is a decision that is wrong."""
    story = Story()
    story.commits(*GROUP, message=JOINED)
    with pytest.raises(Violated) as broken:
        story.commits(*entries, message=message, **told)
    assert broken.value.invariant == invariant


def test_a_member_that_is_silent_for_long_enough_is_removed_with_all_that_is_its_own() -> None:
    story = Story()
    story.commits(*GROUP, message=JOINED)
    story.commits(
        (r.CurrentKey("g", "m"), None),
        (r.TargetKey("g", "m"), None),
        (r.MemberKey("g", "m"), None),
        (r.ConsumerGroupKey("g"), r.ConsumerGroupValue(epoch=2)),
        (r.TargetEpochKey("g"), r.TargetEpochValue(epoch=2)),
        silence=(10.0, 10.0),
    )
    assert not story.log.naive.of(r.MemberKey, "g")
    assert story.log.gone["g", "m"] == 0.0
    assert story.log.rebalances == 2


def test_no_member_is_removed_before_its_session_ends() -> None:
    breaks("G8", (r.MemberKey("g", "m"), None), silence=(9.9, 10.0))


def test_a_partition_has_one_owner() -> None:
    other = (r.MemberKey("g", "n"), SUBSCRIBED), (r.CurrentKey("g", "n"), HELD)
    breaks("G4", *other, message=JOINED)


def test_a_target_has_each_partition_of_a_topic_that_is_read_once() -> None:
    breaks("G6", (r.TargetKey("g", "m"), r.TargetValue(topics=ALL[:0])), message=JOINED)


def test_an_epoch_has_one_target_and_none_comes_back() -> None:
    breaks("G5", (r.TargetEpochKey("g"), r.TargetEpochValue(epoch=2)), message=JOINED)
    breaks("G5", (r.ConsumerGroupKey("g"), r.ConsumerGroupValue(epoch=0)), message=JOINED)


def test_nothing_is_decided_about_a_static_member_that_is_away() -> None:
    story = Story()
    story.commits(*GROUP, message=JOINED)
    away = structs.replace(HELD, epoch=gm.LEAVE_STATIC)
    story.commits(
        (r.CurrentKey("g", "m"), away), message=structs.replace(JOINED, member_epoch=gm.LEAVE_STATIC)
    )
    with pytest.raises(Violated, match="G9"):
        story.commits((r.CurrentKey("g", "m"), HELD), message=structs.replace(JOINED, member_id="n"))


def test_a_commit_is_of_a_member_and_of_the_epoch_in_which_it_was_given_the_partition() -> None:
    value = r.OffsetValue(offset=3)
    for member_id, epoch in (("n", 1), ("m", 0), ("m", 2)):
        breaks("G3", (OFFSET, value), message=commit(member_id, epoch))


def test_offsets_that_are_read_or_young_do_not_expire() -> None:
    story = Story()
    story.commits((OFFSET, r.OffsetValue(offset=3, commit_timestamp=1_000)), message=commit("", -1))
    with pytest.raises(Violated, match="G11"):
        story.commits((OFFSET, None), at=12.9)
    story = Story()
    story.commits((OFFSET, r.OffsetValue(offset=3, commit_timestamp=1_000)), message=commit("", -1))
    story.commits((OFFSET, None), at=13.0)
    assert story.log.expired == {OFFSET}
    breaks("G11", (OFFSET, None), at=99.0)


def test_a_reader_may_be_told_the_offset_of_its_question_and_each_that_has_come_since() -> None:
    story = Story()
    for offset in (3, 5, 7):
        value = r.OffsetValue(offset=offset, metadata=f"{offset}")
        story.commits((OFFSET, value), message=commit("", -1))
    assert story.log.history_since(OFFSET, 2) == [(5, "5"), (7, "7")]
    assert story.log.told_since(0) == {OFFSET: [(-1, ""), (3, "3"), (5, "5"), (7, "7")]}


def test_nobody_but_a_coordinator_writes_offsets() -> None:
    story = Story()
    story.facts.committed.append((0, "a client's"))
    with pytest.raises(Violated, match="no coordinator has written a client's"):
        story.log.read_on({}, {}, {})
