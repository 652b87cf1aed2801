"""Members of groups that speak to nodes by the wire, one request at a time, and do as they are told."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import trio
from msgspec import structs

from insync.replication import wire
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import groups as gm
from insync.transport import Connection, Identity, TransportError, connect

KINDS = {cls: kind for kind, cls in wire.REQUEST_TYPES.items()}
AGAIN = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
}


class Caller:
    """Asks the nodes at these addresses; whatever coordinates a group is found anew when it is not where it was."""

    def __init__(self, servers: Sequence[str], nursery: trio.Nursery) -> None:
        self.servers = list(servers)
        self._nursery = nursery
        self._connections: dict[str, Connection] = {}
        self.found: dict[str, gm.Coordinator] = {}

    async def at(self, url: str, message: Any, timeout: float = 30.0) -> Any:
        """The answer of one node."""
        connection = self._connections.get(url)
        if connection is None or connection.closed.is_set():
            connection = await connect(url, identity=Identity(), nursery=self._nursery)
            self._connections[url] = connection
        kind = KINDS[type(message)]
        with await connection.request(kind, wire.encode(message), timeout=timeout) as response:
            return wire.decode_response(kind, response.body)

    async def find(self, group: str) -> gm.Coordinator:
        """Ask every node in turn until one names a coordinator."""
        while True:
            for url in self.servers:
                try:
                    answer = await self.at(url, gm.FindCoordinatorRequest(keys=[group]))
                except TransportError:
                    continue
                (found,) = answer.coordinators
                assert found.error in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE), found
                if not found.error:
                    self.found[group] = found
                    return found
            await trio.sleep(0.02)

    async def ask(self, message: Any) -> Any:
        """The answer of the group's coordinator, wherever that is by now."""
        while True:
            found = self.found.get(message.group) or await self.find(message.group)
            asked = structs.replace(message, coordinator_epoch=found.leader_epoch)
            try:
                reply = await self.at(found.endpoints[0], asked)
            except TransportError:
                reply = None
            if reply is not None and reply.error not in AGAIN:
                return reply
            self.found.pop(message.group, None)
            await trio.sleep(0.02)


@attrs.define(eq=False)
class Member:
    """Of the consumer protocol. `owned`: partitions by topic id."""

    caller: Caller
    group: str
    topics: list[str]
    member_id: str = attrs.Factory(lambda: uuid.uuid4().hex)
    epoch: int = 0
    owned: dict[str, set[int]] = attrs.Factory(dict)
    last: Any = None

    async def beat(self, **changes: Any) -> gm.ConsumerGroupHeartbeatResponse:
        """One heartbeat that says everything; what it is given it takes."""
        said: dict[str, Any] = {
            "group": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "topics": self.topics,
            "rebalance_timeout_ms": 30_000,
            "client_id": "test",
            "owned": [
                gm.TopicPartitionList(topic_id=each, partitions=sorted(numbers))
                for each, numbers in self.owned.items()
                if numbers
            ],
        }
        reply = await self.caller.ask(gm.ConsumerGroupHeartbeatRequest(**said | changes))
        self.last = reply
        if not reply.error:
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                self.owned = {each.topic_id: set(each.partitions) for each in reply.assignment}
        return reply

    @property
    def count(self) -> int:
        """Partitions that it owns."""
        return sum(map(len, self.owned.values()))


async def settle(*members: Member, partitions: int) -> None:
    """Heartbeats in turn until the partitions are shared out; nothing is ever owned twice."""
    with trio.fail_after(60):
        while True:
            for each in members:
                reply = await each.beat()
                assert not reply.error, reply
                with_owner = [
                    (topic, number) for m in members for topic, ns in m.owned.items() for number in ns
                ]
                assert len(with_owner) == len(set(with_owner)), "a partition has two owners"
            if len(with_owner) == partitions and len({each.epoch for each in members}) == 1:
                return


@contextmanager
def calling(servers: Sequence[str], nursery: trio.Nursery) -> Iterator[Caller]:
    """A caller whose connections end with the block."""
    caller = Caller(servers, nursery)
    try:
        yield caller
    finally:
        for connection in caller._connections.values():
            connection.abort("the test is over")
