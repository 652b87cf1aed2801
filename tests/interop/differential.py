"""`python -m tests.interop.differential [--clients] [--json]`: the same at our nodes and at brokers of Kafka.

Without `--clients` it is one script of requests: answers of every version that both offer are compared field by
field, but for what names a cluster or a moment. So are the answers to jobs of several requests (`answers`), which
go to the edges of what administrators, groups and transactions may ask. With it real clients do the same jobs at
both, and what each tells its program is compared: deliveries, partitions given and taken, commits, records, ends,
and errors with their flags.

`ALLOWED` here and in the two files `allowed.py` says what differs on purpose, and why: a difference that is not
there is a failure, and so is one that is there and is not met.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trio

from insync.plugins.kafka.handlers import OFFERED
from insync.plugins.kafka.protocol import Struct, message
from insync.plugins.kafka.protocol.apis import Api
from insync.storage.batch import build_batch

from ..plugins.kafka.conftest import running_cluster
from ..plugins.kafka.wire_client import WireClient
from .answers.allowed import ALLOWED as ANSWERS_ALLOWED
from .answers.compare import run as jobs
from .brokers import brokers
from .events.allowed import ALLOWED as CLIENTS_ALLOWED
from .events.compare import run as run_clients
from .kafka import POM, Java, resolve

MASKED = {
    *("cluster_id", "controller_id", "brokers", "host", "port", "node_id", "rack", "topic_id", "leader_id"),
    *(
        "leader_epoch",
        "replica_nodes",
        "isr_nodes",
        "eligible_leader_replicas",
        "last_known_elr",
        "offline_replicas",
    ),
    *(
        "throttle_time_ms",
        "error_message",
        "producer_id",
        "session_id",
        "log_append_time_ms",
        "node_endpoints",
    ),
    *("current_leader", "member_id", "records"),
}
"""What names a cluster, a moment, or is text for people."""
_SILENT = "an answer that is an error has no aborted transactions, and ours says null where Kafka's is empty"
_KNOWN = "ours also says where the log stands when it refuses an offset"
ALLOWED: dict[str, str] = {
    "create: configs": "Kafka has more settings; ours are those that have an effect",
    "fetch: last_stable_offset": "ours is told to readers of committed records alone",
    "fetch behind the end: high_watermark": _KNOWN,
    "fetch behind the end: log_start_offset": _KNOWN,
    "fetch of no topic: aborted_transactions": _SILENT,
    "fetch of no partition: aborted_transactions": _SILENT,
}
"""By the request and the field, whatever the version."""


def _produce(name: str, data: bytes, acks: int = -1, partition: int = 0) -> Struct:
    Produce = message("ProduceRequest")
    part = Produce.PartitionProduceData(index=partition, records=data)
    topic = Produce.TopicProduceData(name=name, partition_data=[part])
    return Produce(acks=acks, timeout_ms=10_000, topic_data=[topic])


def _fetch(name: str, offset: int, partition: int = 0) -> Struct:
    Fetch = message("FetchRequest")
    part = Fetch.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = Fetch.FetchTopic(topic=name, partitions=[part])
    return Fetch(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, session_epoch=-1, topics=[topic])


def _list_offsets(name: str, timestamp: int) -> Struct:
    List = message("ListOffsetsRequest")
    part = List.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    return List(replica_id=-1, topics=[List.ListOffsetsTopic(name=name, partitions=[part])])


def _create(name: str, partitions: int = 1, replicas: int = 3) -> Struct:
    Create = message("CreateTopicsRequest")
    config = Create.CreatableTopicConfig(name="retention.ms", value="86400000")
    topic = Create.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=replicas, configs=[config]
    )
    return Create(topics=[topic], timeout_ms=15_000)


def _versions(api: Api, least: int = 0, most: int = 99) -> range:
    first, last = OFFERED.ranges[api]
    return range(max(first, least), min(last, most) + 1)


def script(now_ms: int) -> Iterator[tuple[str, str, Api, int, Struct]]:
    """What is asked: a title, who is asked ("any", "leader"), and the request; topics are made by the script."""
    data = build_batch([b"k"], [b"v"], timestamps_ms=now_ms)
    Delete = message("DeleteTopicsRequest")
    for version in _versions(Api.CREATE_TOPICS):
        yield "create", "any", Api.CREATE_TOPICS, version, _create(f"made-{version}")
        yield "create again", "any", Api.CREATE_TOPICS, version, _create(f"made-{version}")
        yield "create a bad name", "any", Api.CREATE_TOPICS, version, _create("not/legal")
        yield "create with too many replicas", "any", Api.CREATE_TOPICS, version, _create("many", 1, 9)
        yield "create with no partitions", "any", Api.CREATE_TOPICS, version, _create("none", 0)
    Metadata = message("MetadataRequest")
    for version in _versions(Api.METADATA, 4):
        for title, name in (
            ("metadata", "t"),
            ("metadata of none", "nowhere"),
            ("metadata of a bad name", "a b"),
        ):
            named = [Metadata.MetadataRequestTopic(name=name)]
            asked = Metadata(topics=named, allow_auto_topic_creation=False)
            yield title, "any", Api.METADATA, version, asked
    for version in _versions(Api.PRODUCE, 3, 12):
        yield "produce", "leader", Api.PRODUCE, version, _produce("t", data)
        yield "produce with acks=2", "leader", Api.PRODUCE, version, _produce("t", data, acks=2)
        yield "produce to no topic", "leader", Api.PRODUCE, version, _produce("nowhere", data)
        yield "produce to no partition", "leader", Api.PRODUCE, version, _produce("t", data, partition=7)
        yield "produce damage", "leader", Api.PRODUCE, version, _produce("t", data[:-1] + b"\7")
    for version in _versions(Api.FETCH, 4, 12):
        yield "fetch", "leader", Api.FETCH, version, _fetch("t", 0)
        yield "fetch behind the end", "leader", Api.FETCH, version, _fetch("t", 1000)
        yield "fetch of no topic", "leader", Api.FETCH, version, _fetch("nowhere", 0)
        yield "fetch of no partition", "leader", Api.FETCH, version, _fetch("t", 0, partition=7)
    for version in _versions(Api.LIST_OFFSETS, 1):
        for title, timestamp in (
            ("latest", -1),
            ("earliest", -2),
            ("of a time", now_ms),
            ("of no time", now_ms * 2),
        ):
            yield f"offset {title}", "leader", Api.LIST_OFFSETS, version, _list_offsets("t", timestamp)
        yield "offset of no topic", "leader", Api.LIST_OFFSETS, version, _list_offsets("nowhere", -1)
    Heartbeat, Leave = message("HeartbeatRequest"), message("LeaveGroupRequest")
    for version in _versions(Api.HEARTBEAT):
        asked = Heartbeat(group_id="nobody", generation_id=1, member_id="x")
        yield "heartbeat of a stranger", "coordinator", Api.HEARTBEAT, version, asked
    for version in _versions(Api.LEAVE_GROUP, 3):
        asked = Leave(group_id="nobody", members=[Leave.MemberIdentity(member_id="x")])
        yield "a stranger leaves", "coordinator", Api.LEAVE_GROUP, version, asked
    Describe = message("DescribeGroupsRequest")
    for version in _versions(Api.DESCRIBE_GROUPS):
        yield "describe no group", "coordinator", Api.DESCRIBE_GROUPS, version, Describe(groups=["nobody"])
    for version in _versions(Api.DELETE_TOPICS, 1, 5):
        for title in ("delete", "delete again"):
            yield (
                title,
                "any",
                Api.DELETE_TOPICS,
                version,
                Delete(topic_names=[f"made-{version + 1}"], timeout_ms=15_000),
            )


async def answers(servers: str, now_ms: int) -> dict[tuple[str, int], Any]:
    """What a cluster answers, by the request's title and version."""
    first = servers.split(",")[0]
    found: dict[tuple[str, int], Any] = {}
    with trio.fail_after(240):
        client = await WireClient.connect(f"kafka://{first}")
        await _until_made(client)
        at = {"any": first, "leader": await _leader(client), "coordinator": await _coordinator(client)}
        offered = await _offered(client)
        clients = {who: await WireClient.connect(f"kafka://{where}") for who, where in at.items()}
        for title, who, api, version, asked in script(now_ms):
            if version not in offered.get(api, ()):
                continue
            try:
                told = await clients[who].ask(api, version, asked)
            except EOFError:
                found[title, version] = "hangs up"
                clients[who] = await WireClient.connect(f"kafka://{at[who]}")
            else:
                found[title, version] = normal(told, api, version)
        for each in (client, *clients.values()):
            await each.stream.aclose()
    return found


