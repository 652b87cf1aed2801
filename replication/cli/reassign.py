"""`insync reassign`: move partitions to other nodes, while they stay in use."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import attrs
from cyclopts import Parameter, validators

from ..core.wording import counted
from .clusters import Flag, Json, Servers, known, print_json, say
from .elect import print_outcomes
from .errors import EXIT_FAILURE, CommandError, UsageError
from .watching.measures import THROTTLES, copied

if TYPE_CHECKING:
    from ..client import Admin
    from ..client.admin import Reassignment

_LOOK_EVERY = 0.5
"""Seconds between two looks at moves that are waited for."""

Targets = dict[tuple[str, int], Sequence[int] | None]


def reassign(
    topic: str = "",
    /,
    *,
    replicas: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    to_nodes: Annotated[str, Parameter(show_default=False)] = "",
    cancel: Flag = False,
    no_check_room: Flag = False,
    wait: Flag = False,
    throttle: Annotated[int | None, Parameter(show_default=False, validator=validators.Number(gte=1))] = None,
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Move partitions to other nodes; without an action, list the moves under way.

    The new replicas copy the partition; when all of them are in sync, the old ones are removed. How fast nodes
    send and fetch for that is bounded by `leader_replication_throttled_rate` and
    `follower_replication_throttled_rate`: settings of nodes, or --throttle.

    Examples: `insync reassign orders --replicas 0=1,2,4 --wait`, `insync reassign orders --to-nodes 1,2,4`

    Parameters
    ----------
    topic
        Which topic.
    replicas
        Partition and the nodes that are to have it, the preferred leader first; repeatable.
    to_nodes
        Spread all partitions of the topic over these nodes, and evenly over their racks.
    cancel
        Cancel the topic's moves that are under way.
    no_check_room
        Skip the check that the new nodes have enough free space.
    wait
        Return when the move is complete; meanwhile standard error shows its progress.
    throttle
        Bytes a second that moves may take of each node, to send and to fetch, from now on. With --wait the limit is
        taken away when all moves are done; otherwise see `insync config quota node --remove`.
    """
    from .running import run

    chosen = sum(map(bool, (replicas, to_nodes, cancel)))
    if chosen > 1:
        raise UsageError("choose one of --replicas, --to-nodes and --cancel")
    if chosen and not topic:
        raise UsageError("name the topic: insync reassign TOPIC --replicas 0=1,2,3")
    placements = dict(map(_placement, replicas))
    over = _nodes(to_nodes, f"--to-nodes {to_nodes}") if to_nodes else []
    failed = False

    async def reassign_them() -> None:
        nonlocal failed
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            await _limit(admin, throttle)
            if not chosen:
                _print_list(await admin.list_partition_reassignments([topic] if topic else None), json)
            else:
                targets = await _targets(admin, topic, placements, over)
                outcomes = await admin.reassign_partitions(targets, check_room=not no_check_room)
                failed = any(outcomes.values())
                print_outcomes(outcomes, "goes back" if cancel else "is to move", json)
                if cancel and not outcomes and not json:
                    say("nothing is being moved")
            if wait:
                await _until_moved(admin, [topic] if topic else None, throttle)

    status = run(reassign_them)
    return EXIT_FAILURE if failed else status


