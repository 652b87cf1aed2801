"""What a service writes: a state machine. Every copy applies the same commands in the same order."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from hashlib import blake2b

import attrs

Write = Callable[[bytes], None]
Read = Callable[[], bytes | None]


@attrs.define(slots=True)
class Context:
    """Where a command stands. A machine may look at this and its own state, at no clock and at nothing else."""

    offset: int
    """Of the record, in the log. Several commands may stand in one record."""
    index: int
    """Which command of the record."""
    timestamp_ms: int
    """Of the record, in milliseconds since 1970; it never goes back from one command to the next."""
    name: str
    """Whose session the command belongs to; empty for those with a caller's own id."""
    seed: str = ""
    _random: random.Random | None = None

    @property
    def position(self) -> int:
        """A number that no other command has, and that grows from command to command."""
        return self.offset << 16 | self.index

    @property
    def random(self) -> random.Random:
        """Random numbers that are the same on each copy, seeded by the topic's id and the command's place."""
        if self._random is None:
            self._random = random.Random(f"{self.seed}:{self.offset}:{self.index}")
        return self._random


class StateMachine(ABC):
    """The state of one partition, and what commands do to it.

    The answer to a command, its effect and what it raises must follow from the state and the command alone: from
    no clock, no random number but `Context.random`, no order of a set, nothing outside. Copies that differ are
    found by comparing digests, and stop.
    """

    @abstractmethod
    def apply(self, context: Context, command: bytes) -> bytes:
        """Do a command; what it returns is the caller's answer. What it raises is an answer, too."""

    @abstractmethod
    def snapshot(self, write: Write) -> None:
        """Write the whole state, in as many pieces as is convenient, each of some KiB."""

    @abstractmethod
    def restore(self, read: Read) -> None:
        """Become what was written: `read` gives the pieces in order, as they were written, then None."""

    def digest(self) -> bytes:
        """A few bytes that are equal where the state is; by default a hash of the snapshot, which takes as long."""
        found = blake2b(digest_size=16)
        self.snapshot(found.update)
        return found.digest()

    def view(self) -> Callable[[Write], None] | None:
        """A copy of the state that can be written in another thread, while commands go on; None: there is none.

        Then `snapshot` is called in the event loop, and nothing else happens until it is done.
        """
        return None
