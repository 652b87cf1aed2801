"""The errors of transactions, and what is known of the outcome then."""

from __future__ import annotations

from ..core.errors import ErrorCode
from .errors import ClientError, ServerError, add_errors


class TransactionStateError(ClientError):
    """The call does not fit the state of the producer's transaction: nothing was done."""


class TransactionAbortableError(ClientError):
    """Something of the transaction failed: abort it, and repeat all of it in another one. Nothing of it counts."""


class TransactionAbortedError(ClientError):
    """The transaction was aborted, certainly: it was open for longer than `transaction_timeout_ms`.

    The producer may begin another one, and repeat all of it there.
    """


class TransactionOutcomeUnknownError(ClientError):
    """Nobody has said within `max_block_ms` what became of the transaction.

    The same call may be made again: it asks for the same outcome, and tells it for certain. The other outcome can
    not be asked for any more.
    """

    outcome = "unknown"


class InvalidTxnStateError(ServerError):
    """The transaction is in another state than the request needs."""

    code = ErrorCode.INVALID_TXN_STATE


class InvalidProducerIdMappingError(ServerError):
    """The transactional id belongs to another producer id, or has expired."""

    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class InvalidTransactionTimeoutError(ServerError):
    """The transaction timeout exceeds the maximum of the nodes."""

    code = ErrorCode.INVALID_TRANSACTION_TIMEOUT


class ConcurrentTransactionsError(ServerError):
    """The producer's previous transaction is still being ended."""

    code = ErrorCode.CONCURRENT_TRANSACTIONS


class TransactionCoordinatorFencedError(ServerError):
    """Another node coordinates the transaction by now."""

    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class TransactionalIdAuthorizationError(ServerError):
    """The client may not use the transactional id."""

    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class UnknownProducerIdError(ServerError):
    """The partition knows no such producer."""

    code = ErrorCode.UNKNOWN_PRODUCER_ID


class TransactionalIdFencedError(ServerError):
    """Another producer has taken the transactional id over."""

    code = ErrorCode.PRODUCER_FENCED


class TransactionalIdNotFoundError(ServerError):
    """Nobody has used the transactional id, or not for `transactional_id_expiration_ms`."""

    code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


class AbortTransactionError(ServerError):
    """A partition is not in the transaction, so it cannot be committed."""

    code = ErrorCode.TRANSACTION_ABORTABLE


class TransactionTimedOutError(ServerError):
    """The coordinator has aborted the transaction."""

    code = ErrorCode.TRANSACTION_ABORTED


_CLASSES = (
    InvalidTxnStateError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    ConcurrentTransactionsError,
    TransactionCoordinatorFencedError,
    TransactionalIdAuthorizationError,
    UnknownProducerIdError,
    TransactionalIdFencedError,
    TransactionalIdNotFoundError,
    AbortTransactionError,
    TransactionTimedOutError,
)
add_errors(
    {cls.code: cls for cls in _CLASSES},
    {
        ErrorCode.INVALID_TXN_STATE: "abort the transaction, and begin another one",
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: "open a new producer",
        ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
            "lower transaction_timeout_ms, or raise transaction_max_timeout_ms of the nodes"
        ),
        ErrorCode.CONCURRENT_TRANSACTIONS: "try again; it ends when every partition has its marker",
        ErrorCode.TRANSACTION_COORDINATOR_FENCED: "try again; the coordinator has moved",
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
            "the client needs a rule in `allow` of the nodes, or of the user"
        ),
        ErrorCode.UNKNOWN_PRODUCER_ID: "open a new producer",
        ErrorCode.PRODUCER_FENCED: "stop one of the two, or give each a transactional_id of its own",
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "list the transactional ids (`insync transaction list`)",
        ErrorCode.TRANSACTION_ABORTABLE: "abort the transaction, and repeat it",
        ErrorCode.TRANSACTION_ABORTED: "repeat the transaction, in less time or with a longer timeout",
    },
)
