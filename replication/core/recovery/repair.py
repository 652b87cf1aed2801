"""The records for a metadata store that was put back to an older state, or lost: what the nodes' folders say.

The nodes are stopped. Their folders hold what the store has forgotten: which processes there have been, which
leader epochs, which topics, and who has the most of each partition. Every epoch that is written here is greater
than any that was in use, so nothing that the older store once said can come true again.

Of each partition the most complete log leads: by last leader epoch, then by end, among those that have what the
folders know to be committed. The last epoch alone does not tell: a leader that was replaced before anybody copied
what it wrote has records of its epoch, and those that led after it and wrote nothing have none of theirs. The
folders do not know who was in sync, so nobody else is taken for it.

Logs with the same last epoch and end are the same log, and the one that has deleted most of it leads: else what a
client was told is deleted would come back. A log that holds more than those that have deleted leads before
them: whether what it has more is committed the folders do not say, and a lost record is worse than one too many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec import structs

from ..control import records as rec
from ..control.elections import WAIT
from ..control.internal_topics import STANDARD
from ..control.topics import parse_config
from ..control.transitions import EPOCHS_SKIPPED
from ..store_transaction import Absent, AtVersion, Compare, Put, Seen
from ..types import NO_LEADER, PartitionId

LEAP = 10 * EPOCHS_SKIPPED
"""A leader that died before it had written anything has left no trace of its epoch in any log, and there may have
been several, some by unclean elections: clients may still name their epochs. The folders' signs of life come on
top, because elections are no more frequent. They are counted from the epochs that the store had when the nodes came
in, which their folders know: among them are those of a repair before this one, which the store may have forgotten
with all else."""

_Write = Callable[[str, object], None]


class FoundLog(msgspec.Struct, frozen=True, kw_only=True):
    """One partition's log in one folder.

    epochs: each leader epoch that it knows of, and where that begins, in order; the first covers what is deleted.
    high_watermark: the last that was checkpointed; what lies below is committed.
    next_producer_id: the first id above those of all producers that it knows.
    may_skip: offsets may be missing from it, because it was compacted.
    """

    topic: str
    partition: int
    topic_id: str
    log_start_offset: int
    log_end_offset: int
    epochs: tuple[tuple[int, int], ...]
    high_watermark: int = 0
    next_producer_id: int = 0
    may_skip: bool = False

    @property
    def latest_epoch(self) -> int:
        return max((epoch for epoch, _ in self.epochs), default=0)

    @property
    def last_epoch(self) -> int:
        """Leader epoch of its last record, -1 if there has been none. An epoch that begins at the end has no record
        yet; but where everything is deleted, the last one's epoch stands there.
        """
        is_deleted = 0 < self.log_start_offset == self.log_end_offset
        ends = self.log_end_offset + is_deleted
        return max((epoch for epoch, at in self.epochs if at < ends), default=-1)

    @property
    def completeness(self) -> tuple[int, int]:
        return self.last_epoch, self.log_end_offset

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of the record there; -1 if there is none."""
        if offset >= self.log_end_offset:
            return -1
        first = self.epochs[0][0] if self.epochs else -1
        return max((epoch for epoch, start in self.epochs if start <= offset), default=first)

    @property
    def committed(self) -> tuple[int, int]:
        """Leader epoch and end of what it knows to be committed; (-1, 0) if that is nothing, or if all of it is
        deleted: the epoch of a record that is gone is not known.
        """
        end = min(self.high_watermark, self.log_end_offset)
        return (self.epoch_at(end - 1), end) if end > self.log_start_offset else (-1, 0)

    def has(self, committed: tuple[int, int]) -> bool:
        """Whether what another log knows to be committed is here: the same epoch at one offset, the same up to it
        (the log matching property). Records that are deleted here were committed.
        """
        epoch, end = committed
        return end <= self.log_start_offset or self.epoch_at(end - 1) == epoch

    def may_have(self, other: FoundLog) -> bool:
        """Whether what another log has deleted, which was committed, can be what is here: the last record of it is
        of the first epoch that the other knows or of an older one.
        """
        end = other.log_start_offset
        if end <= self.log_start_offset:
            return True
        return end <= self.log_end_offset and self.epoch_at(end - 1) <= other.epochs[0][0]


