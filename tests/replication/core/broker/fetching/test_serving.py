"""Fetch requests on their leader: what is answered when, to whom, and what must never be answered."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from msgspec import structs

from insync.replication.core.broker.context import BrokerSettings, Context
from insync.replication.core.broker.effects import Answer, CloseConnection, Effect, Fail, Refuse, Warm
from insync.replication.core.broker.events import Cancelled, Disconnected, Event, FetchArrived, Report, Warmed
from insync.replication.core.broker.fetching.fetch_session import NEW_SESSION, WITHOUT_SESSION
from insync.replication.core.broker.fetching.serving import QUIET_DELAY
from insync.replication.core.broker.machine import Broker
from insync.replication.core.broker.ports import COLD, Cold, LogReadError
from insync.replication.core.control.records import Versioned
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchPartition,
    FetchRequest,
    FetchResult,
    PartitionName,
)
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.types import BatchMeta, PartitionId
from tests.replication.core.partition.test_isr_change import LIVE, A, B, C, record

SIZE = 100
"""Of each batch, which holds one record."""


class Range(NamedTuple):
    range: str
    size: int


class Logs:
    """Every log holds a batch at each offset, as far as it may be read."""

    def __init__(self) -> None:
        self.cold: set[tuple[PartitionId, int]] = set()
        self.broken: dict[PartitionId, ErrorCode] = {}

    def range_at(
        self, partition: PartitionId, offset: int, max_bytes: int, limit_offset: int
    ) -> Range | Cold:
        if partition in self.broken:
            raise LogReadError(self.broken[partition], "it cannot be read")
        if (partition, offset) in self.cold:
            return COLD
        count = min(limit_offset - offset, max(1, max_bytes // SIZE))
        return Range(f"{partition}:{offset}..{offset + count}", count * SIZE)


class Peer(NamedTuple):
    node_id: int
    principal: str = "somebody"


class Serve:
    """A broker that leads `count` partitions with B in sync, all of them empty; `connection` is that of B."""

    def __init__(self, count: int = 1, **settings: int | float) -> None:
        self.logs = Logs()
        self.now = 10.0
        self.context = Context(A, LIVE[A], BrokerSettings(**settings), self.logs)  # type: ignore[arg-type]
        self.broker = Broker(self.context, b"a seed")
        # Batches come from nowhere here, and nobody waits for what becomes of them.
        self.context.parts = structs.replace(self.context.parts, replied=lambda partition, reply: None)
        self.partitions = [PartitionId("x", number) for number in range(count)]
        self.requests = 0
        self.session = self.answers = 0
        for partition in self.partitions:
            self.context.new_replica(partition)
            opened = ev.Opened(
                log_start_offset=0, log_end_offset=0, high_watermark=0, epochs=(), producers=()
            )
            self.report(partition, opened)
            self.report(partition, ev.NodesChanged(live=LIVE))
            versioned = Versioned(structs.replace(record(isr=(A, B)), partition=partition.partition), 1)
            self.report(partition, ev.RecordChanged(versioned=versioned))
            self.report(partition, ev.EpochAssigned())
        self.settle()

    def tell(self, event: Event) -> list[Effect]:
        return self.broker.step(event, self.now)

    def report(self, partition: PartitionId, event: ev.Event) -> list[Effect]:
        return self.tell(Report(partition, event))

    def settle(self) -> list[Effect]:
        return self.broker.settle(self.now)

    def append(self, *partitions: PartitionId) -> list[Effect]:
        """One batch in each; all are reported before anybody looks."""
        effects: list[Effect] = []
        for partition in partitions:
            base = self.context.replicas[partition].log.next_offset
            batch = BatchMeta(0, 1, -1, SIZE)
            produce = ev.Produce(request_id=base, acks=1, batch=batch, deadline=1e9, handle=None)
            self.report(partition, produce)
            effects += self.report(partition, ev.Appended(log_end_offset=base + 1))
        return effects + self.settle()

    def wait(self, seconds: float) -> list[Effect]:
        self.now += seconds
        return self.broker.tick(self.now) + self.settle()

    def question(self, partition: PartitionId, offset: int, high_watermark: int = 0) -> FetchPartition:
        return FetchPartition(
            topic=partition.topic,
            partition=partition.partition,
            fetch_offset=offset,
            max_bytes=10 * SIZE,
            leader_epoch=1,
            last_fetched_epoch=1 if offset else -1,
            high_watermark=high_watermark,
            topic_id="x",
        )

    def fetch(
        self,
        *questions: FetchPartition,
        node: int = B,
        connection: str = "of B",
        peer: int | None = None,
        session_id: int = 0,
        session_epoch: int = WITHOUT_SESSION,
        forgotten: tuple[PartitionId, ...] = (),
        max_wait_ms: int = 500,
        max_bytes: int = 100 * SIZE,
        min_bytes: int = 1,
    ) -> list[Effect]:
        """The next request; they are named r1, r2 and so on."""
        self.requests += 1
        message = FetchRequest(
            replica_id=node,
            incarnation=LIVE.get(node, -1),
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            partitions=list(questions),
            session_id=session_id,
            session_epoch=session_epoch,
            forgotten=[PartitionName(topic=each.topic, partition=each.partition) for each in forgotten],
        )
        peer = node if peer is None else peer
        return self.tell(FetchArrived(connection, f"r{self.requests}", message, Peer(peer)))

    def begin(self, *questions: FetchPartition, **options: int) -> list[Effect]:
        """A session of B, whose first answer tells all there is; with nothing to tell it waits."""
        effects = self.fetch(*questions, session_epoch=NEW_SESSION, **options)  # type: ignore[arg-type]
        for answer in answers(effects):
            self.session, self.answers = answer.response.session_id, 1
        return effects

    def go_on(
        self, *questions: FetchPartition, forgotten: tuple[PartitionId, ...] = (), **options: int
    ) -> list[Effect]:
        effects = self.fetch(
            *questions,
            session_id=self.session,
            session_epoch=self.answers,
            forgotten=forgotten,
            **options,  # type: ignore[arg-type]
        )
        self.answers += len(answers(effects))
        return effects


def answers(effects: list[Effect]) -> list[Answer]:
    return [effect for effect in effects if isinstance(effect, Answer)]


def answer(effects: list[Effect]) -> Answer:
    (only,) = answers(effects)
    return only


def results(effects: list[Effect]) -> dict[int, FetchResult]:
    return {result.partition: result for result in answer(effects).response.partitions}


def test_a_fetch_is_answered_at_once_if_there_is_something_and_else_when_there_is() -> None:
    serve = Serve()
    (partition,) = serve.partitions
    assert serve.fetch(serve.question(partition, 0)) == []
    assert serve.broker.serving.parked == 1
    told = answer(serve.append(partition))
    assert (told.request, told.parts) == ("r1", ["x-0:0..1"])
    assert (told.response.partitions[0].size, told.response.session_id) == (SIZE, 0)
    assert serve.broker.serving.parked == 0
    assert answer(serve.fetch(serve.question(partition, 0))).parts == ["x-0:0..1"]


def test_a_fetch_that_has_waited_enough_is_answered_without_news() -> None:
    serve = Serve()
    serve.fetch(serve.question(serve.partitions[0], 0))
    assert serve.wait(0.4) == []
    assert results(serve.wait(0.2)) == {}
    assert results(serve.fetch(serve.question(serve.partitions[0], 0), max_wait_ms=0)) == {}


def test_partitions_that_are_reported_together_are_told_together() -> None:
    serve = Serve(3)
    serve.fetch(*(serve.question(partition, 0) for partition in serve.partitions))
    assert set(results(serve.append(*serve.partitions))) == {0, 1, 2}


def test_min_bytes_are_waited_for_but_no_longer_than_max_wait() -> None:
    serve = Serve()
    (partition,) = serve.partitions
    serve.fetch(serve.question(partition, 0), min_bytes=2 * SIZE)
    assert answers(serve.append(partition)) == []
    assert results(serve.append(partition))[0].size == 2 * SIZE
    serve.fetch(serve.question(partition, 1), min_bytes=2 * SIZE)
    assert results(serve.wait(0.6))[0].size == SIZE


def test_who_asks_for_no_bytes_is_answered_at_once() -> None:
    """As by Kafka (fetch.min.bytes=0), with and without records."""
    serve = Serve()
    (partition,) = serve.partitions
    assert results(serve.fetch(serve.question(partition, 0), min_bytes=0)) == {}
    serve.append(partition)
    assert results(serve.fetch(serve.question(partition, 0), min_bytes=0))[0].size == SIZE


def test_an_error_does_not_wait_for_bytes() -> None:
    serve = Serve()
    unknown = structs.replace(serve.question(serve.partitions[0], 0), topic="nobody", leader_epoch=-1)
    told = answer(serve.fetch(unknown, min_bytes=10_000))
    assert told.response.partitions[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    serve.context.view = ClusterView(partitions={PartitionId("nobody", 0): Versioned(record(), 1)})
    told = answer(serve.fetch(unknown, min_bytes=10_000))
    assert told.response.partitions[0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_log_that_cannot_be_read_is_the_error_of_its_partition_alone() -> None:
    serve = Serve(2)
    serve.append(*serve.partitions)
    serve.logs.broken[serve.partitions[0]] = ErrorCode.KAFKA_STORAGE_ERROR
    told = results(serve.fetch(*(serve.question(partition, 0) for partition in serve.partitions)))
    assert (told[0].error, told[0].size, told[0].message) == (
        ErrorCode.KAFKA_STORAGE_ERROR,
        0,
        "it cannot be read",
    )
    assert (told[1].error, told[1].size) == (ErrorCode.NONE, SIZE)


def test_what_finds_no_room_in_an_answer_is_news_for_the_next_request() -> None:
    """Without another word about it: the follower's question is open, and no new batch may ever come."""
    serve = Serve(3)
    serve.begin(max_wait_ms=0)
    serve.append(*serve.partitions)
    questions = [serve.question(partition, 0) for partition in serve.partitions]
    assert set(results(serve.go_on(*questions, max_bytes=SIZE))) == {0}
    assert set(results(serve.go_on(max_bytes=SIZE))) == {1}
    assert set(results(serve.go_on(max_bytes=SIZE))) == {2}
    assert answers(serve.go_on(max_bytes=SIZE)) == []


