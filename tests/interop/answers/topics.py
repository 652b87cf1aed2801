"""Topics: made wrongly, told of in pages, led and placed otherwise, cut off at their beginning."""

from __future__ import annotations

from typing import Any

import trio

from insync.plugins.kafka.protocol.apis import Api
from insync.storage.batch import build_batch

from .cluster import Cluster, plain
from .job import Tell

NAMES = {
    "empty": "",
    "a point": ".",
    "two points": "..",
    "249 characters": "x" * 249,
    "250 characters": "x" * 250,
    "a blank": "a b",
    "not ASCII": "grüße",
    "a colon": "a:b",
    "a line": "a\n",
    "of digits": "0123",
    "like an internal one": "__consumer_offsetss",
    "of offsets": "__consumer_offsets",
    "of the metadata": "__cluster_metadata",
}


def _topic(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 3, **more}


async def create(cluster: Cluster, *topics: Any, **more: Any) -> Any:
    return await cluster.ask(None, Api.CREATE_TOPICS, topics=list(topics), timeout_ms=10_000, **more)


def codes(told: Any) -> Any:
    """Error codes of a creation's answer, by name; the rest is compared elsewhere."""
    return sorted([each.name[:40], each.error_code] for each in told.topics)


async def names(cluster: Cluster, tell: Tell) -> None:
    for title, name in NAMES.items():
        tell(f"a name: {title}", codes(await create(cluster, _topic(name), validate_only=True)))
    await cluster.make("clash.of_names")
    for name in ("clash_of.names", "clash.of.names", "Clash.of_names"):
        tell(f"{name} beside clash.of_names", codes(await create(cluster, _topic(name), validate_only=True)))
    told = await create(cluster, _topic("twice"), _topic("twice"), _topic("once"), validate_only=True)
    tell("a name twice", codes(told))
    tell("no topic", codes(await create(cluster)))


async def creations(cluster: Cluster, tell: Tell) -> None:
    def places(*given: tuple[int, list[int]]) -> list[dict[str, Any]]:
        return [{"partition_index": index, "broker_ids": ids} for index, ids in given]

    unset: dict[str, Any] = {"num_partitions": -1, "replication_factor": -1}
    wrong: dict[str, dict[str, Any]] = {
        "no partitions": {"num_partitions": 0},
        "less than none": {"num_partitions": -2},
        "no replicas": {"replication_factor": 0},
        "less than no replicas": {"replication_factor": -2},
        "four replicas": {"replication_factor": 4},
        "defaults": unset,
        "places and a number": {"assignments": places((0, [1, 2, 3]))},
        "places and a factor": {"num_partitions": -1, "assignments": places((0, [1, 2, 3]))},
        "a place twice": {**unset, "assignments": places((0, [1, 1]))},
        "no such place": {**unset, "assignments": places((0, [1, 9]))},
        "no place": {**unset, "assignments": places((0, []))},
        "a place below 0": {**unset, "assignments": places((0, [-1, 1]))},
        "uneven places": {**unset, "assignments": places((0, [1, 2]), (1, [1]))},
        "a partition twice": {**unset, "assignments": places((0, [1, 2]), (0, [2, 1]))},
        "a gap": {**unset, "assignments": places((0, [1, 2]), (2, [2, 1]))},
        "from 1 on": {**unset, "assignments": places((1, [1, 2]))},
        "below 0": {**unset, "assignments": places((-1, [1, 2]))},
        "many errors": {
            "num_partitions": 0,
            "replication_factor": 9,
            "configs": [{"name": "x", "value": "1"}],
        },
    }
    for title, more in wrong.items():
        tell(title, codes(await create(cluster, _topic(title.replace(" ", "-"), **more), validate_only=True)))
    for title, name, value in (
        ("a null", "retention.ms", None),
        ("a null of no setting", "no.such", None),
        ("an empty value", "retention.ms", ""),
        ("an empty policy", "cleanup.policy", ""),
        ("a policy twice", "cleanup.policy", "delete,delete"),
        ("both policies", "cleanup.policy", "compact,delete"),
        ("a policy that is none", "cleanup.policy", "compact,burn"),
        ("blanks in a policy", "cleanup.policy", " compact , delete "),
        ("blanks around a number", "retention.ms", " 1000 "),
        ("a number with a plus", "retention.ms", "+5"),
        ("a number with an underscore", "retention.ms", "1_000"),
        ("a number beyond 64 bits", "retention.ms", "9223372036854775808"),
        ("the largest number", "retention.ms", "9223372036854775807"),
        ("retention without end", "retention.ms", "-1"),
        ("retention below that", "retention.ms", "-2"),
        ("bytes without end", "retention.bytes", "-1"),
        ("bytes below that", "retention.bytes", "-2"),
        ("no replica in sync", "min.insync.replicas", "0"),
        ("nine replicas in sync", "min.insync.replicas", "9"),
        ("the smallest segment", "segment.bytes", "1048576"),
        ("a segment beyond 32 bits", "segment.bytes", "2147483648"),
        ("no time of a segment", "segment.ms", "0"),
        ("a message of no bytes", "max.message.bytes", "0"),
        ("a message below that", "max.message.bytes", "-1"),
        ("a ratio of 0", "min.cleanable.dirty.ratio", "0"),
        ("a ratio above 1", "min.cleanable.dirty.ratio", "1.5"),
        ("a ratio that is none", "min.cleanable.dirty.ratio", "NaN"),
        ("no delay of a file", "file.delete.delay.ms", "0"),
        ("a delay below 0", "delete.retention.ms", "-1"),
        ("a lag below 0", "min.compaction.lag.ms", "-1"),
        ("no longest lag", "max.compaction.lag.ms", "0"),
        ("unclean: yes", "unclean.leader.election.enable", "yes"),
        ("unclean: TRUE", "unclean.leader.election.enable", "TRUE"),
        ("a codec", "compression.type", "gzip"),
        ("a codec that is none", "compression.type", "rar"),
        ("an empty name", "", "1"),
    ):
        config = [{"name": name, "value": value}]
        tell(
            f"setting: {title}",
            codes(await create(cluster, _topic("set", configs=config), validate_only=True)),
        )
    twice = [{"name": "retention.ms", "value": "1"}, {"name": "retention.ms", "value": "2"}]
    tell("setting: twice", codes(await create(cluster, _topic("set", configs=twice), validate_only=True)))
    told = await create(cluster, _topic("shown", configs=[{"name": "retention.ms", "value": "7"}]))
    found = [plain(each) for each in told.topics[0].configs if each.name == "retention.ms"]
    tell("shown", [told.topics[0].num_partitions, told.topics[0].replication_factor, found])


