"""`insync topic`: create, list, describe, grow and delete topics, and delete their oldest records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter, validators
from msgspec import structs

from ..core.wording import counted
from .clusters import Flag, Json, Servers, known, print_json, say
from .errors import UsageError

if TYPE_CHECKING:
    from ..client import NodeReport
    from ..core.messages import PartitionInfo, ReplicaInfo, TopicInfo
    from ..core.types import Value

app = App(name="topic", help="Create, list, describe, change and delete topics.", help_format="markdown")

_AtLeastOne = Parameter(validator=validators.Number(gte=1))


@app.command
def create(
    name: str,
    /,
    *,
    partitions: Annotated[int | None, Parameter(show_default="1"), _AtLeastOne] = None,
    replication_factor: Annotated[int | None, Parameter(show_default="3"), _AtLeastOne] = None,
    config: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    assignment: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    validate_only: Flag = False,
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Create a topic.

    Example: `insync topic create orders --partitions 6 --replication-factor 3 --config min_insync_replicas=2`

    Parameters
    ----------
    name
        Letters, digits, dots, underscores and hyphens.
    partitions
        How many; records of one key always go to one partition, in order.
    replication_factor
        How many nodes hold a copy of each partition.
    config
        A setting of the topic as name=value, repeatable; `insync config` shows all of a topic and changes them.
    assignment
        The nodes of one partition, the preferred leader first, such as 1,2,3; once for each partition. Leave out
        --partitions and --replication-factor then, or let them agree.
    validate_only
        Say whether the topic could be created, and create nothing.
    """
    from .running import run

    settings = dict(setting(each) for each in config)
    places = list(map(_nodes, assignment))
    if partitions is None:
        partitions = len(places) or 1
    elif places and len(places) != partitions:
        raise UsageError(
            f"--assignment is given for {counted(len(places), 'partition')}, and --partitions is {partitions}: "
            "leave --partitions out, or give --assignment once for each partition"
        )
    if replication_factor is None:
        replication_factor = len(places[0]) if places else 3
    elif any(len(each) != replication_factor for each in places):
        wrong = next(
            text for text, each in zip(assignment, places, strict=True) if len(each) != replication_factor
        )
        raise UsageError(
            f"--assignment {wrong}: --replication-factor is {replication_factor}: leave it out, or name as "
            "many nodes for each partition"
        )

    async def create_it() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            topic_id = await admin.create_topic(
                name,
                partitions,
                replication_factor,
                settings,
                assignments=places or None,
                validate_only=validate_only,
            )
        done = "could create" if validate_only else "created"
        if json:
            print_json({"topic": name, "topic_id": topic_id or None, "created": not validate_only})
        else:
            say(
                f"{done} topic {name}: {counted(partitions, 'partition')}, replication factor {replication_factor}"
            )

    return run(create_it)


def _nodes(text: str) -> list[int]:
    nodes = text.split(",")
    if not all(each.isascii() and each.isdigit() for each in nodes):
        raise UsageError(f"--assignment {text}: give node ids of one partition, such as 1,2,3")
    return list(map(int, nodes))


@app.command(name="list")
def list_(*, servers: Servers = "", json: Json = False) -> int:
    """List the names of all topics.

    Example: `insync topic list --servers tcp://127.0.0.1:9092`
    """
    from .running import run

    async def list_them() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            names = await admin.list_topics()
        if json:
            print_json(names)
        else:
            say(*names or ("no topics yet; see: insync topic create --help",))

    return run(list_them)


@app.command
def describe(name: str = "", /, *, unhealthy: Flag = False, servers: Servers = "", json: Json = False) -> int:
    """Show a topic's partitions and every replica, with the reason if it is out of sync.

    `AR` are all assigned replicas in order of preference, `ISR` those in sync, `OSR` the others, `ELR` those that
    are not in sync and yet have all that was committed. For each replica:
    log end offset (LEO) and high watermark (HW), asked of its own node.

    Example: `insync topic describe orders`, or `insync topic describe --unhealthy` for what is wrong anywhere

    Parameters
    ----------
    name
        Which topic; with --unhealthy all topics, if none is named.
    unhealthy
        Only partitions that are without a leader, not fully in sync, being moved, or whose replicas cannot be used.
    """
    from .running import run

    if not name and not unhealthy:
        raise UsageError("name a topic, or use --unhealthy to see the problems of all topics")

    async def describe_it() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            topics = await admin.describe_topics([name] if name else None)
            reports = await admin.describe_replicas([name] if name else None)
        found = [(topic, [_partition(topic, each, reports) for each in topic.partitions]) for topic in topics]
        if unhealthy:
            _show_unhealthy(
                [(topic, [each for each in all_of if not _is_healthy(each)]) for topic, all_of in found], json
            )
            return
        ((topic, described),) = found
        if json:
            print_json({**_head(topic), "partitions": described})
        else:
            _print(topic, described)

    return run(describe_it)


