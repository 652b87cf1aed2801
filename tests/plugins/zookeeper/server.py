"""A real ZooKeeper server, of Debian's package `zookeeper`, on loopback, ended by its process id."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which

import attrs

from tests.requires import missing

JAR = Path("/usr/share/java/zookeeper.jar")
"""Its manifest names the other files that it needs."""

TICK_MS = 200
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_START_SECONDS = 30


def required() -> None:
    """End the test as not run unless a server can be started here."""
    if which("java") is None:
        missing("no java on the path")
    if not JAR.exists():
        missing("no ZooKeeper server (Debian's package zookeeper)")


@attrs.define(eq=False)
class ZookeeperServer:
    """One server with a folder of its own; it keeps its port and its data over a restart."""

    folder: Path
    address: str
    port: int
    keeper: socket.socket
    """Bound to the port, so that nobody else is given it before the server listens there, or while it is down."""
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def make(cls, folder: Path, address: str = "127.0.0.1") -> ZookeeperServer:
        folder.mkdir(parents=True, exist_ok=True)
        keeper = socket.socket()
        # As the server does, which may listen then.
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind((address, 0))
        port = keeper.getsockname()[1]
        (folder / "zoo.cfg").write_text(
            f"tickTime={TICK_MS}\nmaxSessionTimeout=20000\ndataDir={folder}/data\nclientPort={port}\n"
            f"clientPortAddress={address}\nadmin.enableServer=false\nmaxClientCnxns=0\n"
        )
        (folder / "log4j.properties").write_text(
            "log4j.rootLogger=INFO, A\nlog4j.appender.A=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.A.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.A.layout.ConversionPattern=%d %p %m%n\n"
        )
        return cls(folder, address, port, keeper)

    @property
    def hosts(self) -> str:
        return f"{self.address}:{self.port}"

    def start(self) -> None:
        """Start it and wait until it answers on its port."""
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    "java",
                    "-Xmx256m",
                    "-XX:+UseSerialGC",
                    "-XX:TieredStopAtLevel=1",
                    "-cp",
                    f"{self.folder}:{JAR}",
                    MAIN,
                    "zoo.cfg",
                ],
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError((self.folder / "server.log").read_text()[-4000:])

    def _answers(self) -> bool:
        """Whether it answers `srvr`, the one question that is allowed without configuration."""
        try:
            with socket.create_connection((self.address, self.port), timeout=1) as link:
                link.sendall(b"srvr")
                return b"Mode:" in link.recv(4096)
        except OSError:
            return False

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def zookeeper(folder: Path) -> Iterator[ZookeeperServer]:
    """A running server, ended when the block is left, however it is left."""
    required()
    server = ZookeeperServer.make(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        server.keeper.close()
