"""Fetch sessions of Kafka's clients (KIP-227): a client names only what has changed, the gateway knows the rest.

They belong to one connection and end with it. The node is asked for all of a session's partitions each time.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from random import Random
from typing import Generic, TypeVar

import attrs

K = TypeVar("K", bound=Hashable)
Q = TypeVar("Q")

MOST_SESSIONS = 1000
"""Of one listener; whoever finds no place is answered in full each time."""
MOST_PARTITIONS = 500_000
"""Of all sessions of one listener; a session that would go beyond ends, and its client is answered in full."""
MOST_OF_A_CLIENT = 8
"""Sessions that one connection may begin without ending others; clients have one for each node."""
MOST_OF_A_SESSION = 20_000
"""Partitions of one session, as many as one request can name: each request of it, however small, asks the node for
all of them. A session that would go beyond ends.
"""
NO_SESSION = 0
FINAL_EPOCH, INITIAL_EPOCH = -1, 0
_GREATEST_ID = 2**31 - 1
_GREATEST_EPOCH = 2**31 - 1


@attrs.define(eq=False, slots=True)
class Session(Generic[K, Q]):
    """`asked`: the last question about each partition. `epoch`: that of the next request."""

    session_id: int
    asked: dict[K, Q]
    epoch: int = 1
    told: dict[K, tuple[int, int, int]] = attrs.Factory(dict)
    """High watermark, last stable offset and log start of each partition, as they were told last."""


@attrs.define(eq=False)
class Slots:
    """How many sessions a listener has. seed: for ids, which nobody should guess."""

    random: Random
    used: int = 0
    limit: int = MOST_SESSIONS
    partitions: int = 0
    most_partitions: int = MOST_PARTITIONS

    def has_room(self, partitions: int) -> bool:
        """Whether sessions may have so many partitions more."""
        return self.partitions + partitions <= self.most_partitions


class UnknownSessionError(Exception):
    """FETCH_SESSION_ID_NOT_FOUND."""


class WrongEpochError(Exception):
    """INVALID_FETCH_SESSION_EPOCH."""


class Sessions(Generic[K, Q]):
    """Those of one connection."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._sessions: dict[int, Session[K, Q]] = {}

    def begin(self, asked: Mapping[K, Q]) -> Session[K, Q] | None:
        """A new session; None if there is no place for one."""
        if len(self._sessions) >= MOST_OF_A_CLIENT:
            self.end(next(iter(self._sessions)))
        if not asked or self._slots.used >= self._slots.limit or not self._slots.has_room(len(asked)):
            return None
        self._slots.used += 1
        self._slots.partitions += len(asked)
        session_id = self._slots.random.randint(1, _GREATEST_ID)
        while session_id in self._sessions:
            session_id = self._slots.random.randint(1, _GREATEST_ID)
        session = self._sessions[session_id] = Session(session_id, dict(asked))
        return session

    def go_on(
        self, session_id: int, epoch: int, changed: Mapping[K, Q], forgotten: Iterable[K]
    ) -> Session[K, Q]:
        """The session, after what a request says of it.

        Raises:
          UnknownSessionError: There is none of this id here, or there is no room for what it is to have.
          WrongEpochError: It is another request's turn.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise UnknownSessionError
        if epoch != session.epoch:
            raise WrongEpochError
        session.epoch = session.epoch + 1 if session.epoch < _GREATEST_EPOCH else 1
        before = len(session.asked)
        for key in forgotten:
            session.asked.pop(key, None)
            session.told.pop(key, None)
        for key, question in changed.items():
            session.asked[key] = question
        self._slots.partitions += len(session.asked) - before
        if len(session.asked) > MOST_OF_A_SESSION or not self._slots.has_room(0):
            self.end(session_id)
            raise UnknownSessionError
        return session

    def end(self, session_id: int) -> None:
        """Forget a session, if there is one of this id."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._slots.used -= 1
            self._slots.partitions -= len(session.asked)

    def end_all(self) -> None:
        """The connection has ended."""
        for session_id in list(self._sessions):
            self.end(session_id)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def ids(self) -> Collection[int]:
        return self._sessions.keys()
