"""A log applied to a machine: sessions, repeated commands, idempotency keys and the lease. Pure: no clock, no I/O.

All of it is part of the state: every copy remembers, and forgets, the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import attrs

from ._entries import Close, Commands, Digest, Entry, Lease, Open, Snapshotted, decode
from ._packing import pack, unpack
from .errors import StateError
from .machine import Context, Read, StateMachine, Write

WINDOW = 1 << 14
"""Maximum unanswered commands of a session, which is also the number of remembered answers."""
MOST_SESSIONS = 100_000
"""Beyond that the one that was used least recently is forgotten."""
KEPT_SNAPSHOTS = 2
"""The log begins where the older of them ends."""
_PIECE = 5_000


@attrs.frozen(slots=True)
class Answer:
    """The result of a command; `error`: name of the exception's class, empty if there was none."""

    data: bytes
    error: str = ""
    exception: BaseException | None = attrs.field(default=None, eq=False)
    """The very exception, where it was raised here."""


FENCED = Answer(b"", "fenced")
FORGOTTEN = Answer(b"", "forgotten")


@attrs.define(slots=True)
class Session:
    """One opened handle: the answers that it may yet ask for, by number."""

    token: int
    nonce: bytes
    low: int = 0
    next: int = 0
    """No command with this number or above has been applied."""
    answers: dict[int, Answer] = attrs.Factory(dict)


@attrs.frozen(slots=True)
class Applied:
    """One command that was applied, or answered from memory (`repeated`)."""

    context: Context
    name: str
    token: int
    number: int
    command: bytes
    answer: Answer
    repeated: bool


