"""Whatever a controller was about, the next one finishes it: at every point at which the first may be gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from msgspec import structs

from insync.replication.core import messages as m
from insync.replication.core.control import controller, transitions
from insync.replication.core.control import records as rec
from insync.replication.core.control.controller import (
    AdminRequest,
    AskReplicas,
    Commit,
    CommitDone,
    Controller,
    ControllerEffect,
    LogsTold,
    RebalanceDue,
    Reply,
    ViewChanged,
)
from insync.replication.core.control.elections import LogInfo
from insync.replication.core.control.quotas import PRODUCER
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode
from insync.replication.core.scram import SCRAM_SHA_256, derive
from insync.replication.core.types import PartitionId

NODES = (1, 2, 3, 4)


class Store:
    """What a metadata store does for controllers: versions, compare-and-set, and a view of it all."""

    def __init__(self, alive: Iterable[int] = NODES) -> None:
        self.revision = 1
        self.alive = set(alive)
        self.values: dict[str, tuple[Any, int]] = {}
        self.commits = 0

    def commit(self, commit: Commit) -> CommitDone:
        for key, version in commit.checks.items():
            if self.values.get(key, (None, 0))[1] != version:
                return CommitDone(outcome="conflict", key=key)
        self.revision += 1
        self.commits += 1
        for put in commit.puts:
            if put.record is None:
                del self.values[put.key]
            else:
                self.values[put.key] = put.record, self.values.get(put.key, (None, 0))[1] + 1
        return CommitDone(outcome="committed", revision=self.revision)

    def leave(self, node: int) -> None:
        """Its session ends, and with it the office if it holds it."""
        self.revision += 1
        self.alive.discard(node)
        held = self.values.get(rec.CONTROLLER_KEY)
        if held is not None and held[0].node_id == node:
            del self.values[rec.CONTROLLER_KEY]

    def change(self, record: rec.PartitionRecord) -> None:
        """Somebody else writes a partition, as leaders do."""
        self.revision += 1
        key = rec.partition_key(record.id)
        self.values[key] = record, self.values[key][1] + 1

    @property
    def view(self) -> ClusterView:
        topics = {r.name: (r, v) for r, v in self.values.values() if isinstance(r, rec.TopicRecord)}
        epoch, epoch_version = self.values.get(rec.CONTROLLER_EPOCH_KEY, (None, 0))
        return ClusterView(
            revision=self.revision,
            nodes={n: rec.NodeRecord(node_id=n, incarnation=1, endpoints=()) for n in sorted(self.alive)},
            topics={name: record for name, (record, _) in topics.items()},
            topic_versions={name: version for name, (_, version) in topics.items()},
            partitions={
                r.id: rec.Versioned(r, v)
                for r, v in self.values.values()
                if isinstance(r, rec.PartitionRecord)
            },
            controller=self.values.get(rec.CONTROLLER_KEY, (None, 0))[0],
            controller_epoch=epoch.controller_epoch if epoch is not None else 0,
            controller_epoch_version=epoch_version,
            quotas={k: (r, v) for k, (r, v) in self.values.items() if isinstance(r, rec.QuotaRecord)},
            users={r.name: (r, v) for r, v in self.values.values() if isinstance(r, rec.UserRecord)},
        )

    def partition(self, topic: str, number: int = 0) -> rec.PartitionRecord:
        record: rec.PartitionRecord = self.values[rec.partition_key(PartitionId(topic, number))][0]
        return record

    def state(self) -> dict[str, Any]:
        """What matters in the end: all but who wrote it, and which random id a topic was given."""
        kept = {}
        for key, (record, _) in self.values.items():
            if key in (rec.CONTROLLER_KEY, rec.CONTROLLER_EPOCH_KEY):
                continue
            plain = structs.asdict(record)
            plain.pop("controller_epoch", None)
            plain.pop("topic_id", None)
            kept[key] = plain
        return kept


class Host:
    """Carries out what one controller asks for; stops for good after `lives` commits, before or after the last."""

    def __init__(
        self, node: int, store: Store, *, lives: int | None = None, writes_last: bool = False
    ) -> None:
        self.node, self.store = node, store
        self.controller = Controller(node, 1)
        self.replies: list[Reply] = []
        self.logs: dict[int, LogInfo] = {}
        self._lives, self._writes_last = lives, writes_last
        self.dead = False

    def step(self, event: Any) -> None:
        self._obey(self.controller.step(event))

    def look(self) -> None:
        self.step(ViewChanged(view=self.store.view))

    def _obey(self, effects: list[ControllerEffect]) -> None:
        for effect in effects:
            if self.dead:
                return
            if isinstance(effect, Commit):
                self._commit(effect)
            elif isinstance(effect, AskReplicas):
                self.step(LogsTold(logs={each: dict(self.logs) for each in effect.partitions}))
            elif isinstance(effect, Reply):
                self.replies.append(effect)

    def _commit(self, commit: Commit) -> None:
        office = any(put.key == rec.CONTROLLER_KEY for put in commit.puts)
        if not office and self._lives is not None:
            if self._lives == 0:
                if self._writes_last:
                    self.store.commit(commit)
                self.dead = True
                return
            self._lives -= 1
        done = self.store.commit(commit)
        self.step(done)
        self.look()


def with_topics(store: Store) -> Store:
    """`t` with two partitions on 1, 2, 3, and all of it in sync."""
    host = Host(1, store)
    host.look()
    create = m.CreateTopicRequest(
        name="t", partitions=2, replication_factor=3, config={"min_insync_replicas": 2}
    )
    host.step(AdminRequest(request_id=1, request=create, fresh_id="first"))
    assert host.replies[-1].response.error == ErrorCode.NONE
    for number in (0, 1):
        record = store.partition("t", number)
        store.change(structs.replace(record, replicas=(1, 2, 3), isr=(1, 2, 3), leader=2))
    return store


ADMIN_REQUESTS: dict[str, Any] = {
    "create": m.CreateTopicRequest(name="new", partitions=5, replication_factor=3, creation_id="once"),
    "delete": m.DeleteTopicRequest(name="t"),
    "grow": m.CreatePartitionsRequest(name="t", partitions=6),
    "configure": m.AlterConfigRequest(name="t", config={"min_insync_replicas": 1, "retention_ms": 5}),
    "elect": m.ElectLeadersRequest(),
    "reassign": m.AlterReassignmentsRequest(
        partitions=[m.PartitionReassignment(topic="t", partition=n, replicas=[4, 2, 3]) for n in (0, 1)]
    ),
    "quota": m.AlterQuotasRequest(entity_type="client_id", name="etl", limits={PRODUCER: 5}),
    "user": m.AlterUserRequest(
        name="etl", credentials={SCRAM_SHA_256: derive(SCRAM_SHA_256, "x", b"saltsalt")}, expects="new"
    ),
}


def undisturbed(admin_request: Any) -> dict[str, Any]:
    store = with_topics(Store())
    host = Host(2, store)
    store.leave(1)
    host.look()
    host.step(AdminRequest(request_id=9, request=admin_request, fresh_id="fresh"))
    return store.state()


@pytest.mark.parametrize("written", [False, True], ids=["not written", "written"])
@pytest.mark.parametrize("name", ADMIN_REQUESTS)
def test_a_admin_request_that_is_asked_again_comes_out_the_same_whatever_became_of_the_first(
    name: str, written: bool
) -> None:
    """The controller is gone in the middle of the write; the client, which heard nothing, asks the next one."""
    admin_request = ADMIN_REQUESTS[name]
    store = with_topics(Store((1, 2, 3, 4, 5)))
    store.leave(5)
    first = Host(1, store)
    first.look()
    first._lives, first._writes_last = 0, written
    before = store.state()
    first.step(AdminRequest(request_id=7, request=admin_request, fresh_id="fresh"))
    assert first.dead and first.replies == []
    assert (store.state() != before) == written
    store.leave(1)
    second = Host(2, store)
    second.look()
    second.step(AdminRequest(request_id=8, request=admin_request, fresh_id="another"))
    (reply,) = second.replies
    settled = {ErrorCode.NONE}
    if written and name == "create":
        assert reply.response.topic_id == "fresh", "the topic of the first attempt"
    if written and name == "delete":
        settled = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert reply.response.error in settled
    assert _without_node_1(store.state()) == _without_node_1(undisturbed(admin_request))


def _without_node_1(state: dict[str, Any]) -> dict[str, Any]:
    """Node 1 may have been counted when partitions were placed or not; steps and epochs may have taken another
    order. Which topics, partitions, settings and limits there are may not differ, nor where a move goes.
    """
    kept = {}
    for key, record in state.items():
        if "isr" in record and record["topic"] == "t" and record["partition"] < 2:
            kept[key] = {
                "target": [each for each in record["replicas"] if each not in record["removing"]],
                "adding": record["adding"],
                "removing": record["removing"],
                "min": record["min_insync_replicas"],
            }
        elif "isr" in record:
            kept[key] = {"replicas": len(record["replicas"]), "min": record["min_insync_replicas"]}
        else:
            kept[key] = record
    return kept


def caught_up(store: Store, isr: tuple[int, ...]) -> None:
    """The leaders of both partitions have taken these into the ISR."""
    for number in (0, 1):
        store.change(transitions.change_isr(store.partition("t", number), isr))


def test_a_move_that_one_controller_began_the_next_one_ends() -> None:
    store = with_topics(Store())
    first = Host(1, store)
    first.look()
    first.step(AdminRequest(request_id=7, request=ADMIN_REQUESTS["reassign"]))
    assert store.partition("t").adding == (4,) and store.partition("t").removing == (1,)
    store.leave(1)
    second = Host(2, store)
    second.look()
    assert store.partition("t").reassigning, "node 4 has not caught up"
    caught_up(store, (2, 3, 4))
    second.look()
    for number in (0, 1):
        record = store.partition("t", number)
        assert (record.replicas, record.adding, record.removing) == ((4, 2, 3), (), ())
        assert record.leader in (2, 3, 4)


@pytest.mark.parametrize("written", [False, True])
def test_the_end_of_a_move_may_be_lost_as_well(written: bool) -> None:
    store = with_topics(Store())
    first = Host(1, store)
    first.look()
    first.step(AdminRequest(request_id=7, request=ADMIN_REQUESTS["reassign"]))
    caught_up(store, (1, 2, 3, 4))
    first._lives, first._writes_last = 0, written
    first.look()
    assert first.dead
    store.leave(1)
    second = Host(3, store)
    second.look()
    for number in (0, 1):
        assert store.partition("t", number).replicas == (4, 2, 3)
        assert not store.partition("t", number).reassigning


@pytest.mark.parametrize("commits", [0, 1, 2])
@pytest.mark.parametrize("written", [False, True])
def test_a_sweep_that_ends_half_way_is_gone_on_with(
    monkeypatch: pytest.MonkeyPatch, commits: int, written: bool
) -> None:
    """1,200 partitions take three transactions; the controller is gone before, or after, any of them."""
    monkeypatch.setattr(controller, "CHANGES_PER_COMMIT", 500)
    store = with_topics(Store())
    template = store.partition("t")
    count = 1200
    for number in range(count):
        record = structs.replace(template, partition=number, replicas=(2, 3, 4), isr=(2, 3, 4), leader=2)
        store.values[rec.partition_key(record.id)] = record, 1
    first = Host(1, store)
    first.look()
    first._lives, first._writes_last = commits, written
    store.leave(2)
    first.look()
    assert first.dead
    moved = sum(store.partition("t", number).leader == 3 for number in range(count))
    assert moved == min(count, 500 * (commits + written))
    store.leave(1)
    second = Host(3, store)
    second.look()
    records = [store.partition("t", number) for number in range(count)]
    assert {(record.leader, record.isr, record.leader_epoch) for record in records} == {
        (3, (3, 4), template.leader_epoch + 1)
    }, "each was elected exactly once"


def test_five_hundred_partitions_fail_over_in_one_transaction() -> None:
    store = with_topics(Store())
    template = store.partition("t")
    for number in range(500):
        record = structs.replace(template, partition=number, replicas=(2, 3, 4), isr=(2, 3, 4), leader=2)
        store.values[rec.partition_key(record.id)] = record, 1
    host = Host(1, store)
    host.look()
    before = store.commits
    store.leave(2)
    host.look()
    assert store.commits == before + 1
    assert {store.partition("t", number).leader for number in range(500)} == {3}


@pytest.mark.parametrize("policy", ["most_complete", "by hand"])
def test_questions_before_an_unclean_election_are_asked_again(policy: str) -> None:
    """What replicas told one controller is nothing to the next; it asks, and elects the same."""
    store = with_topics(Store())
    lost = structs.replace(store.partition("t"), isr=(), elr=(), leader=-1, leader_epoch=5)
    store.change(lost)
    if policy == "most_complete":
        topic, version = store.values[rec.topic_key("t")]
        config = structs.replace(topic.config, unclean_leader_election=policy)
        store.values[rec.topic_key("t")] = structs.replace(topic, config=config), version + 1
    logs = {
        node: LogInfo(incarnation=1, leader_epoch=5, last_epoch=epoch, log_end_offset=10)
        for node, epoch in ((2, 3), (3, 4))
    }
    asked: list[AskReplicas] = []

    class Silent(Host):
        """It is gone before anybody answers."""

        def _obey(self, effects: list[ControllerEffect]) -> None:
            asked.extend(each for each in effects if isinstance(each, AskReplicas))
            super()._obey([each for each in effects if not isinstance(each, AskReplicas)])

    admin_request = m.ElectLeadersRequest(unclean=True, partitions=[m.PartitionName(topic="t", partition=0)])
    ask: Callable[[Host], None] = lambda host: (  # noqa: E731
        host.step(AdminRequest(request_id=1, request=admin_request)) if policy == "by hand" else None
    )
    first = Silent(1, store)
    first.look()
    ask(first)
    assert asked and store.partition("t").leader == -1
    store.leave(1)
    second = Host(4, store)
    second.logs = logs
    second.look()
    ask(second)
    elected = store.partition("t")
    assert (elected.leader, elected.isr, elected.recovering) == (3, (3,), True)


def test_leaderships_go_back_though_the_controller_that_looked_is_gone() -> None:
    store = with_topics(Store())
    first = Host(4, store)
    store.leave(1)
    first.look()
    store.alive.add(1)
    store.revision += 1
    for number in (0, 1):
        store.change(transitions.change_isr(store.partition("t", number), (1, 2, 3)))
    first.look()
    first._lives, first._writes_last = 0, False
    first.step(RebalanceDue())
    assert first.dead and store.partition("t").leader == 2
    store.leave(4)
    second = Host(3, store)
    second.look()
    second.step(RebalanceDue())
    assert {store.partition("t", number).leader for number in (0, 1)} == {1}
