"""Another leader for a partition, without a failure: its replicas in another order, and an election."""

from __future__ import annotations

import trio

from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api

from ...plugins.kafka.wire_client import WireClient
from .record import PATIENCE

_Metadata = message("MetadataRequest")
_Alter = message("AlterPartitionReassignmentsRequest")
_Elect = message("ElectLeadersRequest")


def move_leader(servers: str, topic: str) -> bool:
    """Of partition 0: to its second replica. Whether that happened."""
    return trio.run(_move, servers, topic)


async def _move(servers: str, topic: str) -> bool:
    with trio.move_on_after(PATIENCE):
        client = await WireClient.connect(f"kafka://{servers.partition(',')[0]}")
        async with client.stream:
            before, replicas = await _look(client, topic)
            turned = [*replicas[1:], replicas[0]]
            part = _Alter.ReassignablePartition(partition_index=0, replicas=turned)
            named = _Alter.ReassignableTopic(name=topic, partitions=[part])
            controller = await _controller(client, servers)
            async with controller.stream:
                wanted = _Elect.TopicPartitions(topic=topic, partitions=[0])
                now, order = await _look(client, topic)
                while now in (before, -1):
                    if order != turned:  # nobody has taken it up yet, or whoever was asked could not
                        asked = _Alter(topics=[named], timeout_ms=15_000)
                        await controller.ask(Api.ALTER_PARTITION_REASSIGNMENTS, 0, asked)
                    elect = _Elect(election_type=0, topic_partitions=[wanted], timeout_ms=15_000)
                    await controller.ask(Api.ELECT_LEADERS, 1, elect)
                    await trio.sleep(0.1)
                    now, order = await _look(client, topic)
        return True
    return False


async def _look(client: WireClient, topic: str) -> tuple[int, list[int]]:
    """The leader and the replicas."""
    asked = _Metadata(topics=[_Metadata.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    told = await client.ask(Api.METADATA, 9, asked)
    part = told.topics[0].partitions[0]
    return part.leader_id, list(part.replica_nodes)


async def _controller(client: WireClient, servers: str) -> WireClient:
    told = await client.ask(Api.METADATA, 9, _Metadata(topics=[]))
    known = {each.node_id: f"{each.host}:{each.port}" for each in told.brokers}
    at = known.get(told.controller_id, servers.partition(",")[0])
    return await WireClient.connect(f"kafka://{at}")
