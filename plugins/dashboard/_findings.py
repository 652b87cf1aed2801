"""Problems, in words: the cause, its consequence, and the remedy. From the same facts as `insync status`
and `insync health`. Partitions that one cause brings into trouble are one finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
_NO_LEADER, _REFUSED, _WAITING, _SHORT = range(4)
"""Kinds of trouble with a partition, the worst first."""

ERROR, WARNING = "error", "warning"


@attrs.frozen(kw_only=True)
class Finding:
    """One problem. key: the same for the same problem at every look. partitions: those that it is about."""

    key: str
    severity: str
    title: str
    cause: str
    consequence: str
    remedy: str
    partitions: tuple[At, ...] = ()
    node: int | None = None


@attrs.frozen
class _Trouble:
    """Of one partition. Those of the same kind, nodes and `spare` have one cause.

    nodes: without which it would not be. spare: members that the ISR may lose before acks=all writes are refused.
    say: makes the words, since thousands of partitions may be in trouble at once, and few are shown.
    """

    kind: int
    nodes: tuple[int, ...]
    spare: int
    at: At
    say: Callable[[], Finding]


def findings(look: Look, changes: ChangeLog, hanging: Sequence[HangingTransaction] = ()) -> list[Finding]:
    """The worst first; empty if all is well."""
    found = [*_cluster(look), *_nodes(look, changes), *_checks(look), *_strays(look)]
    found += map(_hanging, hanging[:SHOWN])
    partitions = sorted(_partitions(look, changes), key=lambda each: (each.kind, _users_first(each.at)))
    groups = _by_cause(each for each in partitions if not _said_of_nodes(look, each))
    found += map(_together, groups[:SHOWN])
    rest = sum(map(len, groups[SHOWN:]))
    if rest > 0:
        found.append(
            Finding(
                key="more",
                severity=WARNING,
                title=f"{counted(rest, 'more partition has', 'more partitions have', form=',')} problems",
                cause="Their causes are too many to list here.",
                consequence="The same as for the listed ones.",
                remedy="Repair the nodes first: their partitions recover with them.",
            )
        )
    return sorted(found, key=lambda each: each.severity != ERROR)


def _users_first(at: At) -> tuple[bool, At]:
    """The order of partitions: those of users before those of topics that the nodes keep for themselves."""
    return at[0].startswith("__"), at


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
            held = sorted(
                (
                    (topic.name, each.partition)
                    for topic in look.topics.values()
                    for each in topic.partitions
                    if node in each.replicas
                ),
                key=_users_first,
            )
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
                partitions=tuple(held),
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
        partitions=((each.topic, each.partition),),
    )


def _checks(look: Look) -> Iterator[Finding]:
    """Of nodes that answer. Checks of a partition or the cluster are left to other findings."""
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


def _partitions(look: Look, changes: ChangeLog) -> Iterator[_Trouble]:
    waiting = {each["partition"]: each for each in look.seen["waiting"]}
    for topic in look.topics.values():
        for each in topic.partitions:
            at = (topic.name, each.partition)
            if each.leader < 0:
                candidates = tuple(sorted(each.isr or each.replicas))
                yield _Trouble(_NO_LEADER, candidates, 0, at, partial(_leaderless, look, at, each, changes))
            elif len(each.isr) < len(each.replicas):
                needed = min(int(topic.config.get("min_insync_replicas", 1)), len(each.replicas))
                missing = tuple(sorted(set(each.replicas) - set(each.isr)))
                spare = len(each.isr) - needed
                say = partial(_short, look, at, each, changes, needed)
                yield _Trouble(_REFUSED if spare < 0 else _SHORT, missing, spare, at, say)
            if (silent := waiting.get(f"{topic.name}-{each.partition}")) is not None:
                yield _Trouble(_WAITING, (silent["for"],), 0, at, partial(_silent, at, silent))


def _said_of_nodes(look: Look, trouble: _Trouble) -> bool:
    """Whether it is no more than the findings of nodes that do not answer say."""
    return trouble.kind == _SHORT and all(
        node in look.reports and look.reports[node].error for node in trouble.nodes
    )


def _by_cause(troubles: Iterable[_Trouble]) -> list[list[_Trouble]]:
    """In the order of the first of each."""
    groups: dict[tuple[int, tuple[int, ...], int], list[_Trouble]] = {}
    for each in troubles:
        groups.setdefault((each.kind, each.nodes, each.spare), []).append(each)
    return list(groups.values())


def _together(group: Sequence[_Trouble]) -> Finding:
    """One finding for all, with the first as the example."""
    first = group[0]
    found = first.say()
    if len(group) == 1:
        return found
    nodes = f"{'nodes' if len(first.nodes) > 1 else 'node'} {' and '.join(map(str, first.nodes))}"
    title = {
        _NO_LEADER: f"have no leader without {nodes}",
        _REFUSED: f"refuse acks=all writes without {nodes}",
        _WAITING: f"acknowledge nothing without {nodes}",
        _SHORT: f"lack {nodes} in their ISRs",
    }[first.kind]
    return attrs.evolve(
        found,
        key=f"together-{first.kind}-{first.spare}-{'-'.join(map(str, first.nodes))}",
        title=f"{counted(len(group), 'partition', 'partitions', form=',')} {title}",
        cause=f"For example {first.at[0]}-{first.at[1]}: {found.cause}",
        remedy=found.remedy
        if first.kind != _NO_LEADER
        else f"Start one of {nodes} again. Only if they are lost for good: insync elect TOPIC --unclean, which "
        "gives up records.",
        partitions=tuple(each.at for each in group),
    )


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
        partitions=(at,),
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
        partitions=(at,),
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
        partitions=(at,),
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
