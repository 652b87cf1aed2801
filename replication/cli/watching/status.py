"""`insync status`: the cluster at a glance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from ...core.control.internal_topics import STANDARD
from ...core.wording import counted, first_of
from ..clusters import Json, Servers, known, print_json, say, warnings_shown

T = TypeVar("T")

SILENT_MS = 2_000
_GROUPS_SECONDS = 2.0
_MOST_GROUPS = 200
_SHOWN = 5
STORE_OLD_MS = 8_000
"""Nodes write something to the store every 2 s, unless they are set otherwise."""

if TYPE_CHECKING:
    from ...client import Admin, ClusterInfo, NodeReport
    from ...core.messages import TopicInfo


def status(*, servers: Servers = "", json: Json = False) -> int:
    """Show nodes, controller, lag and under-replicated partitions.

    A partition is under-replicated if its in-sync replicas (ISR) are fewer than its replicas. `lag` is by how many
    records the slowest replica on a node is behind its leader, as far as leaders know; groups that are furthest
    behind are named with their partitions. The exit status is 1 if a
    partition accepts no acks=all write (no leader, or too few in-sync replicas), or if there is no controller.

    Example: `insync status --servers tcp://127.0.0.1:9092`
    """
    from ..running import run

    async def show() -> int:
        from ...client import Admin

        async with AsyncExitStack() as stack:
            with warnings_shown():
                admin = await stack.enter_async_context(Admin(known(servers)))
            seen = {**await look(admin), "groups": await group_states(admin)}
            seen["group_lag"] = await group_lags(admin) if seen["groups"] else {}
        if json:
            print_json(seen)
        else:
            _print(seen)
        return 1 if seen["leaderless"] or seen["under_min_isr"] or seen["controller_id"] < 0 else 0

    return run(show)


async def look(admin: Admin) -> dict[str, Any]:
    """The cluster's state as plain data, for printing either way."""
    cluster = await admin.describe_cluster()
    topics = await admin.describe_topics()
    reports = await admin.describe_replicas()
    return summarise(cluster, topics, reports)


async def group_states(admin: Admin) -> dict[str, int] | None:
    """How many consumer groups there are in each state; None if not all coordinators tell soon."""
    import trio

    from ...client import ClientError

    with trio.move_on_after(_GROUPS_SECONDS):
        try:
            states = [each.state for each in await admin.list_groups()]
        except ClientError:
            return None
        return {state: states.count(state) for state in sorted(set(states))}
    return None


async def group_lags(admin: Admin) -> dict[str, dict[str, int]] | None:
    """By how many offsets each group is behind, by partition, where it is; None if not all that is known soon."""
    import trio

    from ...client import ClientError

    with trio.move_on_after(_GROUPS_SECONDS):
        try:
            names = [each.group for each in await admin.list_groups()][:_MOST_GROUPS]
            found = await admin.describe_groups(names)
        except ClientError:
            return None
        return {
            each.group: {f"{at.topic}-{at.partition}": at.lag for at in each.partitions if at.lag}
            for each in found
            if each.lag
        }
    return None


def summarise(
    cluster: ClusterInfo, topics: Sequence[TopicInfo], reports: Sequence[NodeReport]
) -> dict[str, Any]:
    partitions = [(topic.name, each) for topic in topics for each in topic.partitions]
    behind, unknown = _lag(reports)
    return {
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "topics": len(topics),
        "partitions": len(partitions),
        "nodes": [
            {
                "node_id": report.node_id,
                "alive": report.alive,
                "endpoints": list(report.endpoints),
                "leads": sum(each.leader == report.node_id for _, each in partitions),
                "replicas": sum(report.node_id in each.replicas for _, each in partitions),
                "lag": behind.get(report.node_id, 0),
                "lag_unknown": unknown.get(report.node_id, 0),
                "error": report.error,
                "store_age_ms": report.store_age_ms,
            }
            for report in reports
        ],
        "under_replicated": [
            {"partition": f"{name}-{each.partition}", "isr": each.isr, "replicas": each.replicas}
            for name, each in partitions
            if len(each.isr) < len(each.replicas)
        ],
        "under_min_isr": [
            f"{topic.name}-{each.partition}"
            for topic in topics
            for each in topic.partitions
            if len(each.isr) < min(int(topic.config.get("min_insync_replicas", 1)), len(each.replicas))
        ],
        "waiting": _waiting(reports),
        "leaderless": [f"{name}-{each.partition}" for name, each in partitions if each.leader < 0],
        "thin": _thin(topics, sum(report.alive for report in reports)),
    }


def _thin(topics: Sequence[TopicInfo], alive: int) -> dict[str, int]:
    """Internal topics with fewer replicas than there could be by now, and how many they have at least.

    The first question for a coordinator makes them, which may be before the other nodes are there.
    """
    least = {
        topic.name: min((len(each.replicas) for each in topic.partitions), default=0)
        for topic in topics
        if topic.name in STANDARD
    }
    return {name: count for name, count in least.items() if count < 3 <= alive}


def _waiting(reports: Sequence[NodeReport]) -> list[dict[str, Any]]:
    """Partitions with records that are not committed, because a member of the ISR has been silent for a while."""
    return [
        {
            "partition": f"{replica.topic}-{replica.partition}",
            "for": follower.node_id,
            "ms": follower.lag_ms,
        }
        for report in reports
        for replica in report.replicas
        if replica.role == "leader" and replica.high_watermark < replica.log_end_offset
        for follower in replica.followers
        if follower.in_sync and follower.lag_ms > SILENT_MS
    ]


