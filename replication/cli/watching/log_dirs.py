"""`insync log-dirs`: what lies in the log directories of every node, and how large it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, validators

from ...core.wording import counted
from ..clusters import Json, Servers, known, print_json, say
from ..errors import EXIT_FAILURE, CommandError

if TYPE_CHECKING:
    from ...client import NodeHealth, NodeReport

_NotNegative = Parameter(validator=validators.Number(gte=0))


def log_dirs(
    *,
    topic: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    node: Annotated[int | None, _NotNegative] = None,
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Show the log directories of every node with the size of each replica in them; status 1 if one is offline.

    A size is that of the segments of a log, in bytes, without their indexes. The lag of a replica is how far its
    end is behind the high watermark.

    Example: `insync log-dirs --topic orders`

    Parameters
    ----------
    topic
        Only replicas of this topic, repeatable.
    node
        Ask this node alone.
    """
    from ..running import run

    async def look() -> int:
        from ...client import Admin

        async with Admin(known(servers)) as admin:
            health = await admin.describe_nodes()
            if topic:
                await admin.describe_topics(topic)  # an error if there is none of that name
            reports = {each.node_id: each for each in await admin.describe_replicas(list(topic) or None)}
        chosen = [each for each in health if node is None or each.node_id == node]
        if not chosen:
            there = ", ".join(str(each.node_id) for each in health)
            raise CommandError(f"there is no node {node}: the cluster has {there}")
        if any(not each.error and not each.log_directories for each in chosen):
            raise CommandError(
                "nodes tell their log directories to admins alone: this client needs a rule with admin in `allow`"
            )
        found = [_told(each, reports.get(each.node_id), topic) for each in chosen]
        if json:
            print_json(found)
        else:
            _print(found)
        sound = all(not each["error"] and not any(d["error"] for d in each["log_dirs"]) for each in found)
        return 0 if sound else EXIT_FAILURE

    return run(look)


def _told(health: NodeHealth, report: NodeReport | None, topics: tuple[str, ...]) -> dict[str, Any]:
    replicas = report.replicas if report is not None else []
    return {
        "node_id": health.node_id,
        "error": health.error or (report.error if report is not None else ""),
        "log_dirs": [
            {
                "path": directory.path,
                "error": directory.error,
                "size_bytes": directory.size_bytes,
                "stray_logs": directory.stray_logs,
                "stray_bytes": directory.stray_bytes,
                "replicas": [
                    {
                        "topic": each.topic,
                        "partition": each.partition,
                        "size_bytes": each.size_bytes,
                        "lag": max(0, each.high_watermark - each.log_end_offset),
                    }
                    for each in sorted(replicas, key=lambda each: (each.topic, each.partition))
                    if each.log_dir == directory.path and (not topics or each.topic in topics)
                ],
            }
            for directory in health.log_directories
        ],
    }


def _print(found: list[dict[str, Any]]) -> None:
    for node in found:
        if node["error"]:
            say(f"node {node['node_id']}: NO ANSWER: {node['error']}")
            continue
        for directory in node["log_dirs"]:
            state = (
                f"OFFLINE: {directory['error']}"
                if directory["error"]
                else counted(directory["size_bytes"], "byte")
            )
            say(f"node {node['node_id']} {directory['path']}: {state}")
            if directory["stray_logs"]:
                size = counted(directory["stray_bytes"], "byte")
                say(f"  {counted(directory['stray_logs'], 'stray log')}: {size}")
            for each in directory["replicas"]:
                behind = f", lag {each['lag']}" if each["lag"] else ""
                say(f"  {each['topic']}-{each['partition']}: {counted(each['size_bytes'], 'byte')}{behind}")
