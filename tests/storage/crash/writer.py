"""The process that is killed: it does to a log all that a node does, in an order that its seed gives.

`python -m tests.storage.crash.writer FOLDER NOTES SEED POLICY` goes on until it is killed; some stop before.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from insync.storage import Chunk, DiskLog, LogDirectory, LogSettings
from insync.storage.batch import scan

from .notes import Notebook, Plan

KEY = ("t", 0)
NOW_MS = 10**12


def settings(policy: str) -> LogSettings:
    return LogSettings(
        segment_bytes=96 << 10,
        segment_index_bytes=1 << 14,
        index_interval_bytes=1 << 10,
        file_delete_delay_ms=0,
        cleanup_policy=policy,
        retention_ms=-1,
        retention_bytes=1 << 20,
        min_cleanable_dirty_ratio=0.1,
        delete_retention_ms=0,
    )


def opened(folder: Path, policy: str) -> LogDirectory:
    return LogDirectory(folder, cluster_id="c", node_id=1, settings=settings(policy))


class Writer:
    def __init__(self, directory: LogDirectory, notes: Notebook, seed: int, policy: str) -> None:
        self.directory, self.notes = directory, notes
        self.log: DiskLog = directory.open_log(*KEY, create=True)
        self.noise = random.Random(seed)
        self.keyed = "compact" in policy
        self.serial = seed * 100_000
        self.epoch = self.log.epochs[-1].epoch if self.log.epochs else 0
        self.committed = self.log.log_end_offset if self.keyed else 0
        """Nothing below is truncated, as nobody does that: it may have been compacted."""

    def run(self) -> None:
        """Until the end of the process."""
        deeds = {
            self.append: 60,
            self.flush: 6,
            self.lead: 5,
            self.truncate: 6,
            self.raise_start: 2,
            self.maintain: 8,
            self.checkpoint: 4,
        }
        todo, weights = list(deeds), list(deeds.values())
        for _ in range(self.noise.choice((30, 10**9, 10**9))):
            self.noise.choices(todo, weights)[0]()
        self.notes.will("stop")
        self.directory.close(high_watermarks={KEY: self.log.log_end_offset})
        self.notes.did("stop")

    def plans(self) -> list[Plan]:
        found, base = [], self.log.log_end_offset
        for _ in range(self.noise.randrange(1, 6)):
            self.serial += 1
            size = self.noise.choice((8, 60, 700, 20_000))
            found.append(Plan(base, self.noise.randrange(1, 5), self.epoch, self.serial, size, self.keyed))
            base = found[-1].end
        return found

    def append(self) -> None:
        plans = self.plans()
        chunks = []
        for plan in plans:
            data = plan.build()
            chunks.append(Chunk(data, scan(data), plan.base, plan.epoch))
        self.notes.will("append", *(number for plan in plans for number in plan))
        self.log.append(chunks)
        self.notes.did("append")

    def flush(self) -> None:
        self.log.flush()

    def lead(self) -> None:
        self.epoch += 1
        self.log.assign_epoch(self.epoch, self.log.log_end_offset)

    def truncate(self) -> None:
        offset = max(self.committed, self.log.log_end_offset - self.noise.choice((1, 7, 40, 400)))
        self.notes.will("truncate", offset)
        self.log.truncate(offset)
        self.notes.did("truncate", self.log.log_end_offset)

    def raise_start(self) -> None:
        offset = self.noise.randint(self.log.log_start_offset, self.log.log_end_offset)
        self.notes.will("start", offset)
        self.log.advance_log_start_offset(offset)
        self.notes.did("start")

    def maintain(self) -> None:
        self.committed = self.log.log_end_offset if self.keyed else 0
        self.notes.will("maintain", self.log.log_end_offset)
        self.log.maintain(NOW_MS, high_watermark=self.log.log_end_offset)
        self.notes.did("maintain", self.log.log_start_offset)

    def checkpoint(self) -> None:
        self.directory.write_checkpoints({KEY: self.log.log_end_offset})


def write_in_pieces(noise: random.Random) -> None:
    """Make some writes short, as a device may, with a pause before the rest: more kills come in between."""
    whole = os.pwritev

    def pwritev(fd: int, buffers: Any, position: int) -> int:
        if noise.random() < 0.8 or not any(map(len, buffers)):
            return whole(fd, buffers, position)
        data = b"".join(buffers)
        written = whole(fd, [data[: noise.randrange(1, len(data) + 1)]], position)
        time.sleep(0.003)
        return written

    os.pwritev = pwritev  # type: ignore[assignment]


def main() -> None:
    folder, notes_path, seed, policy = sys.argv[1:]
    notes = Notebook(Path(notes_path))
    notes.will("open")
    directory = opened(Path(folder), policy)
    writer = Writer(directory, notes, int(seed), policy)
    write_in_pieces(random.Random(int(seed)))
    notes.did("open", writer.log.log_end_offset)
    writer.run()


if __name__ == "__main__":
    main()
