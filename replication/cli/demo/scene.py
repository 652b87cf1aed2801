"""The visible state of a running demo: plain data, kept up to date by asking the cluster, and shown."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import IO

import attrs
import trio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ...client import Admin, ClientError, NodeReport
from ...core.messages import TopicInfo
from ..clusters import say
from ..errors import CommandError
from ..local.processes import NodeProcess


@attrs.define(eq=False)
class NodeRow:
    """One node; `state` as in `NodeProcess.state`."""

    node_id: int
    state: str = "stopped"
    endpoint: str = ""
    leads: int = 0
    rss_bytes: int = 0


@attrs.define(eq=False)
class PartitionRow:
    """One partition by the last report of its leader; -1 without a report."""

    partition: int
    leader: int = -1
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()
    high_watermark: int = -1
    log_end_offset: int = -1


@attrs.define(eq=False)
class Progress:
    """How far one phase is, in records."""

    name: str
    total: int
    done: int = 0
    size_bytes: int = 0
    started: float = attrs.Factory(time.monotonic)
    ended: float | None = None

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.started

    @property
    def mb_per_s(self) -> float:
        """Megabytes (10^6) a second since the phase began."""
        return self.size_bytes / 1e6 / max(self.seconds, 1e-9)

    @property
    def records_per_s(self) -> float:
        return self.done / max(self.seconds, 1e-9)

    def end(self) -> None:
        self.ended = time.monotonic()


@attrs.frozen
class Happening:
    """One event: seconds since the demo began, how serious it is, and one line."""

    at: float
    tone: str
    text: str


@attrs.define(eq=False)
class Scene:
    """Everything at once; times are of the monotonic clock."""

    title: str
    began: float = attrs.Factory(time.monotonic)
    nodes: dict[int, NodeRow] = attrs.Factory(dict)
    partitions: dict[int, PartitionRow] = attrs.Factory(dict)
    phases: list[Progress] = attrs.Factory(list)
    happenings: list[Happening] = attrs.Factory(list)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def happen(self, text: str, tone: str = "info") -> None:
        """Something worth a line; `tone` is info, good, warning or bad."""
        self.happenings.append(Happening(self.elapsed, tone, text))

    def phase(self, name: str, total: int) -> Progress:
        self.phases.append(Progress(name, total))
        return self.phases[-1]


REFRESH_SECONDS = 0.15
PLAIN_PROGRESS_SECONDS = 2.0
_EVENTS_SHOWN = 12
_TONES = {"info": "default", "good": "green", "warning": "yellow", "bad": "bold red"}
_STATES = {"alive": "green", "starting": "yellow", "stopped": "dim", "killed": "bold red", "died": "bold red"}


class View(ABC):
    """Shows a scene until its block is left; `keep_showing` runs beside the story."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._shown = 0

    async def keep_showing(self) -> None:
        while True:
            self.show()
            await trio.sleep(REFRESH_SECONDS)

    @abstractmethod
    def show(self) -> None:
        """Bring what is shown up to date with the scene."""

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        self.show()

    def _fresh_happenings(self) -> Iterator[Happening]:
        fresh = self.scene.happenings[self._shown :]
        self._shown += len(fresh)
        yield from fresh


class PlainView(View):
    """Lines that need no terminal: each event as it happens, and the progress every two seconds."""

    def __init__(self, scene: Scene, file: IO[str]) -> None:
        super().__init__(scene)
        self._file = file
        self._next_progress = PLAIN_PROGRESS_SECONDS

    def show(self) -> None:
        for happening in self._fresh_happenings():
            self._line(happening.at, happening.text)
        if self.scene.elapsed >= self._next_progress:
            self._next_progress = self.scene.elapsed + PLAIN_PROGRESS_SECONDS
            for phase in self.scene.phases:
                if phase.ended is None:
                    self._line(self.scene.elapsed, progress_line(phase))

    def _line(self, at: float, text: str) -> None:
        say(f"{at:8.3f} s  {text}", to=self._file, flush=True)


