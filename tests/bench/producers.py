"""500 producers that send ten single records a second each, to 100 partitions of three nodes of ours and of three
brokers of Kafka, in turn: each without lingering, acknowledged by all. Needs Java, Maven and confluent-kafka.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import attrs
import trio

from ..interop.brokers import brokers
from ..interop.kafka import POM, Java, resolve
from ..processes import cluster
from . import _race_ours as ours
from ._kafka import clients as theirs
from ._many_producers import Load, measure
from ._processor import seconds_of
from .report import Result, within

TOPIC = "seldom"
PER_SECOND = 10


def run(*, smoke: bool) -> list[Result]:
    """All rows; some three minutes on four quiet cores. smoke: small, to show that it runs."""
    producers, partitions, seconds, rounds = (10, 5, 1.0, 1) if smoke else (500, 100, 10.0, 3)
    java = Java(resolve(POM, online=True), ())
    with (
        tempfile.TemporaryDirectory() as name,
        cluster(Path(name)) as nodes,
        brokers(java, Path(name) / "kafka", heap="1g") as kafka,
    ):
        mine = [node.endpoint for node in nodes]
        trio.run(ours.create, mine, TOPIC, partitions)
        theirs.create(kafka.servers, TOPIC, partitions)
        sides = {
            "ours": (",".join(mine), [node.process.pid for node in nodes]),
            "kafka": (kafka.servers, list(kafka.pids)),
        }
        load = Load(
            servers="",
            topic=TOPIC,
            partitions=partitions,
            producers=producers,
            seconds=seconds,
            per_second=PER_SECOND,
        )
        found: dict[str, list[list[float]]] = {whose: [] for whose in sides}
        used: dict[str, float] = dict.fromkeys(sides, 0.0)
        for _ in range(rounds):
            for whose, (servers, pids) in sides.items():
                before = seconds_of(pids)
                found[whose].append(measure(whose, attrs.evolve(load, servers=servers)))
                used[whose] += seconds_of(pids) - before
    return _rows(producers, found, used)


def _rows(producers: int, found: dict[str, list[list[float]]], used: dict[str, float]) -> list[Result]:
    title = f"{producers} producers of {PER_SECOND} records/s"
    results = []
    for what, share in (("p50", 0.5), ("p99", 0.99)):
        mine, other = (
            theirs.median([theirs.at(taken, share) * 1000 for taken in found[whose]])
            for whose in ("ours", "kafka")
        )
        results.append(within(f"{title}, {what}, beside Kafka", mine, "ms", other))
    mine, other = (used[whose] / sum(map(len, found[whose])) * 1000 for whose in ("ours", "kafka"))
    return [*results, within("servers' processor time of such a record, beside Kafka", mine, "ms", other)]