class FoundFolder(msgspec.Struct, frozen=True, kw_only=True):
    """One log directory of a node that is stopped. `incarnation`, `pulse`, `revision` and `leader_epoch` are those
    of its proof.
    """

    cluster_id: str
    node_id: int
    directory_id: str
    boot_id: str
    stopped_clean: int | None
    incarnation: int
    pulse: int
    revision: int
    leader_epoch: int = 0
    logs: tuple[FoundLog, ...]


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """The records to write, in this order, and the findings for the operator.

    floor: the revision above which the store's must be raised when all is written.
    topics_found: topics that the store had forgotten; they have default settings, and are kept for ever.
    missing: nodes that have replicas by the store, and of which no folder was given.
    """

    writes: tuple[tuple[Compare, Put], ...]
    floor: int
    leaders: Mapping[PartitionId, int]
    topics_found: tuple[str, ...]
    without_log: tuple[PartitionId, ...]
    missing: tuple[int, ...]


class RepairError(Exception):
    """The folders and the store do not belong together."""


def plan(folders: Sequence[FoundFolder], seen: Mapping[str, Seen]) -> Repair:
    """The records that the store needs, so that the nodes of these folders may use it.

    Raises:
      RepairError: No folder was given, one is given twice, or they are of several clusters.
    """
    cluster_id = _cluster_of(folders, seen)
    writes: list[tuple[Compare, Put]] = []

    def write(key: str, record: object) -> None:
        known = seen.get(key)
        compare: Compare = Absent(key) if known is None else AtVersion(key, known.version)
        writes.append((compare, Put(key, record)))

    if rec.CLUSTER_KEY not in seen:
        write(rec.CLUSTER_KEY, rec.ClusterRecord(cluster_id=cluster_id))
    buried = {
        each.record.topic_id for each in seen.values() if isinstance(each.record, rec.DeletedTopicRecord)
    }
    logs: dict[tuple[PartitionId, str], dict[int, FoundLog]] = defaultdict(dict)
    for folder in folders:
        for each in folder.logs:
            if each.topic_id not in buried:
                logs[PartitionId(each.topic, each.partition), each.topic_id][folder.node_id] = each
    topics, found = _topics(logs, seen)
    for topic in topics.values():
        key = rec.topic_key(topic.name)
        known = seen.get(key)
        if known is None or known.record != topic:
            write(key, topic)
    leaders: dict[PartitionId, int] = {}
    leap = LEAP + max(folder.pulse for folder in folders)
    known_epoch = max(folder.leader_epoch for folder in folders)
    without = []
    needed: set[int] = set()
    for topic in topics.values():
        for index in range(topic.partitions):
            partition = PartitionId(topic.name, index)
            known = seen.get(rec.partition_key(partition))
            record = known.record if known is not None else None
            if not isinstance(record, rec.PartitionRecord) or record.topic_id != topic.topic_id:
                record = None
            held = logs.get((partition, topic.topic_id), {})
            after = _partition(topic, partition, record, held, known_epoch, leap)
            needed.update(after.replicas)
            if not held:
                without.append(partition)
            else:
                (leaders[partition],) = after.isr
            write(rec.partition_key(partition), after)
    for key, known in seen.items():
        stale = known.record
        if (
            isinstance(stale, rec.PartitionRecord)
            and stale.topic in topics
            and stale.partition >= topics[stale.topic].partitions
        ):
            writes.append((AtVersion(key, known.version), Put(key, None)))
    producer_ids(logs.values(), seen, write)
    # Last: until then every node that is started by mistake finds a store that is older than it knows.
    processes(folders, seen, write)
    return Repair(
        writes=tuple(writes),
        floor=max(folder.revision for folder in folders),
        leaders=leaders,
        topics_found=tuple(found),
        without_log=tuple(without),
        missing=tuple(sorted(needed - {folder.node_id for folder in folders})),
    )


