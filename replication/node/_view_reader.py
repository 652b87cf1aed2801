"""What the metadata store holds, as records; what is no such record ends nobody."""

from __future__ import annotations

import logging

import attrs

from .. import metadata as store_api
from .. import wire
from ..core.control import records as rec
from ..core.control.view import ClusterView
from ..core.types import PartitionId
from ..metadata import Entry

log = logging.getLogger("insync.node")


@attrs.frozen
class Known:
    """A value that was read, and the last good record of its key with the version that this one had."""

    entry: Entry
    record: object | None
    version: int
    is_good: bool


class ViewReader:
    """Turns listings of the store into views; a record is decoded once for each of its versions.

    A value that cannot be read is told of once, and what was there before is held to be true until it is mended:
    a record that merely seems to be gone could cost a partition its leader, or its log.
    """

    def __init__(self) -> None:
        self._decoded: dict[str, Known] = {}

    def read(self, listing: store_api.Listing) -> ClusterView:
        fresh: dict[str, Known] = {}
        nodes: dict[int, rec.NodeRecord] = {}
        topics: dict[str, rec.TopicRecord] = {}
        topic_versions: dict[str, int] = {}
        partitions: dict[PartitionId, rec.Versioned] = {}
        quotas: dict[str, tuple[rec.QuotaRecord, int]] = {}
        single: dict[str, object] = {}
        unreadable = set()
        for key, entry in listing.entries.items():
            cls = _record_class(key)
            if cls is None:
                continue
            known = fresh[key] = self._decode(cls, key, entry)
            if not known.is_good:
                unreadable.add(key)
            match record := known.record:
                case rec.NodeRecord():
                    nodes[record.node_id] = record
                case rec.TopicRecord():
                    topics[record.name] = record
                    topic_versions[record.name] = known.version
                case rec.PartitionRecord():
                    partitions[record.id] = rec.Versioned(record, known.version)
                case rec.QuotaRecord():
                    quotas[key] = record, known.version
                case None:
                    continue
                case _:
                    single[key] = record
        self._decoded = fresh
        cluster = single.get(rec.CLUSTER_KEY)
        controller = single.get(rec.CONTROLLER_KEY)
        epoch = single.get(rec.CONTROLLER_EPOCH_KEY)
        return ClusterView(
            revision=listing.revision,
            cluster_id=cluster.cluster_id if isinstance(cluster, rec.ClusterRecord) else "",
            nodes=nodes,
            topics=topics,
            topic_versions=topic_versions,
            partitions=partitions,
            controller=controller if isinstance(controller, rec.ControllerRecord) else None,
            controller_epoch=epoch.controller_epoch if isinstance(epoch, rec.EpochRecord) else 0,
            controller_epoch_version=fresh[rec.CONTROLLER_EPOCH_KEY].version if epoch is not None else 0,
            quotas=quotas,
            unreadable=frozenset(unreadable),
        )

    def _decode(self, cls: type, key: str, entry: Entry) -> Known:
        known = self._decoded.get(key)
        if known is not None and known.entry == entry:
            return known
        try:
            record: object = wire.decode_record(cls, entry.value)
            problem = _problem(key, record)
        except wire.WireError as error:
            problem = str(error)
        if not problem:
            return Known(entry, record, entry.version, True)
        kept, version = (known.record, known.version) if known is not None else (None, 0)
        log.error(
            "%s in the metadata store cannot be read and is %s until it is mended: %s",
            key,
            "left out" if kept is None else "taken for what it was before",
            problem,
        )
        return Known(entry, kept, version, False)


def _problem(key: str, record: object) -> str:
    """What is wrong with a record that could be decoded; empty if nothing is."""
    match record:
        case rec.NodeRecord():
            right = rec.node_key(record.node_id)
        case rec.TopicRecord():
            right = rec.topic_key(record.name)
        case rec.PartitionRecord():
            right = rec.partition_key(record.id)
            if not record.target or len(set(record.replicas)) < len(record.replicas):
                return f"its replicas {list(record.replicas)} are none, or not each named once"
        case rec.QuotaRecord():
            right = rec.quota_key(record.entity_type, record.name)
        case _:
            return ""
    return "" if key == right else f"it is the record of {right}"


def _record_class(key: str) -> type | None:
    if key.startswith(rec.NODES_PREFIX):
        return rec.NodeRecord
    if key.startswith(rec.TOPICS_PREFIX):
        return rec.TopicRecord
    if key.startswith(rec.PARTITIONS_PREFIX):
        return rec.PartitionRecord
    if key.startswith(rec.QUOTAS_PREFIX):
        return rec.QuotaRecord
    return {
        rec.CLUSTER_KEY: rec.ClusterRecord,
        rec.CONTROLLER_KEY: rec.ControllerRecord,
        rec.CONTROLLER_EPOCH_KEY: rec.EpochRecord,
    }.get(key)
