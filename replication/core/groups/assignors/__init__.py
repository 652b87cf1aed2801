"""Assignors: the ways to share partitions among the members of a group."""
