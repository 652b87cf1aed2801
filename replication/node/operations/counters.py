"""The counters of a working node: a few additions for each request, none for each record."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict

import attrs

from ...core.control.view import ClusterView
from ...core.messages import Kind

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histogram of request times, in seconds; one more bucket takes what is longer."""


@attrs.define(eq=False, slots=True)
class RequestTimes:
    """How long requests of one kind took from their arrival to their answer, or transactions, in seconds."""

    counts: list[int] = attrs.Factory(lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0
    failed: int = 0
    """Answered with an error for the request as a whole."""

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)


@attrs.define(eq=False, slots=True)
class Counters:
    """All since the start of the process; they only grow. Bytes are those of record batches."""

    requests: dict[int, RequestTimes] = attrs.Factory(lambda: defaultdict(RequestTimes))
    """By kind."""
    bytes_in: Counter[str] = attrs.Factory(Counter)
    """By topic: what producers sent and the leader took."""
    messages_in: Counter[str] = attrs.Factory(Counter)
    bytes_out: Counter[str] = attrs.Factory(Counter)
    """By topic: what consumers were given."""
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0
    failed_produces: Counter[str] = attrs.Factory(Counter)
    """By topic: partitions of produce requests that were answered with an error. "": of topics that do not exist,
    of which a client may name any number.
    """
    failed_fetches: Counter[str] = attrs.Factory(Counter)
    isr_shrinks: int = 0
    isr_expands: int = 0
    failed_isr_updates: int = 0
    leader_elections: int = 0
    """Elections that this node has written as the controller."""
    unclean_leader_elections: int = 0
    transactions: dict[str, RequestTimes] = attrs.Factory(
        lambda: {"committed": RequestTimes(), "aborted": RequestTimes()}
    )
    """By outcome, those coordinated here: from the first record to the decision."""
    transactions_aborted: Counter[str] = attrs.Factory(Counter)
    """By cause."""
    wrong_suspicions: int = 0
    """Nodes that this one took for gone, and that had been there."""
    throttled_ms: Counter[str] = attrs.Factory(Counter)
    """By limit: for how long clients were told to pause, in milliseconds."""

    def answered(self, kind: int, seconds: float) -> None:
        times = self.requests[kind]
        times.counts[bisect_left(BUCKETS, seconds)] += 1
        times.total += seconds

    def failed(self, kind: int, seconds: float) -> None:
        """It was answered with an error."""
        self.answered(kind, seconds)
        self.requests[kind].failed += 1

    def as_dict(self) -> dict[str, int]:
        """The sums, for those who ask over the wire."""
        kinds = {Kind(kind).name.lower(): times for kind, times in sorted(self.requests.items())}
        return {
            "bytes_in": self.bytes_in.total(),
            "messages_in": self.messages_in.total(),
            "bytes_out": self.bytes_out.total(),
            "replication_bytes_in": self.replication_bytes_in,
            "replication_bytes_out": self.replication_bytes_out,
            "failed_produces": self.failed_produces.total(),
            "failed_fetches": self.failed_fetches.total(),
            "isr_shrinks": self.isr_shrinks,
            "isr_expands": self.isr_expands,
            "failed_isr_updates": self.failed_isr_updates,
            "leader_elections": self.leader_elections,
            "unclean_leader_elections": self.unclean_leader_elections,
            "wrong_suspicions": self.wrong_suspicions,
            "throttled_ms": self.throttled_ms.total(),
            **{f"requests_{name}": times.count for name, times in kinds.items()},
            **{f"request_us_{name}": int(1e6 * times.total) for name, times in kinds.items()},
        }


def count_failed(counted: Counter[str], topic: str, view: ClusterView) -> None:
    """One more failure over a topic. Those that do not exist count as one: a client may name any number."""
    counted[topic if topic in view.topics else ""] += 1
