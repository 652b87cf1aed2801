"""What a node makes of requests from anybody: their bodies as they are decoded, and what is then done.

The decoder itself is msgspec's, in C, and does not count as coverage; what led to it and what follows does.
"""

from __future__ import annotations

import atexit
import functools
import math
import random
import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from insync.replication import wire
from insync.replication.core import messages as m
from insync.replication.core.broker.fetching import queries, serving
from insync.replication.core.broker.membership import peers
from insync.replication.core.broker.producing import producing
from insync.replication.core.partition import deletions, leader, log_state, replica
from insync.replication.node.requests import _batch_checks, _fetches, _handlers, _payloads, _produces
from insync.replication.wire import _codec
from insync.storage.batch import build_batch
from insync.transport import RemoteError, Response
from insync.transport.frames import Status

from ._hosted_node import TOPIC, HostedNode
from ._python import PythonTarget

KINDS = sorted(wire.REQUEST_TYPES)
_SPLIT = struct.Struct("<BH")
_PATIENCE = 0.03
"""Of a request that may wait: for records, for followers."""


def run_decoder(raw: bytes) -> None:
    """Bytes are refused, or are a message that says the same when it is encoded again; so with answers."""
    if not raw:
        return
    kind = KINDS[raw[0] % len(KINDS)]
    for decode in (wire.decode_request, wire.decode_response):
        try:
            message = decode(kind, raw[1:])
        except wire.WireError as error:
            assert "of kind" in str(error)
            continue
        assert decode(kind, wire.encode(message)) == message


_hosted: list[HostedNode] = []


def hosted() -> HostedNode:
    """The one node of this process, started when it is first needed."""
    if not _hosted:
        _hosted.append(HostedNode().__enter__())
    return _hosted[0]


@atexit.register
def let_go() -> None:
    """Stop it; the next input gets another."""
    while _hosted:
        _hosted.pop().__exit__()


def run_node(raw: bytes) -> None:
    """A node refuses or answers, keeps the connection, and serves the next who asks."""
    asked = _as_they_come(raw[1:]) if raw[:1] == b"\0" else _shaped(raw[1:])
    if asked is None or asked[0] in _CREATING:
        # They do what they say: topics without end would be the fuzzer's fault.
        return
    kind, body, payload = asked
    node = hosted()
    outcome = node.ask(kind, body, [payload] if payload else [], _PATIENCE)
    assert outcome is None or isinstance(outcome, Response | RemoteError), outcome
    broken = isinstance(outcome, RemoteError) and outcome.code == Status.INTERNAL
    assert not broken, f"the handler raised: {outcome}"
    if isinstance(outcome, Response):
        with outcome:
            wire.decode_response(kind, outcome.body)
    assert node.alive, node._over
    assert not node.connection.closed.is_set(), "the connection was ended"
    with _asked(node, m.Kind.METADATA, m.MetadataRequest(topics=[TOPIC])) as answer:
        (topic,) = wire.decode_response(m.Kind.METADATA, answer.body).topics
    assert topic.error == 0 and all(each.leader == 1 for each in topic.partitions), topic


def _as_they_come(raw: bytes) -> tuple[int, bytes, bytes] | None:
    """Kind, body and payload as they stand in the input."""
    if len(raw) < _SPLIT.size:
        return None
    choice, length = _SPLIT.unpack_from(raw)
    kind = KINDS[choice % len(KINDS)] if choice < 240 else choice
    return kind, raw[_SPLIT.size :][:length], raw[_SPLIT.size :][length:]


_ODD = (
    *(0, 1, 2, -1, -2, 5, 1000, 1 << 20, (1 << 31) - 1, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63)),
    *(
        (1 << 64) - 1,
        "",
        TOPIC,
        "no",
        "\0",
        "../..",
        "x" * 300,
        None,
        True,
        1.5,
        float("inf"),
        math.inf,
        math.nan,
        [],
        {},
        b"x",
    ),
)


def _shaped(raw: bytes) -> tuple[int, bytes, bytes] | None:
    """A request that makes sense, but for some of its values: a byte decides about each of them."""
    if not raw:
        return None
    requests = _plain_requests()
    kind, request, payload = requests[raw[0] % len(requests)]
    return kind, msgspec.msgpack.encode(_changed(request, iter(raw[1:]))), payload


@functools.cache
def _plain_requests() -> list[tuple[int, Any, bytes]]:
    return [(kind, msgspec.to_builtins(request), payload) for kind, request, payload in _requests()]


def _changed(value: Any, draws: Iterator[int]) -> Any:
    draw = next(draws, 0)
    if draw >= 200:
        return _ODD[draw % len(_ODD)]
    if isinstance(value, dict):
        return {name: _changed(each, draws) for name, each in value.items()}
    if isinstance(value, list):
        return [_changed(each, draws) for each in value * (3 if draw >= 190 else 1)]
    return value


