"""The admin client: topics, partitions, groups, transactions, users, and how nodes are."""

from .admin import (
    Admin,
    ChangeInfo,
    ClusterInfo,
    Elections,
    FollowerInfo,
    HealthCheck,
    NodeChanges,
    NodeHealth,
    NodeInfo,
    NodeReport,
    PartitionInfo,
    Reassignment,
    ReplicaInfo,
    TopicInfo,
)

__all__ = [
    "Admin",
    "ChangeInfo",
    "ClusterInfo",
    "Elections",
    "FollowerInfo",
    "HealthCheck",
    "NodeChanges",
    "NodeHealth",
    "NodeInfo",
    "NodeReport",
    "PartitionInfo",
    "Reassignment",
    "ReplicaInfo",
    "TopicInfo",
]
