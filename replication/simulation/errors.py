"""The failures of a simulation, and the violations that it is there to find."""

from __future__ import annotations

from ..errors import ReplicationError


class SimulationError(ReplicationError):
    """Root of the errors of `insync.replication.simulation`: it was asked for something that it cannot do."""


class ReplayError(SimulationError):
    """A replay file cannot be read, or is of another version."""


class Violated(AssertionError):
    """An invariant does not hold; `invariant` is its name, the text begins with it."""

    def __init__(self, invariant: str, detail: object) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


def require(holds: bool, invariant: str, detail: object, *values: object) -> None:
    """Raise `Violated` unless `holds`.

    `values`: what `detail` is formatted with, as by `str.format`. Only then, because nearly every check holds, and
    its text may cost more than the check.
    """
    if not holds:
        raise Violated(invariant, str(detail).format(*values) if values else detail)