def test_an_answer_is_about_so_many_partitions_at_most() -> None:
    """Each may hold a file open until it is sent, and thousands of results exceed what a response may be."""
    serve = Serve(5, results_at_a_time=2)
    serve.begin(max_wait_ms=0)
    serve.append(*serve.partitions)
    questions = [serve.question(partition, 0) for partition in serve.partitions]
    assert set(results(serve.go_on(*questions))) == {0, 1}
    assert set(results(serve.go_on())) == {2, 3}
    assert set(results(serve.go_on())) == {4}
    assert answers(serve.go_on()) == []
    assert set(results(serve.fetch(*questions))) == {0, 1}, "without a session, too"


def test_high_watermarks_alone_are_told_in_portions_too() -> None:
    serve = Serve(5, results_at_a_time=2)
    serve.append(*serve.partitions)
    serve.begin(*(serve.question(partition, 1) for partition in serve.partitions), max_wait_ms=0)
    told = set()
    for _ in range(3):
        found = answers(serve.go_on(max_wait_ms=0))
        told |= {each.partition for each in found[0].response.partitions}
    assert told == {2, 3, 4}


def test_a_first_batch_is_told_however_large_it_is() -> None:
    serve = Serve(2)
    serve.append(*serve.partitions)
    questions = [serve.question(partition, 0) for partition in serve.partitions]
    told = results(serve.fetch(*questions, max_bytes=1))
    assert (told[0].size, told[1].size) == (SIZE, 0)
    told = results(serve.fetch(*questions, max_bytes=0))
    assert (told[0].size, told[1].size) == (SIZE, 0), "one batch in any case"


