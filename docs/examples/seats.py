"""A booking service under the simulator: each passenger gets one seat, whatever fails meanwhile."""

from __future__ import annotations

import random

from insync.replication.simulation import (
    Client,
    Command,
    History,
    PartitionId,
    Service,
    StateMachine,
    require,
)

SEATS = 40


class SeatMap(StateMachine):
    """Who sits where; the first to book a seat has it."""

    def __init__(self) -> None:
        self.taken: dict[str, str] = {}

    def apply(self, offset: int, value: str) -> None:
        seat, passenger = value.split()
        self.taken.setdefault(seat, passenger)

    def snapshot(self) -> object:
        return dict(self.taken)

    def restore(self, snapshot: object) -> None:
        assert isinstance(snapshot, dict)
        self.taken = dict(snapshot)


class Booking(Service):
    """Clients book seats for passengers, one after the other; each client has rows of its own."""

    def machine(self, partition: PartitionId) -> SeatMap:
        return SeatMap()

    insists = True
    """Whether a client asks for the same seat until it knows that it has it."""

    def client(self, number: int, dice: random.Random) -> Client:
        free = [f"{number}-{seat}" for seat in range(SEATS)]
        dice.shuffle(free)
        for passenger in range(SEATS // 2):
            seat = free.pop()
            while True:
                outcome = yield Command(value=f"{seat} p{number}.{passenger}")
                yield 0.2
                if outcome.kind == "ok":
                    break
                if not self.insists and free:
                    seat = free.pop()

    def check(self, history: History) -> None:
        for states in history.states.values():
            for taken in states.values():
                passengers = sorted(taken.values())
                twice = {who for who in passengers if passengers.count(who) > 1}
                require(not twice, "ONE SEAT EACH", f"{sorted(twice)} have more than one seat")


class HastyBooking(Booking):
    """The same with a mistake that no test without faults finds: it takes no answer for a failure."""

    insists = False
