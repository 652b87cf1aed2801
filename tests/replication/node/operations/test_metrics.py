"""Metrics of real nodes by real scrapes: they say what has been done, and what the logs hold."""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from insync.replication import Admin, Node, Producer
from insync.replication.client import RecordTooLargeError
from insync.replication.core.control.records import PartitionRecord
from insync.replication.core.messages import Kind
from insync.replication.node import InvalidSettingError, NodeStartError, _node
from insync.replication.node._dialler import Dialler
from insync.replication.node.operations import http
from insync.replication.node.operations.counters import BUCKETS, Counters
from insync.replication.node.operations.inbound import Inbound
from insync.replication.node.service import Metric
from insync.replication.node.store import _store
from insync.transport import Buffer, Request

from ..test_cluster import consume, full_isr, produce, replicas_agree, settings, until
from .scraping import Scraped, converse, get, scrape

DOCS = Path(__file__).parents[4] / "docs" / "monitoring.md"


@pytest.fixture
def answered_to(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Bytes of batches in the answers to the fetches of each node."""
    found: Counter[int] = Counter()
    right = Request.reply

    def reply(self: Request, body: Buffer = b"", parts: Sequence[Any] = ()) -> None:
        if self.kind == Kind.FETCH and self.peer.node_id >= 0:
            found[self.peer.node_id] += sum(
                len(part) if isinstance(part, bytes) else part.length for part in parts
            )
        right(self, body, parts)

    monkeypatch.setattr(Request, "reply", reply)
    return found


async def test_what_was_produced_replicated_and_consumed_is_told(
    tmp_path: Path, answered_to: Counter[int]
) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, n, metrics_port=0))) for n in (1, 2)]
        servers = [node.endpoints[0] for node in nodes]
        async with Admin(servers) as admin:
            await admin.create_topic("t", 4, 2)
            await produce(servers, "t", [b"%d" % n for n in range(300)])
            assert len(await consume(servers, "t", 4, 300)) == 300
            await until(lambda: replicas_agree(admin, "t", 2))
            ends = {
                (report.node_id, replica.partition): (replica.log_end_offset, replica.size_bytes)
                for report in await admin.describe_replicas(["t"])
                for replica in report.replicas
            }
            leaders = {
                part.partition: part.leader for part in (await admin.describe_topics(["t"]))[0].partitions
            }
        told = [await scrape(node.metrics_address) for node in nodes]
        for (node, partition), (end, size) in ends.items():
            labels = {"topic": "t", "partition": str(partition)}
            assert told[node - 1].value("insync_log_end_offset", **labels) == end
            assert told[node - 1].value("insync_high_watermark", **labels) == end
            assert told[node - 1].value("insync_log_start_offset", **labels) == 0
            assert told[node - 1].value("insync_log_size_bytes", **labels) == size > 0
        assert sum(each.value("insync_messages_in_total", topic="t") for each in told) == 300
        bytes_led = [
            sum(
                size for (node, part), (_, size) in ends.items() if node == number and leaders[part] == number
            )
            for number in (1, 2)
        ]
        for number, each in enumerate(told):
            assert each.value("insync_bytes_in_total", topic="t") == bytes_led[number]
            # An answer may cross the next request, which has the follower ask again for what is in it.
            out = each.value("insync_replication_bytes_out_total")
            assert out == answered_to[2 - number] >= bytes_led[number]
            assert each.value("insync_replication_bytes_in_total") == bytes_led[1 - number]
            assert each.value("insync_bytes_out_total", topic="t") >= bytes_led[number]
            assert each.value("insync_partition_count") == 4
            assert each.value("insync_leader_count") == list(leaders.values()).count(number + 1)
            assert each.value("insync_alive_nodes") == 2
        assert sum(each.value("insync_active_controller") for each in told) == 1
        assert sum(each.value("insync_leader_elections_total") for each in told) == 4
        assert sum(each.value("insync_unclean_leader_elections_total") for each in told) == 0


async def test_elections_count_that_the_store_shows_before_it_says_that_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = _store.commit
    async with Node(settings(tmp_path, 1, metrics_port=0)) as node, Admin(node.endpoints) as admin:

        async def commit_and_read(store: Any, transaction: Any, session: Any) -> Any:
            outcome = await commit(store, transaction, session)

            async def shown() -> bool:
                known = node._driver.view.partitions
                elected = [
                    put.record.id for put in transaction.puts if isinstance(put.record, PartitionRecord)
                ]
                return all(partition in known for partition in elected)

            await until(shown)
            return outcome

        monkeypatch.setattr(_store, "commit", commit_and_read)
        await admin.create_topic("t", 3, 1)
        told = await scrape(node.metrics_address)
        assert told.value("insync_leader_elections_total") == 3


async def test_a_follower_that_leaves_and_comes_back_is_told(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1, metrics_port=0)) as one, Admin(one.endpoints) as admin:
        async with Node(settings(tmp_path, 2)):
            await admin.create_topic("t", 3, 2)
            await admin.create_topic("lax", 1, 2, config={"min_insync_replicas": 1})
            await until(lambda: full_isr(admin, "t", 2))

            async def leads() -> bool:
                return (await scrape(one.metrics_address)).value("insync_at_min_isr_partitions") >= 1

            await until(leads)
            sound = await scrape(one.metrics_address)
        for name in ("under_replicated", "under_min_isr", "offline"):
            assert sound.value(f"insync_{name}_partitions") == 0

        # That the other is gone is read at once; a replica leads only when its log has come to that.
        async def leads_all_alone() -> bool:
            told = await scrape(one.metrics_address)
            gone = told.value("insync_alive_nodes") == 1
            return gone and told.value("insync_under_replicated_partitions") == 4

        await until(leads_all_alone)
        lacking = await scrape(one.metrics_address)
        assert lacking.value("insync_under_min_isr_partitions") == 3
        assert lacking.value("insync_at_min_isr_partitions") == 1, "the lax one is happy with one"
        await _refused(one.endpoints)
        async with Node(settings(tmp_path, 2)):
            await until(lambda: full_isr(admin, "t", 2))
            await until(lambda: full_isr(admin, "lax", 2))

            # They may be seen in the store before it has told that they are stored.
            async def counted() -> bool:
                told = await scrape(one.metrics_address)
                return told.value("insync_isr_expands_total") >= sound.value("insync_isr_expands_total") + 4

            await until(counted)
            whole = await scrape(one.metrics_address)
        assert whole.value("insync_under_replicated_partitions") == 0
        assert whole.value("insync_isr_expands_total") - sound.value("insync_isr_expands_total") == 4
        assert whole.value("insync_failed_produce_requests_total", topic="t") > 0


async def _refused(servers: list[str]) -> None:
    async with Producer(servers, delivery_timeout_ms=3000, request_timeout_ms=1000) as producer:
        with pytest.raises(Exception, match=r"min_insync_replicas|delivery_timeout_ms"):
            await (await producer.send("t", b"x", partition=0)).wait()


async def test_a_partition_without_a_leader_is_told_by_the_controller_alone(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1, metrics_port=0)) as one, Admin(one.endpoints) as admin:
        async with Node(settings(tmp_path, 2)):
            await admin.create_topic("alone", 2, 1)
            await until(lambda: full_isr(admin, "alone", 1))

        async def told() -> bool:
            return (await scrape(one.metrics_address)).value("insync_offline_partitions") == 1

        await until(told)
        async with Node(settings(tmp_path, 2, metrics_port=0)) as two:
            assert (await scrape(two.metrics_address)).value("insync_active_controller") == 0
            assert (await scrape(two.metrics_address)).value("insync_offline_partitions") == 0


async def test_an_isr_that_a_leader_makes_smaller_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower that is alive but does not fetch leaves by time."""

    async def refuse(*_: object) -> None:
        raise OSError("cut off by the test")

    monkeypatch.setattr(Dialler, "connect", refuse)
    lax = {
        "replica_lag_time_max_ms": 700,
        "replica_fetch_wait_max_ms": 100,
        # At the end nobody can take over from node 2.
        "controlled_shutdown_timeout_ms": 100,
    }
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(Node(settings(tmp_path, 1, metrics_port=0, **lax)))
        await stack.enter_async_context(Node(settings(tmp_path, 2, **lax)))
        admin = await stack.enter_async_context(Admin(one.endpoints))
        await admin.create_topic("t", 2, 2, config={"min_insync_replicas": 1})
        async with Producer(one.endpoints) as producer:
            for partition in (0, 1):
                await (await producer.send("t", b"x", partition=partition)).wait()

        # What it has stored may be read before the store has told it so.
        async def shrunk() -> bool:
            told = await scrape(one.metrics_address)
            seen = told.value("insync_under_replicated_partitions") == 1
            return seen and told.value("insync_isr_shrinks_total") > 0

        await until(shrunk)
        told = await scrape(one.metrics_address)
        assert told.value("insync_leader_count") == 1, "the other one is led, and told of, by node 2"
        assert told.value("insync_isr_shrinks_total") == 1
        assert told.value("insync_isr_expands_total") == 0
        assert told.value("insync_replica_lag", topic="t", follower="2") == 1
        assert told.value("insync_replica_max_lag") == 1


async def test_requests_and_their_times_are_told_by_kind(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1, metrics_port=0)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 1, 1, config={"max_message_bytes": 2000})

        async def leads() -> bool:
            return (await scrape(node.metrics_address)).value("insync_leader_count") == 1

        await until(leads)  # a produce before that is answered, too, and sent again
        before = await scrape(node.metrics_address)
        began = trio.current_time()
        await produce(node.endpoints, "t", [b"a"])
        await produce(node.endpoints, "t", [b"b"])
        async with Producer(node.endpoints) as producer:
            with pytest.raises(RecordTooLargeError):
                await (await producer.send("t", b"x" * 3000)).wait()
        took = trio.current_time() - began
        after = await scrape(node.metrics_address)
    assert not [each for each in before.samples if each.labels.get("request") == "produce"]
    assert after.value("insync_request_seconds_count", request="produce") == 3
    assert after.value("insync_failed_produce_requests_total", topic="t") == 1
    assert after.value("insync_request_seconds_bucket", request="produce", le="+Inf") == 3
    counts = [after.value("insync_request_seconds_bucket", request="produce", le=str(le)) for le in BUCKETS]
    assert counts == sorted(counts) and counts[-1] == 3
    assert 0 < after.value("insync_request_seconds_sum", request="produce") < took
    # Asked again as long as the node is not the controller yet.
    assert after.value("insync_request_seconds_count", request="create_topic") >= 1
    assert after.value("insync_failed_requests_total", request="produce") == 0


