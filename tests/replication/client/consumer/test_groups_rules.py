"""Rules of consumers in groups that show in one order of events, one test for each."""

from __future__ import annotations

import re
import threading
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import trio
from msgspec import structs

from insync.replication import wire
from insync.replication.client import (
    Consumer,
    ConsumerRecord,
    InconsistentGroupProtocolError,
    InvalidArgumentError,
    InvalidSettingError,
    InvalidTopicError,
    Listener,
    NotAssignedError,
    StaleMemberEpochError,
    SubscriptionError,
)
from insync.replication.client._assignors import find_assignors
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.core.groups.assignors.assignment import Assignment, Counts, Members, Partition
from insync.replication.core.messages import groups as gm

from ..fake_coordinator import SETTINGS, group_cluster
from .test_consumer import fill
from .test_groups import PROTOCOLS, QUICK, Heard, poll_until


async def records_of(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    with trio.fail_after(10):
        while len(found) < count:
            found += await consumer.poll(1000)
    return found


@PROTOCOLS
async def test_auto_commit_commits_what_earlier_polls_returned(settings: dict[str, Any]) -> None:
    quick = settings | {"auto_commit_interval_ms": 1, "max_poll_records": 4}
    async with group_cluster(t=1) as (cluster, coordinator):
        fill(cluster.topics["t"][0], 10, each=1)
        async with Consumer(cluster.urls, **quick) as consumer:
            consumer.subscribe(["t"])
            assert len(await records_of(consumer, 4)) == 4
            assert coordinator.committed() == {}
            last = (await records_of(consumer, 1))[-1].offset
            await poll_until(lambda: coordinator.committed().get(0, 0) > 0, consumer)
            assert coordinator.committed()[0] <= 10
            assert last < 10
        async with Consumer(cluster.urls, **quick) as consumer:
            consumer.subscribe(["t"])
            fill(cluster.topics["t"][0], 4, each=1)
            assert (await records_of(consumer, 1))[0].offset == 10


async def test_the_last_poll_is_not_committed_by_closing() -> None:
    async with group_cluster(t=1) as (cluster, coordinator):
        fill(cluster.topics["t"][0], 10)
        async with Consumer(cluster.urls, **QUICK, max_poll_records=5) as consumer:
            consumer.subscribe(["t"])
            await records_of(consumer, 5)
            await records_of(consumer, 5)
        # What the poll before the last one returned is done with.
        assert coordinator.committed() == {0: 5}


async def test_in_an_iteration_a_record_counts_when_the_next_one_is_asked_for() -> None:
    async with group_cluster(t=1) as (cluster, coordinator):
        fill(cluster.topics["t"][0], 10)
        async with Consumer(cluster.urls, **QUICK) as consumer:
            consumer.subscribe(["t"])
            async for record in consumer:
                if record.offset == 6:
                    break
        assert coordinator.committed() == {0: 6}
        async with Consumer(cluster.urls, **QUICK) as consumer:
            consumer.subscribe(["t"])
            async for record in consumer:
                assert record.offset == 6
                await consumer.commit()
                break
        assert coordinator.committed() == {0: 7}


async def test_a_record_that_fails_is_not_committed_by_a_consumer_that_begins_with_it() -> None:
    """The second consumer starts at the committed offset, and ends at that very record as the first one did."""
    async with group_cluster(t=1) as (cluster, coordinator):
        fill(cluster.topics["t"][0], 10)
        for _ in range(2):
            async with Consumer(cluster.urls, **QUICK) as consumer:
                consumer.subscribe(["t"])
                with trio.fail_after(10):
                    async for record in consumer:
                        if record.offset == 6:
                            break
            assert coordinator.committed() == {0: 6}


@PROTOCOLS
async def test_a_revocation_commits_what_was_handed_out_and_the_next_owner_goes_on(
    settings: dict[str, Any],
) -> None:
    async with group_cluster(t=2) as (cluster, coordinator):
        for log in cluster.topics["t"]:
            fill(log, 10)
        async with Consumer(cluster.urls, **settings) as one, Consumer(cluster.urls, **settings) as other:
            one.subscribe(["t"])
            await records_of(one, 20)
            other.subscribe(["t"])
            taken = await poll_until(lambda: len(other.assignment()) == 1, one, other)
            assert taken == [[], []]
            [moved] = other.assignment()
            assert coordinator.committed()[moved.partition] == 10
            for log in cluster.topics["t"]:
                fill(log, 1)
            cluster.appended()
            assert [(each.partition, each.offset) for each in await records_of(other, 1)] == [
                (moved.partition, 10)
            ]


@PROTOCOLS
async def test_who_does_not_poll_leaves_and_hears_of_the_loss(settings: dict[str, Any]) -> None:
    heard = Heard()
    async with group_cluster(t=2) as (cluster, coordinator):
        fill(cluster.topics["t"][0], 5)
        slow = settings | {"max_poll_interval_ms": 300}
        async with Consumer(cluster.urls, **slow) as one:
            one.subscribe(["t"], listener=heard)
            await records_of(one, 5)
            async with Consumer(cluster.urls, **settings) as other:
                other.subscribe(["t"])
                await poll_until(lambda: len(other.assignment()) == 2, other)
                # Its work since is not stored: others have the partitions.
                with pytest.raises(StaleMemberEpochError, match="continued without this consumer"):
                    await one.commit()
                # Nor may a transaction: without a member's name its offsets would not be checked.
                with pytest.raises(StaleMemberEpochError, match="continued without this consumer"):
                    one.group_metadata()
                assert coordinator.committed() == {}
                before = len(heard.said)
                await one.poll(0)
                assert heard.said[before] == ("lost", [0, 1])
                assert coordinator.committed() == {}
            await poll_until(lambda: len(one.assignment()) == 2, one)


@PROTOCOLS
async def test_another_coordinator_is_found(settings: dict[str, Any]) -> None:
    heard = Heard()
    async with group_cluster(nodes=3, t=2) as (cluster, coordinator):
        fill(cluster.topics["t"][0], 5)
        async with Consumer(cluster.urls, **settings) as consumer:
            consumer.subscribe(["t"], listener=heard)
            await records_of(consumer, 5)
            coordinator.move(1)
            await consumer.commit()
            assert coordinator.committed()[0] == 5
            await poll_until(
                lambda: coordinator.host.epoch == 2 and len(coordinator.members()) <= 1, consumer
            )
            await cluster.nodes[1].stop()
            coordinator.move(2)
            fill(cluster.topics["t"][0], 1)
            for number in range(2):
                cluster.move("t", number, 0)
            assert [each.offset for each in await records_of(consumer, 1)] == [5]
            await consumer.commit()
            assert coordinator.committed()[0] == 6
            assert heard.said == [("assigned", [0, 1])]


async def test_nothing_is_handed_out_when_the_lease_is_over() -> None:
    short = structs.replace(SETTINGS, consumer_session_timeout_ms=700, consumer_heartbeat_interval_ms=200)
    heard = Heard()
    async with group_cluster(settings=short, t=1) as (cluster, coordinator):
        fill(cluster.topics["t"][0], 5)
        async with Consumer(cluster.urls, **QUICK, request_timeout_ms=500) as consumer:
            consumer.subscribe(["t"], listener=heard)
            await records_of(consumer, 5)
            coordinator.deaf = True
            # It may have been lost before, to a standstill, and have come back: what counts is how it is now.
            await poll_until(lambda: heard.said[-1] == ("lost", [0]) and not consumer.assignment(), consumer)
            fill(cluster.topics["t"][0], 5)
            cluster.appended()
            assert await consumer.poll(200) == []
            assert consumer.assignment() == []
            coordinator.deaf = False
            # Nothing was committed, so all of it comes again.
            assert (await records_of(consumer, 10))[0].offset == 0


async def test_a_static_member_that_comes_back_gets_its_own_again() -> None:
    static = QUICK | {"group_instance_id": "i1"}
    heard = Heard()
    async with group_cluster(t=4) as (cluster, coordinator), Consumer(cluster.urls, **QUICK) as one:
        one.subscribe(["t"], listener=heard)
        async with Consumer(cluster.urls, **static) as other:
            other.subscribe(["t"])
            await poll_until(lambda: len(one.assignment()) == len(other.assignment()) == 2, one, other)
            mine = other.assignment()
        assert len(coordinator.members()) == 2
        before = list(heard.said)
        async with Consumer(cluster.urls, **static) as other:
            other.subscribe(["t"])
            await poll_until(lambda: len(other.assignment()) == 2, one, other)
            assert other.assignment() == mine
            assert heard.said == before
            await other.close(leave_group=True)
        await poll_until(lambda: len(one.assignment()) == 4, one)


async def test_a_pattern_finds_topics_and_new_ones() -> None:
    async with (
        group_cluster(orders_eu=1, orders_us=1, other=1) as (cluster, _),
        Consumer(cluster.urls, **QUICK, metadata_max_age_ms=50) as consumer,
    ):
        consumer.subscribe(re.compile("orders_.*"))
        await poll_until(lambda: len(consumer.assignment()) == 2, consumer)
        assert consumer.subscription() == ["orders_eu", "orders_us"]
        cluster.create("orders_jp")
        await poll_until(lambda: len(consumer.assignment()) == 3, consumer)


@PROTOCOLS
async def test_a_topic_that_comes_later_is_read(settings: dict[str, Any]) -> None:
    async with (
        group_cluster(t=1) as (cluster, _),
        Consumer(cluster.urls, **settings, metadata_max_age_ms=50) as consumer,
    ):
        consumer.subscribe(["t", "later"])
        await poll_until(lambda: len(consumer.assignment()) == 1, consumer)
        fill(cluster.create("later", 2)[1], 3)
        assert {each.topic for each in await records_of(consumer, 3)} == {"later"}
        assert len(consumer.assignment()) == 3


async def test_what_a_callback_raises_the_poll_raises() -> None:
    def broken(partitions: object) -> None:
        raise RuntimeError("mine")

    async with group_cluster(t=1) as (cluster, _):
        fill(cluster.topics["t"][0], 5)
        async with Consumer(cluster.urls, **QUICK) as consumer:
            consumer.subscribe(["t"], listener=Listener(on_assigned=broken))
            with pytest.raises(RuntimeError, match="mine"):
                await records_of(consumer, 5)
            assert len(await records_of(consumer, 5)) == 5


async def test_a_callback_that_is_cancelled_runs_again_before_anything_is_handed_out() -> None:
    runs = []

    async def slow(partitions: object) -> None:
        runs.append(partitions)
        if len(runs) == 1:
            await trio.sleep_forever()

    async with group_cluster(t=1) as (cluster, _):
        fill(cluster.topics["t"][0], 5)
        async with Consumer(cluster.urls, **QUICK) as consumer:
            consumer.subscribe(["t"], listener=Listener(on_assigned=slow))
            while not runs:
                with trio.move_on_after(0.05):
                    assert await consumer.poll(1000) == []
            assert len(await records_of(consumer, 5)) == 5
            assert len(runs) == 2


async def test_in_on_revoked_what_was_handed_out_can_be_committed() -> None:
    async with group_cluster(t=1) as (cluster, coordinator):
        fill(cluster.topics["t"][0], 5)
        async with Consumer(cluster.urls, **QUICK, enable_auto_commit=False) as consumer:

            async def on_revoked(partitions: object) -> None:
                await consumer.commit()

            consumer.subscribe(["t"], listener=Listener(on_revoked=on_revoked))
            await records_of(consumer, 5)
        assert coordinator.committed() == {0: 5}


async def test_in_on_assigned_a_position_can_be_sought() -> None:
    async with group_cluster(t=2) as (cluster, coordinator):
        for log in cluster.topics["t"]:
            fill(log, 5)
        async with Consumer(cluster.urls, **QUICK) as consumer:

            def on_assigned(partitions: object) -> None:
                assert partitions == [("t", 0), ("t", 1)]
                consumer.seek(("t", 0), 3)
                consumer.seek_to_end([("t", 1)])

            consumer.subscribe(["t"], listener=Listener(on_assigned=on_assigned))
            assert [(each.partition, each.offset) for each in await records_of(consumer, 2)] == [
                (0, 3),
                (0, 4),
            ]
            await poll_until(lambda: consumer.position(("t", 1)) is not None, consumer)
            await consumer.commit()
        assert coordinator.committed() == {0: 5, 1: 5}


async def test_a_cancelled_block_leaves_the_group() -> None:
    async with group_cluster(t=1) as (cluster, coordinator):
        with trio.CancelScope() as scope:
            async with Consumer(cluster.urls, **QUICK) as consumer:
                consumer.subscribe(["t"])
                await poll_until(lambda: bool(consumer.assignment()), consumer)
                scope.cancel()
                await consumer.poll(1000)
        assert coordinator.members() == []


@PROTOCOLS
async def test_pause_lasts_for_what_is_kept(settings: dict[str, Any]) -> None:
    async with group_cluster(t=1) as (cluster, _):
        fill(cluster.topics["t"][0], 5)
        async with (
            Consumer(cluster.urls, **settings) as consumer,
            Consumer(cluster.urls, **settings) as other,
        ):
            consumer.subscribe(["t"])
            await poll_until(lambda: bool(consumer.assignment()), consumer)
            consumer.pause()
            other.subscribe(["t"])
            taken = await poll_until(lambda: len(consumer.group_metadata().member_id) > 0, consumer, other)
            assert taken[0] == []


async def test_what_is_not_owned_is_not_committed() -> None:
    async with group_cluster(t=2) as (cluster, coordinator), Consumer(cluster.urls, **QUICK) as consumer:
        with pytest.raises(SubscriptionError, match="use commit with assign"):
            consumer.commit_nowait()
        consumer.subscribe(["t"])
        with pytest.raises(NotAssignedError, match="t-0 is not assigned"):
            await consumer.commit({("t", 0): 1})
        assert coordinator.seen == [] or coordinator.committed() == {}


async def test_commits_are_carried_out_in_order() -> None:
    told: list[int] = []
    async with group_cluster(t=1) as (cluster, coordinator):
        fill(cluster.topics["t"][0], 9)
        async with Consumer(cluster.urls, **QUICK) as consumer:
            consumer.subscribe(["t"])
            await records_of(consumer, 9)
            for offset in range(1, 9):
                consumer.commit_nowait({("t", 0): offset}, lambda offsets, _: told.extend(offsets.values()))
            await consumer.commit({("t", 0): 9})
            assert told == [*range(1, 9)]
            assert coordinator.committed() == {0: 9}


@PROTOCOLS
async def test_a_commit_that_is_tried_again_does_not_hold_up_reading(settings: dict[str, Any]) -> None:
    refused, told = 0, list[object]()
    async with group_cluster(t=1) as (cluster, coordinator), Consumer(cluster.urls, **settings) as consumer:
        right, is_loading = cluster.chaos, True

        def handle(node: Any, request: Any) -> bool:
            nonlocal refused
            if not is_loading or request.kind != m.Kind.COMMIT_GROUP_OFFSETS:
                return bool(right(node, request))
            refused += 1
            loads = gm.CommitGroupOffsetsResponse(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            request.reply(wire.encode(loads))
            return True

        cluster.chaos = handle
        consumer.subscribe(["t"])
        fill(cluster.topics["t"][0], 5)
        await records_of(consumer, 5)
        consumer.commit_nowait({("t", 0): 5}, lambda offsets, error: told.append(error))
        with trio.fail_after(30):
            while refused < 3:
                fill(cluster.topics["t"][0], 1)
                await records_of(consumer, 1)
                assert not told
            is_loading = False
            while not told:
                await consumer.poll(100)
        assert told == [None] and coordinator.committed() == {0: 5}


async def test_without_membership_offsets_are_stored_for_a_group_that_is_empty() -> None:
    async with group_cluster(t=2) as (cluster, coordinator):
        for log in cluster.topics["t"]:
            fill(log, 5)
        async with Consumer(cluster.urls, **QUICK) as consumer:
            consumer.assign([("t", 0)])
            await records_of(consumer, 5)
            await consumer.commit()
            assert coordinator.committed() == {0: 5}
        async with Consumer(cluster.urls, **QUICK) as consumer:
            consumer.assign([("t", 0), ("t", 1)])
            assert {each.partition for each in await records_of(consumer, 5)} == {1}
            async with Consumer(cluster.urls, **QUICK) as member:
                member.subscribe(["t"])
                await poll_until(lambda: bool(member.assignment()), member)
                with pytest.raises(Exception, match="group 'g': commit"):
                    await consumer.commit()


async def test_nothing_is_read_before_it_is_known_where_the_group_has_stopped() -> None:
    async with group_cluster(t=2) as (cluster, coordinator):
        for log in cluster.topics["t"]:
            fill(log, 5)
        async with Consumer(cluster.urls, **QUICK) as consumer:
            consumer.assign([("t", 0)])
            await records_of(consumer, 5)
            await consumer.commit()
        async with Consumer(cluster.urls, **QUICK, request_timeout_ms=300) as consumer:
            coordinator.deaf = True
            consumer.assign([("t", 0), ("t", 1)])
            assert await consumer.poll(500) == []
            consumer.seek(("t", 1), 4)
            assert [(each.partition, each.offset) for each in await records_of(consumer, 1)] == [(1, 4)]
            coordinator.deaf = False
            await poll_until(lambda: consumer.position(("t", 0)) == 5, consumer)


async def test_an_assignment_of_a_topic_that_is_not_known_yet_has_it_looked_up() -> None:
    async with (
        group_cluster(t=1) as (cluster, _),
        Consumer(cluster.urls, **QUICK) as consumer,
    ):
        consumer.subscribe(["t", "later"])
        await poll_until(lambda: len(consumer.assignment()) == 1, consumer)
        fill(cluster.create("later")[0], 3)
        assert {each.topic for each in await records_of(consumer, 3)} == {"later"}


async def test_subscribe_and_assign_exclude_each_other() -> None:
    async with group_cluster(t=1) as (cluster, _):
        async with Consumer(cluster.urls, **QUICK) as consumer:
            consumer.assign([("t", 0)])
            with pytest.raises(SubscriptionError, match=r"call assign\(\[\]\) first"):
                consumer.subscribe(["t"])
            consumer.assign([])
            consumer.subscribe(["t"])
            with pytest.raises(SubscriptionError, match="call unsubscribe before assign"):
                consumer.assign([("t", 0)])
            await poll_until(lambda: bool(consumer.assignment()), consumer)
            await consumer.unsubscribe()
            assert consumer.assignment() == consumer.subscription() == []
            consumer.assign([("t", 0)])
        async with Consumer(cluster.urls) as consumer:
            for wrong in (
                lambda: consumer.subscribe(["t"]),
                lambda: consumer.group_metadata(),
                lambda: consumer.commit_nowait(),
            ):
                with pytest.raises(SubscriptionError, match="group_id"):
                    wrong()
            for call in (consumer.commit, lambda: consumer.committed([("t", 0)])):
                with pytest.raises(SubscriptionError, match="group_id"):
                    await call()
            with pytest.raises(InvalidTopicError):
                consumer.subscribe(["no/topic"])
            with pytest.raises(InvalidArgumentError, match="name at least one topic"):
                consumer.subscribe([])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group_protocol": "new"}, "it must be consumer or classic"),
        ({"group_instance_id": "i"}, "needs group_id"),
        (
            {"group_id": "g", "group_protocol": "classic", "group_remote_assignor": "uniform"},
            "partition_assig",
        ),
        ({"heartbeat_interval_ms": 50_000}, "below session_timeout_ms"),
        ({"partition_assignment_strategy": "best"}, "no package registers in insync.assignors"),
        ({"partition_assignment_strategy": []}, "name at least one"),
        ({"partition_assignment_strategy": [5]}, "5 is not an assignor"),
        ({"partition_assignment_strategy": "range, range"}, "name each once"),
        ({"max_poll_interval_ms": 0}, "at least 1"),
    ],
)
def test_settings_that_cannot_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSettingError, match=said):
        Consumer("tcp://127.0.0.1:1", **options)


