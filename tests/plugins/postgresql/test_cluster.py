"""Three node processes on a real PostgreSQL, whose server is killed and started again while a producer writes."""

from pathlib import Path

import pytest
import trio

from insync.replication import Admin, Consumer, Producer
from tests.processes import cluster

from .server import PostgresqlServer


@pytest.mark.slow
async def test_nodes_and_a_producer_survive_the_server(own_server: PostgresqlServer, tmp_path: Path) -> None:
    with cluster(tmp_path, 3, store=own_server.url("nodes")) as nodes:
        servers = [node.endpoint for node in nodes]
        async with Admin(servers) as admin:
            await admin.create_topic("t", 3, 3)
        sent = 0
        async with Producer(servers, delivery_timeout_ms=60_000) as producer:

            async def send() -> None:
                nonlocal sent
                batch = await producer.send_many("t", [b"%d" % number for number in range(sent, sent + 100)])
                await batch.wait()
                sent += 100

            for _ in range(3):
                await send()
                own_server.kill()
                await send()
                await trio.to_thread.run_sync(own_server.start)
                await send()
            nodes[0].kill()  # the store elects another leader
            await send()
        found: list[int] = []
        async with Consumer(servers[1:], auto_offset_reset="earliest") as consumer:
            await consumer.assign_topic("t")
            with trio.fail_after(60):
                while len(found) < sent:
                    found += [int(record.value or b"") for record in await consumer.poll(timeout_ms=200)]
        assert sorted(found) == list(range(sent))
        for node in nodes[1:]:
            assert node.stop() == 0
