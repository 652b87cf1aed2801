"""The admin client for asyncio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..client import Admin as TrioAdmin
from ..client import ClientSettings, ClusterInfo, Elections, NodeReport, Reassignment, ServerError
from ..client._settings import make_settings
from ..client.admin import TopicInfo
from ..client.admin._groups import GroupDescription, GroupListing, ResetTo
from ..client.admin._operations import EntityType, NodeChanges, NodeHealth
from ..client.admin._transactions import HANGS_AFTER_MS, HangingTransaction
from ..client.threads.blocking import client_portal
from ..core.messages import ActiveProducer, NodeInfo, QuotaInfo
from ..core.messages.transactions import TransactionDescription, TransactionListing
from ..core.types import PartitionId, Value
from ._user_admin import UserAdmin


class Admin(UserAdmin):
    """`insync.replication.Admin` for asyncio, with the same methods.

    Args:
      bootstrap_servers: URLs of some nodes, as a list or comma separated; `host:port` means tcp.
      settings: All settings at once; or give single ones as keywords (fields of `ClientSettings`).

    Raises:
      InvalidSettingError: A setting that does not exist, or cannot be.
      BootstrapError: On entering the block: no node could be reached.

    A call that is cancelled may have been carried out nevertheless.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        settings: ClientSettings | None = None,
        **options: Any,
    ) -> None:
        settings = make_settings(ClientSettings, options, settings)
        super().__init__(lambda: client_portal(lambda: TrioAdmin(bootstrap_servers, settings=settings)))

    async def create_topic(
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
        """See `insync.replication.Admin.create_topic`."""
        return await self._call(
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

    async def wait_for_nodes(self, count: int) -> list[NodeInfo]:
        """See `insync.replication.Admin.wait_for_nodes`."""
        return await self._call(lambda: self._held.wait_for_nodes(count))

    async def delete_topic(self, name: str) -> None:
        """See `insync.replication.Admin.delete_topic`."""
        await self._call(lambda: self._held.delete_topic(name))

    async def create_partitions(
        self,
        name: str,
        partitions: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """See `insync.replication.Admin.create_partitions`."""
        await self._call(
            lambda: self._held.create_partitions(
                name, partitions, assignments=assignments, validate_only=validate_only
            )
        )

    async def alter_config(
        self, name: str, config: Mapping[str, Value] | None = None, *, reset: Iterable[str] = ()
    ) -> None:
        """See `insync.replication.Admin.alter_config`."""
        await self._call(lambda: self._held.alter_config(name, config, reset=reset))

    async def describe_config(self, name: str) -> dict[str, Value]:
        """See `insync.replication.Admin.describe_config`."""
        return await self._call(lambda: self._held.describe_config(name))

    async def delete_records(
        self, offsets: Mapping[tuple[str, int], int], *, timeout_ms: int | None = None
    ) -> dict[tuple[str, int], int]:
        """See `insync.replication.Admin.delete_records`."""
        return await self._call(lambda: self._held.delete_records(offsets, timeout_ms=timeout_ms))

    async def read_index(self, partitions: Iterable[tuple[str, int]]) -> dict[PartitionId, int]:
        """See `insync.replication.Admin.read_index`."""
        return await self._call(lambda: self._held.read_index(partitions))

    async def committed_offsets(self, group: str) -> dict[PartitionId, int]:
        """See `insync.replication.Admin.committed_offsets`."""
        return await self._call(lambda: self._held.committed_offsets(group))

    async def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], *, if_absent: bool = False
    ) -> dict[PartitionId, int]:
        """See `insync.replication.Admin.commit_offsets`."""
        return await self._call(lambda: self._held.commit_offsets(group, offsets, if_absent=if_absent))

    async def forget_offsets(self, group: str) -> None:
        """See `insync.replication.Admin.forget_offsets`."""
        await self._call(lambda: self._held.forget_offsets(group))

    async def forget_producers(self, prefix: str) -> None:
        """See `insync.replication.Admin.forget_producers`."""
        await self._call(lambda: self._held.forget_producers(prefix))

    async def list_topics(self) -> list[str]:
        """See `insync.replication.Admin.list_topics`."""
        return await self._call(self._held.list_topics)

    async def describe_topics(self, names: Sequence[str] | None = None) -> list[TopicInfo]:
        """See `insync.replication.Admin.describe_topics`."""
        return await self._call(lambda: self._held.describe_topics(names))

    async def describe_cluster(self) -> ClusterInfo:
        """See `insync.replication.Admin.describe_cluster`."""
        return await self._call(self._held.describe_cluster)

    async def describe_replicas(
        self, topics: Sequence[str] | None = None, *, timeout_ms: int = 5000
    ) -> list[NodeReport]:
        """See `insync.replication.Admin.describe_replicas`."""
        return await self._call(lambda: self._held.describe_replicas(topics, timeout_ms=timeout_ms))

    async def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> Elections:
        """See `insync.replication.Admin.elect_leaders`."""
        return await self._call(lambda: self._held.elect_leaders(partitions, unclean=unclean))

    async def reassign_partitions(
        self, replicas: Mapping[tuple[str, int], Sequence[int] | None], *, check_room: bool = True
    ) -> dict[tuple[str, int], ServerError | None]:
        """See `insync.replication.Admin.reassign_partitions`."""
        return await self._call(lambda: self._held.reassign_partitions(replicas, check_room=check_room))

    async def list_partition_reassignments(
        self, topics: Iterable[str] | None = None
    ) -> dict[tuple[str, int], Reassignment]:
        """See `insync.replication.Admin.list_partition_reassignments`."""
        return await self._call(lambda: self._held.list_partition_reassignments(topics))

    async def plan_drain(self, node: int) -> dict[tuple[str, int], list[int]]:
        """See `insync.replication.Admin.plan_drain`."""
        return await self._call(lambda: self._held.plan_drain(node))

    async def plan_reassignment(
        self, topic: str, nodes: Sequence[int], replication_factor: int | None = None
    ) -> dict[tuple[str, int], list[int]]:
        """See `insync.replication.Admin.plan_reassignment`."""
        return await self._call(lambda: self._held.plan_reassignment(topic, nodes, replication_factor))

    async def wait_for_reassignments(self, topics: Iterable[str] | None = None) -> None:
        """See `insync.replication.Admin.wait_for_reassignments`."""
        await self._call(lambda: self._held.wait_for_reassignments(topics))

    async def describe_changes(
        self, since: Mapping[int, NodeChanges] | None = None, *, timeout_ms: int = 5000
    ) -> list[NodeChanges]:
        """See `insync.replication.Admin.describe_changes`."""
        return await self._call(lambda: self._held.describe_changes(since, timeout_ms=timeout_ms))

    async def describe_nodes(self, *, timeout_ms: int = 5000) -> list[NodeHealth]:
        """See `insync.replication.Admin.describe_nodes`."""
        return await self._call(lambda: self._held.describe_nodes(timeout_ms=timeout_ms))

    async def alter_quotas(
        self,
        entity_type: EntityType,
        name: str = "",
        limits: Mapping[str, int] | None = None,
        *,
        remove: Iterable[str] = (),
    ) -> dict[str, int]:
        """See `insync.replication.Admin.alter_quotas`."""
        return await self._call(lambda: self._held.alter_quotas(entity_type, name, limits, remove=remove))

    async def list_groups(
        self, states: Iterable[str] | None = None, types: Iterable[str] | None = None
    ) -> list[GroupListing]:
        """All groups, by name; those of certain states or types."""
        return await self._call(lambda: self._held.list_groups(states, types))

    async def list_transactions(self, states: Iterable[str] | None = None) -> list[TransactionListing]:
        """All transactional ids, by name; those in certain states."""
        return await self._call(lambda: self._held.list_transactions(states))

    async def describe_transaction(self, name: str) -> TransactionDescription:
        """The state of a transactional id at its coordinator."""
        return await self._call(lambda: self._held.describe_transaction(name))

    async def describe_producers(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[PartitionId, list[ActiveProducer]]:
        """The producers that the leader of each partition knows, those with an open transaction first."""
        return await self._call(lambda: self._held.describe_producers(partitions))

    async def find_hanging_transactions(
        self, topics: Iterable[str] | None = None, *, longer_than_ms: int = HANGS_AFTER_MS
    ) -> list[HangingTransaction]:
        """Transactions that are open in a partition without a coordinator that will end them."""
        return await self._call(
            lambda: self._held.find_hanging_transactions(topics, longer_than_ms=longer_than_ms)
        )

    async def abort_transaction(self, partition: tuple[str, int], start_offset: int) -> None:
        """End a transaction that hangs in a partition: its records never count there."""
        await self._call(lambda: self._held.abort_transaction(partition, start_offset))

    async def describe_groups(self, groups: Iterable[str]) -> list[GroupDescription]:
        """Members, committed offsets and lag of these groups."""
        return await self._call(lambda: self._held.describe_groups(groups))

    async def group_offsets(self, group: str) -> dict[PartitionId, int]:
        """A group's committed offsets."""
        return await self._call(lambda: self._held.group_offsets(group))

    async def set_group_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets for a group that has no members."""
        await self._call(lambda: self._held.set_group_offsets(group, offsets))

    async def delete_group_offsets(self, group: str, partitions: Iterable[tuple[str, int]]) -> None:
        """Forget what a group has committed of these partitions."""
        await self._call(lambda: self._held.delete_group_offsets(group, partitions))

    async def delete_group(self, group: str) -> None:
        """Delete a group that has no members, with all that it has committed."""
        await self._call(lambda: self._held.delete_group(group))

    async def plan_group_reset(
        self,
        group: str,
        to: ResetTo,
        amount: int | None = None,
        *,
        partitions: Iterable[tuple[str, int]] | None = None,
    ) -> dict[PartitionId, int]:
        """Where a group would go on, for `set_group_offsets`."""
        return await self._call(lambda: self._held.plan_group_reset(group, to, amount, partitions=partitions))

    async def describe_quotas(self) -> list[QuotaInfo]:
        """See `insync.replication.Admin.describe_quotas`."""
        return await self._call(self._held.describe_quotas)
