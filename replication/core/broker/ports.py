"""The reads that a broker makes by itself: of logs, by a synchronous port, as raft's `Storage` is.

Everything else is an event or an effect. Bytes never pass through the broker: a log answers with references.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from ..coordination.shard_events import ProducerId
from ..errors import ErrorCode
from ..types import PartitionId
from .producing.payloads import Batches


class LogRange(Protocol):
    """Whole batches of one log, by reference. `range` is the host's, None if there are none; `size` in bytes."""

    @property
    def range(self) -> object: ...

    @property
    def size(self) -> int: ...

    @property
    def next_offset(self) -> int:
        """Where the batches end."""
        ...


class Cold:
    """The read might wait for the device. Have it warmed (`effects.Warm`) and ask again after `events.Warmed`."""


COLD: Final = Cold()


class LogReadError(Exception):
    """A log could not be read; (code, text for the asker). `damaged`: its content is invalid."""

    def __init__(self, code: ErrorCode, message: str, *, damaged: bool = False) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.damaged = damaged


class BatchTooLarge(Exception):
    """Records that do not fit a batch of the size that is allowed."""


class BatchPort(Protocol):
    """Record batches of a coordinator's own, made where the bytes are."""

    def build(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        timestamp_ms: int,
        producer: ProducerId | None,
        max_bytes: int,
    ) -> Batches:
        """One batch of keys and values, for a replica to append; a value of None is a tombstone.

        producer: whose transaction it belongs to, if any; its sequence is not said.

        Raises:
          BatchTooLarge: It would have more than `max_bytes`.
        """
        ...

    def marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        timestamp_ms: int,
    ) -> Batches:
        """The control batch that ends a transaction in a partition (KIP-98)."""
        ...


class NoBatches:
    """Of a host without coordinators."""

    def build(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        timestamp_ms: int,
        producer: ProducerId | None,
        max_bytes: int,
    ) -> Batches:
        raise BatchTooLarge

    def marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        timestamp_ms: int,
    ) -> Batches:
        raise BatchTooLarge


class LogPort(Protocol):
    """The logs of the replicas of this node. A replica is asked about only while its log is open."""

    def queued(self, partition: PartitionId) -> int:
        """Pieces of work that wait for the log directory of a replica."""
        ...

    def range_at(
        self, partition: PartitionId, offset: int, max_bytes: int, limit_offset: int
    ) -> LogRange | Cold:
        """Whole batches from the one that holds `offset` on, none that reaches past `limit_offset`.

        At most `max_bytes` of them, but the first one however large it is.

        Raises:
          LogReadError: The offset is not in the log (OFFSET_OUT_OF_RANGE), or the log cannot be read.
        """
        ...

    def aborted_transactions(
        self, partition: PartitionId, start_offset: int, end_offset: int
    ) -> Sequence[tuple[int, int]]:
        """Producer id and first offset of each transaction that was aborted at or above `start_offset`, and began
        below `end_offset`.
        """
        ...


LOOK_UP_TIME = 5.0
"""Seconds after which what has not been found is not looked for any more; clients ask again."""


class LookUp(NamedTuple):
    """A timestamp (or GREATEST_TIMESTAMP) that has to be looked for in the log of a partition that is led here in
    this epoch.
    """

    partition: PartitionId
    timestamp_ms: int
    leader_epoch: int


class TimedOffset(NamedTuple):
    """A record that was found by its time, in ms since 1970."""

    offset: int
    timestamp_ms: int


Found = TimedOffset | None | LogReadError
"""The first record with at least that timestamp, committed or not; None if there is none."""
