"""The events of a run: a digest of every step, and on demand the lines that people read."""

from __future__ import annotations

import hashlib

LINES_PER_UPDATE = 512


class Trace:
    """`digest` is equal for equal runs, on every machine. With `keep` the notable lines are kept in `lines`."""

    def __init__(self, *, keep: bool) -> None:
        self.keep = keep
        self.lines: list[str] = []
        self._pending: list[str] = []
        self._hash = hashlib.blake2b(digest_size=16)

    def step(self, line: str) -> None:
        pending = self._pending
        pending.append(line)
        if len(pending) >= LINES_PER_UPDATE:
            self._flush()

    def note(self, now: float, text: str) -> None:
        """A line for people; ask `keep` before building it."""
        self.lines.append(f"{now:9.3f}  {text}")

    def digest(self) -> str:
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        self._hash.update("\n".join(self._pending).encode())
        self._pending.clear()
