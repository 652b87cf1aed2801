"""Two versions of a state machine side by side, in whole simulated runs."""

from __future__ import annotations

from insync.replication.core.types import PartitionId
from insync.replication.simulation.service import ServiceRun, run_service
from insync.replication.state import Context
from insync.replication.state._entries import Raise, decode
from insync.replication.state._packing import pack
from insync.replication.state.testing import MachineService
from tests.replication.state.shops import Sum, SumAndCount

COMMANDS = [pack(number) for number in range(1, 5)]


def test_a_version_that_is_raised_in_a_storm_is_linearizable() -> None:
    raised = 0
    for seed in range(8):
        run: ServiceRun = run_service(MachineService(SumAndCount, COMMANDS, former=Sum), seed)
        assert run.result.violation is None, (seed, run.result.violation)
        log = run.history.logs.get(PartitionId("service", 0), [])
        raised += any(isinstance(decode(value.encode("latin-1")), Raise) for value in log)
    assert raised > 4


class Hasty(SumAndCount):
    """Works as version 2 already before the raise."""

    def apply(self, context: Context, command: bytes) -> bytes:
        if context.version < 2:
            self.state[0] += 1
        return super().apply(context, command)


def test_new_code_that_does_not_work_as_the_old_one_before_the_raise_is_found() -> None:
    for seed in range(60):
        found = run_service(MachineService(Hasty, COMMANDS, former=Sum), seed).result.violation
        if found is not None:
            break
    assert str(found).startswith("SERVICE")
