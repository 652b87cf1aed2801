"""A node's metrics for Prometheus: read from its state when somebody asks, never while it works.

The state is copied on the event loop, in one short step; it becomes text in a thread. docs/monitoring.md lists
every name with the one that Kafka has for it.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import time
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

import attrs

from ....transport.repeats import limited
from ...core.messages import Kind
from ...core.transactions.records import Status
from ...core.types import NO_LEADER, PartitionId
from .counters import BUCKETS

if TYPE_CHECKING:
    from prometheus_client import Metric

    from .._replica_host import ReplicaHost
    from ..driver import Driver
    from ..store._cluster_state import ClusterState

log = limited(logging.getLogger("insync.node"))

Labels = tuple[str, ...]


def is_installed() -> bool:
    """Whether there is the library that writes the format (the extra `metrics`)."""
    return importlib.util.find_spec("prometheus_client") is not None


@attrs.frozen
class Family:
    """Values of one metric by their labels. kind: gauge or counter."""

    name: str
    kind: str
    help: str
    labels: Labels
    values: Mapping[Labels, float]


@attrs.frozen
class Snapshot:
    """Everything there is to say at one moment."""

    families: list[Family]
    request_times: dict[str, tuple[list[int], float]]
    """By kind: the number in each bucket, and the sum in seconds."""
    transaction_times: dict[str, tuple[list[int], float]]
    """By outcome, the same."""


_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LATE_MS = 300_000
"""Time beyond the longest timeout after which an open transaction deserves attention (Kafka's value)."""
_PARTITION = ("topic", "partition")
MOST_OFFSETS = 10_000
"""Committed offsets that one answer tells of; each is two lines."""


class Metrics:
    """Takes snapshots of one node."""

    def __init__(self, driver: Driver, state: ClusterState) -> None:
        self._driver = driver
        self._state = state

    def snapshot(self) -> Snapshot:
        """On the event loop."""
        families = [
            *self._of_partitions(),
            *self._of_cluster(),
            *self._of_node(),
            *self._of_groups(),
            *self._of_transactions(),
            *self._of_topics(),
            *self._of_gateways(),
        ]
        times = {
            Kind(kind).name.lower(): (list(times.counts), times.total)
            for kind, times in self._driver.counters.requests.items()
        }
        ended = self._driver.counters.transactions
        outcomes = {name: (list(each.counts), each.total) for name, each in ended.items()}
        return Snapshot(families, times, outcomes)

    def _of_gateways(self) -> Iterator[Family]:
        """The metrics of gateways: those of one name together, whichever listener tells them."""
        found: dict[str, Family] = {}
        for read in list(self._driver.gateway_metrics.values()):
            try:
                told = [_checked(Family(*each)) for each in read()]
            except Exception:
                log.exception("the metrics of a gateway failed; the others are reported")
                continue
            for each in told:
                known = found.get(each.name)
                if known is None or known.labels != each.labels:
                    found[each.name] = each
                else:
                    found[each.name] = attrs.evolve(known, values={**known.values, **each.values})
        yield from found.values()

    def _of_partitions(self) -> Iterator[Family]:
        """Of the replicas on this node."""
        rows = [_PartitionRow.of(at, host) for at, host in self._driver.hosts.items()]

        def gauge(name: str, text: str, field: str) -> Family:
            return Family(name, "gauge", text, _PARTITION, {row.at: getattr(row, field) for row in rows})

        yield gauge("insync_log_end_offset", "Next offset of the log.", "end")
        yield gauge("insync_log_start_offset", "First offset of the log.", "start")
        yield gauge("insync_high_watermark", "Below it records are committed.", "high_watermark")
        yield gauge("insync_log_size_bytes", "Size of the log's segments.", "size")
        yield gauge("insync_leader_epoch", "Leader epoch that the replica is in.", "epoch")
        lag = {
            (*row.at, str(node)): behind
            for row, host in zip(rows, self._driver.hosts.values(), strict=True)
            for node, behind in _lags(host)
        }
        unreadable: dict[Labels, float] = {
            (at.topic, str(at.partition)): float(count)
            for at, count in self._driver.directories.troubles.unreadable.items()
        }
        text = "Unreadable record batches that compaction left unchanged."
        yield Family("insync_unreadable_batches", "gauge", text, _PARTITION, unreadable)
        failing = len(self._driver.directories.troubles.failing)
        text = "Replicas here whose last retention or compaction failed."
        yield _single("insync_unmaintained_partitions", "gauge", text, failing)
        strays = [each for home in self._driver.directories for each in home.strays]
        text = "Logs that were set aside, because nothing shows that their records were given up."
        yield _single("insync_stray_logs", "gauge", text, len(strays))
        text = "Space that these logs take."
        yield _single("insync_stray_bytes", "gauge", text, sum(each.size_bytes for each in strays))
        labels = (*_PARTITION, "follower")
        text = "Records by which a follower is behind, as its leader sees it."
        yield Family("insync_replica_lag", "gauge", text, labels, lag)
        leads = [row for row in rows if row.leads]
        for name, text, value in (
            ("insync_partition_count", "Replicas on this node.", len(rows)),
            ("insync_leader_count", "Partitions that this node leads.", len(leads)),
            ("insync_offline_replica_count", "Replicas that cannot be used here.", sum(r.shut for r in rows)),
            (
                "insync_under_replicated_partitions",
                "Partitions led here with fewer replicas in sync than assigned.",
                sum(row.isr < row.replicas for row in leads),
            ),
            (
                "insync_under_min_isr_partitions",
                "Partitions led here that take no acks=all write: fewer in sync than min_insync_replicas.",
                sum(row.isr < row.min_isr for row in leads),
            ),
            (
                "insync_at_min_isr_partitions",
                "Partitions led here with exactly min_insync_replicas in sync.",
                sum(row.isr == row.min_isr for row in leads),
            ),
            (
                "insync_reassigning_partitions",
                "Partitions led here that are being moved.",
                sum(row.moves for row in leads),
            ),
            (
                "insync_replica_max_lag",
                "Greatest lag of a follower, in records.",
                max(lag.values(), default=0),
            ),
        ):
            yield _single(name, "gauge", text, value)

    def _of_cluster(self) -> Iterator[Family]:
        view = self._driver.view
        active = self._state.is_controller
        leaderless = sum(each.record.leader == NO_LEADER for each in view.partitions.values())
        yield _single("insync_active_controller", "gauge", "1 on the controller, else 0.", int(active))
        yield _single("insync_controller_epoch", "gauge", "Epoch of the controller.", view.controller_epoch)
        yield _single(
            "insync_offline_partitions",
            "gauge",
            "Partitions without a leader, reported by the controller; 0 on other nodes.",
            leaderless if active else 0,
        )
        yield _single("insync_alive_nodes", "gauge", "Registered nodes.", len(view.nodes))
        yield _single("insync_topics", "gauge", "Topics of the cluster.", len(view.topics))
        counters = self._driver.counters
        for name, text, count in (
            ("insync_leader_elections", "Leaders elected by this node.", counters.leader_elections),
            (
                "insync_unclean_leader_elections",
                "Leaders elected that may lack what was committed.",
                counters.unclean_leader_elections,
            ),
            (
                "insync_wrong_suspicions",
                "Nodes taken for gone that registered again at once.",
                counters.wrong_suspicions,
            ),
        ):
            yield _single(name, "counter", text, count)

    def _of_node(self) -> Iterator[Family]:
        driver, counters = self._driver, self._driver.counters
        homes = list(driver.directories)
        offline = sum(bool(home.failure) for home in homes) + len(driver.directories.unusable)
        yield _single("insync_offline_log_directories", "gauge", "Log directories that failed.", offline)
        yield Family(
            "insync_log_writer_queue",
            "gauge",
            "Pieces of work that wait for a log directory.",
            ("directory",),
            {(str(home.path),): home.writer.queued for home in homes},
        )
        parked: dict[Labels, float] = {
            ("produce",): driver.broker.producing.parked,
            ("fetch",): driver.broker.serving.parked,
            ("delete_records",): driver.broker.producing.deleting,
            ("quota",): driver.quotas.held,
            ("group",): sum(each.open_requests for each in driver.broker.shards.facts()),
        }
        text = (
            "Requests that wait: for replication, for records, for deletion, for their client's quota, or at a "
            "group's coordinator."
        )
        yield Family("insync_purgatory_size", "gauge", text, ("kind",), parked)
        for name, text, count in (
            ("insync_isr_shrinks", "ISRs made smaller by this node as their leader.", counters.isr_shrinks),
            ("insync_isr_expands", "ISRs made larger by this node as their leader.", counters.isr_expands),
            (
                "insync_failed_isr_updates",
                "Attempts to change an ISR that were refused or unclear.",
                counters.failed_isr_updates,
            ),
            (
                "insync_replication_bytes_in",
                "Bytes of batches fetched from leaders.",
                counters.replication_bytes_in,
            ),
            (
                "insync_replication_bytes_out",
                "Bytes of batches sent to followers.",
                counters.replication_bytes_out,
            ),
        ):
            yield _single(name, "counter", text, count)
        throttled: dict[Labels, float] = {(rate,): ms / 1000 for rate, ms in counters.throttled_ms.items()}
        text = "Seconds for which clients were told to pause."
        yield Family("insync_quota_throttle_seconds", "counter", text, ("quota",), throttled)
        failed: dict[Labels, float] = {
            (Kind(kind).name.lower(),): times.failed for kind, times in counters.requests.items()
        }
        text = "Requests that were answered with an error as a whole."
        yield Family("insync_failed_requests", "counter", text, ("request",), failed)

    def _of_groups(self) -> Iterator[Family]:
        """Of what this node coordinates."""
        driver, counts = self._driver, self._driver.broker.coordinating.counts()
        groups: dict[Labels, float] = {(kind,): count for kind, count in counts.groups.items()}
        yield Family("insync_groups", "gauge", "Groups coordinated here.", ("type",), groups)
        members: dict[Labels, float] = {(kind,): count for kind, count in counts.members.items()}
        yield Family(
            "insync_group_members", "gauge", "Members of groups coordinated here.", ("type",), members
        )
        facts = driver.broker.shards.facts()
        active = sum(each.active for each in facts)
        states: dict[Labels, float] = {("active",): active, ("loading",): len(facts) - active}
        text = "Partitions of internal topics that this node coordinates, or is about to."
        yield Family("insync_coordinated_partitions", "gauge", text, ("state",), states)
        yield from self._of_offsets()
        text = "Rebalances of groups coordinated here."
        yield _single("insync_group_rebalances", "counter", text, driver.coordination.rebalances)

    def _of_offsets(self) -> Iterator[Family]:
        """How far groups are, and how far behind where the partition's log is here too."""
        offsets, left = self._driver.broker.coordinating.offsets(MOST_OFFSETS)
        committed: dict[Labels, float] = {}
        lag: dict[Labels, float] = {}
        for group, at, offset in offsets:
            labels = group, at.topic, str(at.partition)
            committed[labels] = offset
            host = self._driver.hosts.get(at)
            if host is not None and host.log is not None:
                lag[labels] = max(0, host.replica.log.high_watermark - offset)
        names = ("group", *_PARTITION)
        text = "Offsets that groups coordinated here have committed."
        yield Family("insync_group_committed_offset", "gauge", text, names, committed)
        text = "Offsets from what a group has committed to the high watermark that this node knows."
        yield Family("insync_group_lag", "gauge", text, names, lag)
        text = "Committed offsets that are left out of the two for their number."
        yield _single("insync_group_offsets_left_out", "gauge", text, left)

    def _of_transactions(self) -> Iterator[Family]:
        """Of what this node coordinates, and of what is open in the partitions that it leads."""
        driver = self._driver
        statuses = driver.broker.transacting.statuses()
        states: dict[Labels, float] = {(each.name.lower(),): statuses.get(each, 0) for each in Status}
        text = "Transactional ids coordinated here, by the state of their transactions."
        yield Family("insync_transactional_ids", "gauge", text, ("state",), states)
        ended = driver.counters.transactions
        text = "Transactions coordinated here that were decided to be committed."
        yield _single("insync_transactions_committed", "counter", text, ended["committed"].count)
        causes: dict[Labels, float] = {
            (cause,): driver.counters.transactions_aborted[cause]
            for cause in ("asked", "timeout", "taken_over")
        }
        text = "Transactions coordinated here that were decided to be aborted."
        yield Family("insync_transactions_aborted", "counter", text, ("cause",), causes)
        led = [
            host
            for host in driver.hosts.values()
            if host.replica.leader is not None and len(host.replica.log.producers.transactions)
        ]
        count = sum(len(host.replica.log.producers.transactions) for host in led)
        yield _single("insync_open_transactions", "gauge", "Open in partitions led here.", count)
        longest = driver.settings.transaction_max_timeout_ms + _LATE_MS
        late = sum(_has_late(host, time.time() * 1000 - longest) for host in led)
        text = "Partitions led here in which a transaction is open for longer than any timeout."
        yield _single("insync_partitions_with_late_transactions", "gauge", text, late)

    def _of_topics(self) -> Iterator[Family]:
        counters, topics = self._driver.counters, self._driver.view.topics
        for name, text, counts in (
            ("insync_bytes_in", "Bytes of batches from producers.", counters.bytes_in),
            ("insync_messages_in", "Records from producers.", counters.messages_in),
            ("insync_bytes_out", "Bytes of batches to consumers.", counters.bytes_out),
            (
                "insync_failed_produce_requests",
                "Batches that were not taken, or not in time.",
                counters.failed_produces,
            ),
            ("insync_failed_fetch_requests", "Fetches of a partition that failed.", counters.failed_fetches),
        ):
            known: dict[Labels, float] = {
                (topic,): count for topic, count in counts.items() if topic in topics
            }
            yield Family(name, "counter", text, ("topic",), known)


@attrs.frozen(slots=True)
class _PartitionRow:
    at: Labels
    start: int
    end: int
    high_watermark: int
    size: int
    epoch: int
    leads: bool
    shut: bool
    isr: int
    replicas: int
    min_isr: int
    moves: bool

    @classmethod
    def of(cls, at: PartitionId, host: ReplicaHost) -> _PartitionRow:
        replica, log = host.replica, host.replica.log
        record = replica.versioned.record if replica.versioned is not None else None
        return cls(
            (at.topic, str(at.partition)),
            log.log_start_offset,
            log.log_end_offset,
            log.high_watermark,
            host.log.size_bytes if host.log is not None and not host.lane.closed else 0,
            replica.leader_epoch,
            replica.leader is not None,
            bool(replica.failure),
            len(record.isr) if record is not None else 0,
            len(record.target) if record is not None else 0,
            record.min_isr if record is not None else 0,
            record is not None and record.reassigning,
        )


def _lags(host: ReplicaHost) -> Iterator[tuple[int, int]]:
    leader = host.replica.leader
    if leader is not None:
        end = host.replica.log.log_end_offset
        for node, follower in leader.followers.items():
            yield node, end - max(follower.log_end_offset, host.replica.log.log_start_offset)


def _has_late(host: ReplicaHost, since_ms: float) -> bool:
    """Whether a producer with an open transaction has written nothing since."""
    states = () if host.log is None else host.log.producer_states()
    return any(each.first_offset >= 0 and each.timestamp_ms < since_ms for each in states)


def _single(name: str, kind: str, text: str, value: float) -> Family:
    return Family(name, kind, text, (), {(): value})


def _checked(told: Family) -> Family:
    """A gateway's metric, if the format has a place for it; raises TypeError or ValueError."""
    is_text = all(map(_is_text, (told.name, told.help, *told.labels)))
    if not is_text or not all(map(_NAME.fullmatch, (told.name, *told.labels))):
        raise ValueError(f"metric {told.name!r} with labels {told.labels!r}: use letters, digits and _")
    if len({*told.labels}) < len(told.labels):
        raise ValueError(f"metric {told.name} has labels {told.labels!r}: name each once")
    if told.kind not in ("gauge", "counter"):
        raise ValueError(f"metric {told.name} is of kind {told.kind!r}: use gauge or counter")
    values = {}
    for labels, value in told.values.items():
        if len(labels) != len(told.labels) or not all(map(_is_text, labels)):
            raise ValueError(f"metric {told.name} has labels {told.labels!r}, and a value for {labels!r}")
        values[labels] = float(value)
    return attrs.evolve(told, values=values)


def _is_text(value: object) -> bool:
    """Whether it can be told in UTF-8, which has no surrogates."""
    return isinstance(value, str) and _SURROGATE.search(value) is None


def render(snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
    """The text, and its media type, as the `Accept` header asks; takes a while, so not on the event loop."""
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(snapshot))
    ProcessCollector(registry=registry)
    try:
        encode, media_type = choose_encoder(accept)
    except Exception:  # noqa: BLE001 - it trips over versions that are no numbers
        encode, media_type = choose_encoder("")
    return encode(registry), media_type


@attrs.frozen(eq=False)
class _Collector:
    snapshot: Snapshot

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for family in self.snapshot.families:
            cls = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = cls(family.name, family.help, labels=family.labels)
            for labels, value in family.values.items():
                metric.add_metric(labels, value)
            yield metric
        times = HistogramMetricFamily(
            "insync_request_seconds", "Time from a request's arrival to its answer.", labels=("request",)
        )
        bounds = (*map(str, BUCKETS), "+Inf")
        for kind, (counts, total) in self.snapshot.request_times.items():
            times.add_metric((kind,), list(zip(bounds, accumulate(counts), strict=True)), total)
        yield times
        ended = HistogramMetricFamily(
            "insync_transaction_seconds",
            "Time from a transaction's first record to its outcome.",
            labels=("outcome",),
        )
        for outcome, (counts, total) in self.snapshot.transaction_times.items():
            ended.add_metric((outcome,), list(zip(bounds, accumulate(counts), strict=True)), total)
        yield ended