def _cluster_of(folders: Sequence[FoundFolder], seen: Mapping[str, Seen]) -> str:
    clusters = {folder.cluster_id for folder in folders}
    stored = seen.get(rec.CLUSTER_KEY)
    if stored is not None and isinstance(stored.record, rec.ClusterRecord):
        clusters.add(stored.record.cluster_id)
    if not folders:
        raise RepairError("no log directory given: pass those of all nodes")
    if len(clusters) > 1:
        raise RepairError(
            f"the folders and the store belong to different clusters: {', '.join(sorted(clusters))}"
        )
    ids = [folder.directory_id for folder in folders]
    for each in ids:
        if ids.count(each) > 1:
            raise RepairError(
                f"log directory {each} was given twice, or one is a copy of the other: name each once"
            )
    return clusters.pop()


def processes(folders: Sequence[FoundFolder], seen: Mapping[str, Seen], write: _Write) -> None:
    """The next process of each node takes its folders for whole: what they hold has been looked at."""
    by_node: dict[int, list[FoundFolder]] = defaultdict(list)
    for folder in folders:
        by_node[folder.node_id].append(folder)
    for node, own in by_node.items():
        key = rec.incarnation_key(node)
        stored = seen.get(key)
        known = stored.record if stored is not None else None
        incarnation = max(
            *(folder.incarnation for folder in own),
            known.incarnation if isinstance(known, rec.IncarnationRecord) else 0,
        )
        proofs = tuple(
            rec.DirectoryProof(
                directory_id=folder.directory_id,
                incarnation=incarnation if folder.stopped_clean is None else folder.stopped_clean,
                boot_id=folder.boot_id,
            )
            for folder in own
        )
        write(key, rec.IncarnationRecord(node_id=node, incarnation=incarnation, directories=proofs))
        pulses = {folder.directory_id: folder.pulse for folder in own}
        write(rec.pulse_key(node), rec.PulseRecord(node_id=node, pulses=pulses))


def _topics(
    logs: Mapping[tuple[PartitionId, str], Mapping[int, FoundLog]], seen: Mapping[str, Seen]
) -> tuple[dict[str, rec.TopicRecord], list[str]]:
    """All topics as they have to be, and the names of those that the store had forgotten.

    No folder says how those were set: see `_settings`. A topic that has grown since has its new size.

    Raises:
      RepairError: Folders hold logs of two topics of one name.
    """
    sizes: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for (partition, topic_id), held in logs.items():
        count, factor = sizes[partition.topic].get(topic_id, (0, 0))
        sizes[partition.topic][topic_id] = max(count, partition.partition + 1), max(factor, len(held))
    topics = {
        known.record.name: known.record
        for known in seen.values()
        if isinstance(known.record, rec.TopicRecord)
    }
    skipping = {
        topic_id for (_, topic_id), held in logs.items() if any(each.may_skip for each in held.values())
    }
    found = []
    for name, by_id in sorted(sizes.items()):
        if len(by_id) > 1:
            raise RepairError(
                f"the folders hold logs of two topics named {name} (ids {', '.join(sorted(by_id))}): move the "
                "folders of the deleted topic aside"
            )
        ((topic_id, (count, factor)),) = by_id.items()
        known = topics.get(name)
        if known is not None and known.topic_id == topic_id:
            topics[name] = structs.replace(
                known,
                partitions=max(known.partitions, count),
                was_compacted=known.was_compacted or topic_id in skipping,
            )
            continue
        found.append(name)
        config = _settings(name, factor)
        topics[name] = rec.TopicRecord(
            name=name,
            topic_id=topic_id,
            partitions=count,
            replication_factor=factor,
            config=config,
            was_compacted=config.compacts or topic_id in skipping,
        )
    return topics, found


def _settings(name: str, factor: int) -> rec.TopicConfig:
    """Settings of a topic that the store had forgotten: nothing is deleted until an operator sets how much may be.

    With the default retention the first leader would delete all records of more than a week at once, of a compacted
    topic too. Of an internal topic they would be the cluster's own state, and nobody may set it otherwise.
    """
    internal = STANDARD.get(name)
    if internal is not None:
        return parse_config(internal.config(factor))
    return rec.TopicConfig(
        min_insync_replicas=min(factor, rec.TopicConfig().min_insync_replicas), retention_ms=-1
    )


