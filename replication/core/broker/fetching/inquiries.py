"""The open questions of a fetch request, or of a session and its requests, and the content of an answer to it."""

from __future__ import annotations

from collections.abc import Hashable

import attrs

from ...messages import FetchedTransactions, FetchRequest, FetchResult
from ...partition.events import Fetch
from ...types import CONSUMER, PartitionId
from ..timers import Timer
from .fetch_session import LeaderSession

Session = LeaderSession[PartitionId, Fetch]


@attrs.define(eq=False, slots=True)
class Inquiry:
    """The open questions of one request, or of one session and its requests; `request` is the one that waits."""

    session: Session | None
    open: dict[PartitionId, Fetch]
    connection: Hashable
    news: dict[PartitionId, None] = attrs.Factory(dict)
    """Partitions that have to be looked at, in order; all of them have an open question."""
    held: dict[PartitionId, None] = attrs.Factory(dict)
    """Partitions with a high watermark to tell and nothing else: they go along with the next answer, and are not
    looked at before, as there may be many of them."""
    request: Hashable | None = None
    message: FetchRequest | None = None
    replica_id: int = CONSUMER
    incarnation: int = -1
    """Of the follower that sent the last request."""
    expires: float = 0.0
    """When the request that waits is answered whatever there is."""
    timer: Timer | None = None
    """Comes at `expires` or before: one timer serves the requests of a session one after the other."""
    timer_at: float = 0.0
    is_quiet: bool = False
    """There is nothing to tell but a high watermark, which is told at `tell_at`."""
    tell_at: float = 0.0
    sent_at: float = float("-inf")
    """When the last answer of the session went out."""
    confirmed_at: float = float("-inf")
    """The time of the answer that the last request continues from: its sender followed at least until then."""
    quiet: Timer | None = None
    """Comes at `tell_at` or before: it is not cancelled when an answer takes the high watermark along, so that it
    wakes the driver once in a while and not for each record."""


@attrs.define(eq=False, slots=True)
class Gathered:
    """The content of an answer; `urgent`: something that is not data, and does not wait for more of it."""

    budget: int
    results: dict[PartitionId, FetchResult] = attrs.Factory(dict)
    parts: list[object] = attrs.Factory(list)
    transactions: list[FetchedTransactions] | None = None
    """For a reader of committed records."""
    size: int = 0
    urgent: bool = False
