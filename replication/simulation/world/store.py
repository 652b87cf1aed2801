"""The metadata store as a dictionary with versions: sessions, transactions, and readings of any age."""

from __future__ import annotations

import attrs

from ...core.control.records import (
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    DELETED_PREFIX,
    INCARNATIONS_PREFIX,
    NODES_PREFIX,
    PARTITIONS_PREFIX,
    PULSES_PREFIX,
    QUOTAS_PREFIX,
    TOPICS_PREFIX,
    USERS_PREFIX,
    ControllerRecord,
    DeletedTopicRecord,
    EpochRecord,
    IncarnationRecord,
    NodeRecord,
    PartitionRecord,
    PulseRecord,
    QuotaRecord,
    TopicRecord,
    UserRecord,
    Versioned,
    incarnation_key,
    node_key,
    partition_key,
    pulse_key,
)
from ...core.control.view import ClusterView
from ...core.store_transaction import Absent, AtVersion, Compare, SameValue, Seen
from ...core.types import PartitionId

_OF_NODES = {NODES_PREFIX: "nodes", INCARNATIONS_PREFIX: "processes", PULSES_PREFIX: "pulses"}
"""The tables of what nodes say of themselves."""
RACKS = 3
"""The fourth node shares one with the first."""


def after(before: ClusterView, view: ClusterView) -> ClusterView:
    """A view as a reader of deltas has it: what is as it was is the same table, and what differs is named."""
    had = before.partitions.get
    changed = {each for each, now in view.partitions.items() if (was := had(each)) is not now and was != now}
    changed |= before.partitions.keys() - view.partitions.keys()
    return attrs.evolve(
        view,
        since=before.revision,
        changed=frozenset(changed),
        nodes=before.nodes if before.nodes == view.nodes else view.nodes,
        topics=before.topics if before.topics == view.topics else view.topics,
        quotas=before.quotas if before.quotas == view.quotas else view.quotas,
    )


