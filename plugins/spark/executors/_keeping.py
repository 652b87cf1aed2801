"""The driver's side of the keeper: starting it, hearing which nodes there are, starting it again."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO

import attrs
from msgspec import structs

from ....transport import URL, join_host_port, split_host_port
from ....transport.urls import bracketed
from ._messages import Config, Down, Report, Started, Stop, Told, Up, decode, encode
from .errors import KeeperError

_log = logging.getLogger("insync.spark")

_END_SECONDS = 30.0


@attrs.frozen
class Address:
    """Where the keeper listens, and by which name others reach it."""

    bind: str
    host: str

    def listening(self, port: int) -> str:
        """As a URL to listen on; port 0 takes a free one."""
        return f"tcp://{join_host_port(self.bind, port)}?contact={bracketed(self.host.strip('[]'))}"


class Keeper:
    """The keeper's process. `directory` and `store` are its URLs, `nodes` the nodes that serve, by slot.

    changed: called, in a thread of its own, when nodes come and go.

    Raises:
      KeeperError: It does not start.
    """

    def __init__(
        self,
        address: Address,
        changed: Callable[[], None],
        *,
        secret: str,
        folder: str,
        logs: tuple[str, ...],
        keep: bool,
    ) -> None:
        self.nodes: dict[int, Report] = {}
        self._address = address
        self._changed = changed
        self._closed = False
        self._lock = threading.Lock()
        listening = address.listening(0)
        self._config = Config(secret, listening, listening, folder, logs, keep)
        self._process, started = self._start()
        self.directory, self.store = started.directory, started.store

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop_node(self, slot: int, executor: str | None, *, keep: bool) -> None:
        """Have a node end: the one on that executor, or (None) wherever it is."""
        with contextlib.suppress(OSError):
            _send(self._process, encode(Stop(slot, executor, keep)))

    def revive(self) -> None:
        """Start it again if it has died; nodes find it where it was.

        Raises:
          KeeperError: It does not start.
        """
        with self._lock:
            if self._closed or self._process.poll() is None:
                return
            _log.warning("the keeper of executor logs has died and is started again")
            self._config = structs.replace(
                self._config,
                directory=self._address.listening(_port(self.directory)),
                store=self._address.listening(_port(self.store.partition("+")[2])),
            )
            self._process, _ = self._start()

    def close(self) -> None:
        """End it; it takes what is left of the run with it."""
        with self._lock:
            self._closed = True
        process = self._process
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> tuple[subprocess.Popen[bytes], Started]:
        process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}._keeper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A signal of the terminal is for the driver, which then ends this in order.
            start_new_session=True,
        )
        assert process.stdout is not None
        line = b""
        with contextlib.suppress(OSError):
            _send(process, encode(self._config))
            line = process.stdout.readline()
        if not line:
            process.kill()
            raise KeeperError(
                f"the keeper of executor logs does not start (status {process.wait()}); what it wrote to standard "
                f"error says why. It listens on {self._config.directory}: see spark.driver.host"
            )
        started: Told = decode(line, Told)  # type: ignore[arg-type]
        assert isinstance(started, Started)
        self.nodes.clear()
        threading.Thread(
            target=self._listen, args=(process.stdout,), name="insync-keeper", daemon=True
        ).start()
        return process, started

    def _listen(self, lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                told: Told = decode(line, Told)  # type: ignore[arg-type]
                match told:
                    case Up(node):
                        self.nodes[node.slot] = node
                    case Down(node) if self.nodes.get(node.slot) == node:
                        del self.nodes[node.slot]
                self._changed()


def _send(process: subprocess.Popen[bytes], message: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(message + b"\n")
    process.stdin.flush()


def _port(url: str) -> int:
    return split_host_port(URL.parse(url))[1]
