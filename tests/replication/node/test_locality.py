"""Nodes and clients of one machine find each other's nearest addresses by themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio

from insync.replication import Admin, Consumer, Node, NodeSettings, Producer, wire
from insync.replication.client.connection._links import Links
from insync.replication.core import messages as m
from insync.replication.core.broker import effects as fx
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import FetchRequest
from insync.replication.node import NodeStartError
from insync.replication.node._dialler import Dialler
from insync.storage import FileRange
from insync.storage.batch import build_batch
from insync.transport import Connection, Identity, RangePayload, RangeTruncated, RemoteError, connect

from ...plugins.tcp.certificates import Authority


def settings(folder: Path, node_id: int, **options: object) -> NodeSettings:
    store = f"sqlite://{folder}/meta.db"
    return NodeSettings(node_id=node_id, data_dir=folder / f"n{node_id}", store=store, **options)  # type: ignore[arg-type]


def tcp(endpoints: list[str]) -> list[str]:
    return [url for url in endpoints if url.startswith("tcp://")]


def addresses(links: Links) -> set[str]:
    """Of the connections by which a client works."""
    return {link.connection.url for link in links._links.values() if link.connection is not None}


def fetches_from(node: Node) -> set[str]:
    assert node._driver is not None
    return {connection.url for connection in node._driver.dialler.connections}


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - what the nodes do by themselves
            await trio.sleep(0.01)


async def write(servers: list[str]) -> set[str]:
    """One record that two replicas have; by which addresses it went."""
    async with Admin(servers) as admin:
        await admin.create_topic("t", partitions=1, replication_factor=2)
    async with Producer(servers) as producer:
        await (await producer.send("t", b"near", partition=0)).wait()
        return addresses(producer._cluster.links)


async def test_one_machine_speaks_by_shared_memory_without_being_told(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)) as one, Node(settings(tmp_path, 2)) as other:
        assert [url.partition(":")[0] for url in one.endpoints] == ["tcp", "shm"]
        used = await write(tcp(one.endpoints))
        assert used and all(url.startswith("shm://") for url in used), used
        await until(lambda: bool(fetches_from(one) | fetches_from(other)))
        followed = fetches_from(one) | fetches_from(other)
        assert all(url.startswith("shm://") for url in followed), followed


@pytest.mark.slow
async def test_more_is_asked_for_where_files_are_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[tuple[str, int]] = set()
    ask = Dialler.ask

    def recorded(self: Dialler, effect: fx.Ask) -> None:
        if isinstance(effect.message, FetchRequest):
            assert isinstance(effect.connection, Connection)
            scheme = effect.connection.url.partition(":")[0]
            asked.update((scheme, each.max_bytes) for each in effect.message.partitions)
        ask(self, effect)

    monkeypatch.setattr(Dialler, "ask", recorded)
    for number, scheme in enumerate(("shm://@", "unix://@", "tcp://127.0.0.1:0")):
        listeners = (scheme,)
        folder = tmp_path / str(number)
        folder.mkdir()
        async with (
            Node(settings(folder, 1, listeners=listeners)) as one,
            Node(settings(folder, 2, listeners=listeners)),
        ):
            await write(one.endpoints)
    assert asked == {("shm", 4 << 20), ("unix", 1 << 20), ("tcp", 1 << 20)}


async def test_every_pair_takes_what_both_have(tmp_path: Path) -> None:
    local = settings(tmp_path, 1, listeners=("tcp://127.0.0.1:0", "unix://@"))
    async with Node(local) as one, Node(settings(tmp_path, 2, listeners=("tcp://127.0.0.1:0",))) as other:
        await write(tcp(other.endpoints))
        await until(lambda: bool(fetches_from(one) | fetches_from(other)))
        assert fetches_from(one) <= set(other.endpoints)
        assert fetches_from(other) <= {url for url in one.endpoints if url.startswith("unix://")}


async def test_a_near_address_that_fails_is_passed_over_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with TemporaryDirectory() as folder:
        listeners = {n: ("tcp://127.0.0.1:0", f"shm://{folder}/{n}.sock") for n in (1, 2)}
        first = settings(tmp_path, 1, listeners=listeners[1])
        second = settings(tmp_path, 2, listeners=listeners[2])
        async with Node(first) as one, Node(second) as other:
            for node_id in listeners:
                # As in a container that does not share the folder: the machine is the same, the files are not.
                (Path(folder) / f"{node_id}.sock").unlink()
            used = await write(tcp(one.endpoints))
            assert used and all(url.startswith("tcp://") for url in used), used
            await until(lambda: bool(fetches_from(one) | fetches_from(other)))
            assert all(url.startswith("tcp://") for url in fetches_from(one) | fetches_from(other))
    told = [record.message for record in caplog.records if "nearer addresses fail" in record.message]
    assert told and all("No such file" in line and "tcp://" in line for line in told), caplog.text


def fail_at_first(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Ranges that were handed over cannot be read, once for each of these, the last first."""
    view, failures = RangePayload.view, [RangeTruncated("cut"), OSError(5, "Input/output error")]

    def view_or_fail(payload: RangePayload) -> memoryview:
        if failures:
            raise failures.pop()
        return view(payload)

    monkeypatch.setattr(RangePayload, "view", view_or_fail)
    return failures


