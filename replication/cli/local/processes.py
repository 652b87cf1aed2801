"""Nodes as child processes: started, watched, killed, stopped, and never left behind.

A child holds the read end of a pipe as its standard input and stops when that ends. The kernel closes the
other end however the parent dies, SIGKILL included, so no child outlives it.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import attrs
import trio

from ..errors import CommandError, UsageError
from . import children
from .transports import Certificates, listeners

READY_TIMEOUT = 30.0
STOP_TIMEOUT = 10.0
_KAFKA = "kafka://"


class NodeProcessError(CommandError):
    """A node's process could not be started or ended by itself; the message gives its last words."""


@attrs.define(eq=False)
class NodeProcess:
    """One node's process; restartable with the same data folder.

    `state` is one of `stopped`, `starting`, `alive`, `killed`, `died`. `peak_rss_bytes` is the greatest resident
    size seen in any of its processes (Linux only, 0 elsewhere).
    """

    node_id: int
    data_dir: Path
    store: str
    listen: Sequence[str] = ("tcp://127.0.0.1:0",)
    options: Sequence[str] = ()
    log_folder: Path | None = None
    """Where the log goes, if not beside the data."""
    state: str = "stopped"
    endpoints: list[str] = attrs.Factory(list)
    gateways: list[str] = attrs.Factory(list)
    """Where clients of other protocols reach it."""
    cluster_id: str = ""
    metrics: str = ""
    """Where the process serves its metrics, if it does."""
    peak_rss_bytes: int = 0
    _process: trio.Process | None = None

    @property
    def log_path(self) -> Path:
        """Where the process's standard error goes, over all its restarts."""
        folder = self.log_folder or self.data_dir.parent
        return folder / f"{self.data_dir.name}.log"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process and wait until the node serves.

        Raises `NodeProcessError` with the node's own last line if it ends instead, or takes over 30 s.
        """
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        self.state = "starting"
        self._process = await children.spawn(self._arguments(), self.log_path)
        try:
            with trio.fail_after(READY_TIMEOUT):
                await self._wait_ready(self._process)
        except trio.TooSlowError:
            await self.stop(grace=0)
            self.state = "died"
            raise NodeProcessError(
                f"node {self.node_id} was not ready within {READY_TIMEOUT:.0f} s: "
                f"{children.last_words(self.log_path)}"
            ) from None
        self.state = "alive"

    async def wait(self) -> int:
        """Wait until the process ends, for whatever reason; gives its exit status."""
        assert self._process is not None
        return await self._process.wait()

    def kill(self) -> None:
        """SIGKILL, at once; the node gets no chance to do anything."""
        assert self._process is not None
        self.sample_memory()
        self._process.kill()
        self.state = "killed"

    async def stop(self, grace: float = STOP_TIMEOUT) -> None:
        """SIGTERM, and SIGKILL if it has not ended after `grace` seconds. Not cancelled half-way."""
        process = self._process
        if process is None:
            return
        self.sample_memory()
        await children.end(process, grace)
        self._process = None
        if self.state not in ("killed", "died"):
            self.state = "stopped"

    def sample_memory(self) -> None:
        """Take note of the process's peak resident size, as long as it lives."""
        if self._process is not None:
            self.peak_rss_bytes = max(self.peak_rss_bytes, peak_rss_bytes(self._process.pid))

    def died(self, status: int) -> NodeProcessError:
        """The error for a process that ended without being asked to."""
        self.state = "died"
        how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        return NodeProcessError(f"node {self.node_id} ended {how}: {children.last_words(self.log_path)}")

    def _arguments(self) -> list[str]:
        listen = [part for url in self.listen for part in ("--listen", url)]
        return [
            "node",
            *("--node-id", str(self.node_id), "--data-dir", str(self.data_dir), "--store", self.store),
            *listen,
            *self.options,
        ]

    async def _wait_ready(self, process: trio.Process) -> None:
        ready = await children.first_line(process)
        if ready is None:
            raise self.died(await process.wait())
        self.endpoints, self.cluster_id = ready["endpoints"], ready["cluster_id"]
        self.gateways = ready["gateways"]
        self.metrics = ready["metrics"] or ""


