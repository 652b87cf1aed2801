"""When the end of a transaction is told: before its markers are written, for which nobody who asked waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from insync.plugins.kafka.listener import Link
from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api
from insync.replication.node._payloads import Batches
from insync.replication.node._replica_host import ReplicaHost

from .test_listener import client_of, make, node_at
from .test_transaction_versions import begun

_Add, _End = message("AddPartitionsToTxnRequest"), message("EndTxnRequest")


async def test_an_end_is_told_before_the_markers_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    appended, send = ReplicaHost._appended, Link.flush

    def written(host: ReplicaHost, batches: Batches, log_end_offset: int) -> None:
        order.append(host.partition.topic)
        appended(host, batches, log_end_offset)

    def sent(link: Link) -> None:
        order.append("answer")
        send(link)

    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        producer_id, epoch = await begun(client)
        added = _Add(
            v3_and_below_transactional_id="etl",
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[_Add.AddPartitionsToTxnTopic(name="t", partitions=[0])],
        )
        (topic,) = (await client.ask(Api.ADD_PARTITIONS_TO_TXN, 3, added)).results_by_topic_v3_and_below
        assert [each.partition_error_code for each in topic.results_by_partition] == [0]
        monkeypatch.setattr(ReplicaHost, "_appended", written)
        monkeypatch.setattr(Link, "flush", sent)
        ended = await client.ask(
            Api.END_TXN,
            4,
            _End(transactional_id="etl", producer_id=producer_id, producer_epoch=epoch, committed=True),
        )
        assert not ended.error_code
    assert order[:2] == ["__transaction_state", "answer"]
