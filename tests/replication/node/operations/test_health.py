"""Health: each check fails for its own reason and holds again, by HTTP and over the wire."""

from __future__ import annotations

import contextlib
import errno
import resource
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import trio

from insync.replication import Admin, Node, Producer
from insync.replication.client import RequestTimeoutError
from insync.replication.core.messages import HealthCheck
from insync.replication.metadata import Delete, Put, open_store
from insync.replication.node._dialler import Dialler
from insync.replication.node.store import _cluster_state

from ..conftest import Device
from ..logs.test_directories import settings as two_directories
from ..test_cluster import full_isr, produce, settings, settings_on_disk, until
from .scraping import get

CHECKS = ["session", "store", "controller", "log_directories", "logs", "maintenance", "min_isr", "in_sync"]


async def failing(node: Node) -> dict[str, str]:
    """The checks that do not hold, with what is wrong; the status says the same."""
    answered = await get(node.metrics_address, "/ready")
    told = answered.json()
    assert [each["name"] for each in told["checks"]] == CHECKS
    assert told["ready"] == (answered.status == 200) == all(each["ok"] for each in told["checks"])
    assert (await get(node.metrics_address, "/health")).status == 200
    return {each["name"]: each["detail"] for each in told["checks"] if not each["ok"]}


async def test_a_whole_cluster_is_ready_and_says_what_it_looked_at(tmp_path: Path) -> None:
    async with (
        Node(settings(tmp_path, 1, metrics_port=0)) as one,
        Node(settings(tmp_path, 2, metrics_port=0)) as two,
        Admin(one.endpoints) as admin,
    ):
        await admin.create_topic("t", 2, 2)
        for node in (one, two):

            async def ready(node: Node = node) -> bool:
                return not await failing(node)

            await until(ready)
        told = await admin.describe_nodes()
        assert [(each.node_id, each.ready, each.error) for each in told] == [(1, True, ""), (2, True, "")]
        assert told[0].checks[-1] == HealthCheck(name="in_sync", ok=True, detail="in 2 ISRs")
        assert [info.partitions for info in told[0].log_directories] == [2]


async def test_too_few_in_sync_is_the_leaders_trouble_and_being_out_of_sync_ones_own(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1, metrics_port=0)) as one, Admin(one.endpoints) as admin:
        async with Node(settings(tmp_path, 2)):
            await admin.create_topic("t", 7, 2)
            await until(lambda: full_isr(admin, "t", 2))

        async def leads_all() -> bool:
            return (await failing(one)).get("min_isr") == (
                "7 partitions led here under min_insync_replicas: t-0, t-1, t-2, t-3, t-4 and 2 more"
            )

        await until(leads_all)
        async with Node(settings(tmp_path, 2, metrics_port=0)) as two:
            await until(lambda: full_isr(admin, "t", 2))

            async def ready() -> bool:
                return not await failing(one) and not await failing(two)

            await until(ready)


async def test_a_replica_that_is_not_in_the_isr_makes_its_own_node_unready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Node(settings(tmp_path, 1, metrics_port=0)) as one, Admin(one.endpoints) as admin:
        async with Node(settings(tmp_path, 2)):
            await admin.create_topic("t", 1, 2, config={"min_insync_replicas": 1})
            await until(lambda: full_isr(admin, "t", 2))
        await produce(one.endpoints, "t", [b"x"])
        # One of two is enough for this topic.
        await until(lambda: _is_ready(one), 30)
        with monkeypatch.context() as patch:
            patch.setattr(Dialler, "connect", _refuse)
            async with Node(settings(tmp_path, 2, metrics_port=0)) as two:

                async def is_out() -> bool:
                    wrong = await failing(two)
                    return wrong == {"in_sync": "1 partition without this node in the ISR: t-0"}

                await until(is_out, 30)
        async with Node(settings(tmp_path, 2, metrics_port=0)) as two:
            await until(lambda: _is_ready(two), 30)


