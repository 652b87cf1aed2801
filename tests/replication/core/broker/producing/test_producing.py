"""Requests that change logs: every partition is decided by itself, and each request is answered once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import hypothesis
import pytest
from hypothesis import strategies as st
from msgspec import structs

from insync.replication.core import messages as m
from insync.replication.core.broker.context import BrokerSettings, Context
from insync.replication.core.broker.effects import Effect, Reply
from insync.replication.core.broker.events import DeleteRecordsArrived, ProduceArrived, Report, ViewRead
from insync.replication.core.broker.machine import Broker
from insync.replication.core.broker.producing.payloads import MalformedBatchError, RefusedBatchError
from insync.replication.core.broker.producing.producing import LONGEST_TIMEOUT, MOST_QUEUED
from insync.replication.core.control.records import TopicConfig, TopicRecord
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.types import PartitionId

from ..desk import ME, Batches, Info, led_by

OPENED = ev.Opened(log_start_offset=0, log_end_offset=0, high_watermark=0, epochs=(), producers=())
LED = [PartitionId("t", number) for number in range(3)]
FOLLOWED, UNKNOWN, KEPT = PartitionId("t", 3), PartitionId("nowhere", 0), PartitionId("kept", 0)
LIMIT = 1000


class Logs:
    """Nothing is read; `behind` pieces of work wait."""

    behind = 0

    def queued(self, partition: PartitionId) -> int:
        return self.behind

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is not asked here")


@attrs.define
class Payload:
    """Batches or refusals, one after the other."""

    parts: Sequence[Info | ErrorCode]
    read: int = 0

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        return [each.size_bytes if isinstance(each, Info) else 10 for each in self.parts]

    def batches(self, position: int, size: int) -> Batches:
        raise MalformedBatchError("nobody fetches here")

    def produced(self, position: int, size: int) -> Batches:
        self.read += 1
        ends = [sum(self.sizes[:number]) for number in range(len(self.parts))]
        found = self.parts[ends.index(position)]
        if isinstance(found, ErrorCode):
            raise RefusedBatchError(found, "as the test wants it")
        return Batches([found])


class Node:
    """A broker that leads some partitions alone."""

    def __init__(self) -> None:
        self.logs = Logs()
        self.broker = Broker(Context(ME, 7, BrokerSettings(), self.logs), b"seed")  # type: ignore[arg-type]
        config = TopicConfig(max_message_bytes=LIMIT, min_insync_replicas=1)
        topics = {
            name: TopicRecord(name=name, topic_id=name, partitions=4, replication_factor=2, config=each)
            for name, each in (
                ("t", config),
                ("kept", structs.replace(config, cleanup_policy="compact")),
            )
        }
        led = {partition: led_by(ME, partition) for partition in (*LED, KEPT)}
        records = {
            partition: structs.replace(
                versioned, record=structs.replace(versioned.record, isr=(versioned.record.leader,))
            )
            for partition, versioned in {**led, FOLLOWED: led_by(2, FOLLOWED)}.items()
        }
        self.now = 1.0
        self.replies: list[Reply] = []
        self.appends: list[fx.Append] = []
        self.tell(ViewRead(ClusterView(topics=topics, partitions=records)))
        for partition in records:
            self.tell(Report(partition, OPENED))
            if partition != FOLLOWED:
                self.tell(Report(partition, ev.EpochAssigned()))

    def tell(self, event: Any) -> list[Effect]:
        effects = self.broker.step(event, self.now)
        self.note(effects)
        return effects

    def note(self, effects: list[Effect]) -> None:
        self.replies += [each for each in effects if isinstance(each, Reply)]
        self.appends += [each for each in effects if isinstance(each, fx.Append)]

    def produce(
        self,
        *wanted: tuple[PartitionId, Info | ErrorCode],
        acks: int = -1,
        timeout_ms: int = 1000,
        request: str = "r",
    ) -> Payload:
        payload = Payload([part for _, part in wanted])
        message = m.ProduceRequest(
            acks=acks,
            timeout_ms=timeout_ms,
            partitions=[
                m.ProducePartition(topic=partition.topic, partition=partition.partition, size=size)
                for (partition, _), size in zip(wanted, payload.sizes, strict=True)
            ],
        )
        self.tell(ProduceArrived(request, message, payload))
        return payload

    def with_follower(self, partition: PartitionId) -> None:
        """Another replica, which never fetches, is in the ISR."""
        known = self.broker.context.replicas[partition].versioned
        assert known is not None
        both = structs.replace(known.record, isr=(ME, 2), partition_epoch=2)
        changed = structs.replace(known, record=both, version=2)
        self.tell(Report(partition, ev.RecordChanged(versioned=changed)))

    def write(self) -> None:
        """Every append is done."""
        jobs, self.appends = self.appends, []
        for job in jobs:
            assert isinstance(job, fx.Append)
            self.tell(Report(job.partition, ev.Appended(log_end_offset=job.batches[-1].next_offset)))

    def result(self) -> list[tuple[int, int]]:
        """(partition, error) of the one answer, which is taken."""
        (reply,) = self.replies
        self.replies = []
        assert isinstance(reply.response, m.ProduceResponse | m.DeleteRecordsResponse)
        return [(each.partition, each.error) for each in reply.response.partitions]


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_request_is_answered_when_its_last_partition_is_known(node: Node) -> None:
    node.produce((LED[0], Info(base_offset=0)), (LED[1], Info(base_offset=0)))
    assert not node.replies
    first, second = node.appends
    node.tell(Report(first.partition, ev.Appended(log_end_offset=1)))
    assert not node.replies
    node.tell(Report(second.partition, ev.Appended(log_end_offset=1)))
    assert node.result() == [(0, ErrorCode.NONE), (1, ErrorCode.NONE)]
    assert node.broker.producing.parked == 0


def test_a_refused_batch_refuses_its_partition_alone(node: Node) -> None:
    node.produce(
        (LED[0], Info(base_offset=0)), (LED[1], ErrorCode.CORRUPT_MESSAGE), (LED[2], Info(base_offset=0))
    )
    assert [job.partition for job in node.appends] == [LED[0], LED[2]]
    assert not node.replies
    node.write()
    assert sorted(node.result()) == [
        (0, ErrorCode.NONE),
        (1, ErrorCode.CORRUPT_MESSAGE),
        (2, ErrorCode.NONE),
    ]


@pytest.mark.parametrize(
    ("partition", "batch", "error"),
    [
        (UNKNOWN, Info(base_offset=0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (FOLLOWED, Info(base_offset=0), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (LED[0], Info(base_offset=0, size_bytes=LIMIT + 1), ErrorCode.RECORD_TOO_LARGE),
        (LED[0], Info(base_offset=0, is_control=True), ErrorCode.INVALID_RECORD),
        (LED[0], Info(base_offset=0, is_transactional=True), ErrorCode.INVALID_RECORD),
        (
            LED[0],
            Info(base_offset=0, producer_id=5, producer_epoch=-1, base_sequence=0),
            ErrorCode.INVALID_RECORD,
        ),
        (
            LED[0],
            Info(base_offset=0, producer_id=5, producer_epoch=0, base_sequence=-1),
            ErrorCode.INVALID_RECORD,
        ),
        (
            LED[0],
            Info(base_offset=0, producer_id=0, producer_epoch=0, base_sequence=-1),
            ErrorCode.INVALID_RECORD,
        ),
    ],
)
def test_what_may_not_reach_a_log_is_refused_by_name(
    node: Node, partition: PartitionId, batch: Info, error: ErrorCode
) -> None:
    node.produce((partition, batch))
    assert node.result() == [(partition.partition, error)]
    assert not node.appends


def test_a_batch_that_is_not_dense_is_refused(node: Node) -> None:
    @attrs.frozen(kw_only=True)
    class Gaps(Info):
        record_count: int = 1  # type: ignore[misc]

    node.produce((LED[0], Gaps(base_offset=0, count=3)))
    assert node.result() == [(0, ErrorCode.INVALID_RECORD)]


def test_what_is_refused_by_its_size_or_place_is_not_scanned(node: Node) -> None:
    large = Info(base_offset=0, size_bytes=LIMIT + 1)
    assert node.produce((LED[0], large), (UNKNOWN, Info(base_offset=0))).read == 0


@pytest.mark.parametrize("size", [-1, 11])
def test_a_size_beyond_the_payload_refuses_what_it_covers(node: Node, size: int) -> None:
    payload = Payload([Info(base_offset=0)])
    first, second = (
        m.ProducePartition(topic="t", partition=number, size=each) for number, each in ((0, 10), (1, size))
    )
    message = m.ProduceRequest(acks=-1, timeout_ms=1000, partitions=[first, second])
    node.tell(ProduceArrived("r", message, payload))
    node.write()
    assert sorted(node.result()) == [(0, ErrorCode.NONE), (1, ErrorCode.CORRUPT_MESSAGE)]


def test_a_size_below_zero_moves_nobody_elses_batch(node: Node) -> None:
    below, sound = (
        m.ProducePartition(topic="t", partition=number, size=size) for number, size in ((0, -1), (1, 10))
    )
    message = m.ProduceRequest(acks=1, timeout_ms=1000, partitions=[below, sound])
    node.tell(ProduceArrived("r", message, Payload([Info(base_offset=0)])))
    node.write()
    assert node.result() == [(0, ErrorCode.CORRUPT_MESSAGE), (1, ErrorCode.NONE)]


def test_a_batch_may_be_as_large_as_the_limit(node: Node) -> None:
    node.produce((LED[0], Info(base_offset=0, size_bytes=LIMIT)))
    node.write()
    assert node.result() == [(0, ErrorCode.NONE)]


def test_a_partition_takes_one_batch_of_a_request(node: Node) -> None:
    class Two(Payload):
        def produced(self, position: int, size: int) -> Batches:
            return Batches([Info(base_offset=0), Info(base_offset=1)])

    wanted = [m.ProducePartition(topic="t", partition=0, size=20)]
    payload = Two([Info(base_offset=0), Info(base_offset=1)])
    node.tell(ProduceArrived("r", m.ProduceRequest(acks=1, timeout_ms=1, partitions=wanted), payload))
    assert node.result() == [(0, ErrorCode.INVALID_RECORD)]


def test_a_producer_that_believes_in_another_leader_epoch_is_refused(node: Node) -> None:
    wanted = [m.ProducePartition(topic="t", partition=0, size=10, leader_epoch=99)]
    payload = Payload([Info(base_offset=0)])
    node.tell(ProduceArrived("r", m.ProduceRequest(acks=1, timeout_ms=1, partitions=wanted), payload))
    ((_, error),) = node.result()
    assert error != ErrorCode.NONE
    assert not node.appends


def test_acks_of_all_are_awaited_however_far_the_disk_is_behind(node: Node) -> None:
    node.with_follower(LED[0])
    node.logs.behind = MOST_QUEUED
    node.produce((LED[0], Info(base_offset=0)), acks=-1)
    node.write()
    assert not node.replies


def test_a_request_about_nothing_is_answered_at_once(node: Node) -> None:
    node.tell(ProduceArrived("r", m.ProduceRequest(acks=-1, timeout_ms=1, partitions=[]), Payload([])))
    assert node.result() == []
    node.tell(DeleteRecordsArrived("d", m.DeleteRecordsRequest(timeout_ms=1, partitions=[])))
    assert node.result() == []


def test_without_acks_a_node_whose_disk_is_behind_answers_after_the_write(node: Node) -> None:
    node.produce((LED[0], Info(base_offset=0)), acks=0)
    assert node.result() == [(0, ErrorCode.NONE)]
    node.write()
    node.logs.behind = MOST_QUEUED
    node.produce((LED[0], Info(base_offset=0)), acks=0)
    assert not node.replies, (
        "the requests that a connection may have unanswered bound what waits for the disk"
    )
    node.write()
    assert node.result() == [(0, ErrorCode.NONE)]


def test_no_request_waits_for_replicas_longer_than_the_longest_timeout(node: Node) -> None:
    node.with_follower(LED[0])
    node.produce((LED[0], Info(base_offset=0)), timeout_ms=2**31 - 1)
    node.write()
    node.now += LONGEST_TIMEOUT - 1
    node.tell(Report(LED[0], ev.Tick()))
    assert not node.replies
    node.now += 2
    node.tell(Report(LED[0], ev.Tick()))
    ((_, error),) = node.result()
    assert error != ErrorCode.NONE
    assert node.broker.producing.parked == 0


def test_a_request_waits_for_as_long_as_it_says(node: Node) -> None:
    node.with_follower(LED[0])
    node.produce((LED[0], Info(base_offset=0)), timeout_ms=20_000)
    node.write()
    node.now += 19.995
    node.tell(Report(LED[0], ev.Tick()))
    assert not node.replies
    node.now += 0.005
    node.tell(Report(LED[0], ev.Tick()))
    assert node.result() == [(0, ErrorCode.REQUEST_TIMED_OUT)]


def test_a_timeout_below_zero_is_none(node: Node) -> None:
    node.produce((LED[0], Info(base_offset=0)), timeout_ms=-5)
    node.write()
    assert node.result() == [(0, ErrorCode.NONE)]


def test_deletions_are_decided_partition_by_partition(node: Node) -> None:
    node.produce((LED[0], Info(base_offset=0, count=3)))
    node.write()
    node.result()
    wanted = [
        m.DeleteRecordsPartition(topic=each.topic, partition=each.partition, offset=2)
        for each in (LED[0], UNKNOWN, KEPT, FOLLOWED)
    ]
    effects = node.tell(DeleteRecordsArrived("d", m.DeleteRecordsRequest(timeout_ms=1000, partitions=wanted)))
    assert not node.replies
    (job,) = [each for each in effects if isinstance(each, fx.AdvanceLogStart)]
    assert job.partition == LED[0]
    node.tell(Report(LED[0], ev.LogStartAdvanced(log_start_offset=2)))
    assert node.result() == [
        (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, ErrorCode.POLICY_VIOLATION),
        (3, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (0, ErrorCode.NONE),
    ]
    assert node.broker.producing.deleting == 0


def test_a_deletion_waits_no_longer_than_the_longest_timeout(node: Node) -> None:
    node.produce((LED[0], Info(base_offset=0, count=3)))
    node.write()
    node.result()
    wanted = [m.DeleteRecordsPartition(topic="t", partition=0, offset=2)]
    node.tell(DeleteRecordsArrived("d", m.DeleteRecordsRequest(timeout_ms=2**31 - 1, partitions=wanted)))
    node.now += LONGEST_TIMEOUT + 1
    node.tell(Report(LED[0], ev.Tick()))
    assert node.result() == [(0, ErrorCode.REQUEST_TIMED_OUT)], "its log never reports"
    assert node.broker.producing.deleting == 0


PARTS = st.tuples(
    st.sampled_from([*LED, FOLLOWED, UNKNOWN]),
    st.sampled_from(
        [
            Info(base_offset=0),
            Info(base_offset=0, count=3),
            Info(base_offset=0, is_control=True),
            ErrorCode.CORRUPT_MESSAGE,
            Info(base_offset=0, size_bytes=2000),
        ]
    ),
)


@hypothesis.given(
    requests=st.lists(st.tuples(st.lists(PARTS, max_size=5), st.sampled_from((-1, 0, 1))), max_size=6),
    dice=st.data(),
)
def test_each_request_is_answered_once_for_each_partition_whatever_the_order_of_writes(
    requests: list[tuple[list[tuple[PartitionId, Info | ErrorCode]], int]], dice: st.DataObject
) -> None:
    node = Node()
    for number, (parts, acks) in enumerate(requests):
        node.produce(*parts, acks=acks, request=f"r{number}")
    while node.appends:
        # Appends of one partition are done in order, those of different partitions in any.
        partition = dice.draw(st.sampled_from(sorted({job.partition for job in node.appends})))
        job = next(job for job in node.appends if job.partition == partition)
        node.appends.remove(job)
        assert isinstance(job, fx.Append)
        node.tell(Report(partition, ev.Appended(log_end_offset=job.batches[-1].next_offset)))
    assert sorted(str(reply.request) for reply in node.replies) == [f"r{n}" for n in range(len(requests))]
    for reply in node.replies:
        parts, _ = requests[int(str(reply.request)[1:])]
        assert isinstance(reply.response, m.ProduceResponse)
        answered = [PartitionId(each.topic, each.partition) for each in reply.response.partitions]
        assert sorted(answered) == sorted(partition for partition, _ in parts)
    assert node.broker.producing.parked == 0
