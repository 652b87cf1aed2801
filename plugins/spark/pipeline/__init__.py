"""Heavy jobs over logs, on Spark: `load`, `export`, `audit`, `dedupe`, `stats`. Also as `insync pipeline`.

Importing this needs nothing but the framework; a job's name is looked up when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .. import check_pyspark
from .errors import (
    DamagedSegmentError,
    DataFolderError,
    ExportStateError,
    InputError,
    LostRecordsError,
    PipelineError,
)

if TYPE_CHECKING:
    from ._audit import AuditReport, audit
    from ._dedupe import DedupeReport, Duplicate, dedupe
    from ._export import ExportReport, export
    from ._findings import Defect
    from ._inputs import FolderInput, TopicInput
    from ._load import LoadReport, load
    from ._locate import Difference
    from ._stats import KeyCount, Minute, PartitionStats, StatsReport, stats

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

_HOMES = {
    "._audit": (
        "AuditReport",
        "audit",
    ),
    "._dedupe": (
        "DedupeReport",
        "Duplicate",
        "dedupe",
    ),
    "._export": (
        "ExportReport",
        "export",
    ),
    "._findings": ("Defect",),
    "._inputs": (
        "FolderInput",
        "TopicInput",
    ),
    "._load": (
        "LoadReport",
        "load",
    ),
    "._locate": ("Difference",),
    "._stats": (
        "KeyCount",
        "Minute",
        "PartitionStats",
        "StatsReport",
        "stats",
    ),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            check_pyspark()
            return getattr(import_module(home, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