class Store:
    """Records with versions, the sessions of nodes and what they own, and the controller's office.

    `sessions`: by id, the node whose process holds it. Ids are never used again.
    """

    DURABLE = (
        *("topics", "topic_versions", "partitions", "deleted", "quotas", "users", "processes", "pulses"),
        *("controller_epoch", "controller_epoch_version", "_versions", "unknown"),
    )
    """The tables that a backup holds, but for what ends with sessions."""

    def __init__(self) -> None:
        self.is_put_back = False
        """Whether it holds an older state than it had, and nobody has repaired it yet."""
        self.revision = 0
        self.reachable = True
        self.topics: dict[str, TopicRecord] = {}
        self.topic_versions: dict[str, int] = {}
        self.partitions: dict[PartitionId, Versioned] = {}
        self.deleted: dict[str, tuple[DeletedTopicRecord, int]] = {}
        self.quotas: dict[str, tuple[QuotaRecord, int]] = {}
        self.users: dict[str, tuple[UserRecord, int]] = {}
        self.nodes: dict[int, NodeRecord] = {}
        self.processes: dict[int, IncarnationRecord] = {}
        self.pulses: dict[int, PulseRecord] = {}
        self.sessions: dict[int, int] = {}
        self.controller: ControllerRecord | None = None
        self.controller_epoch = 0
        self.controller_epoch_version = 0
        self.unknown: dict[str, int] = {}
        """The value under a key beside the fields that all versions know."""
        self._owners: dict[str, int] = {}
        """The session of each ephemeral key."""
        self._versions: dict[str, int] = {}
        """Of registrations, incarnations and pulses."""
        self._next_session = 0
        self._reading: ClusterView | None = None

    @property
    def live(self) -> dict[int, int]:
        """The incarnation of each node that is registered."""
        return {node: record.incarnation for node, record in self.nodes.items()}

    @property
    def leaving(self) -> set[int]:
        return {node for node, record in self.nodes.items() if record.leaving}

    @property
    def incarnations(self) -> dict[int, int]:
        return {node: record.incarnation for node, record in self.processes.items()}

    def reading(self) -> ClusterView:
        """Everything that it holds now."""
        if self._reading is None or self._reading.revision != self.revision:
            self._reading = ClusterView(
                revision=self.revision,
                nodes=dict(self.nodes),
                topics=dict(self.topics),
                topic_versions=dict(self.topic_versions),
                partitions=dict(self.partitions),
                deleted=dict(self.deleted),
                quotas=dict(self.quotas),
                users=dict(self.users),
                controller=self.controller,
                controller_epoch=self.controller_epoch,
                controller_epoch_version=self.controller_epoch_version,
            )
        return self._reading

    # What stands there

    def seen(self, *keys: str) -> dict[str, Seen]:
        """The records under some keys now."""
        found = {key: self.get(key) for key in keys}
        return {key: each for key, each in found.items() if each is not None}

    def seen_by(self, node: int) -> dict[str, Seen]:
        """The records that a process reads to register."""
        own = (incarnation_key(node), node_key(node), pulse_key(node), CONTROLLER_KEY)
        return self.seen(*own, *map(partition_key, self.partitions))

    def get(self, key: str) -> Seen | None:
        record, version = self._stored(key)
        if record is None:
            return None
        value, session = self._value(key, record), self._owners.get(key)
        return Seen(key=key, record=record, version=version, value=value, session=session)

    def _value(self, key: str, record: object) -> object:
        """The value by which the bytes under a key are to be compared."""
        return (record, self.unknown[key]) if key in self.unknown else record

    def _stored(self, key: str) -> tuple[object | None, int]:
        """The record under a key, and the version of the key."""
        if key == CONTROLLER_KEY:
            return self.controller, 1
        head, slash, name = key.rpartition("/")
        table = _OF_NODES.get(head + slash)
        if table is not None:
            return getattr(self, table).get(int(name)), self._versions.get(key, 0)
        if key.startswith(PARTITIONS_PREFIX):
            known = self.partitions.get(_partition(key))
            return (known.record, known.version) if known is not None else (None, 0)
        if key.startswith(TOPICS_PREFIX):
            name = key.removeprefix(TOPICS_PREFIX)
            return self.topics.get(name), self.topic_versions.get(name, 0)
        if key.startswith(DELETED_PREFIX):
            return self.deleted.get(key.removeprefix(DELETED_PREFIX), (None, 0))
        if key.startswith(USERS_PREFIX):
            return self.users.get(key.removeprefix(USERS_PREFIX), (None, 0))
        return self.quotas.get(key, (None, 0))

    def holds(self, compare: Compare) -> bool:
        if compare.key == CONTROLLER_EPOCH_KEY:
            version = compare.version if isinstance(compare, AtVersion) else 0
            return self.controller_epoch_version == version
        record, version = self._stored(compare.key)
        match compare:
            case Absent():
                return record is None
            case AtVersion():
                return record is not None and version == compare.version
            case SameValue():
                return record is not None and self._value(compare.key, record) == compare.value

    # What is written

    def put_topic(self, record: TopicRecord) -> None:
        self.topics[record.name] = record
        self.topic_versions[record.name] = self.topic_versions.get(record.name, 0) + 1

    def put_partition(self, record: PartitionRecord) -> int:
        known = self.partitions.get(record.id)
        version = known.version + 1 if known is not None else 1
        self.revision += 1
        self.partitions[record.id] = Versioned(record, version)
        return version

    def put_of_node(
        self, key: str, record: NodeRecord | IncarnationRecord | PulseRecord, session: int | None
    ) -> None:
        """Put a process's registration, incarnation or pulse."""
        match record:
            case NodeRecord():
                self.nodes[record.node_id] = record
                assert session is not None
                self._owners[key] = session
            case IncarnationRecord():
                self.processes[record.node_id] = record
            case PulseRecord():
                self.pulses[record.node_id] = record
        self._versions[key] = self._versions.get(key, 0) + 1

    def put_deleted(self, record: DeletedTopicRecord) -> None:
        """Under a key that is written once."""
        self.deleted[record.topic_id] = record, 1

    def put_quota(self, key: str, record: QuotaRecord) -> None:
        self.quotas[key] = record, self.quotas.get(key, (None, 0))[1] + 1

    def put_user(self, record: UserRecord) -> None:
        self.users[record.name] = record, self.users.get(record.name, (None, 0))[1] + 1

    def put_controller_epoch(self, record: EpochRecord) -> None:
        self.controller_epoch = record.controller_epoch
        self.controller_epoch_version += 1

    def put_controller(self, record: ControllerRecord, session: int | None) -> None:
        self.controller = record
        assert session is not None
        self._owners[CONTROLLER_KEY] = session

    def drop(self, key: str) -> None:
        """A record of the same key that comes later begins with version 1 again, as in the weakest of stores."""
        self._owners.pop(key, None)
        if key == CONTROLLER_KEY:
            self.controller = None
        elif key.startswith(NODES_PREFIX):
            del self.nodes[int(key.removeprefix(NODES_PREFIX))]
            del self._versions[key]
        elif key.startswith(PARTITIONS_PREFIX):
            self.revision += 1
            del self.partitions[_partition(key)]
        elif key.startswith(TOPICS_PREFIX):
            name = key.removeprefix(TOPICS_PREFIX)
            del self.topics[name], self.topic_versions[name]
        elif key.startswith(DELETED_PREFIX):
            del self.deleted[key.removeprefix(DELETED_PREFIX)]
        elif key.startswith(QUOTAS_PREFIX):
            del self.quotas[key]
        elif key.startswith(USERS_PREFIX):
            del self.users[key.removeprefix(USERS_PREFIX)]

    # Sessions

    def forget_sessions(self) -> None:
        """They end, and with them the registrations and the controller's office."""
        self.sessions.clear()
        self.nodes.clear()
        self._owners.clear()
        self.controller = None
        self._reading = None

    def open_session(self, node: int) -> int:
        self._next_session += 1
        self.sessions[self._next_session] = node
        return self._next_session

    def owner(self, key: str) -> int | None:
        """The session of an ephemeral key."""
        return self._owners.get(key)

    def end_session(self, session: int) -> None:
        """It ends, and with it what it owns."""
        del self.sessions[session]
        for key in [key for key, owner in self._owners.items() if owner == session]:
            self.drop(key)
        self.revision += 1


def _partition(key: str) -> PartitionId:
    topic, _, number = key.removeprefix(PARTITIONS_PREFIX).rpartition("/")
    return PartitionId(topic, int(number))
