"""Heavy jobs over logs, on Spark: `load`, `export`, `audit`, `dedupe`, `stats`. Also as `insync pipeline`."""

from __future__ import annotations

from ._audit import AuditReport, audit
from ._findings import Defect
from ._locate import Difference
from .errors import DataFolderError, PipelineError

__all__ = ["audit", "AuditReport", "Defect", "Difference", "PipelineError", "DataFolderError"]
