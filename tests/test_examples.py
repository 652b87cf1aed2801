"""The programs of docs/examples do what they say, on real nodes that are killed."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

from insync.replication import Admin, Consumer, Node, NodeSettings, Producer
from insync.replication.client import ProducerFencedError
from tests.processes import NodeProcess, cluster

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


kv = example("kv")


async def create(servers: list[str], topic: str, partitions: int = 1) -> None:
    async with Admin(servers) as admin:
        await admin.create_topic(topic, partitions, 3)


async def leader_of(servers: list[str], topic: str) -> int:
    async with Admin(servers) as admin:
        (found,) = await admin.describe_topics([topic])
    return found.partitions[0].leader


class Watch:
    """One writes rising numbers through one copy, others read through theirs: no read may be behind."""

    def __init__(self) -> None:
        self.done = 0
        self.reads = 0
        self.stop = trio.Event()
        self._written = trio.Event()

    async def write(self, store: Any) -> None:
        while not self.stop.is_set():
            await store.put("x", self.done + 1)
            self.done += 1
            self._written.set()
            self._written = trio.Event()

    async def read(self, store: Any) -> None:
        while not self.stop.is_set():
            await trio.lowlevel.checkpoint()
            before = self.done
            found = await store.get("x")
            assert (found or 0) >= before, f"read {found} though {before} was written before"
            self.reads += 1

    async def add(self, store: Any, count: int) -> None:
        """Add one, so often, to what others add to, too."""
        for _ in range(count):
            while True:
                old = await store.get("sum")
                if await store.swap("sum", old, (old or 0) + 1):
                    break

    async def until(self, done: int) -> None:
        with trio.fail_after(60):
            while self.done < done:
                await self._written.wait()


@pytest.mark.slow
async def test_the_key_value_store_is_current_and_whole_through_a_failover(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        servers = [node.endpoint for node in nodes]
        await create(servers, kv.TOPIC)
        async with (
            kv.open_store(servers, "alice", tmp_path / "alice", snapshot_every=50) as alice,
            kv.open_store(servers, "bob", tmp_path / "bob", snapshot_every=70) as bob,
        ):
            watch = Watch()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch.write, alice)
                nursery.start_soon(watch.read, bob)
                nursery.start_soon(watch.add, alice, 30)
                nursery.start_soon(watch.add, bob, 30)
                await watch.until(100)
                killed = await leader_of(servers, kv.TOPIC)
                nodes[killed - 1].kill()
                await watch.until(watch.done + 100)
                nodes[killed - 1] = NodeProcess.start(killed, tmp_path)
                await watch.until(watch.done + 50)
                watch.stop.set()
            assert watch.reads > 20
            assert await alice.get("sum") == await bob.get("sum") == 60
            assert await alice.get("x") == await bob.get("x") == watch.done
            with trio.fail_after(10):
                await alice._come_to(bob.machine.applied - 1)
            assert alice.machine.snapshot() == bob.machine.snapshot()
            state = bob.machine.snapshot()
        # Both are made anew: one from its file, the other from nothing.
        (tmp_path / "bob").unlink()
        servers = [node.endpoint for node in nodes]
        async with (
            kv.open_store(servers, "carol", tmp_path / "alice") as carol,
            # So that nothing is written as it applies them all, however many barriers there were.
            kv.open_store(servers, "dave", tmp_path / "bob", snapshot_every=1_000_000) as dave,
        ):
            assert carol._written > 100 and dave._written == 0
            assert await carol.get("x") == await dave.get("x") == watch.done
            assert carol.machine.data == dave.machine.data == state["data"]


@pytest.mark.slow
async def test_a_command_that_is_repeated_is_done_once_and_the_former_writer_is_shut_out(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path) as nodes:
        servers = [node.endpoint for node in nodes]
        await create(servers, kv.TOPIC)
        async with (
            kv.open_store(servers, "alice", tmp_path / "one") as former,
            Producer(servers, value_serializer=lambda value: kv.json.dumps(value).encode()) as producer,
        ):
            assert await former.swap("x", None, 1)
            repeated = {
                "do": "swap",
                "writer": "alice",
                "token": former._token,
                "number": 1,
                "key": "x",
                "old": 1,
                "value": 99,
            }
            await (await producer.send(kv.TOPIC, repeated, partition=0)).wait()
            assert await former.get("x") == 1
            async with kv.open_store(servers, "alice", tmp_path / "two") as successor:
                await successor.put("x", 2)
                with pytest.raises(kv.FencedError, match="alice"):
                    await former.put("x", 3)
                assert await former.get("x") == await successor.get("x") == 2
                assert not await successor.delete("y") and await successor.delete("x")
                assert former.get_stale("x") == 2 or former.machine.applied == successor.machine.applied


delivery = example("delivery")


class Crash(Exception):
    """The process ends here, as far as the example can tell."""


class Handling:
    """Notes what is handled; crashes before or after the fifth record, once."""

    def __init__(self, crash: str) -> None:
        self.crash = crash
        self.handled: list[bytes] = []
        self.all = trio.Event()

    async def handle(self, record: Any) -> None:
        if self.crash == "before" and record.value == b"v4":
            self.crash = ""
            raise Crash
        self.handled.append(record.value)
        if self.crash == "after" and record.value == b"v4":
            self.crash = ""
            raise Crash
        if record.value == b"v9":
            self.all.set()


async def fill(servers: list[str], topic: str, values: list[bytes]) -> None:
    async with Producer(servers) as producer:
        await (await producer.send_many(topic, values, partition=0)).wait()


def crashed(group: BaseException) -> bool:
    return isinstance(group, Crash) or (
        isinstance(group, BaseExceptionGroup) and all(crashed(each) for each in group.exceptions)
    )


async def run_to_the_end(function: Any, servers: list[str], position: Path, handling: Handling) -> None:
    with trio.fail_after(30):
        while not handling.all.is_set():
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(function, servers, "in", position, handling.handle)
                    await handling.all.wait()
                    nursery.cancel_scope.cancel()
            except BaseException as error:
                if not crashed(error):
                    raise


VALUES = [b"v%d" % n for n in range(10)]


@pytest.mark.parametrize(
    ("how", "crash", "expected"),
    [
        ("at_most_once", "before", [*VALUES[:4], *VALUES[5:]]),
        ("at_most_once", "after", VALUES),
        ("at_least_once", "before", VALUES),
        ("at_least_once", "after", [*VALUES[:5], *VALUES[4:]]),
    ],
)
async def test_what_a_crash_skips_or_repeats(
    tmp_path: Path, how: str, crash: str, expected: list[bytes]
) -> None:
    store = f"memory://{tmp_path.name}-{how}-{crash}"
    settings = NodeSettings(node_id=1, data_dir=tmp_path, store=store, listeners=(f"mem://{store[9:]}/1",))
    async with Node(settings) as node:
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("in", 1, 1, {"min_insync_replicas": 1})
        await fill(node.endpoints, "in", VALUES)
        handling = Handling(crash)
        await run_to_the_end(getattr(delivery, how), node.endpoints, tmp_path / "position", handling)
        assert handling.handled == expected


COUNT = 4000


def start(name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(EXAMPLES / f"{name}.py"), *arguments])


LEAD = 500


async def killed_again_and_again(servers: list[str], arguments: list[str], ready: Any, kills: int) -> None:
    """Start the program, and kill it in the midst of its work, which never runs out; at last when all is done.

    It is given input up to `LEAD` records ahead of what it has done.
    """
    fed = 0
    async with Producer(servers) as producer:
        for number in range(kills + 1):
            process = start("delivery", arguments)
            try:
                with trio.fail_after(60):
                    done = 0
                    while done < (COUNT if number == kills else COUNT * (number + 1) // (kills + 2)):
                        assert process.poll() is None, "it ended by itself"
                        done = await ready()
                        more = [b"order %d" % n for n in range(fed, min(COUNT, done + LEAD))]
                        await (await producer.send_many("in", more, partition=0)).wait()
                        fed += len(more)
                        await trio.sleep(0 if more else 0.01)
            finally:
                process.kill()
                process.wait()


@pytest.mark.slow
async def test_a_database_has_each_result_once_however_often_its_writer_is_killed(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        servers = [node.endpoint for node in nodes]
        await create(servers, "in")
        database = tmp_path / "results.db"

        async def rows() -> int:
            with contextlib.suppress(sqlite3.OperationalError):
                return int(sqlite3.connect(database).execute("SELECT count(*) FROM results").fetchone()[0])
            return 0

        await killed_again_and_again(
            servers, ["exactly_once", ",".join(servers), "in", str(database)], rows, 2
        )
        found = (
            sqlite3.connect(database).execute("SELECT source, value FROM results ORDER BY rowid").fetchall()
        )
        assert found == [(n, b"ORDER %d" % n) for n in range(COUNT)]


@pytest.mark.slow
async def test_a_topic_has_each_result_once_however_often_its_writer_is_killed(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        servers = [node.endpoint for node in nodes]
        await create(servers, "in")
        await create(servers, "out")
        found: list[bytes] = []
        async with Consumer(servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([("out", 0)])

            async def read() -> int:
                found.extend(each.value for each in await consumer.poll(50) if each.value is not None)
                return len(found)

            arguments = ["exactly_once_to_topic", ",".join(servers), "in", "out"]
            async with Producer(servers, producer_name="in to out") as zombie:
                await (await zombie.send("out", None, partition=0)).wait()
                await killed_again_and_again(servers, arguments, read, 2)
                # It was taken for dead, and goes on with what its successors have written long ago.
                delivery_ = await zombie.send("out", b"ORDER 7", partition=0)
                with pytest.raises(ProducerFencedError):
                    await delivery_.wait()
            await read()
        assert found == [b"ORDER %d" % n for n in range(COUNT)]


@pytest.mark.slow
async def test_jobs_of_workers_that_are_killed_are_done_by_others(tmp_path: Path) -> None:
    queue = example("work_queue")
    jobs, results = [f"job {n}" for n in range(600)], tmp_path / "results.db"
    quick = [f"group_consumer_{name}" for name in ("session_timeout_ms=2000", "heartbeat_interval_ms=500")]
    options = [part for each in quick for part in ("--set", each)]
    workers: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        command = [sys.executable, str(EXAMPLES / "work_queue.py"), "work", server, str(results)]
        workers.append(subprocess.Popen(command))

    def done() -> list[str]:
        with contextlib.closing(sqlite3.connect(results, timeout=30)) as database:
            try:
                return [row[0] for row in database.execute("SELECT result FROM results")]
            except sqlite3.OperationalError:
                return []

    async def until(count: int) -> None:
        with trio.fail_after(60):
            while len(await trio.to_thread.run_sync(done)) < count:
                await trio.lowlevel.checkpoint()

    with cluster(tmp_path, 1, *options) as (node,):
        server = node.endpoint
        async with Admin(server) as admin:
            await admin.create_topic("jobs", 4, 1)
        try:
            start()
            start()
            for first in range(0, 600, 200):
                await queue.add(server, jobs[first : first + 200])
                await until(first + 50)
                workers.pop(0).kill()
                start()
            await until(600)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    assert sorted(done()) == sorted(job.upper() for job in jobs)


CLIENTS = (EXAMPLES.parent / "clients.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "order 0 at 0\norder 1 at 1\norder 2 at 2\n"), (1, "['order 0', 'order 1', 'order 2']\n")],
    ids=["asyncio", "threads"],
)
def test_the_programs_of_the_page_about_clients_run(tmp_path: Path, number: int, said: str) -> None:
    program = re.findall(r"```python\n(.*?)```", CLIENTS, flags=re.DOTALL)[number]
    (tmp_path / "service.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "service.py", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, said), done.stderr


def test_the_page_about_clients_names_what_admin_has() -> None:
    table = CLIENTS.partition("## Running a cluster")[2]
    named = set(re.findall(r"`([a-z_]+)`", table))
    methods = {name for name in dir(Admin) if not name.startswith("_")}
    assert named - {"Admin"} <= methods | {"list", "describe", "grow", "delete"}
    assert methods <= named


def test_what_the_pages_quote_stands_in_the_programs() -> None:
    page = (EXAMPLES.parent / "delivery-semantics.md").read_text()
    program = (EXAMPLES / "delivery.py").read_text()
    quoted = [line.strip() for line in page.splitlines() if line.startswith("    ")]
    assert len(quoted) > 5
    for line in quoted:
        assert line in program, line
