"""The cluster: nodes, the controller, what comes in and goes out, and what has happened."""

from __future__ import annotations

import time

from markupsafe import Markup

from ....replication.cli.watching.measures import amount
from ....replication.core.wording import and_more, first_of
from .._changes import Change, in_words
from .._findings import Finding
from .._watcher import Watcher
from . import _draw
from ._markup import badge, facts, joined, link, moment, note, section, table, topic_link, whole

EVENTS = 30
NAMED = 20
"""Topics and partitions that a finding names; of the others their number is told."""


def cluster(watcher: Watcher) -> Markup:
    """The whole page."""
    look = watcher.look
    if look is None:
        return note("The cluster has not answered yet.")
    seen = look.seen
    controller = f"node {seen['controller_id']}" if seen["controller_id"] >= 0 else badge("none", "error")
    head = facts(
        ("Controller", controller),
        ("Nodes alive", f"{sum(node['alive'] for node in seen['nodes'])} of {len(seen['nodes'])}"),
        ("Topics", f"{seen['topics']:,}"),
        ("Partitions", f"{seen['partitions']:,}"),
        ("Under-replicated", _count(len(seen["under_replicated"]), "warning")),
        ("Below minimum", _count(len(seen["under_min_isr"]), "error")),
        ("Without a leader", _count(len(seen["leaderless"]), "error")),
        ("Cluster id", seen["cluster_id"]),
    )
    return Markup("{}{}{}{}{}{}").format(
        head,
        section("Nodes", _nodes(watcher)),
        section("Throughput", _throughput(watcher)),
        section("Requests", _requests(watcher)),
        section("What has happened", events(watcher.changes.newest(EVENTS))),
        section("Controllers", _controllers(watcher)),
    )


def _count(number: int, kind: str) -> object:
    return badge(f"{number:,}", kind) if number else "0"


def _nodes(watcher: Watcher) -> Markup:
    look = watcher.look
    assert look is not None
    racks = {node.node_id: node.rack for node in look.cluster.nodes}
    rows = []
    for node in look.seen["nodes"]:
        node_id = node["node_id"]
        health = look.health.get(node_id)
        rates = watcher.history.rates_of(node_id)
        up = moment(look.at - health.uptime_ms / 1000) if health is not None and not health.error else ""
        rows.append(
            (
                whole(f"node {node_id}"),
                _state(watcher, node),
                up,
                health.version if health is not None else "",
                racks.get(node_id, ""),
                ", ".join(url.partition("?")[0] for url in node["endpoints"]),
                f"{node['leads']:,}",
                f"{node['replicas']:,}",
                f"{node['lag']:,}",
                f"{rates.get('messages_in', 0):,.0f}",
                amount(rates.get("bytes_in", 0)),
                amount(rates.get("bytes_out", 0)),
            )
        )
    heads = (
        "Node", "State", "Since", "Version", "Rack", "Addresses", "Leads", "Replicas", "Lag",
        "Records/s", "In/s", "Out/s",
    )  # fmt: skip
    return table(
        "Lag: by how many records the slowest replica on a node is behind.", heads, rows, numbers=range(6, 12)
    )


def _state(watcher: Watcher, node: dict[str, object]) -> Markup:
    look = watcher.look
    assert look is not None
    if not node["alive"]:
        return Markup("{} {}").format(badge("does not answer", "error"), node["error"])
    health = look.health.get(int(str(node["node_id"])))
    if health is not None and health.ready:
        return badge("ready", "good")
    failing = [f"{check.name}: {check.detail}" for check in health.checks if not check.ok] if health else []
    return Markup("{} {}").format(badge("not ready", "warning"), "; ".join(failing))


def _throughput(watcher: Watcher) -> Markup:
    now = time.time()
    start, length = _draw.window(
        (series.at[0] for of_node in watcher.history.nodes.values() for series in of_node.values()), now
    )
    drawn = []
    for title, rate in (("Records in a second", "messages_in"), ("Bytes out a second", "bytes_out")):
        series = {
            f"node {node}": of_node[rate].since(start)
            for node, of_node in sorted(watcher.history.nodes.items())
            if rate in of_node
        }
        drawn.append(_draw.lines(f"{title}, {length}", series, start, now))
    return _draw.charts(drawn)


def _requests(watcher: Watcher) -> Markup:
    """By kind, of all nodes together, between the last two looks."""
    return table(
        "Between the last two samples. The times of produce with acks=all include replication, those of fetch the "
        "wait for records.",
        ("Request", "A second", "Mean time"),
        (
            (kind.replace("_", " "), f"{rate:,.1f}", f"{1000 * seconds:,.1f} ms")
            for kind, (rate, seconds) in sorted(
                watcher.history.requests.items(), key=lambda each: -each[1][0]
            )
        ),
        numbers=(1, 2),
    )


def _controllers(watcher: Watcher) -> Markup:
    changed = [
        each for each in watcher.changes.newest(len(watcher.changes)) if each.name == "controller_changed"
    ]
    return table(
        "Who was controller, the newest first, as far as nodes remember.",
        ("When", "What", "Why"),
        ((moment(each.at), in_words(each), each.why) for each in changed[:10]),
    )


def events(changes: list[Change]) -> Markup:
    """Changes as a table, the newest first."""
    return table(
        "Elections, ISR changes, nodes that came and went; the newest first.",
        ("When", "What", "Why"),
        ((moment(each.at), _linked(each), each.why) for each in changes),
    )


def _linked(change: Change) -> object:
    at = change.partition
    words = in_words(change)
    return Markup("{} {}").format(words, link("(topic)", "/topic", name=at[0])) if at is not None else words


def why(watcher: Watcher) -> Markup:
    """Every problem: its cause, what follows, what to do."""
    if watcher.look is None:
        return note("The cluster has not answered yet.")
    if not watcher.findings:
        return note(
            "Nothing is wrong: every partition has all of its replicas in sync, and every node is ready."
        )
    return Markup("").join(map(_finding, watcher.findings))


def _finding(found: Finding) -> Markup:
    return Markup(
        '<article class="finding {}"><h3>{} {}</h3><dl><dt>Cause</dt><dd>{}</dd><dt>Consequence</dt><dd>{}</dd>'
        "<dt>What to do</dt><dd>{}</dd>{}</dl></article>"
    ).format(
        found.severity, badge(found.severity, found.severity), found.title,
        found.cause, found.consequence, found.remedy, _behind(found),
    )  # fmt: skip


def _behind(found: Finding) -> Markup:
    """The partitions of a finding, with links to their topics."""
    if not found.partitions:
        return Markup("")
    topics = list(dict.fromkeys(name for name, _ in found.partitions))
    names = [f"{name}-{partition}" for name, partition in found.partitions]
    return Markup("<dt>Topics</dt><dd>{}{}</dd><dt>Partitions</dt><dd>{}</dd>").format(
        joined(map(topic_link, topics[:NAMED]), ", "),
        and_more(len(topics), NAMED, form=","),
        first_of(names, NAMED, form=","),
    )
