"""Groups, seen from outside: fields, versions, defaults."""

from __future__ import annotations

TABLES = """
DescribeGroupsRequest 15 request 0-6 flexible 5+
  groups []string 0+
  include_authorized_operations bool 3+

DescribeGroupsResponse 15 response 0-6 flexible 5+
  throttle_time_ms int32 1+
  groups []DescribedGroup 0+
    error_code int16 0+
    error_message string 6+ null 6+ = null
    group_id string 0+
    group_state string 0+
    protocol_type string 0+
    protocol_data string 0+
    members []DescribedGroupMember 0+
      member_id string 0+
      group_instance_id string 4+ null 4+ = null
      client_id string 0+
      client_host string 0+
      member_metadata bytes 0+
      member_assignment bytes 0+
    authorized_operations int32 3+ = -2147483648

ListGroupsRequest 16 request 0-5 flexible 3+
  states_filter []string 4+
  types_filter []string 5+

ListGroupsResponse 16 response 0-5 flexible 3+
  throttle_time_ms int32 1+
  error_code int16 0+
  groups []ListedGroup 0+
    group_id string 0+
    protocol_type string 0+
    group_state string 4+
    group_type string 5+

DeleteGroupsRequest 42 request 0-3 flexible 2+
  groups_names []string 0+

DeleteGroupsResponse 42 response 0-3 flexible 2+
  throttle_time_ms int32 0+
  results []DeletableGroupResult 0+
    group_id string 0+
    error_code int16 0+
    error_message string 3+ null 3+ = null

OffsetDeleteRequest 47 request 0 flexible none
  group_id string 0+
  topics []OffsetDeleteRequestTopic 0+
    name string 0+
    partitions []OffsetDeleteRequestPartition 0+
      partition_index int32 0+

OffsetDeleteResponse 47 response 0 flexible none
  error_code int16 0+
  throttle_time_ms int32 0+
  topics []OffsetDeleteResponseTopic 0+
    name string 0+
    partitions []OffsetDeleteResponsePartition 0+
      partition_index int32 0+
      error_code int16 0+

ConsumerGroupDescribeRequest 69 request 0-1 flexible 0+
  group_ids []string 0+
  include_authorized_operations bool 0+

ConsumerGroupDescribeResponse 69 response 0-1 flexible 0+
  struct TopicPartitions
    topic_id uuid 0+
    topic_name string 0+
    partitions []int32 0+
  struct Assignment
    topic_partitions []TopicPartitions 0+
  throttle_time_ms int32 0+
  groups []DescribedGroup 0+
    error_code int16 0+
    error_message string 0+ null 0+ = null
    group_id string 0+
    group_state string 0+
    group_epoch int32 0+
    assignment_epoch int32 0+
    assignor_name string 0+
    members []Member 0+
      member_id string 0+
      instance_id string 0+ null 0+ = null
      rack_id string 0+ null 0+ = null
      member_epoch int32 0+
      client_id string 0+
      client_host string 0+
      subscribed_topic_names []string 0+
      subscribed_topic_regex string 0+ null 0+ = null
      assignment Assignment 0+
      target_assignment Assignment 0+
      member_type int8 1+ = -1
    authorized_operations int32 0+ = -2147483648
"""
