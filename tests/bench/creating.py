"""A topic of 4,000 partitions is made on three nodes while another one is written to."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import trio

from ..processes import cluster
from .partitions import LAG_SECONDS, SMOKE_LAG_SECONDS, create, settings
from .report import Result, at_least, at_most


def run(*, smoke: bool) -> Sequence[Result]:
    partitions = 100 if smoke else 4_000
    options = settings(SMOKE_LAG_SECONDS if smoke else LAG_SECONDS)
    with tempfile.TemporaryDirectory() as name, cluster(Path(name), 3, *options) as nodes:
        figures = trio.run(create, [node.endpoint for node in nodes], partitions)
    return [
        Result(
            name=f"{partitions} partitions created, all logs open", value=round(figures.opened, 3), unit="s"
        ),
        at_least("partitions made a second on each node", partitions / figures.opened, "/s", 500),
        at_most("longest gap of another topic meanwhile", figures.gap, "s", 0.3),
    ]
