"""Fetch: questions of a session to the node, and its answer with the batches as they lie on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from msgspec import structs

from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.node.requests.authorisation import may_read
from insync.replication.node.service import Answer, ServiceError
from insync.transport import Part

from ..client import Client
from ..core.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    Session,
    UnknownSessionError,
    WrongEpochError,
)
from ..protocol import Struct, message
from ..protocol.apis import KafkaError
from .table import IN_A_TURN

LEAST, MOST = 4, 18
BY_ID = 13
"""The first version that names topics by their ids."""
_Response = message("FetchResponse")

Key = tuple[str, int]
Done = Callable[[Struct, Sequence[Part], int], None]
"""Called with the answer, the ranges for its records, and an error that the answer tells, 0 if it tells none."""
PutOff = Callable[[Callable[[], None]], None]
"""Has something done in the loop's next turn."""
_part = _Response.PartitionData.of


@attrs.define(eq=False)
class _Asked:
    """One request under way."""

    client: Client
    request: Struct
    version: int
    session: Session[Any, m.FetchPartition] | None
    questions: Mapping[Any, m.FetchPartition]
    """By what the client calls the topic, and partition. The topic "" is one whose id no topic has."""
    is_full: bool
    done: Done
    put_off: PutOff
    refused: Mapping[Key, m.FetchResult] = attrs.Factory(dict)
    """Answers that the node is not asked for."""
    transactions: Mapping[Key, m.FetchedTransactions] = attrs.Factory(dict)
    """Of readers of committed records: where these end, and which batches before that count for nothing."""

    def in_its_turn(self, work: Callable[[], None]) -> None:
        """At once if there are few partitions."""
        if len(self.questions) <= IN_A_TURN:
            work()
        else:
            self.put_off(work)

    @property
    def isolation(self) -> int:
        return m.READ_COMMITTED if self.request.isolation_level else m.READ_UNCOMMITTED

    def came(self, answer: Answer | ServiceError) -> None:
        """The node's answer."""
        if isinstance(answer, ServiceError):
            self.done(_Response(error_code=answer.code), (), answer.code)
            return
        response: m.FetchResponse = answer.message  # type: ignore[assignment]
        if response.error:
            self.done(_Response(error_code=response.error), (), response.error)
            return
        found = {(each.topic, each.partition): each for each in response.partitions}
        self.transactions = {(each.topic, each.partition): each for each in response.transactions or ()}
        pause = response.throttle_time_ms
        self.in_its_turn(lambda: self.tell(found, answer.parts, pause))

    def tell(self, found: Mapping[Key, m.FetchResult], parts: Sequence[Part], pause: int) -> None:
        """Answer. Ranges are in the order of the node's results."""
        found = {**self.refused, **found}
        # Nothing is said within a session of a partition of which there is nothing new.
        quiet = [each for each in self.questions.values() if each.topic and _place(each) not in found]
        ends: dict[Key, tuple[int, int, int]] = {}

        def look(first: int) -> None:
            ends.update(self._ends(quiet[first : first + IN_A_TURN]))
            go_on(first + IN_A_TURN)

        def go_on(first: int) -> None:
            if first >= len(quiet) or not self.is_full:
                self.in_its_turn(lambda: self._put_together(found, ends, parts, pause))
            else:
                self.in_its_turn(lambda: look(first))

        go_on(0)

    def _put_together(
        self,
        found: Mapping[Key, m.FetchResult],
        ends: Mapping[Key, tuple[int, int, int]],
        parts: Sequence[Part],
        pause: int,
    ) -> None:
        ranges = dict(zip([key for key, each in found.items() if each.size], parts, strict=True))
        told = _Response(throttle_time_ms=pause)
        if self.session is not None:
            told.session_id = self.session.session_id
        topics: dict[Any, tuple[list[Struct], list[Part]]] = {}
        leaders: dict[int, None] = {}
        is_full = self.is_full
        error = 0
        # Of the partitions of a session, those of one topic need not be next to each other.
        topic: Any = None
        partitions: list[Struct] = []
        records: list[Part] = []
        for key, asked in self.questions.items():
            place = asked.topic, asked.partition
            result = found.get(place)
            if result is None and asked.topic and not is_full:
                continue
            part = self._partition(asked, result, ends, leaders)
            if not (part.records or part.error_code or self._has_news(key, part)):
                continue
            if key[0] is not topic:
                topic = key[0]
                if topic not in topics:
                    topics[topic] = [], []
                partitions, records = topics[topic]
            partitions.append(part)
            error = error or part.error_code
            if part.records:
                records.append(ranges[place])
        named_by = "topic_id" if self.version >= BY_ID else "topic"
        told.responses = [
            _Response.FetchableTopicResponse(**{named_by: topic}, partitions=partitions)
            for topic, (partitions, _) in topics.items()
        ]
        if self.version >= 16 and leaders:
            brokers = self.client.directory.brokers(self.client.view)
            told.node_endpoints = [
                _Response.NodeEndpoint(node_id=node, host=at.host, port=at.port, rack=at.rack)
                for node in leaders
                if (at := brokers.get(node)) is not None
            ]
        of_all = [each for _, records in topics.values() for each in records]
        self.in_its_turn(lambda: self.done(told, of_all, error))

    def _has_news(self, key: Any, part: Struct) -> bool:
        """Whether an answer within a session has to name a partition without records."""
        if self.session is None:
            return True
        state = part.high_watermark, part.last_stable_offset, part.log_start_offset
        news = self.is_full or self.session.told.get(key) != state
        self.session.told[key] = state
        return news

    def _partition(
        self,
        asked: m.FetchPartition,
        result: m.FetchResult | None,
        ends: Mapping[Key, tuple[int, int, int]],
        leaders: dict[int, None],
    ) -> Struct:
        if not asked.topic:
            return _part(
                partition_index=asked.partition,
                error_code=KafkaError.UNKNOWN_TOPIC_ID,
                high_watermark=-1,
                aborted_transactions=None,
                records=b"",
            )
        if result is None:
            return self._quiet(asked, *ends[_place(asked)])
        error = result.error
        part = _part(
            partition_index=asked.partition,
            error_code=error,
            high_watermark=result.high_watermark,
            log_start_offset=result.log_start_offset,
            aborted_transactions=[] if self.request.isolation_level else None,
            records=result.size or b"",
        )
        if self.transactions:
            transactions = self.transactions.get((asked.topic, asked.partition))
            if transactions is not None:
                part.last_stable_offset = transactions.last_stable_offset
                part.aborted_transactions = [
                    _Response.AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
                    for each in transactions.aborted
                ]
        if result.diverging is not None:
            part.diverging_epoch = _Response.EpochEndOffset(
                epoch=result.diverging.epoch, end_offset=result.diverging.end_offset
            )
        if error:
            self._tell_error(part, result, leaders)
        return part

    def _tell_error(self, part: Struct, result: m.FetchResult, leaders: dict[int, None]) -> None:
        if result.error == ErrorCode.KAFKA_STORAGE_ERROR and self.version <= 5:
            part.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if result.leader >= 0 and part.error_code in (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.FENCED_LEADER_EPOCH,
        ):
            part.current_leader = _Response.LeaderIdAndEpoch(
                leader_id=result.leader, leader_epoch=result.leader_epoch
            )
            leaders[result.leader] = None

    def _quiet(self, asked: m.FetchPartition, latest: int, stable: int, earliest: int) -> Struct:
        """Nothing new, but the client wants to be told of every partition: where its log begins and ends."""
        return _part(
            partition_index=asked.partition,
            high_watermark=latest,
            last_stable_offset=stable,
            log_start_offset=earliest,
            aborted_transactions=[] if self.isolation else None,
            records=b"",
        )

    def _ends(self, quiet: Sequence[m.FetchPartition]) -> dict[Key, tuple[int, int, int]]:
        """Of each: where it ends, for readers of all and of committed records, and where it begins; -1: unknown.

        A reader of all is not told the end of committed records.
        """
        latest = self._offsets(quiet, m.LATEST_TIMESTAMP, m.READ_UNCOMMITTED)
        earliest = self._offsets(quiet, m.EARLIEST_TIMESTAMP, m.READ_UNCOMMITTED)
        stable = [-1] * len(quiet)
        if self.isolation:
            stable = self._offsets(quiet, m.LATEST_TIMESTAMP, m.READ_COMMITTED)
        return dict(zip(map(_place, quiet), zip(latest, stable, earliest, strict=True), strict=True))

    def _offsets(self, quiet: Sequence[m.FetchPartition], at: int, isolation: int) -> list[int]:
        found = [-1] * len(quiet)

        def came(answer: Answer | ServiceError) -> None:
            if isinstance(answer, Answer):
                response: m.ListOffsetsResponse = answer.message  # type: ignore[assignment]
                found[:] = [-1 if each.error else each.offset for each in response.partitions]

        wanted = [
            m.ListOffsetsPartition(topic=each.topic, partition=each.partition, timestamp=at) for each in quiet
        ]
        # Answered at once: no log has to be looked at.
        request = m.ListOffsetsRequest(partitions=wanted, isolation_level=isolation)
        self.client.service.call(self.client, request, came)
        return found


