"""The frame of the conformance kit: what a store under test supplies, and how a case is written and run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

from ._places import place_of
from ._values import Committed, Compare, Operation, Outcome
from .abc import MetadataStore, Session, Watch

CASE_SECONDS = 20.0
"""How long one case may take before it counts as hung."""


class PromiseBrokenError(AssertionError):
    """A store does not keep a promise of the interface."""


class Bench(ABC):
    """One shared, initially empty store, for one case.

    timeout_ms: a session timeout that the store grants; cases wait for it to pass, so keep it short.
    late_seconds: how late a change or an expiry may become visible to another handle.
    keeps_history: whether `changes` gives deltas; a store without a history always answers `TooOld`.
    renews_sessions: whether sessions live by renewals from the event loop, as in all stores but one in memory.
    """

    timeout_ms: int = 400
    late_seconds: float = 0.1
    keeps_history: bool = True
    renews_sessions: bool = True

    @abstractmethod
    def handle(self) -> MetadataStore:
        """A new handle on the shared store, not entered yet."""

    @abstractmethod
    def lose(self, session: Session) -> None:
        """Stop renewing `session`, as if its process had been stopped, without ending it in any other way."""

    async def disconnect(self, store: MetadataStore) -> bool:
        """Cut the connection of a handle, as a network does; it connects again by itself. False: it has none."""
        return False


Run = Callable[[Bench], Awaitable[None]]


@attrs.frozen
class Case:
    """One promise of the interface: its name, its sentence, and what checks it."""

    name: str
    promise: str
    check: Run

    async def run(self, bench: Bench) -> None:
        """Check it. Raises `PromiseBrokenError`, which names the promise and what was seen instead."""
        try:
            with trio.fail_after(CASE_SECONDS):
                await self.check(bench)
        except trio.TooSlowError as error:
            raise self._broken(f"the case was not over after {CASE_SECONDS:g} s") from error
        except Exception as error:
            raise self._broken("; ".join(_seen(error))) from error

    def _broken(self, seen: str) -> PromiseBrokenError:
        return PromiseBrokenError(f"the store breaks a promise. {self.promise} ({self.name})\nSeen: {seen}")


def _seen(error: BaseException) -> Iterator[str]:
    """What went wrong, without the groups around it; errors that are not the kit's own with type and place."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _seen(inner)
    elif isinstance(error, PromiseBrokenError):
        yield str(error)
    else:
        yield f"{type(error).__name__}: {error}{place_of(error)}"


def collect(cases: list[Case]) -> Callable[[Run], Run]:
    """Decorator: add the function as a case; its docstring is the promise."""

    def add(check: Run) -> Run:
        cases.append(Case(check.__name__, (check.__doc__ or "").strip(), check))
        return check

    return add


def expect(holds: bool, message: str) -> None:
    """An assertion that survives `python -O`."""
    if not holds:
        raise PromiseBrokenError(message)


def expect_equal(found: object, wanted: object, what: str) -> None:
    expect(found == wanted, f"{what}: expected {wanted!r}, found {found!r}")


@contextmanager
def raising(error: type[BaseException]) -> Iterator[None]:
    """The block must raise `error`."""
    try:
        yield
    except error:
        return
    raise PromiseBrokenError(f"{error.__name__} was not raised")


async def commit(
    store: MetadataStore,
    *operations: Operation,
    given: tuple[Compare, ...] = (),
    session: Session | None = None,
) -> Committed:
    """A commit that must succeed."""
    outcome: Outcome = await store.commit(given, operations, session=session)
    if not isinstance(outcome, Committed):
        raise PromiseBrokenError(f"{operations!r} given {given!r} ended in {outcome!r}")
    return outcome


async def value_of(store: MetadataStore, key: str) -> bytes | None:
    """The value of a key, None if it does not exist."""
    entry = (await store.get(key)).entry
    return None if entry is None else entry.value


async def see(bench: Bench, watch: Watch, revision: int, what: str, extra: float = 0.0) -> None:
    """Take events until one reaches `revision`; that must not be late."""
    with trio.move_on_after(bench.late_seconds + extra) as scope:
        while (await watch.__anext__()).revision < revision:
            pass
    expect(not scope.cancelled_caught, f"no event for {what}, of revision {revision}")
