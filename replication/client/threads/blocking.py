"""Producer, consumer and admin for code without trio: scripts and threads. (asyncio: `insync.replication.asyncio`.)

Each runs its trio client in a daemon thread of its own. All methods may be called from any thread; errors are
raised in the caller. `close` comes back within its timeout, also after a KeyboardInterrupt. Clients that are
open at a fork belong to the parent: open new ones in the child process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...core.messages import ActiveProducer, NodeInfo, QuotaInfo
from ...core.messages.transactions import TransactionDescription, TransactionListing
from ...core.types import PartitionId, Value
from .. import _arguments as given
from .._settings import ClientSettings, make_settings
from ..admin import Admin, ClusterInfo, Elections, NodeReport, Reassignment, TopicInfo
from ..admin._groups import GroupDescription, GroupListing, ResetTo
from ..admin._operations import EntityType, NodeChanges, NodeHealth
from ..admin._transactions import HANGS_AFTER_MS, HangingTransaction
from ..errors import ServerError
from ._client import BlockingClient, client_portal
from ._consumer import BlockingConsumer
from ._producer import BlockingDeliveries, BlockingDelivery, BlockingProducer
from ._users import BlockingUserAdmin

__all__ = [
    "BlockingAdmin",
    "BlockingConsumer",
    "BlockingDeliveries",
    "BlockingDelivery",
    "BlockingProducer",
    "client_portal",
]


class BlockingAdmin(BlockingClient[Admin], BlockingUserAdmin):
    """`Admin` for code without trio.

    Args:
      bootstrap_servers: URLs of some nodes, as a list or comma separated; `host:port` means tcp.
      settings: All settings at once; or give single ones as keywords (fields of `ClientSettings`).

    Raises:
      InvalidSettingError: A setting that does not exist, or cannot be.
      BootstrapError: No node could be reached.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        settings: ClientSettings | None = None,
        **options: Any,
    ) -> None:
        settings = make_settings(ClientSettings, options, settings)
        super().__init__(client_portal(lambda: Admin(bootstrap_servers, settings=settings)))

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, Value] | None = None,
        *,
        exist_ok: bool = False,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> str:
        """See `Admin.create_topic`."""
        return self._portal.call(
            lambda: self._held.create_topic(
                name,
                partitions,
                replication_factor,
                config,
                exist_ok=exist_ok,
                assignments=assignments,
                validate_only=validate_only,
            )
        )

    def wait_for_nodes(self, count: int, timeout: float | None = None) -> list[NodeInfo]:
        """See `Admin.wait_for_nodes`; `TimeoutError` after `timeout` seconds."""
        return self._portal.call(lambda: self._held.wait_for_nodes(count), given.timeout(timeout))

    def delete_topic(self, name: str) -> None:
        """See `Admin.delete_topic`."""
        self._portal.call(lambda: self._held.delete_topic(name))

    def create_partitions(
        self,
        name: str,
        partitions: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """See `Admin.create_partitions`."""
        self._portal.call(
            lambda: self._held.create_partitions(
                name, partitions, assignments=assignments, validate_only=validate_only
            )
        )

    def alter_config(
        self, name: str, config: Mapping[str, Value] | None = None, *, reset: Iterable[str] = ()
    ) -> None:
        """See `Admin.alter_config`."""
        self._portal.call(lambda: self._held.alter_config(name, config, reset=reset))

    def describe_config(self, name: str) -> dict[str, Value]:
        """See `Admin.describe_config`."""
        return self._portal.call(lambda: self._held.describe_config(name))

    def delete_records(
        self, offsets: Mapping[tuple[str, int], int], *, timeout_ms: int | None = None
    ) -> dict[tuple[str, int], int]:
        """See `Admin.delete_records`."""
        return self._portal.call(lambda: self._held.delete_records(offsets, timeout_ms=timeout_ms))

    def read_index(self, partitions: Iterable[tuple[str, int]]) -> dict[PartitionId, int]:
        """See `Admin.read_index`."""
        return self._portal.call(lambda: self._held.read_index(partitions))

    def committed_offsets(self, group: str) -> dict[PartitionId, int]:
        """See `Admin.committed_offsets`."""
        return self._portal.call(lambda: self._held.committed_offsets(group))

    def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], *, if_absent: bool = False
    ) -> dict[PartitionId, int]:
        """See `Admin.commit_offsets`."""
        return self._portal.call(lambda: self._held.commit_offsets(group, offsets, if_absent=if_absent))

    def forget_offsets(self, group: str) -> None:
        """See `Admin.forget_offsets`."""
        self._portal.call(lambda: self._held.forget_offsets(group))

    def forget_producers(self, prefix: str) -> None:
        """See `Admin.forget_producers`."""
        self._portal.call(lambda: self._held.forget_producers(prefix))

    def list_topics(self) -> list[str]:
        """See `Admin.list_topics`."""
        return self._portal.call(self._held.list_topics)

    def describe_topics(self, names: Sequence[str] | None = None) -> list[TopicInfo]:
        """See `Admin.describe_topics`."""
        return self._portal.call(lambda: self._held.describe_topics(names))

    def describe_cluster(self) -> ClusterInfo:
        """See `Admin.describe_cluster`."""
        return self._portal.call(self._held.describe_cluster)

    def describe_replicas(
        self, topics: Sequence[str] | None = None, *, timeout_ms: int = 5000
    ) -> list[NodeReport]:
        """See `Admin.describe_replicas`."""
        return self._portal.call(lambda: self._held.describe_replicas(topics, timeout_ms=timeout_ms))

    def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> Elections:
        """See `Admin.elect_leaders`."""
        return self._portal.call(lambda: self._held.elect_leaders(partitions, unclean=unclean))

    def reassign_partitions(
        self, replicas: Mapping[tuple[str, int], Sequence[int] | None], *, check_room: bool = True
    ) -> dict[tuple[str, int], ServerError | None]:
        """See `Admin.reassign_partitions`."""
        return self._portal.call(lambda: self._held.reassign_partitions(replicas, check_room=check_room))

    def list_partition_reassignments(
        self, topics: Iterable[str] | None = None
    ) -> dict[tuple[str, int], Reassignment]:
        """See `Admin.list_partition_reassignments`."""
        return self._portal.call(lambda: self._held.list_partition_reassignments(topics))

    def plan_drain(self, node: int) -> dict[tuple[str, int], list[int]]:
        """See `Admin.plan_drain`."""
        return self._portal.call(lambda: self._held.plan_drain(node))

    def plan_reassignment(
        self, topic: str, nodes: Sequence[int], replication_factor: int | None = None
    ) -> dict[tuple[str, int], list[int]]:
        """See `Admin.plan_reassignment`."""
        return self._portal.call(lambda: self._held.plan_reassignment(topic, nodes, replication_factor))

    def wait_for_reassignments(
        self, topics: Iterable[str] | None = None, timeout: float | None = None
    ) -> None:
        """See `Admin.wait_for_reassignments`; `TimeoutError` after `timeout` seconds."""
        self._portal.call(lambda: self._held.wait_for_reassignments(topics), given.timeout(timeout))

    def describe_changes(
        self, since: Mapping[int, NodeChanges] | None = None, *, timeout_ms: int = 5000
    ) -> list[NodeChanges]:
        """See `Admin.describe_changes`."""
        return self._portal.call(lambda: self._held.describe_changes(since, timeout_ms=timeout_ms))

    def describe_nodes(self, *, timeout_ms: int = 5000) -> list[NodeHealth]:
        """See `Admin.describe_nodes`."""
        return self._portal.call(lambda: self._held.describe_nodes(timeout_ms=timeout_ms))

    def alter_quotas(
        self,
        entity_type: EntityType,
        name: str = "",
        limits: Mapping[str, int] | None = None,
        *,
        remove: Iterable[str] = (),
    ) -> dict[str, int]:
        """See `Admin.alter_quotas`."""
        return self._portal.call(lambda: self._held.alter_quotas(entity_type, name, limits, remove=remove))

    def list_groups(
        self, states: Iterable[str] | None = None, types: Iterable[str] | None = None
    ) -> list[GroupListing]:
        """See `Admin.list_groups`."""
        return self._portal.call(lambda: self._held.list_groups(states, types))

    def list_transactions(self, states: Iterable[str] | None = None) -> list[TransactionListing]:
        """See `Admin.list_transactions`."""
        return self._portal.call(lambda: self._held.list_transactions(states))

    def describe_producers(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[PartitionId, list[ActiveProducer]]:
        """See `Admin.describe_producers`."""
        return self._portal.call(lambda: self._held.describe_producers(partitions))

    def find_hanging_transactions(
        self, topics: Iterable[str] | None = None, *, longer_than_ms: int = HANGS_AFTER_MS
    ) -> list[HangingTransaction]:
        """See `Admin.find_hanging_transactions`."""
        return self._portal.call(
            lambda: self._held.find_hanging_transactions(topics, longer_than_ms=longer_than_ms)
        )

    def abort_transaction(self, partition: tuple[str, int], start_offset: int) -> None:
        """See `Admin.abort_transaction`."""
        self._portal.call(lambda: self._held.abort_transaction(partition, start_offset))

    def describe_transaction(self, name: str) -> TransactionDescription:
        """See `Admin.describe_transaction`."""
        return self._portal.call(lambda: self._held.describe_transaction(name))

    def describe_groups(self, groups: Iterable[str]) -> list[GroupDescription]:
        """See `Admin.describe_groups`."""
        return self._portal.call(lambda: self._held.describe_groups(groups))

    def group_offsets(self, group: str) -> dict[PartitionId, int]:
        """See `Admin.group_offsets`."""
        return self._portal.call(lambda: self._held.group_offsets(group))

    def set_group_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """See `Admin.set_group_offsets`."""
        self._portal.call(lambda: self._held.set_group_offsets(group, offsets))

    def delete_group_offsets(self, group: str, partitions: Iterable[tuple[str, int]]) -> None:
        """See `Admin.delete_group_offsets`."""
        self._portal.call(lambda: self._held.delete_group_offsets(group, partitions))

    def delete_group(self, group: str) -> None:
        """See `Admin.delete_group`."""
        self._portal.call(lambda: self._held.delete_group(group))

    def plan_group_reset(
        self,
        group: str,
        to: ResetTo,
        amount: int | None = None,
        *,
        partitions: Iterable[tuple[str, int]] | None = None,
    ) -> dict[PartitionId, int]:
        """See `Admin.plan_group_reset`."""
        return self._portal.call(
            lambda: self._held.plan_group_reset(group, to, amount, partitions=partitions)
        )

    def describe_quotas(self) -> list[QuotaInfo]:
        """See `Admin.describe_quotas`."""
        return self._portal.call(self._held.describe_quotas)
