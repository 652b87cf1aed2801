"""Fetch sessions: a follower tells each question once, and its leader remembers those that are open (KIP-227).

A question is open from when it is asked until an answer to it is sent. A request says which questions are new and
which are withdrawn; an answer has those that there is something to say about. So a request is worth exactly as much
as one that repeats every open question, and an idle partition costs nothing.

Both ends count answers. A request names how many have arrived: if the last one was lost, its questions are open
again; any other difference, or a session that the leader does not know, ends the session, and the follower begins
another by asking everything. A request has a limited size: of many changes it tells some, and the requests that
follow tell the others. Unlike Kafka's, a session survives a request that was given up before its answer came:
what was not confirmed by an answer is told again.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from ...errors import ErrorCode
from ...types import named

K = TypeVar("K", bound=Hashable)
Q = TypeVar("Q")

NO_SESSION = 0
WITHOUT_SESSION = -1
"""`session_epoch` of a request that is complete in itself and begins no session."""
NEW_SESSION = 0
"""`session_epoch` of a request that asks for a session, and begins to tell every open question."""


class SessionRequest(NamedTuple, Generic[K, Q]):
    """`session_epoch`: how many answers have arrived in this session."""

    session_id: int
    session_epoch: int
    questions: Mapping[K, Q]
    withdrawn: tuple[K, ...]


class FollowerSession(Generic[K, Q]):
    """The asking end, for one leader. `ask` and `withdraw` at any time; one request is under way at most."""

    def __init__(self) -> None:
        self.open: dict[K, Q] = {}
        """Every question to which no answer has come."""
        self._id = NO_SESSION
        self._answers = 0
        self._untold: dict[K, Q | None] = {}
        """Changes that no answer has confirmed; None: withdrawn."""
        self.is_refused = False
        """Whether the leader has answered without a session: it has no room for one."""
        self._sent: dict[K, Q | None] = {}

    def ask(self, key: K, question: Q) -> None:
        """Ask this of `key`, and nothing that was asked of it before."""
        self.open[key] = self._untold[key] = question

    def withdraw(self, key: K) -> None:
        if self.open.pop(key, None) is not None:
            self._untold[key] = None

    @property
    def is_behind(self) -> bool:
        """Whether there are changes that the last request had no room for."""
        return len(self._untold) > len(self._sent)

    @property
    def told(self) -> int:
        """How many changes the last request tells."""
        return len(self._sent)

    def request(self, most: int | None = None) -> SessionRequest[K, Q]:
        """The request to send now, with at most `most` changes, the oldest first; the request before counts as
        given up if it was not answered.
        """
        if self._id == NO_SESSION:
            # A session that does not exist knows no question, so there is none to withdraw. What the request before
            # had no room for goes first: where the leader gives no session, it would never be asked otherwise.
            waiting = {key: asked for key, asked in self._untold.items() if asked is not None}
            self._untold = {**waiting, **self.open}
        elif not self._untold:
            # As most often: a follower that has everything asks again, or hears a high watermark.
            self._sent = {}
            return named(SessionRequest, (self._id, self._answers, {}, ()))
        untold = self._untold
        whole = most is None or len(untold) <= most
        sent = self._sent = untold.copy() if whole else dict(islice(untold.items(), most))
        if self._id != NO_SESSION and len(sent) == 1:
            # As most often otherwise: one partition goes on.
            ((key, question),) = sent.items()
            if question is not None:
                return named(SessionRequest, (self._id, self._answers, {key: question}, ()))
        questions = {key: asked for key, asked in sent.items() if asked is not None}
        if self._id == NO_SESSION:
            return SessionRequest(NO_SESSION, NEW_SESSION, questions, ())
        withdrawn = tuple(key for key, asked in sent.items() if asked is None)
        return SessionRequest(self._id, self._answers, questions, withdrawn)

    def answered(self, session_id: int, keys: Iterable[K]) -> dict[K, Q]:
        """The answer to the last request came, about `keys`; the questions that it answers.

        Questions that were asked again or withdrawn since that request was sent are not among them.
        """
        if session_id != self._id:
            self._id, self._answers = session_id, 0
        self.is_refused = session_id == NO_SESSION
        self._answers += 1
        untold, opened, found = self._untold, self.open, {}
        for key, asked in self._sent.items():
            if key in untold and untold[key] is asked:
                del untold[key]
        for key in keys:
            if key in opened and key not in untold:
                found[key] = opened.pop(key)
        return found

    def end(self) -> None:
        """The session is over (refused, or its connection is gone): all that is open is asked again, in another."""
        self._id = NO_SESSION
        self._untold = dict(self.open)


class LeaderSession(Generic[K, Q]):
    """The answering end of one session. `owner`: the connection that began it, and the only one that may use it."""

    def __init__(self, session_id: int, owner: object = None) -> None:
        self.id = session_id
        self.owner = owner
        self.open: dict[K, Q] = {}
        self.answers = 0
        self._last: dict[K, Q] = {}
        """The questions of the last answer, which may have been lost."""

    def begin(self, questions: Mapping[K, Q]) -> None:
        self.open = dict(questions)

    def accept(self, request: SessionRequest[K, Q]) -> Collection[K] | None:
        """Take a request: the keys whose question is new or open again; None if it is of no use here."""
        changed = request.questions
        if request.session_epoch == self.answers - 1:
            changed = {**self._last, **changed}
            self.answers -= 1
        elif request.session_epoch != self.answers:
            return None
        self._last = {}
        self.open.update(changed)
        if not request.withdrawn:
            return list(changed)
        for key in request.withdrawn:
            self.open.pop(key, None)
        return [key for key in changed if key in self.open]

    def answer(self, keys: Iterable[K]) -> None:
        """An answer about `keys` is sent: their questions are open no more, unless it gets lost."""
        self._last = {key: self.open.pop(key) for key in keys}
        self.answers += 1


class SessionCache(Generic[K, Q]):
    """A leader's sessions, `slots` of them at most.

    When all are taken, the one that was used least recently gives way, if nobody has used it for `idle` seconds
    (KIP-227's `min.incremental.fetch.session.eviction.ms`). Otherwise nobody gets one more: followers that took
    each other's in turn would ask everything again each time, and the leader's answers would be wasted.
    Ids are drawn from `seed`, which the host keeps secret: nobody can guess the id of a session that another began.
    An id alone opens nothing either: `find` also compares the connection.
    """

    def __init__(self, slots: int, seed: bytes = b"", *, idle: float = 0.0) -> None:
        self._slots = slots
        self._idle = idle
        self._seed = seed
        self._drawn = 0
        self._sessions: dict[int, LeaderSession[K, Q]] = {}
        """The least recently used first."""
        self._used: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, questions: Mapping[K, Q], now: float, owner: object = None
    ) -> tuple[LeaderSession[K, Q] | None, LeaderSession[K, Q] | None]:
        """A new session, and the one that has given way to it; each None if there is none."""
        evicted = None
        if len(self._sessions) >= self._slots:
            oldest = next(iter(self._sessions))
            if now - self._used[oldest] < self._idle:
                return None, None
            evicted = self._sessions[oldest]
            self.end(oldest)
        session: LeaderSession[K, Q] = LeaderSession(self._new_id(), owner)
        session.begin(questions)
        self._sessions[session.id], self._used[session.id] = session, now
        return session, evicted

    def find(self, session_id: int, now: float, owner: object = None) -> LeaderSession[K, Q] | ErrorCode:
        """The session that `owner` began under this id, which counts as used now; an error if there is none.

        To another connection a session does not exist: it cannot continue, change, refresh or end it, nor learn
        that its id is in use.
        """
        session = self._sessions.get(session_id)
        if session is None or session.owner is not owner:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        self._sessions[session_id] = self._sessions.pop(session_id)  # the most recently used stands last
        self._used[session_id] = now
        return session

    def end(self, session_id: int) -> None:
        if self._sessions.pop(session_id, None) is not None:
            del self._used[session_id]

    def _new_id(self) -> int:
        """An id that is in use by no session; 63 bits, as the wire's integers are signed, never `NO_SESSION`."""
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            self._drawn += 1
            digest = blake2b(self._drawn.to_bytes(8, "big"), key=self._seed, digest_size=8).digest()
            session_id = int.from_bytes(digest, "big") >> 1
        return session_id
