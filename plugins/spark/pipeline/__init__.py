"""Heavy jobs over logs, on Spark: `load`, `export`, `audit`, `dedupe`, `stats`. Also as `insync pipeline`."""

from __future__ import annotations

from ._audit import AuditReport, audit
from ._dedupe import DedupeReport, Duplicate, dedupe
from ._export import ExportReport, export
from ._findings import Defect
from ._inputs import FolderInput, TopicInput
from ._load import LoadReport, load
from ._locate import Difference
from ._stats import KeyCount, Minute, PartitionStats, StatsReport, stats
from .errors import (
    DamagedSegmentError,
    DataFolderError,
    ExportStateError,
    InputError,
    LostRecordsError,
    PipelineError,
)

__all__ = [
    "TopicInput",
    "FolderInput",
    "audit",
    "AuditReport",
    "Defect",
    "Difference",
    "load",
    "LoadReport",
    "export",
    "ExportReport",
    "dedupe",
    "DedupeReport",
    "Duplicate",
    "stats",
    "StatsReport",
    "KeyCount",
    "Minute",
    "PartitionStats",
    "PipelineError",
    "DataFolderError",
    "DamagedSegmentError",
    "ExportStateError",
    "InputError",
    "LostRecordsError",
]