async def _offered(client: WireClient) -> dict[int, range]:
    """Versions by API."""
    named = message("ApiVersionsRequest")(client_software_name="differential", client_software_version="1")
    told = await client.ask(Api.API_VERSIONS, 3, named)
    return {each.api_key: range(each.min_version, each.max_version + 1) for each in told.api_keys}


async def _until_made(client: WireClient) -> None:
    while True:
        told = await client.ask(Api.CREATE_TOPICS, 5, _create("t"))
        if told.topics[0].error_code in (0, 36):
            return
        await trio.sleep(0.2)


async def _leader(client: WireClient) -> str:
    Metadata = message("MetadataRequest")
    asked = Metadata(topics=[Metadata.MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
    while True:
        told = await client.ask(Api.METADATA, 9, asked)
        known = {each.node_id: each for each in told.brokers}
        parts = told.topics[0].partitions
        if parts and parts[0].leader_id in known and len(parts[0].isr_nodes) == 3:
            leader = known[parts[0].leader_id]
            return f"{leader.host}:{leader.port}"
        await trio.sleep(0.1)


async def _coordinator(client: WireClient) -> str:
    asked = message("FindCoordinatorRequest")(key="nobody", key_type=0)
    while True:
        told = await client.ask(Api.FIND_COORDINATOR, 2, asked)
        if told.error_code == 0:
            return f"{told.host}:{told.port}"
        await trio.sleep(0.1)


def normal(told: Any, api: Api, version: int) -> Any:
    """An answer as plain values, without what is masked."""
    if isinstance(told, list):
        return [normal(each, api, version) for each in told]
    if isinstance(told, Struct):
        return {name: normal(getattr(told, name), api, version) for name in told.NAMES if name not in MASKED}
    return list(told) if isinstance(told, tuple) else told


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The names of the fields that differ, with both values."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name, mine in ours.items():
            yield from differences(mine, theirs[name], name)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for mine, other in zip(ours, theirs, strict=True):
            yield from differences(mine, other, path)
    elif ours != theirs:
        yield path, ours, theirs


def compare(
    ours: dict[tuple[str, int], Any], theirs: dict[tuple[str, int], Any]
) -> tuple[list[str], set[str]]:
    """What differs though nothing allows it, and what is allowed and was met."""
    wrong, met = [], set()
    for (title, version), mine in ours.items():
        if (title, version) not in theirs:
            continue  # a version that the other has not
        for name, here, there in differences(mine, theirs[title, version]):
            key = f"{title}: {name}"
            if key in ALLOWED:
                met.add(key)
            else:
                wrong.append(f"{key} (version {version}): ours {str(here)[:200]}, Kafka's {str(there)[:200]}")
    return wrong, met


def run(java: Java, place: Path) -> tuple[int, list[str]]:
    """How many answers were compared, and what is wrong."""
    now_ms = time.time_ns() // 1_000_000
    with running_cluster() as cluster, brokers(java, place, heap="384m") as kafka:
        ours = trio.run(answers, cluster.servers, now_ms)
        theirs = trio.run(answers, kafka.servers, now_ms)
        count, wrong_in_jobs = trio.run(jobs, cluster.servers, kafka.servers)
    wrong, met = compare(ours, theirs)
    gone = [f"{each}: allowed, and not met any more" for each in sorted(ALLOWED.keys() - met)]
    return len(ours) + count, wrong + gone + wrong_in_jobs


def main() -> int:
    """1 if anything differs that may not."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop.differential", description=__doc__)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--clients", action="store_true", help="what real clients tell their programs")
    options = parser.parse_args()
    java = Java(resolve(POM, online=True))
    with tempfile.TemporaryDirectory(prefix="insync-differential-") as place:
        count, wrong = run_clients(java, Path(place)) if options.clients else run(java, Path(place))
    allowed = len(CLIENTS_ALLOWED if options.clients else {**ALLOWED, **ANSWERS_ALLOWED})
    what = "events" if options.clients else "answers"
    print(f"{count} {what} compared, {allowed} differ as they may")
    print("\n".join(wrong) or "nothing differs that may not")
    if options.json:
        print(json.dumps({what: count, "allowed": allowed, "wrong": wrong}))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