async def test_a_consumer_whose_range_was_cut_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    values = [b"%d" % number * 1000 for number in range(300)]
    async with Node(settings(tmp_path, 1)) as node:
        servers = node.endpoints
        async with Admin(servers) as admin:
            await admin.create_topic("t", partitions=1, replication_factor=1)
        async with Producer(servers) as producer:
            await (await producer.send_many("t", values, partition=0)).wait()
        failures = fail_at_first(monkeypatch)
        found: list[bytes | None] = []
        with trio.fail_after(60):
            async with Consumer(servers, auto_offset_reset="earliest") as consumer:
                consumer.assign([("t", 0)])
                while len(found) < len(values):
                    found += [record.value for record in await consumer.poll(500)]
    assert found == values and not failures
    told = [
        record.message for record in caplog.records if "failed to read the fetched data" in record.message
    ]
    assert len(told) == 2 and "Input/output error" in told[0] and "cut" in told[1]


async def test_a_follower_whose_range_was_cut_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A leader that is deposed truncates what it has handed over; the follower's node goes on."""
    values = [b"%d" % number * 1000 for number in range(300)]
    async with Node(settings(tmp_path, 1)) as one, Admin(one.endpoints) as admin:

        async def isr() -> int:
            return len((await admin.describe_topics(["t"]))[0].partitions[0].isr)

        async with Node(settings(tmp_path, 2)):
            await admin.create_topic("t", assignments=[[1, 2]], config={"min_insync_replicas": 1})
        async with Producer(one.endpoints) as producer:
            await (await producer.send_many("t", values, partition=0)).wait()
        failures = fail_at_first(monkeypatch)
        async with Node(settings(tmp_path, 2)):
            with trio.fail_after(60):
                while failures or await isr() < 2:  # noqa: ASYNC110 - what the nodes do by themselves
                    await trio.sleep(0.01)
    told = [each for each in caplog.messages if "failed to read the payload" in each]
    assert told and "Input/output error" in told[0], caplog.messages


@pytest.mark.parametrize("limited", [False, True])
async def test_a_producer_that_cuts_what_it_hands_over_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limited: bool
) -> None:
    """Also if its quota has the request wait, so that no task of the connection reads it."""
    view, cut = RangePayload.view, False

    def fail_while_cut(payload: RangePayload) -> memoryview:
        if cut:
            raise RangeTruncated("cut")
        return view(payload)

    monkeypatch.setattr(RangePayload, "view", fail_while_cut)
    batch = build_batch([None] * 100, [bytes(1000)] * 100, timestamps_ms=1000)
    (tmp_path / "batch").write_bytes(batch)
    wanted = m.ProducePartition(topic="t", partition=0, size=len(batch))
    body = wire.encode(m.ProduceRequest(acks=1, timeout_ms=30_000, partitions=[wanted]))
    quota = {"quota_producer_default": 1 << 20} if limited else {}
    async with (
        Node(settings(tmp_path, 1, **quota)) as node,
        Admin(node.endpoints) as admin,
        trio.open_nursery() as nursery,
    ):
        await admin.create_topic("t", 1, 1)
        near = next(url for url in node.endpoints if url.startswith("shm://"))
        client = await connect(near, identity=Identity(), nursery=nursery, timeout=20)
        with (tmp_path / "batch").open("rb") as file:

            async def produce() -> m.ProduceResponse:
                with await client.request(
                    m.Kind.PRODUCE, body, [FileRange(file, 0, len(batch))], timeout=30
                ) as answer:
                    return wire.decode_response(m.Kind.PRODUCE, bytes(answer.body))

            count = 1
            while not (await produce()).throttle_time_ms and limited:
                count += 1
            cut = True
            for _ in range(3):
                with pytest.raises(RemoteError, match="failed to read the payload of the request: cut"):
                    await produce()
            cut = False
            (result,) = (await produce()).partitions
            assert (result.error, result.base_offset) == (ErrorCode.NONE, 100 * count)
        nursery.cancel_scope.cancel()


async def test_the_files_of_tls_are_settings(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def files(node_id: int) -> dict[str, str]:
        made = authority.files_for(Identity("kit", node_id))
        names = {"tls_certificate": made.certificate, "tls_key": made.key}
        return {**names, "tls_authorities": made.authorities}

    listeners = ("tls://127.0.0.1:0",)
    one = settings(tmp_path, 1, cluster_id="kit", listeners=listeners, **files(1))
    async with Node(one) as node, Admin(node.endpoints, **files(-1)) as admin:
        assert [report.node_id for report in await admin.describe_replicas()] == [1]
    with pytest.raises(NodeStartError, match="give tls_key and tls_authorities too"):
        async with Node(settings(tmp_path, 3, listeners=listeners, tls_certificate="c.pem")):
            pass
