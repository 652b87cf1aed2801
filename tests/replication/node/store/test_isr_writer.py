"""ISR changes go into the store together, and each comes out as it would have alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from msgspec import structs

from insync.replication import wire
from insync.replication.core.broker.membership.proposing import MOST_TOGETHER, REFUSED_PAUSE
from insync.replication.core.control import records as rec
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.types import PartitionId
from insync.replication.metadata import (
    Compare,
    Conflict,
    MemoryHub,
    MetadataStore,
    Operation,
    Outcome,
    Put,
    StoreUnavailableError,
    Unknown,
)
from insync.replication.node.driver import Driver
from insync.replication.node.store._isr_writer import IsrWriter

from ..test_parts import replicas

RECORD = rec.PartitionRecord(
    topic="t", partition=0, topic_id="id", replicas=(1, 2), isr=(1,), leader=1, min_insync_replicas=1
)


class Counting:
    """A store that counts transactions, and lets some of them end otherwise."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.commits: list[int] = []
        self.instead: list[Outcome | Exception] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, session: Any = None
    ) -> Outcome:
        self.commits.append(len(operations))
        if self.instead:
            answer = self.instead.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        return await self._store.commit(compares, operations, session=session)


@attrs.define(eq=False)
class Host:
    """A replica that remembers what it is told."""

    partition: PartitionId
    told: list[Any] = attrs.Factory(list)
    wants_tick: bool = False

    def step(self, event: Any, now: float) -> list[fx.Effect]:
        self.told.append(event)
        return []


@attrs.define
class Bench:
    """The machine's part and the node's, over a store."""

    store: Counting
    writer: IsrWriter
    node: Driver
    session: Any
    hosts: dict[int, Host] = attrs.Factory(dict)

    def propose(self, number: int, isr: tuple[int, ...] = (1, 2), **more: Any) -> Host:
        host = self.hosts.setdefault(number, Host(PartitionId("t", number)))
        record = structs.replace(RECORD, partition=number, isr=isr, partition_epoch=1, **more)
        joining = ((2, 1),) if 2 in isr else ()
        proposal = fx.ProposeIsr(
            proposal_id=100 + number, record=record, version=1, joining=joining, reason="a test"
        )
        self.give(host, proposal)
        return host

    def give(self, host: Host, proposal: fx.ProposeIsr) -> None:
        """What a replica proposes; it goes with what else is proposed in this turn."""
        self.node.broker.context.replicas[host.partition] = host  # type: ignore[assignment]
        self.node.broker.proposing.propose(host.partition, proposal)

    async def settled(self) -> None:
        """The turn ends, and all that follows of it has happened."""
        self.node.settle()
        await trio.testing.wait_all_tasks_blocked()

    async def isr(self, number: int) -> tuple[int, ...]:
        entry = (await self.store.get(rec.partition_key(PartitionId("t", number)))).entry
        return wire.decode_record(rec.PartitionRecord, entry.value).isr


class _Store:
    """What the node's side of the store does about ISR changes."""

    def __init__(self, writer: IsrWriter) -> None:
        self.read_keys, self.write_isrs, self.isr_settled = writer.read, writer.write, writer.settled


@asynccontextmanager
async def bench(folder: Path, count: int) -> AsyncIterator[Bench]:
    """`count` partitions that node 1 leads, and node 2 is alive."""
    async with MemoryHub().store() as inner, trio.open_nursery() as nursery:
        store = Counting(inner)
        session = await inner.open_session(1000)
        record = rec.NodeRecord(node_id=2, incarnation=1, endpoints=())
        puts = [
            Put(
                rec.partition_key(PartitionId("t", n)),
                wire.encode_record(structs.replace(RECORD, partition=n)),
            )
            for n in range(count)
        ]
        await inner.commit([], [*puts, Put(rec.node_key(2), wire.encode_record(record))])
        node = replicas(folder, nursery)
        writer = IsrWriter(store, node, lambda: session, nursery.start_soon)  # type: ignore[arg-type]
        node.store = _Store(writer)  # type: ignore[assignment]
        nursery.start_soon(node.tick_broker)
        yield Bench(store, writer, node, session)
        nursery.cancel_scope.cancel()


async def test_what_is_proposed_at_a_time_is_one_transaction(tmp_path: Path) -> None:
    count = 2 * MOST_TOGETHER + 50
    async with bench(tmp_path, count) as on:
        hosts = [on.propose(number) for number in range(count)]
        await on.settled()
        assert on.store.commits == [MOST_TOGETHER, MOST_TOGETHER, 50]
        assert [host.told for host in hosts] == [
            [ev.IsrStored(proposal_id=100 + n, version=2)] for n in range(count)
        ]
        assert await on.isr(0) == await on.isr(count - 1) == (1, 2)
        assert on.writer._driver.counters.isr_expands == count


async def test_a_store_is_given_no_more_at_once_than_it_takes(tmp_path: Path) -> None:
    async with bench(tmp_path, 10) as on:
        on.node.broker.context.fits = lambda transaction: len(transaction.puts) <= 3
        hosts = [on.propose(number) for number in range(10)]
        await on.settled()
        assert max(on.store.commits) <= 3 and sum(on.store.commits) == 10
        assert all(isinstance(host.told[0], ev.IsrStored) for host in hosts)


