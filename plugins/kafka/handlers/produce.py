"""Produce: batches from the received frame to the node, and its results back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.node.requests.authorisation import Operation
from insync.replication.node.service import Answer, ServiceError
from insync.transport import Payload

from ..client import Client
from ..core.directory import INTERNAL_TOPICS
from ..protocol import Struct, message
from ..protocol.apis import Api, KafkaError
from .transactions import known_error, version_of

LEAST, MOST = 3, 13
_HEADER, _MAGIC, _ATTRIBUTES = 61, 16, 22
_ZSTD, _ZSTD_SINCE = 4, 7
_TRANSACTIONAL = 1 << 4
_Response = message("ProduceResponse")
_topic_of, _part_of = _Response.TopicProduceResponse.of, _Response.PartitionProduceResponse.of

Done = Callable[[Struct | None, int], None]
"""Called with the answer, or None if the connection is to be closed, and the first error in it, 0 without one."""


class FramePayload:
    """Batches within a received frame, which stays as long as the node needs them."""

    __slots__ = ("_release", "_view", "nbytes")

    source: Literal["pooled", "ring", "range"] = "pooled"

    def __init__(self, view: memoryview, release: Callable[[], None]) -> None:
        self._view = view
        self._release: Callable[[], None] | None = release
        self.nbytes = len(view)

    def view(self) -> memoryview:
        """See `insync.transport.Payload`."""
        if self._release is None:
            raise ValueError("the payload was released")
        return self._view[:]

    def copy_to(self, fd: int, offset: int) -> int:
        """See `insync.transport.Payload`."""
        import os

        return os.pwrite(fd, self.view(), offset)

    def release(self) -> None:
        """See `insync.transport.Payload`."""
        release, self._release = self._release, None
        if release is not None:
            self._view.release()
            release()

    def __enter__(self) -> FramePayload:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Wanted(NamedTuple):
    topic: str
    topic_id: bytes
    partition: int
    place: tuple[int, int] | None
    error: int
    message: str = ""


def start(
    client: Client,
    request: Struct,
    version: int,
    frame: memoryview,
    done: Done,
    release: Callable[[], None],
) -> None:
    """Have the batches appended.

    release: called when the node does not need the frame any more.
    """
    wanted = _wanted(client, request, version, frame)
    sent = [each for each in wanted if not each.error]
    results: dict[tuple[str, int], m.ProduceResult] = {}

    def came(answer: Answer | ServiceError) -> None:
        pause = 0
        if isinstance(answer, ServiceError):
            for each in sent:
                results[each.topic, each.partition] = m.ProduceResult(
                    topic=each.topic, partition=each.partition, error=answer.code, message=str(answer)
                )
        else:
            response: m.ProduceResponse = answer.message  # type: ignore[assignment]
            pause = response.throttle_time_ms
            for result in response.partitions:
                results[result.topic, result.partition] = result
        done(*_answer(client, request, wanted, results, version, pause))

    if not sent:
        release()
        done(*_answer(client, request, wanted, results, version, 0))
        return
    asked = m.ProduceRequest(
        acks=request.acks,
        timeout_ms=max(0, request.timeout_ms),
        client_id=client.client_id,
        transaction=None
        if request.transactional_id is None
        else m.ProduceTransaction(
            transactional_id=request.transactional_id, version=version_of(Api.PRODUCE, version)
        ),
        partitions=[
            m.ProducePartition(topic=each.topic, partition=each.partition, size=each.place[1])
            for each in sent
            if each.place is not None
        ],
    )
    client.service.call(client, asked, came, payload=_payload(sent, frame, release))


def _payload(sent: Sequence[_Wanted], frame: memoryview, release: Callable[[], None]) -> Payload:
    """The batches one after the other, as the node takes them. Those of a small frame are copied, if several."""
    if len(sent) == 1 and sent[0].place is not None:
        start, size = sent[0].place
        return FramePayload(frame[start : start + size], release)
    places = [each.place for each in sent if each.place is not None]
    if frame.readonly:
        joined = b"".join([frame[start : start + size] for start, size in places])
        return FramePayload(memoryview(joined), release)
    start, size = _put_together(frame, places)
    return FramePayload(frame[start : start + size], release)


def _put_together(frame: memoryview, places: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Move batches up to the largest one, over what stands between them; where they begin, and their size.

    places: as they stand in the frame, one behind the other.
    """
    middle = max(range(len(places)), key=lambda at: places[at][1])
    start, size = places[middle]
    end = start + size
    for at, count in reversed(places[:middle]):
        start -= count
        frame[start : start + count] = frame[at : at + count]
    for at, count in places[middle + 1 :]:
        frame[end : end + count] = frame[at : at + count]
        end += count
    return start, end - start