async def growth(cluster: Cluster, tell: Tell) -> None:
    await cluster.make("grown", [[1, 2, 3], [2, 3, 1]])

    async def grow(title: str, *topics: dict[str, Any], **more: Any) -> None:
        told = await cluster.ask(None, Api.CREATE_PARTITIONS, topics=list(topics), timeout_ms=10_000, **more)
        tell(title, plain(told))

    def to(count: int, *places: list[int], name: str = "grown") -> dict[str, Any]:
        return {
            "name": name,
            "count": count,
            "assignments": [{"broker_ids": each} for each in places] or None,
        }

    for count in (-1, 0, 1, 2):
        await grow(f"to {count}", to(count))
    await grow("to 3, in part", to(3, [1, 2]))
    await grow("to 3, with two places", to(3, [1, 2, 3], [2, 3, 1]))
    await grow("to 4, with one place", to(4, [1, 2, 3]))
    await grow("to 3, at a place twice", to(3, [1, 1, 2]))
    await grow("to 3, nowhere", to(3, [1, 2, 9]))
    await grow("to 3, at no place", to(3, []))
    await grow("of no topic", to(3, name="nowhere"))
    await grow("of a bad name", to(3, name="a b"))
    await grow("twice in a request", to(3), to(4))
    await grow("to 3, only tried", to(3), validate_only=True)
    await grow("to 3", to(3, [3, 1, 2]))
    await grow("to 3 again", to(3))


async def pages(cluster: Cluster, tell: Tell) -> None:
    for name, count in (("page-a", 2), ("page-b", 3), ("page-c", 1)):
        await cluster.make(name, [[1, 2, 3]] * count)

    async def page(title: str, names: list[str], limit: int, cursor: tuple[str, int] | None = None) -> None:
        at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
        told = await cluster.ask(
            None,
            Api.DESCRIBE_TOPIC_PARTITIONS,
            topics=[{"name": each} for each in names],
            response_partition_limit=limit,
            cursor=at,
        )
        if not isinstance(told, str):
            told = [
                [
                    [
                        each.name,
                        each.error_code,
                        each.is_internal,
                        [p.partition_index for p in each.partitions],
                    ]
                    for each in told.topics
                ],
                None
                if told.next_cursor is None
                else [told.next_cursor.topic_name, told.next_cursor.partition_index],
            ]
        tell(title, told)

    every = ["page-c", "page-a", "page-b"]
    for limit in (-1, 0, 1, 2, 3, 4, 5, 6, 7, 100_000):
        await page(f"limit {limit}", every, limit)
    for cursor in (("page-a", 0), ("page-a", 1), ("page-a", 2), ("page-a", 9), ("page-a", -1), ("page-b", 1)):
        await page(f"from {cursor}", every, 2, cursor)
    for name in ("page-aa", "page-0", "page-z", ""):
        await page(f"from {name!r}", every, 2, (name, 0))
    await page("a name twice", ["page-a", "page-a"], 10)
    await page("no such topic", ["page-a", "nowhere"], 10)
    await page("no such topic, a full page", ["page-a", "nowhere", "page-c"], 2)
    await page("a bad name", ["a b"], 10)
    await page("from a topic that is none", ["nowhere", "page-a"], 10, ("nowhere", 0))


