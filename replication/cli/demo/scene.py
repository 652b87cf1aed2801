"""What there is to see of a running demo: plain data that the story writes and a view shows."""

from __future__ import annotations

import time

import attrs


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
    """One partition as its leader last told; -1 where nobody has told yet."""

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