def _show_unhealthy(found: Sequence[tuple[TopicInfo, list[dict[str, Any]]]], as_json: bool) -> None:
    chosen = [(topic, [each for each in all_of if not _is_healthy(each)]) for topic, all_of in found]
    ill = [(topic, partitions) for topic, partitions in chosen if partitions]
    if as_json:
        print_json([{**_head(topic), "partitions": partitions} for topic, partitions in ill])
        return
    for topic, partitions in ill:
        _print(topic, partitions)
    if not ill:
        say("all partitions are healthy")


@app.command
def delete(name: str, /, *, yes: bool = False, servers: Servers = "", json: Json = False) -> int:
    """Delete a topic with all its records, for good and on all nodes.

    Example: `insync topic delete orders --yes`

    Parameters
    ----------
    yes
        Confirm; without it nothing is deleted.
    """
    from .running import run

    if not yes:
        raise UsageError(f"this permanently deletes topic {name} with all its records: give --yes to confirm")

    async def delete_it() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            await admin.delete_topic(name)
        print_json({"topic": name, "deleted": True}) if json else say(f"deleted topic {name}")

    return run(delete_it)


@app.command
def grow(
    name: str,
    /,
    *,
    partitions: Annotated[int, _AtLeastOne],
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Give a topic more partitions. Keys belong to other partitions from then on; no record moves.

    Example: `insync topic grow orders --partitions 12`

    Parameters
    ----------
    partitions
        The new number of partitions, at least the present one.
    """
    from .running import run

    async def grow_it() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            await admin.create_partitions(name, partitions)
        if json:
            print_json({"topic": name, "partitions": partitions})
        else:
            say(f"topic {name} has {counted(partitions, 'partition')}")

    return run(grow_it)


@app.command(name="delete-records")
def delete_records(
    name: str,
    /,
    *,
    offset: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    timeout_ms: Annotated[int, _AtLeastOne] = 30000,
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Delete the oldest records of a topic, for good and on all replicas.

    Example: `insync topic delete-records orders --offset 0=1000 --offset 1=-1`

    Parameters
    ----------
    name
        The topic; its cleanup_policy must contain delete.
    offset
        Partition and first offset to keep, repeatable; -1 deletes all that is committed.
    timeout_ms
        How long to wait until every replica has deleted.
    """
    from .running import run

    wanted = {(name, partition): first for partition, first in map(_first_offset, offset)}
    if not wanted:
        raise UsageError(
            "say what to delete: --offset PARTITION=OFFSET, e.g. --offset 0=1000 (-1: everything)"
        )

    async def delete_them() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            done = await admin.delete_records(wanted, timeout_ms=timeout_ms)
        if json:
            print_json({str(partition): low for (_, partition), low in sorted(done.items())})
        else:
            for (_, partition), low in sorted(done.items()):
                say(f"{name}-{partition} begins at offset {low}")

    return run(delete_them)


def _first_offset(text: str) -> tuple[int, int]:
    partition, equals, offset = text.partition("=")
    if not equals or not partition.isdigit() or not offset.removeprefix("-").isdigit():
        raise UsageError(f"--offset {text}: write it as PARTITION=OFFSET, e.g. --offset 0=1000")
    return int(partition), int(offset)


def setting(text: str) -> tuple[str, Value]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{text}: write a setting as name=value, e.g. min_insync_replicas=2")
    return name, value


def _head(topic: TopicInfo) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "replication_factor": topic.replication_factor,
        "config": topic.config,
    }


