"""The state machine that a service writes. Every copy applies the same commands in the same order."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import attrs

from . import _versions

Write = Callable[[bytes], None]
Read = Callable[[], bytes | None]


@attrs.define(slots=True)
class Context:
    """The place of a command in the log. A machine may use this and its own state, but no clock or other input."""

    offset: int
    """Offset of the record in the log. One record may hold several commands."""
    index: int
    """Index of the command in the record."""
    timestamp_ms: int
    """Timestamp of the record in milliseconds since 1970; never decreases from one command to the next."""
    name: str
    """Name of the session of the command; empty for a command with a caller's own id."""
    seed: str = ""
    version: int = 1
    """The topic's version, the same on each copy; in a migration the one to which it leads."""
    _random: random.Random | None = None

    @property
    def position(self) -> int:
        """A unique number that increases from command to command."""
        return self.offset << 16 | self.index

    @property
    def random(self) -> random.Random:
        """Random numbers that are the same on each copy; the topic's id and the command's place are the seed."""
        if self._random is None:
            self._random = random.Random(f"{self.seed}:{self.offset}:{self.index}")
        return self._random


class StateMachine(ABC):
    """The state of one partition, and the effects of commands on it.

    The result, the effect and the exception of a command must depend only on the state, the command and `Context`:
    on no clock, no other random numbers, no order of a set and nothing outside. Copies compare digests, and a copy
    that differs stops.

    A new machine has the state of version 1. With `state_version = 2` the class has a method
    `migrate_1_to_2(self)`, which runs when the topic's version is raised; until then `context.version` is 1, and
    commands work as before.
    """

    state_name: str = ""
    """By which logs know the class; default: its name. Set it to the former name to rename a class."""
    state_version: int = 1
    """The version of the code. Raise it with each change of the state or of the effect of commands."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _versions.check(cls)

    @abstractmethod
    def apply(self, context: Context, command: bytes) -> bytes:
        """Apply a command. The caller receives the returned value or the raised exception."""

    @abstractmethod
    def snapshot(self, write: Write) -> None:
        """Write the whole state in any number of pieces, each of some KiB."""

    @abstractmethod
    def restore(self, read: Read) -> None:
        """Restore a written state: `read` returns the pieces in the order of writing, then None."""

    def migrate(self, context: Context) -> None:
        """Bring the state from the version before to `context.version`: calls its migration."""
        getattr(self, _versions.migration(context.version))()

    def digest(self) -> bytes:
        """A few bytes that are equal for equal states; default: a hash of the snapshot, which takes as long."""
        found = blake2b(digest_size=16)
        self.snapshot(found.update)
        return found.digest()

    def view(self) -> Callable[[Write], None] | None:
        """A copy of the state that another thread can write while commands continue; None: not supported.

        Without it `snapshot` runs in the event loop and blocks everything else until it is done.
        """
        return None