@contextlib.asynccontextmanager
async def running(nodes: Sequence[NodeProcess], *, hurry: bool = False) -> AsyncIterator[None]:
    """Start all nodes together; stop whatever still runs when the block is left, however that comes about.

    With `hurry` the nodes are killed if the block fails or is cancelled, because their data is not needed then.
    """
    try:
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(node.start)
        yield
    except BaseException:
        await _stop_all(nodes, 0 if hurry else STOP_TIMEOUT)
        raise
    await _stop_all(nodes, STOP_TIMEOUT)


def local_nodes(
    count: int,
    folder: Path,
    *,
    first_port: int = 0,
    transport: str = "tcp",
    certificates: Certificates | None = None,
    log_folder: Path | None = None,
    metrics_port: int | None = None,
    store: str | None = None,
    kafka_port: int | None = None,
) -> list[NodeProcess]:
    """Nodes 1 to `count` on this machine, sharing `store`, else a SQLite store in `folder`; not started yet.

    With `first_port` they listen on that port and those after it, else on free ones. Their metrics are at
    `metrics_port` and the ports after it; 0 takes free ones, None serves none. So it is with `kafka_port`, for
    Kafka's clients.
    Raises `UsageError` for a URL of no store that several processes can share.
    """
    if store is None:
        store = f"sqlite://{folder.absolute() / 'metadata.db'}"
    else:
        _check_store(store)
    return [
        NodeProcess(
            node_id,
            folder.absolute() / f"node-{node_id}",
            store,
            (
                *listeners(transport, node_id, first_port + node_id - 1 if first_port else 0),
                *_kafka_listeners(kafka_port, node_id),
            ),
            (
                *(() if certificates is None else _tls_options(certificates, node_id)),
                *_metrics_options(metrics_port, node_id),
            ),
            log_folder,
        )
        for node_id in range(1, count + 1)
    ]


def _check_store(url: str) -> None:
    """Refuse an unusable URL before any node starts. Nothing is opened."""
    from ...metadata import MemoryStore, MetadataError, open_store

    try:
        store = open_store(url)
    except MetadataError as error:
        raise UsageError(f"--store {url}: {error}") from error
    if isinstance(store.inner, MemoryStore):
        raise UsageError(
            f"--store {url}: only one process can use a store in memory, and each node is a separate process; "
            "use another store"
        )


def _metrics_options(first: int | None, node_id: int) -> tuple[str, ...]:
    if first is None:
        return ()
    return ("--metrics-port", str(first + node_id - 1 if first else 0))


def _kafka_listeners(first: int | None, node_id: int) -> tuple[str, ...]:
    if first is None:
        return ()
    return (f"{_KAFKA}127.0.0.1:{first + node_id - 1 if first else 0}",)


def _tls_options(certificates: Certificates, node_id: int) -> tuple[str, ...]:
    files = certificates.of(node_id)
    return (
        *("--cluster-id", certificates.cluster_id, "--tls-certificate", files.certificate),
        *("--tls-key", files.key, "--tls-authorities", files.authorities),
    )


def servers_of(nodes: Sequence[NodeProcess]) -> str:
    """Bootstrap servers for clients: every node's first endpoint."""
    return ",".join(node.endpoints[0] for node in nodes if node.endpoints)


def kafka_servers_of(nodes: Sequence[NodeProcess]) -> list[str]:
    """Bootstrap servers for Kafka's clients, as host:port; empty if no node serves them."""
    return [url.removeprefix(_KAFKA) for node in nodes for url in node.gateways if url.startswith(_KAFKA)]


async def _stop_all(nodes: Sequence[NodeProcess], grace: float) -> None:
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(node.stop, grace)


def peak_rss_bytes(pid: int | None = None) -> int:
    """The greatest resident size that a living process has had (VmHWM); 0 if the system does not tell."""
    try:
        status = Path(f"/proc/{pid or 'self'}/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