class Applier:
    """One copy of one partition: feed it every record, in order."""

    def __init__(self, machine: StateMachine, seed: str = "") -> None:
        self.machine = machine
        self.seed = seed
        self.position = 0
        """The offset of the next record."""
        self.commands = 0
        """That were applied so far, in all of the log."""
        self.clock_ms = 0
        """The greatest timestamp so far."""
        self.sessions: dict[str, Session] = {}
        """The least recently used first."""
        self.keyed: dict[str, Answer] = {}
        self._expiry: deque[tuple[int, str]] = deque()
        """Idempotency keys by the time at which they are forgotten; in order, as `deduplicate_for_ms` allows."""
        self.keeper = ""
        """The copy that keeps snapshots and digests."""
        self.keeper_until = 0
        self.snapshots: list[Snapshotted] = []
        """The newest ones, in order; those before them may be taken away."""
        self.snapshot_commands = 0
        """How many commands had been applied when the newest was told of."""
        self.entry: Entry | None = None
        """The entry in the last record."""

    # Records

    def apply(self, offset: int, timestamp_ms: int, value: bytes | None) -> list[Applied]:
        """One record; the commands of it. A record below `position` was applied before and changes nothing."""
        if offset < self.position:
            return []
        self.position = offset + 1
        entry = self.entry = decode(value)
        if entry is None:
            return []
        self.clock_ms = max(self.clock_ms, timestamp_ms)
        match entry:
            case Commands():
                return self._commands(offset, entry)
            case Open():
                self.sessions.pop(entry.name, None)
                self.sessions[entry.name] = Session(offset, entry.nonce)
                while len(self.sessions) > MOST_SESSIONS:
                    del self.sessions[next(iter(self.sessions))]
            case Close():
                session = self.sessions.get(entry.name)
                if session is not None and session.token == entry.token:
                    del self.sessions[entry.name]
            case Lease():
                if entry.copy == self.keeper or self.clock_ms >= self.keeper_until:
                    self.keeper, self.keeper_until = entry.copy, self.clock_ms + entry.lasts_ms
            case Snapshotted():
                if not self.snapshots or entry.offset > self.snapshots[-1].offset:
                    self.snapshots = [*self.snapshots[1 - KEPT_SNAPSHOTS :], entry]
                    self.snapshot_commands = self.commands
            case Digest():
                pass
        return []

    def _commands(self, offset: int, entry: Commands) -> list[Applied]:
        session = self.sessions.get(entry.name)
        self._forget_keys()
        done: list[Applied] = []
        name, token, first = entry.name, entry.token, entry.first
        is_current = session is not None and session.token == token
        if is_current:
            assert session is not None
            # Used now: it stands last.
            self.sessions[name] = self.sessions.pop(name)
            self._let_go(session, entry.low)
        for index, command in enumerate(entry.commands):
            context = Context(offset, index, self.clock_ms, name, self.seed)
            number, key = first + index, entry.keys.get(index)
            repeated = True
            if not is_current or session is None:
                answer = FENCED
            elif number < session.low:
                answer = FORGOTTEN
            elif (known := session.answers.get(number)) is not None:
                answer = known
            else:
                if key is not None and key in self.keyed:
                    answer = self.keyed[key]
                else:
                    answer, repeated = self._do(context, command), False
                    if key is not None:
                        self._remember(key, answer, entry.deduplicate_for_ms)
                session.answers[number] = answer
                if number >= session.next:
                    session.next = number + 1
            done.append(Applied(context, name, token, number, command, answer, repeated))
        if is_current and session is not None and len(session.answers) > WINDOW:
            self._let_go(session, session.next - WINDOW)
        return done

    def _do(self, context: Context, command: bytes) -> Answer:
        self.commands += 1
        try:
            return Answer(self.machine.apply(context, command))
        except Exception as error:  # noqa: BLE001 - it is the answer, on every copy
            # Without its frames: they would keep alive whatever the machine had at hand.
            return Answer(_said(error), type(error).__name__, error.with_traceback(None))

    def _let_go(self, session: Session, low: int) -> None:
        if low <= session.low:
            return
        answers = session.answers
        if low - session.low > len(answers):
            session.answers = {number: answer for number, answer in answers.items() if number >= low}
        else:
            for number in range(session.low, low):
                answers.pop(number, None)
        session.low = low

    def _remember(self, key: str, answer: Answer, lasts_ms: int) -> None:
        self.keyed[key] = answer
        until = self.clock_ms + lasts_ms
        if self._expiry and self._expiry[-1][0] > until:
            # Another handle remembers for longer: by order of time, or this one would wait for that one.
            kept = [*self._expiry, (until, key)]
            kept.sort()
            self._expiry = deque(kept)
        else:
            self._expiry.append((until, key))

    def _forget_keys(self) -> None:
        expiry, now = self._expiry, self.clock_ms
        while expiry and expiry[0][0] <= now:
            self.keyed.pop(expiry.popleft()[1], None)

    # Snapshots

    def snapshot(self, write: Write) -> None:
        """All of the state, the machine's included."""
        self._write_own(write)
        self.machine.snapshot(write)

    def view(self) -> Callable[[Write], None] | None:
        """As `StateMachine.view`, of all of the state."""
        view = self.machine.view()
        if view is None:
            return None
        own: list[bytes] = []
        self._write_own(own.append)

        def write_all(write: Write) -> None:
            for piece in own:
                write(piece)
            view(write)

        return write_all

    def _write_own(self, write: Write) -> None:
        sessions = [
            [name, session.token, session.nonce, session.low, session.next, _packed(session.answers)]
            for name, session in self.sessions.items()
        ]
        keyed = [[until, key, *_fields(self.keyed[key])] for until, key in self._expiry if key in self.keyed]
        head = [
            self.position,
            self.commands,
            self.clock_ms,
            self.keeper,
            self.keeper_until,
            [[each.offset, each.name, each.chunks] for each in self.snapshots],
            -(-len(sessions) // _PIECE),
            -(-len(keyed) // _PIECE),
        ]
        write(pack(head))
        for rows in (sessions, keyed):
            for at in range(0, len(rows), _PIECE):
                write(pack(rows[at : at + _PIECE]))

    def restore(self, read: Read) -> None:
        """Become what was written.

        Raises:
          StateError: The data is not a snapshot.
        """
        head = _next(read)
        position, commands, clock_ms, keeper, keeper_until, snapshots, sessions, keyed = head
        self.position, self.commands, self.clock_ms = position, commands, clock_ms
        self.keeper, self.keeper_until = keeper, keeper_until
        self.snapshots = [Snapshotted(*each) for each in snapshots]
        self.snapshot_commands = commands
        self.sessions, self.keyed, self._expiry = {}, {}, deque()
        for _ in range(sessions):
            for name, token, nonce, low, following, answers in _next(read):
                self.sessions[name] = Session(
                    token,
                    nonce,
                    low,
                    following,
                    {number: Answer(data, error) for number, data, error in answers},
                )
        for _ in range(keyed):
            for until, key, data, error in _next(read):
                self.keyed[key] = Answer(data, error)
                self._expiry.append((until, key))
        self.machine.restore(read)

    def digest(self) -> bytes:
        """Equal where the state is equal."""
        own = blake2b(digest_size=16)
        self._write_own(own.update)
        own.update(self.machine.digest())
        return own.digest()


def _packed(answers: dict[int, Answer]) -> list[list[Any]]:
    return [[number, *_fields(answers[number])] for number in sorted(answers)]


def _fields(answer: Answer) -> list[Any]:
    return [answer.data, answer.error]


def _next(read: Read) -> Any:
    piece = read()
    if piece is None:
        raise StateError("the snapshot ends too early")
    return unpack(piece)


def _said(error: Exception) -> bytes:
    """An exception's arguments as bytes, or at least its text."""
    try:
        return pack(list(error.args))
    except StateError:
        return pack([str(error)])
