"""The view of the metadata store, updated by deltas, so that the cost of a change does not depend on the store's
size.

An unreadable value is reported once, and the previous value stays valid until it is corrected: a record that only
seems to be gone could cost a partition its leader, or its log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec
from msgspec import structs

from ...control import records as rec
from ...control.view import ClusterView
from ...store_transaction import Seen
from ...types import PartitionId


class Spoilt(msgspec.Struct, frozen=True, kw_only=True):
    """A value that is not a record of its key; `kept`: whether the previous value stays in its place."""

    key: str
    problem: str
    kept: bool


class Viewing:
    """Turns readings of the store into views. Nothing else writes to the tables of a view.

    `revision` is that of the last reading, None before the first; the next reading may start there.
    """

    def __init__(self) -> None:
        self.revision: int | None = None
        self.view = ClusterView()
        self._seen: dict[str, Seen] = {}
        """The last reading of each key, with its last valid record."""

    def known(self, key: str) -> Seen | None:
        """The last reading of a key, so that an equal value need not be decoded again."""
        return self._seen.get(key)

    def whole(self, revision: int, seen: Collection[Seen]) -> list[Spoilt]:
        """Take a reading of all keys; keys outside it are deleted."""
        there = {each.key for each in seen}
        gone = [key for key in self._seen if key not in there]
        return self._update(revision, seen, gone, since=-1)

    def changed(self, revision: int, seen: Collection[Seen], deleted: Iterable[str]) -> list[Spoilt]:
        """Take the changes since an earlier reading; they may include older changes."""
        assert self.revision is not None and revision >= self.revision
        return self._update(revision, seen, deleted, since=self.revision)

    def _update(
        self, revision: int, seen: Collection[Seen], deleted: Iterable[str], since: int
    ) -> list[Spoilt]:
        view = self.view
        nodes, topics, versions = dict(view.nodes), dict(view.topics), dict(view.topic_versions)
        quotas, users, unreadable = dict(view.quotas), dict(view.users), set(view.unreadable)
        buried = dict(view.deleted)
        partitions: dict[PartitionId, rec.Versioned | None] = {}
        spoilt: list[Spoilt] = []
        for key in deleted:
            former = self._seen.pop(key, None)
            unreadable.discard(key)
            match former.record if former is not None else None:
                case rec.NodeRecord(node_id=node_id):
                    del nodes[node_id]
                case rec.TopicRecord(name=name):
                    del topics[name], versions[name]
                case rec.PartitionRecord() as gone:
                    partitions[gone.id] = None
                case rec.DeletedTopicRecord(topic_id=topic_id):
                    del buried[topic_id]
                case rec.QuotaRecord():
                    del quotas[key]
                case rec.UserRecord(name=name):
                    del users[name]
        for each in seen:
            former = self._seen.get(each.key)
            if former is not None and (former.value, former.version) == (each.value, each.version):
                continue
            problem = each.problem or _problem(each.key, each.record)
            if problem:
                kept = former.record if former is not None else None
                spoilt.append(Spoilt(key=each.key, problem=problem, kept=kept is not None))
                unreadable.add(each.key)
                # Store its value and version, so that it is reported once; the view does not change.
                self._seen[each.key] = structs.replace(each, record=kept, problem=problem)
                continue
            unreadable.discard(each.key)
            self._seen[each.key] = each
            match each.record:
                case rec.NodeRecord() as node:
                    nodes[node.node_id] = node
                case rec.TopicRecord() as topic:
                    topics[topic.name] = topic
                    versions[topic.name] = each.version
                case rec.PartitionRecord() as partition:
                    partitions[partition.id] = rec.Versioned(partition, each.version)
                case rec.DeletedTopicRecord() as topic_gone:
                    buried[topic_gone.topic_id] = topic_gone, each.version
                case rec.QuotaRecord() as quota:
                    quotas[each.key] = quota, each.version
                case rec.UserRecord() as user:
                    users[user.name] = user, each.version
        self.revision = revision
        cluster, controller, epoch = map(
            self._seen.get, (rec.CLUSTER_KEY, rec.CONTROLLER_KEY, rec.CONTROLLER_EPOCH_KEY)
        )
        self.view = ClusterView(
            revision=revision,
            since=since,
            changed=None if since < 0 else frozenset(partitions),
            cluster_id=cluster.record.cluster_id
            if cluster is not None and isinstance(cluster.record, rec.ClusterRecord)
            else "",
            nodes=view.nodes if nodes == view.nodes else nodes,
            topics=view.topics if versions == view.topic_versions and topics == view.topics else topics,
            topic_versions=versions,
            partitions=_with(view.partitions, partitions) if partitions else view.partitions,
            deleted=view.deleted if buried == view.deleted else buried,
            controller=controller.record
            if controller is not None and isinstance(controller.record, rec.ControllerRecord)
            else None,
            controller_epoch=epoch.record.controller_epoch
            if epoch is not None and isinstance(epoch.record, rec.EpochRecord)
            else 0,
            controller_epoch_version=(view.controller_epoch_version if epoch.problem else epoch.version)
            if epoch is not None and epoch.record is not None
            else 0,
            quotas=view.quotas if quotas == view.quotas else quotas,
            users=view.users if users == view.users else users,
            secret=cluster.record.secret
            if cluster is not None and isinstance(cluster.record, rec.ClusterRecord)
            else "",
            unreadable=frozenset(unreadable),
        )
        return spoilt


def _with(
    known: Mapping[PartitionId, rec.Versioned], changed: Mapping[PartitionId, rec.Versioned | None]
) -> dict[PartitionId, rec.Versioned]:
    """A changed copy of a table: holders of the previous view must not see it change."""
    partitions = dict(known)
    for partition, versioned in changed.items():
        if versioned is None:
            partitions.pop(partition, None)
        else:
            partitions[partition] = versioned
    return partitions


def _problem(key: str, record: object) -> str:
    """The problem of a decoded record; empty if it is valid."""
    match record:
        case rec.NodeRecord():
            right = rec.node_key(record.node_id)
        case rec.TopicRecord():
            right = rec.topic_key(record.name)
        case rec.PartitionRecord():
            right = rec.partition_key(record.id)
            if not record.target or len(set(record.replicas)) < len(record.replicas):
                return f"its replicas {list(record.replicas)} are empty, or name a node twice"
        case rec.DeletedTopicRecord():
            right = rec.deleted_key(record.topic_id)
        case rec.QuotaRecord():
            right = rec.quota_key(record.entity_type, record.name)
        case rec.UserRecord():
            right = rec.user_key(record.name)
        case _:
            return ""
    return "" if key == right else f"it is the record of {right}"
