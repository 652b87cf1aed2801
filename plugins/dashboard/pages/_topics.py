"""Topics: all of them, and one with its partitions, the timeline of its ISRs, lag and settings."""

from __future__ import annotations

import time
from collections.abc import Mapping

from markupsafe import Markup
from msgspec import structs

from ....replication.cli.watching.measures import amount
from ....replication.core.control.records import TopicConfig
from .._changes import timeline
from .._look import Look
from .._watcher import Watcher
from . import _draw
from ._cluster import events
from ._markup import badge, facts, joined, link, nodes, note, section, table, topic_link, whole

PAGE = 50
"""Rows of a page: of 10,000 partitions a browser gets so many at a time."""
TIMELINES = 10
EVENTS = 20


def topics(watcher: Watcher, text: str, first: int) -> Markup:
    """All topics whose names hold `text`, from number `first` on."""
    look = watcher.look
    if look is None:
        return note("The cluster has not answered yet.")
    found = [name for name in look.topics if text in name]
    sizes = _sizes(look)
    rows = []
    for name in found[first : first + PAGE]:
        topic = look.topics[name]
        short = sum(len(each.isr) < len(each.replicas) for each in topic.partitions)
        leaderless = sum(each.leader < 0 for each in topic.partitions)
        rows.append(
            (
                topic_link(name),
                f"{len(topic.partitions):,}",
                topic.replication_factor,
                badge(f"{short:,}", "warning") if short else "0",
                badge(f"{leaderless:,}", "error") if leaderless else "0",
                f"{watcher.history.takes.get(name, 0):,.0f}",
                amount(sizes.get(name, 0)),
                link("records", "/records", topic=name),
            )
        )
    heads = (
        "Topic",
        "Partitions",
        "Replicas",
        "Under-replicated",
        "Without a leader",
        "Records/s",
        "Size",
        "",
    )
    return Markup("{}{}").format(
        table(f"Topics: {len(found):,}.", heads, rows, numbers=range(1, 7)),
        pager("/topics", first, len(found), text=text),
    )


def _sizes(look: Look) -> Mapping[str, int]:
    sizes: dict[str, int] = {}
    for (name, _), replica in look.leading.items():
        sizes[name] = sizes.get(name, 0) + replica.size_bytes
    return sizes


def pager(path: str, first: int, count: int, /, **query: object) -> Markup:
    """Links to the pages before and after."""
    if count <= PAGE and not first:
        return Markup("")
    before = link("Before", path, first=max(0, first - PAGE), **query) if first else "Before"
    after = link("After", path, first=first + PAGE, **query) if first + PAGE < count else "After"
    return Markup('<nav aria-label="Pages of this table">{} &nbsp; {} to {} of {} &nbsp; {}</nav>').format(
        before, f"{min(first + 1, count):,}", f"{min(first + PAGE, count):,}", f"{count:,}", after
    )


def topic(watcher: Watcher, name: str, first: int) -> Markup:
    """One topic; its partitions from number `first` on."""
    look = watcher.look
    if look is None:
        return note("The cluster has not answered yet.")
    info = look.topics.get(name)
    if info is None:
        return note(f"There is no topic {name!r} now.")
    numbers = sorted(each.partition for each in info.partitions)
    shown = numbers[first : first + PAGE]
    head = facts(
        ("Partitions", f"{len(numbers):,}"),
        ("Replicas of each", info.replication_factor),
        ("Records", f"{look.records(name):,}"),
        ("Size", amount(look.size_bytes(name))),
        ("Records a second", f"{watcher.history.takes.get(name, 0):,.0f}"),
    )
    return Markup("{}{}{}{}{}{}{}").format(
        head,
        note(
            Markup("{} &nbsp; topic id {}").format(
                link("Browse its records", "/records", topic=name), info.topic_id
            )
        ),
        section(
            "Partitions", _partitions(look, name, set(shown)), pager("/topic", first, len(numbers), name=name)
        ),
        section("Who was in sync, and when", _timelines(watcher, name, shown[:TIMELINES])),
        section("Lag of followers", _lags(watcher, name, shown)),
        section("What has happened", events(watcher.changes.newest(EVENTS, name))),
        section("Settings", _settings(info.config)),
    )


