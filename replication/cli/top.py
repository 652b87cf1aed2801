"""`insync top`: a cluster as it works: who leads, who lags, what comes in and goes out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import Parameter, validators

from .clusters import Flag, Json, Servers, known, print_json
from .status import summarise

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..client import Admin, GroupDescription, NodeHealth, NodeReport
    from ..core.messages import TopicInfo

_RATES = ("bytes_in", "bytes_out", "messages_in", "replication_bytes_in", "replication_bytes_out")
_LISTED = 10
_Above = Parameter(validator=validators.Number(gte=0.1, lte=3600))


def top(
    *,
    interval: Annotated[float, _Above] = 1.0,
    once: Flag = False,
    groups: Flag = False,
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Watch a cluster: nodes, leaders, lag, throughput, and partitions that are not as they should be.

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
    """
    from .running import run

    async def watch() -> int:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            sample = partial(_sample, admin, with_groups=groups)
            former = await sample()
            if once or json:
                await _print_each(sample, former, interval, once, json)
            else:
                await _live(sample, former, interval)
        return 0

    return run(watch)


@attrs.frozen
class _Sample:
    at: float
    seen: dict[str, Any]
    health: Sequence[NodeHealth]
    topics: dict[str, dict[str, int]]
    groups: Sequence[GroupDescription] | None = None


async def _sample(admin: Admin, *, with_groups: bool) -> _Sample:
    import trio

    cluster = await admin.describe_cluster()
    topics = await admin.describe_topics()
    reports = await admin.describe_replicas()
    health = await admin.describe_nodes()
    seen = summarise(cluster, topics, reports)
    groups = await _groups(admin) if with_groups else None
    return _Sample(trio.current_time(), seen, health, _by_topic(topics, reports), groups)


async def _groups(admin: Admin) -> list[GroupDescription]:
    """Each group; one that goes while it is looked at is left out."""
    from ..client import GroupIdNotFoundError

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
        }
        for topic in topics
    }
    for report in reports:
        for replica in report.replicas:
            if replica.role == "leader" and replica.topic in found:
                found[replica.topic]["end_offsets"] += replica.log_end_offset
                found[replica.topic]["size_bytes"] += replica.size_bytes
    return found


def picture(former: _Sample, now: _Sample) -> dict[str, Any]:
    """The cluster as plain data, with rates per second since `former`."""
    elapsed = max(1e-3, now.at - former.at)
    before = {each.node_id: each for each in former.health}
    health = {each.node_id: each for each in now.health}
    nodes = []
    for node in now.seen["nodes"]:
        told = health.get(node["node_id"])
        rates = _rates(before.get(node["node_id"]), told, elapsed)
        failing = [] if told is None else [check.name for check in told.checks if not check.ok]
        ready = told is not None and told.ready
        nodes.append({**node, "ready": ready, "failing": failing, "per_second": rates})
    topics = []
    for name, info in now.topics.items():
        grown = info["end_offsets"] - former.topics.get(name, info)["end_offsets"]
        rest = {key: value for key, value in info.items() if key != "end_offsets"}
        topics.append({"topic": name, **rest, "records_per_second": max(0.0, grown / elapsed)})
    shown = {**now.seen, "topics": len(topics), "interval_s": elapsed, "nodes": nodes, "by_topic": topics}
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


def _rates(before: NodeHealth | None, now: NodeHealth | None, elapsed: float) -> dict[str, float]:
    """None of a process that was not there before: its counters began anew."""
    if before is None or now is None or before.incarnation != now.incarnation or before.error or now.error:
        return dict.fromkeys(_RATES, 0.0)
    return {name: (now.counters.get(name, 0) - before.counters.get(name, 0)) / elapsed for name in _RATES}


