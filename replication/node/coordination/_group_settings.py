"""The settings of a node that are about groups, as its coordinators take them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from ...core.control.internal_topics import GROUPS, STANDARD, TRANSACTIONS, InternalTopic
from ...core.groups.moves import MigrationPolicy
from ...core.groups.settings import GroupSettings
from ...core.transactions.shard import TransactionSettings
from ..errors import InvalidSettingError
from ._assignors import assignor

if TYPE_CHECKING:
    from ..settings import NodeSettings

MIGRATION_POLICIES = tuple(policy.value for policy in MigrationPolicy)
MAX_METADATA = 32_767
"""Bytes of a text in the records of `__consumer_offsets`, whose length has 16 bits."""


def group_settings(settings: NodeSettings) -> GroupSettings:
    """The settings that a coordinator goes by."""
    return GroupSettings(
        consumer_session_timeout_ms=settings.group_consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
        consumer_max_size=settings.group_consumer_max_size,
        consumer_assignors=tuple(assignor(name) for name in settings.group_consumer_assignors),
        consumer_migration_policy=settings.group_consumer_migration_policy,
        min_session_timeout_ms=settings.group_min_session_timeout_ms,
        max_session_timeout_ms=settings.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
        max_size=settings.group_max_size,
        offset_metadata_max_bytes=settings.offset_metadata_max_bytes,
        offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
        offsets_retention_check_interval_ms=settings.offsets_retention_check_interval_ms,
        isolation_timeout_ms=settings.coordinator_isolation_timeout_ms,
    )


def internal_topics(settings: NodeSettings) -> dict[str, InternalTopic]:
    """How this node makes internal topics when it is controller, by name."""
    groups = structs.replace(
        GROUPS,
        partitions=settings.offsets_topic_num_partitions,
        replication_factor=settings.offsets_topic_replication_factor,
        segment_bytes=settings.offsets_topic_segment_bytes,
    )
    transactions = structs.replace(
        TRANSACTIONS,
        partitions=settings.transaction_state_log_num_partitions,
        replication_factor=settings.transaction_state_log_replication_factor,
        segment_bytes=settings.transaction_state_log_segment_bytes,
    )
    return {**STANDARD, groups.name: groups, transactions.name: transactions}


def transaction_settings(settings: NodeSettings) -> TransactionSettings:
    """The settings that a coordinator of transactions goes by."""
    return TransactionSettings(
        max_timeout_ms=settings.transaction_max_timeout_ms,
        expiration_ms=settings.transactional_id_expiration_ms,
        abort_interval_ms=settings.transaction_abort_timed_out_transaction_cleanup_interval_ms,
        expire_interval_ms=settings.transaction_remove_expired_transaction_cleanup_interval_ms,
    )


def check_groups(settings: NodeSettings) -> None:
    """Raises `InvalidSettingError` for what cannot work together."""
    session, interval = (
        settings.group_consumer_session_timeout_ms,
        settings.group_consumer_heartbeat_interval_ms,
    )
    if interval >= session:
        raise InvalidSettingError(
            f"group_consumer_heartbeat_interval_ms={interval} must be below "
            f"group_consumer_session_timeout_ms={session}: members would be removed between two heartbeats"
        )
    least, most = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
    if least > most:
        raise InvalidSettingError(
            f"group_min_session_timeout_ms={least} must not be above group_max_session_timeout_ms={most}"
        )
    if settings.offset_metadata_max_bytes > MAX_METADATA:
        raise InvalidSettingError(
            f"offset_metadata_max_bytes={settings.offset_metadata_max_bytes}: use at most {MAX_METADATA}"
        )
