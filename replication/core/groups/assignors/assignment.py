"""The input and output of every assignor, on clients (classic protocol) and on coordinators (consumer protocol)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

NO_GENERATION = -1


class Partition(NamedTuple):
    """One partition, by the name of its topic."""

    topic: str
    partition: int


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """One member: what it reads, and what it claims to own since `generation`."""

    topics: frozenset[str]
    instance_id: str | None = None
    owned: frozenset[Partition] = frozenset()
    generation: int = NO_GENERATION


Members = Mapping[str, Subscription]
Counts = Mapping[str, int]
"""Partitions of each topic that exists."""
Assignment = dict[str, list[Partition]]
"""By member id, for every member; each list in order."""


class Assignor(Protocol):
    """A way to share partitions. It must be deterministic: the same input in any order gives the same answer."""

    @property
    def name(self) -> str:
        """Its name among members; for Kafka's assignors, Kafka's name."""

    def assign(self, counts: Counts, members: Members) -> Assignment:
        """Give each partition of a subscribed topic to one of its subscribers.

        A topic that is not in `counts` does not exist; nothing of it is given to anybody.
        """


def in_order(members: Members) -> list[str]:
    """Member ids in the order in which all assignors look at them: static ones first, by instance, then by id.

    A static member keeps its place over a restart, which changes its member id (KIP-345).
    """

    def place(member_id: str) -> tuple[bool, str, str]:
        instance = members[member_id].instance_id
        return instance is None, instance or "", member_id

    return sorted(members, key=place)


def subscribers(counts: Counts, members: Members) -> dict[str, list[str]]:
    """For each topic that exists and is subscribed to, in order of names: its members in order."""
    found: dict[str, list[str]] = {topic: [] for topic in sorted(counts)}
    for member_id in in_order(members):
        for topic in members[member_id].topics:
            if topic in found:
                found[topic].append(member_id)
    return {topic: readers for topic, readers in found.items() if readers}


def claims(counts: Counts, members: Members) -> dict[Partition, str]:
    """The credible owners of partitions: each subscribes to the topic and claims it since the last generation.

    A member that missed a rebalance claims what others were given meanwhile: the greater generation wins. If two
    claim a partition for the same one, neither is believed (KAFKA-12984).
    """
    best: dict[Partition, tuple[int, str | None]] = {}
    for member_id in in_order(members):
        said = members[member_id]
        for partition in said.owned:
            exists = 0 <= partition.partition < counts.get(partition.topic, 0)
            if not exists or partition.topic not in said.topics:
                continue
            generation = best[partition][0] if partition in best else None
            if generation is None or said.generation > generation:
                best[partition] = said.generation, member_id
            elif said.generation == generation:
                best[partition] = generation, None
    return {partition: owner for partition, (_, owner) in best.items() if owner is not None}
