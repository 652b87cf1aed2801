"""How much of what peers send unasked is held at a time.

Two bounds, of the payloads of requests until their handlers release them, and of their bodies until they are
answered. For one connection the receiver grants credit, a window of bytes; who asks holds back what would exceed
it, while answers, cancels and signs of life pass.
For all connections of an event loop there is one budget: a payload that finds no room in it stays unread in the
system's buffers, each link in its turn (Kafka's memory pool mutes channels for the same reason). Of bodies, which
have no credit, a connection that has many is not read further. Answers count nowhere: who asks says beforehand how
much may come.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Literal, Self

import trio

from ..abc import Payload
from ..errors import ProtocolError
from ..frames import LARGE_BODY

DEFAULT_BUDGET = 128 << 20
"""Bytes of requests that a process holds at a time if nothing else is said."""
BODY_SHARE = 4
"""This fraction of the budget is for the bodies of requests that wait for their answers."""
FREE_BODIES = 64 << 10
"""Bytes of bodies that each connection may have with handlers, whatever the others have."""
MOST_BODIES = 8 << 20
"""And what it may have at most: more is not read until some are answered."""
FREELY = 4
"""Below this fraction of the window a payload of any size may go; above it credit is returned."""


class ReceiveBudget:
    """Bytes of request payloads that the connections of one event loop hold together.

    A payload larger than `limit` is let in when nothing else is held. Belongs to one trio thread.
    """

    def __init__(self, limit: int = DEFAULT_BUDGET) -> None:
        if limit <= 0:
            raise ValueError(f"a receive budget of {limit} bytes lets nothing in: use a number above 0")
        self.limit = limit
        self.used = 0
        self.bodies = 0
        """Bytes of the bodies of requests that are not answered yet; what is made of them takes as much again."""
        self._turns: dict[Hashable, trio.Event] = {}
        """The waiters, the longest first."""

    @property
    def has_many_bodies(self) -> bool:
        return self.bodies * BODY_SHARE > self.limit

    @property
    def is_exceeded(self) -> bool:
        """Small payloads, which come with others in one read, may go beyond the limit."""
        return self.used > self.limit

    def reserve(self, who: Hashable, nbytes: int) -> bool:
        """Take room, if there is some and nobody has waited for longer; else `wait`."""
        if self._turns and next(iter(self._turns)) is not who:
            return False
        if self.used and self.used + nbytes > self.limit:
            return False
        self.used += nbytes
        self.leave(who)
        return True

    async def wait(self, who: Hashable) -> None:
        """Return when `reserve` is worth another attempt; the place in the queue stays until that succeeds."""
        if who not in self._turns or self._turns[who].is_set():
            self._turns[who] = trio.Event()
        await self._turns[who].wait()

    def keeps_waiting(self, who: Hashable) -> bool:
        """Whether a payload of theirs has not found room yet."""
        return who in self._turns

    def take(self, nbytes: int) -> None:
        """Count what is here already."""
        self.used += nbytes

    def give(self, nbytes: int) -> None:
        """There is room again."""
        self.used -= nbytes
        self._wake()

    def leave(self, who: Hashable) -> None:
        """Wait no more."""
        if self._turns.pop(who, None) is not None:
            self._wake()

    def _wake(self) -> None:
        if self._turns:
            next(iter(self._turns.values())).set()


_of_this_run: trio.lowlevel.RunVar[ReceiveBudget] = trio.lowlevel.RunVar("receive budget")


def common_budget() -> ReceiveBudget:
    """The budget of all connections of this event loop for which no other is given."""
    try:
        return _of_this_run.get()
    except LookupError:
        budget = ReceiveBudget()
        _of_this_run.set(budget)
        return budget


class Intake:
    """The payloads of one connection's requests, from their arrival until they are released.

    `window` is the credit granted to the peer; `knows_credit` whether the peer keeps to it. `on_credit` is called
    with bytes of credit to return, `on_release` after each release.
    """

    def __init__(
        self,
        budget: ReceiveBudget,
        *,
        window: int,
        knows_credit: bool,
        on_credit: Callable[[int], None],
        on_release: Callable[[], None],
    ) -> None:
        self.held = 0
        self.bodies = 0
        self._budget = budget
        self._window, self._knows_credit = window, knows_credit
        self._on_credit, self._on_release = on_credit, on_release
        self._owed = 0
        self._reserved = 0

    @property
    def is_congested(self) -> bool:
        """Nothing more should be read until something is released."""
        if self.bodies > FREE_BODIES and (self.bodies > MOST_BODIES or self._budget.has_many_bodies):
            return True
        if not self.held:
            return False
        return self._budget.is_exceeded or (not self._knows_credit and self.held > self._window)

    @property
    def is_held_back(self) -> bool:
        """Nothing more is read: for its own sake, or until others have released something."""
        return self.is_congested or self._budget.keeps_waiting(self)

    def admits(self, nbytes: int, body: int = 0) -> bool:
        """Whether room for a payload and a large body could be reserved, before there is memory; else `wait`.

        Raises:
          ProtocolError: The peer has no credit for the payload.
        """
        self._check_credit(nbytes)
        nbytes += body
        if not self._budget.reserve(self, nbytes):
            return False
        self._reserved += nbytes
        return True

    async def wait(self) -> None:
        await self._budget.wait(self)

    def body_arrived(self, nbytes: int) -> None:
        """Count a request's body until `body_done`."""
        self.bodies += nbytes
        self._budget.bodies += nbytes
        if nbytes > LARGE_BODY and self._reserved >= nbytes:
            self._reserved -= nbytes
            self._budget.give(nbytes)

    def body_done(self, nbytes: int) -> None:
        """The request is answered, or nobody waits for the answer any more."""
        self.bodies -= nbytes
        self._budget.bodies -= nbytes

    def arrived(self, payload: Payload) -> Payload:
        """Count a payload until it is released. Raises ProtocolError as `admits`, and releases it."""
        nbytes = payload.nbytes
        if self._reserved >= nbytes:
            self._reserved -= nbytes
        else:
            self._budget.take(nbytes)
        try:
            self._check_credit(nbytes)
        except ProtocolError:
            self._budget.give(nbytes)
            payload.release()
            raise
        self.held += nbytes
        return CountedPayload(payload, self)

    def released(self, nbytes: int) -> None:
        self.held -= nbytes
        self._budget.give(nbytes)
        self._owed += nbytes
        if self._knows_credit and self._owed * FREELY >= self._window:
            credit, self._owed = self._owed, 0
            self._on_credit(credit)
        self._on_release()

    def end(self) -> None:
        """The connection is over; what handlers still hold counts until they release it."""
        self._budget.leave(self)
        self._budget.give(self._reserved)
        self._reserved = 0
        # What handlers still hold must not hold the connection, too.
        self._on_credit, self._on_release = _nobody, _nobody

    def _check_credit(self, nbytes: int) -> None:
        used = self.held + self._owed
        if self._knows_credit and not has_credit(used, nbytes, self._window):
            raise ProtocolError(
                f"a payload of {nbytes} bytes came without credit: {used} of {self._window} bytes are used"
            )


def _nobody(*_: int) -> None:
    """The callback for events after the end."""


def has_credit(used: int, nbytes: int, window: int) -> bool:
    """The rule for both sides: what fits may go, and anything while most of the window is free."""
    return used + nbytes <= window or used * FREELY < window


class CountedPayload:
    """A payload that its connection counts until it is released."""

    __slots__ = ("_inner", "_intake", "nbytes", "source")

    def __init__(self, inner: Payload, intake: Intake) -> None:
        self._inner = inner
        self._intake: Intake | None = intake
        self.nbytes = inner.nbytes
        self.source: Literal["pooled", "ring", "range"] = inner.source

    def view(self) -> memoryview:
        """The bytes. Raises ValueError after `release()`."""
        return self._inner.view()

    def copy_to(self, fd: int, offset: int) -> int:
        """Write all of it to a file at `offset`; returns the number of bytes."""
        return self._inner.copy_to(fd, offset)

    def release(self) -> None:
        """Give memory and credit back. Idempotent."""
        intake, self._intake = self._intake, None
        if intake is not None:
            self._inner.release()
            intake.released(self.nbytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
