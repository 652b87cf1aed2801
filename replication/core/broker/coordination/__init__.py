"""The coordinators that a node hosts: shards of internal topics, and the requests about groups and transactions."""