class Everything:
    """Gives all to the first member."""

    name = "everything"

    def __init__(self, wrong: bool = False) -> None:
        self.wrong = wrong

    def assign(self, counts: Counts, members: Members) -> Assignment:
        every = [Partition(topic, n) for topic, count in counts.items() for n in range(count)]
        first, *others = sorted(members)
        given = {first: every} | {each: [] for each in others}
        return given | {"nobody": [Partition("t", 0)]} if self.wrong else given


async def test_an_assignor_of_ones_own() -> None:
    classic = QUICK | {"group_protocol": "classic"}
    async with group_cluster(t=4) as (cluster, _):
        async with (
            Consumer(cluster.urls, **classic, partition_assignment_strategy=Everything()) as one,
            Consumer(cluster.urls, **classic, partition_assignment_strategy=Everything()) as other,
        ):
            one.subscribe(["t"])
            other.subscribe(["t"])
            await poll_until(
                lambda: sorted([len(one.assignment()), len(other.assignment())]) == [0, 4], one, other
            )
        wrong = Everything(wrong=True)
        async with Consumer(cluster.urls, **classic, partition_assignment_strategy=wrong) as one:
            one.subscribe(["t"])
            with pytest.raises(InconsistentGroupProtocolError, match="the group has no member 'nobody'"):
                await poll_until(lambda: False, one)


