"""The records that a metadata store needs for logs that were copied out of Kafka's folders.

Kafka's own metadata says which topics there are, how they are set and who was in sync; the copies say how far each
log goes. Of the replicas that Kafka would let lead the one with the most complete log may lead, and those whose
logs are the same to the last record are in sync with it. The first election begins a leader epoch above all that
Kafka's records name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import structs

from ..control import records as rec
from ..control.internal_topics import DECISION_BYTES, STANDARD
from ..control.topics import TopicError, check_name, parse_config
from ..coordination.routing import TRANSACTION_TOPIC
from ..kafka.metadata import KafkaMetadata, KafkaMetadataError, KafkaPartition, KafkaTopic, inherited
from ..store_transaction import Absent, Compare, Put
from ..types import NO_LEADER, PartitionId, Value
from .repair import FoundFolder, FoundLog, processes, producer_ids

_FIELDS = {name.replace("_", "."): name for name in (field.name for field in structs.fields(rec.TopicConfig))}
_UNCLEAN = "unclean.leader.election.enable"
_FLUSH = "flush.messages"
_WITHOUT_EFFECT = frozenset(
    {
        "compression.type", "compression.gzip.level", "compression.lz4.level", "compression.zstd.level",
        "flush.ms", "index.interval.bytes", "segment.index.bytes", "segment.jitter.ms",
        "preallocate",
        "message.timestamp.after.max.ms", "message.timestamp.before.max.ms", "message.timestamp.difference.max.ms",
        "message.format.version", "message.downconversion.enable", "local.retention.ms", "local.retention.bytes",
        "remote.log.copy.disable", "remote.log.delete.on.disable", "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas", "internal.segment.bytes",
    }
)  # fmt: skip
"""Settings that say nothing of which records there are, nor for how long."""
_AS_PRODUCED = ("compression.type", "producer")
"""A setting, and the value that it always has here."""
_KAFKA_MIN_ISR = 1
_SHOWN = 20
STOP_AGAIN = "start Kafka, let that end, and stop it cleanly"


class AdoptionError(Exception):
    """Kafka's folders cannot be adopted as they are. `problems`: all that stands against it, with the remedies."""

    def __init__(self, problems: Sequence[str]) -> None:
        more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        super().__init__("; ".join([*problems[:_SHOWN], *more]))
        self.problems = tuple(problems)


class OpenTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction whose marker is not in a log. `transactional_id`: where the coordinator's log tells it."""

    topic: str
    partition: int
    producer_id: int = -1
    transactional_id: str = ""


class AdoptedFolder(msgspec.Struct, frozen=True, kw_only=True):
    """One folder of a broker's, and what else a plan goes by.

    source: the folder of Kafka's. metadata: None if it has no copy of the metadata log. settings: those of the
    broker's file (`server.properties`).
    """

    source: str
    folder: FoundFolder
    metadata: KafkaMetadata | None
    open_transactions: tuple[OpenTransaction, ...]
    settings: dict[str, str]


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """The records to write into an empty store.

    identity: last, by itself: a store without it belongs to no cluster, and no node starts on it.
    without_effect: settings of topics that nothing here goes by, `topic: name=value`.
    """

    writes: tuple[tuple[Compare, Put], ...]
    identity: tuple[Compare, Put]
    leaders: Mapping[PartitionId, tuple[int, ...]]
    topics: Mapping[str, rec.TopicRecord]
    without_effect: tuple[str, ...]


def latest(found: Sequence[KafkaMetadata]) -> KafkaMetadata:
    """Of several copies the one that goes furthest.

    Raises:
      AdoptionError: There is none.
    """
    if not found:
        raise AdoptionError(
            ["no folder holds __cluster_metadata-0: name the one of metadata.log.dir with --metadata"]
        )
    return max(found, key=lambda each: each.position)


def compacts(
    metadata: KafkaMetadata, settings: Mapping[str, str], topic: str, formerly: Sequence[str]
) -> bool:
    """Whether offsets may be missing from the logs of a topic. formerly: topics that were compacted once.

    Raises:
      AdoptionError: A setting of the broker cannot be read.
    """
    own = next((each.config for each in metadata.topics if each.name == topic), {})
    policy = {**_inherited(metadata, settings), **own}.get("cleanup.policy", "delete")
    return "compact" in policy or topic in formerly