def deleted_without_epoch(
    topic: rec.TopicRecord, before: rec.PartitionRecord | None, logs: Iterable[FoundLog]
) -> int:
    """The offset below which everything was committed by the word of logs that know no epoch.

    After a start a log is such whose records are all deleted, as only committed ones are. A log that ends below
    lacks some of them, unless an unclean election has begun it again since: where records may have been written
    after one, this is 0. A repair counts as one, because folders may have been left out of it, but until somebody
    writes again it changes nothing.
    """
    unclean = before.unclean_epoch if before is not None else -1
    logs = list(logs)
    if topic.config.unclean_leader_election != WAIT or any(log.last_epoch >= unclean >= 0 for log in logs):
        return 0
    return max((log.log_start_offset for log in logs if log.last_epoch < 0), default=0)


def most_complete(held: Mapping[int, FoundLog], deleted: int) -> int:
    """The node whose log leads, of those given by node; NO_LEADER if there is none.

    deleted: offset below which everything was committed, whatever the logs know.
    """
    committed = max((each.committed for each in held.values()), default=(-1, 0))
    complete = {
        node: log for node, log in held.items() if log.has(committed) and log.log_end_offset >= deleted
    }
    # A deletion in an epoch before that of the last committed record proves nothing more: a log with that record
    # also has, or has deleted, everything that was committed before it.
    tellers = [log for log in held.values() if log.epochs and log.epochs[0][0] >= committed[0]]
    agree = {node: log for node, log in complete.items() if all(map(log.may_have, tellers))}
    complete = agree or complete
    best = max(complete, key=lambda node: (*_rank(complete[node]), -node), default=NO_LEADER)
    if complete and complete[best].log_end_offset == deleted:
        # Everything committed is deleted, so any of these logs is complete, even one that is empty and knows no
        # epoch; the one that has deleted the most leads.
        level = {node: log for node, log in complete.items() if log.log_end_offset == deleted}
        best = max(level, key=lambda node: (level[node].log_start_offset, *level[node].completeness, -node))
    return best


def _rank(log: FoundLog) -> tuple[int, int, int]:
    """The more complete one first; of logs that are the same the one that has deleted more."""
    return *log.completeness, log.log_start_offset


def _partition(
    topic: rec.TopicRecord,
    partition: PartitionId,
    before: rec.PartitionRecord | None,
    held: Mapping[int, FoundLog],
    known_epoch: int,
    leap: int,
) -> rec.PartitionRecord:
    """Nobody leads yet, in an epoch that has never been; the most complete log alone may be elected."""
    deleted = deleted_without_epoch(topic, before, held.values())
    best = most_complete(held, deleted)
    replicas = before.replicas if before is not None else ()
    if best not in replicas:
        # It was moved, or made, after the backup.
        ordered = sorted(held, key=lambda node: held[node].completeness, reverse=True)
        replicas = tuple(ordered) or replicas
    epochs = [each.latest_epoch for each in held.values()]
    leader_epoch = leap + max([*epochs, known_epoch, before.leader_epoch if before is not None else 0])
    return rec.PartitionRecord(
        topic=partition.topic,
        partition=partition.partition,
        topic_id=topic.topic_id,
        replicas=replicas,
        isr=(best,) if held else (before.isr if before is not None else ()),
        leader=NO_LEADER,
        leader_epoch=leader_epoch,
        # If a folder was left out, what only it had is lost, as in an unclean election: the operator has decided.
        unclean_epoch=leader_epoch,
        partition_epoch=1 + (before.partition_epoch if before is not None else 0),
        controller_epoch=before.controller_epoch if before is not None else 0,
        min_insync_replicas=topic.config.min_insync_replicas,
    )


def producer_ids(logs: Iterable[Mapping[int, FoundLog]], seen: Mapping[str, Seen], write: _Write) -> None:
    """No id is given to a second producer."""
    known = seen.get(rec.PRODUCER_IDS_KEY)
    first = known.record.next_producer_id if known and isinstance(known.record, rec.ProducerIdsRecord) else 0
    found = max((each.next_producer_id for held in logs for each in held.values()), default=0)
    if found > first:
        write(rec.PRODUCER_IDS_KEY, rec.ProducerIdsRecord(next_producer_id=found))
