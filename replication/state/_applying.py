"""A log applied to a machine: sessions, repeated commands, idempotency keys and the lease. Pure: no clock, no I/O.

All of it is part of the state: every copy remembers, and forgets, the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import attrs

from . import _versions
from ._entries import Call, Close, Commands, Digest, Entry, Join, Lease, Open, Raise, Snapshotted, decode
from ._packing import pack, unpack
from .errors import MigrationError, StateError, StateVersionError, WrongStateClassError
from .machine import Context, Read, StateMachine, Write

WINDOW = 1 << 14
"""Maximum unanswered commands of a session, which is also the number of remembered answers."""
MOST_SESSIONS = 100_000
"""Beyond that the one that was used least recently is forgotten."""
KEPT_SNAPSHOTS = 2
"""The log begins where the older of them ends."""
_PIECE = 5_000
_DIGEST = 16


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
    version: int = 0
    """Of the copy's code, as far as known; with `joined` no part of the digest, as earlier releases lose it."""
    joined: int = -1
    """Offset of the newest record in which it told so."""


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
        self.keyed: dict[str, tuple[Answer, bytes]] = {}
        """By idempotency key: the first answer, and the fingerprint of its command (empty: not known)."""
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
        self.state_name = ""
        """Of the topic's class; empty until a copy has told it."""
        self.version = 1
        """Of the state, and of what commands mean. Raised by a record, at the same place on all copies."""
        self.called = -1
        """The offset of the newest roll call."""

    # Records

    def apply(self, offset: int, timestamp_ms: int, value: bytes | None) -> list[Applied]:
        """One record; the commands of it. A record below `position` was applied before and changes nothing.

        Raises:
          UnfitCodeError: As in its subclasses; the record is not applied, and nothing may be applied after it.
        """
        if offset < self.position:
            return []
        entry = decode(value)
        if isinstance(entry, Join | Call | Raise):
            self._follow(offset, max(self.clock_ms, timestamp_ms), entry)
        self.position, self.entry = offset + 1, entry
        if entry is None or isinstance(entry, Join | Call | Raise):
            # These leave the time alone: releases without versions pass over them.
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

    # Versions of the code

    @property
    def code(self) -> tuple[str, int]:
        """The name and version of the machine's code."""
        return self.machine.state_name or type(self.machine).__name__, self.machine.state_version

    def behind(self, version: int) -> dict[str, Session]:
        """The sessions of copies with a lower version, or none that is known."""
        return {name: session for name, session in self.sessions.items() if session.version < version}

    def _follow(self, offset: int, now_ms: int, entry: Join | Call | Raise) -> None:
        if isinstance(entry, Call):
            self.called = offset
            return
        if self.state_name not in ("", entry.state):
            return  # of a copy that is refused by the class's name, as this one would be there
        if isinstance(entry, Join):
            session = self.sessions.get(entry.name)
            if session is not None and session.token == entry.token:
                self._check_fit(entry.state, self.version)
                self.state_name = entry.state
                session.version, session.joined = entry.version, offset
        elif entry.version > self.version and all(
            session.token < entry.seen for session in self.sessions.values()
        ):
            self._check_fit(entry.state, entry.version)
            self.state_name, self.clock_ms = entry.state, now_ms
            self.migrate(entry.version, offset, now_ms)

    def migrate(self, version: int, offset: int, now_ms: int) -> None:
        """Bring the state to this version, step by step.

        Raises:
          MigrationError: As raised by a step.
        """
        for step in range(self.version + 1, version + 1):
            try:
                self.machine.migrate(Context(offset, 0, now_ms, "", self.seed, step))
            except Exception as error:
                raise MigrationError(
                    f"{_versions.migration(step)} of {self.code[0]} raised {error!r:.200}: correct it, and start "
                    "this copy again"
                ) from error
            self.version = step

    def _check_fit(self, state: str, version: int) -> None:
        mine, newest = self.code
        if state != mine:
            wrong = WrongStateClassError(
                f"the topic holds the state of class {state!r}, and was opened with class {mine!r}: open it with "
                f"{state!r}; if that class was renamed, set state_name = {state!r} in {mine!r}"
            )
            wrong.topic_class, wrong.code_class = state, mine
            raise wrong
        if version > newest:
            old = StateVersionError(
                f"the topic has version {version} of {state!r}, and this copy's code has version {newest}: run "
                f"code with state_version = {version} or higher; there is no way back to version {newest}"
            )
            old.topic_version, old.code_version = version, newest
            raise old

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
            context = Context(offset, index, self.clock_ms, name, self.seed, self.version)
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
                    answer, _ = self.keyed[key]
                else:
                    answer, repeated = self._do(context, command), False
                    if key is not None:
                        self._remember(key, answer, fingerprint(command), entry.deduplicate_for_ms)
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

    def conflicts(self, key: str, command: bytes) -> bool:
        """Whether another command had this idempotency key first."""
        _, first = self.keyed.get(key, (None, b""))
        return first not in (b"", fingerprint(command))

    def _remember(self, key: str, answer: Answer, command: bytes, lasts_ms: int) -> None:
        self.keyed[key] = answer, command
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

    def _write_own(self, write: Write, *, only_first: bool = False) -> None:
        """`only_first`: the fields that releases without versions write; every release has their digest."""
        sessions = [
            [
                *(name, session.token, session.nonce, session.low, session.next, _packed(session.answers)),
                *(() if only_first else (session.version, session.joined)),
            ]
            for name, session in self.sessions.items()
        ]
        keyed = [
            [until, key, *_fields(self.keyed[key][0]), *(() if only_first else self.keyed[key][1:])]
            for until, key in self._expiry
            if key in self.keyed
        ]
        head: list[Any] = [
            self.position,
            self.commands,
            self.clock_ms,
            self.keeper,
            self.keeper_until,
            [[each.offset, each.name, each.chunks] for each in self.snapshots],
            -(-len(sessions) // _PIECE),
            -(-len(keyed) // _PIECE),
        ]
        if not only_first:
            head.append([self.state_name, self.version, self.called])
        write(pack(head))
        for rows in (sessions, keyed):
            for at in range(0, len(rows), _PIECE):
                write(pack(rows[at : at + _PIECE]))

    def restore(self, read: Read) -> None:
        """Become what was written.

        Raises:
          StateError: The data is not a snapshot.
          WrongStateClassError, StateVersionError: It is of code that is not this machine's.
        """
        position, commands, clock_ms, keeper, keeper_until, snapshots, sessions, keyed, *code = _next(read)
        self.state_name, self.version, self.called = code[0] if code else ("", 1, -1)
        if self.state_name:
            self._check_fit(self.state_name, self.version)
        self.position, self.commands, self.clock_ms = position, commands, clock_ms
        self.keeper, self.keeper_until = keeper, keeper_until
        self.snapshots = [Snapshotted(*each) for each in snapshots]
        self.snapshot_commands = commands
        self.sessions, self.keyed, self._expiry = {}, {}, deque()
        for _ in range(sessions):
            for name, token, nonce, low, following, answers, *joined in _next(read):
                self.sessions[name] = Session(
                    token,
                    nonce,
                    low,
                    following,
                    {number: Answer(data, error) for number, data, error in answers},
                    *joined,
                )
        for _ in range(keyed):
            for until, key, data, error, *command in _next(read):
                self.keyed[key] = Answer(data, error), command[0] if command else b""
                self._expiry.append((until, key))
        self.machine.restore(read)

    def digest(self) -> bytes:
        """Equal where the state is equal: a hash, and behind it, from version 2 on, class and version."""
        own = blake2b(digest_size=_DIGEST)
        self._write_own(own.update, only_first=True)
        own.update(self.machine.digest())
        return own.digest() + (pack([self.state_name, self.version]) if self.version > 1 else b"")


def differ(one: bytes, other: bytes) -> bool:
    """Whether two digests are of different states of the same version."""
    return one != other and one[_DIGEST:] == other[_DIGEST:]


def fingerprint(command: bytes) -> bytes:
    """By which a command under an idempotency key is known again."""
    return blake2b(command, digest_size=16).digest()


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
