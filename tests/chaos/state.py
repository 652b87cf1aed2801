"""The faults of `run`, under clients of replicated state: processes that read, put, compare and put, and delete.

The nodes suffer what they suffer in every run, and clients are killed, paused, and replaced by others with their
name. A writer of records shows, as in every run, that all partitions are written again.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from .faults import FAULTS
from .history import Place, Replica, Violation
from .load import Load, until
from .members import stands_still
from .run import HEAL_SECONDS, Plan, Report, Run
from .scene import Bite, Fault, Scene
from .state_client import TOPIC
from .state_history import StateHistory, judge_state

_CLIENTS = 4
_READY_SECONDS = 120
_END_SECONDS = 60
_PAUSE = 0.05
CLIENT_FAULTS = ("kill_client", "pause_client", "replace_client")


@attrs.define(eq=False)
class Client:
    """One process of `state_client`, and what it said on standard error."""

    name: str
    errors: Path
    process: trio.Process
    is_ready: bool = False
    may_fail: bool = False
    """It was killed."""


class StateRun(Run):
    """Nodes, network, store and faults are those of other runs."""

    led = TOPIC

    def __init__(self, plan: Plan, folder: Path) -> None:
        super().__init__(plan, folder)
        self.state = StateHistory()
        self.clients: list[Client] = []
        """Those that run, or should."""
        self._numbers = itertools.count(1)
        self._nursery: trio.Nursery
        self.faults = (*FAULTS, *(Fault(name, getattr(self, name)) for name in CLIENT_FAULTS))

    async def carry_out(self) -> Report:
        """Everything, from the first namespace to the verdict."""
        report = await super().carry_out()
        began = time.monotonic()
        wrong = judge_state(self.state)
        report.verdict.violations.extend(Violation("linearizable", (TOPIC, 0), text) for text in wrong)
        report.more["state"] = {
            "calls": len(self.state.calls),
            "keys": len(self.state.by_key()),
            "open_commands": self.state.open_commands,
            "refused": self.state.refused,
            "not_linearizable": len(wrong),
            "judged_in_s": round(time.monotonic() - began, 1),
            "errors_of_clients": dict(self.state.errors),
        }
        return report

    def _replicas(self) -> dict[Place, dict[int, Replica]]:
        found = super()._replicas()
        # Snapshots are compacted by each node in its own time.
        found.pop((f"{TOPIC}.snapshots", 0), None)
        # Below a snapshot the log is deleted: a replica that is copied again begins later than others.
        log = found.get((TOPIC, 0), {})
        start = max((records[0][0] for records in log.values() if records), default=0)
        found[TOPIC, 0] = {
            node: [each for each in records if each[0] >= start] for node, records in log.items()
        }
        return found

    @asynccontextmanager
    async def _loaded(self, load: Load) -> AsyncIterator[None]:
        load.pause = _PAUSE
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(load.write, "a", "all")
            async with trio.open_nursery() as starting:
                for _ in range(_CLIENTS):
                    starting.start_soon(self._join)
            yield
            for client in self.clients:
                client.process.terminate()
            for client in self.clients:
                if not await until(lambda one=client: one.process.returncode is not None, _END_SECONDS):
                    self.problems.append(f"{client.name} did not end within {_END_SECONDS} s")
                    client.process.kill()
            load.stopping = True

    async def _join(self, name: str = "") -> Client:
        """Start a client and wait until it is ready. name: of another, which it fences."""
        number = next(self._numbers)
        client = await self._nursery.start(self._attend, name or f"c{number}", number)
        self.clients.append(client)
        if not await until(lambda: client.is_ready or client.process.returncode is not None, _READY_SECONDS):
            self.problems.append(f"{client.name} was not ready within {_READY_SECONDS} s")
        return client

    async def _attend(self, name: str, number: int, *, task_status: trio.TaskStatus[Client]) -> None:
        """One client from its start to its last word. Calls of each process are numbered by themselves."""
        errors, heard_as = self.folder / f"{name}.err", f"{name}/{number}"
        command = [
            *(sys.executable, "-m", "tests.chaos.state_client", "--name", name, "--seed"),
            *(str(self.plan.seed * 1_000 + number), "--servers", ",".join(m.endpoint for m in self.members)),
        ]
        with errors.open("ab") as file:
            process = await trio.lowlevel.open_process(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file
            )
        client = Client(name, errors, process)
        try:
            task_status.started(client)
            assert process.stdout is not None
            rest = b""
            async for piece in process.stdout:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if "ready" in json.loads(line):
                        client.is_ready = True
                    else:
                        self.state.hear(heard_as, line)
            if await process.wait() and not client.may_fail:
                said = errors.read_text(errors="replace")[-500:]
                self.problems.append(f"{name} ended with status {process.returncode}: {said}")
        finally:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()

    async def _recovery(self, since: float) -> float | None:
        """As in every run, and until a command that began after that time was answered."""
        began = time.monotonic()
        # One that failed is a problem already; another takes its place.
        self.clients[:] = [each for each in self.clients if each.process.returncode is None]
        while len(self.clients) < _CLIENTS:
            await self._join()
        written = await super()._recovery(since)
        if written is None or self._is_decided():
            return written
        if not await until(lambda: self.state.latest > began, HEAL_SECONDS):
            return None
        return max(written, round(self.state.latest - began, 3))

    # Faults of clients

    async def kill_client(self, scene: Scene) -> Bite:
        """Another one comes in its place; what it had called has no answer."""
        client = scene.random.choice(self.clients)
        client.may_fail = True
        client.process.kill()
        await client.process.wait()
        self.clients.remove(client)
        other = await self._join()
        ended = client.process.returncode == -signal.SIGKILL and other.is_ready
        return Bite(client.name, f"ended by SIGKILL, then {other.name}" if ended else "")

    async def pause_client(self, scene: Scene) -> Bite:
        """It does not read the log meanwhile, and goes on with what it knew."""
        client, seconds = scene.random.choice(self.clients), scene.random.uniform(0.5, 10)
        os.kill(client.process.pid, signal.SIGSTOP)
        try:
            stopped = await until(partial(stands_still, client.process.pid), 2)
            await trio.sleep(seconds)
        finally:
            os.kill(client.process.pid, signal.SIGCONT)
        return Bite(client.name, f"stood still for {seconds:.1f} s" if stopped else "")

    async def replace_client(self, scene: Scene) -> Bite:
        """Another process opens its name while it runs: commands without an answer are not applied any more."""
        client = scene.random.choice(self.clients)
        other = await self._join(client.name)
        fenced = await until(lambda: client.process.returncode is not None, _END_SECONDS)
        self.clients.remove(client)
        return Bite(client.name, "it was fenced, and ended" if fenced and other.is_ready else "")
