"""A scripted cluster on mem://, speaking the real messages over the real transport.

One log for each partition, shared by all nodes, as if replication were perfect and instant: what is appended
survives any change of leader. So whatever goes wrong in a test is the client's doing, or a fault asked for.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio
import trio.testing
from msgspec import structs

from insync.replication import wire
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition.producers import ProducerTable, SequenceVerdict
from insync.replication.core.types import BatchMeta
from insync.storage.batch import marker_of, records, scan
from insync.transport import Identity, serve

CLUSTER_ID = "fake-cluster"
_numbers = itertools.count()


@attrs.define(eq=False)
class Partition:
    """The one log of a partition, batch by batch, and the producers that wrote it."""

    leader: int
    epoch: int = 0
    start: int = 0
    end: int = 0
    batches: list[bytes] = attrs.Factory(list)
    bases: list[int] = attrs.Factory(list)
    producers: ProducerTable = attrs.Factory(ProducerTable)

    def append(self, data: bytes) -> tuple[ErrorCode, int]:
        """What a leader does with one batch: the code and the base offset."""
        (info,) = scan(data)
        count = info.last_offset_delta + 1
        meta = BatchMeta(
            base_offset=self.end,
            offset_count=count,
            leader_epoch=self.epoch,
            size_bytes=len(data),
            producer_id=info.producer_id,
            producer_epoch=info.producer_epoch,
            base_sequence=info.base_sequence,
        )
        verdict, kept = self.producers.check(meta)
        entry = self.producers.get(info.producer_id)
        if (
            info.is_transactional
            and info.base_sequence
            and (entry is None or entry.producer_epoch < info.producer_epoch)
        ):
            # A transaction begins at 0 in each partition.
            verdict = SequenceVerdict.OUT_OF_ORDER
        if verdict is SequenceVerdict.DUPLICATE and kept is not None:
            return ErrorCode.NONE, kept.base_offset
        if verdict is SequenceVerdict.OUT_OF_ORDER:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        if verdict is SequenceVerdict.FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        self.producers.record(meta)
        stamped = self.end.to_bytes(8, "big") + data[8:12] + self.epoch.to_bytes(4, "big") + data[16:]
        self.batches.append(stamped)
        self.bases.append(self.end)
        self.end += count
        return ErrorCode.NONE, self.end - count

    def read(self, offset: int, max_bytes: int) -> bytes:
        found = b""
        if not self.batches:
            return found
        # By what was appended, not by what the bytes say: a test may have spoiled them.
        for end, batch in zip([*self.bases[1:], self.end], self.batches, strict=True):
            if end > offset:
                if found and len(found) + len(batch) > max_bytes:
                    break
                found += batch
        return found

    def committed(self, part: m.FetchPartition, data: bytes) -> tuple[bytes, m.FetchedTransactions]:
        """What of it a reader of committed records gets, and is told."""
        stable, aborted = transactions_of(b"".join(self.batches), self.end)
        infos = [info for info in scan(data) if info.next_offset <= stable]
        found = data[: sum(info.size_bytes for info in infos)]
        end = infos[-1].next_offset if infos else part.fetch_offset
        told = m.FetchedTransactions(
            topic=part.topic,
            partition=part.partition,
            last_stable_offset=stable,
            aborted=[
                m.AbortedProducer(producer_id=producer_id, first_offset=first)
                for producer_id, first, last in sorted(aborted, key=lambda each: each[1])
                if last >= part.fetch_offset and first < end
            ],
        )
        return found, told

    def values(self) -> list[bytes | None]:
        return [record.value for record in records(b"".join(self.batches))] if self.batches else []

    def drop_before(self, offset: int) -> None:
        """Retention: whole batches that end at or before `offset` go."""
        while self.bases and len(self.bases) > 1 and self.bases[1] <= offset:
            self.bases.pop(0)
            self.batches.pop(0)
        self.start = offset


Fault = Callable[["FakeNode", Any], bool]
"""Looks at a request before it is served; True: it has dealt with it."""


@attrs.define(eq=False)
class FakeNode:
    """One node. `before` holds faults for coming requests by kind, used up one a request."""

    cluster: FakeCluster
    node_id: int
    url: str
    seen: Counter[int] = attrs.Factory(Counter)
    before: dict[int, deque[Fault]] = attrs.Factory(dict)
    connections: list[Any] = attrs.Factory(list)
    incarnation: int = 1
    revision: int = 1
    """How far it has read the metadata store."""
    _scope: trio.CancelScope | None = None

    @property
    def alive(self) -> bool:
        return self._scope is not None

    def script(self, kind: m.Kind, *faults: Fault) -> None:
        """Let these happen to the coming requests of a kind, one to each."""
        self.before.setdefault(kind, deque()).extend(faults)

    async def start(self) -> None:
        await self.cluster.nursery.start(self._serve)

    async def stop(self) -> None:
        """Gone at once, as by SIGKILL."""
        if self._scope is not None:
            self._scope.cancel()
            self._scope = None
        for connection in self.connections:
            connection.abort("node stopped")
        self.connections.clear()
        await trio.testing.wait_all_tasks_blocked()

    async def _serve(self, *, task_status: trio.TaskStatus[Any]) -> None:
        identity = Identity(cluster_id=CLUSTER_ID, node_id=self.node_id, incarnation=self.incarnation)
        with trio.CancelScope() as self._scope:
            async with trio.open_nursery() as nursery:
                serving = await nursery.start(partial(serve, self.url, self.handle, identity=identity))
                self.url = serving.endpoints[0]
                task_status.started()

    def handle(self, request: Any) -> None:
        self.seen[request.kind] += 1
        if request.connection not in self.connections:
            self.connections.append(request.connection)
        faults = self.before.get(request.kind)
        if faults and faults.popleft()(self, request):
            return
        if self.cluster.chaos is not None and self.cluster.chaos(self, request):
            return
        self.serve(request)

    def serve(self, request: Any) -> None:
        """Answer as a healthy node does."""
        message = wire.decode_request(request.kind, request.body)
        answers = {
            m.Kind.PRODUCE: self._produce,
            m.Kind.FETCH: self._fetch,
            m.Kind.METADATA: self._metadata,
            m.Kind.LIST_OFFSETS: self._list_offsets,
            m.Kind.INIT_PRODUCER_ID: self._init_producer_id,
            m.Kind.CREATE_TOPIC: self._create_topic,
            m.Kind.DESCRIBE_PARTITIONS: self._describe,
        }
        answers[m.Kind(request.kind)](request, message)

    def append(self, request: Any) -> list[m.ProduceResult]:
        """Carry out a produce without answering it."""
        message = wire.decode_request(request.kind, request.body)
        payload = bytes(request.payload.view())
        results, at = [], 0
        for part in message.partitions:
            data = payload[at : at + part.size]
            at += part.size
            results.append(self._append_one(part, data))
        assert at == len(payload)
        return results

    def _append_one(self, part: m.ProducePartition, data: bytes) -> m.ProduceResult:
        log = self.cluster.partition(part.topic, part.partition)
        if log is None:
            code, base = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1
        elif log.leader != self.node_id:
            code, base = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        else:
            code, base = log.append(data)
        return m.ProduceResult(
            topic=part.topic,
            partition=part.partition,
            error=code,
            base_offset=base,
            leader=log.leader if log else -1,
            leader_epoch=log.epoch if log else -1,
        )

    def _produce(self, request: Any, message: m.ProduceRequest) -> None:
        results = self.append(request)
        self.cluster.appended()
        request.reply(wire.encode(m.ProduceResponse(partitions=results)))

    def _fetch(self, request: Any, message: m.FetchRequest) -> None:
        if self._fetch_now(request, message, last=False):
            return
        self.cluster.nursery.start_soon(self._fetch_later, request, message)

    async def _fetch_later(self, request: Any, message: m.FetchRequest) -> None:
        with trio.move_on_after(message.max_wait_ms / 1000):
            while not self._fetch_now(request, message, last=False):
                await self.cluster.changed.wait()
            return
        self._fetch_now(request, message, last=True)

    def _fetch_now(self, request: Any, message: m.FetchRequest, *, last: bool) -> bool:
        results, parts = [], []
        transactions = []
        for part in message.partitions:
            result, data = self._fetch_one(part)
            log = self.cluster.partition(part.topic, part.partition)
            if data and log is not None and message.isolation_level == m.READ_COMMITTED:
                data, said = log.committed(part, data)
                result = structs.replace(result, size=len(data))
                transactions.append(said)
            if result.error or data:
                results.append(result)
                parts.append(data)
        if not results and not last:
            return False
        answer = m.FetchResponse(partitions=results, transactions=transactions)
        request.reply(wire.encode(answer), [p for p in parts if p])
        return True

    def _fetch_one(self, part: m.FetchPartition) -> tuple[m.FetchResult, bytes]:
        log = self.cluster.partition(part.topic, part.partition)
        code, data = ErrorCode.NONE, b""
        if log is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif log.leader != self.node_id:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif part.topic_id not in ("", self.cluster.topic_id(part.topic)):
            code = ErrorCode.INCONSISTENT_TOPIC_ID
        elif not log.start <= part.fetch_offset <= log.end:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            data = log.read(part.fetch_offset, part.max_bytes)
        return (
            m.FetchResult(
                topic=part.topic,
                partition=part.partition,
                error=code,
                high_watermark=log.end if log else -1,
                log_start_offset=log.start if log else -1,
                log_end_offset=log.end if log else -1,
                leader_epoch=log.epoch if log else -1,
                leader=log.leader if log else -1,
                size=len(data),
            ),
            data,
        )

    def _metadata(self, request: Any, message: m.MetadataRequest) -> None:
        names = sorted(self.cluster.topics) if message.topics is None else message.topics
        request.reply(
            wire.encode(
                m.MetadataResponse(
                    cluster_id=CLUSTER_ID,
                    revision=self.revision,
                    controller_id=0,
                    nodes=[
                        m.NodeInfo(node_id=n.node_id, incarnation=1, endpoints=[n.url])
                        for n in self.cluster.nodes
                        if n.alive
                    ],
                    topics=[self._topic(name) for name in names],
                )
            )
        )

    def _topic(self, name: str) -> m.TopicInfo:
        partitions = self.cluster.topics.get(name)
        if partitions is None:
            return m.TopicInfo(name=name, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        everybody = [n.node_id for n in self.cluster.nodes]
        return m.TopicInfo(
            name=name,
            error=0,
            topic_id=self.cluster.topic_id(name),
            replication_factor=len(everybody),
            partitions=[
                m.PartitionInfo(
                    partition=number,
                    leader=log.leader,
                    leader_epoch=log.epoch,
                    partition_epoch=log.epoch,
                    replicas=everybody,
                    isr=everybody,
                    elr=[],
                )
                for number, log in enumerate(partitions)
            ],
        )

    def _list_offsets(self, request: Any, message: m.ListOffsetsRequest) -> None:
        results = []
        for part in message.partitions:
            log = self.cluster.partition(part.topic, part.partition)
            led = log is not None and log.leader == self.node_id
            offset = -1
            if log is not None and led:
                offset = log.start if part.timestamp == m.EARLIEST_TIMESTAMP else log.end
            results.append(
                m.ListOffsetsResult(
                    topic=part.topic,
                    partition=part.partition,
                    error=ErrorCode.NONE if led else ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    offset=offset,
                )
            )
        request.reply(wire.encode(m.ListOffsetsResponse(partitions=results)))

    def _init_producer_id(self, request: Any, message: m.InitProducerIdRequest) -> None:
        error, names = ErrorCode.NONE, self.cluster.producer_names
        if message.identity:
            had = names.get(message.identity)
            if had is None:
                self.cluster.producer_ids += 1
            elif message.producer_epoch >= 0 and had != (message.producer_id, message.producer_epoch):
                error = ErrorCode.INVALID_PRODUCER_EPOCH
            identity = (self.cluster.producer_ids, 0) if had is None else (had[0], had[1] + 1)
            names[message.identity] = identity if not error else had or identity
        elif message.producer_id >= 0:
            identity = (message.producer_id, message.producer_epoch + 1)
        else:
            self.cluster.producer_ids += 1
            identity = (self.cluster.producer_ids, 0)
        answer = m.InitProducerIdResponse(error=error, producer_id=identity[0], producer_epoch=identity[1])
        request.reply(wire.encode(answer))

    def _create_topic(self, request: Any, message: m.CreateTopicRequest) -> None:
        error = ErrorCode.NONE
        if message.name in self.cluster.topics and self.cluster.made_by[message.name] == message.creation_id:
            pass
        elif message.name in self.cluster.topics:
            error = ErrorCode.TOPIC_ALREADY_EXISTS
        elif message.replication_factor > len(self.cluster.nodes):
            error = ErrorCode.INVALID_REPLICATION_FACTOR
        else:
            self.cluster.create(message.name, message.partitions)
            self.cluster.made_by[message.name] = message.creation_id
        answer = m.CreateTopicResponse(error=error, topic_id=f"id-{message.name}", message="as scripted")
        request.reply(wire.encode(answer))

    def _describe(self, request: Any, message: m.DescribePartitionsRequest) -> None:
        replicas = [
            m.ReplicaInfo(
                topic=name,
                partition=number,
                role="leader" if log.leader == self.node_id else "follower",
                leader=log.leader,
                leader_epoch=log.epoch,
                partition_epoch=log.epoch,
                log_start_offset=log.start,
                log_end_offset=log.end,
                high_watermark=log.end,
                size_bytes=sum(map(len, log.batches)),
                isr=[n.node_id for n in self.cluster.nodes],
            )
            for name, logs in sorted(self.cluster.topics.items())
            for number, log in enumerate(logs)
        ]
        request.reply(
            wire.encode(
                m.DescribePartitionsResponse(node_id=self.node_id, incarnation=1, partitions=replicas)
            )
        )


@attrs.define(eq=False)
class FakeCluster:
    """Nodes 0..n-1 and their topics; partition p is led by node p mod n until it is moved."""

    nursery: trio.Nursery
    nodes: list[FakeNode] = attrs.Factory(list)
    topics: dict[str, list[Partition]] = attrs.Factory(dict)
    producer_ids: int = 0
    producer_names: dict[str, tuple[int, int]] = attrs.Factory(dict)
    creations: Counter[str] = attrs.Factory(Counter)
    made_by: defaultdict[str, str] = attrs.Factory(lambda: defaultdict(str))
    """The creation id of each topic, as far as somebody has given one."""
    changed: trio.Event = attrs.Factory(trio.Event)
    chaos: Fault | None = None

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    def create(self, topic: str, partitions: int = 1) -> list[Partition]:
        living = [n.node_id for n in self.nodes if n.alive]
        self.topics[topic] = [Partition(living[p % len(living)]) for p in range(partitions)]
        self.creations[topic] += 1
        return self.topics[topic]

    def topic_id(self, topic: str) -> str:
        """Another one for each topic that has had the name."""
        return f"id-{topic}" if self.creations[topic] < 2 else f"id-{topic}-{self.creations[topic]}"

    def partition(self, topic: str, number: int) -> Partition | None:
        partitions = self.topics.get(topic, [])
        return partitions[number] if number < len(partitions) else None

    def move(self, topic: str, number: int, node_id: int) -> None:
        log = self.topics[topic][number]
        log.leader, log.epoch = node_id, log.epoch + 1
        self.appended()

    def appended(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


@asynccontextmanager
async def fake_cluster(nodes: int = 3, *, scheme: str = "mem", **topics: int) -> AsyncIterator[FakeCluster]:
    """A running cluster with these topics (name=partitions)."""
    async with trio.open_nursery() as nursery:
        cluster = FakeCluster(nursery)
        net = next(_numbers)
        for node_id in range(nodes):
            url = "tcp://127.0.0.1:0" if scheme == "tcp" else f"mem://client-test-{net}/node-{node_id}"
            node = FakeNode(cluster, node_id, url)
            cluster.nodes.append(node)
            await node.start()
        for name, partitions in topics.items():
            cluster.create(name, partitions)
        yield cluster
        nursery.cancel_scope.cancel()


def transactions_of(log: bytes, end_offset: int) -> tuple[int, list[tuple[int, int, int]]]:
    """The last stable offset of a log, and of each aborted transaction its producer, first and last offset."""
    begun: dict[int, int] = {}
    aborted: list[tuple[int, int, int]] = []
    position = 0
    for info in scan(log) if log else ():
        batch = log[position : position + info.size_bytes]
        position += info.size_bytes
        if info.is_control:
            first = begun.pop(info.producer_id, None)
            said = marker_of(batch)
            if first is not None and said is not None and said.is_abort:
                aborted.append((info.producer_id, first, info.base_offset))
        elif info.is_transactional:
            begun.setdefault(info.producer_id, info.base_offset)
    return min(begun.values(), default=end_offset), aborted
