"""The tables that `insync top` shows on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from ...core.wording import printable
from .measures import amount
from .status import troubles

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

Sort = Literal["records", "size", "lag", "name"]
_LISTED = 10
_MANY = 30
_NAME_WIDTH = 21
"""Of the column of partitions: room for the longest of those that the nodes keep for themselves."""
_KEYS = {"records": "records_per_second", "size": "size_bytes", "lag": "lag"}


def console() -> Console:
    """A terminal on which all texts are shown as they are; names that clients have chosen are no markup."""
    from rich.console import Console

    class Plain(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text), **options)

    return Plain(markup=False, emoji=False)


def by(sort: Sort, rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The greatest first, or by `name`; those that have no leader stand before all others.

    Of equal ones, those of users come before those that the nodes keep for themselves.
    """
    key = _KEYS.get(sort)
    return sorted(
        rows, key=lambda each: (each.get("leader", 0) >= 0, -each[key] if key else 0, *_place(each[name]))
    )


def _place(name: str) -> tuple[bool, str, int]:
    """Of a topic or a partition among others: orders-9 stands before orders-10."""
    topic, _, number = name.rpartition("-")
    internal = name.startswith("__")
    return (internal, topic, int(number)) if topic and number.isdecimal() else (internal, name, -1)


def draw(shown: dict[str, Any], sort: Sort) -> RenderableType:
    """All tables, one below the other."""
    from rich.console import Group

    controller = shown["controller_id"] if shown["controller_id"] >= 0 else "none"
    head = (
        f"cluster {shown['cluster_id']}  controller {controller}  topics {shown['topics']}  "
        f"partitions {shown['partitions']}  under-replicated {len(shown['under_replicated'])}  "
        f"without a leader {len(shown['leaderless'])}"
    )
    worst = [f"node {node['node_id']}: {node['error']}" for node in shown["nodes"] if not node["alive"]]
    worst += islice(troubles(shown), _LISTED)
    groups = [_group_table(shown["groups"])] if shown.get("groups") else []
    if "by_partition" in shown:
        busy = _partition_table(shown["by_partition"], sort)
    else:
        busy = _topic_table(shown["by_topic"], sort)
    return Group(head, _node_table(shown["nodes"]), busy, *groups, *worst)


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
            amount(rates["bytes_in"]),
            amount(rates["bytes_out"]),
            amount(rates["replication_bytes_in"]),
            amount(rates["replication_bytes_out"]),
            _state(node),
        )
    return table


def _state(node: dict[str, Any]) -> str:
    if not node["alive"]:
        return "DOWN"
    return "ready" if node["ready"] else f"not ready: {', '.join(node['failing']) or 'no answer'}"


def _topic_table(topics: Sequence[dict[str, Any]], sort: Sort) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("topic")
    for name in ("partitions", "under-replicated", "records/s", "size"):
        table.add_column(name, justify="right")
    ordered = by(sort, topics, "topic")
    for each in ordered[:_LISTED]:
        table.add_row(
            each["topic"],
            str(each["partitions"]),
            str(each["under_replicated"]),
            f"{each['records_per_second']:,.0f}",
            amount(each["size_bytes"]),
        )
    if len(ordered) > _LISTED:
        table.add_row(f"and {len(ordered) - _LISTED} more", "", "", "", "")
    return table


def _partition_table(partitions: Sequence[dict[str, Any]], sort: Sort) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("partition", no_wrap=True, min_width=_NAME_WIDTH)
    for name in ("leader", "ISR", "replicas"):
        table.add_column(name)
    for name in ("watermark", "lag", "records/s", "size"):
        table.add_column(name, justify="right")
    ordered = by(sort, partitions, "partition")
    for each in ordered[:_MANY]:
        table.add_row(
            each["partition"],
            str(each["leader"]) if each["leader"] >= 0 else "none",
            ",".join(map(str, each["isr"])),
            ",".join(map(str, each["replicas"])),
            f"{each['high_watermark']:,}",
            f"{each['lag']:,}",
            f"{each['records_per_second']:,.0f}",
            amount(each["size_bytes"]),
        )
    if len(ordered) > _MANY:
        table.add_row(f"and {len(ordered) - _MANY} more", "", "", "", "", "", "", "")
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
