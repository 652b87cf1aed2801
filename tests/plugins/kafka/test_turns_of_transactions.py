"""Turns of a node: an end is told before its markers are written, partitions are asked about together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from insync.plugins.kafka.listener import Link
from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api
from insync.replication.core.broker.coordination.shards import Shards
from insync.replication.core.broker.coordination.transacting import Transacting
from insync.replication.core.messages import transactions as tm
from insync.replication.node._replica_host import ReplicaHost
from insync.replication.node.requests._payloads import Batches

from .test_listener import client_of, make, node_at
from .test_transaction_versions import begun, put_request
from .wire_client import WireClient

_Add, _End = message("AddPartitionsToTxnRequest"), message("EndTxnRequest")


async def add(client: WireClient, producer_id: int, epoch: int, *partitions: int) -> None:
    added = _Add(
        v3_and_below_transactional_id="etl",
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[_Add.AddPartitionsToTxnTopic(name="t", partitions=list(partitions))],
    )
    (topic,) = (await client.ask(Api.ADD_PARTITIONS_TO_TXN, 3, added)).results_by_topic_v3_and_below
    assert [each.partition_error_code for each in topic.results_by_partition] == [0] * len(partitions)


async def test_an_end_is_told_before_the_markers_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    appended, send, mark = ReplicaHost._appended, Link.flush, Transacting._mark

    def written(host: ReplicaHost, batches: Batches, log_end_offset: int) -> None:
        order.append(host.partition.topic)
        appended(host, batches, log_end_offset)

    def marked(transacting: Transacting, *arguments: Any) -> None:
        order.append("marker")
        mark(transacting, *arguments)

    def sent(link: Link) -> None:
        order.append("answer")
        send(link)

    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        producer_id, epoch = await begun(client)
        await add(client, producer_id, epoch, 0)
        monkeypatch.setattr(ReplicaHost, "_appended", written)
        monkeypatch.setattr(Transacting, "_mark", marked)
        monkeypatch.setattr(Link, "flush", sent)
        ended = await client.ask(
            Api.END_TXN,
            4,
            _End(transactional_id="etl", producer_id=producer_id, producer_epoch=epoch, committed=True),
        )
        assert not ended.error_code
        with trio.fail_after(60):
            while "t" not in order:
                await trio.lowlevel.checkpoint()
    assert order[:3] == ["__transaction_state", "answer", "marker"]


@pytest.mark.parametrize("is_current", [True, False])
async def test_requests_that_come_together_ask_the_coordinator_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_current: bool
) -> None:
    """As librdkafka sends them: one for each partition, one behind the other. If all is known here, not at all."""
    asked: list[list[int]] = []
    ask = Shards.ask

    def seen(shards: Shards, partition: Any, message: Any, *arguments: Any, **options: Any) -> None:
        if isinstance(message, tm.AddPartitionsRequest) and message.verify_only:
            asked.append([each.partition for each in message.partitions])
        ask(shards, partition, message, *arguments, **options)

    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node, partitions=3)
        ids = await begun(client)
        await add(client, *ids, 0, 1, 2)
        monkeypatch.setattr(Shards, "ask", seen)
        if not is_current:
            monkeypatch.setattr(Shards, "current", lambda shards, partition: None)
        asking = [put_request(ids, partition=number) for number in range(3)]
        together = b"".join([client.framed(Api.PRODUCE, 11, each) for each in asking])
        await client.stream.send_all(together)  # all of it is there before the node reads
        for _ in range(3):
            answer = await client.receive(Api.PRODUCE, 11)
            assert answer.responses[0].partition_responses[0].error_code == 0
    assert asked == ([] if is_current else [[0, 1, 2]])
