"""Strangers at the door of a real node: what they replay, leave half done or send too much of harms nobody else."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from insync.replication import Admin, Node, NodeSettings, Producer, wire
from insync.replication.core import messages as m
from insync.replication.node import _node
from insync.transport import URL, Identity, ReceiveBudget, Security, connect
from insync.transport.kit._frame import until
from tests.plugins.tcp.certificates import Authority

SECRET = b"a secret of sixteen bytes or more"
HALF_OPEN = 64
"""Links that a listener keeps while they shake hands."""


@asynccontextmanager
async def node_with(folder: Path, **options: object) -> AsyncIterator[Node]:
    settings = {"node_id": 1, "data_dir": folder / "n", "store": f"sqlite://{folder}/m.db", **options}
    async with Node(NodeSettings(**settings)) as node:  # type: ignore[arg-type]
        yield node


def raw(url: str) -> socket.socket:
    """A bare socket to an address of a node."""
    place = URL.parse(url)
    if place.scheme in ("tcp", "tls"):
        host, _, port = place.authority.rpartition(":")
        return socket.create_connection((host, int(port)))
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stranger.connect("\0" + place.authority[1:] if place.authority else place.path)
    return stranger


def has_ended(stranger: socket.socket) -> bool:
    """Whether the other end has hung up."""
    try:
        while stranger.recv(4096, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.fixture
def recorded(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What the transport logs."""
    caplog.set_level(logging.WARNING, "insync.transport")
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("insync.transport")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


class Recorder:
    """A wire in the middle that writes down what the dialer says."""

    def __init__(self, port: int) -> None:
        self.said = bytearray()
        self._port = port

    async def carry(self, near: trio.SocketStream) -> None:
        async with (
            near,
            await trio.open_tcp_stream("127.0.0.1", self._port) as far,
            trio.open_nursery() as tasks,
        ):
            tasks.start_soon(self._pump, far, near, bytearray())
            await self._pump(near, far, self.said)
            tasks.cancel_scope.cancel()

    @staticmethod
    async def _pump(source: trio.SocketStream, sink: trio.SocketStream, written: bytearray) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in source:
                written += data
                await sink.send_all(data)


async def test_a_replayed_proof_opens_nothing(tmp_path: Path, recorded: list[str]) -> None:
    """All that a client said, its proof and its request included, said again by somebody who listened."""
    (tmp_path / "secret").write_bytes(SECRET)
    async with (
        node_with(tmp_path, secret_file=tmp_path / "secret", listeners=("tcp://127.0.0.1:0",)) as node,
        trio.open_nursery() as nursery,
    ):
        port = int(node.endpoints[0].rpartition(":")[2])
        recorder = Recorder(port)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, recorder.carry, listeners)
        middle = f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        security = Security(secret=SECRET)
        connection = await connect(middle, identity=Identity(), nursery=nursery, security=security)
        before = bytes(recorder.said)
        connection.abort("all of the handshake was overheard")
        assert len(before) > 100 and SECRET not in before
        async with await trio.open_tcp_stream("127.0.0.1", port) as stranger:
            await stranger.send_all(before)
            heard = bytearray()
            with trio.fail_after(30), contextlib.suppress(trio.BrokenResourceError):
                async for data in stranger:
                    heard += data
        assert b"secrets differ" in heard
        await until(lambda: bool(recorded), "it is logged", timeout=30)
        assert ["secrets differ" in line for line in recorded] == [True]
        async with Admin(node.endpoints, secret_file=tmp_path / "secret") as admin:
            await admin.create_topic("t", partitions=1, replication_factor=1)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("scheme", ["tcp", "tls", "unix", "shm"])
