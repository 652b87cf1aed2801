"""Quotas: nobody gets more than its rate, nothing is dropped, nothing overtakes, and others do not notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.replication import Admin, Consumer, Node, Producer, wire
from insync.replication.client import InvalidConfigError
from insync.replication.core import messages as m
from insync.replication.core.control.quotas import CONSUMER, PRODUCER, Entity
from insync.replication.core.control.records import QuotaRecord
from insync.replication.node._timers import Timers
from insync.replication.node.operations.counters import Counters
from insync.replication.node.operations.quotas import BURST, MOST_IDLE, Bucket, ClientQuotas
from insync.storage.batch import build_batch
from insync.transport import Identity, PeerIdentity, connect
from insync.transport.patience import StandstillWatch

from ..test_cluster import settings as node_settings
from ..test_cluster import until


class Request:
    """As much of an `Inbound` as quotas look at."""

    def __init__(self, name: str = "", node_id: int = -1) -> None:
        self.peer = PeerIdentity("c", node_id, 0, "client", "mtls" if name else "none", name)
        self.throttle_ms = 0
        self.released = False
        self.cancels: list[Callable[[], None]] = []
        self.payload: Any = self

    def on_cancel(self, callback: Callable[[], None]) -> None:
        self.cancels.append(callback)

    def release(self) -> None:
        self.released = True


class Bench:
    """Quotas on a clock of its own; remembers what was served, and when."""

    def __init__(self, **defaults: int) -> None:
        self.timers = Timers()
        self.counters = Counters()
        self.quotas = ClientQuotas(self.timers, self.counters, lambda: None, **defaults)  # type: ignore[arg-type]
        self.served: list[tuple[float, str, int]] = []

    def ask(self, client: str, size: int, request: Any = None, rate: Any = PRODUCER) -> Any:
        request = request or Request()

        def serve() -> None:
            self.quotas.take(rate, request, client, size)
            self.served.append((trio.current_time(), client, size))

        if not self.quotas.hold(rate, request, client, serve):
            serve()
        return request


def limits(*named: tuple[str, str, int]) -> dict[Entity, QuotaRecord]:
    return {
        Entity(kind, name): QuotaRecord(entity_type=kind, name=name, limits={PRODUCER: rate, CONSUMER: rate})
        for kind, name, rate in named
    }


@settings(max_examples=60, deadline=None)
@given(
    rate=st.integers(1, 1000),
    requests=st.lists(st.tuples(st.floats(0, 3), st.integers(0, 3000)), min_size=1, max_size=25),
)
def test_nobody_gets_more_than_rate_allows_and_everything_is_served_in_order(
    rate: int, requests: list[tuple[float, int]]
) -> None:
    """Between any two moments no more than rate * (time + burst), but for the one request that makes the debt."""

    async def play() -> list[tuple[float, str, int]]:
        async with trio.open_nursery() as nursery:
            bench = Bench(producer_default=rate)
            nursery.start_soon(bench.timers.run)
            for number, (pause, size) in enumerate(requests):
                await trio.sleep(pause)
                bench.ask("app", size, Numbered(number))
            await trio.sleep(1 + sum(size for _, size in requests) / rate)
            nursery.cancel_scope.cancel()
        assert [served[2] for served in bench.served] == [size for _, size in requests], "in order, none lost"
        return bench.served

    served = trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(served) == len(requests)
    for first in range(len(served)):
        for last in range(first, len(served)):
            window = served[last][0] - served[first][0]
            taken = sum(size for _, _, size in served[first:last])
            assert taken <= rate * (window + BURST) + 1e-6 * rate + 1e-6, (first, last)


class Numbered(Request):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


async def test_who_takes_too_much_is_told_for_how_long_to_pause(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bench = Bench(producer_default=100)
    first, second = bench.ask("app", 100), bench.ask("app", 250)
    assert (first.throttle_ms, second.throttle_ms) == (0, 2501)
    assert bench.counters.throttled_ms[PRODUCER] == 2501
    await trio.sleep(2.5)
    assert bench.ask("app", 0).throttle_ms == 0 and len(bench.served) == 3


async def test_other_clients_other_directions_and_nodes_do_not_notice(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    bench = Bench(producer_default=100)
    nursery.start_soon(bench.timers.run)
    bench.ask("greedy", 1000)
    for client, request, rate in (
        ("modest", Request(), PRODUCER),
        ("greedy", Request(), CONSUMER),
        ("greedy", Request(node_id=3), PRODUCER),
    ):
        before = len(bench.served)
        bench.ask(client, 50, request, rate)
        assert len(bench.served) == before + 1, (client, rate)
    bench.ask("greedy", 10)
    assert len(bench.served) == 4 and bench.quotas.held == 1
    await trio.sleep(9.1)
    assert len(bench.served) == 5 and bench.quotas.held == 0


async def test_a_user_by_certificate_is_limited_whatever_it_calls_itself(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bench = Bench()
    bench.quotas.change(limits(("user", "etl", 100)))
    assert bench.ask("one", 200, Request("etl")).throttle_ms == 1001
    bench.ask("another", 1, Request("etl"))
    assert bench.quotas.held == 1, "both are the same user"
    assert bench.ask("one", 1000, Request("")).throttle_ms == 0


async def test_a_limit_that_changes_lets_on_or_holds_back_at_once(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    bench = Bench()
    nursery.start_soon(bench.timers.run)
    bench.quotas.change(limits(("client_id", "app", 10)))
    bench.ask("app", 110)
    for _ in range(3):
        bench.ask("app", 1)
    assert bench.quotas.held == 3
    bench.quotas.change(limits(("client_id", "app", 1000)))
    assert bench.quotas.held == 3, "the debt of 10 s at the old rate stays one of 10 s"
    bench.quotas.change({})
    assert bench.quotas.held == 0 and len(bench.served) == 4
    assert bench.ask("app", 10**9).throttle_ms == 0


async def test_who_does_not_wait_any_more_is_let_go(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    bench = Bench(producer_default=100)
    nursery.start_soon(bench.timers.run)
    bench.ask("app", 300)
    leaving, staying = bench.ask("app", 10), bench.ask("app", 20)
    for cancel in leaving.cancels:
        cancel()
    assert leaving.released and not staying.released and bench.quotas.held == 1
    await trio.sleep(60)
    assert [size for _, _, size in bench.served] == [300, 20]


async def test_names_cost_a_client_nothing_so_idle_ones_are_forgotten(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bench = Bench(producer_default=100)
    for number in range(3 * MOST_IDLE):
        bench.ask(f"app-{number}", 1)
        await trio.sleep(0.1)
    assert len(bench.quotas._clients) <= MOST_IDLE


async def test_names_with_debts_cost_others_nothing(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new name for each request: no idle one can be forgotten, and they are not looked at each time."""
    looked = 0
    fill = Bucket.fill

    def counted(self: Bucket, now: float) -> None:
        nonlocal looked
        looked += 1
        fill(self, now)

    monkeypatch.setattr(Bucket, "fill", counted)
    bench, names = Bench(producer_default=100), 8 * MOST_IDLE
    for number in range(names):
        bench.ask(f"app-{number}", 1_000_000)
    assert len(bench.quotas._clients) == names
    assert looked < 20 * names
    await trio.sleep(20_000)
    for number in range(names + 1):
        bench.ask(f"other-{number}", 0)
    assert len(bench.quotas._clients) <= 2 * MOST_IDLE, "those without debts are forgotten again"


