"""What is wrong, in words: the cause, what follows from it, and what to do. From the same facts as `insync status`
and `insync health`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial

import attrs

from ...replication.cli.watching.status import SILENT_MS, STORE_OLD_MS
from ...replication.client import HangingTransaction
from ...replication.client.admin import FollowerInfo, PartitionInfo
from ...replication.core.wording import counted
from ._changes import Change, ChangeLog
from ._look import At, Look

SHOWN = 50
"""Findings of partitions; of the others their number is told."""

ERROR, WARNING = "error", "warning"


@attrs.frozen(kw_only=True)
class Finding:
    """One problem. key: the same for the same problem at every look. at: the partition that it is about, if any."""

    key: str
    severity: str
    title: str
    cause: str
    consequence: str
    remedy: str
    at: At | None = None
    node: int | None = None


def findings(look: Look, changes: ChangeLog, hanging: Sequence[HangingTransaction] = ()) -> list[Finding]:
    """The worst first; empty if all is well."""
    found = [*_cluster(look), *_nodes(look, changes), *_checks(look), *_strays(look)]
    found += map(_hanging, hanging[:SHOWN])
    # Of equally bad ones, those of users before those of topics that the nodes keep for themselves.
    partitions = sorted(
        _partitions(look, changes), key=lambda each: (each[0], each[1][0].startswith("__"), each[1])
    )
    found += [say() for _, _, say in partitions[:SHOWN]]
    rest = len(partitions) - SHOWN
    if rest > 0:
        found.append(
            Finding(
                key="more",
                severity=WARNING,
                title=f"{counted(rest, 'more partition has', 'more partitions have', form=',')} problems",
                cause="They are too many to list here.",
                consequence="The same as for the listed ones.",
                remedy="Repair the nodes first: their partitions recover with them.",
            )
        )
    return sorted(found, key=lambda each: each.severity != ERROR)


def _cluster(look: Look) -> Iterator[Finding]:
    if look.cluster.controller_id < 0:
        yield Finding(
            key="controller",
            severity=ERROR,
            title="There is no controller",
            cause="No node is registered as controller in the metadata store.",
            consequence="No leader is elected and no topic can be changed. Partitions that have a leader continue.",
            remedy="Check that the metadata store answers and that its disk has room: "
            "any living node then takes over.",
        )


def _nodes(look: Look, changes: ChangeLog) -> Iterator[Finding]:
    for report in look.reports.values():
        node = report.node_id
        if report.error:
            held = [
                (topic.name, each.partition)
                for topic in look.topics.values()
                for each in topic.partitions
                if node in each.replicas
            ]
            since = _since(_last(changes, node))
            yield Finding(
                key=f"node-{node}",
                severity=ERROR,
                title=f"Node {node} does not answer",
                cause=f"{_sentence(report.error)}{since}",
                consequence=f"{counted(len(held), 'partition has', 'partitions have')} a replica on it and "
                f"{'tolerates' if len(held) == 1 else 'tolerate'} one failure fewer.",
                remedy=f"Start node {node} again; it catches up by itself. "
                f"If it does not come back, move its replicas: insync drain {node}.",
                node=node,
            )
        elif report.store_age_ms > STORE_OLD_MS:
            yield Finding(
                key=f"store-{node}",
                severity=ERROR,
                title=f"Node {node} cannot write to the metadata store",
                cause=f"The store has accepted no write of node {node} for {report.store_age_ms / 1000:.0f} s.",
                consequence="Its view of the cluster is as old. ISRs that it leads cannot shrink: "
                "writes may wait for a silent replica.",
                remedy="Check the store: its process, its disk, and whether a process that holds its lock "
                "stands still.",
                node=node,
            )


_CHECKS = {
    "session": (
        "It takes no part until it is registered again.",
        "It registers by itself when the store answers.",
    ),
    "log_directories": (
        "Replicas in that directory are offline.",
        "Replace or repair the disk, then start the node again: it copies what is missing.",
    ),
    "logs": (
        "Those partitions have one replica fewer.",
        "Read the node's log for the reason; a damaged folder that was moved aside is copied again.",
    ),
    "maintenance": (
        "Old records stay, and disks fill.",
        "Read the node's log for the partition and the error.",
    ),
}


def _hanging(each: HangingTransaction) -> Finding:
    whose = f" of transactional id {each.transactional_id!r}" if each.transactional_id else ""
    return Finding(
        key=f"hanging-{each.topic}-{each.partition}-{each.start_offset}",
        severity=ERROR,
        title=f"A transaction hangs in {each.topic}-{each.partition}",
        cause=f"Producer {each.producer_id}{whose} has opened it at offset {each.start_offset:,}, and no "
        "coordinator will end it.",
        consequence="Consumers with isolation_level=read_committed get nothing from that offset on.",
        remedy=f"Abort it: insync transaction abort {each.topic} {each.partition} --start-offset "
        f"{each.start_offset}. Its records never count then.",
        at=(each.topic, each.partition),
    )


def _checks(look: Look) -> Iterator[Finding]:
    """Of nodes that answer. What other findings say better of a partition or the cluster is left to them."""
    for health in look.health.values():
        for check in health.checks:
            if check.ok or check.name not in _CHECKS:
                continue
            consequence, remedy = _CHECKS[check.name]
            yield Finding(
                key=f"{check.name}-{health.node_id}",
                severity=ERROR if check.name in ("log_directories", "logs") else WARNING,
                title=f"Node {health.node_id} is not ready: {check.name.replace('_', ' ')}",
                cause=_sentence(check.detail),
                consequence=consequence,
                remedy=remedy,
                node=health.node_id,
            )


def _strays(look: Look) -> Iterator[Finding]:
    for health in look.health.values():
        for directory in health.log_directories:
            if directory.stray_logs:
                yield Finding(
                    key=f"stray-{health.node_id}-{directory.path}",
                    severity=WARNING,
                    title=f"Node {health.node_id} has set {counted(directory.stray_logs, 'log')} aside",
                    cause="It could not use them, and nothing shows that their records were given up.",
                    consequence=f"They take {counted(directory.stray_bytes, 'byte', form=',')} of "
                    f"{directory.path} until stray_retention_ms is over.",
                    remedy=f"See why: insync stray list {directory.path}. Then restore or delete them.",
                    node=health.node_id,
                )


def _partitions(look: Look, changes: ChangeLog) -> Iterator[tuple[int, At, Callable[[], Finding]]]:
    """How bad it is, where, and what says it in words: thousands may be wrong at once, and few are shown."""
    waiting = {each["partition"]: each for each in look.seen["waiting"]}
    for topic in look.topics.values():
        for each in topic.partitions:
            at = (topic.name, each.partition)
            if each.leader < 0:
                yield 0, at, partial(_leaderless, look, at, each, changes)
            elif len(each.isr) < len(each.replicas):
                needed = min(int(topic.config.get("min_insync_replicas", 1)), len(each.replicas))
                rank = 1 if len(each.isr) < needed else 3
                yield rank, at, partial(_short, look, at, each, changes, needed)
            if (silent := waiting.get(f"{topic.name}-{each.partition}")) is not None:
                yield 2, at, partial(_silent, at, silent)


def _leaderless(look: Look, at: At, each: PartitionInfo, changes: ChangeLog) -> Finding:
    down = [node for node in each.replicas if node not in look.reports or look.reports[node].error]
    last = _last_of(changes, at)
    why = f" {_sentence(last.why)}" if last is not None and last.why else ""
    return Finding(
        key=f"leader-{at[0]}-{at[1]}",
        severity=ERROR,
        title=f"{at[0]}-{at[1]} has no leader",
        cause="No replica that holds all acknowledged records is alive: "
        f"of {each.replicas}, {down or 'none'} do not answer.{why}",
        consequence="It can be neither written nor read.",
        remedy=f"Start one of the nodes {each.isr or each.replicas} again. Only if they are lost for good: "
        f"insync elect {at[0]} --partition {at[1]} --unclean, which gives up records.",
        at=at,
    )


def _short(look: Look, at: At, each: PartitionInfo, changes: ChangeLog, needed: int) -> Finding:
    name = f"{at[0]}-{at[1]}"
    refused = len(each.isr) < needed
    missing = [node for node in each.replicas if node not in each.isr]
    replica = look.leading.get(at)
    told = {follower.node_id: follower for follower in replica.followers} if replica is not None else {}
    end = replica.log_end_offset if replica is not None else -1
    cause = " ".join(_behind(look, node, told.get(node), end, changes, at) for node in missing)
    writes = (
        f"acks=all writes are refused until {counted(needed, 'replica is', 'replicas are')} in sync."
        if refused
        else "Writes continue. acks=all writes are refused if "
        f"{counted(len(each.isr) - needed + 1, 'more replica leaves', 'more replicas leave')} the ISR."
    )
    return Finding(
        key=f"isr-{name}",
        severity=ERROR if refused else WARNING,
        title=f"{name} has {len(each.isr)} of {len(each.replicas)} in sync",
        cause=cause,
        consequence=writes,
        remedy="; ".join(_remedy(look, node) for node in missing) + ".",
        at=at,
    )


def _behind(
    look: Look, node: int, follower: FollowerInfo | None, end: int, changes: ChangeLog, at: At
) -> str:
    left = next((each for each in reversed(changes.of_partition(at)) if node in each.ids("was_isr")), None)
    since = f" It left the ISR at {clock(left.at)}: {left.why}." if left is not None and left.why else ""
    if node not in look.reports or look.reports[node].error:
        return f"Node {node} does not answer.{since}"
    if follower is None:
        return f"Node {node} is not in sync, and the leader has not said why.{since}"
    behind = (
        f"is {counted(end - follower.log_end_offset, 'record', form=',')} behind"
        if follower.log_end_offset >= 0
        else "has not fetched"
    )
    silent = (
        f"; it has not been caught up for {follower.lag_ms / 1000:.0f} s"
        if follower.lag_ms > SILENT_MS
        else ""
    )
    return f"Node {node} {behind}{silent}: {follower.why_out or 'its leader has not said why'}.{since}"


def _remedy(look: Look, node: int) -> str:
    if node not in look.reports or look.reports[node].error:
        return f"Start node {node} again"
    failing = (
        [check.name for check in look.health[node].checks if not check.ok] if node in look.health else []
    )
    if "log_directories" in failing or "logs" in failing:
        return f"Look at the disks of node {node}"
    return f"Wait for node {node} to catch up; if its lag does not shrink, look at its disk, network and load"


def _silent(at: At, waiting: dict[str, object]) -> Finding:
    return Finding(
        key=f"waiting-{at[0]}-{at[1]}",
        severity=ERROR,
        title=f"{at[0]}-{at[1]} acknowledges nothing",
        cause=f"Node {waiting['for']} is in the ISR and has been silent for "
        f"{int(str(waiting['ms'])) / 1000:.0f} s.",
        consequence="acks=all writes wait until it fetches, or until it has left the ISR.",
        remedy="It leaves the ISR by itself after replica_lag_time_max_ms, if the metadata store takes writes. "
        f"Look at node {waiting['for']} and at the store.",
        at=at,
    )


def _last(changes: ChangeLog, node: int) -> Change | None:
    return next(
        (
            each
            for each in changes.newest(len(changes))
            if each.name == "node_changed" and each.number("member") == node
        ),
        None,
    )


def _last_of(changes: ChangeLog, at: At) -> Change | None:
    found = changes.of_partition(at)
    return found[-1] if found else None


def _since(change: Change | None) -> str:
    if change is None or change.facts.get("state") != "gone":
        return ""
    return f" It has been gone since {clock(change.at)}: {change.why}."


def clock(at: float) -> str:
    """A time of day for people, local."""
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def worst(found: Sequence[Finding]) -> str:
    """error, warning, or empty."""
    return found[0].severity if found else ""
