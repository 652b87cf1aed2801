"""`insync group`: consumer groups: who is in them, how far behind they are, and where they go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import App, Parameter, validators

from .clusters import Flag, Json, Servers, known, moment, print_json, say
from .errors import UsageError

if TYPE_CHECKING:
    from ..client import Admin, GroupDescription, GroupMember, GroupPartition
    from ..core.types import PartitionId

app = App(
    name="group",
    help="List, describe and delete consumer groups; reset and delete their offsets.",
    help_format="markdown",
)

_NotNegative = Parameter(validator=validators.Number(gte=0))
_Several = Parameter(show_default=False)


@app.command(name="list")
def list_(
    *,
    state: Annotated[tuple[str, ...], _Several] = (),
    servers: Servers = "",
    json: Json = False,
) -> int:
    """List all groups with their type and state.

    Example: `insync group list --state Empty`

    Parameters
    ----------
    state
        Only groups of this state, such as Stable or Empty; repeatable.
    """
    from .running import run

    async def list_them() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            groups = await admin.list_groups(states=list(state) or None)
        if json:
            print_json([{"group": each.group, "type": each.type, "state": each.state} for each in groups])
            return
        for each in groups:
            say(f"{each.group}: {each.type}, {each.state}")
        if not groups:
            say("no such groups" if state else "no groups yet; see: insync consume --help (--group)")

    return run(list_them)


@app.command
def describe(name: str, /, *, servers: Servers = "", json: Json = False) -> int:
    """Show a group's members and, for each partition, its owner, committed offset and lag.

    `lag` is by how many offsets what is committed is behind the high watermark. The exit status is 1 if there is no
    such group.

    Example: `insync group describe billing`

    Parameters
    ----------
    name
        Which group.
    """
    from .running import run

    async def describe_it() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            (found,) = await admin.describe_groups([name])
        if json:
            print_json(as_data(found))
        else:
            _print(found)

    return run(describe_it)


@app.command
def delete(name: str, /, *, yes: bool = False, servers: Servers = "", json: Json = False) -> int:
    """Delete a group that has no members, with all that it has committed.

    Example: `insync group delete billing --yes`

    Parameters
    ----------
    name
        Which group.
    yes
        Confirm; the group's committed offsets are then gone for good.
    """
    from .running import run

    if not yes:
        raise UsageError(f"say --yes to delete group {name!r} and all that it has committed")

    async def delete_it() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            await admin.delete_group(name)
        if json:
            print_json({"group": name, "deleted": True})
        else:
            say(f"deleted group {name}")

    return run(delete_it)


@app.command
def reset_offsets(
    name: str,
    /,
    *,
    topic: Annotated[tuple[str, ...], _Several] = (),
    to_earliest: Flag = False,
    to_latest: Flag = False,
    to_offset: Annotated[int | None, _NotNegative] = None,
    to_datetime: str | None = None,
    shift_by: int | None = None,
    dry_run: Flag = False,
    yes: bool = False,
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Change the offsets at which a group continues; it must have no members.

    Without --topic the partitions are all that the group has committed. An offset outside a log becomes its
    nearer end.

    Example: `insync group reset-offsets billing --topic orders --to-datetime 2026-03-01T12:00:00 --dry-run`

    Parameters
    ----------
    name
        Which group; it is created if it does not exist.
    topic
        Only this topic, with all its partitions, or one of them as topic:partition; repeatable.
    to_earliest
        To the oldest record of each partition.
    to_latest
        To the high watermark of each partition.
    to_offset
        To this offset of each partition.
    to_datetime
        To the first record of each partition that is of this time or later: milliseconds since 1970, or ISO 8601
        such as 2026-03-01T12:00:00 (local time, if it names no zone).
    shift_by
        Shift the committed offsets by this number; negative values go back.
    dry_run
        Only show what would be committed.
    yes
        Do it.
    """
    from .running import run

    ways = {
        "--to-earliest": ("earliest", None) if to_earliest else None,
        "--to-latest": ("latest", None) if to_latest else None,
        "--to-offset": ("offset", to_offset) if to_offset is not None else None,
        "--to-datetime": ("time", moment("--to-datetime", to_datetime)) if to_datetime is not None else None,
        "--shift-by": ("shift", shift_by) if shift_by is not None else None,
    }
    chosen = [way for way in ways.values() if way is not None]
    if len(chosen) != 1:
        raise UsageError(f"give exactly one of {', '.join(ways)}")
    if dry_run == yes:
        raise UsageError("use --dry-run to see the new offsets, or --yes to commit them")
    [(to, amount)] = chosen

    async def reset_them() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            before = await admin.group_offsets(name)
            wanted = await _partitions(admin, topic)
            plan = await admin.plan_group_reset(name, to, amount, partitions=wanted)  # type: ignore[arg-type]
            if not dry_run:
                await admin.set_group_offsets(name, dict(plan.items()))
        _print_plan(name, before, plan, dry_run, json)

    return run(reset_them)