_CREATING = (m.Kind.CREATE_TOPIC, m.Kind.DELETE_TOPIC, m.Kind.CREATE_PARTITIONS)


def _asked(node: HostedNode, kind: m.Kind, request: object) -> Response:
    outcome = node.ask(kind, wire.encode(request), [], 10)
    assert isinstance(outcome, Response), outcome
    return outcome


def _requests() -> Iterator[tuple[m.Kind, object, bytes]]:
    """Of every kind at least one that makes sense."""
    batch = build_batch(
        [b"k"] * 3, [b"v"] * 3, timestamps_ms=1, producer_id=5, producer_epoch=0, base_sequence=0
    )
    one = m.ProducePartition(topic=TOPIC, partition=0, size=len(batch))
    for acks in (-1, 0, 1):
        yield m.Kind.PRODUCE, m.ProduceRequest(acks=acks, timeout_ms=100, partitions=[one]), batch
    two = m.ProducePartition(topic=TOPIC, partition=1, size=len(batch), leader_epoch=0)
    yield m.Kind.PRODUCE, m.ProduceRequest(acks=-1, timeout_ms=100, partitions=[one, two]), batch * 2
    for replica_id in (-1, 2):
        for session_epoch in (-1, 0, 1):
            part = m.FetchPartition(topic=TOPIC, partition=0, fetch_offset=0, max_bytes=1000, leader_epoch=0)
            yield (
                m.Kind.FETCH,
                m.FetchRequest(
                    replica_id=replica_id,
                    incarnation=1,
                    max_wait_ms=10,
                    min_bytes=1,
                    max_bytes=1000,
                    partitions=[part],
                    session_epoch=session_epoch,
                ),
                b"",
            )
    for timestamp in (-2, -1, 0, 1):
        asked = m.ListOffsetsPartition(topic=TOPIC, partition=0, timestamp=timestamp)
        yield m.Kind.LIST_OFFSETS, m.ListOffsetsRequest(partitions=[asked]), b""
    yield m.Kind.METADATA, m.MetadataRequest(topics=None), b""
    yield m.Kind.INIT_PRODUCER_ID, m.InitProducerIdRequest(), b""
    deleted = m.DeleteRecordsPartition(topic=TOPIC, partition=0, offset=-1)
    yield m.Kind.DELETE_RECORDS, m.DeleteRecordsRequest(timeout_ms=10, partitions=[deleted]), b""
    name = m.PartitionName(topic=TOPIC, partition=0)
    yield m.Kind.ELECT_LEADERS, m.ElectLeadersRequest(partitions=[name]), b""
    yield m.Kind.GET_REPLICA_LOG_INFO, m.GetReplicaLogInfoRequest(partitions=[name]), b""
    yield m.Kind.IS_SILENT, m.IsSilentRequest(node_id=1, incarnation=1), b""
    yield m.Kind.DESCRIBE_PARTITIONS, m.DescribePartitionsRequest(), b""
    yield m.Kind.ALTER_CONFIG, m.AlterConfigRequest(name=TOPIC, config={"retention_ms": 1 << 40}), b""
    move = m.PartitionReassignment(topic=TOPIC, partition=0, replicas=[1])
    yield m.Kind.ALTER_PARTITION_REASSIGNMENTS, m.AlterReassignmentsRequest(partitions=[move]), b""
    for kind, cls in wire.REQUEST_TYPES.items():
        if not any(field.required for field in msgspec.inspect.type_info(cls).fields):  # type: ignore[attr-defined]
            yield m.Kind(kind), cls(), b""


def _bodies() -> Iterator[bytes]:
    for kind, request, _ in _requests():
        yield bytes([KINDS.index(kind)]) + wire.encode(request)


def _whole_requests() -> Iterator[bytes]:
    for kind, request, payload in _requests():
        body = wire.encode(request)
        yield b"\0" + _SPLIT.pack(KINDS.index(kind), len(body)) + body + payload
    yield b"\0" + _SPLIT.pack(250, 0)
    noise = random.Random(1)
    for number, _ in enumerate(_requests()):
        for _ in range(8):
            yield bytes([1, number]) + bytes(
                noise.choice((0, 0, 0, 0, noise.randrange(256))) for _ in range(30)
            )


_NODE = (
    *(_codec, _handlers, _produces, _fetches, serving, queries, producing, _batch_checks, _payloads, peers),
    *(leader, replica, log_state, deletions),
)

TARGETS = (
    PythonTarget("requests_decoder", run_decoder, (_codec,), _bodies),
    PythonTarget("requests_node", run_node, _NODE, _whole_requests),
)
