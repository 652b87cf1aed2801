"""Transactions, as an operator looks at them: which there are, what each of them holds up, and what hangs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial

import attrs
import trio

from ....transport import TransportError
from ...core import messages as m
from ...core.errors import ErrorCode
from ...core.messages import ActiveProducer
from ...core.messages import groups as gm
from ...core.messages import transactions as tm
from ...core.messages.transactions import TransactionDescription, TransactionListing
from ...core.transactions.records import HELD
from ...core.types import PartitionId
from .. import _arguments as given
from ..connection._coordinators import Coordinators
from ..errors import ClientError, NotLeaderError, RequestTimeoutError, UnknownTopicError, error_for
from ..group_errors import CoordinatorNotAvailableError
from ..transaction_errors import InvalidTxnStateError
from ._groups import GroupAdmin

_ASK_SECONDS = 5.0
_AT_ONCE = 1_000
"""Partitions of one request."""
HANGS_AFTER_MS = 1_200_000
"""The longest timeout that nodes allow by default (15 minutes), and five minutes more."""
_NOT_BEGUN = (NotLeaderError, UnknownTopicError, CoordinatorNotAvailableError)
"""Refusals of a leader that has written nothing."""


@attrs.frozen(kw_only=True)
class HangingTransaction:
    """A transaction that is open in a partition, and that no coordinator will ever end (KIP-664).

    `last_timestamp_ms`: of its producer's last batch, as the producer gave it. `transactional_id`: who has the
    producer id by now; empty if nobody has. Readers of committed records wait at `start_offset`.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int
    last_timestamp_ms: int
    transactional_id: str = ""


