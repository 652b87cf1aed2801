"""Authentication, users and access rules: fields, versions, defaults."""

from __future__ import annotations

TABLES = """
SaslHandshakeRequest 17 request 0-1 flexible none
  mechanism string 0+

SaslHandshakeResponse 17 response 0-1 flexible none
  error_code int16 0+
  mechanisms []string 0+

DescribeAclsRequest 29 request 1-3 flexible 2+
  resource_type_filter int8 0+
  resource_name_filter string 0+ null 0+
  pattern_type_filter int8 1+ = 3
  principal_filter string 0+ null 0+
  host_filter string 0+ null 0+
  operation int8 0+
  permission_type int8 0+

DescribeAclsResponse 29 response 1-3 flexible 2+
  throttle_time_ms int32 0+
  error_code int16 0+
  error_message string 0+ null 0+
  resources []DescribeAclsResource 0+
    resource_type int8 0+
    resource_name string 0+
    pattern_type int8 1+ = 3
    acls []AclDescription 0+
      principal string 0+
      host string 0+
      operation int8 0+
      permission_type int8 0+

CreateAclsRequest 30 request 1-3 flexible 2+
  creations []AclCreation 0+
    resource_type int8 0+
    resource_name string 0+
    resource_pattern_type int8 1+ = 3
    principal string 0+
    host string 0+
    operation int8 0+
    permission_type int8 0+

CreateAclsResponse 30 response 1-3 flexible 2+
  throttle_time_ms int32 0+
  results []AclCreationResult 0+
    error_code int16 0+
    error_message string 0+ null 0+

DeleteAclsRequest 31 request 1-3 flexible 2+
  filters []DeleteAclsFilter 0+
    resource_type_filter int8 0+
    resource_name_filter string 0+ null 0+
    pattern_type_filter int8 1+ = 3
    principal_filter string 0+ null 0+
    host_filter string 0+ null 0+
    operation int8 0+
    permission_type int8 0+

DeleteAclsResponse 31 response 1-3 flexible 2+
  throttle_time_ms int32 0+
  filter_results []DeleteAclsFilterResult 0+
    error_code int16 0+
    error_message string 0+ null 0+
    matching_acls []DeleteAclsMatchingAcl 0+
      error_code int16 0+
      error_message string 0+ null 0+
      resource_type int8 0+
      resource_name string 0+
      pattern_type int8 1+ = 3
      principal string 0+
      host string 0+
      operation int8 0+
      permission_type int8 0+

SaslAuthenticateRequest 36 request 0-2 flexible 2+
  auth_bytes bytes 0+

SaslAuthenticateResponse 36 response 0-2 flexible 2+
  error_code int16 0+
  error_message string 0+ null 0+
  auth_bytes bytes 0+
  session_lifetime_ms int64 1+

DescribeUserScramCredentialsRequest 50 request 0 flexible 0+
  users []UserName 0+ null 0+
    name string 0+

DescribeUserScramCredentialsResponse 50 response 0 flexible 0+
  throttle_time_ms int32 0+
  error_code int16 0+
  error_message string 0+ null 0+
  results []DescribeUserScramCredentialsResult 0+
    user string 0+
    error_code int16 0+
    error_message string 0+ null 0+
    credential_infos []CredentialInfo 0+
      mechanism int8 0+
      iterations int32 0+

AlterUserScramCredentialsRequest 51 request 0 flexible 0+
  deletions []ScramCredentialDeletion 0+
    name string 0+
    mechanism int8 0+
  upsertions []ScramCredentialUpsertion 0+
    name string 0+
    mechanism int8 0+
    iterations int32 0+
    salt bytes 0+
    salted_password bytes 0+

AlterUserScramCredentialsResponse 51 response 0 flexible 0+
  throttle_time_ms int32 0+
  results []AlterUserScramCredentialsResult 0+
    user string 0+
    error_code int16 0+
    error_message string 0+ null 0+
"""
