"""Which node is killed and when: the one that leads most, with records in flight and more of them to come."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import attrs

from ...client import partition_for_key
from ..errors import CommandError
from .inputs import Input

EARLIEST = 0.5
LATEST = 0.7
"""The trigger is armed between these shares of the input; it fires within three quarters of it."""
PLENTY_IN_FLIGHT = 500
PATIENCE = 0.02
"""For so much of the input the trigger waits for plenty of records in flight; then any will do."""


class NoVictimError(CommandError):
    """No node leads a partition that still gets records in the second half of the input."""


@attrs.frozen
class Victim:
    """The node to kill, and the partitions it leads that get records afterwards (`idle` ones get none)."""

    node_id: int
    busy: frozenset[int]
    idle: frozenset[int]
    kill_at: int
    """Number of records handed over from which on it may be killed, at the first moment with plenty in flight."""
    patient_until: int
    """Number of records handed over after which any record in flight is reason enough."""


def last_records(data: Input, records: int, partitions: int) -> dict[int, int]:
    """For each partition the index in the input of its last record; partitions without any are left out."""
    last: dict[int, int] = {}
    for key, index in data.last_index_of_keys(records).items():
        partition = partition_for_key(key, partitions)
        last[partition] = max(index, last.get(partition, -1))
    return last


def choose_victim(
    leaders: Mapping[int, int], last: Mapping[int, int], records: int, rng: random.Random
) -> Victim:
    """The node that leads most partitions, and the point of the kill.

    Args:
      leaders: partition -> node id of its leader.
      last: as `last_records` gives it; a partition counts as busy if its last record comes in the second half.
      records: Length of the whole input.
      rng: Decides the exact point (and nothing else).

    Of nodes that lead equally many the one with more busy partitions is taken, then the lower id. The point is
    such that each busy partition of the victim has at least one record to come.

    Raises `NoVictimError`.
    """
    earliest, latest = int(records * EARLIEST), int(records * LATEST)
    led: dict[int, list[int]] = {}
    for partition, leader in sorted(leaders.items()):
        led.setdefault(leader, []).append(partition)
    candidates = [
        (node, frozenset(each for each in mine if last.get(each, -1) > earliest))
        for node, mine in led.items()
    ]
    candidates = [(node, busy) for node, busy in candidates if node >= 0 and busy]
    if not candidates:
        raise NoVictimError(
            "no leader has records to come in the second half of the input; use more --records"
        )
    node, busy = min(candidates, key=lambda each: (-len(led[each[0]]), -len(each[1]), each[0]))
    end = max(earliest + 1, min(latest, *(last[each] for each in busy)))
    kill_at = rng.randrange(earliest, end)
    patient_until = min(kill_at + int(PATIENCE * records), end)
    return Victim(node, busy, frozenset(led[node]) - busy, kill_at, patient_until)


@attrs.define(eq=False)
class Trigger:
    """Fires once, as soon as the point is reached and records of the victim's partitions are in flight."""

    victim: Victim
    in_flight: Callable[[frozenset[int]], int]
    kill: Callable[[], None]
    in_flight_at_kill: int = 0

    def consider(self, sent: int) -> bool:
        """Kill now if it is time; tells whether it did. Counting and killing are one step, without a pause."""
        if sent < self.victim.kill_at:
            return False
        count = self.in_flight(self.victim.busy | self.victim.idle)
        if count < (PLENTY_IN_FLIGHT if sent < self.victim.patient_until else 1):
            return False
        self.kill()
        self.in_flight_at_kill = count
        return True
