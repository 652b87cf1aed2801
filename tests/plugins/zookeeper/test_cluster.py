"""Three node processes on a real ZooKeeper: they found a cluster, lose their leader, and go on."""

from pathlib import Path

import trio

from insync.replication import Admin, Consumer, Producer
from tests.processes import NodeProcess, cluster

from .server import ZookeeperServer


async def test_nodes_on_zookeeper_survive_their_leader(server: ZookeeperServer, tmp_path: Path) -> None:
    store = f"zookeeper://{server.hosts}/nodes"
    with cluster(tmp_path, 3, store=store) as nodes:
        servers = [node.endpoint for node in nodes]
        async with Admin(servers) as admin:
            await admin.create_topic("t", 3, 3)
        async with Producer(servers, delivery_timeout_ms=30_000) as producer:
            first = await producer.send_many("t", [b"%d" % number for number in range(300)])
            await first.wait()
            nodes[0].kill()
            second = await producer.send_many("t", [b"%d" % number for number in range(300, 600)])
            await second.wait()
            nodes[0] = NodeProcess.start(1, tmp_path, store=store)
        servers = [node.endpoint for node in nodes]
        found: list[int] = []
        async with Consumer(servers, auto_offset_reset="earliest") as consumer:
            await consumer.assign_topic("t")
            with trio.fail_after(30):
                while len(found) < 600:
                    found += [int(record.value or b"") for record in await consumer.poll(timeout_ms=200)]
        assert sorted(found) == list(range(600))
        for node in nodes:
            assert node.stop() == 0