async def test_a_shrink_is_counted_though_the_view_shows_it_already(tmp_path: Path) -> None:
    """The node may have read what it has stored before it is told that it has; a fence changes no member."""
    async with bench(tmp_path, 2) as on:
        for number, removing in ((0, (2,)), (1, ())):
            partition = PartitionId("t", number)
            record = structs.replace(RECORD, partition=number, partition_epoch=1)
            on.writer._driver.view.partitions[partition] = rec.Versioned(record, 2)  # type: ignore[index]
            proposal = fx.ProposeIsr(
                proposal_id=7, record=record, version=1, joining=(), reason="a test", removing=removing
            )
            on.give(Host(partition), proposal)
        await on.settled()
        assert on.store.commits == [2]
        counters = on.writer._driver.counters
        assert (counters.isr_shrinks, counters.isr_expands, counters.failed_isr_updates) == (1, 0, 0)


async def test_one_that_may_not_be_stored_keeps_no_other_from_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """One is about another topic of the same name, one about a process that is gone; both are judged alone."""
    async with bench(tmp_path, 4) as on:
        good, other = on.propose(0), on.propose(1, topic_id="another")
        gone = Host(PartitionId("t", 2))
        record = structs.replace(RECORD, partition=2, isr=(1, 2), partition_epoch=1)
        late = fx.ProposeIsr(proposal_id=7, record=record, version=1, joining=((2, 99),), reason="a test")
        on.give(gone, late)
        last = on.propose(3)
        await on.settled()
        await trio.sleep(2 * REFUSED_PAUSE)
        assert good.told == [ev.IsrStored(proposal_id=100, version=2)]
        assert other.told == [ev.IsrUnclear(proposal_id=101)]
        assert gone.told == [ev.IsrRefused(proposal_id=7)]
        assert last.told == [ev.IsrStored(proposal_id=103, version=2)]
        assert on.store.commits == [2]
        assert await on.isr(1) == await on.isr(2) == (1,)


async def test_a_conflict_has_each_tried_alone(tmp_path: Path) -> None:
    async with bench(tmp_path, 3) as on:
        on.store.instead = [Conflict(rec.node_key(2))]
        hosts = [on.propose(number) for number in range(3)]
        await on.settled()
        assert on.store.commits == [3, 1, 1, 1]
        assert all(isinstance(host.told[0], ev.IsrStored) for host in hosts)


async def test_one_that_meets_a_conflict_is_tried_alone_and_the_others_together(tmp_path: Path) -> None:
    """In the midst of an election hundreds are proposed: one by one they took minutes."""
    async with bench(tmp_path, 30) as on:
        on.store.instead = [Conflict(rec.partition_key(PartitionId("t", 7)))]
        hosts = [on.propose(number) for number in range(30)]
        await on.settled()
        assert on.store.commits == [30, 1, 29]
        assert all(isinstance(host.told[0], ev.IsrStored) for host in hosts)


@pytest.mark.parametrize("answer", [Unknown("the answer was lost"), StoreUnavailableError("cut off")])
async def test_an_unknown_fate_is_that_of_all_and_none_is_tried_again(
    tmp_path: Path, answer: Outcome | Exception
) -> None:
    """It may have been written: only the core may say what to do then."""
    async with bench(tmp_path, 3) as on:
        on.store.instead = [answer]
        hosts = [on.propose(number) for number in range(3)]
        await on.settled()
        assert on.store.commits == [3]
        assert [host.told for host in hosts] == [[ev.IsrUnclear(proposal_id=100 + n)] for n in range(3)]
        assert on.writer._driver.counters.failed_isr_updates == 3
        assert on.writer.reasons == {}


async def test_without_a_session_all_are_refused_and_not_at_once(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with bench(tmp_path, 2) as on:
        await on.session.close()
        hosts = [on.propose(number) for number in range(2)]
        on.node.settle()
        await trio.sleep(0.9 * REFUSED_PAUSE)
        assert [host.told for host in hosts] == [[], []]
        await trio.sleep(REFUSED_PAUSE)
        assert [host.told for host in hosts] == [[ev.IsrRefused(proposal_id=100 + n)] for n in range(2)]


async def test_two_proposals_for_one_partition_go_one_after_the_other(tmp_path: Path) -> None:
    """An earlier role's may still wait when the next role proposes."""
    async with bench(tmp_path, 2) as on:
        on.propose(0)
        on.propose(1)
        on.propose(0, isr=(1,))
        await on.settled()
        assert on.store.commits[0] == 2
        first, second = on.hosts[0].told
        assert first == ev.IsrStored(proposal_id=100, version=2)
        assert second == ev.IsrUnclear(proposal_id=100), "it was made from what is not there any more"
        assert await on.isr(0) == (1, 2)


async def test_reasons_are_kept_until_the_change_is_seen(tmp_path: Path) -> None:
    async with bench(tmp_path, 1) as on:
        on.propose(0)
        await on.settled()
        at = PartitionId("t", 0)
        assert on.writer.reasons == {(at, 1): "a test"}
        on.writer.forget_reasons({at: rec.Versioned(RECORD, 1)})
        assert on.writer.reasons == {(at, 1): "a test"}, "the store has not shown it yet"
        on.writer.forget_reasons({at: rec.Versioned(structs.replace(RECORD, partition_epoch=1), 2)})
        assert on.writer.reasons == {}


async def test_an_outcome_is_not_for_a_replica_that_was_begun_since(tmp_path: Path) -> None:
    """It numbers its own changes from one on, so the same number means another."""
    async with bench(tmp_path, 1) as on:
        former = on.propose(0)
        on.node.settle()
        later = Host(former.partition)
        on.node.broker.context.replicas[former.partition] = later  # type: ignore[assignment]
        await trio.testing.wait_all_tasks_blocked()
        assert on.store.commits == [1]
        assert (former.told, later.told) == ([], [])