def test_times_fall_into_the_bucket_that_ends_at_or_above_them() -> None:
    counters = Counters()
    for seconds in (0.0, BUCKETS[0], BUCKETS[0] + 1e-9, BUCKETS[-1], BUCKETS[-1] + 1):
        counters.answered(0, seconds)
    counts = counters.requests[0].counts
    assert (counts[0], counts[1], counts[-2], counts[-1]) == (2, 1, 1, 1)
    assert counters.as_dict()["requests_produce"] == 5


async def test_every_metric_has_a_help_and_stands_in_the_documentation(tmp_path: Path) -> None:
    page = DOCS.read_text()
    listeners = ("tcp://127.0.0.1:0", "kafka://127.0.0.1:0")
    async with Node(settings(tmp_path, 1, metrics_port=0, listeners=listeners)) as node:
        told = await scrape(node.metrics_address)
    ours = [name for name in told.types if name.startswith("insync_")]
    assert len(ours) > 30
    for name in ours:
        assert told.helps[name], name
        shown = f"{name}_total" if told.types[name] == "counter" else name
        assert f"`{shown}`" in page, f"{shown} is not in {DOCS.name}"
    for name in re.findall(r"`(insync_[a-z_]+)`", page):
        assert name.removesuffix("_total") in ours, f"{DOCS.name} names {name}, which there is not"


