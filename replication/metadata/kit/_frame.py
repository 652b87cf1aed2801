"""The frame of the conformance kit: what a store under test supplies, and how a case is written and run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from ....transport.patience import PATIENCE
from ....transport.verdicts import NotTestedError
from ...promises import Promise, PromiseBrokenError, expect
from .._values import Committed, Compare, Delete, Operation, Outcome
from ..abc import MetadataStore, Session, Watch

CASE_SECONDS = 20.0
"""How long one case may take before it counts as hung."""
LONG_MS = 60_000
"""The timeout of sessions whose end no case waits for: nothing that holds the process up ends them."""
_DELETED_AT_ONCE = 50


class Bench(ABC):
    """One shared, initially empty store, for one case.

    timeout_ms: a session timeout that the store grants; cases wait for it to pass, so keep it short.
    late_seconds: how late a change or an expiry may become visible to another handle.
    Both are those of a usual machine. The cases use them times the patience, `INSYNC_KIT_PATIENCE`.
    keeps_history: whether `changes` gives deltas; a store without a history always answers `TooOld`.
    has_connections: whether a handle has a connection that can be lost, and `disconnect` cuts it.
    renews_sessions: whether sessions live by renewals from the event loop, as in all stores but one in memory.
    """

    timeout_ms: int = 400
    late_seconds: float = 0.1
    keeps_history: bool = True
    has_connections: bool = True
    renews_sessions: bool = True

    @property
    def short_ms(self) -> int:
        """The timeout of sessions whose end a case waits for."""
        return round(self.timeout_ms * PATIENCE)

    @property
    def short_seconds(self) -> float:
        """The same in seconds."""
        return self.short_ms / 1000

    @property
    def late(self) -> float:
        """How late, in seconds, a change or an expiry may be seen here."""
        return self.late_seconds * PATIENCE

    @abstractmethod
    def handle(self) -> MetadataStore:
        """A new handle on the shared store, not entered yet."""

    @abstractmethod
    def lose(self, session: Session) -> None:
        """Stop renewing `session`, as if its process had been stopped, without ending it in any other way."""

    async def disconnect(self, store: MetadataStore) -> bool:
        """Cut the connection of a handle, as a network does; it connects again by itself. False: nothing is cut."""
        return False


class Case(Promise[Bench]):
    """One promise of the interface."""

    subject = "store"
    seconds = CASE_SECONDS

    async def restore(self, bench: Bench) -> None:
        """Empty the store."""
        with trio.fail_after(self.seconds * PATIENCE):
            async with bench.handle() as store:
                keys = list((await store.list("")).entries)
                for at in range(0, len(keys), _DELETED_AT_ONCE):
                    await commit(store, *map(Delete, keys[at : at + _DELETED_AT_ONCE]))


async def cut(bench: Bench, store: MetadataStore) -> bool:
    """Cut the connection of a handle. False: it has none."""
    if not bench.has_connections:
        return False
    if not await bench.disconnect(store):
        raise NotTestedError(
            "the bench cut no connection; override `disconnect` so that it cuts that of the handle and returns "
            "True, or set `has_connections = False` for a store without connections"
        )
    return True


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


async def see(bench: Bench, watch: Watch, revision: int, what: str) -> None:
    """Take events until one reaches `revision`; that must not be late."""
    with trio.move_on_after(bench.late) as scope:
        while (await watch.__anext__()).revision < revision:
            pass
    expect(not scope.cancelled_caught, f"no event for {what}, of revision {revision}")
