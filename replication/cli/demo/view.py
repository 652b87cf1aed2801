"""Showing the demo: live tables on a terminal, one line for each event elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import IO

import trio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .scene import Happening, Progress, Scene

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
        print(f"{at:8.3f} s  {text}", file=self._file, flush=True)


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
