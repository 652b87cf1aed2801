"""Errors planted in processes of nodes, and of clients of replicated state.

A run with one of them must fail, or the check of runs is worth nothing.
"""

from __future__ import annotations

import os
from typing import Any

import trio

from insync.replication.core.partition import isr
from insync.replication.state._copy import Copy
from insync.storage import LogDirectory
from insync.storage.disk_log import DiskLog

_FORGOTTEN = 300


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
    """Forget the last records when a process ends, and say nothing: their offsets are given to others."""
    right = LogDirectory._open

    def open_short(self: LogDirectory, *arguments: Any, **options: Any) -> DiskLog:
        log = right(self, *arguments, **options)
        if log.log_end_offset > _FORGOTTEN:
            log.truncate(log.log_end_offset - _FORGOTTEN)
        return log

    LogDirectory._open = open_short  # type: ignore[method-assign]


def stale_copies() -> None:
    """Of clients of replicated state: read a copy as it is."""

    async def catch_up(self: Copy) -> int:
        await trio.lowlevel.checkpoint()
        return self.applied

    Copy.catch_up = catch_up  # type: ignore[method-assign]


def _batch_at(log: DiskLog, offset: int) -> int:
    return log._segment_of(log._segments, offset).holding(offset).offset


DEFECTS = {each.__name__: each for each in (early_ack, short_truncation, reused_offset, stale_copies)}


def plant() -> None:
    """In this process, the one that INSYNC_CHAOS_DEFECT names; nothing if that is empty."""
    if defect := os.environ.get("INSYNC_CHAOS_DEFECT"):
        DEFECTS[defect]()
