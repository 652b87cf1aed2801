"""The metadata store of a run, which can be taken away for a while."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from tests.plugins.postgresql.server import PostgresqlServer
from tests.plugins.postgresql.server import required as of_postgresql
from tests.plugins.zookeeper.server import ZookeeperServer, required

STORE_PORT = 9099


class RunStore(ABC):
    """url: what nodes are given. port: where it listens, 0 for none. session_ms: of the nodes' sessions.

    is_file: the nodes reach it as a file.
    """

    url: str
    port: int = 0
    session_ms: int = 1_000
    is_file = False

    @asynccontextmanager
    async def away(self, seconds: float) -> AsyncIterator[bool]:
        """Take it away for some seconds; yields whether that was seen."""
        bit = await self._take_away()
        try:
            yield bit
            await trio.sleep(seconds)
        finally:
            with trio.CancelScope(shield=True):
                await self._bring_back()

    @abstractmethod
    async def _take_away(self) -> bool: ...

    @abstractmethod
    async def _bring_back(self) -> None: ...

    @abstractmethod
    def stop(self) -> None:
        """The run is over."""


class SqliteRunStore(RunStore):
    """A file; another process that holds its write lock makes it unavailable for writers."""

    is_file = True

    def __init__(self, folder: Path) -> None:
        self.path = folder / "meta.db"
        self.url = f"sqlite://{self.path}"
        self._holder: sqlite3.Connection | None = None

    async def _take_away(self) -> bool:
        self._holder = sqlite3.connect(self.path, isolation_level=None, timeout=10, check_same_thread=False)
        await trio.to_thread.run_sync(self._holder.execute, "BEGIN IMMEDIATE")
        with sqlite3.connect(self.path, isolation_level=None, timeout=0) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
        return False

    async def _bring_back(self) -> None:
        assert self._holder is not None
        self._holder.rollback()
        self._holder.close()

    def stop(self) -> None:
        """Nothing runs for it."""


class ZookeeperRunStore(RunStore):
    """A real server, killed and started again with its data."""

    session_ms = 2_000

    def __init__(self, folder: Path, address: str) -> None:
        required()
        self._server = ZookeeperServer.make(folder / "zookeeper", address)
        self._server.start()
        self.port = self._server.port
        self.url = f"zookeeper://{self._server.hosts}/chaos"

    async def _take_away(self) -> bool:
        self._server.kill()
        return True

    async def _bring_back(self) -> None:
        await trio.to_thread.run_sync(self._server.start)

    def stop(self) -> None:
        self._server.kill()
        self._server.keeper.close()


class PostgresqlRunStore(RunStore):
    """A real server, killed and started again with its data."""

    session_ms = 2_000

    def __init__(self, address: str) -> None:
        of_postgresql()
        self._server = PostgresqlServer.make(address)
        try:
            self._server.start()
        except BaseException:
            self._server.remove()
            raise
        self.port = self._server.port
        self.url = self._server.url("chaos")

    async def _take_away(self) -> bool:
        await trio.to_thread.run_sync(self._server.kill)
        return True

    async def _bring_back(self) -> None:
        await trio.to_thread.run_sync(self._server.start)

    def stop(self) -> None:
        self._server.remove()


class RemoteRunStore(RunStore):
    """`insync store` beside the nodes, stopped and continued."""

    def __init__(self, folder: Path, address: str, environment: dict[str, str]) -> None:
        # Beside nodes of this machine's own network the system gives the port.
        listen = f"tcp://{address}:{0 if address == '127.0.0.1' else STORE_PORT}"
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "insync.replication.cli", "store"),
                *("--path", str(folder / "meta.db"), "--listen", listen, "--json"),
            ],
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the store did not start")
        self.url = json.loads(line)["store"]
        self.port = int(self.url.partition("?")[0].rpartition(":")[2])

    async def _take_away(self) -> bool:
        self._process.send_signal(signal.SIGSTOP)
        return True

    async def _bring_back(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
