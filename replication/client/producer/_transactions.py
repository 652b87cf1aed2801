"""Transactions of a producer: what `Producer.transaction` and its parts do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import trio

from ...core.client.transactional_producer import Ended, Phase, TransactionalProducer
from ...core.errors import ErrorCode
from ...core.messages import groups as gm
from ...core.types import PartitionId
from ...errors import again
from .. import _arguments as given
from ..connection._coordinators import Coordinators
from ..consumer._group import GroupMetadata
from ..errors import ClientError, ProducerFencedError, RequestTimeoutError, error_for
from ..transaction_errors import (
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
    TransactionStateError,
)
from ._batch import ProducerIdentity

if TYPE_CHECKING:
    from .._settings import ProducerSettings
    from ..connection._cluster import Cluster
    from ._sender import Sender

_CALLS = {
    Phase.UNINITIALIZED: "the producer is not open",
    Phase.READY: "no transaction is open: use `async with producer.transaction()`, or `begin`",
    Phase.OPEN: "a transaction is open: commit or abort it first",
    Phase.ABORTABLE: "the transaction has failed: abort it, and repeat it in another one",
    Phase.COMMITTING: "the outcome of the commit is not known yet: call `commit` again",
    Phase.ABORTING: "the abort is not confirmed yet: call `abort` again",
    Phase.FENCED: "another producer has taken over the transactional_id: open a new producer",
}

Positions = Mapping[PartitionId, int | None] | Mapping[tuple[str, int], int | None]
"""Of each partition the offset of the next record to read, as `Consumer.positions` gives them."""
_OLD_EPOCH = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})


class Transactions:
    """All transactions of one producer, one after the other."""

    def __init__(self, settings: ProducerSettings, cluster: Cluster, sender: Sender) -> None:
        self._machine = TransactionalProducer(settings.transactional_id, settings.transaction_timeout_ms)
        self._sender = sender
        self._timeout = settings.max_block_ms / 1000
        self._coordinators = Coordinators(cluster, gm.TRANSACTION)
        self._groups = Coordinators(cluster)
        self._thing = f"transactional_id {settings.transactional_id!r}"
        self._failure: ClientError | None = None
        self._is_left = False
        """Whether the block of the open transaction was left, and the time to abort it was too short."""
        sender.on_failure = self._failed

    def _bar(self) -> None:
        """Only an open transaction takes records."""
        sender, phase = self._sender, self._machine.phase
        is_open = phase is Phase.OPEN
        if phase is Phase.FENCED:
            sender.fence(ProducerFencedError(f"{self._thing}: {_CALLS[phase]}"))
        else:
            sender.barred = None if is_open else self._state_error("send")

    def _state_error(self, call: str) -> ClientError:
        if self._machine.phase is Phase.ABORTABLE:
            return self._abortable()
        return TransactionStateError(
            f"{self._thing}: {call} cannot be called now: {_CALLS[self._machine.phase]}"
        )

    def _abortable(self) -> TransactionAbortableError:
        error = TransactionAbortableError(
            f"{self._thing}: {_CALLS[Phase.ABORTABLE]}; what failed: {self._failure}"
        )
        error.__cause__ = self._failure
        return error

    def _failed(self, error: ClientError) -> None:
        """Something of the transaction certainly is not, or may not be, in its partition."""
        if self._machine.phase is not Phase.OPEN:
            return
        # What an abort drops fails because of the abort, which is known already.
        self._failure = self._failure or error
        self._machine.failed()
        self._bar()

    def _check(self, call: str, *phases: Phase) -> None:
        if self._machine.phase not in phases:
            if self._sender.fenced is not None:
                raise again(self._sender.fenced)
            raise self._state_error(call)

    async def open(self) -> None:
        """Take the transactional id over; whatever another producer has open is aborted first.

        Raises what `Coordinators.ask` raises, and what the coordinator refuses.
        """
        answer = await self._coordinators.ask(
            self._machine.transactional_id,
            self._machine.init_request(),
            timeout=self._timeout,
            thing=self._thing,
        )
        if answer.error != ErrorCode.NONE:
            raise error_for(answer.error, self._thing, answer.message)
        self._machine.initialized(answer)
        self._bar()

    def begin(self) -> None:
        """See `Producer.begin`."""
        self._check("begin", Phase.READY)
        self._machine.begin()
        self._failure, self._is_left = None, False
        self._sender.begin_transaction(ProducerIdentity(*self._machine.ids))
        self._bar()

    async def confirm_abort(self) -> None:
        """Before a block: the abort of an earlier one may have had no answer, and nobody else calls `abort` again.

        It may also not have been asked for, as long as leaders had not answered what was in flight.

        Raises what `abort` raises.
        """
        if self._machine.phase is Phase.ABORTING or (
            self._is_left and self._machine.phase is Phase.ABORTABLE
        ):
            await self.abort()

    def unbegin(self) -> None:
        """Nobody was told of the open transaction. One in which somebody has sent something stays."""
        sender = self._sender
        is_empty = not (self._machine.is_used or sender.has_sent or sender.accumulator.pending)
        if self._machine.phase is Phase.OPEN and is_empty:
            self._machine.end(False)
            self._bar()

    async def commit(self) -> None:
        """See `Producer.commit`."""
        self._check("commit", Phase.OPEN, Phase.COMMITTING)
        if self._machine.phase is Phase.OPEN:
            self._sender.barred = TransactionStateError(f"{self._thing}: the transaction is being committed")
            await self._sender.settle_all()
            self._check("commit", Phase.OPEN)
        self._machine.is_used |= self._sender.has_sent
        await self._end(committed=True)

    async def abort(self) -> None:
        """See `Producer.abort`."""
        self._check("abort", Phase.OPEN, Phase.ABORTABLE, Phase.ABORTING)
        if self._machine.phase is Phase.OPEN:
            self._failure = TransactionAbortableError(f"{self._thing}: the transaction is being aborted")
        if self._machine.phase is not Phase.ABORTING:
            self._machine.is_used |= self._sender.has_sent
            self._sender.barred = self._abortable()
            self._sender.give_up_transaction(self._sender.barred)
            # What is in flight: its epoch must not be another one's before it has come to rest.
            await self._sender.settle_all()
            # Another task, which waited for the same, may have gone on first.
            self._check("abort", Phase.OPEN, Phase.ABORTABLE, Phase.ABORTING)
        await self._end(committed=False)

    async def _end(self, *, committed: bool) -> None:
        request = self._machine.end(committed)
        self._bar()
        if request is None:
            return
        asked = self._machine.ids, self._machine.phase
        call = "commit" if committed else "abort"
        try:
            answer = await self._coordinators.ask(
                self._machine.transactional_id, request, timeout=self._timeout, thing=self._thing
            )
        except RequestTimeoutError as error:
            raise TransactionOutcomeUnknownError(f"{error}; call `{call}` again") from error
        if (self._machine.ids, self._machine.phase) != asked:
            # Another task has asked the same, and heard the outcome first.
            if answer.error != ErrorCode.NONE:
                raise error_for(answer.error, self._thing, answer.message)
            return
        ended = self._machine.ended(committed, answer)
        if ended is Ended.REFUSED:
            self._failure = error_for(answer.error, self._thing, answer.message)
        self._bar()
        if ended is Ended.TIMED_OUT:
            await self._end(committed=False)
            raise TransactionAbortedError(f"{self._thing}: {answer.message}")
        if ended is Ended.FENCED:
            assert self._sender.fenced is not None
            raise again(self._sender.fenced)
        if ended is Ended.REFUSED:
            assert self._failure is not None
            raise self._failure

    async def send_offsets(self, offsets: Mapping[PartitionId, int], metadata: GroupMetadata) -> None:
        """See `Transaction.send_offsets`; the arguments are checked."""
        self._check("send_offsets", Phase.OPEN)
        known = [
            gm.GroupOffset(topic=at.topic, partition=at.partition, offset=offset)
            for at, offset in offsets.items()
        ]
        if not known:
            return
        self._machine.is_used = True
        producer_id, epoch = self._machine.ids
        request = gm.TxnOffsetCommitRequest(
            transactional_id=self._machine.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            group=metadata.group_id,
            member_id=metadata.member_id,
            epoch=metadata.epoch,
            instance_id=metadata.instance_id,
            offsets=known,
        )
        thing = f"offsets of group {metadata.group_id!r} in a transaction"
        try:
            answer = await self._groups.ask(metadata.group_id, request, timeout=self._timeout, thing=thing)
        except ClientError as error:
            self._failed(error)
            raise
        found = [(each.error, f"{PartitionId(each.topic, each.partition)}: ") for each in answer.partitions]
        for code, about in ((answer.error, ""), *found):
            if code != ErrorCode.NONE:
                refused = error_for(code, thing, f"{about}{answer.message}")
                self._failed(refused)
                # An old epoch may be that of a transaction that was open for too long: the end will tell.
                raise self._abortable() if code in _OLD_EPOCH else refused

    @asynccontextmanager
    async def scope(self) -> AsyncIterator[Transaction]:
        """See `Producer.transaction`."""
        await self.confirm_abort()
        self.begin()
        try:
            yield Transaction(self)
            await self.commit()
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        """Abort if possible, even when cancelled. A block that was left by an error raises that error."""
        if self._machine.phase not in (Phase.OPEN, Phase.ABORTABLE):
            return
        with trio.move_on_after(self._timeout) as scope:
            scope.shield = True
            # The next block asks again, and the timeout ends it in any case.
            with suppress(ClientError):
                await self.abort()
        if self._machine.phase in (Phase.OPEN, Phase.ABORTABLE):
            # What was in flight has not come to rest. Not to be committed by anybody, should it be written yet.
            self._is_left = True
            self._machine.failed()
            self._bar()


class Transaction:
    """An open transaction; `async with producer.transaction() as txn` gives one."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def send_offsets(self, offsets: Positions, group_metadata: GroupMetadata) -> None:
        """Commit what a group has read with the transaction: together with all that is sent in it, or not at all.

        Args:
          offsets: Of each partition the offset of the next record to read, as `Consumer.positions()` gives them.
          group_metadata: `Consumer.group_metadata()`; a consumer that its group has gone on without is refused.

        Raises:
          ClientError: They were not taken: the transaction can only be aborted.
        """
        await send_offsets(lambda: self._transactions, offsets, group_metadata)


async def send_offsets(
    transactions: Callable[[], Transactions],
    offsets: Positions,
    group_metadata: GroupMetadata,
) -> None:
    """Check what a caller has given before anything else."""
    known = given.offsets_to_commit(offsets)
    if not isinstance(group_metadata, GroupMetadata):
        raise given.refused(
            "group_metadata", group_metadata, "pass what `Consumer.group_metadata()` returned"
        )
    await transactions().send_offsets(known, group_metadata)
