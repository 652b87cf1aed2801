"""Requests from one node to another outside the fetches: requests for the controller, questions about logs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio

from ...transport import TransportError, connect_nearest
from .. import wire
from ..core import messages as m
from ..core.control.controller import AskReplicas
from ..core.control.elections import LogInfo
from ..core.control.records import NodeRecord
from ..core.types import PartitionId

if TYPE_CHECKING:
    from ._replicas import Replicas

log = logging.getLogger("insync.node")

PAUSE = 0.05


async def ask_node(
    replicas: Replicas, node: NodeRecord, kind: m.Kind, body: bytes, *, timeout: float
) -> bytes:
    """One request over a connection of its own; the body of the answer.

    Raises:
      TransportError, OSError: It cannot be reached or does not answer.
    """
    dialler = replicas.dialler
    connection = await connect_nearest(
        node.endpoints,
        identity=dialler.identity,
        security=dialler.security,
        expect_node=node.node_id,
        lane="control",
        nursery=dialler.nursery,
        timeout=timeout,
    )
    try:
        with await connection.request(kind, body, timeout=timeout) as response:
            return bytes(response.body)
    finally:
        connection.abort("its one request is done")


def tell_logs(replicas: Replicas, request: m.GetReplicaLogInfoRequest) -> m.GetReplicaLogInfoResponse:
    """What this node's replicas say of their logs; those that are not open say nothing."""
    told = []
    for named in request.partitions:
        host = replicas.hosts.get(PartitionId(named.topic, named.partition))
        if host is not None and (info := host.replica.log_info()) is not None:
            told.append(
                m.ReplicaLogInfo(
                    topic=named.topic,
                    partition=named.partition,
                    leader_epoch=info.leader_epoch,
                    last_epoch=info.last_epoch,
                    log_end_offset=info.log_end_offset,
                    topic_id=info.topic_id,
                )
            )
    return m.GetReplicaLogInfoResponse(
        node_id=replicas.settings.node_id, incarnation=replicas.incarnation, partitions=told
    )


class LogQuestions:
    """One round of questions to replicas about their logs (KIP-966): all nodes at once, within a bound."""

    def __init__(self, replicas: Replicas, asked: AskReplicas) -> None:
        self._replicas = replicas
        self._asked = asked
        self._told: dict[PartitionId, dict[int, LogInfo]] = {}

    async def ask(self) -> Mapping[PartitionId, Mapping[int, LogInfo]]:
        """Every answer there is when all have answered or `unclean_recovery_timeout_ms` is over."""
        nodes = {node for named in self._asked.partitions.values() for node in named}
        with trio.move_on_after(self._replicas.settings.unclean_recovery_timeout_ms / 1000):
            async with trio.open_nursery() as nursery:
                for node in nodes:
                    nursery.start_soon(self._ask_until_answered, node)
        return self._told

    async def _ask_until_answered(self, node: int) -> None:
        """A replica that has not entered the epoch yet will soon: ask it again."""
        missing = [each for each, asked in self._asked.partitions.items() if node in asked]
        while True:
            try:
                answer = await self._ask(node, missing)
            except (TransportError, OSError, UnicodeError, wire.WireError) as error:
                log.debug("node %d does not tell of its logs: %s", node, error)
            else:
                self._take(answer, node)
            missing = [each for each in missing if node not in self._told.get(each, {})]
            if not missing:
                return
            await trio.sleep(PAUSE)

    async def _ask(self, node: int, partitions: list[PartitionId]) -> m.GetReplicaLogInfoResponse:
        request = m.GetReplicaLogInfoRequest(
            partitions=[m.PartitionName(topic=each.topic, partition=each.partition) for each in partitions]
        )
        settings = self._replicas.settings
        if node == settings.node_id:
            return tell_logs(self._replicas, request)
        record = self._replicas.view.nodes.get(node)
        if record is None:
            raise ConnectionError(f"node {node} is not registered")
        timeout = settings.unclean_recovery_timeout_ms / 1000
        kind = m.Kind.GET_REPLICA_LOG_INFO
        body = await ask_node(self._replicas, record, kind, wire.encode(request), timeout=timeout)
        response: m.GetReplicaLogInfoResponse = wire.decode_response(kind, body)
        return response

    def _take(self, answer: m.GetReplicaLogInfoResponse, node: int) -> None:
        for told in answer.partitions:
            partition = PartitionId(told.topic, told.partition)
            info = LogInfo(
                incarnation=answer.incarnation,
                leader_epoch=told.leader_epoch,
                last_epoch=told.last_epoch,
                log_end_offset=told.log_end_offset,
                topic_id=told.topic_id,
            )
            if self._asked.is_answered(partition, info):
                self._told.setdefault(partition, {})[node] = info