class LiveView(View):
    """Tables of nodes and partitions, progress bars and the latest events, redrawn in place."""

    def __init__(self, scene: Scene, console: Console) -> None:
        super().__init__(scene)
        self._live: AbstractContextManager[Live] = Live(
            console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._screen: Live | None = None

    def __enter__(self) -> View:
        self._screen = self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.show()
        self._live.__exit__(None, None, None)

    def show(self) -> None:
        if self._screen is not None:
            self._screen.update(render(self.scene), refresh=True)


def make_view(scene: Scene, file: IO[str]) -> View:
    """Live tables if `file` is a terminal that can redraw, plain lines else."""
    console = Console(file=file)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(scene, console)
    return PlainView(scene, file)


def progress_line(phase: Progress) -> str:
    share = 100 * phase.done / max(phase.total, 1)
    return (
        f"{phase.name}: {phase.done:,} of {phase.total:,} records ({share:.0f} %), "
        f"{phase.records_per_s:,.0f} records/s, {phase.mb_per_s:.1f} MB/s"
    )


def render(scene: Scene) -> RenderableType:
    """The whole scene as one renderable."""
    tables = Table.grid(padding=(0, 2))
    tables.add_row(_nodes(scene), _partitions(scene))
    title = Text(f"{scene.title}   {scene.elapsed:6.1f} s", style="bold")
    return Group(title, tables, _phases(scene), _happenings(scene))


def _nodes(scene: Scene) -> Table:
    table = Table(title="nodes", title_justify="left")
    for column in ("node", "state", "leads", "memory"):
        table.add_column(column, justify="left" if column == "state" else "right")
    for row in scene.nodes.values():
        state = Text(row.state, style=_STATES.get(row.state, "default"))
        leads = str(row.leads) if row.state == "alive" else "-"
        table.add_row(str(row.node_id), state, leads, f"{row.rss_bytes / 1e6:.0f} MB")
    return table


def _partitions(scene: Scene) -> Table:
    table = Table(title="partitions", title_justify="left")
    for column in ("partition", "leader", "epoch", "in sync", "high watermark", "log end"):
        table.add_column(column, justify="right")
    for row in scene.partitions.values():
        full = len(row.isr) == len(row.replicas)
        isr = Text(",".join(map(str, row.isr)), style="green" if full else "bold yellow")
        leader = Text(
            str(row.leader) if row.leader >= 0 else "none", style="default" if row.leader >= 0 else "bold red"
        )
        offsets = (f"{row.high_watermark:,}", f"{row.log_end_offset:,}")
        table.add_row(str(row.partition), leader, str(row.leader_epoch), isr, *offsets)
    return table


def _phases(scene: Scene) -> Table:
    grid = Table.grid(padding=(0, 2))
    for phase in scene.phases:
        bar = ProgressBar(total=max(phase.total, 1), completed=phase.done, width=40)
        share = f"{100 * phase.done / max(phase.total, 1):.0f} %"
        grid.add_row(phase.name, bar, share, f"{phase.done:,} records", f"{phase.mb_per_s:.1f} MB/s")
    return grid


def _happenings(scene: Scene) -> Table:
    grid = Table.grid(padding=(0, 2))
    for happening in scene.happenings[-_EVENTS_SHOWN:]:
        grid.add_row(f"{happening.at:8.3f} s", Text(happening.text, style=_TONES[happening.tone]))
    return grid


POLL_SECONDS = 0.25
_WAIT_POLL_SECONDS = 0.01


class NotInTimeError(CommandError):
    """The cluster did not come to a state that it should have come to."""


@attrs.define(eq=False)
class Observer:
    """Polls one topic of a cluster. Only what is shown depends on it; figures come from the waits below."""

    admin: Admin
    topic: str
    nodes: Sequence[NodeProcess]
    scene: Scene

    async def run(self) -> None:
        """Poll until cancelled; a poll that fails is simply not shown."""
        while True:
            self._show_nodes()
            try:
                reports = await self.admin.describe_replicas([self.topic], timeout_ms=1000)
                (topic,) = await self.admin.describe_topics([self.topic])
            except ClientError:
                await trio.sleep(POLL_SECONDS)
                continue
            self._show_partitions(topic, reports)
            await trio.sleep(POLL_SECONDS)

    async def leaders(self) -> dict[int, int]:
        """Partition -> node id of its leader, asked now."""
        (topic,) = await self.admin.describe_topics([self.topic])
        return {each.partition: each.leader for each in topic.partitions}

    async def wait_until_full(self, timeout: float) -> None:
        """Wait until every partition has a leader and all its replicas are in sync.

        Raises `NotInTimeError` naming the partitions that lack something after `timeout` seconds.
        """
        lacking: list[str] = ["no node answers"]
        with trio.move_on_after(timeout):
            while lacking:
                lacking = await self._lacking()
                await trio.sleep(_WAIT_POLL_SECONDS if lacking else 0)
        if lacking:
            raise NotInTimeError(f"not all replicas were in sync after {timeout:.0f} s: {'; '.join(lacking)}")

    async def _lacking(self) -> list[str]:
        try:
            (topic,) = await self.admin.describe_topics([self.topic])
        except ClientError as error:
            return [str(error)]
        return [
            f"partition {each.partition} has leader {each.leader} and ISR {each.isr} of {each.replicas}"
            for each in topic.partitions
            if each.leader < 0 or set(each.isr) != set(each.replicas)
        ]

    def _show_nodes(self) -> None:
        for node in self.nodes:
            node.sample_memory()
            row = self.scene.nodes.setdefault(node.node_id, NodeRow(node.node_id))
            row.state, row.rss_bytes = node.state, node.peak_rss_bytes
            row.endpoint = node.endpoints[0] if node.endpoints else ""

    def _show_partitions(self, topic: TopicInfo, reports: Sequence[NodeReport]) -> None:
        told = {
            (report.node_id, replica.partition): replica for report in reports for replica in report.replicas
        }
        for info in topic.partitions:
            row = self.scene.partitions.setdefault(info.partition, PartitionRow(info.partition))
            row.leader, row.leader_epoch = info.leader, info.leader_epoch
            row.isr, row.replicas = tuple(info.isr), tuple(info.replicas)
            leader = told.get((info.leader, info.partition))
            if leader is not None:
                row.high_watermark, row.log_end_offset = leader.high_watermark, leader.log_end_offset
        for node in self.scene.nodes.values():
            node.leads = sum(each.leader == node.node_id for each in topic.partitions)