def test_what_is_not_taken_is_saved_up_for_one_second() -> None:
    bucket = Bucket.full(100, 0.0)
    assert bucket.take(100, 50.0) == 0
    assert bucket.take(100, 50.5) == pytest.approx(0.5)
    assert bucket.pause(51.0) == 0


async def test_a_producer_is_slowed_to_its_rate_and_another_is_not(tmp_path: Path) -> None:
    rate = 40_000
    async with Node(node_settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 1, 1)
        assert await admin.alter_quotas("client_id", "greedy", {"producer_byte_rate": rate}) == {
            "producer_byte_rate": rate
        }
        assert [(each.name, each.limits) for each in await admin.describe_quotas()] == [
            ("greedy", {"producer_byte_rate": rate})
        ]

        async def produce(client_id: str) -> float:
            start = trio.current_time()
            async with Producer(
                node.endpoints, client_id=client_id, linger_ms=0, max_request_size=10_000
            ) as producer:
                for delivery in [await producer.send("t", b"x" * 9_000) for _ in range(12)]:
                    await delivery.wait()
            return trio.current_time() - start

        with StandstillWatch() as standstills:
            took = await produce("greedy")
        assert took >= 12 * 9000 / rate - BURST - 0.3
        assert node._driver is not None
        throttled = node._driver.counters.throttled_ms[PRODUCER]
        assert throttled > 500 - 1000 * standstills.seconds, "who stood still has that much less to wait"
        assert node._driver.quotas.held == 0, "our client pauses by itself"
        await produce("modest")
        assert node._driver.counters.throttled_ms[PRODUCER] == throttled, "others do not notice"
        await admin.alter_quotas("client_id", "greedy", remove=["producer_byte_rate"])
        assert await admin.describe_quotas() == []
        await produce("greedy")
        assert node._driver.counters.throttled_ms[PRODUCER] == throttled, "the limit is gone"
        with pytest.raises(InvalidConfigError, match="1 byte a second"):
            await admin.alter_quotas("client_id", "greedy", {"producer_byte_rate": 0})


