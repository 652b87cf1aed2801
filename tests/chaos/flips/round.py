"""One damaged file in the folders of three nodes: the nodes start, the damaged one first, and a verdict is given.

Nothing that was acknowledged may be lost: each record is read, or its partition has no leader, its log is still on
the disk, and the damaged file is named.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import trio

from insync.replication import Admin, Consumer, Node, NodeSettings, ReplicationError
from tests.processes import NodeProcess

from ..history import Place
from ..load import until_async
from ..replica_files import surviving_records
from .cluster import (
    COMPACTED,
    GROUP,
    GROUP_TOPIC,
    INTERNAL,
    NODES,
    ONE,
    STORE,
    STRAY,
    TOPICS,
    Template,
)
from .table import DAMAGED, Fault

_ROUND_SECONDS = 120.0
_HEAL_SECONDS = 30.0
_GRACE_SECONDS = 2.0
"""How long what is withheld and named is waited for."""


@attrs.define
class Outcome:
    """The consequences of one fault."""

    fault: Fault
    seconds: float = 0.0
    lost: list[str] = attrs.field(factory=list)
    """Places with acknowledged records that are neither read nor on the disk of a replica that is named."""
    harmed: list[str] = attrs.field(factory=list)
    """Places that have nothing to do with the fault, and suffer from it."""
    withheld: list[str] = attrs.field(factory=list)
    """Places without a leader, whose records are still on the disk."""
    refused: dict[int, str] = attrs.field(factory=dict)
    """Why nodes did not start, or ended."""
    named: str = ""
    """The first line that names the damaged file."""
    said: list[str] = attrs.field(factory=list)

    @property
    def unnamed(self) -> bool:
        """Whether nobody named a file that was damaged, although this had an effect or its content shows it."""
        return not self.named and (self.fault.shows or bool(self.withheld or self.refused))

    @property
    def broken(self) -> list[str]:
        """The promises that do not hold."""
        unnamed = ["not named"] if self.unnamed else []
        return [*(f"lost: {each}" for each in self.lost), *(f"harmed: {e}" for e in self.harmed), *unnamed]


class _Lines(logging.Handler):
    """Keeps what nodes log as warnings and errors."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def _listening() -> Iterator[list[str]]:
    handler = _Lines()
    logger = logging.getLogger("insync")
    logger.addHandler(handler)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)


