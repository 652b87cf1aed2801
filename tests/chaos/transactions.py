"""One run about transactions: workers consume, transform and produce while they, nodes and links fail.

Each input must have its outputs exactly once for readers of committed records. The faults: a worker is killed,
leaves, stands still for a moment or past its transaction's timeout, is replaced while it lives, another joins; a
coordinator of the group or of transactions, or a leader, is killed or stands still; links between nodes are cut
or lose packets, or those to the clients are cut.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import trio

from insync.replication import Admin, Consumer, ReplicationError

from .faults import lose_for_a_while
from .groups import GROUP, TOPIC, GroupRun, Suffered, Worker
from .load import until_async
from .members import PORT, Member
from .network import OURS, Network
from .run import Plan
from .stores import RunStore
from .transaction_history import (
    Output,
    Polled,
    TransactionHistory,
    TransactionVerdict,
    judge_transactions,
)

TARGET = "made"
_PARTITIONS = 4
_TIMEOUT_MS = 4_000
_HEAL_SECONDS = 90
_STATE = "__transaction_state"
_OFFSETS = "__consumer_offsets"
_SETTINGS = (
    "transaction_state_log_num_partitions=5",
    "offsets_topic_num_partitions=5",
    "transaction_abort_timed_out_transaction_cleanup_interval_ms=500",
)
FAULT_NAMES = (
    "kill_worker",
    "leave",
    "join",
    "pause_worker",
    "pause_past_timeout",
    "replace_living",
    "replace_stopped",
    "kill_coordinator",
    "pause_coordinator",
    "kill_transaction_coordinator",
    "pause_transaction_coordinator",
    "kill_leader",
    "cut_nodes",
    "isolate_node",
    "cut_clients",
    "lose_packets",
)
_NEED_NETWORK = ("cut_nodes", "isolate_node", "cut_clients", "lose_packets")


@attrs.frozen
class TransactionReport:
    """What is to be told of a run."""

    plan: Plan
    history: TransactionHistory
    verdict: TransactionVerdict
    suffered: list[Suffered]
    sent: int
    problems: list[str]

    @property
    def passed(self) -> bool:
        return not self.verdict.violations and not self.problems

    def summary(self, seconds: float) -> dict[str, Any]:
        """The report as one object."""
        outcomes = [each.outcome for each in self.history.transactions.values()]
        names = sorted({each.name for each in self.suffered})
        return {
            "transactions": True,
            "seed": self.plan.seed,
            "transport": self.plan.transport,
            "store": self.plan.store,
            "seconds": round(seconds, 1),
            "passed": self.passed,
            "inputs": self.sent,
            "outputs": self.verdict.outputs,
            "begun": len(outcomes),
            "committed": outcomes.count("committed"),
            "aborted": outcomes.count("aborted"),
            "untold": outcomes.count(""),
            "aborted_records": len(self.history.everything) - len(self.history.final),
            "fenced": len(self.history.fenced),
            "violations": {kind: told[:5] for kind, told in self.verdict.violations.items()},
            "reads": sum(len(each.reads) for each in self.history.transactions.values()),
            "mixed": {kind: " -> ".join(cycle[:8]) for kind, cycle in self.verdict.mixed.items()},
            "problems": self.problems,
            "faults": {name: sum(each.name == name for each in self.suffered) for name in names},
            "recovery_s_max": max((each.recovery_s or 0.0 for each in self.suffered), default=None),
            "errors_of_workers": dict(self.history.errors),
        }


class TransactionRun(GroupRun):
    """Use `carry_out_transactions`. Nodes, network and store are those of other runs, the group that of groups'."""

    fault_names: tuple[str, ...] = FAULT_NAMES
    pause = 0.2

    def __init__(self, plan: Plan, folder: Path) -> None:
        super().__init__(plan, folder)
        self.told = TransactionHistory()
        self._net: Network | None = None
        self._reached: dict[int, int] = {}
        """Of each input partition the highest number of which the live reader has got an output."""

    async def carry_out_transactions(self) -> TransactionReport:
        """Everything, from the first process to the verdict."""
        await self.carried_out()
        for worker in self.workers:
            self.told.read(worker.name, worker.log)
        verdict = judge_transactions(self.told, self.acked)
        return TransactionReport(
            self.plan, self.told, verdict, self.suffered, sum(self.acked.values()), self.problems
        )

    def _member(
        self, number: int, net: Network | None, store: RunStore, environment: dict[str, str]
    ) -> Member:
        member = super()._member(number, net, store, environment)
        member.options = (*member.options, *(part for each in _SETTINGS for part in ("--set", each)))
        return member

    async def _with_nodes(self, net: Network | None, store: RunStore) -> None:
        self._net = net
        if net is None:
            self.fault_names = tuple(name for name in FAULT_NAMES if name not in _NEED_NETWORK)
        await super()._with_nodes(net, store)

    async def _make_topic(self, admin: Admin) -> bool:
        try:
            await admin.create_topic(TARGET, _PARTITIONS, 3, {"min_insync_replicas": 2}, exist_ok=True)
        except ReplicationError:
            return False
        return await super()._make_topic(admin)

    # The load

    def _inputs(self, partition: int, first: int, count: int) -> list[bytes]:
        return [b"%d:%d" % (partition, first + number) for number in range(count)]

    async def _watch(self, admin: Admin) -> None:
        """What the group has committed, and what a reader of committed records gets, as it goes."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_live)
            while True:
                with suppress(ReplicationError):
                    found = await admin.group_offsets(GROUP)
                    self.told.offsets.append({at.partition: offset for at, offset in found.items()})
                await trio.sleep(0.2)

    async def _read_live(self) -> None:
        async with self._reader("read_committed") as consumer:
            while True:
                with suppress(ReplicationError):
                    records, now = await consumer.poll(200), time.monotonic()
                    for record in records:
                        self.told.live.append(
                            Polled(record.partition, record.offset, record.value or b"", now)
                        )
                        made = Output.decode(record.value or b"")
                        self._reached[made.partition] = max(
                            made.number, self._reached.get(made.partition, -1)
                        )

    def _reader(self, isolation: Any) -> Consumer:
        consumer = Consumer(self._servers, auto_offset_reset="earliest", isolation_level=isolation)
        return _Assigned(consumer)  # type: ignore[return-value]

    def _join(self, instance: str = "") -> Worker:
        """instance: the transactional id of one that is replaced; else it has one of its own."""
        name = f"w{next(self._numbers)}"
        transactional_id = instance or f"id-{name}"
        log = self.folder / f"{name}.jsonl"
        command = [
            *(sys.executable, "-m", "tests.chaos.transaction_worker", "--servers", ",".join(self._servers)),
            *("--source", TOPIC, "--target", TARGET, "--partitions", str(_PARTITIONS), "--group", GROUP),
            *("--id", transactional_id, "--name", name, "--timeout-ms", str(_TIMEOUT_MS)),
            *("--seed", str(self.random.randrange(1 << 30)), "--log", str(log)),
        ]
        with (self.folder / f"{name}.err").open("ab") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, env=dict(os.environ)
            )
        worker = Worker(name, log, process, transactional_id)
        self.workers.append(worker)
        return worker

    # Faults

    async def kill_worker(self, admin: Admin) -> str:
        """Another process takes its transactional id, or its work alone."""
        worker = self._any()
        worker.kill()
        if self.random.random() < 0.5:
            return f"{worker.name}, then {self._join(worker.instance).name}"
        return worker.name

    async def pause_worker(self, admin: Admin) -> str:
        return await self._pause(self.random.uniform(0.2, 1.5))

    async def pause_past_timeout(self, admin: Admin) -> str:
        """Its transaction is aborted, its partitions have another owner, and it comes back."""
        return await self._pause(_TIMEOUT_MS / 1000 * self.random.uniform(1.3, 2.2))

    async def replace_living(self, admin: Admin) -> str:
        """Another process takes its transactional id while it goes on."""
        worker = self._any()
        other = self._join(worker.instance)
        await self._gone(worker)
        return f"{worker.name} by {other.name}"

    async def replace_stopped(self, admin: Admin) -> str:
        """The same while it stands still, in whatever it does."""
        worker = self._any()
        worker.process.send_signal(signal.SIGSTOP)
        try:
            other = self._join(worker.instance)
            await trio.sleep(self.random.uniform(0.5, 6.0))
        finally:
            worker.process.send_signal(signal.SIGCONT)
        await self._gone(worker)
        return f"{worker.name} by {other.name}"

    async def _gone(self, worker: Worker) -> None:
        """One that has nothing to do is told of the other producer only when it has: then it is asked to leave."""
        with trio.move_on_after(3.0):
            while worker.alive:
                await trio.sleep(0.02)
        await self._ended(worker)

    async def kill_transaction_coordinator(self, admin: Admin) -> str:
        return await self._kill(await self._leading(admin, _STATE))

    async def pause_transaction_coordinator(self, admin: Admin) -> str:
        return await self._stand_still(await self._leading(admin, _STATE))

    async def kill_leader(self, admin: Admin) -> str:
        return await self._kill(await self._leading(admin, TARGET))

    async def _leading(self, admin: Admin, topic: str) -> Member:
        """A node that leads some partition of a topic."""
        with suppress(ReplicationError):
            (found,) = await admin.describe_topics([topic])
            leader = self.random.choice(found.partitions).leader
            return next((each for each in self.members if each.number == leader), self.members[0])
        return self.random.choice(self.members)

    async def cut_nodes(self, admin: Admin) -> str:
        one, two = self.random.sample([member.number for member in self.members], 2)
        await self._cut([(one, two), (two, one)][: self.random.choice((1, 2))])
        return f"nodes {one} and {two}"

    async def isolate_node(self, admin: Admin) -> str:
        """A leader that reaches the store and the clients, but no other node."""
        one = (await self._leading(admin, self.random.choice((_STATE, TARGET)))).number
        others = [member.number for member in self.members if member.number != one]
        await self._cut([pair for other in others for pair in ((one, other), (other, one))])
        return f"node {one} from the others"

    async def cut_clients(self, admin: Admin) -> str:
        """What a node answers does not arrive: a commit may be made, and nobody is told."""
        one = (await self._leading(admin, self.random.choice((_STATE, TARGET, _OFFSETS)))).number
        await self._cut([(one, OURS)])
        return f"node {one} to the clients"

    async def lose_packets(self, admin: Admin) -> str:
        """Of those between nodes some are lost, each way."""
        assert self._net is not None
        percent, lost = await lose_for_a_while(self._net, self.members, self.random)
        if not lost:
            self.problems.append(f"no packet between nodes was lost of {percent} %")
        return f"{percent} % between nodes, {lost} in all"

    async def _cut(self, pairs: list[tuple[int, int]]) -> None:
        assert self._net is not None
        for source, target in pairs:
            self._net.cut(source, target)
        source, target = pairs[0]
        if target == OURS:
            source, target = target, source
        if not await trio.to_thread.run_sync(self._net.is_cut, source, target, PORT):
            self.problems.append(f"the link from {source} to {target} was not seen to be cut")
        await trio.sleep(self.random.uniform(1, 6))
        self._net.heal()
        for member in self.members:
            if not member.alive:
                await self._must_start(member)

    # Recovery

    async def _flowing(self, since: float) -> float | None:
        """Seconds until of every input partition something was made that was written from now on."""
        goal = dict(self.acked)
        with trio.move_on_after(_HEAL_SECONDS):
            while any(self._reached.get(partition, -1) < count for partition, count in goal.items()):
                await trio.sleep(0.02)
            return round(time.monotonic() - since, 2)
        return None

    async def _drained(self, admin: Admin) -> None:
        """All is made and committed, and nothing is open any more; then readers take what there is."""
        await super()._drained(admin)
        await self._end_workers()

        async def stable() -> bool:
            with suppress(ReplicationError):
                self.told.ends = await self._ends_of_all(admin)
                return all(low == high for low, high in self.told.ends.values())
            return False

        await until_async(stable, _HEAL_SECONDS)
        goal = {at: high for (topic, at), (_, high) in self.told.ends.items() if topic == TARGET}
        self.told.final = await self._read_all("read_committed", goal)
        self.told.everything = await self._read_all("read_uncommitted", goal)
        with trio.move_on_after(_HEAL_SECONDS):
            while len(self.told.live) < len(self.told.final):
                await trio.sleep(0.05)

    async def _ends_of_all(self, admin: Admin) -> dict[tuple[str, int], tuple[int, int]]:
        topics = await admin.describe_topics([TOPIC, TARGET, _OFFSETS, _STATE])
        places = [(each.name, part.partition) for each in topics for part in each.partitions]
        async with self._reader("read_committed") as low, self._reader("read_uncommitted") as high:
            stable, ends = await low.end_offsets(places), await high.end_offsets(places)
        return {(at.topic, at.partition): (stable[at], ends[at]) for at in ends}

    async def _read_all(self, isolation: str, goal: dict[int, int]) -> list[Polled]:
        """Everything up to the end, from the beginning."""
        found: list[Polled] = []
        async with self._reader(isolation) as consumer:
            with trio.move_on_after(_HEAL_SECONDS):
                while any((consumer.position((TARGET, at)) or 0) < end for at, end in goal.items()):
                    with suppress(ReplicationError):
                        found += [
                            Polled(each.partition, each.offset, each.value or b"")
                            for each in await consumer.poll(200)
                        ]
                return found
        self.problems.append(f"a {isolation} reader did not come to the end within {_HEAL_SECONDS} s")
        return found


class _Assigned:
    """A consumer of all partitions of the target, from their beginning."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    async def __aenter__(self) -> Consumer:
        consumer = await self._consumer.__aenter__()
        consumer.assign([(TARGET, at) for at in range(_PARTITIONS)])
        return consumer

    async def __aexit__(self, *exc: Any) -> None:
        await self._consumer.__aexit__(*exc)


def timed_transactions(plan: Plan, folder: Path) -> tuple[TransactionReport, float]:
    """Carry a plan out; the report, and the seconds that it took."""
    began = time.monotonic()
    report = trio.run(TransactionRun(plan, folder).carry_out_transactions)
    return report, time.monotonic() - began