async def test_a_consumer_is_slowed_to_its_rate(tmp_path: Path) -> None:
    rate = 40_000
    async with Node(node_settings(tmp_path, 1, quota_consumer_default=rate)) as node:
        async with (
            Admin(node.endpoints) as admin,
            Producer(node.endpoints, max_request_size=10_000) as producer,
        ):
            await admin.create_topic("t", 1, 1)
            for delivery in [await producer.send("t", b"x" * 9_000) for _ in range(12)]:
                await delivery.wait()
        start, found = trio.current_time(), 0
        with StandstillWatch() as standstills:
            async with Consumer(
                node.endpoints, auto_offset_reset="earliest", max_partition_fetch_bytes=10_000
            ) as consumer:
                consumer.assign([("t", 0)])
                while found < 12:
                    found += len(await consumer.poll(timeout_ms=200))
        assert trio.current_time() - start >= 12 * 9000 / rate - BURST - 0.3
        assert node._driver is not None
        assert node._driver.counters.throttled_ms[CONSUMER] > 500 - 1000 * standstills.seconds


async def produce_one(servers: list[str]) -> None:
    """The log is open once a record is in it."""
    async with Producer(servers) as producer:
        await (await producer.send("t", b"first")).wait()


async def test_a_client_that_does_not_pause_is_held_up_and_loses_nothing(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """Requests that come in spite of the pause wait on the node, in order; other kinds pass."""
    async with Node(node_settings(tmp_path, 1, quota_producer_default=20_000)) as node:
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", 1, 1)
        await produce_one(node.endpoints)
        connection = await connect(
            node.endpoints[0], identity=Identity(), lane="data", nursery=nursery, timeout=5
        )
        answered: list[m.ProduceResult] = []
        throttled: list[int] = []

        done = trio.Event()

        def answer(outcome: Any) -> None:
            with outcome:
                told: m.ProduceResponse = wire.decode_response(m.Kind.PRODUCE, outcome.body)
            answered.extend(told.partitions)
            throttled.append(told.throttle_time_ms)
            if len(answered) == 8:
                done.set()

        start = trio.current_time()
        for number in range(8):
            batch = build_batch([None], [b"%d" % number * 10_000], timestamps_ms=0)
            wanted = m.ProducePartition(topic="t", partition=0, size=len(batch))
            body = wire.encode(
                m.ProduceRequest(acks=1, timeout_ms=30_000, partitions=[wanted], client_id="rude")
            )
            connection.request_nowait(m.Kind.PRODUCE, body, [batch], timeout=60, on_done=answer)

        async def holds() -> bool:
            assert node._driver is not None
            return node._driver.quotas.held > 0

        await until(holds)
        with trio.fail_after(60):
            body = wire.encode(m.MetadataRequest())
            (await connection.request(m.Kind.METADATA, body, timeout=10)).release()
            assert not done.is_set(), "other kinds pass"
            await done.wait()
        assert [result.error for result in answered] == [0] * 8
        assert [result.base_offset for result in answered] == list(range(1, 9)), (
            "none was lost, none overtook"
        )
        assert any(throttled)
        assert trio.current_time() - start >= 8 * 10_000 / 20_000 - BURST - 0.6
        connection.abort("done")