@attrs.define
class FlipRound:
    """One fault, from the copy of the folders to the verdict."""

    template: Template
    fault: Fault
    root: Path
    processes: bool = False
    """Whether each node is a process; otherwise all run in this one."""
    outcome: Outcome = attrs.field(init=False)
    servers: list[str] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.outcome = Outcome(self.fault)

    async def carry_out(self) -> Outcome:
        began = time.monotonic()
        shutil.copytree(self.template.root, self.root, ignore=shutil.ignore_patterns("*.err"))
        self.fault.apply(self.root)
        with _listening() as self.outcome.said:
            with trio.move_on_after(_ROUND_SECONDS) as limit:
                await self._run()
            if limit.cancelled_caught:
                self.outcome.harmed.append(f"not done within {_ROUND_SECONDS:.0f} s")
        self._look_at_strays()
        self._find_name()
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            for number in NODES:
                endpoint = await nursery.start(self._keep_process if self.processes else self._keep, number)
                self.servers += [endpoint] if endpoint else []
            missing = self._wanted
            if self.servers:
                missing = await self._look()
            nursery.cancel_scope.cancel()
        for place in sorted(missing):
            self._judge_missing(place)

    async def _keep(self, number: int, *, task_status: trio.TaskStatus[str]) -> None:
        settings = NodeSettings(
            node_id=number,
            data_dir=self.root / f"node-{number}",
            store=f"sqlite://{self.root / STORE}",
            listeners=("tcp://127.0.0.1:0",),
            session_timeout_ms=10_000,
            controlled_shutdown_timeout_ms=0,
        )
        node, started = Node(settings), False
        try:
            async with node:
                started = True
                task_status.started(node.endpoints[0])
                await trio.sleep_forever()
        except ReplicationError as error:
            self.outcome.refused[number] = f"{error}; {error.__cause__ or ''}"
            if not started:
                task_status.started("")

    async def _keep_process(self, number: int, *, task_status: trio.TaskStatus[str]) -> None:
        try:
            node = await trio.to_thread.run_sync(NodeProcess.start, number, self.root)
        except RuntimeError as error:
            self.outcome.refused[number] = str(error)
            task_status.started("")
            return
        try:
            task_status.started(node.endpoint)
            await trio.sleep_forever()
        finally:
            node.kill()

    # what is there

    async def _look(self) -> set[Place]:
        """Wait until all is well, and read; the places whose records are not all there."""
        async with Admin(self.servers, request_timeout_ms=10_000) as admin:
            unwell: set[Place] = set()

            async def is_well() -> bool:
                nonlocal unwell
                unwell = await self._unwell(admin)
                return not unwell

            if not await until_async(is_well, _GRACE_SECONDS):
                self._find_name()
                if not (self.outcome.named and all(map(self._concerns, unwell))):
                    await until_async(is_well, _HEAL_SECONDS)
            self.outcome.harmed += [
                f"{topic}-{partition} is not whole" for topic, partition in unwell
                if not self._concerns((topic, partition))
            ]  # fmt: skip
            led = await self._led(admin)
            found = await self._read(sorted(led & self._wanted))
            if (GROUP_TOPIC, 0) in led:
                await self._compare_offsets(admin)
        missing = {place for place in self.template.acked if not self._has_all(place, found.get(place, {}))}
        latest = dict(found.get((COMPACTED, 0), {}).values())
        if latest != self.template.latest:
            missing.add((COMPACTED, 0))
        for place in missing & led:
            self.outcome.lost.append(f"{place[0]}-{place[1]} has a leader, and lacks records")
        return (missing | {(topic, 0) for topic in INTERNAL}) - led

    @property
    def _wanted(self) -> set[Place]:
        """Places that are read."""
        return {*self.template.acked, (COMPACTED, 0)}

    def _has_all(self, place: Place, found: dict[int, tuple[bytes, bytes]]) -> bool:
        values = {offset: value for offset, (_, value) in found.items()}
        return self.template.acked[place].items() <= values.items()

    async def _unwell(self, admin: Admin) -> set[Place]:
        """Places that have no leader, or a replica that is not in sync although its node serves."""
        try:
            infos = await admin.describe_topics()
        except ReplicationError:
            return {("no topic is described", 0)}
        alive = set(NODES) - self.outcome.refused.keys()
        absent = {(name, 0) for name in (*TOPICS, *INTERNAL)} - {(info.name, 0) for info in infos}
        parts = [((info.name, part.partition), part) for info in infos for part in info.partitions]
        return absent | {
            place
            for place, part in parts
            if alive & set(part.replicas) and (part.leader < 0 or alive & set(part.replicas) - set(part.isr))
        }

    async def _led(self, admin: Admin) -> set[Place]:
        with suppress(ReplicationError):
            infos = await admin.describe_topics()
            return {
                (info.name, part.partition) for info in infos for part in info.partitions if part.leader >= 0
            }
        return set()

    async def _read(self, places: list[Place]) -> dict[Place, dict[int, tuple[bytes, bytes]]]:
        """Key and value of every committed record, by place and offset."""
        found: dict[Place, dict[int, tuple[bytes, bytes]]] = {place: {} for place in places}
        reading: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        try:
            with trio.fail_after(_HEAL_SECONDS):
                async with Consumer(self.servers, **reading) as consumer:
                    consumer.assign(places)
                    ends = await consumer.end_offsets(places)
                    while any((consumer.position(each) or 0) < ends[each] for each in ends):
                        for each in await consumer.poll(timeout_ms=200):
                            place = each.topic, each.partition
                            found[place][each.offset] = each.key or b"", each.value or b""
        except (ReplicationError, trio.TooSlowError) as error:
            self.outcome.said.append(f"reading ended: {error!r}")
        return found

    async def _compare_offsets(self, admin: Admin) -> None:
        offsets: dict[Place, int] = {}

        async def is_answered() -> bool:
            with suppress(ReplicationError):
                told = await admin.group_offsets(GROUP)
                offsets.update({(at.topic, at.partition): offset for at, offset in told.items()})
                return True
            return False

        await until_async(is_answered, _HEAL_SECONDS)
        if offsets != self.template.committed:
            self.outcome.lost.append(f"offsets of {GROUP}: {offsets}")

    # the verdict

    def _concerns(self, place: Place) -> bool:
        """Whether the fault may make the node withhold its replica of a place."""
        parts = Path(self.fault.path).parts
        return self.fault.of_store or len(parts) == 2 or parts[1] == f"{place[0]}-{place[1]}"

    def _judge_missing(self, place: Place) -> None:
        """A place without a leader: its records lie on the disk of each node that had it."""
        name = f"{place[0]}-{place[1]}"
        if place != (ONE, NODES.index(DAMAGED)) and not self.fault.of_store:
            self.outcome.harmed.append(f"{name} has no leader")
        for number in NODES:
            before = dict(surviving_records(self.template.root / f"node-{number}" / name))
            acked = self.template.acked.get(place, before)
            kept = [dict(surviving_records(each)) for each in self._folders(number, name)]
            if acked and any(acked.items() <= each.items() for each in kept):
                self.outcome.withheld.append(name)
                return
        self.outcome.lost.append(f"{name} is on no disk")

    def _folders(self, number: int, name: str) -> list[Path]:
        node = self.root / f"node-{number}"
        return [*node.glob(name), *node.glob(f"{name}.*-stray")]

    def _look_at_strays(self) -> None:
        kept = [len(surviving_records(each)) for each in self._folders(DAMAGED, f"{STRAY}-0")]
        if kept != [self.template.strays]:
            self.outcome.lost.append(f"the stray log: {kept}")

    def _find_name(self) -> None:
        """A file of a partition is named by its folder, too."""
        path = Path(self.fault.path)
        names = [str(self.root / path)]
        if len(path.parts) > 2:
            names.append(str(self.root / path.parent))
        if self.fault.of_store:
            names += [str(self.root / STORE), "in the metadata store"]
        written = [line for path in self.root.glob("*.err") for line in path.read_text().splitlines()]
        refused = self.outcome.refused.values()
        # A folder that is another's is refused as a whole.
        named = [each for each in refused if str(self.root / path.parent) in each]
        lines = [*self.outcome.said, *written, *refused]
        named += [line for line in lines if any(name in line for name in names)]
        self.outcome.named = next(iter(named), "")
