"""Registers the format `insync` without code: Spark takes DefaultSource from each module of such a name."""

from insync.plugins.spark import InsyncDataSource as DefaultSource

__all__ = ["DefaultSource"]