def drain(
    node: Annotated[int, Parameter(validator=validators.Number(gte=0))],
    /,
    *,
    dry_run: Flag = False,
    no_check_room: Flag = False,
    wait: Flag = False,
    throttle: Annotated[int | None, Parameter(show_default=False, validator=validators.Number(gte=1))] = None,
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Move all replicas of a node to other nodes, so that it can be taken out of the cluster.

    Each goes to a living node with few replicas, in a rack where its partition has no other replica, if there is
    one. Partitions stay in use. When the node has no replicas left, stop it: insync status shows how many it has.

    Example: `insync drain 3 --throttle 50000000 --wait`

    Parameters
    ----------
    node
        Its number.
    dry_run
        Show what would move where, and change nothing.
    no_check_room
        Skip the check that the new nodes have enough free space.
    wait
        Return when the node has no replicas left; meanwhile standard error shows the progress.
    throttle
        Bytes a second that moves may take of each node, as for `insync reassign`.
    """
    from .running import run

    failed = False

    async def drain_it() -> None:
        nonlocal failed
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            plan = await admin.plan_drain(node)
            if not plan:
                _check_is_there(node, [each.node_id for each in (await admin.describe_cluster()).nodes])
            if dry_run or not plan:
                _print_plan(node, plan, json)
                return
            await _limit(admin, throttle)
            outcomes = await admin.reassign_partitions(dict(plan), check_room=not no_check_room)
            failed = any(outcomes.values())
            print_outcomes(outcomes, "is to move", json)
            if wait:
                await _until_moved(admin, None, throttle, len(plan))

    status = run(drain_it)
    return EXIT_FAILURE if failed else status


def _check_is_there(node: int, alive: Sequence[int]) -> None:
    """Refuse a node of which nothing is known: who means another one would stop that with its replicas."""
    if node not in alive:
        raise CommandError(
            f"node {node} has no replicas and is none of the living nodes: {', '.join(map(str, sorted(alive)))}"
        )


def _print_plan(node: int, plan: Mapping[tuple[str, int], Sequence[int]], as_json: bool) -> None:
    if as_json:
        print_json(
            {f"{topic}-{partition}": list(nodes) for (topic, partition), nodes in sorted(plan.items())}
        )
    elif not plan:
        say(f"node {node} has no replicas")
    else:
        for (topic, partition), nodes in sorted(plan.items()):
            say(f"{topic}-{partition} would move to {list(nodes)}")


async def _limit(admin: Admin, throttle: int | None) -> None:
    if throttle is not None:
        await admin.alter_quotas("node", "", dict.fromkeys(THROTTLES, throttle))


async def _until_moved(
    admin: Admin, topics: Sequence[str] | None, throttle: int | None, most: int = 0
) -> None:
    """Wait for all moves, and say how far they are whenever that has changed; `most` have been begun just now."""
    import trio

    said = ""
    while moves := await admin.list_partition_reassignments(topics):
        most = max(most, len(moves))
        line = f"{most - len(moves)} of {counted(most, 'partition')} moved, {await _copied(admin, moves)}"
        if line != said:
            say(f"insync: {line}", to=sys.stderr, flush=True)
            said = line
        await trio.sleep(_LOOK_EVERY)
    if most:
        say(f"insync: {most} of {counted(most, 'partition')} moved", to=sys.stderr, flush=True)
    if throttle is not None and not await admin.list_partition_reassignments():
        await admin.alter_quotas("node", "", remove=THROTTLES)


async def _copied(admin: Admin, moves: Mapping[tuple[str, int], Reassignment]) -> str:
    """How many of the records that new replicas need are there, as their leaders see it."""
    reports = await admin.describe_replicas(sorted({topic for topic, _ in moves}))
    adding = {at: move.adding for at, move in moves.items()}
    shares = copied(adding, (replica for report in reports for replica in report.replicas)).values()
    there, wanted = sum(share[0] for share in shares), sum(share[1] for share in shares)
    return f"{there:,} of {wanted:,} records copied for the others"


async def _targets(
    admin: Admin, topic: str, placements: Mapping[int, list[int]], over: Sequence[int]
) -> Targets:
    if placements:
        return {(topic, partition): nodes for partition, nodes in placements.items()}
    if over:
        return dict(await admin.plan_reassignment(topic, over))
    return dict.fromkeys(await admin.list_partition_reassignments([topic]))


def _placement(text: str) -> tuple[int, list[int]]:
    partition, equals, nodes = text.partition("=")
    if not equals or not partition.isdigit():
        raise UsageError(f"--replicas {text}: write it as PARTITION=NODES, e.g. --replicas 0=1,2,3")
    return int(partition), _nodes(nodes, f"--replicas {text}")


def _nodes(text: str, option: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise UsageError(f"{option}: name nodes by their numbers, with commas between, e.g. 1,2,3") from None


def _print_list(moves: dict[tuple[str, int], Reassignment], as_json: bool) -> None:
    if as_json:
        print_json([attrs.asdict(each) | {"target": each.target} for each in moves.values()])
    elif not moves:
        say("nothing is being moved")
    else:
        for (topic, partition), each in sorted(moves.items()):
            say(
                f"{topic}-{partition}: to {each.target} (adding {each.adding}, removing {each.removing}), "
                f"ISR {each.isr}"
            )
