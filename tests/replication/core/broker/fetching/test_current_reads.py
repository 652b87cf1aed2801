"""Current reads at a leader: what proves that nobody else leads, and what does not."""

from __future__ import annotations

import pytest
from msgspec import structs

from insync.replication.core.broker.effects import Answer, Effect, Reply
from insync.replication.core.broker.events import FetchArrived, ReadIndexArrived
from insync.replication.core.broker.fetching.current_reads import LONGEST_TIMEOUT
from insync.replication.core.control.records import Versioned
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import FetchRequest, PartitionName, ReadIndexRequest, ReadIndexResponse
from insync.replication.core.partition import events as ev
from tests.replication.core.broker.fetching.test_serving import Peer, Serve
from tests.replication.core.partition.test_isr_change import LIVE, A, B, C, record

ZERO = 0
"""A node id like any other."""
ALIVE = {**LIVE, ZERO: 10}


class Leader(Serve):
    """As `Serve`; followers fetch by sessions of their own, and clients ask for the current offset."""

    def __init__(self, isr: tuple[int, ...] = (A, B), least: int = 2) -> None:
        super().__init__()
        self.least = least
        self.connections = {node: f"connection {node}" for node in (ZERO, B, C)}
        self.partition = self.partitions[0]
        self.session_of: dict[int, int] = {}
        self.answers_of: dict[int, int] = {}
        self.report(self.partition, ev.NodesChanged(live=ALIVE))
        self.isr(isr, version=2)

    def isr(self, isr: tuple[int, ...], *, version: int, epoch: int = 1) -> list[Effect]:
        changed = structs.replace(
            record(isr=isr),
            replicas=(A, B, C, ZERO),
            partition=0,
            partition_epoch=version,
            leader_epoch=epoch,
            min_insync_replicas=self.least,
        )
        self.report(self.partition, ev.RecordChanged(versioned=Versioned(changed, version)))
        return self.settle()

    def ask(self, timeout_ms: int = 1000) -> list[Effect]:
        names = [PartitionName(topic=self.partition.topic, partition=0)]
        message = ReadIndexRequest(timeout_ms=timeout_ms, partitions=names)
        return self.tell(ReadIndexArrived("question", message)) + self.settle()

    def fetch(self, node: int, offset: int = 0, *, epoch: int | None = None) -> list[Effect]:
        """The next fetch of a follower's session; it names the partition each time."""
        question = self.question(self.partition, offset)
        session = self.session_of.get(node, 0)
        message = FetchRequest(
            replica_id=node,
            incarnation=ALIVE[node],
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=10_000,
            partitions=[question],
            session_id=session,
            session_epoch=self.answers_of.get(node, 0) if epoch is None else epoch,
        )
        arrived = FetchArrived(self.connections[node], f"fetch {node}", message, Peer(node, f"node {node}"))
        effects = self.tell(arrived) + self.settle()
        self.note(effects)
        return effects

    def note(self, effects: list[Effect]) -> None:
        """Followers get their answers."""
        for effect in effects:
            if isinstance(effect, Answer):
                node = int(str(effect.request).split()[1])
                self.session_of[node] = effect.response.session_id
                self.answers_of[node] = self.answers_of.get(node, 0) + 1


def told(effects: list[Effect]) -> list[tuple[int, int]]:
    """(error, offset) of what was answered."""
    replies = [each.response for each in effects if isinstance(each, Reply)]
    assert all(isinstance(each, ReadIndexResponse) for each in replies)
    return [(result.error, result.offset) for each in replies for result in each.partitions]  # type: ignore[attr-defined]


def answered(effects: list[Effect]) -> list[object]:
    return [each.request for each in effects if isinstance(each, Answer)]


def test_a_leader_that_is_alone_answers_at_once() -> None:
    leader = Leader(isr=(A,), least=1)
    assert told(leader.ask()) == [(ErrorCode.NONE, 0)]


@pytest.mark.parametrize("follower", [B, ZERO])
def test_the_parked_fetch_is_answered_and_the_next_one_proves_it(follower: int) -> None:
    leader = Leader(isr=(A, follower))
    assert answered(leader.fetch(follower)) == []  # parked
    asked = leader.ask()
    assert told(asked) == []
    assert answered(asked) == [f"fetch {follower}"], "it was answered with nothing, at once"
    leader.note(asked)
    assert told(leader.fetch(follower)) == [(ErrorCode.NONE, 0)]


def test_a_fetch_that_was_sent_before_the_question_proves_nothing_when_it_arrives() -> None:
    leader = Leader()
    leader.fetch(B)
    first = leader.wait(1.0)  # the fetch has waited long enough: an answer from before the question
    leader.note(first)
    assert told(leader.ask()) == []
    hurried = leader.fetch(B)
    assert told(hurried) == [], "it continues an answer that was given before the question"
    assert answered(hurried) == [f"fetch {B}"], "and is answered at once, for the next one to come"
    assert told(leader.fetch(B)) == [(ErrorCode.NONE, 0)]


def test_a_fetch_that_asks_again_continues_the_answer_before() -> None:
    leader = Leader()
    leader.fetch(B)
    leader.note(leader.wait(1.0))
    asked = leader.fetch(B)
    assert answered(asked) == []
    lost = leader.ask()  # answered after the question; the answer gets lost
    assert answered(lost) == [f"fetch {B}"]
    again = leader.fetch(B)
    assert told(again) == [], "the follower had not got the answer that was lost"
    assert told(leader.fetch(B)) == [(ErrorCode.NONE, 0)]


def test_every_member_of_the_isr_is_needed() -> None:
    leader = Leader(isr=(A, B, C))
    leader.fetch(B)
    leader.fetch(C)
    leader.note(leader.ask())
    assert told(leader.fetch(B)) == []
    assert told(leader.fetch(C)) == [(ErrorCode.NONE, 0)]


def test_one_that_leaves_the_isr_is_not_waited_for_any_more() -> None:
    leader = Leader(isr=(A, B, C))
    leader.fetch(B)
    leader.note(leader.ask())
    assert told(leader.fetch(B)) == []
    assert told(leader.isr((A, B), version=3)) == [(ErrorCode.NONE, 0)]


def test_below_the_minimum_nobody_is_told() -> None:
    leader = Leader()
    leader.isr((A,), version=3)
    assert told(leader.ask()) == [(ErrorCode.NOT_ENOUGH_REPLICAS, -1)]


def test_what_is_not_answered_in_time_says_so() -> None:
    leader = Leader()
    leader.ask(timeout_ms=200)
    assert told(leader.wait(0.3)) == [(ErrorCode.REQUEST_TIMED_OUT, -1)]
    assert leader.broker.current_reads.waiting == 0


def test_however_long_somebody_would_wait() -> None:
    leader = Leader()
    leader.ask(timeout_ms=2**60)
    assert told(leader.wait(LONGEST_TIMEOUT + 1)) == [(ErrorCode.REQUEST_TIMED_OUT, -1)]


def test_the_end_of_the_role_is_the_end_of_the_question() -> None:
    leader = Leader()
    leader.ask()
    changed = structs.replace(record(isr=(A, B)), partition=0, partition_epoch=3, leader_epoch=2, leader=B)
    leader.report(leader.partition, ev.RecordChanged(versioned=Versioned(changed, 3)))
    assert told(leader.settle()) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


def test_a_partition_that_nobody_knows_is_said_to_be_unknown() -> None:
    leader = Leader()
    names = [PartitionName(topic="nowhere", partition=0)]
    effects = leader.tell(ReadIndexArrived("q", ReadIndexRequest(timeout_ms=10, partitions=names)))
    assert told(effects) == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]
