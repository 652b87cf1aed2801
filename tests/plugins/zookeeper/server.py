"""A real ZooKeeper server, the one that PySpark brings, on loopback, ended by its process id."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import attrs

from tests.requires import missing

TICK_MS = 200
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_START_SECONDS = 30


def required() -> None:
    """End the test as not run unless a server can be started here."""
    if which("java") is None:
        missing("no java on the path")
    if not any(jars().glob("zookeeper-[0-9]*.jar")):
        missing("no ZooKeeper server (it comes with PySpark)")


def jars() -> Path:
    """The folder of the server and of all that it needs."""
    found = find_spec("pyspark")
    return Path(found.origin).parent / "jars" if found is not None and found.origin else Path("nowhere")


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
                    f"{self.folder}:{jars()}/*",
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