def test_an_idle_partition_of_a_session_is_not_looked_at_again() -> None:
    serve = Serve(2)
    serve.begin(*(serve.question(partition, 0) for partition in serve.partitions), max_wait_ms=0)
    asked: list[PartitionId] = []
    ask = serve.context.ask_replica

    def noted(partition: PartitionId, question: ev.Fetch) -> fx.FetchAnswer:
        asked.append(partition)
        return ask(partition, question)

    serve.context.ask_replica = noted  # type: ignore[method-assign]
    assert serve.go_on() == []
    assert set(results(serve.append(serve.partitions[1]))) == {1}
    assert set(asked) == {serve.partitions[1]}


def test_a_replica_is_asked_what_the_request_says(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = Serve()
    (partition,) = serve.partitions
    asked: list[ev.Fetch] = []

    def ask(partition: PartitionId, question: ev.Fetch) -> fx.FetchAnswer:
        asked.append(question)
        return fx.FetchAnswer(error=ErrorCode.NONE, news=False)

    monkeypatch.setattr(serve.context, "ask_replica", ask)
    said = {
        "fetch_offset": 1,
        "max_bytes": 2,
        "leader_epoch": 3,
        "last_fetched_epoch": 4,
        "high_watermark": 5,
        "log_start_offset": 6,
    }
    wanted = FetchPartition(
        topic=partition.topic,
        partition=partition.partition,
        topic_id="x",
        **said,  # type: ignore[arg-type]
    )
    for level in (READ_UNCOMMITTED, READ_COMMITTED):
        message = FetchRequest(
            replica_id=-1,
            incarnation=7,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=8,
            partitions=[wanted],
            isolation_level=level,
        )
        serve.tell(FetchArrived("of a consumer", f"r{level}", message, Peer(-1)))
        question = ev.Fetch(
            replica_id=-1, incarnation=7, topic_id="x", read_committed=level == READ_COMMITTED, **said
        )
        assert asked.pop() == question


def test_no_answer_is_made_to_a_member_that_has_everything() -> None:
    serve = Serve()
    (partition,) = serve.partitions
    serve.append(partition)
    serve.begin(serve.question(partition, 0))
    serve.context.ask_replica = None  # type: ignore[assignment, method-assign]
    serve.go_on(serve.question(partition, 1))
    assert serve.context.replicas[partition].log.high_watermark == 1
    assert serve.settle() == [], "only the high watermark is news, which waits for more"


def test_a_member_that_has_everything_hears_of_the_high_watermark_after_a_while() -> None:
    serve = Serve()
    (partition,) = serve.partitions
    serve.append(partition)
    serve.begin(serve.question(partition, 0))
    for _ in range(2):  # the second time the high watermark has moved before
        assert serve.go_on(serve.question(partition, 1)) == []
        assert serve.settle() == []
        assert results(serve.wait(QUIET_DELAY))[0].high_watermark == 1
        serve.answers += 1
    assert serve.go_on(serve.question(partition, 1, high_watermark=1)) == []
    assert serve.wait(2 * QUIET_DELAY) == [], "it knows"


def test_a_member_that_has_everything_hears_of_the_high_watermark_at_once_in_a_new_session() -> None:
    serve = Serve()
    (partition,) = serve.partitions
    serve.append(partition)
    serve.begin(serve.question(partition, 0))
    serve.go_on(serve.question(partition, 1))
    assert results(serve.begin(serve.question(partition, 1)))[0].high_watermark == 1


def test_a_member_that_waits_hears_after_a_while_what_another_one_has_committed() -> None:
    serve = Serve()
    (partition,) = serve.partitions
    versioned = Versioned(structs.replace(record(isr=(A, B, C)), partition=partition.partition), 2)
    serve.report(partition, ev.RecordChanged(versioned=versioned))
    serve.append(partition)
    serve.begin(serve.question(partition, 0))
    serve.go_on(serve.question(partition, 1))
    assert serve.wait(2 * QUIET_DELAY) == []
    serve.fetch(serve.question(partition, 1), node=C, connection="of C", max_wait_ms=0)
    assert serve.settle() == []
    assert results(serve.wait(QUIET_DELAY))[0].high_watermark == 1


def test_a_cold_read_is_warmed_once_and_told_when_it_is_warm() -> None:
    serve = Serve()
    (partition,) = serve.partitions
    serve.append(partition)
    serve.logs.cold.add((partition, 0))
    asked = serve.fetch(serve.question(partition, 0))
    assert asked == [Warm(partition, 0, 10 * SIZE, 1)]
    assert serve.fetch(serve.question(partition, 0), node=-1, connection="of a consumer") == []
    serve.tell(Warmed(partition, 0))
    assert serve.settle() == [Warm(partition, 0, 10 * SIZE, 1)], "it is as cold as before"
    serve.logs.cold.clear()
    serve.tell(Warmed(partition, 0))
    assert answer(serve.settle()).request == "r1", "the consumer reads what is committed, which is nothing"


def test_a_session_is_closed_to_every_other_connection() -> None:
    serve = Serve()
    (partition,) = serve.partitions
    serve.begin(serve.question(partition, 0), max_wait_ms=0)
    for epoch in range(4):
        claim = serve.fetch(
            node=-1,
            connection="of a stranger",
            session_id=serve.session,
            session_epoch=epoch or 1,
            forgotten=(partition,),
        )
        assert answer(claim).response.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    serve.tell(Disconnected("of a stranger"))
    assert serve.go_on() == []
    assert results(serve.append(partition))[0].size == SIZE


def test_nobody_asks_in_the_name_of_a_node() -> None:
    serve = Serve()
    (partition,) = serve.partitions
    serve.append(partition)
    for peer in (-1, C):
        (refused,) = serve.fetch(serve.question(partition, 1), peer=peer)
        assert isinstance(refused, Refuse)
        assert "somebody is not node 2" in refused.detail
    (refused,) = serve.fetch(serve.question(partition, 1), node=0, peer=C)
    assert isinstance(refused, Refuse) and "somebody is not node 0" in refused.detail
    assert serve.context.replicas[partition].log.high_watermark == 0


def test_a_session_that_goes_on_gives_up_the_request_that_waits() -> None:
    serve = Serve()
    (partition,) = serve.partitions
    serve.begin(serve.question(partition, 0), max_wait_ms=0)
    serve.go_on()
    (failed,) = serve.go_on()
    assert isinstance(failed, Fail)
    assert (failed.request, failed.code) == ("r2", ErrorCode.INVALID_REQUEST)
    assert answer(serve.append(partition)).request == "r3"


def test_a_request_that_was_given_up_is_not_answered_and_its_session_goes_on() -> None:
    serve = Serve()
    (partition,) = serve.partitions
    serve.begin(serve.question(partition, 0), max_wait_ms=0)
    serve.go_on()
    serve.tell(Cancelled("r2"))
    assert answers(serve.append(partition)) == []
    assert answers(serve.wait(1.0)) == []
    assert results(serve.go_on())[0].size == SIZE
    serve.fetch(serve.question(partition, 1), connection="another")
    serve.tell(Cancelled("r4"))
    assert answers(serve.append(partition)) == []


def test_a_session_that_gives_way_is_told_so_at_once() -> None:
    serve = Serve(max_fetch_sessions=1, fetch_session_idle=5.0)
    question = serve.question(serve.partitions[0], 0)
    serve.begin(question, max_wait_ms=0)
    serve.go_on(max_wait_ms=60_000)
    other = answer(serve.fetch(question, connection="other", session_epoch=NEW_SESSION, max_wait_ms=0))
    assert other.response.session_id == 0, "the one in use stays"
    serve.wait(5.0)
    effects = serve.fetch(question, connection="other", session_epoch=NEW_SESSION, max_wait_ms=0)
    evicted, begun = answers(effects)
    assert (evicted.request, evicted.response.error) == ("r2", ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert begun.response.session_id not in (0, serve.session)


def test_sessions_go_with_their_connection() -> None:
    serve = Serve()
    serve.begin(serve.question(serve.partitions[0], 0), max_wait_ms=0)
    serve.tell(Disconnected("of B"))
    assert serve.broker.serving.sessions == {}
    assert answer(serve.go_on()).response.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def committed(serve: Serve) -> list[Effect]:
    """B has the first batch of a session, and the high watermark follows."""
    (partition,) = serve.partitions
    serve.begin(serve.question(partition, 0), max_wait_ms=0)
    serve.append(partition)
    serve.go_on()
    return serve.go_on(serve.question(partition, 1)) + serve.settle()


def test_a_high_watermark_alone_waits_a_moment_for_company() -> None:
    serve = Serve()
    assert answers(committed(serve)) == []
    assert serve.context.replicas[serve.partitions[0]].log.high_watermark == 1
    assert answers(serve.wait(0.9 * QUIET_DELAY)) == []
    assert results(serve.wait(0.2 * QUIET_DELAY))[0].high_watermark == 1


def test_a_high_watermark_goes_along_with_the_next_batches() -> None:
    serve = Serve()
    committed(serve)
    told = results(serve.append(serve.partitions[0]))[0]
    assert (told.high_watermark, told.size) == (1, SIZE)
    serve.answers += 1
    assert answers(serve.wait(2 * QUIET_DELAY)) == []


def test_ranges_in_flight_past_a_cut_go_with_their_connection_before_it() -> None:
    serve = Serve()
    (partition,) = serve.partitions
    serve.append(partition, partition)
    serve.fetch(serve.question(partition, 0))
    serve.append(partition)
    serve.fetch(serve.question(partition, 0), connection="later")
    serve.tell(Disconnected("of B"))
    serve.report(partition, ev.RecordChanged(versioned=Versioned(record(leader=B, epoch=2), 2)))
    answered = ev.Fetched(
        fetch_offset=3, leader_epoch=2, error=ErrorCode.OFFSET_OUT_OF_RANGE, log_end_offset=2
    )
    closed, cut = serve.report(partition, answered)
    assert isinstance(closed, CloseConnection) and closed.connection == "later"
    assert cut == fx.Truncate(partition=partition, offset=2)


@pytest.mark.parametrize("adding", [True, False])
def test_a_replica_that_is_being_added_is_served_at_a_pace(adding: bool) -> None:
    serve = Serve(leader_replication_throttled_rate=SIZE)
    (partition,) = serve.partitions
    moving = structs.replace(record(isr=(A, B)), partition=0, adding=(C,) if adding else ())
    serve.context.view = ClusterView(partitions={partition: Versioned(moving, 2)})
    serve.append(partition, partition, partition)
    fetch = {"node": C, "connection": "of C"}
    told = answer(serve.fetch(serve.question(partition, 0), **fetch)).response  # type: ignore[arg-type]
    assert told.partitions[0].size == (SIZE if adding else 3 * SIZE)
    waits = serve.fetch(serve.question(partition, 1), max_wait_ms=9000, **fetch)  # type: ignore[arg-type]
    assert bool(answers(waits)) != adding
    assert bool(answers(serve.wait(1.1))) == adding
