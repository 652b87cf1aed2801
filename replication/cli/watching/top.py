"""`insync top`: a cluster as it works: who leads, who lags, what comes in and goes out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import Parameter, validators

from ..clusters import Flag, Json, Servers, known, print_json
from .measures import RATES, rates
from .status import summarise
from .top_tables import Sort, console, draw

if TYPE_CHECKING:
    from ...client import Admin, GroupDescription, NodeHealth, NodeReport
    from ...core.messages import ReplicaInfo, TopicInfo

_Above = Parameter(validator=validators.Number(gte=0.1, lte=3600))


def top(
    *,
    interval: Annotated[float, _Above] = 1.0,
    once: Flag = False,
    groups: Flag = False,
    partitions: Flag = False,
    sort: Sort = "records",
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Watch a cluster: nodes, leaders, lag, throughput, and partitions with problems.

    On a terminal the picture is renewed until Ctrl-C. `lag` is by how many records the slowest replica on a node is
    behind. `in` and `out` are bytes a second from producers and to consumers, `copied in` and `copied out` those
    from leaders and to followers, all over the last interval and as the nodes count them.

    Example: `insync top --interval 2`, or `insync top --once --json` for scripts

    Parameters
    ----------
    interval
        Seconds between two looks.
    once
        Measure for one interval, print it and end.
    groups
        Show consumer groups, too: members, lag, and how much is committed in a second. That asks every coordinator.
    partitions
        Show partitions in place of topics: who leads, who is in sync, how far the slowest follower is behind.
    sort
        What stands first: most records a second, greatest size, greatest lag, or by name.
    """
    from ..running import run

    async def watch() -> int:
        from ...client import Admin

        async with Admin(known(servers)) as admin:
            sample = partial(_sample, admin, with_groups=groups, with_partitions=partitions)
            former = await sample()
            if once or json:
                await _print_each(sample, former, interval, once, json, sort)
            else:
                await _live(sample, former, interval, sort)
        return 0

    return run(watch)


@attrs.frozen
class _Sample:
    at: float
    seen: dict[str, Any]
    health: Sequence[NodeHealth]
    topics: dict[str, dict[str, int]]
    groups: Sequence[GroupDescription] | None = None
    partitions: dict[str, dict[str, Any]] | None = None


async def _sample(admin: Admin, *, with_groups: bool, with_partitions: bool) -> _Sample:
    import trio

    cluster = await admin.describe_cluster()
    topics = await admin.describe_topics()
    reports = await admin.describe_replicas()
    health = await admin.describe_nodes()
    seen = summarise(cluster, topics, reports)
    groups = await _groups(admin) if with_groups else None
    partitions = _by_partition(topics, reports) if with_partitions else None
    return _Sample(trio.current_time(), seen, health, _by_topic(topics, reports), groups, partitions)


async def _groups(admin: Admin) -> list[GroupDescription]:
    """Each group; one that goes while it is looked at is left out."""
    from ...client import GroupIdNotFoundError

    found = []
    for listed in await admin.list_groups():
        with suppress(GroupIdNotFoundError):
            found += await admin.describe_groups([listed.group])
    return found


def _by_topic(topics: Sequence[TopicInfo], reports: Sequence[NodeReport]) -> dict[str, dict[str, int]]:
    """Of each topic: its partitions, those with too few in sync, and what their leaders hold."""
    found = {
        topic.name: {
            "partitions": len(topic.partitions),
            "under_replicated": sum(len(each.isr) < len(each.replicas) for each in topic.partitions),
            "leaderless": sum(each.leader < 0 for each in topic.partitions),
            "end_offsets": 0,
            "size_bytes": 0,
            "lag": 0,
        }
        for topic in topics
    }
    for report in reports:
        for replica in report.replicas:
            if replica.role == "leader" and replica.topic in found:
                found[replica.topic]["end_offsets"] += replica.log_end_offset
                found[replica.topic]["size_bytes"] += replica.size_bytes
                found[replica.topic]["lag"] = max(found[replica.topic]["lag"], _behind(replica))
    return found