async def _refuse(*_: object) -> None:
    raise OSError("cut off by the test")


async def test_a_log_directory_that_fails_makes_a_node_unready_until_it_is_restarted(
    tmp_path: Path, device: Device
) -> None:
    async with Node(two_directories(tmp_path, 1, metrics_port=0)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 2, 1)
        await produce(node.endpoints, "t", [b"x"] * 40)
        bad = tmp_path / ("1-a" if (tmp_path / "1-a" / "t-0").exists() else "1-b")
        device.refuse(bad, errno.EIO)

        async def noticed() -> bool:
            return "log_directories" in await failing(node)

        async with trio.open_nursery() as producing:
            producing.start_soon(produce, node.endpoints, "t", [b"x"] * 40)
            await until(noticed)
            producing.cancel_scope.cancel()
        wrong = await failing(node)
        assert wrong["log_directories"].startswith(f"{bad} is offline:") and "Input/output" in str(wrong)
        assert "1 partition cannot be used here: t-0" in wrong["logs"]
        (told,) = await admin.describe_nodes()
        assert {info.path: bool(info.error) for info in told.log_directories} == {
            str(tmp_path / "1-a"): bad.name == "1-a",
            str(tmp_path / "1-b"): bad.name == "1-b",
        }
        device.heal()
    async with Node(two_directories(tmp_path, 1, metrics_port=0)) as node:
        assert "log_directories" not in await failing(node)


async def test_a_lost_session_and_a_controller_that_is_gone_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Node(settings(tmp_path, 1, metrics_port=0)) as node:
        await until(lambda: _is_ready(node))
        state: Any = node._driver.store  # type: ignore[union-attr]
        with monkeypatch.context() as patch:
            expired = trio.Event()
            expired.set()
            patch.setattr(state, "session", type("Session", (), {"expired": expired})())
            wrong = await failing(node)
            assert list(wrong) == ["session"] and "has expired" in wrong["session"]
        assert node._driver is not None
        with monkeypatch.context() as patch:
            patch.setattr(node._driver.broker.context, "view", type(node._driver.view)())
            wrong = await failing(node)
        assert "not registered" in wrong["session"] and "no controller" in wrong["controller"]
        assert await failing(node) == {}


async def _is_ready(node: Node) -> bool:
    return not await failing(node)


async def test_a_node_that_does_not_answer_is_reported_as_such(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)) as one, Admin(one.endpoints) as admin:
        async with Node(settings(tmp_path, 2)):

            async def both_known() -> bool:
                return len((await admin.describe_cluster()).nodes) == 2

            await until(both_known)
            right = admin._cluster.ask

            async def ask(
                kind: Any, request: Any, *, timeout: float, node_id: int | None = None, **more: Any
            ) -> Any:
                if node_id == 2:
                    await trio.sleep_forever()
                return await right(kind, request, timeout=timeout, node_id=node_id, **more)

            admin._cluster.ask = ask  # type: ignore[method-assign]
            told = await admin.describe_nodes(timeout_ms=5000)
        assert [each.error for each in told] == ["", "no answer within 5 s"]
        assert [each.ready for each in told] == [True, False]


