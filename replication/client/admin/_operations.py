"""The admin client's part about running a cluster: how nodes are, and what clients and moves may take of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import attrs
import trio

from ....transport import TransportError
from ...core import messages as m
from ...core.messages import ChangeInfo, HealthCheck, LogDirectoryInfo, QuotaInfo
from .. import _arguments as given
from ._partitions import PartitionAdmin

EntityType = Literal["user", "client_id", "node"]
"""The subjects of limits: clients by their certificate, clients by what they call themselves, or nodes."""


@attrs.frozen(kw_only=True)
class NodeHealth:
    """A node's report on itself, or why there is none (`error`, else empty).

    checks: what has to hold for it to be ready, with what is wrong where it does not.
    log_directories: each with its partitions, its size in bytes and why it is offline, if it is. None if the
      client may not administer.
    counters: bytes, requests and microseconds that these took since the start of its process; they only grow while
      `incarnation` is the same.
    version: of its insync; empty if it does not say.
    """

    node_id: int
    incarnation: int = -1
    uptime_ms: int = 0
    controller_id: int = -1
    checks: list[HealthCheck] = attrs.Factory(list)
    log_directories: list[LogDirectoryInfo] = attrs.Factory(list)
    counters: dict[str, int] = attrs.Factory(dict)
    version: str = ""
    error: str = ""

    @property
    def ready(self) -> bool:
        """Whether it answered and everything holds."""
        return not self.error and all(check.ok for check in self.checks)


@attrs.frozen(kw_only=True)
class NodeChanges:
    """Changes that a node has told of, oldest first, or why it tells none (`error`, else empty).

    Ask again with `next_number` and `incarnation` for those that follow. Nodes remember some thousand;
    `first_number` is the oldest one that this one still has.
    """

    node_id: int
    incarnation: int = -1
    first_number: int = 1
    next_number: int = 1
    changes: list[ChangeInfo] = attrs.Factory(list)
    error: str = ""


class OperationsAdmin(PartitionAdmin):
    """Health and quotas; a part of `Admin`."""

    async def describe_nodes(self, *, timeout_ms: int = 5000) -> list[NodeHealth]:
        """How every node is, by node id; those that do not answer are reported as such.

        Nodes that are named as replicas of some partition but are not registered are among them.
        """
        timeout = given.duration("timeout_ms", timeout_ms) / 1000
        answer = await self._metadata(None)
        self._cluster.nodes = {node.node_id: node for node in answer.nodes}
        named = {node for topic in answer.topics for part in topic.partitions for node in part.replicas}
        found = [
            NodeHealth(node_id=node_id, error="not registered; its process is down or cut off")
            for node_id in named - self._cluster.nodes.keys()
        ]

        async def ask(node_id: int) -> None:
            found.append(await self._ask_health(node_id, timeout))

        async with trio.open_nursery() as nursery:
            for node in answer.nodes:
                nursery.start_soon(ask, node.node_id)
        return sorted(found, key=lambda health: health.node_id)

    async def _ask_health(self, node_id: int, timeout: float) -> NodeHealth:
        error = f"no answer within {timeout:g} s"
        with trio.move_on_after(timeout):
            try:
                told: m.DescribeNodeResponse = await self._cluster.ask(
                    m.Kind.DESCRIBE_NODE, m.DescribeNodeRequest(), timeout=timeout, node_id=node_id
                )
            except TransportError as failure:
                error = str(failure)
            else:
                return NodeHealth(
                    node_id=told.node_id,
                    incarnation=told.incarnation,
                    uptime_ms=told.uptime_ms,
                    controller_id=told.controller_id,
                    checks=told.checks,
                    log_directories=told.log_directories,
                    counters=told.counters,
                    version=told.version,
                )
        return NodeHealth(node_id=node_id, error=error)

    async def describe_changes(
        self, since: Mapping[int, NodeChanges] | None = None, *, timeout_ms: int = 5000
    ) -> list[NodeChanges]:
        """Each registered node's memory of elections, ISR changes, nodes that come and go, and why.

        The controller tells of all partitions, other nodes of those that they host: most changes are told more than
        once. A fact of a change is a text, a number or a list of node ids, by name as in the log.

        Args:
          since: The last answers by node id: what they hold is not told again. At most 500 changes of each node
            come in one call; call again while any came.
          timeout_ms: After this long without an answer, a node is reported as silent.
        """
        timeout = given.duration("timeout_ms", timeout_ms) / 1000
        known = {} if since is None else given.mapping("since", since, "give the last answers by node id")
        wrong = next((each for each in known.values() if not isinstance(each, NodeChanges)), None)
        if wrong is not None:
            raise given.refused("since", wrong, "give the last answers by node id")
        answer = await self._metadata([])
        self._cluster.nodes = {node.node_id: node for node in answer.nodes}
        found: list[NodeChanges] = []

        async def ask(node_id: int) -> None:
            found.append(await self._ask_changes(known.get(node_id) or NodeChanges(node_id=node_id), timeout))

        async with trio.open_nursery() as nursery:
            for node in answer.nodes:
                nursery.start_soon(ask, node.node_id)
        return sorted(found, key=lambda told: told.node_id)

    async def _ask_changes(self, known: NodeChanges, timeout: float) -> NodeChanges:
        request = m.DescribeChangesRequest(start=known.next_number, incarnation=known.incarnation)
        error = f"no answer within {timeout:g} s"
        with trio.move_on_after(timeout):
            try:
                told: m.DescribeChangesResponse = await self._cluster.ask(
                    m.Kind.DESCRIBE_CHANGES, request, timeout=timeout, node_id=known.node_id
                )
            except TransportError as failure:
                error = str(failure)
            else:
                return NodeChanges(
                    node_id=told.node_id,
                    incarnation=told.incarnation,
                    first_number=told.first_number,
                    next_number=told.next_number,
                    changes=told.changes,
                )
        return attrs.evolve(known, changes=[], error=error)

    async def alter_quotas(
        self,
        entity_type: EntityType,
        name: str = "",
        limits: Mapping[str, int] | None = None,
        *,
        remove: Iterable[str] = (),
    ) -> dict[str, int]:
        """Set limits of a client or a node, or take them away; gives those that it has from now on.

        Args:
          entity_type: `user`, `client_id` or `node`.
          name: Which one; empty for the default of all that have none of their own.
          limits: Bytes a second on each node: `producer_byte_rate` and `consumer_byte_rate` of clients,
            `leader_replication_throttled_rate` and `follower_replication_throttled_rate` of nodes.
          remove: Names of limits to take away.

        Raises:
          InvalidConfigError: A type or limit is unknown, or a value is impossible.
          RequestTimeoutError: No controller answered in time.
        """
        request = m.AlterQuotasRequest(
            entity_type=given.text("entity_type", entity_type),
            name=given.text("name", name),
            limits={} if limits is None else given.limits("limits", limits),
            remove=given.names("remove", remove),
        )
        answer: m.AlterQuotasResponse = await self._change(
            request, f"limits of {entity_type} {name or '(default)'}"
        )
        return answer.limits

    async def describe_quotas(self) -> list[QuotaInfo]:
        """Every entity that has limits of its own."""
        answer = await self._metadata([], quotas=True)
        return sorted(answer.quotas, key=lambda info: (info.entity_type, info.name))
