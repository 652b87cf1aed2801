"""Errors planted in a node process: a run with one of them must fail, or the check of runs is worth nothing."""

from __future__ import annotations

from typing import Any

from insync.replication.core import elections, isr
from insync.replication.core.controller import Controller
from insync.storage.disk_log import DiskLog


def early_ack() -> None:
    """Acknowledge what only the leader has: the high watermark is the end of its own log."""

    def high_watermark(current: int, leader_end: int, *_: Any) -> int:
        return max(current, leader_end)

    isr.high_watermark = high_watermark


def short_truncation() -> None:
    """Keep the first of the batches that are to be cut off."""
    right = DiskLog._truncate

    def truncate(self: DiskLog, offset: int) -> None:
        end = offset
        while end < self.log_end_offset and _batch_at(self, end) == _batch_at(self, offset):
            end += 1
        if end < self.log_end_offset:
            right(self, end)

    DiskLog._truncate = truncate  # type: ignore[method-assign]


def reused_offset() -> None:
    """Elect whoever lives, in sync or not: a leader that lacks records gives their offsets to others."""
    Controller._unclean_policy = lambda self, partition: elections.ANY  # type: ignore[method-assign]


def _batch_at(log: DiskLog, offset: int) -> int:
    return log._segment_of(log._segments, offset).holding(offset).offset


DEFECTS = {each.__name__: each for each in (early_ack, short_truncation, reused_offset)}
