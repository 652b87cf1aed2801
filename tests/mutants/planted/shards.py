"""Errors in how a broker hosts shards: loads and unloads them, hands on what they write, proves that it leads."""

from __future__ import annotations

from typing import Any

from insync.replication.core.broker import events as ev
from insync.replication.core.broker.coordination.shards import Shards
from insync.replication.core.broker.fetching.serving import Serving
from insync.replication.core.coordination import shard_events as sev
from insync.replication.core.partition.leader import LeaderRole
from insync.replication.core.types import PartitionId

from ..catalogue import Patch, mutant


@mutant("K230", "prove that nobody else leads a group's partition by its ISR alone")
def _(patch: Patch) -> None:
    right = Shards._since

    def since(self: Shards, hosted: Any) -> float:
        with Patch.context() as within:
            within.setattr(LeaderRole, "electable", LeaderRole.maximal_isr)
            return right(self, hosted)

    patch.setattr(Shards, "_since", since)


@mutant("K231", "serve groups after the first piece of their log has been read")
def _(patch: Patch) -> None:
    right = Shards.read

    def read(self: Shards, event: ev.ShardRead) -> None:
        hosted = self._hosted.get(event.partition)
        if hosted is not None and event.entries is not None:
            event = event._replace(next_offset=max(event.next_offset, hosted.role.epoch_start))
        right(self, event)

    patch.setattr(Shards, "read", read)


@mutant("K232", "give a shard what was read for its predecessor (KAFKA-9307)")
def _(patch: Patch) -> None:
    right = Shards.read

    def read(self: Shards, event: ev.ShardRead) -> None:
        hosted = self._hosted.get(event.partition)
        right(self, event if hosted is None else event._replace(reading=hosted.reading))

    patch.setattr(Shards, "read", read)


@mutant("K233", "keep the shard of a partition that another node leads")
def _(patch: Patch) -> None:
    right = Shards._look_at

    def look_at(self: Shards, partition: PartitionId) -> None:
        replica = self._context.replicas.get(partition)
        if replica is not None and replica.leader is not None:
            right(self, partition)

    patch.setattr(Shards, "_look_at", look_at)


@mutant("K234", "continue with the state of an earlier leadership")
def _(patch: Patch) -> None:
    right = Shards._look_at

    def look_at(self: Shards, partition: PartitionId) -> None:
        replica, hosted = self._context.replicas.get(partition), self._hosted.get(partition)
        if hosted is not None and replica is not None and replica.leader is not None:
            hosted.role = replica.leader
        right(self, partition)

    patch.setattr(Shards, "_look_at", look_at)


@mutant("K235", "treat records as committed once a shard's log has accepted them")
def _(patch: Patch) -> None:
    right = Shards._write

    def write(self: Shards, hosted: Any, said: Any) -> sev.Accepted | sev.Refused:
        outcome = right(self, hosted, said)
        if isinstance(outcome, sev.Accepted):
            hosted.shard._replies.high_watermark = outcome.base_offset + len(said.entries)
        return outcome

    patch.setattr(Shards, "_write", write)


@mutant("K236", "report no committed records to a shard after it has begun")
def _(patch: Patch) -> None:
    right = Shards.wake

    def wake(self: Shards, partition: PartitionId) -> None:
        hosted, replica = self._hosted.get(partition), self._context.replicas.get(partition)
        if hosted is None or replica is None or replica.leader is not hosted.role:
            right(self, partition)

    patch.setattr(Shards, "wake", wake)


@mutant("K237", "take the arrival time of a fetch as its proof about the coordinator")
def _(patch: Patch) -> None:
    right = Shards._followed

    def followed(self: Shards, node: int, asked_after: float, partitions: Any) -> None:
        right(self, node, self._context.now, partitions)

    patch.setattr(Shards, "_followed", followed)
    shown = Serving.followed_since

    def followed_since(self: Serving, node: int, partition: PartitionId, epoch: int) -> float:
        return self._context.now if shown(self, node, partition, epoch) > float("-inf") else float("-inf")

    patch.setattr(Serving, "followed_since", followed_since)


@mutant("K238", "forget the timers of a shard")
def _(patch: Patch) -> None:
    patch.setattr(Shards, "_arm", lambda self, hosted: None)


@mutant("K240", "omit the last record of each piece of a shard's log")
def _(patch: Patch) -> None:
    right = Shards.read

    def read(self: Shards, event: ev.ShardRead) -> None:
        if event.entries:
            last = event.entries[-1].offset
            event = event._replace(entries=tuple(each for each in event.entries if each.offset < last))
        right(self, event)

    patch.setattr(Shards, "read", read)
