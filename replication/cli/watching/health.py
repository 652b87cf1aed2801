"""`insync health`: whether every node is ready, for people, scripts and rolling restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import attrs
from cyclopts import Parameter, validators

from ...core.wording import counted
from ..clusters import Json, Servers, known, print_json
from ..errors import EXIT_FAILURE, CommandError

if TYPE_CHECKING:
    from ...client import Admin, NodeHealth

_LOOK = 0.2
_NotNegative = Parameter(validator=validators.Number(gte=0))


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
        How many seconds to wait for them to be ready.
    """
    from ..running import run

    async def look() -> int:
        import trio

        from ...client import Admin

        async with Admin(known(servers)) as admin:
            deadline = trio.current_time() + wait
            while True:
                found = await _look(admin, node)
                if _ready(found) or trio.current_time() >= deadline:
                    break
                await trio.sleep(_LOOK)
        if json:
            print_json([attrs.asdict(each) | {"ready": each.ready} for each in found])
        else:
            _print(found)
        return 0 if _ready(found) else EXIT_FAILURE

    return run(look)


async def _look(admin: Admin, node: int | None) -> list[NodeHealth]:
    found = await admin.describe_nodes()
    if node is None:
        return found
    chosen = [each for each in found if each.node_id == node]
    if not chosen:
        there = ", ".join(str(each.node_id) for each in found)
        raise CommandError(f"there is no node {node}: the cluster has {there}")
    return chosen


def _ready(found: list[NodeHealth]) -> bool:
    return bool(found) and all(each.ready for each in found)


def _print(found: list[NodeHealth]) -> None:
    for each in found:
        if each.error:
            print(f"node {each.node_id}: NO ANSWER: {each.error}")
            continue
        print(f"node {each.node_id}: {'ready' if each.ready else 'NOT READY'}")
        for check in each.checks:
            if not check.ok:
                print(f"  {check.name}: {check.detail}")
        for directory in each.log_directories:
            if directory.stray_logs:
                strays = (
                    f"{counted(directory.stray_logs, 'stray log')}, {counted(directory.stray_bytes, 'byte')}"
                )
                print(f"  {strays}: look with `insync stray list {directory.path}`")
