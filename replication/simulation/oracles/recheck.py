"""The invariants of a cluster's state, all of them, from scratch: what the oracle works out step by step."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from ...core.types import PartitionId
from ..errors import require
from ..world.disk import LEFT_OUT, WHOLE, key_of
from ..world.node import Host
from . import chain
from .facts import NAMED_FROM, PartitionFacts

if TYPE_CHECKING:
    from ..world.cluster import Cluster


def recheck(cluster: Cluster) -> None:
    """Raise `Violated` at the first state invariant that does not hold."""
    for (partition, _), facts in cluster.oracle.known.items():
        hosts = cluster.hosts_of(partition, facts)
        for host in hosts:
            _log_in_order(host)
            _epochs_agree(host)
            if host.disk.cleaned and not facts.unclean:
                _compacted_for_later(host, facts)
            _shows_committed(host, facts)
        for one, other in combinations(hosts, 2):
            _logs_match(one, other)
            if not facts.unclean:
                _prefixes_agree(one, other)
        if not facts.unclean:
            if not facts.gone and not cluster.store.is_put_back:
                _electable_are_complete(cluster, partition, facts)
            _promises_stand(facts)
            _sequences_stand(hosts, facts)
        require(
            not facts.refused & facts.written, "S18", "refused and written: {}", facts.refused & facts.written
        )
        if not facts.gone and not cluster.store.is_put_back:
            chain.check_shape(cluster.store.partitions[partition].record)


def _log_in_order(host: Host) -> None:
    epochs = [epoch for epoch, _ in host.disk.flat[host.disk.start :]]
    require(epochs == sorted(epochs), "S5", "{}: {}", host.name, epochs)
    starts = [batch.meta.base_offset for batch in host.disk.batches]
    ends = [batch.meta.next_offset for batch in host.disk.batches]
    first = starts[0] if starts else host.disk.end
    require(
        first <= max(host.disk.start, 0), "S16", "{}: begins at {}, not {}", host.name, first, host.disk.start
    )
    require([first, *ends] == [*starts, host.disk.end], "S5", "{}: {}, {}", host.name, starts, ends)


def _epochs_agree(host: Host) -> None:
    """Every batch lies in its epoch, and no epoch begins within another's batch."""
    disk = host.disk
    entries = disk.epochs
    for meta, _, state in disk.batches:
        if state == LEFT_OUT:
            continue
        begun = [epoch for epoch, start in entries if start <= max(meta.base_offset, disk.start)]
        right = bool(begun) and begun[-1] == meta.leader_epoch
        later = [start for epoch, start in entries if meta.base_offset < start < meta.next_offset]
        require(right and all(start <= disk.start for start in later), "S14", "{}: {}", host.name, entries)


def _compacted_for_later(host: Host, facts: PartitionFacts) -> None:
    """S19: the last committed batch of a key has its records, wherever it stands."""
    for batch in host.disk.batches:
        last = facts.last_of_key.get(key_of(batch.payload), -1)
        whole = batch.state == WHOLE or batch.meta.base_offset < last
        require(
            whole, "S19", "{} has compacted {} away, the last of its key is at {}", host.name, batch, last
        )


def _shows_committed(host: Host, facts: PartitionFacts) -> None:
    replica = host.replica
    if replica is None:
        return
    log = replica.log
    shape = 0 <= log.log_start_offset <= log.high_watermark <= log.log_end_offset <= log.next_offset
    require(shape, "S9", "{}: {}", host.name, log)
    if not facts.unclean:
        start = host.disk.start
        seen = host.disk.flat[start : log.high_watermark]
        right = facts.committed[start : start + len(seen)]
        invariant = "S1" if replica.leader is not None else "S3b"
        require(seen == right, invariant, "{} shows records that are not committed", host.name)
        require(
            log.log_start_offset <= start, "S16", "{} reports a log start above {}: {}", host.name, start, log
        )


def _logs_match(one: Host, other: Host) -> None:
    left, right = one.disk.flat, other.disk.flat
    start = max(one.disk.start, other.disk.start)
    for offset in range(min(len(left), len(right)) - 1, start - 1, -1):
        if left[offset][0] == right[offset][0]:
            same = left[start : offset + 1] == right[start : offset + 1]
            require(same, "S3", "{} and {} differ up to {}", one.name, other.name, offset)
            break


def _prefixes_agree(one: Host, other: Host) -> None:
    if one.replica is not None and other.replica is not None:
        # Of a cut that is done the replica hears a moment later.
        held = min(one.disk.end, other.disk.end)
        shown = min(one.replica.log.high_watermark, other.replica.log.high_watermark, held)
        start = max(one.disk.start, other.disk.start)
        same = one.disk.flat[start:shown] == other.disk.flat[start:shown]
        require(same, "S3b", "{} and {} differ below {}", one.name, other.name, shown)


def _electable_are_complete(cluster: Cluster, partition: PartitionId, facts: PartitionFacts) -> None:
    record = cluster.store.partitions[partition].record
    for member in (*record.isr, *record.elr):
        if not cluster.nodes[member].lost_data:
            disk = cluster.oracle.disk_of(member, partition)
            held, right = disk.flat[disk.start : len(facts.committed)], facts.committed[disk.start :]
            require(held == right, "S7", "node {} lacks committed records: {}", member, record)
            require(disk.start >= facts.deleted, "S16", "node {} would bring back what was deleted", member)


def _promises_stand(facts: PartitionFacts) -> None:
    if facts.forgot:
        return
    first: dict[str, int] = {}
    for offset, (_, payload) in enumerate(facts.committed):
        first.setdefault(payload, offset)
    for payload, base in facts.promised.items():
        right = first.get(payload) == base or (facts.forgot and payload in first)
        require(right, "S1", "{} promised at {}, is at {}", payload, base, first.get(payload))


def _sequences_stand(hosts: list[Host], facts: PartitionFacts) -> None:
    if facts.forgot:
        return
    for host in hosts:
        start = host.disk.start
        if host.disk.flat[start : len(facts.committed)] != facts.committed[start:]:
            continue
        found: dict[tuple[int, int], list[int]] = {}
        for meta, _, _ in host.disk.batches:
            if meta.base_sequence >= 0 and meta.next_offset <= len(facts.committed):
                named = meta.producer_id >= NAMED_FROM
                producer = meta.producer_id, -1 if named else meta.producer_epoch
                numbers = found.setdefault(producer, [])
                numbers += range(meta.base_sequence, meta.base_sequence + meta.offset_count)
        for producer, numbers in found.items():
            first = int(producer[0] >= NAMED_FROM) if start == 0 else numbers[0]
            right = list(range(first, first + len(numbers)))
            require(numbers == right, "S12", "{}: producer {}: {}", facts.name, producer, numbers)
