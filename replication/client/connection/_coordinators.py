"""Questions for the coordinators of groups: which node that is, asked again when another may have taken over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio
from msgspec import structs

from ....transport import TransportError
from ...core import messages as m
from ...core.errors import ErrorCode
from ...core.messages import groups as gm
from ...core.messages import transactions as tm
from ..errors import AuthorizationError, ClientError, InvalidRequestError, RequestTimeoutError, error_for
from ._cluster import Cluster

KINDS: dict[type, m.Kind] = {
    gm.ConsumerGroupHeartbeatRequest: m.Kind.CONSUMER_GROUP_HEARTBEAT,
    gm.JoinGroupRequest: m.Kind.JOIN_GROUP,
    gm.SyncGroupRequest: m.Kind.SYNC_GROUP,
    gm.HeartbeatRequest: m.Kind.HEARTBEAT,
    gm.LeaveGroupRequest: m.Kind.LEAVE_GROUP,
    gm.CommitGroupOffsetsRequest: m.Kind.COMMIT_GROUP_OFFSETS,
    gm.GroupOffsetsRequest: m.Kind.GROUP_OFFSETS,
    gm.DescribeGroupsRequest: m.Kind.DESCRIBE_GROUPS,
    gm.ListGroupsRequest: m.Kind.LIST_GROUPS,
    gm.DeleteGroupRequest: m.Kind.DELETE_GROUPS,
    gm.DeleteGroupOffsetsRequest: m.Kind.OFFSET_DELETE,
    gm.TxnOffsetCommitRequest: m.Kind.TXN_OFFSET_COMMIT,
    tm.InitTransactionsRequest: m.Kind.INIT_TRANSACTIONS,
    tm.EndTransactionRequest: m.Kind.END_TXN,
    tm.DescribeTransactionsRequest: m.Kind.DESCRIBE_TRANSACTIONS,
    tm.ListTransactionsRequest: m.Kind.LIST_TRANSACTIONS,
}
_FIND_TIMEOUT = 5.0
_ANSWER_TIMEOUT = 6.0
"""Of one attempt: a coordinator that writes answers within `offsets_commit_timeout_ms`, 5 s."""
_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_AGAIN = _MOVED | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}


class Coordinators:
    """Finds and asks the coordinators of groups, or of transactional ids, for one client."""

    def __init__(self, cluster: Cluster, key_type: int = gm.GROUP) -> None:
        """`key_type`: what they coordinate, as in `FindCoordinatorRequest`."""
        self._cluster = cluster
        self._key_type = key_type
        self._known: dict[str, gm.Coordinator] = {}

    def backoff(self, attempt: int) -> float:
        """Seconds until the same question is worth asking again."""
        return self._cluster.quick_backoff(attempt)

    async def find(self, group: str, *, timeout: float = _FIND_TIMEOUT) -> gm.Coordinator:
        """Ask once who coordinates a group.

        Raises:
          CoordinatorNotAvailableError: Nobody does now.
          ClientError: No node could be asked; of a client that may not, `AuthorizationError`.
        """
        request = gm.FindCoordinatorRequest(keys=[group], key_type=self._key_type)
        answer: gm.FindCoordinatorResponse = await self._cluster.ask(
            m.Kind.FIND_COORDINATOR, request, timeout=timeout
        )
        found = next((each for each in answer.coordinators if each.key == group), None)
        if found is None:
            raise error_for(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"group {group!r}", "the answer does not contain it"
            )
        if found.error != ErrorCode.NONE:
            raise error_for(found.error, f"group {group!r}", found.message)
        if found.node_id not in self._cluster.nodes:
            await self._cluster.refresh()
        self._known[group] = found
        return found

    async def send(self, node_id: int, message: Any, coordinator_epoch: int, *, timeout: float) -> Any:
        """One request to a coordinator that was found, and its answer, whatever that says.

        Raises:
          TransportError: No answer came.
          ClientError: The node refuses the request as such.
        """
        tells = hasattr(message, "coordinator_epoch")
        asked = structs.replace(message, coordinator_epoch=coordinator_epoch) if tells else message
        return await self._cluster.ask(KINDS[type(message)], asked, timeout=timeout, node_id=node_id)

    async def ask(self, group: str, message: Any, *, timeout: float, thing: str = "") -> Any:
        """The answer to a request that may be repeated; its own `error` is none that passes by itself.

        thing: What it is about, for an error's text.

        Raises:
          RequestTimeoutError: No coordinator has carried it out within `timeout` seconds; names the trouble.
          ClientError: The client may not ask for this, or the node does not understand it.
        """
        thing = thing or f"group {group!r}"
        last: Exception | None = None
        with trio.move_on_after(timeout):
            attempt = 0
            while True:
                try:
                    found = self._known.get(group) or await self.find(group)
                    wait = min(timeout, _ANSWER_TIMEOUT)
                    answer = await self.send(found.node_id, message, found.leader_epoch, timeout=wait)
                    code = _code_of(answer)
                    if code not in _AGAIN:
                        return answer
                    last = error_for(code, thing, answer.message)
                    if code in _MOVED:
                        self._known.pop(group, None)
                except TransportError as error:
                    last = error
                    self._known.pop(group, None)
                except (AuthorizationError, InvalidRequestError):
                    raise
                except ClientError as error:
                    if not error.retriable:
                        raise
                    last = error
                attempt += 1
                await trio.sleep(self._cluster.quick_backoff(attempt))
        why = f": {last}" if last is not None else ""
        raise RequestTimeoutError(
            f"{thing}: no answer from its coordinator within {timeout:g} s{why}"
        ) from last

    async def describe(self, group: str, *, timeout: float) -> gm.DescribedGroup:
        """The coordinator's description of one group; raises what `ask` raises."""
        answer = await self.ask(group, gm.DescribeGroupsRequest(groups=[group]), timeout=timeout)
        if answer.error != ErrorCode.NONE or not answer.groups:
            return gm.DescribedGroup(group=group, error=answer.error or ErrorCode.UNKNOWN_SERVER_ERROR)
        found: gm.DescribedGroup = answer.groups[0]
        return found


def _code_of(answer: Any) -> int:
    """Of a description of one group, or of one transactional id, it stands with that."""
    described: Sequence[Any] = ()
    match answer:
        case gm.DescribeGroupsResponse():
            described = answer.groups
        case tm.DescribeTransactionsResponse():
            described = answer.transactions
    code: int = answer.error
    return code or (described[0].error if len(described) == 1 else ErrorCode.NONE)