def _partitions(look: Look, name: str, shown: set[int]) -> Markup:
    rows = []
    for each in look.topics[name].partitions:
        if each.partition not in shown:
            continue
        replica = look.leading.get((name, each.partition))
        short = len(each.isr) < len(each.replicas)
        rows.append(
            (
                each.partition,
                whole(f"node {each.leader}") if each.leader >= 0 else badge("none", "error"),
                each.leader_epoch,
                nodes(each.replicas),
                badge(nodes(each.isr), "warning") if short else nodes(each.isr),
                nodes(each.elr),
                f"{replica.log_start_offset:,}" if replica else "?",
                f"{replica.high_watermark:,}" if replica else "?",
                f"{replica.log_end_offset:,}" if replica else "?",
                _followers(look, name, each.partition),
                amount(replica.size_bytes) if replica else "?",
            )
        )
    heads = (
        "Partition", "Leader", "Epoch", "Replicas", "In sync (ISR)", "Eligible (ELR)", "Start",
        "High watermark", "End", "Followers behind", "Size",
    )  # fmt: skip
    return table(
        "High watermark: below it records are committed. End: the next offset of the leader's log.",
        heads, rows, numbers=(0, 2, 6, 7, 8, 10),
    )  # fmt: skip


def _followers(look: Look, name: str, partition: int) -> object:
    replica = look.leading.get((name, partition))
    if replica is None:
        return "?"
    own = look.replicas.get((name, partition), {})
    return joined(
        Markup("<div>node {}: {}{}{}</div>").format(
            each.node_id,
            f"{replica.log_end_offset - each.log_end_offset:,}"
            if each.log_end_offset >= 0
            else "not fetched yet",
            f", high watermark {own[each.node_id].high_watermark:,}" if each.node_id in own else ", silent",
            f" ({each.why_out})" if each.why_out else "",
        )
        for each in replica.followers
    )


def _timelines(watcher: Watcher, name: str, shown: list[int]) -> Markup:
    assert watcher.look is not None
    now = time.time()
    told = {number: watcher.changes.of_partition((name, number)) for number in shown}
    start, length = _draw.window((each[0].at for each in told.values() if each), now)
    drawn = []
    for number, changes in told.items():
        info = watcher.look.partition((name, number))
        if info is not None:
            found = timeline(changes, info, start, now)
            drawn.append(_draw.spans(f"Partition {number}, {length}", found, start, now))
    return Markup("{}{}").format(_KEY, _draw.charts(drawn))


_KEY = Markup(
    '<ul class="legend"><li><span class="key leads"></span>blue: leads</li>'
    '<li><span class="key in"></span>green: in sync</li><li><span class="key out"></span>red: out of sync</li>'
    "<li>Point at a bar for the reason.</li></ul>"
)


def _lags(watcher: Watcher, name: str, shown: list[int]) -> Markup:
    now = time.time()
    lags = watcher.history.lags
    found = {number: lags[name, number] for number in shown if (name, number) in lags}
    start, length = _draw.window(
        (series.at[0] for by_node in found.values() for series in by_node.values()), now
    )
    drawn = [
        _draw.lines(
            f"Partition {number}: records behind the leader, {length}",
            {f"node {node}": series.since(start) for node, series in sorted(by_node.items())},
            start,
            now,
        )
        for number, by_node in list(found.items())[:TIMELINES]
    ]
    return _draw.charts(drawn) if drawn else note("No follower has been behind while the dashboard looked.")


_DEFAULTS = structs.asdict(TopicConfig())


def _settings(config: Mapping[str, object]) -> Markup:
    return table(
        "Every setting of the topic.",
        ("Setting", "Value", "Default"),
        (
            (
                name,
                value,
                "yes" if name in _DEFAULTS and _DEFAULTS[name] == value else badge("changed", "quiet"),
            )
            for name, value in sorted(config.items())
        ),
    )
