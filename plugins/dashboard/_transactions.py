"""The transactions of a cluster, as last seen, and the requests that find them."""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs

from ...replication.asyncio import Admin
from ...replication.client import ClientError, HangingTransaction, TransactionalIdNotFoundError
from ...replication.core.messages.transactions import TransactionDescription, TransactionListing
from ...transport import TransportError

MOST_DESCRIBED = 100
"""Open transactions that are described at each look."""
OPEN = frozenset({"ONGOING", "PREPARE_COMMIT", "PREPARE_ABORT"})


@attrs.define(kw_only=True)
class Transactions:
    """listed: all transactional ids by name. open: the first of those with an open transaction, the oldest first.

    error, hanging_error: why they could not be asked for; empty while all is well. searched_at: when the last
    search for hanging ones ended, in seconds since 1970; 0 before the first.
    """

    listed: list[TransactionListing] = attrs.Factory(list)
    open: list[TransactionDescription] = attrs.Factory(list)
    open_count: int = 0
    hanging: list[HangingTransaction] = attrs.Factory(list)
    searched_at: float = 0.0
    error: str = ""
    hanging_error: str = ""

    async def look(self, admin: Admin) -> None:
        """List the transactions. `error` tells a failure of the client."""
        try:
            listed = await admin.list_transactions()
            under_way = [each.transactional_id for each in listed if each.status in OPEN]
            found = []
            for name in under_way[:MOST_DESCRIBED]:
                try:
                    described = await admin.describe_transaction(name)
                except TransactionalIdNotFoundError:
                    continue  # expired since it was listed
                if described.status in OPEN:
                    found.append(described)
        except (ClientError, TransportError) as failure:
            self.error = str(failure)
            return
        self.listed, self.open_count, self.error = listed, len(under_way), ""
        self.open = sorted(found, key=lambda each: (each.start_ms, each.transactional_id))

    async def search(self, admin: Admin, longer_than_ms: int, clock: Callable[[], float] = time.time) -> None:
        """Find transactions that hang: every partition's leader is asked for its producers."""
        try:
            self.hanging = await admin.find_hanging_transactions(longer_than_ms=longer_than_ms)
        except (ClientError, TransportError) as failure:
            self.hanging_error = str(failure)
            return
        self.hanging_error, self.searched_at = "", clock()
