"""The metadata store: the interface, memory, SQLite and remote stores, the registry that opens one by URL."""

import logging

from ...transport.repeats import limited
from ._limits import Limits
from ._values import (
    Changed,
    Committed,
    Compare,
    Conflict,
    Delete,
    Delta,
    Entry,
    Exists,
    Listing,
    Missing,
    Operation,
    Outcome,
    Put,
    Read,
    Resync,
    TooOld,
    Unknown,
    ValueIs,
    VersionIs,
    WatchEvent,
)
from .abc import API_VERSION, MetadataStore, Session, Watch
from .errors import (
    InvalidStoreUrlError,
    InvalidTransactionError,
    MetadataError,
    SessionExpiredError,
    StoreClosedError,
    StoreCorruptError,
    StoreDeviceError,
    StoreFullError,
    StoreLoadError,
    StoreRefusedError,
    StoreUnavailableError,
    StoreUnsupportedError,
    StoreVersionError,
    TransactionTooLargeError,
    UnknownStoreSchemeError,
)
from .guarded import GuardedStore, StoreFailedError
from .memory import MemoryHub, MemoryStore
from .registry import open_store
from .remote_store.client import RemoteStore
from .remote_store.serving import STORE_KINDS, serve_store
from .sqlite_store.store import SqliteStore

limited(logging.getLogger("insync.metadata"))

__all__ = [
    # the interface
    "API_VERSION",
    "MetadataStore",
    "Session",
    "Watch",
    # values
    "Entry",
    "Listing",
    "Read",
    "Delta",
    "TooOld",
    # transactions
    "Compare",
    "VersionIs",
    "Exists",
    "Missing",
    "ValueIs",
    "Operation",
    "Put",
    "Delete",
    "Outcome",
    "Committed",
    "Conflict",
    "Unknown",
    "Limits",
    # watch events
    "WatchEvent",
    "Changed",
    "Resync",
    # stores
    "open_store",
    "GuardedStore",
    "MemoryHub",
    "MemoryStore",
    "SqliteStore",
    "RemoteStore",
    "serve_store",
    "STORE_KINDS",
    # errors
    "MetadataError",
    "StoreUnavailableError",
    "StoreFailedError",
    "StoreLoadError",
    "StoreRefusedError",
    "StoreClosedError",
    "StoreCorruptError",
    "StoreDeviceError",
    "StoreFullError",
    "StoreVersionError",
    "SessionExpiredError",
    "InvalidTransactionError",
    "TransactionTooLargeError",
    "StoreUnsupportedError",
    "InvalidStoreUrlError",
    "UnknownStoreSchemeError",
]
