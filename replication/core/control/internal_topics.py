"""Topics in which the cluster keeps state of its own: made when they are needed, and changed by nobody else.

A coordinator leads a partition of such a topic and takes its state from the records there. Anybody else who wrote
to it, or deleted it, would rewrite what others were told.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs
import msgspec
from msgspec import structs

from .. import messages as m
from ..coordination.routing import DEFAULT_PARTITIONS, GROUP_TOPIC, TRANSACTION_TOPIC
from ..errors import ErrorCode
from ..types import Value
from .topics import TopicError
from .view import ClusterView

DECISION_BYTES = 16 << 20
"""A decision of a coordinator is one batch; that of a large group has one record for each member."""
_COMMON: Mapping[str, Value] = {
    "cleanup_policy": "compact",
    "max_message_bytes": DECISION_BYTES,
    "unclean_leader_election": "wait",
}
_FIXED = ("cleanup_policy", "unclean_leader_election")
"""Settings of an internal topic that stay as they are: any other value would lose state."""


class InternalTopic(msgspec.Struct, frozen=True, kw_only=True):
    """How an internal topic is made, by the settings of the node that is controller then. `segment_bytes` in bytes.

    `replication_factor`: as far as there are nodes; the topic is made with fewer, and reports it.
    """

    name: str
    partitions: int = DEFAULT_PARTITIONS
    replication_factor: int = 3
    segment_bytes: int = 100 << 20

    def request(self, asked: m.CreateTopicRequest, view: ClusterView) -> m.CreateTopicRequest:
        """The topic to make on the nodes of `view`; of the settings asked for, a `durability` alone counts."""
        factor = min(self.replication_factor, len(view.staying))
        kept = {name: value for name, value in asked.config.items() if name == "durability"}
        config = {**self.config(factor), **kept}
        return structs.replace(asked, partitions=self.partitions, replication_factor=factor, config=config)

    def config(self, factor: int) -> dict[str, Value]:
        """Its settings with `factor` replicas of each partition."""
        return {
            **_COMMON,
            "segment_bytes": self.segment_bytes,
            "min_insync_replicas": max(1, factor - 1),
        }


GROUPS = InternalTopic(name=GROUP_TOPIC)
TRANSACTIONS = InternalTopic(name=TRANSACTION_TOPIC)
STANDARD: Mapping[str, InternalTopic] = MappingProxyType({each.name: each for each in (GROUPS, TRANSACTIONS)})
"""Those that this release knows, with Kafka's defaults, by name. A node's registration says which of them it can
coordinate; a release that knows another topic adds it here.
"""


def able(name: str, view: ClusterView) -> ClusterView:
    """The view with those nodes alone that can coordinate an internal topic.

    Raises:
      TopicError: There are none.
    """
    nodes = {node: record for node, record in view.nodes.items() if name in record.coordinates}
    found = attrs.evolve(view, nodes=nodes)
    if not found.staying:
        raise TopicError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"no living node can coordinate {name!r}: upgrade the nodes, which run an earlier release",
        )
    return found


def check_change(
    name: str, request: m.DeleteTopicRequest | m.CreatePartitionsRequest | m.AlterConfigRequest
) -> None:
    """Raises `TopicError` for operations that are not allowed on an internal topic."""
    match request:
        case m.DeleteTopicRequest():
            problem = "deleting it would lose the state that it stores"
        case m.CreatePartitionsRequest():
            problem = "another number of partitions would change the coordinator of every key"
        case m.AlterConfigRequest():
            changed = sorted({*request.config, *request.reset} & {*_FIXED})
            if not changed:
                return
            problem = f"{', '.join(changed)} must not change, or the state that the topic stores is lost"
    raise TopicError(ErrorCode.POLICY_VIOLATION, f"topic {name!r} is internal: {problem}")


def refusal_of_produce(name: str) -> str:
    """The error text for a client that writes to an internal topic."""
    return f"topic {name!r} is internal: only coordinators write to it; send records to another topic"