async def test_the_open_format_is_written_for_who_asks_for_it(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1, metrics_port=0)) as node:
        answered = await get(
            node.metrics_address, "/metrics", accept="application/openmetrics-text; version=1.0.0"
        )
    assert answered.headers["Content-Type"].startswith("application/openmetrics-text")
    assert answered.body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version=x",
        "text/plain; version=",
        "text/plain; version=1.x; escaping=no",
        ";;,=,;q=,",
        "\N{LATIN SMALL LETTER E WITH ACUTE}/x;version=1.\N{SUPERSCRIPT TWO}",
    ],
)
async def test_who_asks_for_a_format_that_is_none_gets_the_common_one(tmp_path: Path, accept: str) -> None:
    async with Node(settings(tmp_path, 1, metrics_port=0)) as node:
        head = f"GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n"
        answered = await converse(node.metrics_address, head.encode("latin-1"))
        assert answered.status == 200 and answered.headers["Content-Type"].startswith("text/plain")
        assert Scraped(answered.body.decode()).has("insync_alive_nodes")


async def test_an_answer_that_fails_ends_neither_the_node_nor_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a library that has a bad day")

    async with Node(settings(tmp_path, 1, metrics_port=0)) as node:
        monkeypatch.setattr(http, "render", fails)
        answered = await converse(node.metrics_address, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert answered.status == 500 and b"its log says why" in answered.body
        assert "a bad day" in caplog.text
        monkeypatch.undo()
        await scrape(node.metrics_address)


WRONG: list[Any] = [
    None,
    7,
    [None],
    [("insync_x",)],
    [("insync x", "gauge", "Blank.", (), {(): 1})],
    [(b"insync_x", "gauge", "Bytes.", (), {(): 1})],
    [("insync_x", "sum", "Kind.", (), {(): 1})],
    [("insync_x", "gauge", None, (), {(): 1})],
    [("insync_x", "gauge", "Label.", ("a-b",), {("a",): 1})],
    [("insync_x", "gauge", "Label.", (7,), {("a",): 1})],
    [("insync_x", "gauge", "No mapping.", (), 1)],
    [("insync_x", "gauge", "Too few.", ("a",), {(): 1})],
    [("insync_x", "gauge", "Number.", ("a",), {(1,): 1})],
    [("insync_x", "gauge", "No labels.", ("a",), {None: 1})],
    [("insync_x", "gauge", "No number.", (), {(): "many"})],
    [("insync_x", "gauge", "No number.", (), {(): None})],
    [("insync_x", "gauge", "No text.", ("a",), {("\ud800",): 1})],
    [("insync_x", "gauge", "No text: \ud800", (), {(): 1})],
    [("insync_x", "gauge", "Twice.", ("a", "a"), {("b", "c"): 1})],
]


@pytest.mark.slow
@pytest.mark.parametrize("told", WRONG, ids=repr)
async def test_metrics_of_a_gateway_that_are_none_harm_no_others(
    tmp_path: Path, told: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with Node(settings(tmp_path, 1, metrics_port=0)) as node:
        assert node._driver is not None
        right = Metric("insync_right", "gauge", "Of another.", ("a",), {("b",): 3})
        node._driver.gateway_metrics.update({0: lambda: told, 1: lambda: [right]})
        scraped = await scrape(node.metrics_address)
        assert scraped.value("insync_right", a="b") == 3 and scraped.has("insync_alive_nodes")
        assert not any("insync_x" in each.name for each in scraped.samples)
        assert "the metrics of a gateway failed" in caplog.text


async def test_nothing_is_served_unless_asked_for(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)) as node:
        assert node.metrics_address == ""


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [
        (b"GET /metrics?name=x HTTP/1.1\r\n\r\n", 200, b"# HELP"),
        (b"GET /health HTTP/1.0\n\n", 200, b"alive"),
        (b"GET / HTTP/1.1\r\n\r\n", 404, b"/metrics, /health and /ready"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405, b"use GET"),
        (b"\x00\x01garbage\r\n\r\n", 400, b"not an HTTP"),
        (b"GET /metrics\r\n\r\n", 400, b"not an HTTP"),
        (b"GET /metrics HTTP/1.1\r\nnonsense\r\n\r\n", 400, b"no colon"),
        (b"GET /metrics HTTP/1.1\r\n", 400, b"ends before"),
        (b"", 400, b"ends before"),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", 431, b"at most"),
    ],
)
async def test_what_is_no_request_is_refused_and_harms_nothing(
    tmp_path: Path, request_: bytes, status: int, said: bytes
) -> None:
    async with Node(settings(tmp_path, 1, metrics_port=0)) as node:
        answered = await converse(node.metrics_address, request_)
        assert answered.status == status and said in answered.body
        assert (await get(node.metrics_address, "/health")).status == 200


