"""A real PostgreSQL server, run by an ordinary user, and its standby; ended by process id."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import psutil
import psycopg

from tests.requires import missing

ORDINARY_USER = "nobody"
"""Whose the server is when the tests run as root, which PostgreSQL refuses."""
_START_SECONDS = 60
_HBA = """local all all trust
host all locked all scram-sha-256
host all all all trust
host replication all all trust
"""
_SETTINGS = """listen_addresses = '{address}'
port = {port}
unix_socket_directories = ''
max_connections = 200
shared_buffers = 16MB
max_wal_size = 64MB
wal_level = replica
wal_keep_size = 64MB
lc_messages = 'C'
"""


def program(name: str) -> Path | None:
    """A program of the newest installed server."""
    on_path = shutil.which(name)
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    return places[-1] if places else Path(on_path) if on_path else None


def required() -> None:
    """End the test as not run unless a server can be started here."""
    for name in ("initdb", "postgres", "pg_basebackup"):
        if program(name) is None:
            missing(f"no {name} (Debian's package postgresql)")


def as_ordinary_user() -> dict[str, Any]:
    """Arguments of `subprocess` for a program that refuses root."""
    return {"user": ORDINARY_USER, "extra_groups": ()} if os.geteuid() == 0 else {}


def run(name: str, *arguments: str) -> None:
    found = program(name)
    assert found is not None, "`required` has looked"
    done = subprocess.run(
        [found, *arguments], capture_output=True, text=True, check=False, cwd="/", **as_ordinary_user()
    )
    assert done.returncode == 0, done.stdout + done.stderr


@attrs.define(eq=False)
class PostgresqlServer:
    """One server with a folder of its own; it keeps its port and its data over a restart."""

    folder: Path
    address: str
    port: int
    keeper: socket.socket
    """Bound to the port, so that nobody else is given it before the server listens there, or while it is down."""
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def make(
        cls, address: str = "127.0.0.1", *, standby_of: PostgresqlServer | None = None
    ) -> PostgresqlServer:
        # Not where the tests have theirs, which nobody else may enter.
        folder = Path(tempfile.mkdtemp(prefix="insync-pg-"))
        if os.geteuid() == 0:
            shutil.chown(folder, ORDINARY_USER)
        keeper = socket.socket()
        # As the server does, which may listen then.
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind((address, 0))
        server = cls(folder, address, keeper.getsockname()[1], keeper)
        try:
            server._fill(standby_of)
        except BaseException:
            server.remove()
            raise
        return server

    def _fill(self, primary: PostgresqlServer | None) -> None:
        if primary is None:
            run(
                "initdb",
                "-D",
                str(self.data),
                "-U",
                "postgres",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--locale=C",
                "-N",
            )
        else:
            run(
                "pg_basebackup",
                *("-D", str(self.data), "-R", "--no-sync", "-c", "fast"),
                *("-d", f"host={primary.address} port={primary.port} user=postgres application_name=standby"),
            )
        (self.data / "pg_hba.conf").write_text(_HBA)
        settings = _SETTINGS.format(address=self.address, port=self.port)
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(settings)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def host(self) -> str:
        return f"{self.address}:{self.port}"

    def url(self, namespace: str, *, user: str = "postgres", database: str = "postgres") -> str:
        return f"postgresql://{user}@{self.host}/{database}?namespace={namespace}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        found = program("postgres")
        assert found is not None, "`required` has looked"
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [found, "-D", str(self.data)], stdout=log, stderr=log, cwd="/", **as_ordinary_user()
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError((self.folder / "server.log").read_text()[-4000:])

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def connect(self, database: str = "postgres", **more: Any) -> psycopg.Connection:
        return psycopg.connect(
            host=self.address, port=self.port, user="postgres", dbname=database, autocommit=True, **more
        )

    def execute(self, *statements: str, database: str = "postgres") -> list[Any]:
        """The rows of the last statement."""
        with self.connect(database) as connection:
            for statement in statements:
                done = connection.execute(statement)  # type: ignore[call-overload]
            rows: list[Any] = done.fetchall() if done.description else []
            return rows

    def set(self, name: str, value: str) -> None:
        """A setting of the running server."""
        self.execute(f"ALTER SYSTEM SET {name} = {value}", "SELECT pg_reload_conf()")

    def _processes(self) -> list[psutil.Process]:
        """The server, and the processes that it has started."""
        assert self.process is not None
        server = psutil.Process(self.process.pid)
        return [server, *server.children()]

    def pause(self) -> None:
        """It starts no more processes, then all that there are stand still."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        for each in self._processes():
            each.suspend()

    def go_on(self) -> None:
        for each in self._processes():
            each.resume()

    def kill(self) -> None:
        """As a crash does it."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)
            server, *others = self._processes()
            for each in (*others, server):
                each.kill()
            self.process.wait()
            self.process = None
            psutil.wait_procs(others, 30)

    def remove(self) -> None:
        """End it, and delete its folder."""
        if self.process is not None:
            with suppress(psutil.NoSuchProcess):
                self.go_on()
            self.process.send_signal(signal.SIGQUIT)  # at once, and with its shared memory given back
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        self.keeper.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def postgresql(*, standby_of: PostgresqlServer | None = None) -> Iterator[PostgresqlServer]:
    """A running server, ended when the block is left, however it is left."""
    required()
    server = PostgresqlServer.make(standby_of=standby_of)
    try:
        server.start()
        yield server
    finally:
        server.remove()
