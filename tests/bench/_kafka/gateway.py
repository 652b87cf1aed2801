"""What the gateway itself costs: from bytes of requests to bytes of answers, with a node that answers at once."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from typing import Any

from insync.plugins.kafka.client import Client, Options
from insync.plugins.kafka.core.connection import Connection
from insync.plugins.kafka.core.directory import Directory
from insync.plugins.kafka.core.failures import first_error
from insync.plugins.kafka.core.sessions import Sessions, Slots
from insync.plugins.kafka.handlers import OFFERED, cluster, fetch, produce
from insync.plugins.kafka.protocol import decode, encode, message
from insync.plugins.kafka.protocol.apis import Api
from insync.replication.core import messages as m
from insync.replication.core.control.records import (
    NodeRecord,
    PartitionRecord,
    TopicConfig,
    TopicRecord,
    Versioned,
)
from insync.replication.core.control.view import ClusterView
from insync.replication.core.types import PartitionId
from insync.replication.node.requests.authorisation import Operation
from insync.replication.node.service import Answer
from insync.storage.batch import build_batch
from insync.transport import PeerIdentity

PRODUCED, FETCHED = 6, 50
"""Partitions of a request."""
Produce, Fetch = message("ProduceRequest"), message("FetchRequest")


class _Ready:
    """A node for which everything is done when it is asked for."""

    cluster_id, node_id = "bench", 1
    view: ClusterView | None = None

    def allowed(self, peer: PeerIdentity) -> frozenset[Operation]:
        return frozenset(Operation)

    def doubted(self) -> frozenset[int]:
        return frozenset()

    def call(self, caller: Any, asked: Any, done: Callable[[Any], None], *, payload: Any = None) -> None:
        if isinstance(asked, m.ProduceRequest):
            payload.release()
            results = [
                m.ProduceResult(topic=each.topic, partition=each.partition, error=0, base_offset=7)
                for each in asked.partitions
            ]
            done(Answer(m.ProduceResponse(partitions=results)))
            return
        found = [
            m.FetchResult(topic=each.topic, partition=each.partition, error=0, high_watermark=9, size=16)
            for each in asked.partitions
        ]
        done(Answer(m.FetchResponse(partitions=found), [bytes(16)] * len(found)))


def _frame(api: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", api, version, 1, 4) + b"test" + b"\0" * OFFERED.is_flexible(api, version)
    return struct.pack(">i", len(head) + len(body)) + head + body


def _frames() -> tuple[bytes, bytes]:
    data = build_batch([None] * 16, [bytes(1000)] * 16, timestamps_ms=1)
    parts = [Produce.PartitionProduceData(index=index, records=data) for index in range(PRODUCED)]
    asked = Produce(
        acks=-1, timeout_ms=5000, topic_data=[Produce.TopicProduceData(name="t", partition_data=parts)]
    )
    wanted = [
        Fetch.FetchPartition(partition=index, fetch_offset=5, partition_max_bytes=1 << 20)
        for index in range(FETCHED)
    ]
    fetched = Fetch(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[Fetch.FetchTopic(topic="t", partitions=wanted)]
    )
    return _frame(Api.PRODUCE, 9, encode(asked, 9)[0]), _frame(Api.FETCH, 12, encode(fetched, 12)[0])


def metadata_cost(partitions: int, rounds: int) -> float:
    """Processor time in ms of a metadata answer about all partitions, 1,000 in a topic, if it was asked before."""
    service = _Ready()
    service.view = _view(partitions)
    client, asked = _client(service), message("MetadataRequest")(topics=None)

    def serve() -> int:
        answering = cluster.metadata(client, asked, 12)
        try:
            answering.send(None)
        except StopIteration as over:
            assert first_error(over.value) == 0
            return sum(map(len, encode(over.value, 12)))
        raise RuntimeError("the answer waits for something")

    size, best = serve(), float("inf")
    assert size > partitions * 30
    for _ in range(rounds):
        start = time.process_time()
        serve()
        best = min(best, time.process_time() - start)
    return best * 1000


def _view(partitions: int) -> ClusterView:
    nodes = {
        each: NodeRecord(node_id=each, incarnation=1, endpoints=(f"kafka://127.0.0.1:{9000 + each}",))
        for each in (1, 2, 3)
    }
    topics = {
        f"t{number}": TopicRecord(
            name=f"t{number}",
            topic_id=f"{number:032x}",
            partitions=1000,
            replication_factor=3,
            config=TopicConfig(),
        )
        for number in range(partitions // 1000)
    }
    parts = {
        PartitionId(topic.name, index): Versioned(
            PartitionRecord(
                topic=topic.name,
                partition=index,
                topic_id=topic.topic_id,
                replicas=(1, 2, 3),
                isr=(1, 2, 3),
                leader=1 + index % 3,
                leader_epoch=4,
            ),
            1,
        )
        for topic in topics.values()
        for index in range(topic.partitions)
    }
    return ClusterView(revision=1, nodes=nodes, topics=topics, partitions=parts)


def _client(service: Any) -> Client:
    peer = PeerIdentity(cluster_id="bench", node_id=-1, incarnation=0, lane="kafka", method="none", name="")
    sessions: Sessions[Any, Any] = Sessions(Slots(random.Random(1)))
    return Client(
        peer,
        service,
        Directory("kafka"),
        Options(),
        sessions,
        host="bench",
        abort=print,
        close=print,
        login=None,  # type: ignore[arg-type]
    )


def costs(rounds: int) -> tuple[float, float]:
    """Processor time in µs of a produce request of six batches, and of a fetch of fifty partitions."""
    client = _client(_Ready())
    machine = Connection(offers=OFFERED.has, flexible=OFFERED.is_flexible)

    def serve(frame: bytes) -> None:
        at = 0
        while at < len(frame):
            if machine.room_needed:
                machine.make_room()
            buffer = machine.get_buffer()
            count = min(len(buffer), len(frame) - at)
            buffer[:count] = frame[at : at + count]
            machine.received(count)
            at += count
        request = machine.next_request()
        assert request is not None

        def done(answer: Any, *_: Any) -> None:
            machine.answer(request, encode(answer, request.version))

        kind = Produce if request.api == Api.PRODUCE else Fetch
        asked, _ = decode(kind, request.version, request.body, request.position)
        if request.api == Api.PRODUCE:
            produce.start(client, asked, request.version, request.body, done, lambda: None)
        else:
            fetch.start(client, asked, request.version, done, lambda work: work())
        assert machine.take_answers()

    found = []
    for frame in _frames():
        best = float("inf")
        for _ in range(7):
            start = time.process_time()
            for _ in range(rounds):
                serve(frame)
            best = min(best, (time.process_time() - start) / rounds)
        found.append(best * 1e6)
    return found[0], found[1]