class TransactionAdmin(GroupAdmin):
    """Transactions; a part of `Admin`."""

    async def list_transactions(self, states: Iterable[str] | None = None) -> list[TransactionListing]:
        """All transactional ids, by name; those in certain states alone (as ONGOING, PREPARE_ABORT, EMPTY).

        Raises:
          RequestTimeoutError: Not every coordinator has answered within `request_timeout_ms`.
        """
        wanted = [] if states is None else given.names("states", states)
        return await self._listed(tm.ListTransactionsRequest(statuses=wanted))

    async def _listed(self, request: tm.ListTransactionsRequest) -> list[TransactionListing]:
        answers: list[tm.ListTransactionsResponse] = await self._ask_all(
            m.Kind.LIST_TRANSACTIONS, request, "transactions"
        )
        found = {each.transactional_id: each for answer in answers for each in answer.transactions}
        return [found[name] for name in sorted(found)]

    async def describe_transaction(self, name: str) -> TransactionDescription:
        """The state of a transactional id at its coordinator.

        Raises:
          TransactionalIdNotFoundError: Nobody has used it, or not for `transactional_id_expiration_ms`.
          RequestTimeoutError: Its coordinator has not answered within `request_timeout_ms`.
        """
        given.text("name", name)
        self._check_open()
        thing = f"transactional_id {name!r}"
        request = tm.DescribeTransactionsRequest(transactional_ids=[name])
        coordinators = Coordinators(self._cluster, gm.TRANSACTION)
        answer = await coordinators.ask(name, request, timeout=self._timeout, thing=thing)
        if answer.error != ErrorCode.NONE:
            raise error_for(answer.error, thing, answer.message)
        (told,) = answer.transactions
        if told.error != ErrorCode.NONE:
            raise error_for(told.error, thing)
        found: TransactionDescription = told
        return found

    # What hangs

    async def describe_producers(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[PartitionId, list[ActiveProducer]]:
        """The producers that the leader of each partition knows (KIP-664), those with an open transaction first.

        Of one partition at most 10,000 are told, of all partitions all.

        Raises:
          UnknownTopicError: The partition does not exist.
          RequestTimeoutError: Not every leader has answered within `request_timeout_ms`.
        """
        missing = dict.fromkeys(given.partitions(partitions))
        found: dict[PartitionId, list[ActiveProducer]] = {}
        last: Exception | None = None
        self._check_open()
        with trio.move_on_after(self._timeout):
            attempt = 0
            while True:
                before = len(missing)
                for node, names in (await self._led(missing)).items():
                    try:
                        for result in await self._ask_about(node, names):
                            at = PartitionId(result.topic, result.partition)
                            if result.error != ErrorCode.NONE:
                                raise error_for(result.error, str(at))
                            found[at] = result.producers
                            missing.pop(at, None)
                    except TransportError as error:
                        last = error
                    except ClientError as error:
                        if not error.retriable:
                            raise
                        last = error
                if not missing:
                    return {at: found[at] for at in sorted(found)}
                if len(missing) < before:
                    continue  # the answers had no room for more
                attempt += 1
                await trio.sleep(self._cluster.quick_backoff(attempt))
        raise RequestTimeoutError(
            f"describe producers: not every leader answered within {self._timeout:g} s; last: {last}"
        ) from last

    async def _led(self, partitions: Iterable[PartitionId]) -> dict[int, list[m.PartitionName]]:
        """Partitions by the nodes that lead them; those without a leader are left out."""
        wanted = list(partitions)
        answer = await self._metadata(sorted({at.topic for at in wanted}))
        leaders = {
            PartitionId(topic.name, part.partition): part.leader
            for topic in answer.topics
            for part in topic.partitions
        }
        found: dict[int, list[m.PartitionName]] = {}
        for at in wanted:
            if at not in leaders:
                raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(at))
            if leaders[at] >= 0:
                found.setdefault(leaders[at], []).append(
                    m.PartitionName(topic=at.topic, partition=at.partition)
                )
        return found

    async def _ask_about(
        self, node: int, names: Sequence[m.PartitionName]
    ) -> list[m.DescribeProducersResult]:
        """Of some of these partitions, as many as an answer has room for."""
        request = m.DescribeProducersRequest(producer_id=m.EVERY_PRODUCER, partitions=list(names[:_AT_ONCE]))
        answer: m.DescribeProducersResponse = await self._cluster.ask(
            m.Kind.DESCRIBE_PRODUCERS, request, timeout=_ASK_SECONDS, node_id=node
        )
        return answer.partitions

    async def find_hanging_transactions(
        self, topics: Iterable[str] | None = None, *, longer_than_ms: int = HANGS_AFTER_MS
    ) -> list[HangingTransaction]:
        """Transactions that are open in a partition without a coordinator that will end them (KIP-664).

        Only what writes of releases without verification, lost logs of coordinators or errors leave behind hangs.
        Among these are transactions whose coordinator tries to end them, and is refused by the partition.

        Args:
          topics: In these alone; in all of them if left out.
          longer_than_ms: Whose producers have written nothing for so long, by the clocks of this machine and of
            the producers. More than the nodes' `transaction_max_timeout_ms`, or transactions that still go on
            may be among them.

        Raises what `describe_producers` and `list_transactions` raise.
        """
        named = None if topics is None else given.names("topics", topics)
        least = given.whole("longer_than_ms", longer_than_ms, least=0)
        self._check_open()
        answer = await self._metadata(named)
        for topic in answer.topics:
            if topic.error != ErrorCode.NONE:
                raise error_for(topic.error, f"topic {topic.name!r}")
        places = [(each.name, part.partition) for each in answer.topics for part in each.partitions]
        if not places:
            return []
        until = time.time() * 1000 - least
        found = [
            HangingTransaction(
                topic=at.topic,
                partition=at.partition,
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                start_offset=each.start_offset,
                last_timestamp_ms=each.last_timestamp_ms,
            )
            for at, producers in (await self.describe_producers(places)).items()
            for each in producers
            if each.start_offset >= 0 and each.last_timestamp_ms <= until
        ]
        return await self._unheld(found) if found else []

    async def _unheld(self, open_ones: Sequence[HangingTransaction]) -> list[HangingTransaction]:
        """The transactions that no coordinator is going to end."""
        ids = sorted({each.producer_id for each in open_ones})
        names: dict[int, str] = {}
        held: set[tuple[int, str, int]] = set()
        for start in range(0, len(ids), _AT_ONCE):
            request = tm.ListTransactionsRequest(producer_ids=ids[start : start + _AT_ONCE])
            for listed in await self._listed(request):
                names[listed.producer_id] = listed.transactional_id
                told = await self.describe_transaction(listed.transactional_id)
                if told.status in HELD:
                    held |= {
                        (told.producer_id, each.topic, each.partition)
                        for each in told.partitions
                        if each not in told.refused
                    }
        return [
            attrs.evolve(each, transactional_id=names.get(each.producer_id, ""))
            for each in open_ones
            if (each.producer_id, each.topic, each.partition) not in held
        ]

    async def abort_transaction(self, partition: tuple[str, int], start_offset: int) -> None:
        """End a transaction that hangs in a partition (KIP-664): its records never count there.

        If its coordinator has decided the outcome, and the partition refuses the marker, it gets that outcome.

        Args:
          partition: Topic and partition.
          start_offset: Where it begins, as `find_hanging_transactions` tells.

        Raises:
          InvalidTxnStateError: No transaction is open from there on; or its coordinator holds it, and will end it.
          RequestTimeoutError: The leader has not answered within `request_timeout_ms`.
        """
        at = given.partition(partition)
        start = given.whole("start_offset", start_offset, least=0)
        thing = f"transaction at offset {start} of {at}"
        (producers,) = (await self.describe_producers([at])).values()
        one = next((each for each in producers if each.start_offset == start), None)
        if one is None:
            there = ", ".join(str(each.start_offset) for each in producers if each.start_offset >= 0)
            raise _cannot_abort(
                thing, f"no transaction is open from there on; open transactions start at: {there or 'none'}"
            )
        hanging = HangingTransaction(
            topic=at.topic,
            partition=at.partition,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            start_offset=start,
            last_timestamp_ms=one.last_timestamp_ms,
        )
        if not await self._unheld([hanging]):
            raise _cannot_abort(
                thing,
                f"the coordinator of producer {one.producer_id} holds it, and ends it by its timeout; "
                "opening a producer with its transactional_id ends it at once",
            )
        await self._abort(hanging, thing)

    async def _is_open(self, hanging: HangingTransaction) -> bool:
        """Whether this very transaction is still open in its partition."""
        (producers,) = (await self.describe_producers([(hanging.topic, hanging.partition)])).values()
        known = hanging.producer_id, hanging.producer_epoch, hanging.start_offset
        return any((each.producer_id, each.producer_epoch, each.start_offset) == known for each in producers)

    async def _abort(self, hanging: HangingTransaction, thing: str) -> None:
        request = tm.AbortTransactionRequest(
            topic=hanging.topic,
            partition=hanging.partition,
            producer_id=hanging.producer_id,
            producer_epoch=hanging.producer_epoch,
            start_offset=hanging.start_offset,
        )
        at = PartitionId(hanging.topic, hanging.partition)
        last: Exception | None = None
        maybe_done = False
        with trio.move_on_after(self._timeout):
            attempt = 0
            while True:
                try:
                    for node in await self._led([at]):
                        ask = partial(self._cluster.ask, m.Kind.ABORT_TRANSACTION, request)
                        answer: tm.AbortTransactionResponse = await ask(timeout=self._timeout, node_id=node)
                        if answer.error == ErrorCode.NONE:
                            return
                        refused = answer.error == ErrorCode.INVALID_TXN_STATE
                        if refused and maybe_done and not await self._is_open(hanging):
                            return
                        if refused and answer.message:
                            raise _cannot_abort(thing, answer.message)
                        raise error_for(answer.error, thing, answer.message)
                except TransportError as error:
                    last, maybe_done = error, True
                except ClientError as error:
                    if not error.retriable:
                        raise
                    last = error
                    maybe_done = maybe_done or not isinstance(error, _NOT_BEGUN)
                attempt += 1
                await trio.sleep(self._cluster.quick_backoff(attempt))
        raise RequestTimeoutError(
            f"{thing}: its leader has not answered within {self._timeout:g} s: {last}"
        ) from last


def _cannot_abort(thing: str, why: str) -> InvalidTxnStateError:
    """Without the advice that a producer gets with this error, which is to abort."""
    return InvalidTxnStateError(f"{thing}: {ErrorCode.INVALID_TXN_STATE.name}: {why}")