async def elections(cluster: Cluster, tell: Tell) -> None:
    await cluster.make("elected", [[1, 2, 3], [2, 3, 1]])

    async def elect(title: str, topics: list[dict[str, Any]] | None, kind: int = 0) -> None:
        told = await cluster.ask(
            None, Api.ELECT_LEADERS, election_type=kind, topic_partitions=topics, timeout_ms=10_000
        )
        if topics is None and not isinstance(told, str):
            told.replica_election_results = []  # of topics of other jobs, which may need one
        tell(title, plain(told))

    for kind in (0, 1):
        await elect(f"not needed, {kind}", [{"topic": "elected", "partitions": [0, 1]}], kind)
        await elect(f"no such partition, {kind}", [{"topic": "elected", "partitions": [0, 9, -1]}], kind)
        await elect(f"no such topic, {kind}", [{"topic": "nowhere", "partitions": [0]}], kind)
        await elect(f"no partition, {kind}", [{"topic": "elected", "partitions": []}], kind)
        await elect(f"no topic, {kind}", [], kind)
        await elect(f"all, {kind}", None, kind)
        await elect(f"a bad name, {kind}", [{"topic": "a b", "partitions": [0]}], kind)
        await elect(f"a partition twice, {kind}", [{"topic": "elected", "partitions": [0, 0]}], kind)
    for kind in (2, -1):
        await elect(f"no such kind, {kind}", [{"topic": "elected", "partitions": [0]}], kind)


async def moves(cluster: Cluster, tell: Tell) -> None:
    await cluster.make("moved", [[1, 2], [2, 3]])

    async def move(
        title: str, *parts: tuple[int, list[int] | None], name: str = "moved", **more: Any
    ) -> None:
        wanted = [{"partition_index": index, "replicas": replicas} for index, replicas in parts]
        told = await cluster.ask(
            None,
            Api.ALTER_PARTITION_REASSIGNMENTS,
            topics=[{"name": name, "partitions": wanted}],
            timeout_ms=10_000,
            **more,
        )
        tell(title, plain(told))

    async def listed(topics: list[dict[str, Any]] | None) -> Any:
        return await cluster.ask(None, Api.LIST_PARTITION_REASSIGNMENTS, topics=topics, timeout_ms=10_000)

    await move("cancel what is not", (0, None))
    await move("cancel in no partition", (9, None))
    await move("cancel in no topic", (0, None), name="nowhere")
    await move("to no place", (0, []))
    await move("to a place twice", (0, [1, 1]))
    await move("to nowhere", (0, [1, 9]))
    await move("below 0", (0, [-1, 1]))
    await move("no such partition", (9, [1, 2]))
    await move("no such topic", (0, [1, 2]), name="nowhere")
    await move("a bad name", (0, [1, 2]), name="a b")
    await move("a partition twice", (0, [1, 2]), (0, [2, 1]))
    await move("more replicas than allowed", (0, [1, 2, 3]), allow_replication_factor_change=False)
    await move("fewer replicas than allowed", (0, [1]), allow_replication_factor_change=False)
    await move("where it is", (0, [1, 2]))
    await move("in another order", (0, [2, 1]))
    asked = [{"name": "moved", "partition_indexes": [0, 1]}]
    tell("none under way", plain(await cluster.until(lambda: listed(asked), lambda told: not told.topics)))
    for title, topics in (
        ("of nothing", []),
        ("of no topic", [{"name": "nowhere", "partition_indexes": [0]}]),
        ("of no partition", [{"name": "moved", "partition_indexes": [9]}]),
        ("of no partitions", [{"name": "moved", "partition_indexes": []}]),
    ):
        tell(f"moves {title}", plain(await listed(topics)))
    await move("to more", (0, [2, 1, 3]))
    await cluster.until(lambda: listed(asked), lambda told: not told.topics)
    tell("cancel what is over", None)
    await move("over", (0, None))
    told = await cluster.until(
        lambda: cluster.described("moved"),
        lambda told: sorted(len(each.isr_nodes) for each in told.partitions) == [2, 3],
    )
    tell("replicas", sorted([each.partition_index, each.replica_nodes] for each in told.partitions))


