"""The demo from start to verdict: who does what, and when."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import trio

from ...client import Admin, Producer
from ..local.processes import NodeProcess, local_nodes, peak_rss_bytes, running, servers_of
from ..local.transports import Certificates
from .check import Verification, verify
from .failover import RECOVERY_TIMEOUT, Failover, Production, last_records
from .inputs import UNACKNOWLEDGED, Acknowledgements, Input, Lines, expect
from .plant import Plant, plant
from .report import ReadBack, Report, StepTask, read_back, reading_along, wait_for_watermarks
from .scene import Observer, Progress, Scene

TOPIC = "demo"
PARTITIONS = 6
REPLICAS = 3
MIN_INSYNC_REPLICAS = 2
_CHUNK_RECORDS = 1000
_CHUNKS_MIN = 60
"""Short inputs go out in smaller chunks, so that the kill still falls where it should."""
_BATCH_BYTES = 64 << 10


@attrs.frozen
class Options:
    """The user's choices; `records` None is the whole input once, `keep` None keeps nothing."""

    nodes: int
    seed: int
    keep: Path | None = None
    records: int | None = None
    plant: Plant | None = None
    transport: str = "tcp"
    """By name, or the URL that nodes listen on."""
    spark: bool = True
    """Whether the Spark step takes part, if it can."""
    store: str | None = None
    """URL of the metadata store; None: a SQLite file of its own."""


