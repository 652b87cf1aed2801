"""The rules of a transaction that hold for every store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar, assert_never

from ._limits import Limits
from ._values import Compare, Delete, Entry, Exists, Missing, Operation, Put, ValueIs, VersionIs
from .errors import InvalidTransactionError, SessionExpiredError

if TYPE_CHECKING:
    from .abc import MetadataStore, Session

S = TypeVar("S", bound="Session")

_NO_LIMITS = Limits()


def check_key(key: str) -> None:
    """Raise `InvalidTransactionError` unless `key` is a non-empty str of UTF-8 without NUL."""
    if not key:
        raise InvalidTransactionError("a key must be a non-empty string")
    check_prefix(key)


def check_prefix(prefix: str) -> None:
    """Like `check_key`, but empty is allowed."""
    if not isinstance(prefix, str) or "\0" in prefix:
        raise InvalidTransactionError(f"keys and prefixes are strings without NUL, not {prefix!r}")
    try:
        prefix.encode()
    except UnicodeEncodeError as error:
        raise InvalidTransactionError(f"{prefix!r} cannot be written as UTF-8") from error


def check_timeout(timeout_ms: int) -> None:
    """Raise `InvalidTransactionError` unless a session may have this timeout (1 ms to one day)."""
    if not 1 <= timeout_ms <= 86_400_000:
        raise InvalidTransactionError(f"a session's timeout_ms must be in 1..86400000, not {timeout_ms}")


def own_session(session: Session, kind: type[S], store: MetadataStore) -> S:
    """The session of a transaction, which a store's handle keeps as the attribute `store` of its sessions.

    Raises:
      InvalidTransactionError: Another handle opened it.
      SessionExpiredError: It is over.
    """
    if not isinstance(session, kind) or getattr(session, "store", None) is not store:
        raise InvalidTransactionError(f"session {session.id} was opened by another handle")
    if session.expired.is_set():
        raise SessionExpiredError(session.id)
    return session


def check_transaction(
    compares: Sequence[Compare],
    operations: Sequence[Operation],
    has_session: bool,
    limits: Limits = _NO_LIMITS,
) -> None:
    """Raise `InvalidTransactionError` if the transaction is not well formed, or not within `limits`."""
    for compare in compares:
        if not isinstance(compare, VersionIs | Exists | Missing | ValueIs):
            raise InvalidTransactionError(f"{compare!r} is not a compare")
        check_key(compare.key)
    changed: set[str] = set()
    for operation in operations:
        _check_operation(operation, has_session)
        if operation.key in changed:
            raise InvalidTransactionError(f"the transaction changes {operation.key!r} twice")
        changed.add(operation.key)
    limits.check(compares, operations)


def _check_operation(operation: Operation, has_session: bool) -> None:
    if not isinstance(operation, Put | Delete):
        raise InvalidTransactionError(f"{operation!r} is not an operation")
    check_key(operation.key)
    if isinstance(operation, Delete):
        return
    if not isinstance(operation.value, bytes):
        raise InvalidTransactionError(f"the value of {operation.key!r} is not bytes")
    if operation.ephemeral and not has_session:
        raise InvalidTransactionError(f"the ephemeral put of {operation.key!r} needs a session")


def holds(compare: Compare, entry: Entry | None) -> bool:
    """Whether `compare` holds for the present state of its key."""
    match compare:
        case Missing():
            return entry is None
        case Exists():
            return entry is not None
        case VersionIs(version=version):
            return entry is not None and entry.version == version
        case ValueIs(value=value):
            return entry is not None and entry.value == value
        case _:
            assert_never(compare)