def plan(folders: Sequence[AdoptedFolder], secret: str, formerly: Sequence[str] = ()) -> Adoption:
    """The records that the store needs, so that nodes may start on copies of these folders.

    secret: of the new cluster's nodes.

    Raises:
      AdoptionError: Something is missing, does not belong together, or is under way.
    """
    metadata = latest([each.metadata for each in folders if each.metadata is not None])
    problems = _strangers(folders)
    settings = folders[0].settings
    logs: dict[PartitionId, dict[int, FoundLog]] = defaultdict(dict)
    known = {topic.name: topic for topic in metadata.topics}
    for each in folders:
        for log in each.folder.logs:
            partition = PartitionId(log.topic, log.partition)
            problem = _stray(known.get(log.topic), log, each.folder.node_id)
            if problem:
                problems.append(f"{each.source} holds {partition}, {problem}")
            elif each.folder.node_id in logs[partition]:
                problems.append(
                    f"two folders of broker {each.folder.node_id} hold {partition}: name each folder once"
                )
            logs[partition][each.folder.node_id] = log
    if problems:
        raise AdoptionError(problems)
    writes: list[tuple[Compare, Put]] = []

    def write(key: str, record: object) -> None:
        writes.append((Absent(key), Put(key, record)))

    leaders: dict[PartitionId, tuple[int, ...]] = {}
    topics: dict[str, rec.TopicRecord] = {}
    without_effect: list[str] = []
    nodes = {each.folder.node_id for each in folders}
    for name, topic in known.items():
        try:
            record, ignored = _topic(topic, _inherited(metadata, settings), name in formerly)
        except AdoptionError as error:
            problems += error.problems
            continue
        topics[name] = record
        without_effect += ignored
        write(rec.topic_key(name), record)
        for number, kafka in topic.partitions.items():
            partition = PartitionId(name, number)
            held = logs.get(partition, {})
            found = _partition(partition, record, kafka, held, nodes, problems)
            if found is not None:
                leaders[partition] = found.isr
                write(rec.partition_key(partition), found)
    problems += _under_way(folders, leaders)
    if problems:
        raise AdoptionError(problems)
    own = [each.folder for each in folders]
    first = FoundLog(
        topic="", partition=0, topic_id="", log_start_offset=0, log_end_offset=0, epochs=(),
        next_producer_id=metadata.next_producer_id,
    )  # fmt: skip
    producer_ids([{0: first}, *logs.values()], {}, write)
    processes(own, {}, write)
    cluster = rec.ClusterRecord(cluster_id=own[0].cluster_id, secret=secret)
    return Adoption(
        writes=tuple(writes),
        identity=(Absent(rec.CLUSTER_KEY), Put(rec.CLUSTER_KEY, cluster)),
        leaders=leaders,
        topics=topics,
        without_effect=tuple(without_effect),
    )


def _strangers(folders: Sequence[AdoptedFolder]) -> list[str]:
    """Folders that do not belong together."""
    problems = []
    clusters = sorted({each.folder.cluster_id for each in folders})
    if len(clusters) > 1:
        problems.append(f"the folders are of several clusters: {', '.join(clusters)}")
    ids = [each.folder.directory_id for each in folders if each.folder.directory_id]
    problems += [
        f"directory {each} was given twice, or is there as a copy: name each folder once"
        for each in sorted(set(ids))
        if ids.count(each) > 1
    ]
    try:
        told = [inherited(each.settings) for each in folders]
    except KafkaMetadataError as error:
        return [*problems, str(error)]
    for name in sorted({name for each in told for name in each}):
        values = {each.get(name) for each in told}
        if len(values) > 1:
            problems.append(
                f"the brokers' files give topics different settings for {name} ({', '.join(map(str, values))}): "
                "set it for the topics in Kafka (kafka-configs), then alike in the files"
            )
    return problems