def _by_partition(topics: Sequence[TopicInfo], reports: Sequence[NodeReport]) -> dict[str, dict[str, Any]]:
    """Of each partition: who leads, who is in sync, and what its leader says of it."""
    found: dict[str, dict[str, Any]] = {
        f"{topic.name}-{each.partition}": {
            "leader": each.leader,
            "isr": each.isr,
            "replicas": each.replicas,
            "high_watermark": -1,
            "end_offset": 0,
            "size_bytes": 0,
            "lag": 0,
        }
        for topic in topics
        for each in topic.partitions
    }
    for replica in (replica for report in reports for replica in report.replicas):
        known = found.get(f"{replica.topic}-{replica.partition}")
        if known is not None and replica.role == "leader":
            known["high_watermark"], known["end_offset"] = replica.high_watermark, replica.log_end_offset
            known["size_bytes"], known["lag"] = replica.size_bytes, _behind(replica)
    return found


def _behind(replica: ReplicaInfo) -> int:
    """By how many records the slowest follower is behind; those that have not fetched lack all of them."""
    known = (max(replica.log_start_offset, each.log_end_offset) for each in replica.followers)
    return max((replica.log_end_offset - offset for offset in known), default=0)


def picture(former: _Sample, now: _Sample) -> dict[str, Any]:
    """The cluster as plain data, with rates per second since `former`."""
    elapsed = max(1e-3, now.at - former.at)
    before = {each.node_id: each for each in former.health}
    health = {each.node_id: each for each in now.health}
    nodes = []
    for node in now.seen["nodes"]:
        told = health.get(node["node_id"])
        per_second = rates(before.get(node["node_id"]), told, elapsed) or dict.fromkeys(RATES, 0.0)
        failing = [] if told is None else [check.name for check in told.checks if not check.ok]
        ready = told is not None and told.ready
        nodes.append({**node, "ready": ready, "failing": failing, "per_second": per_second})
    topics = []
    for name, info in now.topics.items():
        grown = info["end_offsets"] - former.topics.get(name, info)["end_offsets"]
        rest = {key: value for key, value in info.items() if key != "end_offsets"}
        topics.append({"topic": name, **rest, "records_per_second": max(0.0, grown / elapsed)})
    shown = {**now.seen, "topics": len(topics), "interval_s": elapsed, "nodes": nodes, "by_topic": topics}
    if now.partitions is not None:
        told_before = former.partitions or {}
        shown["by_partition"] = [
            {
                "partition": name,
                **info,
                "records_per_second": max(
                    0.0, (info["end_offset"] - told_before.get(name, info)["end_offset"]) / elapsed
                ),
            }
            for name, info in now.partitions.items()
        ]
    if now.groups is not None:
        earlier = {each.group: _committed(each) for each in former.groups or ()}
        shown["groups"] = [
            {
                "group": each.group,
                "state": each.state,
                "members": len(each.members),
                "lag": each.lag,
                "committed_per_second": max(
                    0.0, (_committed(each) - earlier.get(each.group, _committed(each))) / elapsed
                ),
            }
            for each in now.groups
        ]
    return shown


def _committed(group: GroupDescription) -> int:
    return sum(each.committed or 0 for each in group.partitions)


async def _print_each(
    sample: Callable[[], Awaitable[_Sample]],
    former: _Sample,
    interval: float,
    once: bool,
    json: bool,
    sort: Sort,
) -> None:
    import trio

    while True:
        await trio.sleep(interval)
        now = await sample()
        shown = picture(former, now)
        if json:
            import sys

            print_json(shown)
            sys.stdout.flush()
        else:
            console().print(draw(shown, sort))
        if once:
            return
        former = now


async def _live(
    sample: Callable[[], Awaitable[_Sample]], former: _Sample, interval: float, sort: Sort
) -> None:
    import trio
    from rich.live import Live

    from ...client import ClientError

    with Live("measuring ...", console=console(), auto_refresh=False) as live:
        while True:
            await trio.sleep(interval)
            try:
                now = await sample()
            except ClientError as error:
                live.update(f"no answer: {error}", refresh=True)
                continue
            live.update(draw(picture(former, now), sort), refresh=True)
            former = now