async def test_an_assignor_that_does_not_return_ends_its_own_subscription(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("insync.replication.client._assignors.WITHIN", 0.05)
    hangs, go_on = Everything(), threading.Event()
    monkeypatch.setattr(hangs, "assign", lambda counts, members: go_on.wait(60))
    classic = QUICK | {"group_protocol": "classic", "partition_assignment_strategy": hangs}
    async with group_cluster(t=4) as (cluster, _), Consumer(cluster.urls, **classic) as one:
        one.subscribe(["t"])
        try:
            with pytest.raises(InconsistentGroupProtocolError, match=r"has not returned within 0\.05 s"):
                await poll_until(lambda: False, one)
        finally:
            go_on.set()


def test_assignors_are_found_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def points(*, group: str) -> list[EntryPoint]:
        assert group == "insync.assignors"
        here = f"{__name__}:"
        return [
            EntryPoint("everything", f"{here}Everything", group),
            EntryPoint("lost", f"{here}Nothing", group),
            EntryPoint("odd", f"{here}QUICK", group),
        ]

    monkeypatch.setattr("insync.replication.client._assignors.entry_points", points)
    sticky, own = find_assignors("sticky, everything")
    assert (sticky.name, own.name) == ("sticky", "everything")
    for name, said in (
        ("lost", "cannot be loaded"),
        ("odd", "is not an assignor; it needs a name"),
        ("nobodys", "there are range, roundrobin, sticky, cooperative-sticky, everything, lost, odd"),
    ):
        with pytest.raises(InvalidSettingError, match=said):
            find_assignors(name)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_members_of_both_protocols_share_partitions(strategy: str) -> None:
    classic = QUICK | {"group_protocol": "classic", "partition_assignment_strategy": strategy}
    async with (
        group_cluster(t=4) as (cluster, coordinator),
        Consumer(cluster.urls, **QUICK) as one,
        Consumer(cluster.urls, **classic) as other,
    ):
        one.subscribe(["t"])
        await poll_until(lambda: len(one.assignment()) == 4, one)
        other.subscribe(["t"])
        await poll_until(lambda: len(one.assignment()) == len(other.assignment()) == 2, one, other)
        assert not set(one.assignment()) & set(other.assignment())
        for log in cluster.topics["t"]:
            fill(log, 5)
        cluster.appended()
        assert len(await records_of(other, 10)) == 10
        await other.commit()
        mine = {each.partition for each in other.assignment()}
        assert coordinator.committed() == dict.fromkeys(sorted(mine), 5)
