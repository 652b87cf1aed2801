"""The errors of the pipeline's jobs."""

from __future__ import annotations

from ..errors import SparkError


class PipelineError(SparkError):
    """A job cannot do what it was asked; the message names the thing and the remedy."""


class DataFolderError(PipelineError):
    """A given folder is no node's data folder, or folders do not belong together."""


class DamagedSegmentError(PipelineError):
    """A segment file holds something that is no record batch; the message names file, position and offset."""


class ExportStateError(PipelineError):
    """The state that an export keeps cannot be used, belongs to another export, or is in use."""


class LostRecordsError(PipelineError):
    """Records were deleted before a job could have them."""


class InputError(PipelineError):
    """A job's input, or the way to read it, cannot be."""
