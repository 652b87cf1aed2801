"""A deterministic simulator of a whole cluster: one seed is one run, on every machine.

The core's own machines run on virtual time over model disks, a model store and a network in which everything goes
wrong; an oracle outside of them checks the protocol's invariants after every step and its liveness once the faults
have stopped. `run` plays one seed, `minimise` shortens one that broke an invariant, `Replay` keeps it in a file.
A service of your own is put under the same faults with `Service` and `run_service`.
"""

from ..core.types import PartitionId
from .errors import ReplayError, SimulationError, Violated, require
from .faults.schedule import Fault
from .minimise import minimise, replay_of
from .replay import Replay, read
from .run import Result, Run, Script, run, run_watched
from .service import (
    Client,
    Command,
    CurrentRead,
    History,
    Operation,
    Outcome,
    Service,
    ServiceResult,
    StateMachine,
    minimise_service,
    run_service,
)
from .settings import FAULTS, Settings, Topic

__all__ = [
    "FAULTS",
    "Settings",
    "Topic",
    "Fault",
    "Script",
    "Result",
    "Run",
    "run",
    "run_watched",
    "minimise",
    "Replay",
    "replay_of",
    "read",
    "Service",
    "StateMachine",
    "Client",
    "Command",
    "CurrentRead",
    "PartitionId",
    "Outcome",
    "Operation",
    "History",
    "ServiceResult",
    "run_service",
    "minimise_service",
    "Violated",
    "require",
    "SimulationError",
    "ReplayError",
]
