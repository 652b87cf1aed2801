"""A cluster as jobs see it: requests are made of plain values, and answers are compared as such."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import trio

from insync.plugins.kafka.protocol import Struct, message_of
from insync.plugins.kafka.protocol.apis import Api
from insync.plugins.kafka.protocol.tables import Struct as Described

from ...plugins.kafka.wire_client import WireClient

PATIENCE = 60.0
"""Seconds for what becomes true after a while."""
MASKED = frozenset(
    {
        *("cluster_id", "controller_id", "host", "port", "rack", "topic_id", "leader_epoch"),
        *("throttle_time_ms", "error_message", "producer_id", "member_id", "client_host", "documentation"),
        *("eligible_leader_replicas", "last_known_elr", "last_timestamp", "transaction_start_time_ms"),
    }
)
"""What names a cluster or a moment, or is text for people."""
HANGS_UP = "hangs up"


class _Parts:
    """Makes the parts of a message, whose classes are attributes of the message's own."""

    def __init__(self, top: Any) -> None:
        self._top = top

    def fill(self, kind: Any, struct: Described, values: Mapping[str, Any]) -> Any:
        fields = {each.name: each for each in struct.fields}
        made: dict[str, Any] = {}
        for name, value in values.items():
            below = fields[name].struct
            if below is None or value is None:
                made[name] = value
                continue
            part = getattr(self._top, below.name)
            made[name] = (
                [self.fill(part, below, each) for each in value]
                if fields[name].is_array
                else self.fill(part, below, value)
            )
        return kind(**made)


def plain(told: Any) -> Any:
    """An answer as plain values without what is masked; parts in an order of their own, for neither has one."""
    if isinstance(told, list):
        values = [plain(each) for each in told]
        return sorted(values, key=json.dumps) if values and isinstance(values[0], dict) else values
    if isinstance(told, Struct):
        return {name: plain(getattr(told, name)) for name in told.NAMES if name not in MASKED}
    if isinstance(told, bytes):
        return told.hex()
    return list(told) if isinstance(told, tuple) else told


class Cluster:
    """servers: `HOST:PORT,...`. versions: the highest of each API that is to be used."""

    def __init__(self, servers: str, versions: Mapping[int, int]) -> None:
        self.servers = servers.split(",")
        self._versions = versions
        self._open: dict[str, WireClient] = {}

    async def ask(self, at: str | None, api: Api, version: int | None = None, /, **values: Any) -> Any:
        """The answer; `HANGS_UP` if there is none. at: an address; None: the first server's."""
        kind = message_of(api, is_request=True)
        assert kind is not None
        request = _Parts(kind).fill(kind, kind.TABLE.struct, values)
        where = at or self.servers[0]
        if where not in self._open:
            self._open[where] = await WireClient.connect(f"kafka://{where}")
        chosen = self._versions[api] if version is None else version
        try:
            return await self._open[where].ask(api, chosen, request)
        except EOFError:
            await self._open.pop(where).stream.aclose()
            return HANGS_UP

    async def until(self, attempt: Callable[[], Awaitable[Any]], holds: Callable[[Any], bool]) -> Any:
        """The first answer of which it holds; the last one, if none is like that in time."""
        answer = None
        with trio.move_on_after(PATIENCE):
            while True:
                answer = await attempt()
                if holds(answer):
                    return answer
                await trio.sleep(0.05)
        return answer

    async def make(
        self, name: str, places: Sequence[Sequence[int]] = ((1, 2, 3),), config: Mapping[str, str] = {}
    ) -> bytes:
        """A topic with replicas at these places, which every server knows and leads; its id."""
        placed = [{"partition_index": i, "broker_ids": list(each)} for i, each in enumerate(places)]
        settings = [{"name": key, "value": value} for key, value in config.items()]
        topic = {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": placed,
            "configs": settings,
        }
        made = await self.until(
            lambda: self.ask(None, Api.CREATE_TOPICS, topics=[topic], timeout_ms=10_000),
            lambda told: told.topics[0].error_code in (0, 36),
        )
        assert made.topics[0].error_code == 0, made
        for server in self.servers:
            described = await self.until(
                lambda server=server: self.described(name, server),
                lambda told: (
                    told.error_code == 0
                    and len(told.partitions) == len(places)
                    and all(
                        each.leader_id >= 0 and len(each.isr_nodes) == len(each.replica_nodes)
                        for each in told.partitions
                    )
                ),
            )
        for index in range(len(places)):
            await self.until(lambda index=index: self.end(name, index), lambda told: told.error_code == 0)
        return bytes(described.topic_id)

    async def described(self, name: str, server: str | None = None) -> Any:
        """A topic as metadata tell of it."""
        return (await self._metadata(name, server)).topics[0]

    async def _metadata(self, name: str, server: str | None = None) -> Any:
        topics = [{"name": name}]
        return await self.ask(server, Api.METADATA, 12, topics=topics, allow_auto_topic_creation=False)

    async def leader(self, name: str, partition: int = 0) -> str:
        """Where a partition is led."""
        told = await self.until(
            lambda: self._metadata(name),
            lambda told: any(
                each.partition_index == partition and each.leader_id in [b.node_id for b in told.brokers]
                for each in told.topics[0].partitions
            ),
        )
        (part,) = [each for each in told.topics[0].partitions if each.partition_index == partition]
        (broker,) = [each for each in told.brokers if each.node_id == part.leader_id]
        return f"{broker.host}:{broker.port}"

    async def coordinator(self, key: str, kind: int = 0) -> str:
        """Where a group, or a transactional id (1), is coordinated."""
        told = await self.until(
            lambda: self.ask(None, Api.FIND_COORDINATOR, 3, key=key, key_type=kind),
            lambda told: told.error_code == 0,
        )
        return f"{told.host}:{told.port}"

    async def end(self, name: str, partition: int = 0, time: int = -1) -> Any:
        """Where a partition ends, as ListOffsets tells it; or what it tells of another time."""
        part = {"partition_index": partition, "timestamp": time}
        told = await self.ask(
            await self.leader(name, partition),
            Api.LIST_OFFSETS,
            7,
            replica_id=-1,
            topics=[{"name": name, "partitions": [part]}],
        )
        return told.topics[0].partitions[0]

    async def aclose(self) -> None:
        """Leave all connections."""
        for each in self._open.values():
            await each.stream.aclose()