def _inherited(metadata: KafkaMetadata, settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of topics that do not say otherwise: by the file, and over it what was set for all brokers."""
    try:
        found = {**inherited(settings), **inherited(metadata.broker_config)}
        for node, own in metadata.own_config.items():
            for name in inherited(own):
                raise AdoptionError(
                    [
                        f"broker {node} has a setting of its own that topics inherit as {name}: remove it "
                        "(kafka-configs --entity-type brokers --delete-config), or set it for all brokers"
                    ]
                )
    except KafkaMetadataError as error:
        raise AdoptionError([str(error)]) from error
    return found


def _stray(topic: KafkaTopic | None, log: FoundLog, node: int) -> str:
    """Why a log is not one that Kafka would use; empty if it is."""
    remedy = "start Kafka once, which sets it aside, and stop it cleanly"
    if topic is None or topic.topic_id != log.topic_id:
        return f"whose topic id {log.topic_id} the cluster's metadata does not know: {remedy}"
    partition = topic.partitions.get(log.partition)
    if partition is None or node not in partition.replicas:
        return f"of which broker {node} is no replica: {remedy}"
    return ""


def _topic(
    topic: KafkaTopic, settings: Mapping[str, str], was_compacted: bool
) -> tuple[rec.TopicRecord, list[str]]:
    """The topic as it is here, and what of its settings has no effect."""
    problems: list[str] = []
    ignored: list[str] = []
    found: dict[str, Value] = {}
    for name, text in {**settings, **topic.config}.items():
        if name == "message.timestamp.type" and text != "CreateTime":
            problems.append(
                f"topic {topic.name} has {name}={text}, and records keep their own time here: set "
                "CreateTime (kafka-configs)"
            )
        elif name == "remote.storage.enable" and text.lower() == "true":
            problems.append(
                f"topic {topic.name} has {name}=true: what lies in tiered storage is not in these folders; "
                "copy the topic with MirrorMaker, or to a topic without it, and delete it"
            )
        elif name == _UNCLEAN:
            found["unclean_leader_election"] = "any" if text.lower() == "true" else "wait"
        elif name == _FLUSH and text.strip() == "1":
            found["durability"] = "flushed"
        elif name in _FIELDS:
            found[_FIELDS[name]] = ",".join(each.strip() for each in text.split(","))
        elif name in _WITHOUT_EFFECT or name == _FLUSH:
            if topic.name not in STANDARD and (name, text) != _AS_PRODUCED:
                ignored.append(f"{topic.name}: {name}={text}")
        elif name not in ("message.timestamp.type", "remote.storage.enable"):
            problems.append(
                f"topic {topic.name} has {name}={text}, which topics here do not have: delete that setting in Kafka"
            )
    try:
        check_name(topic.name)
        config = parse_config({"min_insync_replicas": _KAFKA_MIN_ISR, **found})
    except TopicError as error:
        problems.append(f"topic {topic.name}: {error.message}; change that in Kafka (kafka-configs)")
    if problems:
        raise AdoptionError(problems)
    factor = max((len(each.replicas) for each in topic.partitions.values()), default=1)
    config = structs.replace(config, min_insync_replicas=min(config.min_insync_replicas, factor))
    if topic.name in STANDARD:
        # What its coordinators rely on, whatever Kafka's brokers were set to.
        config = structs.replace(
            config,
            cleanup_policy="compact",
            unclean_leader_election="wait",
            max_message_bytes=max(config.max_message_bytes, DECISION_BYTES),
        )
    record = rec.TopicRecord(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=len(topic.partitions),
        replication_factor=factor,
        config=config,
        was_compacted=config.compacts or was_compacted,
    )
    return record, ignored


def _partition(
    partition: PartitionId,
    topic: rec.TopicRecord,
    kafka: KafkaPartition,
    held: Mapping[int, FoundLog],
    nodes: set[int],
    problems: list[str],
) -> rec.PartitionRecord | None:
    """Nobody leads yet; those may be elected whose logs are alike and that Kafka takes for complete."""
    if kafka.adding or kafka.removing:
        problems.append(
            f"{partition} is being reassigned (from {kafka.removing}, to {kafka.adding}): {STOP_AGAIN} "
            "(kafka-reassign-partitions --verify, or --cancel)"
        )
        return None
    absent = [node for node in kafka.replicas if node not in nodes]
    if absent:
        problems.append(
            f"{partition} has replicas on brokers {', '.join(map(str, absent))}, whose folders were not "
            "given: give those of all brokers, or move the replicas away in Kafka first"
        )
        return None
    complete = kafka.isr or kafka.elr
    committed = max((each.committed for each in held.values()), default=(-1, 0))
    able = [node for node in complete if node in held and held[node].has(committed)]
    if not able:
        problems.append(
            f"{partition} has no log of a replica in sync ({', '.join(map(str, complete)) or 'nobody is'}) with "
            f"all that is committed: {STOP_AGAIN}"
        )
        return None
    best = max(able, key=lambda node: (*held[node].completeness, -node))
    alike = tuple(
        node
        for node in kafka.replicas
        if node in held and held[node].completeness == held[best].completeness and held[node].has(committed)
    )
    return rec.PartitionRecord(
        topic=partition.topic,
        partition=partition.partition,
        topic_id=topic.topic_id,
        replicas=kafka.replicas,
        isr=alike,
        leader=NO_LEADER,
        leader_epoch=max(kafka.leader_epoch, *(each.latest_epoch for each in held.values())),
        min_insync_replicas=topic.config.min_insync_replicas,
    )


def _under_way(folders: Sequence[AdoptedFolder], leaders: Mapping[PartitionId, tuple[int, ...]]) -> list[str]:
    """Transactions that have not ended, in logs that may lead."""
    found = set()
    for each in folders:
        for open_ in each.open_transactions:
            if each.folder.node_id in leaders.get(PartitionId(open_.topic, open_.partition), ()):
                found.add(open_)
    problems = []
    for open_ in sorted(found, key=lambda each: (each.topic, each.partition, each.producer_id)):
        where = f"{open_.topic}-{open_.partition}"
        if open_.topic == TRANSACTION_TOPIC and open_.transactional_id:
            problems.append(
                f"the transaction of {open_.transactional_id!r} has not ended ({where}): {STOP_AGAIN}"
            )
        else:
            problems.append(
                f"{where} holds an open transaction of producer {open_.producer_id}: {STOP_AGAIN} "
                "(kafka-transactions find-hanging shows those that never will, and abort ends them)"
            )
    return problems