async def test_a_store_that_takes_no_writes_is_told_and_stops_no_acknowledgement(tmp_path: Path) -> None:
    """As when a process stands still inside a commit: the lock is its own until it goes on."""
    options = {"proof_interval_ms": 50, "metrics_port": 0, "storage_stall_timeout_ms": 60_000}
    async with (
        Node(settings_on_disk(tmp_path, 1, **options)) as node,
        Node(settings_on_disk(tmp_path, 2, **options)),
        Admin(node.endpoints) as admin,
        Producer(node.endpoints) as producer,
    ):
        await admin.create_topic("t", 1, 2, config={"min_insync_replicas": 2})
        await until(lambda: full_isr(admin, "t", 2))
        # A producer that begins is given an id, which the store has to write down.
        await (await producer.send("t", b"before")).wait()
        with contextlib.closing(sqlite3.connect(tmp_path / "meta.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")

            async def told() -> bool:
                return "taken no write" in (await failing(node)).get("store", "")

            await until(told)
            with trio.fail_after(60):
                await (await producer.send("t", b"meanwhile")).wait()
            (mine,) = [each for each in await admin.describe_replicas() if each.node_id == 1]
            assert mine.store_age_ms > 150
            other.execute("ROLLBACK")

        async def well() -> bool:
            return "store" not in await failing(node)

        await until(well)


async def test_an_admin_request_that_the_store_holds_up_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller is asked, and a node that passes the request on."""
    monkeypatch.setattr(_cluster_state, "DOUBTFUL_TIMEOUT", 0.1)
    options = {"proof_interval_ms": 50, "metrics_port": 0, "storage_stall_timeout_ms": 60_000}
    async with (
        Node(settings_on_disk(tmp_path, 1, **options)) as one,
        Node(settings_on_disk(tmp_path, 2, **options)) as two,
        Admin(one.endpoints, request_timeout_ms=1000) as admin,
        Admin(two.endpoints, request_timeout_ms=1000) as other,
    ):
        await until(lambda: _is_ready(one))
        await until(lambda: _is_ready(two))
        with contextlib.closing(sqlite3.connect(tmp_path / "meta.db", isolation_level=None)) as lock:
            lock.execute("BEGIN IMMEDIATE")
            for node in (one, two):

                async def told(node: Node = node) -> bool:
                    return "taken no write" in (await failing(node)).get("store", "")

                await until(told)
            since = r"the metadata store has taken no write of this node for \d+ s"
            why = rf"node [12]: {since}.*; see `insync status` \("
            with pytest.raises(RequestTimeoutError, match=f"topic 't': not created.*{why}"):
                await admin.create_topic("t", 1, 1)
            with pytest.raises(RequestTimeoutError, match=f"limits of client_id etl: not done.*{why}"):
                await other.alter_quotas("client_id", "etl", {"producer_byte_rate": 1})
            lock.execute("ROLLBACK")
        await until(lambda: _is_ready(one))
        await admin.create_topic("u", 1, 1)


async def test_a_store_whose_device_fails_is_told_with_the_reason(tmp_path: Path) -> None:
    """The kernel refuses what would make the store's log longer."""
    async with Node(settings_on_disk(tmp_path, 1, proof_interval_ms=50, metrics_port=0)) as node:
        await until(lambda: _is_ready(node))
        writer = writer_of(tmp_path / "meta.db")
        limits = resource.prlimit(writer, resource.RLIMIT_FSIZE)
        size = (tmp_path / "meta.db-wal").stat().st_size
        resource.prlimit(writer, resource.RLIMIT_FSIZE, (size, limits[1]))

        async def told() -> bool:
            found = (await failing(node)).get("store", "")
            return "taken no write of this node for" in found and "refused to read or write" in found

        await until(told)
        resource.prlimit(writer, resource.RLIMIT_FSIZE, limits)
        await until(lambda: _is_ready(node))


def writer_of(store: Path) -> int:
    """The process that writes for the node in this one."""
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            if str(store).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return int(pid)
    raise AssertionError("no process writes for the node")


async def test_a_record_of_the_store_that_cannot_be_read_is_told_while_it_stands(tmp_path: Path) -> None:
    async with (
        Node(settings_on_disk(tmp_path, 1, metrics_port=0)) as node,
        open_store(f"sqlite://{tmp_path / 'meta.db'}") as store,
    ):
        await until(lambda: _is_ready(node))
        await store.commit([], [Put("/topics/t", b"{")])

        async def told() -> bool:
            found = (await failing(node)).get("store", "")
            return found.startswith("1 record in the metadata store cannot be read: /topics/t (")

        await until(told)
        await store.commit([], [Delete("/topics/t")])
        await until(lambda: _is_ready(node))
