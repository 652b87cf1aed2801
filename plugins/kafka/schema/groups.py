"""Members of groups, and their offsets: fields, versions, defaults."""

from __future__ import annotations

TABLES = """
OffsetCommitRequest 8 request 2-10 flexible 8+
  group_id string 0+
  generation_id_or_member_epoch int32 1+ = -1
  member_id string 1+
  group_instance_id string 7+ null 7+ = null
  retention_time_ms int64 2-4 = -1
  topics []OffsetCommitRequestTopic 0+
    name string 0-9
    topic_id uuid 10+
    partitions []OffsetCommitRequestPartition 0+
      partition_index int32 0+
      committed_offset int64 0+
      committed_leader_epoch int32 6+ = -1
      committed_metadata string 0+ null 0+

OffsetCommitResponse 8 response 2-10 flexible 8+
  throttle_time_ms int32 3+
  topics []OffsetCommitResponseTopic 0+
    name string 0-9
    topic_id uuid 10+
    partitions []OffsetCommitResponsePartition 0+
      partition_index int32 0+
      error_code int16 0+

OffsetFetchRequest 9 request 1-10 flexible 6+
  group_id string 0-7
  topics []OffsetFetchRequestTopic 0-7 null 2-7
    name string 0-7
    partition_indexes []int32 0-7
  groups []OffsetFetchRequestGroup 8+
    group_id string 8+
    member_id string 9+ null 9+ = null
    member_epoch int32 9+ = -1
    topics []OffsetFetchRequestTopics 8+ null 8+
      name string 8-9
      topic_id uuid 10+
      partition_indexes []int32 8+
  require_stable bool 7+

OffsetFetchResponse 9 response 1-10 flexible 6+
  throttle_time_ms int32 3+
  topics []OffsetFetchResponseTopic 0-7
    name string 0-7
    partitions []OffsetFetchResponsePartition 0-7
      partition_index int32 0-7
      committed_offset int64 0-7
      committed_leader_epoch int32 5-7 = -1
      metadata string 0-7 null 0-7
      error_code int16 0-7
  error_code int16 2-7
  groups []OffsetFetchResponseGroup 8+
    group_id string 8+
    topics []OffsetFetchResponseTopics 8+
      name string 8-9
      topic_id uuid 10+
      partitions []OffsetFetchResponsePartitions 8+
        partition_index int32 8+
        committed_offset int64 8+
        committed_leader_epoch int32 8+ = -1
        metadata string 8+ null 8+
        error_code int16 8+
    error_code int16 8+

FindCoordinatorRequest 10 request 0-6 flexible 3+
  key string 0-3
  key_type int8 1+
  coordinator_keys []string 4+

FindCoordinatorResponse 10 response 0-6 flexible 3+
  throttle_time_ms int32 1+
  error_code int16 0-3
  error_message string 1-3 null 1-3
  node_id int32 0-3
  host string 0-3
  port int32 0-3
  coordinators []Coordinator 4+
    key string 4+
    node_id int32 4+
    host string 4+
    port int32 4+
    error_code int16 4+
    error_message string 4+ null 4+

JoinGroupRequest 11 request 0-9 flexible 6+
  group_id string 0+
  session_timeout_ms int32 0+
  rebalance_timeout_ms int32 1+ = -1
  member_id string 0+
  group_instance_id string 5+ null 5+ = null
  protocol_type string 0+
  protocols []JoinGroupRequestProtocol 0+
    name string 0+
    metadata bytes 0+
  reason string 8+ null 8+ = null

JoinGroupResponse 11 response 0-9 flexible 6+
  throttle_time_ms int32 2+
  error_code int16 0+
  generation_id int32 0+ = -1
  protocol_type string 7+ null 7+ = null
  protocol_name string 0+ null 7+
  leader string 0+
  skip_assignment bool 9+
  member_id string 0+
  members []JoinGroupResponseMember 0+
    member_id string 0+
    group_instance_id string 5+ null 5+ = null
    metadata bytes 0+

HeartbeatRequest 12 request 0-4 flexible 4+
  group_id string 0+
  generation_id int32 0+
  member_id string 0+
  group_instance_id string 3+ null 3+ = null

HeartbeatResponse 12 response 0-4 flexible 4+
  throttle_time_ms int32 1+
  error_code int16 0+

LeaveGroupRequest 13 request 0-5 flexible 4+
  group_id string 0+
  member_id string 0-2
  members []MemberIdentity 3+
    member_id string 3+
    group_instance_id string 3+ null 3+ = null
    reason string 5+ null 5+ = null

LeaveGroupResponse 13 response 0-5 flexible 4+
  throttle_time_ms int32 1+
  error_code int16 0+
  members []MemberResponse 3+
    member_id string 3+
    group_instance_id string 3+ null 3+
    error_code int16 3+

SyncGroupRequest 14 request 0-5 flexible 4+
  group_id string 0+
  generation_id int32 0+
  member_id string 0+
  group_instance_id string 3+ null 3+ = null
  protocol_type string 5+ null 5+ = null
  protocol_name string 5+ null 5+ = null
  assignments []SyncGroupRequestAssignment 0+
    member_id string 0+
    assignment bytes 0+

SyncGroupResponse 14 response 0-5 flexible 4+
  throttle_time_ms int32 1+
  error_code int16 0+
  protocol_type string 5+ null 5+ = null
  protocol_name string 5+ null 5+ = null
  assignment bytes 0+

ConsumerGroupHeartbeatRequest 68 request 0-1 flexible 0+
  group_id string 0+
  member_id string 0+
  member_epoch int32 0+
  instance_id string 0+ null 0+ = null
  rack_id string 0+ null 0+ = null
  rebalance_timeout_ms int32 0+ = -1
  subscribed_topic_names []string 0+ null 0+ = null
  subscribed_topic_regex string 1+ null 1+ = null
  server_assignor string 0+ null 0+ = null
  topic_partitions []TopicPartitions 0+ null 0+ = null
    topic_id uuid 0+
    partitions []int32 0+

ConsumerGroupHeartbeatResponse 68 response 0-1 flexible 0+
  struct TopicPartitions
    topic_id uuid 0+
    partitions []int32 0+
  throttle_time_ms int32 0+
  error_code int16 0+
  error_message string 0+ null 0+ = null
  member_id string 0+ null 0+ = null
  member_epoch int32 0+
  heartbeat_interval_ms int32 0+
  assignment Assignment 0+ null 0+ = null
    topic_partitions []TopicPartitions 0+
"""
