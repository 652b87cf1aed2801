"""`insync health`: whether every node is ready, for people, scripts and rolling restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import attrs
from cyclopts import Parameter, validators

from ...core.wording import counted
from ..clusters import Json, Servers, known, print_json, say
from ..errors import EXIT_FAILURE, CommandError

if TYPE_CHECKING:
    from ...client import NodeHealth

_LOOK = 0.2
_ANSWER_SECONDS = 5.0
_NotNegative = Parameter(validator=validators.Number(gte=0))


class _AbsentError(CommandError):
    """The cluster knows no node of the number, so far."""


def health(
    *,
    node: Annotated[int | None, _NotNegative] = None,
    wait: Annotated[float, _NotNegative] = 0,
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Show whether nodes are ready, and if not, why; status 0 if they are, else 1.

    A node is ready if it is registered, writes to the metadata store, knows a controller, has no log directory
    offline, can use and maintain all of its replicas, leads no partition under min_insync_replicas, and is in sync
    wherever it has a replica. In a rolling restart, wait for that before you restart the next one.

    Example: `insync health --wait 60`

    Parameters
    ----------
    node
        Ask this node alone.
    wait
        How many seconds to wait for them to start and be ready.
    """
    from ..running import run

    async def look() -> int:
        seen = _Seen()
        if wait:
            import trio

            with trio.move_on_after(wait):
                await _wait(known(servers), node, wait, seen)
        else:
            await _look(known(servers), node, _ANSWER_SECONDS, seen)
        if seen.problem is not None:
            raise CommandError(f"no node is ready after {wait:g} s: {seen.problem}") from seen.problem
        if json:
            print_json([attrs.asdict(each) | {"ready": each.ready} for each in seen.nodes])
        else:
            _print(seen.nodes)
        if _ready(seen.nodes):
            return 0
        if wait:
            late = ", ".join(f"{each.node_id} ({_trouble(each)})" for each in seen.nodes if not each.ready)
            raise CommandError(f"not ready after {wait:g} s: node {late}")
        return EXIT_FAILURE

    return run(look)


@attrs.define
class _Seen:
    """The result of the last finished look: nodes, or the reason why there are none."""

    nodes: list[NodeHealth] = attrs.Factory(list)
    problem: Exception | None = None


async def _wait(servers: str, node: int | None, seconds: float, seen: _Seen) -> None:
    """Look again and again until nodes are ready; a node that does not listen yet may soon. Cancel it to stop."""
    import trio

    from ...client import BootstrapError, ClientError

    seen.problem = CommandError("no node has answered yet")
    while True:
        try:
            # Half of the time, so that a silent node is named before the time is over.
            await _look(servers, node, min(_ANSWER_SECONDS, seconds / 2), seen)
        except ClientError as error:
            is_hopeless = isinstance(error, BootstrapError) and not error.patience
            if is_hopeless or not error.retriable:
                raise
            seen.nodes, seen.problem = [], error
        except _AbsentError as error:
            seen.nodes, seen.problem = [], error
        if _ready(seen.nodes):
            return
        await trio.sleep(_LOOK)


async def _look(servers: str, node: int | None, seconds: float, seen: _Seen) -> None:
    from ...client import Admin

    async with Admin(servers) as admin:
        found = await admin.describe_nodes(timeout_ms=max(1, int(1000 * seconds)))
    chosen = [each for each in found if node in (None, each.node_id)]
    if not chosen:
        there = ", ".join(str(each.node_id) for each in found) or "none"
        wanted = "node" if node is None else f"node {node}"
        raise _AbsentError(f"there is no {wanted}: the cluster has {there}")
    seen.nodes, seen.problem = chosen, None


def _ready(found: list[NodeHealth]) -> bool:
    return bool(found) and all(each.ready for each in found)


def _trouble(node: NodeHealth) -> str:
    return node.error or ", ".join(check.name for check in node.checks if not check.ok)


def _print(found: list[NodeHealth]) -> None:
    for each in found:
        if each.error:
            say(f"node {each.node_id}: NO ANSWER: {each.error}")
            continue
        say(f"node {each.node_id}: {'ready' if each.ready else 'NOT READY'}")
        for check in each.checks:
            if not check.ok:
                say(f"  {check.name}: {check.detail}")
        for directory in each.log_directories:
            if directory.stray_logs:
                strays = (
                    f"{counted(directory.stray_logs, 'stray log')}, {counted(directory.stray_bytes, 'byte')}"
                )
                say(f"  {strays}: look with `insync stray list {directory.path}`")
