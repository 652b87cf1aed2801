"""Replicated state: commands in a log change a state machine on every copy; current reads write nothing.

    class Seats(ReplicatedObject):
        def __init__(self):
            self.taken = {}

        @command
        def take(self, seat, who):
            if seat in self.taken:
                raise ValueError(f"{seat} is taken")
            self.taken[seat] = who

        @query
        def free(self, seats):
            return [seat for seat in seats if seat not in self.taken]

    async with replicate(Seats, servers, "seats", name="api-1") as seats:
        await seats.take("12A", "alice")

This is for trio; `insync.replication.state.asyncio` and `insync.replication.state.blocking` have the same for
asyncio and for threads.
"""

from ._batteries import Holding, Item
from ._copy import Change
from ._packing import PackingError
from .collections import ReplicatedCounter, ReplicatedDict, ReplicatedSet
from .coordination import (
    LockLostError,
    ReplicatedElection,
    ReplicatedLock,
    ReplicatedQueue,
    ResignedError,
)
from .errors import (
    ChangesLostError,
    CommandError,
    CommandTooLargeError,
    DivergedError,
    FencedError,
    IdempotencyConflictError,
    MigrationError,
    SnapshotMissingError,
    StateClosedError,
    StateError,
    StateVersionError,
    UnfitCodeError,
    UnknownEntryError,
    VersionNotRaisedError,
    WrongStateClassError,
)
from .handle import Replicated, replicate
from .machine import Context, StateMachine
from .objects import ObjectMachine, ReplicatedObject, command, query
from .replica import Replica
from .settings import StateSettings
from .shards import Shards

__all__ = [
    "Change",
    "ChangesLostError",
    "CommandError",
    "CommandTooLargeError",
    "Context",
    "DivergedError",
    "FencedError",
    "Holding",
    "IdempotencyConflictError",
    "Item",
    "LockLostError",
    "MigrationError",
    "ObjectMachine",
    "PackingError",
    "Replica",
    "Replicated",
    "ReplicatedCounter",
    "ReplicatedDict",
    "ReplicatedElection",
    "ReplicatedLock",
    "ReplicatedObject",
    "ReplicatedQueue",
    "ReplicatedSet",
    "Shards",
    "ResignedError",
    "SnapshotMissingError",
    "StateClosedError",
    "StateError",
    "StateMachine",
    "StateSettings",
    "StateVersionError",
    "UnfitCodeError",
    "UnknownEntryError",
    "VersionNotRaisedError",
    "WrongStateClassError",
    "command",
    "query",
    "replicate",
]
