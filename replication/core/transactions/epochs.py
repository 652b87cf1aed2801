"""The next steps of a transactional id, as pure tables: from its record and a request to an outcome.

Each transaction of the second version has a producer epoch of its own (KIP-890): its end gives the next one, so
nothing of an earlier transaction that comes late can touch a later one. A producer that was told ids and lost the
answer asks again with the epoch that it had (`last_epoch`) and is told the same (KIP-360).
"""

from __future__ import annotations

import msgspec
from msgspec import structs

from ..errors import ErrorCode
from .records import LAST_EPOCH, NO_EPOCH, NO_ID, Status, TransactionValue, by_topic

FIRST_VERSION, SECOND_VERSION = 1, 2
"""Of the protocol: in the first one a producer's transactions share an epoch."""


class Refused(msgspec.Struct, frozen=True):
    """Nothing changes."""

    error: ErrorCode
    message: str


class Told(msgspec.Struct, frozen=True):
    """Nothing changes; the request was carried out before, or asks for what is so already."""

    producer_id: int
    producer_epoch: int


class Waits(msgspec.Struct, frozen=True):
    """Until the transaction that is being ended has ended; then the request is decided again.

    `briefly`: for no longer than its sender would wait before it asks again, if it is told CONCURRENT_TRANSACTIONS.
    """

    briefly: bool = False


class NeedsId(msgspec.Struct, frozen=True):
    """A fresh producer id is needed first; then the request is decided again."""


class Changed(msgspec.Struct, frozen=True):
    """The record to write; `then_waits`: the request itself is decided again after what that begins."""

    value: TransactionValue
    then_waits: bool = False


class Supply(msgspec.Struct, frozen=True):
    """Ids that may be given. `fresh_id`: one that nobody has; None if none is at hand.

    `last_epoch`: of a producer id; behind it another id is needed.
    """

    fresh_id: int | None
    last_epoch: int = LAST_EPOCH


Outcome = Refused | Told | Waits | NeedsId | Changed


def init(
    now: TransactionValue | None,
    timeout_ms: int,
    expected: tuple[int, int] | None,
    supply: Supply,
    wall_ms: int,
) -> Outcome:
    """A producer takes the transactional id over. `expected`: the ids that it has, if it has any."""
    if now is None:
        if supply.fresh_id is None:
            return NeedsId()
        return Changed(
            TransactionValue(
                producer_id=supply.fresh_id,
                producer_epoch=0,
                timeout_ms=timeout_ms,
                status=Status.EMPTY,
                last_update_ms=wall_ms,
            )
        )
    if expected is not None and expected != now.told:
        if not _is_last(now, *expected):
            return Refused(ErrorCode.PRODUCER_FENCED, _fenced(*expected))
        if now.status.is_prepared:
            return Waits()
        if now.status is Status.ONGOING:
            return Refused(ErrorCode.PRODUCER_FENCED, _fenced(*expected))
        return Told(*now.told)
    last = expected[1] if expected is not None else NO_EPOCH
    if now.status.is_prepared:
        return Waits()
    if now.status is Status.ONGOING:
        prepared = prepare(now, False, last, supply, wall_ms)
        return NeedsId() if prepared is None else Changed(prepared, then_waits=True)
    bumped = _bumped(now, last, supply, wall_ms)
    if bumped is None:
        return NeedsId()
    return Changed(
        structs.replace(bumped, status=Status.EMPTY, topics=None, timeout_ms=timeout_ms, start_ms=-1)
    )


