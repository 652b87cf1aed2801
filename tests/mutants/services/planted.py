"""The planted errors of replicated state; those of current reads are K190 to K195 of `python -m tests.mutants`."""

from __future__ import annotations

from typing import Any

import attrs

from insync.replication.core.broker.fetching.current_reads import CurrentReads
from insync.replication.simulation.run import Result
from insync.replication.simulation.service import run_service
from insync.replication.state import _applying
from insync.replication.state._applying import Applier

from ..registry import Patch, Registry
from .machines import SERVICES

SEEDS = 500
REGISTRY = Registry()
mutant = REGISTRY.mutant


class _Forgetful(dict[int, Any]):
    def get(self, key: int, default: Any = None) -> Any:
        return default


@mutant("SV1", "a session forgets the answers that it has given: a repeated command is done again")
def _(patch: Patch) -> None:
    right = _applying.Session

    def made(*args: Any, **options: Any) -> Any:
        session = right(*args, **options)
        session.answers = _Forgetful()
        return session

    patch.setattr(_applying, "Session", made)


@mutant("SV2", "a current read is told an offset that is one too low")
def _(patch: Patch) -> None:
    right = CurrentReads._finish

    def finish(self: CurrentReads, partition: Any, reads: list[Any], *error: Any) -> None:
        for read in reads:
            read.offset = max(0, read.offset - 1) if read.offset > 0 else read.offset
        right(self, partition, reads, *error)

    patch.setattr(CurrentReads, "_finish", finish)


@mutant("SV3", "a snapshot leaves the sessions out: a copy that was restored does what was done before")
def _(patch: Patch) -> None:
    right = Applier.restore

    def restore(self: Applier, read: Any) -> None:
        right(self, read)
        for session in self.sessions.values():
            session.answers = {}

    patch.setattr(Applier, "restore", restore)


@mutant("SV4", "a copy that was restored counts records from a place one too high")
def _(patch: Patch) -> None:
    right = Applier.restore

    def restore(self: Applier, read: Any) -> None:
        right(self, read)
        self.position += 1

    patch.setattr(Applier, "restore", restore)


@mutant("SV5", "a command that is refused is done nevertheless, of a handle that another has replaced")
def _(patch: Patch) -> None:
    right = Applier._commands

    def commands(self: Applier, offset: int, entry: Any) -> Any:
        session = self.sessions.get(entry.name)
        if session is not None:
            entry = attrs.evolve(entry, token=session.token, first=session.next, low=session.low)
        return right(self, offset, entry)

    patch.setattr(Applier, "_commands", commands)


def play(seed: int) -> Result:
    """One seed of each service, up to the first that breaks something."""
    for make in SERVICES.values():
        result = run_service(make(), seed).result
        if result.violation is not None:
            break
    return result