async def test_who_says_nothing_keeps_no_probe_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TIMEOUT", 3600.0)
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(Node(settings(tmp_path, 1, metrics_port=0)))
        host, _, port = node.metrics_address.rpartition(":")
        silent = [
            await stack.enter_async_context(await trio.open_tcp_stream(host, int(port)))
            for _ in range(http.MOST_CONNECTIONS)
        ]
        assert (await get(node.metrics_address, "/health")).status == 200
        ended: list[trio.SocketStream] = []

        async def wait(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
            assert await stream.receive_some(1) == b""
            ended.append(stream)
            scope.cancel()

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for each in silent:
                    nursery.start_soon(wait, each, nursery.cancel_scope)
        assert len(ended) == 1, "it made room"
        other = next(each for each in silent if each not in ended)
        await other.send_all(b"GET /health HTTP/1.1\r\n\r\n")
        with trio.fail_after(60):
            assert (await other.receive_some(100)).startswith(b"HTTP/1.1 200 "), "the others did not have to"


async def test_one_answer_is_made_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks again and again and does not wait takes neither the node's threads nor its event loop."""
    asked, most = 3 * http.MOST_CONNECTIONS, 0
    goes_on = threading.Event()

    def slowly(snapshot: object, accept: str) -> tuple[bytes, str]:
        assert goes_on.wait(60)
        return b"told", "text/plain"

    class Told:
        def snapshot(self) -> None:
            nonlocal most
            most = max(most, trio.to_thread.current_default_thread_limiter().borrowed_tokens)

    monkeypatch.setattr(http, "render", slowly)
    server = http.OperationsServer()
    server.begins(Told(), None)  # type: ignore[arg-type]  # all that is asked of them here
    with trio.fail_after(60):
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            host, _, port = (await nursery.start(server.serve, "127.0.0.1", 0)).rpartition(":")
            streams = []
            for _ in range(asked):
                streams.append(await trio.open_tcp_stream(host, int(port)))
                await stack.enter_async_context(streams[-1])
                await streams[-1].send_all(b"GET /metrics HTTP/1.1\r\n\r\n")
            # Those that came last are left; who does not wait for them sees less, but nothing else.
            await trio.testing.wait_all_tasks_blocked(0.05)
            goes_on.set()
            assert (b"".join([each async for each in streams[-1]])).endswith(b"told")
            nursery.cancel_scope.cancel()
    assert most == 0, "a snapshot was taken while one was being told"


async def test_head_says_how_long_the_body_would_be(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1, metrics_port=0)) as node:
        answered = await get(node.metrics_address, "/health", method="HEAD")
    assert (answered.status, answered.body) == (200, b"") and int(answered.headers["Content-Length"]) > 0


