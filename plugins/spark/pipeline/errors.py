"""What the pipeline's jobs raise."""

from __future__ import annotations

from ..errors import SparkError


class PipelineError(SparkError):
    """A job cannot do what it was asked; the message names the thing and the remedy."""


class DataFolderError(PipelineError):
    """What was given is no node's data folder, or folders do not belong together."""


class DamagedSegmentError(PipelineError):
    """A segment file holds something that is no record batch; the message names file, position and offset."""


class ExportStateError(PipelineError):
    """What an export remembers cannot be used, belongs to another export, or is in use."""


class LostRecordsError(PipelineError):
    """Records were deleted before a job could have them."""


class InputError(PipelineError):
    """What a job was to read, or how, cannot be."""
