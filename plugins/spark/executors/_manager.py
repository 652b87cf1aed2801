"""The manager: follows the list of executors and keeps every slot served, by one pinned job for each place.

A barrier stage would start all nodes at once, but dies as a whole with one executor. Jobs of one task die alone:
Spark runs such a task again on another executor, where it sees that it is misplaced and ends, and the manager gives
the slot to an executor that has none.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import attrs

from . import _jobs
from ._host import Assignment, Outcome, host
from ._jobs import Executor
from ._keeping import Keeper
from .errors import ExecutorLogsError

if TYPE_CHECKING:
    from pyspark import SparkContext

_log = logging.getLogger("insync.spark")

_LOOK_SECONDS = 0.2
_LONGEST_PAUSE = 10.0
_END_SECONDS = 20.0
_TROUBLE_SECONDS = 2.0
"""Before a keeper that does not start, or a gateway that does not answer, is tried again."""
_PYTHON_ERROR = re.compile(r"^[ |]*((?:\w+\.)*\w*(?:Error|Exception): .+)", re.MULTILINE)
"""Alone or in a group, whose errors stand behind bars."""


@attrs.define(eq=False)
class Place:
    """Slots that are served together: one on a cluster, all in a local session."""

    slots: tuple[int, ...]
    executor: Executor | None = None
    """Where they are served now, or were last."""
    job: threading.Thread | None = None
    failure: str = ""
    failures: int = 0
    retry_at: float = 0.0

    def ended(self, outcome: Outcome) -> None:
        """Note how the job came to its end, and when to try again: at once, unless a node could not serve."""
        self.failure = outcome.failure
        self.failures = self.failures + 1 if outcome.failure else 0
        pause = min(_LONGEST_PAUSE, 0.25 * 2 ** min(self.failures, 10)) if outcome.failure else _LOOK_SECONDS
        self.retry_at = time.monotonic() + pause


def choose(place: Place, free: Iterable[Executor]) -> Executor | None:
    """The executor for a place: the same as before, or one on the same host, where its logs are, or any."""
    last = place.executor
    return min(
        free,
        key=lambda each: (last is None or each.id != last.id, last is None or each.host != last.host),
        default=None,
    )


def brief(error: Exception) -> str:
    """A failed job's message without the stacks of Java: the last error of Python's, or its first line."""
    text = str(error)
    found = [line for line in _PYTHON_ERROR.findall(text) if not line.startswith(("org.", "java.", "py4j."))]
    return found[-1] if found else text.strip().partition("\n")[0]


class Manager:
    """Runs in a thread of its own from `start` to `close`.

    assignment: of some slots on an executor.
    """

    def __init__(
        self,
        context: SparkContext,
        keeper: Keeper,
        places: list[Place],
        assignment: Callable[[Place, Executor], Assignment],
        *,
        cpus: float,
        group: str,
    ) -> None:
        self.places = places
        self.failure: ExecutorLogsError | None = None
        self._context = context
        self._keeper = keeper
        self._assignment = assignment
        self._cpus = cpus
        self._group = group
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="insync-executor-logs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, *, keep: bool) -> None:
        """Have all nodes end, and their jobs with them."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        deadline = time.monotonic() + _END_SECONDS
        jobs = [place.job for place in self.places if place.job is not None]
        while any(job.is_alive() for job in jobs) and time.monotonic() < deadline:
            # Again and again: a node that has just come was not there to be told.
            for place in self.places:
                for slot in place.slots:
                    self._keeper.stop_node(slot, None, keep=keep)
            for job in jobs:
                job.join(_LOOK_SECONDS)
        if any(job.is_alive() for job in jobs):
            try:
                self._context.cancelJobGroup(self._group)
            except Exception as error:  # noqa: BLE001 - with the JVM gone, the jobs are as well
                _log.warning("executor logs: jobs of nodes could not be cancelled: %s", brief(error))

    def _run(self) -> None:
        while not self._closing.wait(_LOOK_SECONDS):
            try:
                self._keeper.revive()
                if _jobs.is_stopped(self._context):
                    return
                self._look()
            except ExecutorLogsError as error:
                self.failure = error
                _log.error("executor logs: %s", error)
                self._closing.wait(_TROUBLE_SECONDS)
            except Exception as error:  # noqa: BLE001 - the gateway raises much while a session stops
                if not self._closing.is_set():
                    _log.warning("executor logs: the executors cannot be listed: %s", brief(error))
                    self._closing.wait(_TROUBLE_SECONDS)

    def _look(self) -> None:
        now = time.monotonic()
        if not any(place.job is None and now >= place.retry_at for place in self.places):
            return
        alive = _jobs.executors(self._context)
        taken = {place.executor.id for place in self.places if place.job is not None and place.executor}
        for place in self.places:
            if place.job is None and now >= place.retry_at:
                executor = choose(place, [each for each in alive if each.id not in taken])
                if executor is not None:
                    taken.add(executor.id)
                    self._launch(place, executor)

    def _launch(self, place: Place, executor: Executor) -> None:
        from pyspark import InheritableThread

        place.executor = executor
        place.job = InheritableThread(
            target=self._serve, args=(place, executor), name=f"insync-slot-{place.slots[0]}", daemon=True
        )
        place.job.start()

    def _serve(self, place: Place, executor: Executor) -> None:
        """The whole of one job."""
        try:
            outcome = _jobs.run_pinned(
                self._context,
                self._assignment(place, executor),
                executor,
                host,
                cpus=self._cpus,
                group=self._group,
                name=f"insync: node {', '.join(map(str, place.slots))} on executor {executor.id}",
            )
        except Exception as error:  # noqa: BLE001 - cancelled, or lost with its executor: whatever it was, go on
            outcome = Outcome(failure="" if self._was_served(place, executor) else brief(error))
        if self._closing.is_set():
            return
        _log.info("executor logs: the job on executor %s has ended: %s", executor.id, outcome)
        for slot in place.slots:
            # Its process may outlive the job for a while.
            self._keeper.stop_node(slot, executor.id, keep=True)
        place.ended(outcome)
        place.job = None

    def _was_served(self, place: Place, executor: Executor) -> bool:
        served = [self._keeper.nodes.get(slot) for slot in place.slots]
        return any(node is not None and node.executor == executor.id for node in served)
