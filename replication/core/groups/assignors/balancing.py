"""Sharing partitions evenly while moving few of them: what the sticky assignors and the server's have in common."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from .assignment import Assignment, Counts, Members, Partition, in_order, subscribers


@attrs.define
class Sharing:
    """Partitions on their way to members. `order`: all members. `free`: what nobody has, in order."""

    order: list[str]
    held: dict[str, set[Partition]]
    free: list[Partition]

    def assignment(self) -> Assignment:
        return {member_id: sorted(self.held[member_id]) for member_id in self.order}


def is_uniform(members: Members) -> bool:
    """Whether all subscribe to the same topics."""
    return len({said.topics for said in members.values()}) <= 1


def keep_quotas(
    counts: Counts, members: Members, owners: Mapping[Partition, str]
) -> tuple[Sharing, int, int]:
    """For equal subscriptions: members keep what they own up to their quota q, and r of them one more.

    Returns the sharing, q, and how many members may still get one more than q. Any member that has more than q
    keeps one more, as long as there are such places: with fixed places a member that has one too many would give it
    up and get another (KAFKA-18688).
    """
    order = in_order(members)
    owned: dict[str, list[Partition]] = {member_id: [] for member_id in order}
    for partition in sorted(owners):
        owned[owners[partition]].append(partition)
    topics = subscribers(counts, members)
    quota, extras = divmod(sum(counts[topic] for topic in topics), len(order))
    held: dict[str, set[Partition]] = {}
    for member_id in order:
        mine = owned[member_id]
        keep = quota
        if len(mine) > quota and extras:
            keep, extras = quota + 1, extras - 1
        held[member_id] = set(mine[:keep])
    kept = set().union(*held.values())
    free = [
        partition
        for topic in topics
        for partition in (Partition(topic, number) for number in range(counts[topic]))
        if partition not in kept
    ]
    return Sharing(order, held, free), quota, extras


def share_unequal(counts: Counts, members: Members, owners: Mapping[Partition, str]) -> Sharing:
    """For subscriptions that differ: all keep what they own, the rest goes to the least loaded subscriber.

    Then partitions move from a member to a subscriber that has at least two fewer, until there is no such pair.
    Every move lowers the sum of squares of the loads, so it ends; a swap that lowers nothing is not made
    (KAFKA-15106).
    """
    order = in_order(members)
    topics = subscribers(counts, members)
    load = dict.fromkeys(order, 0)
    holder: dict[Partition, str] = dict(owners)
    for member_id in holder.values():
        load[member_id] += 1
    # Least chosen first, so that who can take many topics fills up what others cannot take.
    every = [
        Partition(topic, number)
        for topic in sorted(topics, key=lambda each: (len(topics[each]), each))
        for number in range(counts[topic])
    ]

    def least(topic: str) -> str:
        return min(topics[topic], key=load.__getitem__)

    for partition in every:
        if partition not in holder:
            chosen = holder[partition] = least(partition.topic)
            load[chosen] += 1
    # What moves anyway goes first: so fewer are taken from those who read them now.
    every.sort(key=lambda each: owners.get(each) == holder[each])
    moved = True
    while moved:
        moved = False
        for partition in every:
            giver, taker = holder[partition], least(partition.topic)
            if load[giver] - load[taker] >= 2:
                holder[partition] = taker
                load[giver] -= 1
                load[taker] += 1
                moved = True
    held: dict[str, set[Partition]] = {member_id: set() for member_id in order}
    for partition, member_id in holder.items():
        held[member_id].add(partition)
    return Sharing(order, held, [])