def _partition(topic: TopicInfo, info: PartitionInfo, reports: Sequence[NodeReport]) -> dict[str, Any]:
    told = {
        report.node_id: replica
        for report in reports
        for replica in report.replicas
        if (replica.topic, replica.partition) == (topic.name, info.partition)
    }
    silent = {report.node_id: report.error for report in reports if report.error}
    followers = {f.node_id: f for f in told[info.leader].followers} if info.leader in told else {}
    reasons = {node: followers[node].why_out for node in followers}
    reasons |= {report.node_id: f"its node is {report.error}" for report in reports if not report.endpoints}
    reasons |= {node: replica.error for node, replica in told.items() if replica.error}
    return {
        **structs.asdict(info),
        "osr": [node for node in info.replicas if node not in info.isr],
        "replica_states": [
            _replica(node, node in info.isr, told.get(node), reasons.get(node, ""), silent.get(node, ""))
            for node in info.replicas
        ],
    }


def _replica(node: int, in_sync: bool, told: ReplicaInfo | None, reason: str, silence: str) -> dict[str, Any]:
    """The report of the replica's own node, or why there is none; `why_out` as that node or the leader sees it."""
    state: dict[str, Any] = {"node_id": node, "in_sync": in_sync}
    if told is not None:
        state |= {
            "role": told.role,
            "leader_epoch": told.leader_epoch,
            "log_start_offset": told.log_start_offset,
            "log_end_offset": told.log_end_offset,
            "high_watermark": told.high_watermark,
            "size_bytes": told.size_bytes,
        }
        silence = told.error
    state["error"] = silence
    state["why_out"] = "" if in_sync else (reason or silence)
    return state


def _print(topic: TopicInfo, partitions: Sequence[dict[str, Any]]) -> None:
    settings = ", ".join(f"{name}={value}" for name, value in topic.config.items())
    say(
        f"topic {topic.name}: {counted(len(topic.partitions), 'partition')}, "
        f"replication factor {topic.replication_factor}"
    )
    say(f"  id {topic.topic_id}", f"  {settings}")
    for each in partitions:
        say(
            f"partition {each['partition']}: leader {each['leader'] if each['leader'] >= 0 else 'none'}, "
            f"AR {each['replicas']}, ISR {each['isr']}, OSR {each['osr']}, ELR {each['elr']}, "
            f"leader epoch {each['leader_epoch']}, partition epoch {each['partition_epoch']}"
        )
        for line in _remarks(each):
            say(f"  {line}")
        for state in each["replica_states"]:
            say(f"  node {state['node_id']}: {_replica_line(state)}")


def _is_healthy(partition: dict[str, Any]) -> bool:
    return (
        len(partition["isr"]) == len(partition["replicas"])
        and not _remarks(partition)
        and not any(state["error"] for state in partition["replica_states"])
    )


def _remarks(partition: dict[str, Any]) -> list[str]:
    """The irregularities of a partition, and what is being done about them."""
    found = []
    if partition["leader"] < 0:
        known = partition["last_known_elr"]
        if partition["elr"]:
            found.append(f"no leader: it waits for one of {partition['elr']} to come back")
        elif known:
            found.append(
                f"no leader: it waits for all of {known} to come back, and for a report of every living log"
            )
        else:
            found.append(
                "no leader, and no replica known as complete: insync elect --unclean takes the longest log"
            )
    if partition["recovering"]:
        found.append("its leader was elected uncleanly and is alone: records may be lost")
    if partition["adding"] or partition["removing"]:
        found.append(f"being reassigned: adding {partition['adding']}, removing {partition['removing']}")
    return found


def _replica_line(state: dict[str, Any]) -> str:
    parts = ["in sync" if state["in_sync"] else "OUT OF SYNC"]
    if "log_end_offset" in state:
        parts.append(
            f"epoch {state['leader_epoch']}, LEO {state['log_end_offset']}, HW {state['high_watermark']}, "
            f"begins at {state['log_start_offset']}, {counted(state['size_bytes'], 'byte')}"
        )
    if state["in_sync"] and state["error"]:
        parts.append(state["error"])
    if not state["in_sync"]:
        parts.append(f"why: {state['why_out'] or 'its leader has not said'}")
    return "; ".join(parts)
