"""The task of a slot: it runs the node in the executor's Python process until it is told to end."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import trio

from ....replication import ReplicationError
from ....replication.node import Node, NodeSettings
from ....transport import Security, join_host_port
from ._folders import Claim, make_run_folder, remove_run, run_folders, sweep
from ._leash import End, Leash
from ._messages import Report
from .errors import FolderError

_log = logging.getLogger("insync.spark")

DRIVER = "driver"
"""The id of the one executor of a local session."""
_CLAIM_SECONDS = 15.0
"""How long the former process of a slot may take to be gone."""
_RETRY_SECONDS = 0.1
_MOST_PARENTS = 8


@attrs.frozen(kw_only=True)
class Assignment:
    """Slots to be served by one executor. Travels to it as the data of a job.

    places: folders for logs; none: the one for temporary files. settings: further ones of `NodeSettings`.
    """

    run: str
    slots: tuple[int, ...]
    executor: str
    host: str
    directory: str
    store: str
    secret: str = attrs.field(repr=False)
    places: tuple[str, ...]
    keep: bool
    settings: Mapping[str, Any]


@attrs.frozen
class Outcome:
    """How a job came to its end. failure: why a node could not serve; "" if it was told to end."""

    misplaced: bool = False
    failure: str = ""


def host(assignments: Iterable[Assignment]) -> Iterator[Outcome]:
    """Serve one assignment after the other; a job has one."""
    for assignment in assignments:
        # Spark runs a task elsewhere when its executor is gone, or busy for long.
        if executor_id() != assignment.executor:
            yield Outcome(misplaced=True)
        else:
            yield trio.run(_serve, assignment)


def executor_id() -> str:
    """Of the executor whose task this is, by the command line of its JVM; `DRIVER` in a local session."""
    pid = os.getpid()
    for _ in range(_MOST_PARENTS):
        pid = _parent(pid)
        if pid <= 1:
            break
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        if any("ExecutorBackend" in word for word in words) and "--executor-id" in words:
            return words[words.index("--executor-id") + 1]
    return os.environ.get("SPARK_EXECUTOR_ID", DRIVER)


def _parent(pid: int) -> int:
    # The name in brackets may have spaces and brackets of its own.
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def _serve(assignment: Assignment) -> Outcome:
    failures: list[str] = []
    hung_up = trio.Event()
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                async for _ in signals:
                    hung_up.set()

            async def serve(slot: int) -> None:
                try:
                    await _Hosted(assignment, slot, hung_up).serve()
                except (ReplicationError, OSError) as error:
                    failures.append(f"node {slot}: {error}")
                running.discard(slot)
                if not running or failures:
                    nursery.cancel_scope.cancel()

            running = set(assignment.slots)
            nursery.start_soon(watch)
            for slot in assignment.slots:
                nursery.start_soon(serve, slot)
    return Outcome(failure="; ".join(failures))


class _Hosted:
    """One node in this process."""

    def __init__(self, assignment: Assignment, slot: int, hung_up: trio.Event) -> None:
        self._assignment = assignment
        self._slot = slot
        self._hung_up = hung_up
        self._claims: list[Claim] = []

    async def serve(self) -> None:
        """Until it is told to end.

        Raises:
          ReplicationError: The node cannot start, or has failed.
        """
        remove = False
        try:
            await self._claim()
            async with Node(self._settings()) as node:
                end = await self._leash(node).hold()
                if end is End.EXECUTOR_LOST:
                    # As a crash: whoever takes the slot next finds the logs as the system has them.
                    os._exit(1)
            remove = end is not End.MOVED and not self._assignment.keep
        finally:
            for claim in self._claims:
                claim.release(remove=remove)
                if remove:
                    remove_run(claim.folder.parent)

    async def _claim(self) -> None:
        address = self._assignment.directory.rpartition("/")[2]
        for folder in run_folders(self._assignment.places, self._assignment.run):
            await trio.to_thread.run_sync(make_run_folder, folder, address)
            await trio.to_thread.run_sync(sweep, folder)
            claim = Claim(folder, self._slot)
            deadline = trio.current_time() + _CLAIM_SECONDS
            while not claim.take():
                if trio.current_time() > deadline:
                    raise FolderError(f"{claim.folder} is still in use by another process")
                await trio.sleep(_RETRY_SECONDS)
            self._claims.append(claim)

    def _settings(self) -> NodeSettings:
        given = self._assignment
        settings = {
            "listeners": (f"tcp://{join_host_port(given.host, 0)}", "shm://@"),
            # All nodes end together, or as if they crashed: there is nobody to hand over to.
            "controlled_shutdown_timeout_ms": 0,
            **given.settings,
        }
        return NodeSettings(
            node_id=self._slot,
            log_dirs=tuple(str(claim.folder) for claim in self._claims),
            store=given.store,
            secret=given.secret,
            **settings,
        )

    def _leash(self, node: Node) -> Leash:
        given = self._assignment
        report = Report(self._slot, given.executor, os.getpid(), tuple(node.endpoints))
        return Leash(given.directory, Security(secret=given.secret.encode()), report, self._hung_up)