def add(
    now: TransactionValue | None,
    producer_id: int,
    producer_epoch: int,
    partitions: frozenset[tuple[str, int]],
    version: int,
    wall_ms: int,
) -> Outcome:
    """Partitions are to belong to the transaction (in this order of tests: KAFKA-18464, KAFKA-18660)."""
    if now is None:
        return Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, _UNKNOWN)
    ids = producer_id, producer_epoch
    if now.status.is_prepared and ids == now.told:
        # It is told once the markers are written, which takes less time than to ask again. Nobody waits behind a
        # leader that asks; behind a client's request the others of its connection do.
        return Waits(briefly=version <= FIRST_VERSION)
    if producer_id != now.producer_id:
        return Refused(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"producer id {producer_id} does not belong to the transactional id; {now.producer_id} does",
        )
    if producer_epoch != now.producer_epoch or now.status.is_prepared:
        return Refused(ErrorCode.PRODUCER_FENCED, _fenced(*ids))
    begun = now.status is Status.ONGOING
    if begun and partitions <= now.partitions:
        return Told(*ids)
    return Changed(
        structs.replace(
            now,
            status=Status.ONGOING,
            topics=by_topic(partitions | now.partitions if begun else partitions),
            # Strictly growing: it names the transaction where epochs do not.
            start_ms=now.start_ms if begun else max(wall_ms, now.start_ms + 1),
            last_update_ms=wall_ms,
            client_version=version,
        )
    )


def still_ending() -> Refused:
    """For who does not wait (any longer) for the end of the transaction before."""
    return Refused(ErrorCode.CONCURRENT_TRANSACTIONS, _STILL_ENDING)


def verify(
    now: TransactionValue | None,
    producer_id: int,
    producer_epoch: int,
    partitions: frozenset[tuple[str, int]],
    wall_ms: int,
) -> Outcome:
    """Do the partitions belong to the transaction? (KIP-890, for clients that add partitions themselves.)"""
    outcome = add(now, producer_id, producer_epoch, partitions, FIRST_VERSION, wall_ms)
    if isinstance(outcome, Waits):
        return still_ending()
    if isinstance(outcome, Changed):
        return Refused(ErrorCode.TRANSACTION_ABORTABLE, "a partition was not added to the transaction")
    return outcome


def end(
    now: TransactionValue | None,
    producer_id: int,
    producer_epoch: int,
    committed: bool,
    version: int,
    supply: Supply,
    wall_ms: int,
) -> Outcome:
    """A producer commits or aborts; the same request again is told the same (strict epochs: KAFKA-9600)."""
    if now is None:
        return Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, _UNKNOWN)
    if (producer_id, producer_epoch) == now.told:
        return _end_current(now, committed, version, supply, wall_ms)
    if not _is_last(now, producer_id, producer_epoch) or now.status in (Status.EMPTY, Status.ONGOING):
        return Refused(ErrorCode.PRODUCER_FENCED, _fenced(producer_id, producer_epoch))
    if committed == now.status.is_committed:
        return Told(*now.told)
    if committed:
        return Refused(
            ErrorCode.TRANSACTION_ABORTED,
            f"the transaction was aborted: it was open for longer than its timeout of {now.timeout_ms} ms",
        )
    return Refused(ErrorCode.INVALID_TXN_STATE, "the transaction was committed and cannot be aborted")


def _end_current(
    now: TransactionValue, committed: bool, version: int, supply: Supply, wall_ms: int
) -> Outcome:
    if now.status is Status.ONGOING:
        if version <= FIRST_VERSION:
            return Changed(_prepared(now, committed, FIRST_VERSION, wall_ms))
        prepared = prepare(now, committed, now.producer_epoch, supply, wall_ms)
        return NeedsId() if prepared is None else Changed(prepared)
    if version <= FIRST_VERSION:
        return _end_again(now, committed)
    if now.status.is_prepared:
        return still_ending()
    if committed:
        return Refused(ErrorCode.INVALID_TXN_STATE, "no transaction is open, so there is nothing to commit")
    # There is nothing to abort. But a partition may be on its way to be added: the new epoch fences it.
    bumped = _bumped(now, now.producer_epoch, supply, wall_ms)
    if bumped is None:
        return NeedsId()
    return Changed(structs.replace(bumped, status=Status.COMPLETE_ABORT, topics=()))