async def test_who_connects_and_says_nothing_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "TIMEOUT", 0.2)
    async with Node(settings(tmp_path, 1, metrics_port=0)) as node:
        host, _, port = node.metrics_address.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            with trio.fail_after(5):
                assert await stream.receive_some(1) == b""


async def test_what_cannot_be_served_is_said_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NodeStartError, match=rf"127\.0\.0\.1:{port}.*another metrics_port"):
            async with Node(settings(tmp_path, 1, metrics_port=port)):
                pytest.fail("the port is taken")
    monkeypatch.setattr(_node, "is_installed", lambda: False)
    with pytest.raises(NodeStartError, match=r"pip install 'insync\[metrics\]'"):
        async with Node(settings(tmp_path, 1, metrics_port=0)):
            pytest.fail("nobody could write the format")
    with pytest.raises(InvalidSettingError, match="metrics_port=70000"):
        settings(tmp_path, 1, metrics_port=70000)


def test_a_scrape_reads_what_was_written() -> None:
    scraped = Scraped('# TYPE a gauge\na{x="1",y="2"} 3\na{x="1",y="3"} 4\n')
    assert scraped.value("a", x="1") == 7 and scraped.value("a", y="2") == 3
    with pytest.raises(AssertionError):
        scraped.value("b")


def test_a_request_is_timed_from_its_arrival_and_not_from_when_it_is_looked_at() -> None:
    """Requests wait in the connection while the node is busy: their clients wait as well."""

    class Asked(Inbound):
        __slots__ = ()
        peer = None  # type: ignore[assignment]

        def on_cancel(self, callback: object) -> None: ...

        def _reply(self, message: object, parts: object) -> None: ...

        def _fail(self, code: int, detail: str) -> None: ...

        def _refuse(self, detail: str) -> None: ...

    for arrived, seconds in ((3.0, 7.0), (None, 0.0)):
        counters = Counters()
        asked = Asked(Kind.FETCH, None, b"", "a connection", counters, lambda: 10.0, arrived)
        asked.reply(b"")
        assert counters.requests[Kind.FETCH].total == seconds
