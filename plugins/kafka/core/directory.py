"""The cluster as Kafka's clients see it from one listener: brokers, topics by name and by id."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from insync.replication.core.control.records import NodeRecord, TopicRecord
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode
from insync.transport import URL, split_host_port

from .encoded_topics import EncodedTopics

NAME = "name"
"""The option of a listener's URL that says which listeners belong together; by default the scheme does."""
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

LISTED = 10.0
"""Seconds for which metadata goes on listing a node that died, as Kafka lists a broker until its session ends.
librdkafka (2.16) that hears in one answer that a partition has another leader and that the former one is not there
any more leaves the partition without a leader for a second.
"""


class Broker(NamedTuple):
    """A node with a listener of the same name."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Directory:
    """The cluster, as the view tells clients of the listeners named `name`. Looked up, never stored longer
    than the view that it is made from.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: in seconds."""
        self.name = name
        self._clock = clock
        self._departed: dict[int, tuple[float, Broker]] = {}
        """Those that died, with the time until which they are listed."""
        self.encoded = EncodedTopics()
        self._brokers: dict[NodeRecord, Broker | None] = {}
        self._nodes: Mapping[int, NodeRecord] | None = None
        self._found: dict[int, Broker] = {}
        self._topics: Mapping[str, TopicRecord] | None = None
        self._by_id: dict[bytes, str] = {}

    def brokers(self, view: ClusterView) -> dict[int, Broker]:
        """By node id, in their order."""
        if self._nodes is not view.nodes:
            known = self._brokers
            self._brokers = {
                record: known[record] if record in known else _broker(record, self.name)
                for record in view.nodes.values()
            }
            found = sorted(each for each in self._brokers.values() if each is not None)
            before, self._found = self._found, {each.node_id: each for each in found}
            self._note_departures(before, view.nodes)
            self._nodes = view.nodes
        return self._found

    def listed(self, view: ClusterView) -> Sequence[Broker]:
        """The brokers of a metadata answer: also those that died a moment ago. Kept up to date by `brokers`."""
        here = self.brokers(view)
        if not self._departed:
            return list(here.values())
        now = self._clock()
        self._departed = {node: each for node, each in self._departed.items() if now < each[0]}
        return sorted([*here.values(), *(broker for _, broker in self._departed.values())])

    def _note_departures(self, before: Mapping[int, Broker], nodes: Mapping[int, NodeRecord]) -> None:
        former = self._nodes or {}
        until = self._clock() + LISTED
        for node, broker in before.items():
            if node not in nodes and not former[node].leaving:
                self._departed[node] = until, broker
        for node in self._departed.keys() & nodes.keys():
            del self._departed[node]

    def name_of(self, view: ClusterView, topic_id: bytes) -> str | None:
        """The topic of an id."""
        if self._topics is not view.topics:
            self._by_id = {id_of(topic): name for name, topic in view.topics.items()}
            self._topics = view.topics
        return self._by_id.get(topic_id)

    def controller(self, view: ClusterView, here: int) -> int:
        """The node named as the controller: one without this listener cannot be, and every node forwards."""
        brokers = self.brokers(view)
        if view.controller is not None and view.controller.node_id in brokers:
            return view.controller.node_id
        return here if here in brokers else next(iter(brokers), -1)


def is_legal(name: str) -> bool:
    """Whether a topic can have this name."""
    return name not in (".", "..") and _LEGAL_NAME.fullmatch(name) is not None


def error_of_absent(name: str, missing: int = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) -> int:
    """The error for a topic that is not there: `missing`, if one could have the name."""
    return missing if is_legal(name) else ErrorCode.INVALID_TOPIC


def id_of(topic: TopicRecord) -> bytes:
    """A topic's id as it stands on the wire."""
    return bytes.fromhex(topic.topic_id)


def listener_name(url: URL) -> str:
    """The name by which listeners belong together."""
    return dict(url.options).get(NAME, url.scheme)


def _broker(record: NodeRecord, name: str) -> Broker | None:
    for text in record.endpoints:
        try:
            url = URL.parse(text)
            if url.scheme.partition("+")[0] == "kafka" and listener_name(url) == name:
                host, port = split_host_port(url)
                return Broker(record.node_id, host, port, record.rack or None)
        except ValueError:
            continue  # of a transport, or of a later version
    return None