def _end_again(now: TransactionValue, committed: bool) -> Outcome:
    """Of the first version, whose epoch does not tell a retry from the next transaction's end."""
    if now.status is Status.EMPTY or committed != now.status.is_committed:
        return Refused(ErrorCode.INVALID_TXN_STATE, f"the transaction is in state {now.status.name}")
    if now.status.is_prepared:
        return Refused(ErrorCode.CONCURRENT_TRANSACTIONS, "the transaction is still being ended")
    return Told(*now.told)


def prepare(
    now: TransactionValue, committed: bool, last_epoch: int, supply: Supply, wall_ms: int
) -> TransactionValue | None:
    """The outcome of an open transaction, under the next epoch; None if a fresh producer id is needed for it."""
    next_id = NO_ID
    if _is_at_its_end(now, supply):
        if supply.fresh_id is None:
            return None
        next_id = supply.fresh_id
    return structs.replace(
        _prepared(now, committed, SECOND_VERSION, wall_ms),
        producer_epoch=now.producer_epoch + 1,
        previous_producer_id=NO_ID,
        next_producer_id=next_id,
        last_epoch=last_epoch,
    )


def complete(now: TransactionValue, wall_ms: int) -> TransactionValue:
    """Every partition knows the outcome."""
    done = structs.replace(
        now,
        status=Status.COMPLETE_COMMIT if now.status.is_committed else Status.COMPLETE_ABORT,
        topics=(),
        last_update_ms=wall_ms,
    )
    if now.next_producer_id == NO_ID:
        return done
    return structs.replace(
        done,
        producer_id=now.next_producer_id,
        producer_epoch=0,
        previous_producer_id=now.producer_id,
        next_producer_id=NO_ID,
    )


def _prepared(now: TransactionValue, committed: bool, version: int, wall_ms: int) -> TransactionValue:
    """`version`: of the end, whatever that of the requests before it. Its markers are of this version too: it says
    whether they have an epoch above that of the transaction's batches.
    """
    status = Status.PREPARE_COMMIT if committed else Status.PREPARE_ABORT
    return structs.replace(now, status=status, client_version=version, last_update_ms=wall_ms)


def _is_at_its_end(now: TransactionValue, supply: Supply) -> bool:
    """Whether the producer id has no further epoch."""
    return now.producer_epoch >= supply.last_epoch


def _bumped(now: TransactionValue, last_epoch: int, supply: Supply, wall_ms: int) -> TransactionValue | None:
    """The next epoch of an idle id; None if a fresh producer id is needed for it."""
    if not _is_at_its_end(now, supply):
        return structs.replace(
            now,
            producer_epoch=now.producer_epoch + 1,
            previous_producer_id=NO_ID,
            last_epoch=last_epoch,
            last_update_ms=wall_ms,
        )
    if supply.fresh_id is None:
        return None
    return structs.replace(
        now,
        producer_id=supply.fresh_id,
        producer_epoch=0,
        previous_producer_id=now.producer_id,
        last_epoch=last_epoch,
        last_update_ms=wall_ms,
    )


def _is_last(now: TransactionValue, producer_id: int, producer_epoch: int) -> bool:
    """Whether these ids are those to whose holder the present ones were told.

    The last epoch is of one producer id: of the previous one as long as its end began the present one. Small epochs
    are given again and again, each time of another id.
    """
    owner = now.producer_id if now.previous_producer_id == NO_ID else now.previous_producer_id
    return producer_id == owner and producer_epoch != NO_EPOCH and producer_epoch == now.last_epoch


def _fenced(producer_id: int, producer_epoch: int) -> str:
    return (
        f"producer {producer_id} with epoch {producer_epoch} no longer holds the transactional id: "
        "another producer has taken it over"
    )


_UNKNOWN = "the transactional id is unknown: it was never used, or has expired"
_STILL_ENDING = "the producer's previous transaction is still being ended"
