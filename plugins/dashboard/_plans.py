"""Changes to a cluster, each said in words before it is made.

Each function is given a look at the cluster that was taken for it (`Watcher.fresh`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import attrs

from ...replication.asyncio import Admin
from ...replication.cli.watching.measures import THROTTLES
from ...replication.client import ServerError
from ...replication.client.admin._groups import GroupDescription, ResetTo
from ...replication.core.types import PartitionId, Value
from ...replication.core.wording import counted
from ...replication.errors import ReplicationError
from ._look import Look

SHOWN = 50
"""Lines of a plan."""


class BadPlanError(ReplicationError):
    """A change that cannot be made as it was asked for."""


@attrs.frozen(kw_only=True)
class Plan:
    """title: what it is. lines: what it will do, one thing a line. carry_out: does it, and says what became of it.

    basis: what it rests on, to be compared: of two plans with the same basis, what one says is what the other does.
    dangerous: it can lose records.
    """

    title: str
    lines: list[str]
    carry_out: Callable[[], Awaitable[str]]
    basis: object
    dangerous: bool = False


async def create_topic(
    admin: Admin, look: Look, name: str, partitions: int, replication: int, config: Mapping[str, Value]
) -> Plan:
    """Raises `BadPlanError` if it exists already."""
    if name in look.topics:
        raise BadPlanError(f"there is a topic {name!r} already: choose another name")
    settings = [f"{key} = {value}" for key, value in config.items()] or ["all settings at their defaults"]

    async def carry_out() -> str:
        await admin.create_topic(name, partitions, replication, dict(config))
        return f"topic {name} was created"

    return Plan(
        title=f"Create topic {name}",
        lines=[f"{counted(partitions, 'partition')} with {counted(replication, 'replica')} each", *settings],
        carry_out=carry_out,
        basis=name,
    )


async def delete_topic(admin: Admin, look: Look, name: str) -> Plan:
    """Raises `BadPlanError` if there is no such topic."""
    topic = look.topics.get(name)
    if topic is None:
        raise BadPlanError(f"there is no topic {name!r}")

    async def carry_out() -> str:
        await admin.delete_topic(name)
        return f"topic {name} was deleted"

    return Plan(
        title=f"Delete topic {name}",
        lines=[
            f"{counted(len(topic.partitions), 'partition')} with about "
            f"{counted(look.records(name), 'record', form=',')} ({look.size_bytes(name):,} bytes) will be lost for "
            "good, on all nodes"
        ],
        carry_out=carry_out,
        basis=(topic.topic_id, len(topic.partitions)),
        dangerous=True,
    )


async def alter_config(
    admin: Admin, look: Look, name: str, changed: Mapping[str, Value], reset: Sequence[str]
) -> Plan:
    """Raises `BadPlanError` if nothing would change, or there is no such topic."""
    if name not in look.topics:
        raise BadPlanError(f"there is no topic {name!r}")
    now = await admin.describe_config(name)
    lines = [
        f"{key}: {now.get(key)} becomes {value}" for key, value in changed.items() if now.get(key) != value
    ]
    lines += [f"{key}: {now.get(key)} goes back to its default" for key in reset]
    if not lines:
        raise BadPlanError(f"nothing would change: {name} has these settings already")

    async def carry_out() -> str:
        await admin.alter_config(name, dict(changed), reset=list(reset))
        return f"the settings of {name} were changed"

    basis = (look.topics[name].topic_id, lines)
    return Plan(title=f"Change settings of {name}", lines=lines, carry_out=carry_out, basis=basis)


async def elect(admin: Admin, look: Look, name: str, *, unclean: bool) -> Plan:
    """Preferred leaders, or for partitions without a leader the most complete living replica."""
    topic = look.topics.get(name)
    if topic is None:
        raise BadPlanError(f"there is no topic {name!r}")
    if unclean:
        wanted = [each for each in topic.partitions if each.leader < 0]
        lines = [
            f"{name}-{each.partition}: the most complete living replica leads; what it does not hold is lost"
            for each in wanted
        ]
    else:
        otherwise = [each for each in topic.partitions if each.leader != each.replicas[0]]
        wanted = [each for each in otherwise if look.may_lead(each)]
        lines = [
            f"{name}-{each.partition}: "
            + (
                f"node {each.replicas[0]} leads instead of "
                + (f"node {each.leader}" if each.leader >= 0 else "nobody")
                if each in wanted
                else f"stays as it is: node {each.replicas[0]} is down or not in sync"
            )
            for each in otherwise
        ]
        if otherwise and not wanted:
            raise BadPlanError(f"no preferred replica can be elected now: {lines[0]}")
    if not wanted:
        raise BadPlanError(
            f"every partition of {name} has a leader: nothing to elect uncleanly"
            if unclean
            else f"every partition of {name} is led by its preferred replica"
        )

    async def carry_out() -> str:
        outcomes = await admin.elect_leaders([(name, each.partition) for each in wanted], unclean=unclean)
        return _told(outcomes, "led as asked")

    return Plan(
        title=f"Elect leaders of {name}" + (" uncleanly" if unclean else ""),
        lines=_bounded(lines),
        carry_out=carry_out,
        basis=(topic.topic_id, lines),
        dangerous=unclean,
    )


async def reassign(admin: Admin, look: Look, name: str, nodes: Sequence[int], throttle: int) -> Plan:
    """Spread a topic over these nodes. throttle: bytes a second of each node, 0 for none."""
    if name not in look.topics:
        raise BadPlanError(f"there is no topic {name!r}")
    return _moves(
        admin,
        look,
        f"Move {name} to nodes {', '.join(map(str, nodes))}",
        await admin.plan_reassignment(name, nodes),
        throttle,
    )


async def drain(admin: Admin, look: Look, node: int, throttle: int) -> Plan:
    """Move all replicas away from a node."""
    return _moves(admin, look, f"Drain node {node}", await admin.plan_drain(node), throttle)


def _moves(
    admin: Admin, look: Look, title: str, plan: Mapping[tuple[str, int], Sequence[int]], throttle: int
) -> Plan:
    changed = {}
    lines = []
    copied = 0
    for at, target in sorted(plan.items()):
        now = look.partition(at)
        if now is None or list(now.replicas) == list(target):
            continue
        changed[at] = list(target)
        lines.append(f"{at[0]}-{at[1]}: nodes {now.replicas} become {list(target)}")
        if (replica := look.leading.get(at)) is not None:
            copied += replica.size_bytes * len(set(target) - set(now.replicas))
    if not changed:
        raise BadPlanError(f"{title}: nothing would move")
    moving = counted(len(changed), "partition moves", "partitions move")
    lines.insert(0, f"{moving}, about {copied:,} bytes are copied; what moves stays in use")
    if throttle:
        lines.insert(
            1, f"moves take at most {throttle:,} bytes a second of each node, until you remove that limit"
        )

    async def carry_out() -> str:
        if throttle:
            await admin.alter_quotas("node", "", dict.fromkeys(THROTTLES, throttle))
        return _told(await admin.reassign_partitions(changed), "to be moved")

    basis = [(look.topics[at[0]].topic_id, at, _replicas(look, at), target) for at, target in changed.items()]
    return Plan(title=title, lines=_bounded(lines), carry_out=carry_out, basis=basis)


def _replicas(look: Look, at: tuple[str, int]) -> Sequence[int]:
    known = look.partition(at)
    return known.replicas if known is not None else ()


async def cancel_moves(admin: Admin, look: Look, name: str) -> Plan:
    """Take back the moves of a topic that are under way."""
    under_way = await admin.list_partition_reassignments([name])
    if not under_way:
        raise BadPlanError(f"nothing of {name} is being moved")

    async def carry_out() -> str:
        return _told(await admin.reassign_partitions(dict.fromkeys(under_way)), "going back")

    lines = [
        f"{topic}-{number}: back from {each.target}" for (topic, number), each in sorted(under_way.items())
    ]
    return Plan(title=f"Cancel the moves of {name}", lines=_bounded(lines), carry_out=carry_out, basis=lines)


async def reset_group(admin: Admin, name: str, to: ResetTo, amount: int | None) -> Plan:
    """Have a group without members go on elsewhere."""
    (known,) = await admin.describe_groups([name])
    if known.members:
        raise BadPlanError(_occupied(known))
    now = {PartitionId(each.topic, each.partition): each.committed for each in known.partitions}
    target = {
        at: offset
        for at, offset in (await admin.plan_group_reset(name, to, amount)).items()
        if now.get(at) != offset
    }
    if not target:
        raise BadPlanError(f"nothing would change: group {name!r} is there already")
    lines = [f"{at}: {_offset(now.get(at))} becomes {offset:,}" for at, offset in sorted(target.items())]
    back = sum(max(0, (now.get(at) or 0) - offset) for at, offset in target.items())
    ahead = sum(max(0, offset - (now.get(at) or 0)) for at, offset in target.items())
    again = counted(back, "record is", "records are", form=",")
    lines.insert(0, f"{again} read again, {counted(ahead, 'is', 'are', form=',')} skipped")

    async def carry_out() -> str:
        await admin.set_group_offsets(
            name, {(at.topic, at.partition): offset for at, offset in target.items()}
        )
        return f"group {name} continues at {counted(len(target), 'other offset')}"

    return Plan(
        title=f"Reset the offsets of group {name}",
        lines=_bounded(lines),
        carry_out=carry_out,
        # Not where it goes to: the end of a log in use moves on, and what was shown is what is set.
        basis=now,
        dangerous=ahead > 0,
    )


def _occupied(group: GroupDescription) -> str:
    members = counted(len(group.members), "member")
    return f"group {group.group!r} has {members}: stop {'it' if len(group.members) == 1 else 'them'} first"


async def delete_group(admin: Admin, name: str) -> Plan:
    """Forget a group without members, and all that it has committed."""
    (known,) = await admin.describe_groups([name])
    if known.members:
        raise BadPlanError(_occupied(known))
    lines = [
        f"{each.topic}-{each.partition}: committed {_offset(each.committed)}" for each in known.partitions
    ]

    async def carry_out() -> str:
        await admin.delete_group(name)
        return f"group {name} was deleted"

    return Plan(
        title=f"Delete group {name}", lines=_bounded(lines), carry_out=carry_out, basis=lines, dangerous=True
    )


async def abort_transaction(admin: Admin, topic: str, partition: int, start_offset: int) -> Plan:
    """End a transaction that hangs. Raises `BadPlanError` if none does there."""
    hanging = next(
        (
            each
            for each in await admin.find_hanging_transactions([topic], longer_than_ms=0)
            if (each.partition, each.start_offset) == (partition, start_offset)
        ),
        None,
    )
    if hanging is None:
        raise BadPlanError(
            f"no transaction hangs in {topic}-{partition} at offset {start_offset}: it has ended, or its "
            "coordinator will end it"
        )
    whose = f" ({hanging.transactional_id})" if hanging.transactional_id else ""

    async def carry_out() -> str:
        await admin.abort_transaction((topic, partition), start_offset)
        return f"the transaction in {topic}-{partition} from offset {start_offset} on was aborted"

    return Plan(
        title=f"Abort the transaction in {topic}-{partition}",
        lines=[
            f"the records of producer {hanging.producer_id}{whose} from offset {start_offset:,} on never count: "
            "readers of committed records leave them out",
            f"readers of committed records that wait at offset {start_offset:,} continue",
        ],
        carry_out=carry_out,
        basis=hanging.producer_id,
        dangerous=True,
    )


def _offset(committed: int | None) -> str:
    return "nothing" if committed is None else f"{committed:,}"


def _told(outcomes: Mapping[tuple[str, int], ServerError | None], success: str) -> str:
    failed = [str(error) for error in outcomes.values() if error is not None]
    text = f"{success}: {counted(len(outcomes) - len(failed), 'partition')}"
    return text + (f"; refused: {len(failed)}, the first because {failed[0]}" if failed else "")


def _bounded(lines: Sequence[str]) -> list[str]:
    rest = len(lines) - SHOWN
    return [*lines[:SHOWN], *([f"and {rest} more"] if rest > 0 else [])]
