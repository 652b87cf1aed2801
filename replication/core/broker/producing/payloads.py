"""The machine's view of a payload, whose bytes stay with the driver: its size, and the batches in a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...errors import ErrorCode
from ...types import BatchMeta, TransactionMarker, named

TRANSACTIONAL, CONTROL = 1 << 4, 1 << 5
"""Bits of `ScannedBatch.attributes` (record batch v2)."""


class MalformedBatchError(Exception):
    """A part of a payload that is not a sequence of whole, sound record batches; the text says what is wrong."""


class RefusedBatchError(Exception):
    """A batch that must not reach a log; (code, text for the producer)."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


class ScannedBatch(Protocol):
    """The header of one batch whose lengths and CRC were checked. `record_count` is as the header says."""

    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def attributes(self) -> int: ...


class Batches(Protocol):
    """Some batches of a payload, in order: the handle by which a log is asked to append them.

    The driver holds their memory until the append is done; what no `Append` names it lets go after the step.
    """

    @property
    def infos(self) -> Sequence[ScannedBatch]: ...

    def marker(self, at: int) -> TransactionMarker | None:
        """The marker in the control batch `infos[at]`; None if it ends no transaction."""
        ...


class Payload(Protocol):
    """The bytes that follow a message. They may be read only during the step that handles the message."""

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    def batches(self, position: int, size: int) -> Batches:
        """The batches in `size` bytes from `position` on; both lie within the payload.

        Raises:
          MalformedBatchError: They are cut short, do not match their checksum, or are of an unknown format.
        """
        ...

    def produced(self, position: int, size: int) -> Batches:
        """The same of a producer's, whose records were looked at, too: what no reader could read reaches no log.

        Raises:
          RefusedBatchError: What is wrong with them.
        """
        ...


def to_meta(info: ScannedBatch) -> BatchMeta:
    """The facts that a replica needs of a batch."""
    values = (
        info.base_offset,
        info.last_offset_delta + 1,
        info.leader_epoch,
        info.size_bytes,
        info.producer_id,
        info.producer_epoch,
        info.base_sequence,
        bool(info.attributes & TRANSACTIONAL),
        None,
    )
    return named(BatchMeta, values)


def to_metas(batches: Batches) -> tuple[BatchMeta, ...]:
    """The facts that a replica needs of batches that its leader sent: markers are among them."""
    infos = batches.infos
    metas = list(map(to_meta, infos))
    for at, meta in enumerate(metas):
        if meta.transactional and infos[at].attributes & CONTROL:
            metas[at] = meta._replace(marker=batches.marker(at))
    return tuple(metas)
