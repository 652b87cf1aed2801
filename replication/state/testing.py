"""A state machine under the simulator's faults: `simulation.run_service(MachineService(...), seed)`.

Clients submit commands through sessions as real ones do, repeat what is unclear, and read currently. The promises
are checked in the end: each acknowledged command was done once, all copies are equal, and the whole history,
current reads included, is linearizable. After an unclean election none of that is promised.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from ..core.types import PartitionId
from ..simulation.errors import require
from ..simulation.oracles.linearizable import UNKNOWN, Call, is_linearizable
from ..simulation.service import Client, Command, CurrentRead, History, Operation, Service
from ..simulation.service import StateMachine as SimulatedMachine
from ._applying import FENCED, FORGOTTEN, Applier
from ._entries import Commands, Open, Raise, decode, encode
from ._snapshots import Chunker, Pieces
from .errors import UnfitCodeError
from .machine import StateMachine

AT = PartitionId("service", 0)
_SNAPSHOT, _READ = "snapshot", "read"
MOST_CALLS = 25
"""Of one client: the check is a search, and grows with them."""
MOST_OFFSET = (1 << 63) - 1


class _Copy(SimulatedMachine):
    """It has the former code until it begins with a snapshot, or is stopped by the raise of the version."""

    def __init__(self, former: Callable[[], StateMachine], newest: Callable[[], StateMachine]) -> None:
        self._applier = Applier(former(), "simulated")
        self._newest = newest

    def apply(self, offset: int, value: str) -> None:
        try:
            self._applier.apply(offset, offset, _bytes(value))
        except UnfitCodeError:
            self.restore(self.snapshot())
            self._applier.apply(offset, offset, _bytes(value))

    def snapshot(self) -> object:
        chunker = Chunker()
        self._applier.snapshot(chunker.write)
        return b"".join(chunker.end()), self._applier.digest()

    def restore(self, snapshot: object) -> None:
        assert isinstance(snapshot, tuple)
        self._applier = Applier(self._newest(), "simulated")
        self._applier.restore(Pieces([snapshot[0]]).read)


class MachineService(Service):
    """A state machine, and clients that use it.

    Args:
      make: Makes the machine: its class, or a function without arguments.
      commands: What clients submit, chosen at random.
      clients: How many there are.
      former: Makes the machine of an earlier version. Copies begin with it, and get that of `make` one after the
        other; meanwhile a client raises the version.
    """

    def __init__(
        self,
        make: Callable[[], StateMachine],
        commands: Sequence[bytes],
        *,
        clients: int = 3,
        former: Callable[[], StateMachine] | None = None,
    ) -> None:
        self._make = make
        self._former = former if former is not None else make
        self._commands = list(commands)
        self._raise = _text(encode(Raise(*Applier(make()).code, MOST_OFFSET)))
        self.clients = clients

    def machine(self, partition: PartitionId) -> SimulatedMachine:
        return _Copy(self._former, self._make)

    def client(self, number: int, dice: random.Random) -> Client:
        name = f"client-{number}"
        token = -1
        while token < 0:
            told = yield Command(value=_text(encode(Open(name, b"nonce"))))
            token = told.offset if told.kind == "ok" else -1
        raises_at = dice.randrange(MOST_CALLS // 5) if number == 0 and self._former is not self._make else -1
        for call in range(MOST_CALLS):
            if call == raises_at:
                while (yield Command(value=self._raise)).kind != "ok":
                    yield 0.1 + dice.random()
            if dice.random() < 0.5:
                yield CurrentRead()
                continue
            entry = Commands(name, token, call, call, [dice.choice(self._commands)])
            value = _text(encode(entry))
            # Repeated until it is acknowledged: the machine knows a number that it has seen.
            while (yield Command(value=value)).kind != "ok":
                yield 0.1 + dice.random()

    def check(self, history: History) -> None:
        if AT in history.unclean:
            return  # what was acknowledged may be gone, and reads of it with it
        records = history.logs.get(AT, [])
        replay = _Replay(self._make, records)
        calls: list[Call] = []
        open_calls: dict[tuple[int, str], Operation] = {}
        for operation in history.operations:
            if isinstance(operation.command, CurrentRead):
                if operation.outcome is not None and operation.outcome.kind == "ok":
                    answer = replay.state_at(operation.outcome.offset)
                    calls.append(
                        Call(began=operation.began, ended=operation.ended, action=_READ, answer=answer)
                    )
                continue
            key = operation.client, operation.command.value
            first = open_calls.setdefault(key, operation)
            if operation.outcome is not None and operation.outcome.kind == "ok":
                del open_calls[key]
                told = replay.answers.get(operation.command.value)
                require(told is not None, "STATE", f"{operation} was acknowledged and never done")
                if told is not _OPENED:
                    calls.append(
                        Call(
                            began=first.began,
                            ended=operation.ended,
                            action=operation.command.value,
                            answer=told,
                        )
                    )
        for (_, value), operation in open_calls.items():
            if replay.answers.get(value) is not _OPENED:
                calls.append(Call(began=operation.began, action=value, answer=UNKNOWN))
        require(not replay.twice, "STATE", f"done twice: {replay.twice}")
        model = _Model(self._make, replay.commands)
        ok = is_linearizable(calls, (1, model.state_of(self._make())), model.step)
        require(ok, "LINEARIZABLE", f"no order agrees with {len(calls)} calls: {calls}")


_OPENED = object()
_RAISED = "raised"
State = tuple[int, bytes]


class _Replay:
    """The results of the committed log, record by record."""

    def __init__(self, make: Callable[[], StateMachine], records: list[str]) -> None:
        self.answers: dict[str, object] = {}
        self.commands: dict[str, bytes] = {}
        self.twice: list[str] = []
        self._states: list[bytes] = []
        applier = Applier(make(), "simulated")
        self._states.append(applier.machine.digest())
        for offset, value in enumerate(records):
            for each in applier.apply(offset, offset, _bytes(value)):
                if each.answer in (FENCED, FORGOTTEN):
                    continue
                if not each.repeated and value in self.commands:
                    self.twice.append(value)
                self.commands[value] = each.command
                self.answers.setdefault(value, (each.answer.data, each.answer.error))
            if isinstance(applier.entry, Raise):
                self.answers.setdefault(value, _RAISED)
            self.answers.setdefault(value, _OPENED)
            self._states.append(applier.machine.digest())

    def state_at(self, offset: int) -> bytes:
        return self._states[offset]


class _Model:
    """The machine as a function: states are versions and snapshots, so that a search can go back to each."""

    def __init__(self, make: Callable[[], StateMachine], commands: dict[str, bytes]) -> None:
        self._make = make
        self._commands = commands
        self._known: dict[Any, Any] = {}

    @staticmethod
    def state_of(machine: StateMachine) -> bytes:
        chunker = Chunker()
        machine.snapshot(chunker.write)
        return b"".join(chunker.end())

    def step(self, state: State, action: object) -> tuple[State, object]:
        found = self._known.get((state, action))
        if found is None:
            found = self._known[state, action] = self._do(state, action)
        return found

    def _do(self, state: State, action: object) -> tuple[State, object]:
        applier = Applier(self._make(), "simulated")
        applier.version, data = state
        applier.machine.restore(Pieces([data]).read)
        if action == _READ:
            return state, applier.machine.digest()
        entry = decode(_bytes(str(action)))
        if isinstance(entry, Raise):
            applier.migrate(entry.version, 0, 0)
            return (applier.version, self.state_of(applier.machine)), _RAISED
        command = self._commands.get(str(action))
        if command is None:
            return state, None  # never in the log: it was not done
        applier.apply(0, 0, encode(Open("m", b"n")))
        (applied,) = applier.apply(1, 1, encode(Commands("m", 0, 0, 0, [command])))
        return (applier.version, self.state_of(applier.machine)), (applied.answer.data, applied.answer.error)


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _bytes(value: str) -> bytes:
    return value.encode("latin-1")
