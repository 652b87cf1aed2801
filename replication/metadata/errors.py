"""Errors of the metadata stores. `MetadataError` is their root."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches

from ..errors import ReplicationError


class MetadataError(ReplicationError):
    """Root of everything a metadata store raises."""


class StoreUnavailableError(MetadataError):
    """The store cannot be reached or is held by somebody else; nothing was read or written. Try again later."""


class StoreFullError(StoreUnavailableError):
    """The device of the store has no room for a transaction. Reads work; free some space."""


class StoreDeviceError(StoreUnavailableError):
    """The device of the store refused to read, write or sync. Check it."""


class StoreBusyError(StoreUnavailableError):
    """Another process holds the write lock; inside the SQLite store only, which tries again for a while."""


class StoreLostError(StoreUnavailableError):
    """The store was reached, and its answer was lost; inside stores only, which say `Unknown` of a transaction."""


class StoreRefusedError(MetadataError):
    """The store's server does not let this process in: only nodes of its cluster, and whom its rules name."""


class StoreClosedError(MetadataError):
    """The handle was not entered yet, has been left already, or belongs to the parent of a forked process."""


class StoreCorruptError(MetadataError):
    """The data at the store's address is damaged, or is no metadata store at all."""


class StoreVersionError(MetadataError):
    """The store was written by a newer release than this one."""


class SessionExpiredError(MetadataError):
    """The session is over, so nothing was written. Open a new session and register again."""

    def __init__(self, session_id: int) -> None:
        super().__init__(
            f"session {session_id} is over (expired, or closed): nothing was written; "
            "open a new session and register again"
        )
        self.session_id = session_id

    def __reduce__(self) -> tuple[type[SessionExpiredError], tuple[int]]:
        """From one process to another."""
        return type(self), (self.session_id,)


class InvalidTransactionError(MetadataError, ValueError):
    """The transaction, key or timeout breaks a rule of the interface: a mistake of the caller."""


class TransactionTooLargeError(InvalidTransactionError):
    """The transaction is above what the store takes in one commit, see `MetadataStore.limits`; nothing was written.

    It stays so however often it is tried. Split it, or raise the store's own limit where it has one.
    """


class StoreUnsupportedError(MetadataError):
    """The store has no such operation, whoever asks."""


class InvalidStoreUrlError(MetadataError, ValueError):
    """The store's URL has no scheme or does not have the form its scheme asks for."""


class StoreLoadError(MetadataError):
    """The plugin of the URL's scheme cannot be loaded or fails on the URL, or there are several."""


class UnknownStoreSchemeError(MetadataError, ValueError):
    """No installed store answers to the scheme of the URL."""

    def __init__(self, scheme: str, installed: Iterable[str]) -> None:
        self.scheme = scheme
        self.installed = tuple(sorted(installed))
        near = get_close_matches(scheme, self.installed, 1)
        meant = f"; did you mean {near[0]}://?" if near else "."
        super().__init__(
            f"no metadata store is installed for the scheme {scheme!r}; installed: {', '.join(self.installed)}"
            f"{meant} A plugin names {scheme!r} as an entry point of the group 'insync.metadata_stores', in a "
            f"distribution installed for {sys.executable}"
        )
