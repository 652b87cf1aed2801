"""Transactions of whole record batches, for connectors: one process writes, and another one decides.

A transaction is named by its transactional id, producer id and epoch (`NamedProducer`), which is all that the
process needs that commits it. The process that begins the next transaction aborts the batches of one that is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core import messages as m
from ...core.client.transactional_producer import Ended, Phase, TransactionalProducer
from ...core.errors import ErrorCode
from ...core.messages import groups as gm
from ...core.types import PartitionId
from .. import _arguments as given
from .._settings import ProducerSettings
from ..connection._coordinators import Coordinators
from ..consumer._group import group_offsets
from ..errors import InvalidSettingError, ProducerFencedError, RequestTimeoutError, error_for
from ..transaction_errors import (
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
    TransactionStateError,
)
from .batch_producer import BatchProducer, NamedProducer


class TransactionalBatchProducer(BatchProducer):
    """`async with TransactionalBatchProducer(servers, transactional_id=...) as producer`.

    The batches are the caller's as with `BatchProducer`: transactional, with the ids that `begin` gives, and
    sequences from 0 on in each partition. Of the settings `transaction_timeout_ms` and `max_block_ms` count, too.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        settings: ProducerSettings | None = None,
        **options: Any,
    ) -> None:
        super().__init__(bootstrap_servers, settings=settings, **options)
        name = self._settings.transactional_id
        if not name:
            raise InvalidSettingError("a producer of transactions needs a transactional_id")
        self._name = name
        self._thing = f"transactional_id {name!r}"
        self._who: NamedProducer | None = None

    def _start(self) -> None:
        self._of_ids = Coordinators(self._cluster, gm.TRANSACTION)
        self._of_groups = Coordinators(self._cluster)

    @property
    def _patience(self) -> float:
        return self._settings.max_block_ms / 1000

    async def begin(self) -> NamedProducer:
        """Take the transactional id over, and begin a transaction; its ids.

        A transaction that another producer of the id has left open is aborted, and has ended when this returns;
        what the other still sends is refused. Once for each producer.

        Raises:
          RequestTimeoutError: No coordinator has answered within `max_block_ms`.
          TransactionStateError: This producer has begun one.
          ClientError: The coordinator refuses: a `transaction_timeout_ms` that the nodes do not allow.
        """
        self._check_open()
        if self._who is not None:
            raise TransactionStateError(
                f"{self._thing}: one transaction for each producer; open another producer"
            )
        machine = TransactionalProducer(self._name, self._settings.transaction_timeout_ms)
        answer = await self._of_ids.ask(
            self._name, machine.init_request(), timeout=self._patience, thing=self._thing
        )
        if answer.error != ErrorCode.NONE:
            raise error_for(answer.error, self._thing, answer.message)
        self._who = NamedProducer(answer.producer_id, answer.producer_epoch)
        self._tag = m.ProduceTransaction(transactional_id=self._name)
        return self._who

    async def committed_offsets(self, group: str) -> dict[PartitionId, int]:
        """A group's committed offsets, all decided: the call waits for transactions under way (KIP-447).

        Raises RequestTimeoutError without an answer within `max_block_ms`.
        """
        self._check_open()
        request = gm.GroupOffsetsRequest(group=given.text("group", group), require_stable=True)
        return await group_offsets(self._of_groups, request, timeout=self._patience)

    async def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets of a group that has no members, with the transaction or not at all.

        Raises:
          TransactionStateError: None has begun.
          ClientError: They were not taken: abort the transaction.
        """
        self._check_open()
        name, wanted = given.text("group", group), given.offsets("offset", offsets, least=0)
        if self._who is None:
            raise TransactionStateError(f"{self._thing}: no transaction has begun")
        request = gm.TxnOffsetCommitRequest(
            transactional_id=self._name,
            producer_id=self._who.producer_id,
            producer_epoch=self._who.producer_epoch,
            group=name,
            offsets=[
                gm.GroupOffset(topic=at.topic, partition=at.partition, offset=offset)
                for at, offset in wanted.items()
            ],
        )
        thing = f"offsets of group {name!r} in a transaction"
        answer = await self._of_groups.ask(name, request, timeout=self._patience, thing=thing)
        for code in (answer.error, *(each.error for each in answer.partitions)):
            if code != ErrorCode.NONE:
                raise error_for(code, thing, answer.message)

    async def end(self, who: NamedProducer, *, committed: bool) -> None:
        """Commit or abort the transaction of these ids, which any process may have written. It has sent something.

        The same call may be made again: it tells the same.

        Raises:
          TransactionAbortedError: It was open for longer than `transaction_timeout_ms`, and is aborted.
          ProducerFencedError: Another producer has begun after it. It is aborted, if it was not committed before.
          TransactionOutcomeUnknownError: Nobody has answered within `max_block_ms`.
          ClientError: The coordinator refuses: it is decided otherwise.
        """
        self._check_open()
        is_named = isinstance(who, tuple) and len(who) == 2 and all(type(each) is int for each in who)
        if not is_named or min(who) < 0:
            raise given.refused("who", who, "pass what `begin` returned")
        machine = TransactionalProducer(
            self._name, self._settings.transaction_timeout_ms, Phase.OPEN, (who[0], who[1]), is_used=True
        )
        request = machine.end(given.flag("committed", committed))
        try:
            answer = await self._of_ids.ask(self._name, request, timeout=self._patience, thing=self._thing)
        except RequestTimeoutError as error:
            raise TransactionOutcomeUnknownError(f"{error}; ask for the same end again") from error
        match machine.ended(committed, answer):
            case Ended.TIMED_OUT:
                raise TransactionAbortedError(f"{self._thing}: {answer.message}")
            case Ended.FENCED:
                raise ProducerFencedError(f"{self._thing}: {answer.message}")
            case Ended.REFUSED:
                raise error_for(answer.error, self._thing, answer.message)
