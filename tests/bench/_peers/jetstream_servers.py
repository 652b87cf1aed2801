"""Three servers of NATS with JetStream, and its own producer, from the Go module proxy."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from ...interop.kafka import free_port

PROGRAM = Path(__file__).parent / "jetstream"
SERVER = "github.com/nats-io/nats-server/v2"


@attrs.frozen
class JetStream:
    """`servers`: addresses; `program`: that measures."""

    servers: str
    pids: tuple[int, ...]
    program: Path

    def measure(
        self, what: str, count: int, size: int, per_second: int = 0, warm: int = 0
    ) -> dict[str, float]:
        """`rate` in records a second, or `latency`: p50 and p99 in seconds; each stored by three servers.

        The first `warm` records are sent besides, and not counted.
        """
        given = [self.servers, what, *(str(each) for each in (3, count, size, per_second, warm))]
        result = subprocess.run([str(self.program), *given], capture_output=True, text=True, timeout=180)
        if result.returncode:
            raise RuntimeError(result.stderr)
        said: dict[str, float] = json.loads(result.stdout)
        return said


def build(folder: Path) -> Path:
    """The server and the program, in a folder; where they are."""
    if shutil.which("go") is None:
        raise RuntimeError("no go on the path")
    source = Path(shutil.copytree(PROGRAM, folder / "source"))
    built = folder / "bin"
    for what in (SERVER, "."):
        command = ["go", "build", "-mod=mod", "-o", f"{built}/", what]
        subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=300)
    return built


@contextmanager
def jetstream(built: Path, place: Path) -> Iterator[JetStream]:
    """They are gone when the block is left."""
    ports = [free_port() for _ in range(6)]
    clients, routes = ports[:3], ports[3:]
    others = ",".join(f"nats://127.0.0.1:{port}" for port in routes)
    with ExitStack() as stack:
        pids = []
        for number, (port, route) in enumerate(zip(clients, routes, strict=True), 1):
            settings = [
                "-n",
                f"s{number}",
                "-p",
                str(port),
                "-a",
                "127.0.0.1",
                "-js",
                "-sd",
                str(place / f"n{number}"),
            ]
            routed = ["--cluster_name", "bench", "--cluster", f"nats://127.0.0.1:{route}", "--routes", others]
            pids.append(stack.enter_context(_running([str(built / "nats-server"), *settings, *routed])).pid)
        servers = ",".join(f"nats://127.0.0.1:{port}" for port in clients)
        (program,) = [each for each in built.iterdir() if each.name != "nats-server"]
        yield JetStream(servers, tuple(pids), program)


@contextmanager
def _running(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
