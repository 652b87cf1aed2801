"""Node processes for benchmarks and tests, each ended by its id."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

STEADY = ("--session-timeout-ms", "60000", "--set", "leader_silence_timeout_ms=0")
"""Options of nodes of which a test ends none: a machine that stands still for seconds costs them nothing."""
STEADY_ENV = {"INSYNC_NODE_SESSION_TIMEOUT_MS": "60000", "INSYNC_NODE_LEADER_SILENCE_TIMEOUT_MS": "0"}
"""The same, for nodes of `insync up`."""


@attrs.define(eq=False)
class NodeProcess:
    """A node of its own process, started by the command that users have."""

    node_id: int
    folder: Path
    process: subprocess.Popen[str]
    endpoint: str
    store: str

    @classmethod
    def start(
        cls,
        node_id: int,
        folder: Path,
        *options: str,
        data_dirs: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        store: str | None = None,
        command: Sequence[str] = (),
    ) -> NodeProcess:
        """`data_dirs`: in place of the one folder that a node has by default. store: by default SQLite.

        command: what stands before the command line, and keeps the process id.
        """
        where = [
            part for each in data_dirs or (folder / f"node-{node_id}",) for part in ("--data-dir", str(each))
        ]
        with (folder / f"node-{node_id}.err").open("a") as errors:
            process = subprocess.Popen(
                [
                    *command,
                    sys.executable,
                    *("-m", "insync.replication.cli", "node", "--json"),
                    *("--node-id", str(node_id), *where),
                    *("--store", store or f"sqlite://{folder / 'meta.db'}", *options),
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            process.wait()
            raise RuntimeError((folder / f"node-{node_id}.err").read_text())
        ready = json.loads(line)
        return cls(node_id, folder, process, ready["endpoints"][0], ready["store"])

    def kill(self) -> None:
        """As a crash does it."""
        self.process.kill()
        self._end()

    def stop(self) -> int:
        """As an operator does it; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self._end(30)

    def _end(self, seconds: float | None = None) -> int:
        status = self.process.wait(seconds)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status


@attrs.define(eq=False)
class StoreServer:
    """`insync store`, as users run it; it keeps its address over a restart."""

    folder: Path
    listen: str = "tcp://127.0.0.1:0"
    url: str = ""
    process: subprocess.Popen[str] | None = None
    options: tuple[str, ...] = ()

    def start(self) -> None:
        command = [sys.executable, "-m", "insync.replication.cli", "store", "--json"]
        self.process = subprocess.Popen(
            [*command, "--path", str(self.folder / "meta.db"), "--listen", self.listen, *self.options],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["store"]
        self.listen = self.url.removeprefix("remote+")

    def end(self, how: signal.Signals = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        status = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


@contextmanager
def kept_address() -> Iterator[str]:
    """A `tcp://` address for a process that is started again at it: nobody else is given its port in between.

    The port is bound here, which keeps it from connections and other servers that the system finds ports for; one
    that asks for just this port may listen at it, as all servers here set SO_REUSEADDR.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{keeper.getsockname()[1]}"


@contextmanager
def cluster(
    folder: Path,
    count: int = 3,
    *options: str,
    store: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[list[NodeProcess]]:
    """`count` nodes on one store, ended when the block is left, however it is left."""
    nodes: list[NodeProcess] = []
    try:
        for node_id in range(1, count + 1):
            nodes.append(NodeProcess.start(node_id, folder, *options, store=store, env=env))
        yield nodes
    finally:
        for node in nodes:
            node.kill()


def start_again(nodes: list[NodeProcess], node_id: int, *options: str) -> None:
    """A node that has ended, at another address. nodes: as `cluster` gives them."""
    ended = nodes[node_id - 1]
    assert ended.process.poll() is not None
    nodes[node_id - 1] = NodeProcess.start(node_id, ended.folder, *options, store=ended.store)