async def _print_each(
    sample: Callable[[], Awaitable[_Sample]], former: _Sample, interval: float, once: bool, json: bool
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
            from rich.console import Console

            Console().print(_draw(shown))
        if once:
            return
        former = now


async def _live(sample: Callable[[], Awaitable[_Sample]], former: _Sample, interval: float) -> None:
    import trio
    from rich.live import Live

    from ..client import ClientError

    with Live("measuring ...", auto_refresh=False) as live:
        while True:
            await trio.sleep(interval)
            try:
                now = await sample()
            except ClientError as error:
                live.update(f"no answer: {error}", refresh=True)
                continue
            live.update(_draw(picture(former, now)), refresh=True)
            former = now


def _draw(shown: dict[str, Any]) -> RenderableType:
    from rich.console import Group

    controller = shown["controller_id"] if shown["controller_id"] >= 0 else "none"
    head = (
        f"cluster {shown['cluster_id']}  controller {controller}  topics {shown['topics']}  "
        f"partitions {shown['partitions']}  under-replicated {len(shown['under_replicated'])}  "
        f"without a leader {len(shown['leaderless'])}"
    )
    worst = [f"node {node['node_id']}: {node['error']}" for node in shown["nodes"] if not node["alive"]]
    worst += [f"WITHOUT A LEADER: {name}" for name in shown["leaderless"][:_LISTED]]
    worst += [
        f"under-replicated: {each['partition']}, ISR {each['isr']} of {each['replicas']}"
        for each in shown["under_replicated"][: max(0, _LISTED - len(worst))]
    ]
    groups = [_group_table(shown["groups"])] if shown.get("groups") else []
    return Group(head, _node_table(shown["nodes"]), _topic_table(shown["by_topic"]), *groups, *worst)


def _node_table(nodes: Sequence[dict[str, Any]]) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("node")
    for name in ("leads", "replicas", "lag", "records/s", "in", "out", "copied in", "copied out"):
        table.add_column(name, justify="right")
    table.add_column("state")
    for node in nodes:
        rates = node["per_second"]
        table.add_row(
            str(node["node_id"]),
            str(node["leads"]),
            str(node["replicas"]),
            f"{node['lag']:,}",
            f"{rates['messages_in']:,.0f}",
            _amount(rates["bytes_in"]),
            _amount(rates["bytes_out"]),
            _amount(rates["replication_bytes_in"]),
            _amount(rates["replication_bytes_out"]),
            _state(node),
        )
    return table


def _state(node: dict[str, Any]) -> str:
    if not node["alive"]:
        return "DOWN"
    return "ready" if node["ready"] else f"not ready: {', '.join(node['failing']) or 'no answer'}"


def _topic_table(topics: Sequence[dict[str, Any]]) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("topic")
    for name in ("partitions", "under-replicated", "records/s", "size"):
        table.add_column(name, justify="right")
    busiest = sorted(topics, key=lambda each: (-each["records_per_second"], each["topic"]))
    for each in busiest[:_LISTED]:
        table.add_row(
            each["topic"],
            str(each["partitions"]),
            str(each["under_replicated"]),
            f"{each['records_per_second']:,.0f}",
            _amount(each["size_bytes"]),
        )
    if len(busiest) > _LISTED:
        table.add_row(f"and {len(busiest) - _LISTED} more", "", "", "", "")
    return table


def _group_table(groups: Sequence[dict[str, Any]]) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("group")
    for name in ("members", "lag", "committed/s"):
        table.add_column(name, justify="right")
    table.add_column("state")
    slowest = sorted(groups, key=lambda each: (-each["lag"], each["group"]))
    for each in slowest[:_LISTED]:
        table.add_row(
            each["group"],
            str(each["members"]),
            f"{each['lag']:,}",
            f"{each['committed_per_second']:,.0f}",
            each["state"],
        )
    if len(slowest) > _LISTED:
        table.add_row(f"and {len(slowest) - _LISTED} more", "", "", "", "")
    return table


def _amount(number: float) -> str:
    """Bytes as people read them, in powers of 1024."""
    for unit in ("", " Ki", " Mi", " Gi"):
        if number < 1024:
            return f"{number:,.0f}{unit}" if not unit else f"{number:,.1f}{unit}"
        number /= 1024
    return f"{number:,.1f} Ti"