@attrs.define(eq=False)
class Story:
    """One run. `tell` gives the report; whatever it started has ended when it returns or raises."""

    options: Options
    folder: Path
    data: Input
    scene: Scene
    report: Report = attrs.field(init=False)
    _nodes: list[NodeProcess] = attrs.field(init=False)
    _rng: random.Random = attrs.field(init=False)
    _acks: Acknowledgements = attrs.field(init=False)
    _access: dict[str, Any] = attrs.field(init=False)
    """The settings that clients need beside addresses."""

    def __attrs_post_init__(self) -> None:
        options = self.options
        records = options.records or self.data.records
        self.report = Report(
            nodes=options.nodes, seed=options.seed, records=records, transport=options.transport
        )
        self._access = {}
        self._rng = random.Random(options.seed)
        self._acks = Acknowledgements.of_records(records)

    async def tell(self) -> Report:
        """Run everything; raises if the cluster itself fails, reports what the check finds."""
        self._nodes = await trio.to_thread.run_sync(self._prepare, abandon_on_cancel=True)
        self.scene.happen(f"{self.report.records:,} records from {self.data.name}, seed {self.report.seed}")
        async with running(self._nodes, hurry=self.options.keep is None):
            read, leaders = await self._with_cluster()
            self.scene.happen("stopping the nodes cleanly")
        await self._check(read, leaders)
        self._finish()
        return self.report

    def _prepare(self) -> list[NodeProcess]:
        """The nodes, not started yet, and how clients get to them."""
        options, certificates = self.options, None
        if options.transport == "tls":
            certificates = Certificates.make(self.folder / "certificates", range(1, options.nodes + 1))
            files = certificates.of("client")
            self._access = {
                "tls_certificate": files.certificate,
                "tls_key": files.key,
                "tls_authorities": files.authorities,
            }
        return local_nodes(
            options.nodes,
            self.folder,
            transport=options.transport,
            certificates=certificates,
            store=options.store,
        )

    async def _with_cluster(self) -> tuple[ReadBack, dict[int, int]]:
        servers = servers_of(self._nodes)
        self.scene.happen(f"{len(self._nodes)} nodes are up: {servers}", "good")
        async with Admin(servers, **self._access) as admin, trio.open_nursery() as nursery:
            for node in self._nodes:
                nursery.start_soon(_guard, node)
            observer = Observer(admin, TOPIC, self._nodes, self.scene)
            await self._create_topic(admin, observer)
            nursery.start_soon(observer.run)
            task = StepTask(servers, TOPIC, self.folder / "spark", self._access)
            async with reading_along(task, self.scene, self.report, wanted=self.options.spark) as along:
                await self._produce(servers, observer)
                await self._level(admin)
                await along.compare(self._stream)
            read = await self._read_back(servers_of(self._nodes))
            leaders = await observer.leaders()
            nursery.cancel_scope.cancel()
        return read, leaders

    async def _create_topic(self, admin: Admin, observer: Observer) -> None:
        config = {"min_insync_replicas": MIN_INSYNC_REPLICAS}
        await admin.create_topic(TOPIC, PARTITIONS, REPLICAS, config)
        await observer.wait_until_full(RECOVERY_TIMEOUT)
        shape = f"{PARTITIONS} partitions, {REPLICAS} replicas, min_insync_replicas={MIN_INSYNC_REPLICAS}"
        self.scene.happen(f"topic {TOPIC}: {shape}")

    async def _produce(self, servers: str, observer: Observer) -> None:
        """Produce everything with acks=all; meanwhile a leader dies and comes back."""
        async with Producer(
            servers, acks="all", enable_idempotence=True, batch_size=_BATCH_BYTES, **self._access
        ) as producer:
            production = Production(producer, TOPIC, self._acks, self._phase("produced"))
            last = last_records(self.data, self.report.records, PARTITIONS)
            nodes = {node.node_id: node for node in self._nodes}
            failover = Failover(nodes, production, observer, self.scene, self.report, last, self._rng)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(failover.run)
                await production.run(self._stream(), failover.after_chunk)
                self._note_production(production.progress)

    def _note_production(self, progress: Progress) -> None:
        self.report.records_acked = self._acks.count
        self.report.produce_mb_per_s = progress.mb_per_s
        self.report.produce_s = progress.seconds
        self.scene.happen(
            f"{self.report.records_acked:,} records acknowledged by all in-sync replicas, "
            f"{progress.mb_per_s:.1f} MB/s, {progress.records_per_s:,.0f} records/s",
            "good",
        )

    async def _level(self, admin: Admin) -> None:
        counts = Counter(self._acks.partitions)
        del counts[UNACKNOWLEDGED]
        wrong = await wait_for_watermarks(admin, TOPIC, {n: counts[n] for n in range(PARTITIONS)}, REPLICAS)
        self.report.problems += wrong
        if not wrong:
            self.scene.happen(
                "on every replica: high watermark = log end offset = records acknowledged", "good"
            )

    async def _read_back(self, servers: str) -> ReadBack:
        progress = self._phase("read back")
        read = await read_back(servers, TOPIC, self.report.records, progress, self._access)
        self.report.records_read = read.total
        return read

    async def _check(self, read: ReadBack, leaders: dict[int, int]) -> None:
        """In a thread, so that the view goes on; it is left to itself if the demo is interrupted."""
        progress = self._phase("checked on disk")
        self.report.verification = await trio.to_thread.run_sync(
            self._verify, read, self._replicas(leaders), progress, abandon_on_cancel=True
        )
        progress.end()

    def _verify(
        self, read: ReadBack, replicas: dict[int, dict[int, Path]], progress: Progress
    ) -> Verification:
        if self.options.plant is not None:
            planted = plant(self.options.plant, replicas, self._rng)
            self.report.planted = str(planted)
            self.scene.happen(str(planted), "warning")
        expectation = expect(self._stream, self._acks, PARTITIONS)
        self.report.problems += read.defects(expectation)

        def show(records: int, size_bytes: int) -> None:
            progress.done, progress.size_bytes = records, size_bytes

        return verify(replicas, expectation, on_progress=show)

    def _replicas(self, leaders: dict[int, int]) -> dict[int, dict[int, Path]]:
        """Partition -> node id -> folder with the replica's segments, the leader's first."""
        nodes = {node.node_id: node for node in self._nodes}
        return {
            partition: {
                node_id: folder
                for node_id in sorted(nodes, key=lambda node_id: (node_id != leader, node_id))
                if (folder := nodes[node_id].data_dir / f"{TOPIC}-{partition}").is_dir()
            }
            for partition, leader in leaders.items()
        }

    def _finish(self) -> None:
        self.report.rss_mb = {"demo": peak_rss_bytes() / 1e6}
        self.report.rss_mb |= {f"node-{node.node_id}": node.peak_rss_bytes / 1e6 for node in self._nodes}
        self.report.elapsed_s = self.scene.elapsed
        self.report.conclude()
        for tone, line in self.report.lines():
            self.scene.happen(line, tone)

    def _phase(self, name: str) -> Progress:
        return self.scene.phase(name, self.report.records)

    def _stream(self) -> Iterator[Lines]:
        chunk = max(1, min(_CHUNK_RECORDS, self.report.records // _CHUNKS_MIN))
        return self.data.stream(self.report.records, chunk)


async def _guard(node: NodeProcess) -> None:
    """Raise if a node's process ends without being killed."""
    status = await node.wait()
    if node.state != "killed":
        raise node.died(status)
