"""Topics, elections and reassignments: fields, versions, defaults."""

from __future__ import annotations

TABLES = """
CreateTopicsRequest 19 request 2-7 flexible 5+
  topics []CreatableTopic 0+
    name string 0+
    num_partitions int32 0+
    replication_factor int16 0+
    assignments []CreatableReplicaAssignment 0+
      partition_index int32 0+
      broker_ids []int32 0+
    configs []CreatableTopicConfig 0+
      name string 0+
      value string 0+ null 0+
  timeout_ms int32 0+ = 60000
  validate_only bool 1+

CreateTopicsResponse 19 response 2-7 flexible 5+
  throttle_time_ms int32 2+
  topics []CreatableTopicResult 0+
    name string 0+
    topic_id uuid 7+
    error_code int16 0+
    error_message string 1+ null 0+
    topic_config_error_code int16 5+ tag 0
    num_partitions int32 5+ = -1
    replication_factor int16 5+ = -1
    configs []CreatableTopicConfigs 5+ null 5+
      name string 5+
      value string 5+ null 5+
      read_only bool 5+
      config_source int8 5+ = -1
      is_sensitive bool 5+

DeleteTopicsRequest 20 request 1-6 flexible 4+
  topics []DeleteTopicState 6+
    name string 6+ null 6+ = null
    topic_id uuid 6+
  topic_names []string 0-5
  timeout_ms int32 0+

DeleteTopicsResponse 20 response 1-6 flexible 4+
  throttle_time_ms int32 1+
  responses []DeletableTopicResult 0+
    name string 0+ null 6+
    topic_id uuid 6+
    error_code int16 0+
    error_message string 5+ null 5+ = null

CreatePartitionsRequest 37 request 0-3 flexible 2+
  topics []CreatePartitionsTopic 0+
    name string 0+
    count int32 0+
    assignments []CreatePartitionsAssignment 0+ null 0+
      broker_ids []int32 0+
  timeout_ms int32 0+
  validate_only bool 0+

CreatePartitionsResponse 37 response 0-3 flexible 2+
  throttle_time_ms int32 0+
  results []CreatePartitionsTopicResult 0+
    name string 0+
    error_code int16 0+
    error_message string 0+ null 0+ = null

ElectLeadersRequest 43 request 0-2 flexible 2+
  election_type int8 1+
  topic_partitions []TopicPartitions 0+ null 0+
    topic string 0+
    partitions []int32 0+
  timeout_ms int32 0+ = 60000

ElectLeadersResponse 43 response 0-2 flexible 2+
  throttle_time_ms int32 0+
  error_code int16 1+
  replica_election_results []ReplicaElectionResult 0+
    topic string 0+
    partition_result []PartitionResult 0+
      partition_id int32 0+
      error_code int16 0+
      error_message string 0+ null 0+

AlterPartitionReassignmentsRequest 45 request 0-1 flexible 0+
  timeout_ms int32 0+ = 60000
  allow_replication_factor_change bool 1+ = true
  topics []ReassignableTopic 0+
    name string 0+
    partitions []ReassignablePartition 0+
      partition_index int32 0+
      replicas []int32 0+ null 0+ = null

AlterPartitionReassignmentsResponse 45 response 0-1 flexible 0+
  throttle_time_ms int32 0+
  allow_replication_factor_change bool 1+ = true
  error_code int16 0+
  error_message string 0+ null 0+
  responses []ReassignableTopicResponse 0+
    name string 0+
    partitions []ReassignablePartitionResponse 0+
      partition_index int32 0+
      error_code int16 0+
      error_message string 0+ null 0+

ListPartitionReassignmentsRequest 46 request 0 flexible 0+
  timeout_ms int32 0+ = 60000
  topics []ListPartitionReassignmentsTopics 0+ null 0+ = null
    name string 0+
    partition_indexes []int32 0+

ListPartitionReassignmentsResponse 46 response 0 flexible 0+
  throttle_time_ms int32 0+
  error_code int16 0+
  error_message string 0+ null 0+
  topics []OngoingTopicReassignment 0+
    name string 0+
    partitions []OngoingPartitionReassignment 0+
      partition_index int32 0+
      replicas []int32 0+
      adding_replicas []int32 0+
      removing_replicas []int32 0+
"""
