"""Three servers of JetStream or of etcd, and a program with their own client, from the Go module proxy."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from ...interop.kafka import free_port

SOURCE = Path(__file__).parent / "go"
NATS = "github.com/nats-io/nats-server/v2"
ETCD = "go.etcd.io/etcd/server/v3"
HOST = "127.0.0.1"


@attrs.frozen
class Servers:
    """`addresses`: with commas between; `program`: that measures."""

    addresses: str
    pids: tuple[int, ...]
    program: Path

    def measure(self, kind: str, size: int, **options: float) -> dict[str, float]:
        """Of records of `size` bytes, each stored by three servers. The options are those of `load.go`.

        `rate` and `many` have a `rate` in records a second, `latency` has `p50` and `p99` in seconds.
        """
        given = {"servers": self.addresses, "kind": kind, "size": size, **options}
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        result = subprocess.run([str(self.program), *flags], capture_output=True, text=True, timeout=180)
        if result.returncode:
            raise RuntimeError(result.stderr)
        said: dict[str, float] = json.loads(result.stdout)
        return said


def build(folder: Path, *what: str) -> Path:
    """The servers and programs named, in a folder; where they are."""
    if shutil.which("go") is None:
        raise RuntimeError("no go on the path")
    source = Path(shutil.copytree(SOURCE, folder / "source", dirs_exist_ok=True))
    built = folder / "bin"
    command = ["go", "build", "-mod=mod", "-o", f"{built}/"]
    for each in what:
        subprocess.run([*command, each], cwd=source, check=True, capture_output=True, timeout=600)
    return built


@contextmanager
def jetstream(folder: Path, *, sync_always: bool = False) -> Iterator[Servers]:
    """They are gone when the block is left. sync_always: a message is on the device before it is acknowledged."""
    built = build(folder, NATS, "./jetstream")
    settings = folder / "nats.conf"
    settings.write_text("jetstream { sync_interval: always }\n" if sync_always else "")
    ports = [(free_port(), free_port()) for _ in range(3)]
    routes = ",".join(f"nats://{HOST}:{route}" for _, route in ports)
    commands = [
        [
            *(str(built / "nats-server"), "-c", str(settings), "-n", f"s{port}", "-a", HOST, "-p", str(port)),
            *("-js", "-sd", str(folder / f"nats-{port}"), "--cluster_name", "bench"),
            *("--cluster", f"nats://{HOST}:{route}", "--routes", routes),
        ]
        for port, route in ports
    ]
    with _running(commands) as pids:
        yield Servers(",".join(f"nats://{HOST}:{port}" for port, _ in ports), pids, built / "jetstream")


@contextmanager
def etcd(folder: Path) -> Iterator[Servers]:
    """The same of etcd, which always waits for the device."""
    built = build(folder, ETCD, "./etcd")
    ports = [(f"http://{HOST}:{free_port()}", f"http://{HOST}:{free_port()}") for _ in range(3)]
    members = ",".join(f"m{number}={peer}" for number, (_, peer) in enumerate(ports))
    commands = [
        [
            *(str(built / "server"), "--name", f"m{number}", "--data-dir", str(folder / f"etcd-{number}")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *(
                "--listen-peer-urls",
                peer,
                "--initial-advertise-peer-urls",
                peer,
                "--initial-cluster",
                members,
            ),
        ]
        for number, (client, peer) in enumerate(ports)
    ]
    with _running(commands) as pids:
        yield Servers(",".join(client for client, _ in ports), pids, built / "etcd")


@contextmanager
def _running(commands: Sequence[Sequence[str]]) -> Iterator[tuple[int, ...]]:
    with ExitStack() as stack:
        yield tuple(stack.enter_context(_process(command)).pid for command in commands)


@contextmanager
def _process(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
