"""WriteTxnMarkers: transactions that hang are ended as `kafka-transactions abort` asks, and no others (KIP-664)."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api, KafkaError
from insync.replication import Admin, Consumer, Node, Producer
from insync.replication.client import ActiveProducer
from insync.replication.core.broker.coordination import transacting
from insync.replication.core.errors import ErrorCode

from ...interop.kafka import Java
from .programs.test_tools import TOOLS
from .programs.test_tools import tools as tools
from .test_listener import client_of, make, node_at
from .wire_client import WireClient

Write = message("WriteTxnMarkersRequest")
FEW = {"transaction_state_log_num_partitions": 3, "offsets_topic_num_partitions": 3}


@asynccontextmanager
async def hanging(
    folder: Path, monkeypatch: pytest.MonkeyPatch, partitions: int = 1, **more: Any
) -> AsyncIterator[tuple[Node, list[ActiveProducer]]]:
    """A node with a transaction in each partition of `t`, behind a whole one, that its coordinator does not know.

    A leader of a release without verification has taken it.
    """
    async with node_at(folder, **FEW, **more) as node, Admin(node.endpoints) as admin:
        await make(node, "t", partitions)
        async with Producer(node.endpoints, transactional_id="hangs") as producer:
            async with producer.transaction():
                for index in range(partitions):
                    await producer.send("t", b"whole", partition=index)
            with monkeypatch.context() as patch:
                patch.setattr(
                    transacting.Transacting,
                    "_join",
                    lambda self, at, effect: self._add_answered(at, effect, ErrorCode.NONE),
                )
                producer.begin()
                for index in range(partitions):
                    await (await producer.send("t", b"never", partition=index)).wait()
                await producer.abort()
        places = [("t", index) for index in range(partitions)]
        found = [each[0] for each in (await admin.describe_producers(places)).values()]
        assert all(each.start_offset >= 0 for each in found)
        yield node, found


def marker(of: ActiveProducer, *, topic: str = "t", partition: int = 0, **other: Any) -> Any:
    fields = {
        "producer_id": of.producer_id,
        "producer_epoch": of.producer_epoch,
        "coordinator_epoch": max(of.coordinator_epoch, 0),
        "transaction_result": False,
    }
    named = Write.WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])
    return Write.WritableTxnMarker(**{**fields, **other}, topics=[named])


async def errors_of(client: WireClient, *markers: Any, version: int = 1) -> list[int]:
    answer = await client.ask(Api.WRITE_TXN_MARKERS, version, Write(markers=list(markers)))
    return [part.error_code for each in answer.markers for topic in each.topics for part in topic.partitions]


async def readable(node: Node, partitions: int = 1) -> list[int]:
    """How far readers of committed records get."""
    places = [("t", index) for index in range(partitions)]
    async with Consumer(node.endpoints, isolation_level="read_committed") as consumer:
        return list((await consumer.end_offsets(places)).values())


async def until_readable(node: Node, end: int) -> None:
    """Return when readers of committed records get that far: the marker of a transaction follows its commit."""
    with trio.fail_after(60):
        while (await readable(node))[0] < end:
            pass
    assert await readable(node) == [end]


@pytest.mark.parametrize("version", [1, 2])
async def test_exactly_what_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    async with hanging(tmp_path, monkeypatch) as (node, (one,)), client_of(node) as client:
        assert await readable(node) == [one.start_offset]
        wrong = {
            "transaction_result": (True, ErrorCode.INVALID_REQUEST),
            "producer_id": (-1, ErrorCode.INVALID_REQUEST),
            "producer_epoch": (-1, ErrorCode.INVALID_REQUEST),
            "coordinator_epoch": (-1, ErrorCode.INVALID_REQUEST),
            "topic": ("u", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            "partition": (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        }
        refused = [marker(one, **{name: value}) for name, (value, _) in wrong.items()]
        expected = [int(error) for _, error in wrong.values()]
        for ids, error in (
            ({"producer_id": 2**63 - 1}, ErrorCode.UNKNOWN_PRODUCER_ID),
            ({"producer_epoch": one.producer_epoch - 1}, ErrorCode.INVALID_PRODUCER_EPOCH),
            ({"producer_epoch": 2**15 - 1}, ErrorCode.INVALID_PRODUCER_EPOCH),
        ):
            refused.append(marker(one, **ids))
            expected.append(error)
        assert await errors_of(client, *refused, version=version) == expected
        assert await readable(node) == [one.start_offset]
        # Twice in one request: the second finds nothing open. An epoch of a coordinator to come is not believed.
        high = marker(one, coordinator_epoch=2**31 - 1)
        assert await errors_of(client, high, high, version=version) == [0, ErrorCode.INVALID_TXN_STATE]
        assert await readable(node) == [one.start_offset + 2]
        # The coordinator, whose epoch is lower, still ends its own.
        async with Producer(node.endpoints, transactional_id="hangs") as producer, producer.transaction():
            await producer.send("t", b"goes on", partition=0)
        await until_readable(node, one.start_offset + 4)


async def test_a_coordinator_of_the_past_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hanging(tmp_path, monkeypatch) as (node, (one,)), client_of(node) as client:
        # Its partition of coordinators has been led for long.
        monkeypatch.setattr("insync.replication.core.types.ProducerEntry.coordinator_epoch", 7, raising=False)
        assert await errors_of(client, marker(one, coordinator_epoch=6)) == [
            ErrorCode.TRANSACTION_COORDINATOR_FENCED
        ]


async def test_what_a_coordinator_holds_is_left_to_it(tmp_path: Path) -> None:
    async with (
        node_at(tmp_path, **FEW) as node,
        client_of(node) as client,
        Admin(node.endpoints) as admin,
    ):
        await make(node)
        async with Producer(node.endpoints, transactional_id="w") as producer:
            producer.begin()
            await (await producer.send("t", b"held")).wait()
            ((one,),) = (await admin.describe_producers([("t", 0)])).values()
            assert await errors_of(client, marker(one)) == [ErrorCode.INVALID_TXN_STATE]
            await producer.commit()
        await until_readable(node, 2)


async def test_only_operators_end_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allow = ("client=produce+consume",)
    async with node_at(tmp_path, allow=allow) as node, client_of(node) as client:
        one = ActiveProducer(producer_id=1, producer_epoch=0)
        told = await errors_of(client, marker(one), marker(one, topic="u"))
        assert told == [KafkaError.CLUSTER_AUTHORIZATION_FAILED] * 2


@pytest.mark.interop
@pytest.mark.xdist_group("kafka")
async def test_kafkas_own_tool_ends_what_it_finds(
    tools: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hanging(tmp_path, monkeypatch, partitions=2) as (node, (one, two)):
        server = node.gateway_endpoints[0].removeprefix("kafka://")

        async def said(*arguments: str) -> str:
            command = tools.command(f"{TOOLS}TransactionsCommand", "--bootstrap-server", server, *arguments)
            run = partial(subprocess.run, command, capture_output=True, text=True, timeout=120)
            done = await trio.to_thread.run_sync(run)
            assert done.returncode == 0, done.stderr + done.stdout
            return done.stdout

        found = await said("find-hanging", "--topic", "t", "--max-transaction-timeout", "0")
        assert sorted(line.split()[:2] for line in found.splitlines()[1:]) == [["t", "0"], ["t", "1"]]
        await said("abort", "--topic", "t", "--partition", "0", "--start-offset", str(one.start_offset))
        ids = ("--producer-id", str(two.producer_id), "--producer-epoch", str(two.producer_epoch))
        epoch = ("--coordinator-epoch", str(two.coordinator_epoch))
        await said("abort", "--topic", "t", "--partition", "1", *ids, *epoch)
        assert await readable(node, 2) == [one.start_offset + 2, two.start_offset + 2]
        async with Consumer(
            node.endpoints, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([("t", 0), ("t", 1)])
            values: list[bytes | None] = []
            with trio.fail_after(60):
                while len(values) < 2:
                    values += [each.value for each in await consumer.poll(200)]
            assert values == [b"whole", b"whole"]
