"""One run about consumer groups: members and coordinators come, go and stand still; promises are kept.

The faults: a member is killed, leaves, stands still for a moment or for longer than its session, a static one is
replaced, another joins; the coordinator is killed, or stands still.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from insync.replication import Admin, Producer, ReplicationError

from .group_history import Commit, GroupHistory, GroupVerdict, judge_group
from .load import until_async
from .members import Member
from .network import Network
from .run import Plan, Run, say
from .stores import RunStore

TOPIC, GROUP = "work", "workers"
_PARTITIONS = 6
_MEMBERS = 3
_MOST = 5
_SESSION_MS = 4_000
_HEAL_SECONDS = 90
_END_SECONDS = 30
_BURST = 10
_PAUSE = 0.02
FAULT_NAMES = (
    "kill_member",
    "leave",
    "pause_member",
    "pause_past_session",
    "replace_static",
    "join",
    "kill_coordinator",
    "pause_coordinator",
)
_PROTOCOLS = ((0.5, "mixed"), (0.0, "consumer"), (1.0, "classic"))
"""The share of members of the classic protocol, and what a run is called for it; taken in turn by the seed."""
_STATIC = 2
"""Every so many members one is static."""


@attrs.define(eq=False)
class Worker:
    """One process of `group_member`, and the next ones with its instance if it is static."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]
    instance: str = ""
    ended: float = float("inf")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.ended = time.monotonic()


@attrs.frozen
class Suffered:
    """A fault as it went. recovery_s: from its end until records of every partition were handed out again."""

    name: str
    target: str
    recovery_s: float | None


@attrs.frozen
class GroupReport:
    """What is to be told of a run."""

    plan: Plan
    history: GroupHistory
    verdict: GroupVerdict
    suffered: list[Suffered]
    sent: int
    problems: list[str]

    @property
    def passed(self) -> bool:
        return not self.verdict.violations and not self.problems

    def summary(self, seconds: float) -> dict[str, Any]:
        """The report as one object."""
        names = sorted({each.name for each in self.suffered})
        by_name = {name: [each for each in self.suffered if each.name == name] for name in names}
        return {
            "groups": True,
            "seed": self.plan.seed,
            "protocols": _PROTOCOLS[self.plan.seed % len(_PROTOCOLS)][1],
            "transport": self.plan.transport,
            "store": self.plan.store,
            "seconds": round(seconds, 1),
            "passed": self.passed,
            "acked": self.sent,
            "processed": self.verdict.processed,
            "repeated": self.verdict.repeated,
            "commits_seen": len(self.history.commits),
            "callbacks": dict(self.history.callbacks),
            "violations": self.verdict.violations[:20],
            "problems": self.problems,
            "faults": {
                name: {
                    "times": len(all_of_it),
                    "recovery_s": sorted(
                        each.recovery_s for each in all_of_it if each.recovery_s is not None
                    ),
                }
                for name, all_of_it in by_name.items()
            },
            "errors_of_members": dict(self.history.errors),
        }


