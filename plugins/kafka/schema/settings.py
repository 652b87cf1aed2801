"""Settings and quotas: fields, versions, defaults."""

from __future__ import annotations

TABLES = """
DescribeConfigsRequest 32 request 1-4 flexible 4+
  resources []DescribeConfigsResource 0+
    resource_type int8 0+
    resource_name string 0+
    configuration_keys []string 0+ null 0+
  include_synonyms bool 1+
  include_documentation bool 3+

DescribeConfigsResponse 32 response 1-4 flexible 4+
  throttle_time_ms int32 0+
  results []DescribeConfigsResult 0+
    error_code int16 0+
    error_message string 0+ null 0+
    resource_type int8 0+
    resource_name string 0+
    configs []DescribeConfigsResourceResult 0+
      name string 0+
      value string 0+ null 0+
      read_only bool 0+
      config_source int8 1+ = -1
      is_sensitive bool 0+
      synonyms []DescribeConfigsSynonym 1+
        name string 1+
        value string 1+ null 0+
        source int8 1+
      config_type int8 3+
      documentation string 3+ null 0+

AlterConfigsRequest 33 request 0-2 flexible 2+
  resources []AlterConfigsResource 0+
    resource_type int8 0+
    resource_name string 0+
    configs []AlterableConfig 0+
      name string 0+
      value string 0+ null 0+
  validate_only bool 0+

AlterConfigsResponse 33 response 0-2 flexible 2+
  throttle_time_ms int32 0+
  responses []AlterConfigsResourceResponse 0+
    error_code int16 0+
    error_message string 0+ null 0+
    resource_type int8 0+
    resource_name string 0+

IncrementalAlterConfigsRequest 44 request 0-1 flexible 1+
  resources []AlterConfigsResource 0+
    resource_type int8 0+
    resource_name string 0+
    configs []AlterableConfig 0+
      name string 0+
      config_operation int8 0+
      value string 0+ null 0+
  validate_only bool 0+

IncrementalAlterConfigsResponse 44 response 0-1 flexible 1+
  throttle_time_ms int32 0+
  responses []AlterConfigsResourceResponse 0+
    error_code int16 0+
    error_message string 0+ null 0+
    resource_type int8 0+
    resource_name string 0+

DescribeClientQuotasRequest 48 request 0-1 flexible 1+
  components []ComponentData 0+
    entity_type string 0+
    match_type int8 0+
    match string 0+ null 0+
  strict bool 0+

DescribeClientQuotasResponse 48 response 0-1 flexible 1+
  throttle_time_ms int32 0+
  error_code int16 0+
  error_message string 0+ null 0+
  entries []EntryData 0+ null 0+
    entity []EntityData 0+
      entity_type string 0+
      entity_name string 0+ null 0+
    values []ValueData 0+
      key string 0+
      value float64 0+

AlterClientQuotasRequest 49 request 0-1 flexible 1+
  entries []EntryData 0+
    entity []EntityData 0+
      entity_type string 0+
      entity_name string 0+ null 0+
    ops []OpData 0+
      key string 0+
      value float64 0+
      remove bool 0+
  validate_only bool 0+

AlterClientQuotasResponse 49 response 0-1 flexible 1+
  throttle_time_ms int32 0+
  entries []EntryData 0+
    error_code int16 0+
    error_message string 0+ null 0+
    entity []EntityData 0+
      entity_type string 0+
      entity_name string 0+ null 0+

ListConfigResourcesRequest 74 request 0-1 flexible 0+
  resource_types []int8 1+

ListConfigResourcesResponse 74 response 0-1 flexible 0+
  throttle_time_ms int32 0+
  error_code int16 0+
  config_resources []ConfigResource 0+
    resource_name string 0+
    resource_type int8 1+ = 16
"""