@app.command
def delete_offsets(
    name: str,
    /,
    *,
    topic: Annotated[tuple[str, ...], _Several] = (),
    yes: bool = False,
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Delete the committed offsets of a topic; no member of the group may subscribe to it.

    Example: `insync group delete-offsets billing --topic orders --yes`

    Parameters
    ----------
    name
        Which group.
    topic
        The topic, or one of its partitions as topic:partition; repeatable.
    yes
        Do it.
    """
    from .running import run

    if not topic:
        raise UsageError("name the topics whose offsets to delete: --topic orders")
    if not yes:
        raise UsageError(f"say --yes to forget what group {name!r} has committed of {', '.join(topic)}")

    async def delete_them() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            committed = await admin.group_offsets(name)
            gone = [at for at in sorted(committed) if _is_meant(at, topic)]
            if not gone:
                raise UsageError(f"group {name!r} has committed nothing of {', '.join(topic)}")
            await admin.delete_group_offsets(name, gone)
        if json:
            print_json({"group": name, "deleted": [str(at) for at in gone]})
        else:
            for at in gone:
                say(f"{at}: forgotten, was {committed[at]}")

    return run(delete_them)


def _named(text: str) -> tuple[str, int | None]:
    """A topic, or a topic and a partition."""
    topic, colon, number = text.partition(":")
    if not colon:
        return topic, None
    if not number.isdecimal():
        raise UsageError(f"--topic {text}: {number!r} is not a partition; write topic or topic:partition")
    return topic, int(number)


def _is_meant(at: PartitionId, topics: Sequence[str]) -> bool:
    return any(at.topic == topic and number in (None, at.partition) for topic, number in map(_named, topics))


async def _partitions(admin: Admin, topics: Sequence[str]) -> list[tuple[str, int]] | None:
    if not topics:
        return None
    found: list[tuple[str, int]] = []
    for topic, number in map(_named, topics):
        if number is not None:
            found.append((topic, number))
        else:
            (info,) = await admin.describe_topics([topic])
            found += [(topic, each.partition) for each in info.partitions]
    return found


def _print_plan(
    name: str, before: Mapping[PartitionId, int], plan: Mapping[PartitionId, int], dry_run: bool, json: bool
) -> None:
    if json:
        offsets = [
            {"topic": at.topic, "partition": at.partition, "before": before.get(at), "offset": offset}
            for at, offset in plan.items()
        ]
        print_json({"group": name, "dry_run": dry_run, "offsets": offsets})
        return
    for at, offset in plan.items():
        say(
            f"{at}: {'would go' if dry_run else 'goes'} on at {offset}, was {before.get(at, 'not committed')}"
        )


def as_data(found: GroupDescription) -> dict[str, Any]:
    """A group for `print_json`."""
    return {
        "group": found.group,
        "type": found.type,
        "state": found.state,
        "epoch": found.epoch,
        "protocol": found.protocol,
        "coordinator": found.coordinator,
        "lag": found.lag,
        "members": [_member(each) for each in found.members],
        "partitions": found.partitions,
    }


def _member(member: GroupMember) -> dict[str, Any]:
    data = attrs.asdict(member, recurse=False)
    return {**data, "partitions": list(map(str, member.partitions)), "target": list(map(str, member.target))}


def _print(found: GroupDescription) -> None:
    protocol = f", {found.protocol}" if found.protocol else ""
    say(
        f"group {found.group}: {found.type}, {found.state}{protocol}, epoch {found.epoch}, coordinator node "
        f"{found.coordinator}, lag {found.lag}"
    )
    for member in found.members:
        static = f" (instance {member.instance_id})" if member.instance_id else ""
        place = f" at {member.client_host}" if member.client_host else ""
        has = ", ".join(map(str, member.partitions)) or "nothing"
        waits = sorted(set(member.target) - set(member.partitions))
        due = f"; to come: {', '.join(map(str, waits))}" if waits else ""
        say(f"member {member.member_id}{static}, {member.client_id}{place}: {has}{due}")
    for each in found.partitions:
        say(_line(each))


def _line(each: GroupPartition) -> str:
    committed = "nothing committed" if each.committed is None else f"committed {each.committed}"
    end = "end unknown" if each.end_offset is None else f"end {each.end_offset}"
    lag = "" if each.lag is None else f", lag {each.lag}"
    return f"{each.topic}-{each.partition}: {committed}, {end}{lag}; owner {each.member_id or 'none'}"