def _lag(reports: Sequence[NodeReport]) -> tuple[dict[int, int], dict[int, int]]:
    """Per node: records by which its slowest replica is behind, as the leaders see their followers.

    The second: of how many replicas nothing is known, because they have not fetched from their present leader.
    """
    lag: dict[int, int] = {}
    unknown: dict[int, int] = {}
    for replica in (replica for report in reports for replica in report.replicas):
        for follower in replica.followers:
            if follower.log_end_offset < 0:
                unknown[follower.node_id] = unknown.get(follower.node_id, 0) + 1
                continue
            behind = replica.log_end_offset - follower.log_end_offset
            lag[follower.node_id] = max(lag.get(follower.node_id, 0), behind)
    return lag, unknown


def _print(seen: dict[str, Any]) -> None:
    controller = seen["controller_id"] if seen["controller_id"] >= 0 else "none"
    say(
        f"cluster {seen['cluster_id']}: controller {controller}, {counted(seen['topics'], 'topic')}, "
        f"{counted(seen['partitions'], 'partition')}"
    )
    for node in seen["nodes"]:
        health = "alive" if node["alive"] else f"DOWN: {node['error']}"
        # Without the host that local addresses carry for programs (--json has it): for people it is noise.
        places = ", ".join(url.partition("?")[0] for url in node["endpoints"])
        unknown = f" ({counted(node['lag_unknown'], 'replica')} unknown)" if node["lag_unknown"] else ""
        held = f"leads {node['leads']}, {counted(node['replicas'], 'replica')}, lag {node['lag']}{unknown}"
        say(f"node {node['node_id']}{' ' if places else ''}{places}: {held}; {health}")
    wrong = list(troubles(seen))
    for line in wrong:
        say(line)
    if seen["controller_id"] < 0:
        say("NO CONTROLLER: no leader is elected and no topic changed; check the metadata store and its disk")
    for name, count in seen["thin"].items():
        say(
            f"FEW REPLICAS: {name} has {count}, because it was created with fewer nodes; it may stop with the "
            f"failure of one node; raise the number of replicas: insync reassign {name} --replicas 0=1,2,3 ..."
        )
    groups = seen.get("groups")
    if groups:
        states = ", ".join(f"{count} {state}" for state, count in groups.items())
        say(f"consumer groups: {states}")
    lags: dict[str, dict[str, int]] = seen.get("group_lag") or {}
    for group in sorted(lags, key=lambda each: -sum(lags[each].values()))[:_SHOWN]:
        most = sorted(lags[group].items(), key=lambda each: -each[1])
        told = first_of([f"{at} {lag}" for at, lag in most], _SHOWN)
        say(f"group {group} is {sum(lags[group].values())} behind: {told}")
    silent = [node["node_id"] for node in seen["nodes"] if not node["alive"]]
    if silent:
        say(
            f"no answer from nodes {', '.join(map(str, silent))}: information about them comes from other nodes"
        )
    old = [node for node in seen["nodes"] if node["store_age_ms"] > STORE_OLD_MS]
    for node in old:
        say(
            f"node {node['node_id']} has written nothing to the metadata store for "
            f"{node['store_age_ms'] / 1000:.0f} s: its view of the cluster may be that old"
        )
    if not wrong and not old:
        say("all partitions are fully replicated")


def troubles(seen: dict[str, Any]) -> Iterator[str]:
    """A line for each cause that partitions are in trouble, the worst first. seen: as `summarise` gives it."""
    if seen["leaderless"]:
        yield f"WITHOUT A LEADER: {_partitions(seen['leaderless'])}"
    if seen["under_min_isr"]:
        yield f"takes no acks=all write, under min_insync_replicas: {_partitions(seen['under_min_isr'])}"
    for node, waiting in _by(seen["waiting"], lambda each: each["for"]).items():
        yield (
            f"nothing is acknowledged (acks=all): {_partitions(each['partition'] for each in waiting)} "
            f"{'waits' if len(waiting) == 1 else 'wait'} for node {node}, in the ISR and silent for "
            f"{max(each['ms'] for each in waiting) / 1000:.0f} s"
        )
    lacking = _by(seen["under_replicated"], lambda each: tuple(sorted({*each["replicas"]} - {*each["isr"]})))
    for nodes, short in lacking.items():
        if len(short) == 1:
            yield f"under-replicated: {short[0]['partition']}, ISR {short[0]['isr']} of {short[0]['replicas']}"
        else:
            named = f"{'node' if len(nodes) == 1 else 'nodes'} {', '.join(map(str, nodes))}"
            yield (
                f"under-replicated: {len(short)} partitions without {named} in their ISRs: "
                f"{_partitions(each['partition'] for each in short)}"
            )


def _by(found: Iterable[T], cause: Callable[[T], Any]) -> dict[Any, list[T]]:
    groups: dict[Any, list[T]] = {}
    for each in found:
        groups.setdefault(cause(each), []).append(each)
    return groups


def _partitions(names: Iterable[str]) -> str:
    """Those of users before those of topics that the nodes keep for themselves."""
    ordered = sorted(names, key=lambda each: each.startswith("__"))
    return first_of(ordered, _SHOWN)
