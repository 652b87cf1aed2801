"""A cluster over tls://, its certificates named by the environment."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from insync.replication import Admin, Consumer, Node, NodeSettings, Producer
from insync.replication.client import BootstrapError
from insync.transport import Identity
from insync.transport.security import TLS_VARIABLES

from ...plugins.tcp.certificates import Authority


async def test_a_cluster_whose_links_are_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)

    def become(node_id: int, cluster: str = "kit") -> None:
        files = attrs.astuple(authority.files_for(Identity(cluster, node_id)))
        for name, value in zip(TLS_VARIABLES, files, strict=True):
            monkeypatch.setenv(name, value)

    def settings(node_id: int) -> NodeSettings:
        become(node_id)
        return NodeSettings(
            node_id=node_id,
            data_dir=tmp_path / f"n{node_id}",
            store=f"sqlite://{tmp_path}/meta.db",
            cluster_id="kit",
            listeners=("tls://0.0.0.0:0?contact=127.0.0.1",),
        )

    async with Node(settings(1)) as node, Node(settings(2)):
        become(-1)
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", partitions=2, replication_factor=2)
        async with Producer(node.endpoints) as producer:
            delivery = await producer.send("t", b"in secret", partition=0)
            await delivery.wait()
        async with Consumer(node.endpoints, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            assert [record.value for record in await consumer.poll(timeout_ms=5000)] == [b"in secret"]
        become(-1, "other")
        with pytest.raises(BootstrapError, match="certificate"):
            async with Admin(node.endpoints):
                pass
