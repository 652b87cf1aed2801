"""Consumer groups: who is a member, who has what, how far behind they are, and why they rebalanced."""

from __future__ import annotations

import time

from markupsafe import Markup

from ....replication.core.types import PartitionId
from ....replication.core.wording import first_of
from .._watcher import MOST_GROUPS, Watcher
from . import _draw
from ._markup import badge, facts, joined, link, moment, note, section, table, topic_link, whole

ROWS = 200
CHARTS = 10
EVENTS = 20


def groups(watcher: Watcher) -> Markup:
    """All groups."""
    rows = []
    for listed in watcher.group_names:
        known = watcher.groups.get(listed.group)
        rows.append(
            (
                link(listed.group, "/group", name=listed.group),
                listed.type,
                _state(listed.state),
                f"{len(known.members):,}" if known else "?",
                f"{len(known.partitions):,}" if known else "?",
                f"{known.lag:,}" if known else "?",
                whole(f"node {known.coordinator}") if known else "?",
            )
        )
    more = len(watcher.group_names) - MOST_GROUPS
    parts = [
        _trouble(watcher),
        table(
            f"Groups: {len(rows):,}. Lag: records in the log that the group has not committed.",
            ("Group", "Type", "State", "Members", "Partitions", "Lag", "Coordinator"),
            rows[:ROWS],
            numbers=(3, 4, 5),
        ),
        note(f"Of {more:,} of them only the names are read.") if more > 0 else "",
        section("Rebalances", _events(watcher)),
    ]
    return joined(parts)


def group(watcher: Watcher, name: str) -> Markup:
    """One group."""
    known = watcher.groups.get(name)
    if known is None:
        return joined(
            (_trouble(watcher), note(f"There is no group {name!r} now, or it is not among those looked at."))
        )
    now = time.time()
    members = (
        (
            each.member_id,
            each.instance_id or "",
            each.client_id,
            each.client_host,
            each.epoch,
            ", ".join(each.topics),
            _places(each.partitions),
            "" if set(each.partitions) == set(each.target) else _places(each.target),
        )
        for each in known.members[:ROWS]
    )
    partitions = (
        (
            topic_link(each.topic),
            each.partition,
            "none" if each.committed is None else f"{each.committed:,}",
            "?" if each.end_offset is None else f"{each.end_offset:,}",
            "?" if each.lag is None else f"{each.lag:,}",
            each.member_id or badge("nobody", "quiet"),
        )
        for each in sorted(known.partitions, key=lambda each: -(each.lag or 0))[:ROWS]
    )
    series = watcher.history.groups.get(name)
    start, length = _draw.window(series.at[:1] if series is not None else (), now)
    worst = sorted(
        (key for key in watcher.history.group_lags if key[0] == name),
        key=lambda key: -watcher.history.group_lags[key].values[-1],
    )[:CHARTS]
    return joined(
        (
            facts(
                ("State", _state(known.state)),
                ("Protocol", known.type),
                ("Assignor", known.protocol or "none"),
                ("Epoch", known.epoch),
                ("Coordinator", f"node {known.coordinator}"),
                ("Lag", f"{known.lag:,}"),
            ),
            section(
                "Lag over time",
                _draw.charts(
                    (
                        _draw.lines(
                            f"All partitions, {length}",
                            {"records": series.since(start) if series is not None else ()},
                            start,
                            now,
                        ),
                        _draw.lines(
                            "The partitions that are furthest behind",
                            {str(key[1]): watcher.history.group_lags[key].since(start) for key in worst},
                            start,
                            now,
                        ),
                    )
                ),
            ),
            section(
                "Partitions",
                table(
                    "Committed: the next record that the group reads. End: the high watermark.",
                    ("Topic", "Partition", "Committed", "End", "Lag", "Read by"),
                    partitions,
                    numbers=(1, 2, 3, 4),
                ),
            ),
            section(
                "Members",
                table(
                    f"Members: {len(known.members):,}. Target: what one is to have, where that is something else.",
                    ("Member", "Instance", "Client", "Host", "Epoch", "Topics", "Partitions", "Target"),
                    members,
                    numbers=(4,),
                ),
            ),
            section("Rebalances", _events(watcher, name)),
        )
    )


def _state(state: str) -> Markup:
    kind = {"Stable": "good", "Empty": "quiet", "Dead": "error"}.get(state, "warning")
    return badge(state or "unknown", kind)


def _places(partitions: list[PartitionId]) -> str:
    return first_of(sorted(partitions), 30) or "none"


def _events(watcher: Watcher, name: str = "") -> Markup:
    found = [
        each
        for each in watcher.changes.newest(len(watcher.changes))
        if each.name == "group_changed" and (not name or each.facts.get("group") == name)
    ][:EVENTS]
    rows = (
        (
            moment(each.at),
            each.facts.get("group", "?"),
            each.why,
            ", ".join(f"{key} {value}" for key, value in each.facts.items() if key not in ("group", "why")),
        )
        for each in found
    )
    return table("The newest first, as far as coordinators remember.", ("When", "Group", "Why", "What"), rows)


def _trouble(watcher: Watcher) -> Markup:
    if not watcher.groups_error:
        return Markup("")
    return Markup('<p class="banner warning" role="status">Groups cannot be read: {}</p>').format(
        watcher.groups_error
    )
