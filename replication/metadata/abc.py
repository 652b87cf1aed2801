"""The interface of a metadata store: what the framework asks of it and what it may rely on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import ClassVar, Self

import trio

from ._limits import Limits
from ._transaction import check_prefix
from ._values import Compare, Delta, Listing, Operation, Outcome, Read, TooOld, WatchEvent
from .errors import StoreUnsupportedError

API_VERSION = (1, 0)
"""Of this interface, as (major, minor): another major number is refused, and so is a greater minor one."""


class Session(ABC):
    """Proof that its holder is alive, and owner of ephemeral keys.

    The store renews it from the event loop, so that a holder whose loop hangs loses it. Once a session is over
    it never comes back, and its ephemeral keys are gone for every reader.

    id: unique in the store, never used again. timeout_ms: how long it survives its last renewal.
    expired: set as soon as this process knows, or must assume, that the session is over (`close` sets it too).
    """

    id: int
    timeout_ms: int
    expired: trio.Event

    @abstractmethod
    async def close(self) -> None:
        """End the session now and delete its ephemeral keys in one transaction. A second close does nothing."""


class Watch(ABC):
    """Level-triggered news of one prefix, for one consumer.

    The first event comes at once; after that, events are coalesced while nobody asks. The last change is never
    missed: list after each event and you end up with the newest state. Iteration ends when the watch is left,
    and raises `StoreClosedError` if the store is left first.
    """

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> WatchEvent:
        """Wait for the next `Changed` or `Resync`."""


class MetadataStore(ABC):
    """A handle on a small, strongly consistent store of keys; entered once with `async with`.

    Keys are non-empty strings without NUL, values are bytes. All reads and transactions are linearizable. The
    store's revision rises with each transaction that changed something, the end of a session included, and never
    goes back; every reading carries it, and with it the store's identity (`store_id`), a random text that the store
    was given when it was made. A reader that finds another identity, or a revision below one that it knows, is not
    at the store that it knew: another one lies at its address, or an older state of it was restored. Every method
    raises `StoreUnavailableError` if the store cannot be reached (nothing happened) and `StoreClosedError` outside
    of the `async with`. A method that is cancelled may or may not take effect.

    api_version: of the interface that the store was written for; a plugin writes the numbers out.
    default_session_timeout_ms: of a node's session where its settings name none.
    is_elsewhere: whether a server keeps the store, which may be away for a while. Nodes that start wait for it, and
    the log tells its outages.
    """

    api_version: ClassVar[tuple[int, int]] = API_VERSION
    default_session_timeout_ms: int = 1_000
    is_elsewhere: bool = False

    @property
    def limits(self) -> Limits:
        """The limits of one commit; more is refused at once with `TransactionTooLargeError`.

        The figures hold while the handle is open; a store that has to ask for them does so when it is entered.
        """
        return Limits()

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Connect. Raises `StoreUnavailableError`, `StoreCorruptError` or `StoreVersionError`."""

    @abstractmethod
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close every session of this handle, end its watches, release everything."""

    @abstractmethod
    async def get(self, key: str) -> Read:
        """Read one key."""

    @abstractmethod
    async def list(self, prefix: str) -> Listing:
        """Read all keys that start with `prefix` ("" for all) in one snapshot."""

    async def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        """The changes under `prefix` since `since_revision`; they cost what has changed, not what is there.

        `since_revision` is that of a `Listing` or a `Delta` of this prefix, or of any other read or commit of this
        store. Like a list it shows every transaction that was committed before the call. The deltas add up to what
        a list shows at their revision, whatever deletes, ends of sessions, lost connections and restarts lie in
        between:

            listing = await store.list("topics/")
            async for _ in events:
                delta = await store.changes("topics/", listing.revision)
                if isinstance(delta, TooOld):
                    listing = await store.list("topics/")
                else:
                    listing = delta.apply(listing)

        The history is bounded, and `TooOld` the answer beyond it. A store that keeps none may always give that
        answer, as this method does: its callers list.
        """
        check_prefix(prefix)
        now = await self.list(prefix)
        return TooOld(now.revision, now.store_id)

    @abstractmethod
    async def commit(
        self,
        compares: Sequence[Compare],
        operations: Sequence[Operation],
        *,
        session: Session | None = None,
    ) -> Outcome:
        """Carry out all operations if all compares hold, else nothing.

        The operations are durable before this returns, and before any handle sees them.
        Compares see the state before the operations; a key may be put or deleted once only. With a `session` of
        this handle the transaction also requires that the session lives; ephemeral puts need one.
        Raises `SessionExpiredError` (nothing written), `InvalidTransactionError`, and of these
        `TransactionTooLargeError` for what is not within `limits`.
        """

    async def raise_revision(self, floor: int, *, store_id: str | None = None) -> int:
        """Put the store's revision above `floor`, once, and return it: for the repair of a store.

        A store that was restored from a backup, or made in place of one that was lost, stands at a lower revision
        than its readers have seen, and would give the revisions in between a second time. The former history is
        forgotten: `changes` since any former revision is `TooOld`, and sessions get ids that nobody has had. With a
        `store_id` the store takes that identity, so that its readers take it for the one that they know.
        Raises `StoreUnsupportedError`: the store cannot do this.
        """
        raise StoreUnsupportedError(f"{type(self).__name__} cannot raise its revision")

    def ddl(self) -> str:
        """The statements that an administrator runs to make the store, where its users may not.

        Of a handle that was not entered, too. Raises `StoreUnsupportedError`: the store is made in another way.
        """
        raise StoreUnsupportedError(
            f"{type(self).__name__} is made without statements, when it is first opened"
        )

    @abstractmethod
    async def open_session(self, timeout_ms: int) -> Session:
        """Open a session that ends `timeout_ms` after its last renewal."""

    @abstractmethod
    def watch(self, prefix: str) -> AbstractAsyncContextManager[Watch]:
        """Watch all keys that start with `prefix`.

        The end of a session counts as a change of its ephemeral keys. Watch first, then list after each event:

            async with store.watch("topics/") as events:
                async for _ in events:
                    listing = await store.list("topics/")
        """
