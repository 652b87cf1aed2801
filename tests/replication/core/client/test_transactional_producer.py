"""A producer's side of its transactions: each call where it fits, what is asked, and what an answer means."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from insync.replication.core.client.transactional_producer import Ended, Phase, TransactionalProducer
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages.transactions import (
    EndTransactionRequest,
    InitTransactionsRequest,
    ProducerIdResponse,
)

COMMITTED = pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])


def ready(producer_id: int = 7, epoch: int = 3) -> TransactionalProducer:
    producer = TransactionalProducer("etl", 60_000)
    producer.initialized(ProducerIdResponse(producer_id=producer_id, producer_epoch=epoch))
    return producer


def in_use() -> TransactionalProducer:
    """Something was sent in its open transaction."""
    producer = ready()
    producer.begin()
    producer.is_used = True
    return producer


def asked(committed: bool, producer_id: int = 7, epoch: int = 3) -> EndTransactionRequest:
    return EndTransactionRequest(
        transactional_id="etl", producer_id=producer_id, producer_epoch=epoch, committed=committed
    )


def test_it_opens_with_its_id_and_is_ready_with_what_it_is_told() -> None:
    producer = TransactionalProducer("etl", 60_000)
    assert (producer.phase, producer.ids, producer.is_used) == (Phase.UNINITIALIZED, (-1, -1), False)
    assert producer.init_request() == InitTransactionsRequest(transactional_id="etl", timeout_ms=60_000)
    producer.initialized(ProducerIdResponse(producer_id=7, producer_epoch=3))
    assert (producer.phase, producer.ids) == (Phase.READY, (7, 3))


@COMMITTED
def test_a_transaction_in_which_nothing_was_sent_ends_without_a_question(committed: bool) -> None:
    producer = ready()
    producer.begin()
    assert producer.phase is Phase.OPEN
    assert producer.end(committed) is None
    assert (producer.phase, producer.ids) == (Phase.READY, (7, 3))


@COMMITTED
def test_an_end_is_asked_for_by_the_ids_of_its_transaction_and_tells_those_of_the_next(
    committed: bool,
) -> None:
    producer = in_use()
    assert producer.end(committed) == asked(committed)
    assert producer.phase is (Phase.COMMITTING if committed else Phase.ABORTING)
    assert producer.end(committed) == asked(committed), "nobody has answered: it may be asked again"
    answer = ProducerIdResponse(producer_id=9, producer_epoch=0)
    assert producer.ended(committed, answer) is Ended.DONE
    assert (producer.phase, producer.ids) == (Phase.READY, (9, 0))
    producer.begin()
    assert (producer.phase, producer.is_used) == (Phase.OPEN, False), "nothing was sent in the next one"
    producer.is_used = True
    assert producer.end(committed=True) == asked(True, 9, 0)


def test_what_has_failed_is_aborted_though_nothing_is_known_to_be_sent() -> None:
    """The batch that failed may be in its partition, and a late copy may come: the epoch has to end."""
    producer = ready()
    producer.begin()
    producer.failed()
    assert producer.phase is Phase.ABORTABLE
    assert producer.end(committed=False) == asked(False)
    assert producer.phase is Phase.ABORTING


def test_only_an_open_transaction_fails() -> None:
    """A delivery that ends late says nothing about what has been asked for, nor about the next transaction."""
    committing = in_use()
    committing.end(committed=True)
    aborting = in_use()
    aborting.end(committed=False)
    fenced = in_use()
    fenced.end(committed=True)
    fenced.ended(True, ProducerIdResponse(error=ErrorCode.PRODUCER_FENCED))
    for producer in (ready(), committing, aborting, fenced):
        before = producer.phase
        producer.failed()
        assert producer.phase is before


def test_a_commit_that_came_too_late_leaves_an_abort_to_ask_for() -> None:
    """The abort tells the ids of the next transaction, which the refusal does not."""
    producer = in_use()
    producer.end(committed=True)
    told = ProducerIdResponse(error=ErrorCode.TRANSACTION_ABORTED)
    assert producer.ended(True, told) is Ended.TIMED_OUT
    assert (producer.phase, producer.ids) == (Phase.ABORTING, (7, 3))
    assert producer.end(committed=False) == asked(False)
    assert producer.ended(False, ProducerIdResponse(producer_id=7, producer_epoch=4)) is Ended.DONE
    assert (producer.phase, producer.ids) == (Phase.READY, (7, 4))


@COMMITTED
@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ],
)
def test_who_is_fenced_stays_so(error: ErrorCode, committed: bool) -> None:
    producer = in_use()
    producer.end(committed)
    assert producer.ended(committed, ProducerIdResponse(error=error)) is Ended.FENCED
    assert producer.phase is Phase.FENCED
    for call in (producer.begin, lambda: producer.end(True), lambda: producer.end(False)):
        refused(call)


def test_a_commit_that_is_refused_can_be_aborted_and_an_abort_be_asked_again() -> None:
    answer = ProducerIdResponse(error=ErrorCode.INVALID_TXN_STATE)
    producer = in_use()
    producer.end(committed=True)
    assert producer.ended(True, answer) is Ended.REFUSED
    assert producer.phase is Phase.ABORTABLE
    assert producer.end(committed=False) == asked(False)
    assert producer.ended(False, answer) is Ended.REFUSED
    assert (producer.phase, producer.ids) == (Phase.ABORTING, (7, 3))
    assert producer.end(committed=False) == asked(False)


def test_calls_that_do_not_fit_are_mistakes_of_the_caller() -> None:
    """Its façades tell users before; see `Transactions`."""
    new = TransactionalProducer("etl", 60_000)
    refused(new.begin)
    refused(lambda: ready().initialized(ProducerIdResponse()))
    refused(lambda: ready().end(True))
    refused(lambda: ready().end(False))
    refused(in_use().begin)
    failed = in_use()
    failed.failed()
    refused(lambda: failed.end(True))
    committing = in_use()
    committing.end(committed=True)
    refused(lambda: committing.end(False))
    aborting = in_use()
    aborting.end(committed=False)
    refused(lambda: aborting.end(True))


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(AssertionError):
        call()
