"""The fate of a batch that was not acknowledged."""

from __future__ import annotations

from ...core import messages as m
from ...core.errors import ErrorCode
from ...core.wording import counted
from ..errors import BatchError, Outcome, ServerError
from ._batch import Batch


def unmade(batch: Batch, error: Exception, outcome: Outcome = "absent") -> BatchError:
    """The bytes of a batch, or of its request, could not be made or handed over."""
    failure = BatchError(
        f"{batch.topic}-{batch.partition}: a batch of {counted(batch.count, 'record')} could not be built or sent: "
        f"{error!r}; correct the cause; `outcome` says whether the batch may be in the log",
        outcome="unknown" if batch.maybe_written else outcome,
    )
    failure.__cause__ = error
    return failure


def code_of(result: m.ProduceResult | None) -> tuple[ErrorCode, str]:
    """The error code and the words in a node's answer about a batch; the answer may be missing."""
    if result is None:
        return ErrorCode.UNKNOWN_SERVER_ERROR, "the answer does not contain the partition"
    try:
        return ErrorCode(result.error), result.message
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR, result.message or f"error code {result.error}"


def has_code(batch: Batch, code: ErrorCode) -> bool:
    """Whether this is what became of the last attempt."""
    return isinstance(batch.last_error, ServerError) and batch.last_error.code == code
