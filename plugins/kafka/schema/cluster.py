"""The cluster, its nodes and their log directories: fields, versions, defaults."""

from __future__ import annotations

TABLES = """
MetadataRequest 3 request 0-13 flexible 9+
  topics []MetadataRequestTopic 0+ null 1+
    topic_id uuid 10+
    name string 0+ null 10+
  allow_auto_topic_creation bool 4+ = true
  include_cluster_authorized_operations bool 8-10
  include_topic_authorized_operations bool 8+

MetadataResponse 3 response 0-13 flexible 9+
  throttle_time_ms int32 3+
  brokers []MetadataResponseBroker 0+
    node_id int32 0+
    host string 0+
    port int32 0+
    rack string 1+ null 1+ = null
  cluster_id string 2+ null 2+ = null
  controller_id int32 1+ = -1
  topics []MetadataResponseTopic 0+
    error_code int16 0+
    name string 0+ null 12+
    topic_id uuid 10+
    is_internal bool 1+
    partitions []MetadataResponsePartition 0+
      error_code int16 0+
      partition_index int32 0+
      leader_id int32 0+
      leader_epoch int32 7+ = -1
      replica_nodes []int32 0+
      isr_nodes []int32 0+
      offline_replicas []int32 5+
    topic_authorized_operations int32 8+ = -2147483648
  cluster_authorized_operations int32 8-10 = -2147483648
  error_code int16 13+

ApiVersionsRequest 18 request 0-5 flexible 3+
  client_software_name string 3+
  client_software_version string 3+
  cluster_id string 5+ null 5+ = null
  node_id int32 5+ = -1

ApiVersionsResponse 18 response 0-5 flexible 3+
  error_code int16 0+
  api_keys []ApiVersion 0+
    api_key int16 0+
    min_version int16 0+
    max_version int16 0+
  throttle_time_ms int32 1+
  supported_features []SupportedFeatureKey 3+ tag 0
    name string 3+
    min_version int16 3+
    max_version int16 3+
  finalized_features_epoch int64 3+ tag 1 = -1
  finalized_features []FinalizedFeatureKey 3+ tag 2
    name string 3+
    max_version_level int16 3+
    min_version_level int16 3+
  zk_migration_ready bool 3+ tag 3

DescribeLogDirsRequest 35 request 1-5 flexible 2+
  topics []DescribableLogDirTopic 0+ null 0+
    topic string 0+
    partitions []int32 0+

DescribeLogDirsResponse 35 response 1-5 flexible 2+
  throttle_time_ms int32 0+
  error_code int16 3+
  results []DescribeLogDirsResult 0+
    error_code int16 0+
    log_dir string 0+
    topics []DescribeLogDirsTopic 0+
      name string 0+
      partitions []DescribeLogDirsPartition 0+
        partition_index int32 0+
        partition_size int64 0+
        offset_lag int64 0+
        is_future_key bool 0+
    total_bytes int64 4+ = -1
    usable_bytes int64 4+ = -1
    is_cordoned bool 5+

DescribeClusterRequest 60 request 0-2 flexible 0+
  include_cluster_authorized_operations bool 0+
  endpoint_type int8 1+ = 1
  include_fenced_brokers bool 2+

DescribeClusterResponse 60 response 0-2 flexible 0+
  throttle_time_ms int32 0+
  error_code int16 0+
  error_message string 0+ null 0+ = null
  endpoint_type int8 1+ = 1
  cluster_id string 0+
  controller_id int32 0+ = -1
  brokers []DescribeClusterBroker 0+
    broker_id int32 0+
    host string 0+
    port int32 0+
    rack string 0+ null 0+ = null
    is_fenced bool 2+
  cluster_authorized_operations int32 0+ = -2147483648

DescribeTopicPartitionsRequest 75 request 0 flexible 0+
  topics []TopicRequest 0+
    name string 0+
  response_partition_limit int32 0+ = 2000
  cursor Cursor 0+ null 0+ = null
    topic_name string 0+
    partition_index int32 0+

DescribeTopicPartitionsResponse 75 response 0 flexible 0+
  throttle_time_ms int32 0+
  topics []DescribeTopicPartitionsResponseTopic 0+
    error_code int16 0+
    name string 0+ null 0+
    topic_id uuid 0+
    is_internal bool 0+
    partitions []DescribeTopicPartitionsResponsePartition 0+
      error_code int16 0+
      partition_index int32 0+
      leader_id int32 0+
      leader_epoch int32 0+ = -1
      replica_nodes []int32 0+
      isr_nodes []int32 0+
      eligible_leader_replicas []int32 0+ null 0+ = null
      last_known_elr []int32 0+ null 0+ = null
      offline_replicas []int32 0+
    topic_authorized_operations int32 0+ = -2147483648
  next_cursor Cursor 0+ null 0+ = null
    topic_name string 0+
    partition_index int32 0+
"""
