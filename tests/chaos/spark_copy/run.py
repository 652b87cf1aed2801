"""The kills, one after the other while input flows, and whether the output equals the input after them."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from .scene import SOURCE, TARGET, Feeder, Job, Nodes, ends, pick, read_all, wait_until

_LONGEST_PAUSE_S = 30.0
"""Before a kill."""
_DOWN_S = 2.0
"""At most, before a node is started again."""
_LEAST_REPLAYS = 4
"""One of so many kills has to make Spark replay a batch, or nothing was shown."""


@attrs.define
class Kill:
    """One of them, and what came of it."""

    kind: str
    batch: int
    """That was under way."""
    replayed: bool
    """Whether Spark had planned it, had not committed it, and ran it again because of this."""
    written_before: int
    """Rows of it that stood in the target already."""
    batch_s: float
    """Until it was done."""
    recovery_s: float
    """Until the one after it was done, too."""
    session_s: float | None = None
    """Of that, if the driver was killed: until the next one had a session of Spark, with its executors."""


@attrs.define
class Outcome:
    kills: list[Kill]
    rows: int
    lost: int
    duplicated: int
    in_order: bool
    """Each partition of the output is the input's, in its order."""
    replicas_equal: bool
    batches: int
    drivers_ended_by_themselves: int

    @property
    def replays(self) -> int:
        return sum(each.replayed for each in self.kills)

    @property
    def passed(self) -> bool:
        return (
            self.rows > 0
            and not self.lost
            and not self.duplicated
            and self.in_order
            and self.replicas_equal
            and self.replays * _LEAST_REPLAYS >= len(self.kills)
        )


def kinds(times: int, choice: random.Random) -> list[str]:
    """A third are drivers, as only their deaths make Spark replay a batch; a third executors, a third nodes."""
    cycle = ("driver", "executor", "leader", "driver", "executor", "node")
    drawn = [cycle[at % len(cycle)] for at in range(times)]
    choice.shuffle(drawn)
    return drawn


def compare(
    source: Mapping[int, Sequence[bytes]], target: Mapping[int, Sequence[bytes]]
) -> tuple[int, int, bool]:
    """How many are lost, how many are there again, and whether each partition is the same sequence."""
    wanted = Counter(value for part in source.values() for value in part)
    found = Counter(value for part in target.values() for value in part)
    same = all(list(source[number]) == list(target[number]) for number in source)
    return (wanted - found).total(), (found - wanted).total(), same


class Run:
    def __init__(
        self, folder: Path, seed: int, *, per_second: int, exactly_once: bool, transactional: bool = False
    ) -> None:
        self._choice = random.Random(seed)
        self._folder = folder
        self._per_second = per_second
        self._exactly_once = exactly_once
        self._transactional = transactional
        self._kills: list[Kill] = []

    def run(self, times: int) -> Outcome:
        (self._folder / "nodes").mkdir()
        nodes = Nodes(self._folder / "nodes")
        try:
            feeder = Feeder(nodes.servers, self._per_second)
            (self._folder / "spark").mkdir()
            job = Job(
                self._folder / "spark",
                nodes.servers,
                exactly_once=self._exactly_once,
                transactional=self._transactional,
            )
            try:
                job.wait_for_batch(0)
                for kind in kinds(times, self._choice):
                    self._one(kind, nodes, job)
                return self._end(nodes, job, feeder.stop())
            finally:
                job.end()
        finally:
            nodes.end()

    def _one(self, kind: str, nodes: Nodes, job: Job) -> None:
        job.wait_for_work()
        # So that batches are hit at any point, on whatever machine.
        time.sleep(self._choice.uniform(0, min(job.last_took(), _LONGEST_PAUSE_S)))
        job.wait_for_work()
        batch = job.planned()
        began, clock = time.monotonic(), time.time()
        if kind == "driver":
            job.driver.kill()
            batch, replayed = job.planned(), job.planned() > job.committed()
            before = ends(nodes.servers, TARGET) - job.rows_committed() if replayed else 0
            job.start_again()
        else:
            replayed, before = False, 0
            if kind == "executor":
                pick(self._choice, job.driver.executors()).kill()
            else:
                self._kill_node(kind, nodes)
        job.wait_for_batch(batch)
        recovery = time.monotonic() - began
        done = job.committed_at(batch) - clock
        session = job.driver.started()["session_s"] if kind == "driver" else None
        self._kills.append(
            Kill(
                kind,
                batch,
                replayed,
                before,
                round(done, 1),
                round(recovery, 1),
                session and round(session, 1),
            )
        )
        say(f"{len(self._kills)}: {self._kills[-1]}")
        wait_until("all replicas in sync", nodes.all_in_sync)
        job.wait_for_executors()

    def _kill_node(self, kind: str, nodes: Nodes) -> None:
        leaders = nodes.leaders()
        others = [number for number in range(1, len(nodes.folders) + 1) if number not in leaders]
        number = pick(self._choice, leaders if kind == "leader" or not others else others)
        nodes.kill(number)
        time.sleep(self._choice.uniform(0, _DOWN_S))
        nodes.start(number)

    def _end(self, nodes: Nodes, job: Job, sent: int) -> Outcome:
        say(f"{sent} records written; copying what is left")
        job.driver.started()
        assert job.driver.ask("finish")["state"] == "finished"
        source, target = read_all(nodes.servers, SOURCE), read_all(nodes.servers, TARGET)
        rows = sum(map(len, source.values()))
        lost, duplicated, in_order = compare(source, target)
        nodes.stop()
        audited = job.driver.ask(f"audit {' '.join(map(str, nodes.folders))}")
        if not audited["ok"]:
            say(audited["report"])
        return Outcome(
            kills=self._kills,
            rows=rows,
            lost=lost + abs(sent - rows),
            duplicated=duplicated,
            # Rows without keys of their own go wherever they come to.
            in_order=in_order or self._transactional,
            replicas_equal=audited["ok"],
            batches=job.committed() + 1,
            drivers_ended_by_themselves=job.ended_by_itself,
        )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
