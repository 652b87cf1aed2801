"""The middle of the demo: a leader is killed under load, others take over, it comes back."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

import attrs
import trio

from ..processes import NodeProcess
from .killing import Trigger, choose_victim
from .observer import NotInTimeError, Observer
from .production import FirstAcks, Production
from .report import Report
from .scene import Scene

CHOOSE_AT = 0.4
"""Share of the input after which the victim is chosen; the kill comes later."""
RECOVERY_TIMEOUT = 60.0
"""Seconds after which a failover or a rejoin that has not happened is given up."""


@attrs.define(eq=False)
class Drama:
    """`after_chunk` is called by the production and does the kill; `run` sees to everything after it."""

    nodes: Mapping[int, NodeProcess]
    production: Production
    observer: Observer
    scene: Scene
    report: Report
    last: Mapping[int, int]
    """Partition -> index of its last record in the input."""
    rng: random.Random
    _trigger: Trigger | None = None
    _killed: trio.Event = attrs.Factory(trio.Event)
    _first_acks: FirstAcks | None = None

    async def after_chunk(self) -> None:
        """Choose the victim when it is time to, and kill it at the first right moment."""
        if self._killed.is_set():
            return
        if self._trigger is None:
            if self.production.sent >= CHOOSE_AT * self.report.records:
                await self._choose()
        elif self._trigger.consider(self.production.sent):
            self._note_kill(self._trigger)

    async def run(self) -> None:
        """Wait for the kill, the failover and the rejoin, and take the times.

        Raises:
          NotInTimeError: One of them has not happened within a minute.
        """
        await self._killed.wait()
        node = self.nodes[self.report.killed_node]
        await node.stop()
        await self._fail_over()
        await self._rejoin(node)

    async def _choose(self) -> None:
        leaders = await self.observer.leaders()
        victim = choose_victim(leaders, self.last, self.report.records, self.rng)
        node = self.nodes[victim.node_id]
        self._trigger = Trigger(victim, self.production.in_flight, node.kill)

    def _note_kill(self, trigger: Trigger) -> None:
        sent, victim = self.production.sent, trigger.victim
        busy = {partition for partition in victim.busy if self.last[partition] >= sent}
        self._first_acks = self.production.watch_first_acks(busy)
        self.report.killed_node = victim.node_id
        self.report.kill_at_record = sent
        self.report.in_flight_at_kill = trigger.in_flight_at_kill
        self.report.idle_partitions = sorted((victim.busy | victim.idle) - busy)
        self.scene.happen(
            f"SIGKILL to node {victim.node_id}, leader of partitions {sorted(victim.busy | victim.idle)}, "
            f"with {trigger.in_flight_at_kill:,} of their records in flight",
            "bad",
        )
        self._killed.set()

    async def _fail_over(self) -> None:
        assert self._first_acks is not None
        with trio.move_on_after(RECOVERY_TIMEOUT):
            await self._first_acks.all_seen.wait()
        if not self._first_acks.all_seen.is_set():
            raise NotInTimeError(
                f"partitions {sorted(self._first_acks.awaited)} acknowledged nothing for {RECOVERY_TIMEOUT:.0f} s "
                f"after node {self.report.killed_node} was killed"
            )
        times = {partition: seconds * 1000 for partition, seconds in self._first_acks.seconds.items()}
        self.report.failover_ms_by_partition = dict(sorted(times.items()))
        self.report.failover_ms = max(times.values(), default=None)
        for partition, ms in sorted(times.items(), key=lambda each: each[1]):
            self.scene.happen(
                f"partition {partition}: first acknowledgement by its new leader {ms:.0f} ms after the kill"
            )

    async def _rejoin(self, node: NodeProcess) -> None:
        self.scene.happen(f"starting node {node.node_id} again", "warning")
        began = time.monotonic()
        await node.start()
        await self.observer.wait_until_full(RECOVERY_TIMEOUT)
        self.report.rejoin_ms = (time.monotonic() - began) * 1000
        self.scene.happen(
            f"all replicas are in sync again, {self.report.rejoin_ms:.0f} ms after the restart", "good"
        )