def _place(asked: m.FetchPartition) -> Key:
    return asked.topic, asked.partition


def start(client: Client, request: Struct, version: int, done: Done, put_off: PutOff) -> None:
    """Ask the node, unless all is known already."""
    try:
        session, questions, is_full = _questions(client, request, version)
    except UnknownSessionError:
        error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        done(_Response(error_code=error), (), error)
        return
    except WrongEpochError:
        error = ErrorCode.INVALID_FETCH_SESSION_EPOCH
        done(_Response(error_code=error), (), error)
        return
    asked = _Asked(client, request, version, session, questions, is_full, done, put_off)
    replica = request.replica_id if version < 15 else request.replica_state.replica_id
    allowed = client.service.allowed(client.peer)
    asked.refused = {
        _place(each): m.FetchResult(
            topic=each.topic, partition=each.partition, error=KafkaError.TOPIC_AUTHORIZATION_FAILED
        )
        for each in questions.values()
        if replica >= 0 or not may_read(each.topic, allowed)
    }
    known = [each for each in questions.values() if each.topic and _place(each) not in asked.refused]
    if len(known) < len(questions):
        # An id that no topic has, and a topic that the client may not read, are told of at once.
        if known:
            asked.in_its_turn(lambda: _ask(asked, known, 0))
        else:
            asked.in_its_turn(lambda: asked.tell({}, (), 0))
        return
    asked.in_its_turn(lambda: _ask(asked, known, max(0, request.max_wait_ms)))