def _wanted(client: Client, request: Struct, version: int, frame: memoryview) -> list[_Wanted]:
    """All partitions of a request, with what is wrong at first sight."""
    may = client.may(Operation.PRODUCE)
    seen: set[tuple[str, int]] = set()
    found: list[_Wanted] = []
    for topic in request.topic_data:
        name = topic.name
        if version >= 13:
            name = client.directory.name_of(client.view, topic.topic_id)
        for part in topic.partition_data:
            error, text = int(ErrorCode.NONE), ""
            if name is None:
                error = KafkaError.UNKNOWN_TOPIC_ID
            elif not may:
                error = KafkaError.TOPIC_AUTHORIZATION_FAILED
            elif name in INTERNAL_TOPICS:
                error = ErrorCode.INVALID_TOPIC
            elif request.acks not in (-1, 0, 1):
                error, text = ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}: use -1, 0 or 1"
            elif (name, part.index) in seen:
                error, text = ErrorCode.INVALID_REQUEST, "the request names the partition twice"
            else:
                error, text = _problem(part.records, version, frame, request.transactional_id)
            seen.add((name or "", part.index))
            found.append(_Wanted(name or "", topic.topic_id, part.index, part.records, error, text))
    return found


def _problem(
    place: tuple[int, int] | None, version: int, frame: memoryview, transactional_id: str | None
) -> tuple[int, str]:
    if place is None or place[1] == 0:
        return ErrorCode.INVALID_RECORD, "no record batch"
    start, size = place
    if size < _HEADER:
        return ErrorCode.CORRUPT_MESSAGE, f"{size} bytes are not a record batch"
    if frame[start + _MAGIC] != 2:
        return (
            ErrorCode.INVALID_RECORD,
            "a batch of a format before 2; clients of Kafka 0.11 and later write 2",
        )
    attributes = frame[start + _ATTRIBUTES]
    if attributes & _TRANSACTIONAL and transactional_id is None:
        error = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return error, "a transactional batch in a request without a transactional id"
    if version < _ZSTD_SINCE and attributes & 7 == _ZSTD:
        return KafkaError.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 7 of the request"
    return ErrorCode.NONE, ""


def _answer(
    client: Client,
    request: Struct,
    wanted: Sequence[_Wanted],
    results: dict[tuple[str, int], m.ProduceResult],
    version: int,
    pause: int,
) -> tuple[Struct | None, int]:
    response = _Response.of(throttle_time_ms=pause)
    first_error = 0
    each = iter(wanted)
    leaders: dict[int, None] = {}
    for topic in request.topic_data:
        told = _topic_of(name=topic.name, topic_id=topic.topic_id)
        for _ in topic.partition_data:
            part = next(each)
            result = results.get((part.topic, part.partition)) if not part.error else None
            answered = _partition(part, result, version, leaders)
            first_error = first_error or answered.error_code
            told.partition_responses.append(answered)
        response.responses.append(told)
    if request.acks == 0:
        # Nobody reads an answer: a connection that ends is how the client hears that it is to look for the leader.
        return (None if first_error else response), 0
    if version >= 10 and leaders:
        brokers = client.directory.brokers(client.view)
        response.node_endpoints = [
            _Response.NodeEndpoint(node_id=node, host=found.host, port=found.port, rack=found.rack)
            for node in leaders
            if (found := brokers.get(node)) is not None
        ]
    return response, first_error


def _partition(
    part: _Wanted, result: m.ProduceResult | None, version: int, leaders: dict[int, None]
) -> Struct:
    if result is None:
        return _part_of(
            index=part.partition,
            error_code=part.error or ErrorCode.UNKNOWN_SERVER_ERROR,
            base_offset=-1,
            error_message=part.message or None,
        )
    error = result.error and known_error(Api.PRODUCE, version, result.error)
    if error == ErrorCode.KAFKA_STORAGE_ERROR and version < 4:
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    told = _part_of(
        index=part.partition,
        error_code=error,
        base_offset=result.base_offset,
        log_start_offset=result.log_start_offset,
        error_message=result.message or None,
    )
    if error == ErrorCode.NOT_LEADER_OR_FOLLOWER and result.leader >= 0:
        told.current_leader = _Response.LeaderIdAndEpoch(
            leader_id=result.leader, leader_epoch=result.leader_epoch
        )
        leaders[result.leader] = None
    return told