async def test_a_hundred_half_open_handshakes_keep_nobody_out(
    tmp_path: Path, scheme: str, recorded: list[str]
) -> None:
    listen = f"{scheme}://@" if scheme in ("unix", "shm") else f"{scheme}://127.0.0.1:0"
    options: dict[str, object] = {}
    client: dict[str, str] = {}
    if scheme == "tls":
        authority = Authority(tmp_path)
        for into, who in ((options, "1"), (client, "client")):
            files = authority.files(f"isr://c/{who}")
            names = (
                ("tls_certificate", files.certificate),
                ("tls_key", files.key),
                ("tls_authorities", files.authorities),
            )
            into.update(names)
        options["cluster_id"] = "c"
    async with node_with(tmp_path, listeners=(listen,), **options) as node:
        strangers = [raw(node.endpoints[0]) for _ in range(100)]
        try:
            async with Admin(node.endpoints, **client) as admin:
                await admin.create_topic("t", partitions=1, replication_factor=1)
            async with Producer(node.endpoints, **client) as producer:
                await (await producer.send("t", b"served all the same")).wait()
            oldest = strangers[: 100 - HALF_OPEN]
            await until(lambda: all(map(has_ended, oldest)), "the oldest make room", timeout=30)
            # The oldest made room; of the others some may have had their time meanwhile, the oldest again. The
            # check begins with the newest: what ends during it is older than what was found to have ended.
            ended = [has_ended(each) for each in reversed(strangers)]
            assert ended == sorted(ended)
        finally:
            for stranger in strangers:
                stranger.close()
    told = [line for line in recorded if "makes room" in line]
    assert told, recorded
    assert len(told) < 100 - HALF_OPEN, "what repeats is counted"


async def test_the_payloads_of_all_connections_keep_to_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two producers send far more than the node may hold, and all of it arrives."""
    most = largest = 0
    size, limit = 300_000, 700_000

    class Watched(ReceiveBudget):
        def reserve(self, who: object, nbytes: int) -> bool:
            nonlocal most, largest
            reserved = super().reserve(who, nbytes)  # type: ignore[arg-type]
            most, largest = max(most, self.used), max(largest, nbytes)
            return reserved

    monkeypatch.setattr(_node, "ReceiveBudget", Watched)
    async with node_with(tmp_path, queued_max_request_bytes=limit, listeners=("tcp://127.0.0.1:0",)) as node:
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", partitions=8, replication_factor=1)
        async with (
            Producer(node.endpoints, linger_ms=0) as one,
            Producer(node.endpoints, linger_ms=0) as other,
        ):
            sent = [
                await producer.send("t", bytes(size), partition=number % 8)
                for number in range(32)
                for producer in (one, other)
            ]
            for delivery in sent:
                await delivery.wait()
    # One payload of any size goes while nothing else is held.
    assert size <= most <= max(limit, largest), f"{most} bytes were held at a time"


async def test_topics_that_nobody_made_leave_nothing_behind(tmp_path: Path) -> None:
    """A client may name any number of them: nothing is kept of each."""
    async with (
        node_with(tmp_path, listeners=("tcp://127.0.0.1:0",)) as node,
        Admin(node.endpoints) as admin,
        trio.open_nursery() as nursery,
    ):
        await admin.create_topic("there", 1, replication_factor=1)
        link = await connect(node.endpoints[0], identity=Identity(), nursery=nursery)
        names = [f"no-{number}" for number in range(400)]
        fetched = m.FetchRequest(
            replica_id=-1,
            incarnation=0,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1,
            partitions=[
                m.FetchPartition(topic=each, partition=0, fetch_offset=0, max_bytes=1, leader_epoch=-1)
                for each in (*names, "there")
            ],
        )
        produced = m.ProduceRequest(
            acks=1,
            timeout_ms=0,
            partitions=[m.ProducePartition(topic=each, partition=0, size=0) for each in names],
        )
        for kind, request in ((m.Kind.FETCH, fetched), (m.Kind.PRODUCE, produced)):
            with await link.request(kind, wire.encode(request), timeout=60) as answer:
                assert len(wire.decode_response(kind, answer.body).partitions) >= len(names)
        assert node._driver is not None
        counters = node._driver.counters
        assert counters.failed_fetches == counters.failed_produces == {"": len(names)}
        assert not counters.bytes_out
        nursery.cancel_scope.cancel()