class GroupRun(Run):
    """Use `carry_out_groups`. Nodes, network and store are those of other runs."""

    fault_names: tuple[str, ...] = FAULT_NAMES
    pause = _PAUSE

    def __init__(self, plan: Plan, folder: Path) -> None:
        super().__init__(plan, folder)
        self.workers: list[Worker] = []
        self.group = GroupHistory()
        self.suffered: list[Suffered] = []
        self.acked: dict[int, int] = dict.fromkeys(range(_PARTITIONS), 0)
        self._numbers = itertools.count(1)
        self.share = _PROTOCOLS[plan.seed % len(_PROTOCOLS)][0]
        self.strategy = "cooperative-sticky" if plan.seed % 2 else "range"
        self._writing = True
        self._all_is_written = trio.Event()
        self._servers: list[str] = []

    async def carry_out_groups(self) -> GroupReport:
        """Everything, from the first process to the verdict."""
        await self.carried_out()
        for worker in self.workers:
            self.group.read(worker.name, worker.log, worker.ended)
        verdict = judge_group(self.group, self.acked)
        sent = sum(self.acked.values())
        return GroupReport(self.plan, self.group, verdict, self.suffered, sent, self.problems)

    async def carried_out(self) -> None:
        """All but the verdict; no process is left."""
        try:
            await self.carry_out()
        finally:
            for worker in self.workers:
                if worker.alive:
                    with suppress(ProcessLookupError):
                        worker.process.send_signal(signal.SIGCONT)
                    worker.kill()

    def _member(
        self, number: int, net: Network | None, store: RunStore, environment: dict[str, str]
    ) -> Member:
        member = super()._member(number, net, store, environment)
        settings = (
            f"group_consumer_session_timeout_ms={_SESSION_MS}",
            "group_consumer_heartbeat_interval_ms=1000",
            f"group_min_session_timeout_ms={_SESSION_MS}",
            "group_initial_rebalance_delay_ms=100",
        )
        more = tuple(part for each in settings for part in ("--set", each))
        member.options = (*member.options, *more)
        return member

    async def _with_nodes(self, net: Network | None, store: RunStore) -> None:
        async with trio.open_nursery() as nursery:
            for member in self.members:
                nursery.start_soon(self._must_start, member)
        self._servers = [member.endpoint for member in self.members]
        async with Admin(self._servers, request_timeout_ms=20_000) as admin:
            if not await until_async(partial(self._make_topic, admin), _HEAL_SECONDS):
                raise RuntimeError(f"topic {TOPIC} could not be created within {_HEAL_SECONDS} s")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                nursery.start_soon(self._watch, admin)
                for _ in range(_MEMBERS):
                    self._join()
                if await self._flowing(time.monotonic()) is None:
                    self.problems.append(f"not every partition was read within {_HEAL_SECONDS} s")
                await self._suffer(admin)
                self._writing = False
                await self._drained(admin)
                await self._end_workers()
                nursery.cancel_scope.cancel()
        for member in self.members:
            status = await member.end(signal.SIGTERM)
            if status != 0:
                self.problems.append(f"node {member.number} ended with status {status} when asked to stop")

    async def _make_topic(self, admin: Admin) -> bool:
        try:
            await admin.create_topic(TOPIC, _PARTITIONS, 3, {"min_insync_replicas": 2}, exist_ok=True)
        except ReplicationError:
            return False
        return True

    # The load

    async def _write(self) -> None:
        """Records for all partitions in turn; each acknowledged before its partition gets the next ones."""
        async with (
            Producer(self._servers, linger_ms=2, delivery_timeout_ms=120_000) as producer,
            trio.open_nursery() as nursery,
        ):
            for partition in range(_PARTITIONS):
                nursery.start_soon(self._write_to, producer, partition)
        self._all_is_written.set()

    async def _write_to(self, producer: Producer, partition: int) -> None:
        while self._writing:
            values = self._inputs(partition, self.acked[partition], _BURST)
            sent = await producer.send_many(TOPIC, values, partition=partition)
            try:
                await sent.wait()
            except ReplicationError as error:
                self.problems.append(f"a write to {TOPIC}-{partition} failed: {error}")
                return
            self.acked[partition] = sent[-1].result().offset + 1
            await trio.sleep(self.pause)

    def _inputs(self, partition: int, first: int, count: int) -> list[bytes]:
        """What is written at offsets from `first` on."""
        return [b"job"] * count

    async def _watch(self, admin: Admin) -> None:
        """What the group has committed, again and again."""
        while True:
            with suppress(ReplicationError):
                for at, offset in (await admin.group_offsets(GROUP)).items():
                    self.group.commits.append(Commit(at.partition, offset, time.monotonic()))
            await trio.sleep(0.1)

    # Members

    def _join(self, instance: str = "") -> Worker:
        number = next(self._numbers)
        name = f"m{number}"
        if not instance and number % _STATIC == 0:
            instance = f"i{number}"
        log = self.folder / f"{name}.jsonl"
        command = [
            *(sys.executable, "-m", "tests.chaos.group_member", "--servers", ",".join(self._servers)),
            *("--topic", TOPIC, "--group", GROUP, "--log", str(log), "--instance", instance),
            *(("--auto-commit",) if number % 3 == 0 else ()),
            *(("--classic", self.strategy) if self._is_classic() else ()),
        ]
        with (self.folder / f"{name}.err").open("ab") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, env=dict(os.environ)
            )
        worker = Worker(name, log, process, instance)
        self.workers.append(worker)
        return worker

    def _is_classic(self) -> bool:
        """By the seed: all members speak the consumer protocol, or some the classic one, or all."""
        return self.random.random() < self.share

    @property
    def _living(self) -> list[Worker]:
        return [each for each in self.workers if each.ended == float("inf")]

    def _any(self) -> Worker:
        return self.random.choice(self._living)

    async def _ended(self, worker: Worker) -> None:
        """Ask it to leave, and wait until it has."""
        with trio.move_on_after(_END_SECONDS):
            # Before it says its first word it would just be killed.
            while worker.alive and not (worker.log.exists() and worker.log.stat().st_size):
                await trio.sleep(0.02)
            worker.process.terminate()
            while worker.alive:
                await trio.sleep(0.02)
        if worker.alive:
            self.problems.append(f"{worker.name} did not leave within {_END_SECONDS} s")
            worker.kill()
        worker.ended = time.monotonic()
        if worker.process.returncode != 0:
            said = (self.folder / f"{worker.name}.err").read_text().splitlines()
            last = said[-1] if said else ""
            self.problems.append(f"{worker.name} ended with status {worker.process.returncode}: {last}")

    async def _end_workers(self) -> None:
        async with trio.open_nursery() as nursery:
            for worker in self._living:
                nursery.start_soon(self._ended, worker)

    # Faults

    async def _suffer(self, admin: Admin) -> None:
        faults: dict[str, Callable[[Admin], Awaitable[str]]] = {
            name: getattr(self, name) for name in self.plan.only or self.fault_names
        }
        began = time.monotonic()
        queue: list[str] = []
        while time.monotonic() < began + self.plan.seconds:
            queue = queue or self.random.sample(list(faults), len(faults))
            name = queue.pop()
            target = await faults[name](admin)
            recovery = await self._flowing(time.monotonic())
            self.suffered.append(Suffered(name, target, recovery))
            say(
                f"{time.monotonic() - began:7.1f} s  {name}: {target}; all partitions read {recovery} s after"
            )
            if recovery is None:
                self.problems.append(
                    f"after {name} of {target} not everything was read for {_HEAL_SECONDS} s"
                )
                return
            while len(self._living) < _MEMBERS:
                self._join()

    async def kill_member(self, _: Admin) -> str:
        worker = self._any()
        worker.kill()
        return worker.name

    async def leave(self, _: Admin) -> str:
        worker = self._any()
        await self._ended(worker)
        return worker.name

    async def join(self, _: Admin) -> str:
        if len(self._living) >= _MOST:
            await self._ended(self._any())
        return self._join().name

    async def pause_member(self, _: Admin) -> str:
        return await self._pause(self.random.uniform(0.2, 1.5))

    async def pause_past_session(self, _: Admin) -> str:
        return await self._pause(_SESSION_MS / 1000 * self.random.uniform(1.2, 2.0))

    async def _pause(self, seconds: float) -> str:
        worker = self._any()
        worker.process.send_signal(signal.SIGSTOP)
        try:
            await trio.sleep(seconds)
        finally:
            worker.process.send_signal(signal.SIGCONT)
        return f"{worker.name} for {seconds:.1f} s"

    async def replace_static(self, _: Admin) -> str:
        """Its process dies or leaves, and another takes its place."""
        static = [each for each in self._living if each.instance]
        if not static:
            return self._join(f"i{next(self._numbers)}").name
        worker = self.random.choice(static)
        if self.random.random() < 0.5:
            worker.kill()
        else:
            await self._ended(worker)
        return f"{worker.name} by {self._join(worker.instance).name}"

    async def _coordinator(self, admin: Admin) -> Member:
        with suppress(ReplicationError):
            (found,) = await admin.describe_groups([GROUP])
            return next(each for each in self.members if each.number == found.coordinator)
        return self.random.choice(self.members)

    async def kill_coordinator(self, admin: Admin) -> str:
        return await self._kill(await self._coordinator(admin))

    async def pause_coordinator(self, admin: Admin) -> str:
        return await self._stand_still(await self._coordinator(admin))

    async def _kill(self, node: Member) -> str:
        await node.end(signal.SIGKILL)
        await trio.sleep(self.random.uniform(0.0, 3.0))
        await self._must_start(node)
        return f"node {node.number}"

    async def _stand_still(self, node: Member) -> str:
        seconds = self.random.uniform(1.0, 6.0)
        node.send(signal.SIGSTOP)
        try:
            await trio.sleep(seconds)
        finally:
            node.send(signal.SIGCONT)
        await trio.sleep(0.5)
        if not node.alive:
            # Whoever stood still so long that others took over may end itself.
            await self._must_start(node)
        return f"node {node.number} for {seconds:.1f} s"

    # Recovery

    async def _flowing(self, since: float) -> float | None:
        """Seconds until records of every partition were handed out by a poll that began after `since`."""
        places: dict[str, int] = {}
        left = set(range(_PARTITIONS))
        with trio.move_on_after(_HEAL_SECONDS):
            while left:
                for worker in self.workers:
                    with suppress(FileNotFoundError), worker.log.open("rb") as file:
                        file.seek(places.get(worker.name, 0))
                        data = file.read()
                        whole = data[: data.rfind(b"\n") + 1]
                        places[worker.name] = places.get(worker.name, 0) + len(whole)
                        for line in whole.splitlines():
                            event = json.loads(line)
                            if event["what"] == "handed" and event["since"] > since:
                                left -= {int(each) for each in event["records"]}
                await trio.sleep(0.02)
            return round(time.monotonic() - since, 2)
        return None

    async def _drained(self, admin: Admin) -> None:
        """All is committed that has been written, the last of it, too."""
        await self._all_is_written.wait()

        async def drained() -> bool:
            with suppress(ReplicationError):
                committed = await admin.group_offsets(GROUP)
                return {at.partition: offset for at, offset in committed.items()} == self.acked
            return False

        if not await until_async(drained, _HEAL_SECONDS):
            self.problems.append(
                f"not everything was committed within {_HEAL_SECONDS} s after the last write"
            )


def timed_groups(plan: Plan, folder: Path) -> tuple[GroupReport, float]:
    """Carry a plan out; the report, and the seconds that it took."""
    began = time.monotonic()
    report = trio.run(GroupRun(plan, folder).carry_out_groups)
    return report, time.monotonic() - began