async def deletions(cluster: Cluster, tell: Tell) -> None:
    made = await cluster.make("gone")

    async def delete(title: str, version: int | None, **more: Any) -> None:
        told = await cluster.ask(None, Api.DELETE_TOPICS, version, timeout_ms=10_000, **more)
        tell(title, plain(told))

    await delete("no such id", None, topics=[{"name": None, "topic_id": bytes(15) + b"\x07"}])
    await delete("the id of none", None, topics=[{"name": None, "topic_id": bytes(16)}])
    await delete("a name and an id", None, topics=[{"name": "gone", "topic_id": made}])
    await delete("a name and its id", None, topics=[{"name": "gone"}, {"name": None, "topic_id": made}])
    await delete("a name twice", None, topics=[{"name": "nowhere"}, {"name": "nowhere"}])
    await delete("a bad name", 5, topic_names=["a b"])
    await delete("an empty name", 5, topic_names=[""])
    await delete("a name twice by names", 5, topic_names=["gone", "gone"])
    await delete("by its id", None, topics=[{"name": None, "topic_id": made}])
    await cluster.until(lambda: cluster.described("gone"), lambda told: told.error_code == 3)
    await delete("by its id again", None, topics=[{"name": None, "topic_id": made}])
    await delete("by its name", None, topics=[{"name": "gone"}])


async def records(cluster: Cluster, tell: Tell) -> None:
    """Records deleted, at the edges; and offsets looked up then."""
    await cluster.make("cut", config={"min.insync.replicas": "1", "retention.ms": "-1"})
    leader = await cluster.leader("cut")
    now = 1_700_000_000_000
    for step in range(3):
        data = build_batch([b"k"] * 2, [b"v"] * 2, timestamps_ms=now + step)
        part = {"index": 0, "records": data}
        sent = await cluster.ask(
            leader,
            Api.PRODUCE,
            9,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[{"name": "cut", "partition_data": [part]}],
        )
        assert sent.responses[0].partition_responses[0].error_code == 0, sent

    async def cut(
        title: str, *parts: tuple[int, int], name: str = "cut", at: str = leader, wait: int = 10_000
    ) -> None:
        wanted = [{"partition_index": index, "offset": offset} for index, offset in parts]
        told = await cluster.ask(
            at, Api.DELETE_RECORDS, topics=[{"name": name, "partitions": wanted}], timeout_ms=wait
        )
        tell(title, plain(told))

    await cut("before the first", (0, 0))
    await cut("below -1", (0, -2))
    await cut("beyond the end", (0, 7))
    await cut("no such partition", (9, 0))
    await cut("no such topic", (0, 0), name="nowhere")
    await cut("a bad name", (0, 0), name="a b")
    await cut("within a batch", (0, 3))
    await cut("again", (0, 3))
    await cut("less than that", (0, 2))
    await cut("a partition twice", (0, 4), (0, 4))
    other = next(each for each in cluster.servers if each != leader)
    await cut("at a follower", (0, 4), at=other)
    for title, time in (
        ("earliest", -2),
        ("latest", -1),
        ("greatest", -3),
        ("local", -4),
        ("tiered", -5),
        ("tiered earliest", -6),
        ("no such question", -7),
        ("time 0", 0),
        ("of a deleted one", now + 1),
        ("of the last", now + 2),
        ("after all", now + 3),
    ):
        part = {"partition_index": 0, "timestamp": time}
        for version in (5, 8, 10):
            told = await cluster.ask(
                leader,
                Api.LIST_OFFSETS,
                version,
                replica_id=-1,
                topics=[{"name": "cut", "partitions": [part]}],
            )
            tell(f"offset {title}, version {version}", plain(told))
    last = {"partition_index": 0, "timestamp": -1}
    for title, topics in (
        ("a partition twice", [{"name": "cut", "partitions": [last, last]}]),
        ("a partition at two times", [{"name": "cut", "partitions": [last, last | {"timestamp": -2}]}]),
        ("a topic twice", [{"name": "cut", "partitions": [last]}] * 2),
        ("a topic of no partitions", [{"name": "cut", "partitions": []}]),
    ):
        told = await cluster.ask(leader, Api.LIST_OFFSETS, 7, replica_id=-1, topics=topics)
        tell(f"offsets of {title}", plain(told))
    await cut("up to the end", (0, 6))
    await cut("everything", (0, -1))
    tell("earliest then", plain(await cluster.end("cut", time=-2)))
    tell("greatest then", plain(await cluster.end("cut", time=-3)))
    tell("of a time then", plain(await cluster.end("cut", time=now)))
    await trio.lowlevel.checkpoint()


ELECTIONS = "elections"
JOBS = {
    "names of topics": names,
    "topics made": creations,
    "partitions added": growth,
    "pages of topics": pages,
    ELECTIONS: elections,
    "replicas moved": moves,
    "topics deleted": deletions,
    "records deleted": records,
}
