"""`range` and `roundrobin`: the assignors that ignore what members own."""

from __future__ import annotations

from .assignment import Assignment, Counts, Members, Partition, in_order, subscribers


class RangeAssignor:
    """For each topic a run of partitions to each subscriber, the first ones get one more.

    Topics with equal numbers of partitions and equal subscribers are divided equally (co-partitioning).
    The server's assignor of the same name does the same (KIP-848).
    """

    name = "range"

    def assign(self, counts: Counts, members: Members) -> Assignment:
        found: Assignment = {member_id: [] for member_id in in_order(members)}
        for topic, readers in subscribers(counts, members).items():
            quota, extra = divmod(counts[topic], len(readers))
            begin = 0
            for place, member_id in enumerate(readers):
                end = begin + quota + (place < extra)
                found[member_id] += [Partition(topic, number) for number in range(begin, end)]
                begin = end
        return found


class RoundRobinAssignor:
    """All partitions of all topics in order, dealt to the members in turn, passing over non-subscribers."""

    name = "roundrobin"

    def assign(self, counts: Counts, members: Members) -> Assignment:
        order = in_order(members)
        found: Assignment = {member_id: [] for member_id in order}
        turn = 0
        for topic in subscribers(counts, members):
            for number in range(counts[topic]):
                while topic not in members[order[turn % len(order)]].topics:
                    turn += 1
                found[order[turn % len(order)]].append(Partition(topic, number))
                turn += 1
        return found
