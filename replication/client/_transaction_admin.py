"""Transactions, as an operator looks at them: which there are, and what each of them holds up."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import trio

from ...transport import TransportError
from ..core import messages as m
from ..core.coordination import group_messages as gm
from ..core.coordination import transaction_messages as tm
from ..core.coordination.transaction_messages import TransactionDescription, TransactionListing
from ..core.errors import ErrorCode
from . import _arguments as given
from ._coordinators import Coordinators
from ._groups import GroupAdmin
from .errors import ClientError, RequestTimeoutError, error_for

_ASK_SECONDS = 5.0


class TransactionAdmin(GroupAdmin):
    """Transactions; a part of `Admin`."""

    async def list_transactions(self, states: Iterable[str] | None = None) -> list[TransactionListing]:
        """All transactional ids, by name; those in certain states alone (as ONGOING, PREPARE_ABORT, EMPTY).

        Raises:
          RequestTimeoutError: Not every coordinator has answered within `request_timeout_ms`.
        """
        wanted = [] if states is None else given.names("states", states)
        request = tm.ListTransactionsRequest(statuses=wanted)
        self._check_open()
        last: Exception | None = None
        with trio.move_on_after(self._timeout):
            attempt = 0
            while True:
                found: dict[str, TransactionListing] = {}
                try:
                    # All of them again: a coordinator may have moved between two answers.
                    for node in (await self._metadata([])).nodes:
                        ask = partial(self._cluster.ask, m.Kind.LIST_TRANSACTIONS, request)
                        answer = await ask(timeout=_ASK_SECONDS, node_id=node.node_id)
                        if answer.error != ErrorCode.NONE:
                            thing = f"transactions of node {node.node_id}"
                            raise error_for(answer.error, thing, answer.message)
                        found.update({each.transactional_id: each for each in answer.transactions})
                    return [found[name] for name in sorted(found)]
                except TransportError as error:
                    last = error
                except ClientError as error:
                    if not error.retriable:
                        raise
                    last = error
                attempt += 1
                await trio.sleep(self._cluster.quick_backoff(attempt))
        raise RequestTimeoutError(
            f"list transactions: not every node answered within {self._timeout:g} s; last: {last}"
        ) from last

    async def describe_transaction(self, name: str) -> TransactionDescription:
        """What the coordinator of a transactional id has of it.

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