def _ask(asked: _Asked, known: list[m.FetchPartition], wait_ms: int) -> None:
    request = asked.request
    fetch = m.FetchRequest(
        replica_id=-1,
        incarnation=0,
        max_wait_ms=wait_ms,
        min_bytes=max(0, request.min_bytes),
        max_bytes=max(0, request.max_bytes),
        partitions=known,
        client_id=asked.client.client_id,
        isolation_level=asked.isolation,
    )
    asked.client.service.call(asked.client, fetch, asked.came)


def _questions(
    client: Client, request: Struct, version: int
) -> tuple[Session[Any, m.FetchPartition] | None, Mapping[Any, m.FetchPartition], bool]:
    """The session, all that is asked, and whether every partition is to be told of."""
    asked = _named(client, request, version)
    sessions, session_id, epoch = client.sessions, request.session_id, request.session_epoch
    if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        if session_id != NO_SESSION:
            sessions.end(session_id)
        session = sessions.begin(asked) if epoch == INITIAL_EPOCH and version >= 7 else None
        return session, asked, True
    forgotten = [
        (each.topic_id if version >= BY_ID else each.topic, index)
        for each in request.forgotten_topics_data
        for index in each.partitions
    ]
    session = sessions.go_on(session_id, epoch, asked, forgotten)
    for key, question in session.asked.items():
        # One that was unknown may be there by now.
        if not question.topic and (name := client.directory.name_of(client.view, key[0])):
            session.asked[key] = structs.replace(question, topic=name)
    return session, session.asked, False


def _named(client: Client, request: Struct, version: int) -> dict[Any, m.FetchPartition]:
    found: dict[Any, m.FetchPartition] = {}
    for topic in request.topics:
        name = called = topic.topic
        topic_id = ""
        if version >= BY_ID:
            called = topic.topic_id
            name, topic_id = client.directory.name_of(client.view, called) or "", called.hex()
        for part in topic.partitions:
            found[called, part.partition] = m.FetchPartition(
                topic=name,
                partition=part.partition,
                fetch_offset=part.fetch_offset,
                max_bytes=max(0, part.partition_max_bytes),
                leader_epoch=part.current_leader_epoch,
                last_fetched_epoch=part.last_fetched_epoch,
                topic_id=topic_id,
            )
    return found
