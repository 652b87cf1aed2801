"""Every misuse of groups is an error of its own class, of one line, which says what to do."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from insync.replication import Admin, Consumer, Node
from insync.replication.client import (
    FencedInstanceIdError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    GroupSubscribedToTopicError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    NonEmptyGroupError,
    NotAssignedError,
    SubscriptionError,
    UnsupportedAssignorError,
)
from tests.replication.node.test_cluster import settings

CLASSIC = {"group_protocol": "classic", "session_timeout_ms": 10_000}


class Scene:
    """A node on which group `g` has one member, which reads `t` as instance `i`; at most two may."""

    def __init__(self, servers: list[str], admin: Admin) -> None:
        self.servers, self.admin = servers, admin

    async def joins(self, group: str = "g", **options: Any) -> None:
        """Another member of a group comes, and polls until it has something or an error."""
        async with Consumer(self.servers, group_id=group, **options) as consumer:
            consumer.subscribe(["t"])
            with trio.fail_after(10):
                while not consumer.assignment():
                    await consumer.poll(50)

    async def three(self) -> None:
        """Two more than there is room for."""
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(self.joins, "full")
            async with Consumer(self.servers, group_id="full") as consumer:
                consumer.subscribe(["t"])
                with trio.fail_after(10):
                    while True:
                        await consumer.poll(50)

    async def unlike(self) -> None:
        """Two members of the classic protocol without an assignor in common."""
        async with Consumer(
            self.servers, group_id="c", **CLASSIC, partition_assignment_strategy="range"
        ) as consumer:
            consumer.subscribe(["t"])
            while not consumer.assignment():
                await consumer.poll(50)
            await self.joins("c", **CLASSIC, partition_assignment_strategy="sticky")

    async def consumes(self, act: Callable[[Consumer], Any], **options: Any) -> None:
        async with Consumer(self.servers, **options) as consumer:
            done = act(consumer)
            if isinstance(done, Awaitable):
                await done


def _assigned_too(consumer: Consumer) -> None:
    consumer.assign([("t", 0)])
    consumer.subscribe(["t"])


def _subscribed_too(consumer: Consumer) -> None:
    consumer.subscribe(["t"])
    consumer.assign([("t", 0)])


async def _not_owned(consumer: Consumer) -> None:
    consumer.subscribe(["t"])
    await consumer.commit({("t", 0): 1})


async def _commit_as_a_stranger(consumer: Consumer) -> None:
    consumer.assign([("t", 0)])
    await consumer.commit({("t", 0): 1})


MISUSES: list[tuple[str, Callable[[Scene], Awaitable[object]], type[Exception], str]] = [
    (
        "subscribe without a group",
        lambda scene: scene.consumes(lambda consumer: consumer.subscribe(["t"])),
        SubscriptionError,
        "group_id",
    ),
    (
        "commit without a group",
        lambda scene: scene.consumes(lambda consumer: consumer.commit()),
        SubscriptionError,
        "group_id",
    ),
    (
        "subscribe beside assign",
        lambda scene: scene.consumes(_assigned_too, group_id="n"),
        SubscriptionError,
        r"call assign\(\[\]\) first",
    ),
    (
        "assign beside subscribe",
        lambda scene: scene.consumes(_subscribed_too, group_id="n"),
        SubscriptionError,
        "call unsubscribe before assign",
    ),
    (
        "a commit of what it does not have",
        lambda scene: scene.consumes(_not_owned, group_id="n"),
        NotAssignedError,
        "t-0 is not assigned",
    ),
    (
        "a commit beside the members",
        lambda scene: scene.consumes(_commit_as_a_stranger, group_id="g"),
        NonEmptyGroupError,
        "it has members; stop its consumers",
    ),
    (
        "a reset of a group with members",
        lambda scene: scene.admin.set_group_offsets("g", {("t", 0): 0}),
        NonEmptyGroupError,
        "stop its consumers",
    ),
    (
        "the deletion of a group with members",
        lambda scene: scene.admin.delete_group("g"),
        NonEmptyGroupError,
        "has 1 member; stop its consumers",
    ),
    (
        "the deletion of a group that there is not",
        lambda scene: scene.admin.delete_group("nobodys"),
        GroupIdNotFoundError,
        "insync group list",
    ),
    (
        "the deletion of offsets that are read",
        lambda scene: scene.admin.delete_group_offsets("g", [("t", 0)]),
        GroupSubscribedToTopicError,
        "stop the consumers",
    ),
    ("a group that is full", lambda scene: scene.three(), GroupMaxSizeReachedError, "start fewer consumers"),
    (
        "an assignor that there is not",
        lambda scene: scene.joins("a", group_remote_assignor="mine"),
        UnsupportedAssignorError,
        "group_consumer_assignors",
    ),
    (
        "assignors that have nothing in common",
        lambda scene: scene.unlike(),
        InconsistentGroupProtocolError,
        "use one partition_assignment_strategy",
    ),
    (
        "a session that is too short",
        lambda scene: scene.joins(
            "s", group_protocol="classic", session_timeout_ms=1000, heartbeat_interval_ms=100
        ),
        InvalidSessionTimeoutError,
        "group_min_session_timeout_ms",
    ),
]


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    given = settings(
        folder,
        1,
        group_consumer_max_size=2,
        offsets_topic_num_partitions=2,
        group_initial_rebalance_delay_ms=50,
    )
    async with Node(given) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", partitions=2, replication_factor=1)
        async with Consumer(node.endpoints, group_id="g", group_instance_id="i") as member:
            member.subscribe(["t"])
            with trio.fail_after(60):
                while not member.assignment():
                    await member.poll(50)
            yield Scene(list(node.endpoints), admin)


async def test_every_misuse_is_told_in_one_line(tmp_path: Path) -> None:
    async with scene(tmp_path) as set_up:
        for what, act, error, said in MISUSES:
            with pytest.raises((error, ExceptionGroup)) as caught, trio.fail_after(20):
                await act(set_up)
            found: BaseException = caught.value
            while isinstance(found, ExceptionGroup):
                found = found.exceptions[0]
            assert type(found) is error, (what, found)
            assert "\n" not in str(found), what
            assert re.search(said, str(found)), (what, str(found))


async def test_a_name_that_another_process_has_is_waited_for_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be the former process of the same service, whose session ends some time after it was killed."""
    async with scene(tmp_path) as set_up:
        with caplog.at_level("WARNING", logger="insync.client"), trio.fail_after(30):
            async with Consumer(set_up.servers, group_id="g", group_instance_id="i") as second:
                second.subscribe(["t"])
                # The node of this process has a log, too. On a busy machine the coordinator may still be loading.
                while not (
                    found := [
                        each.getMessage()
                        for each in caplog.records
                        if each.name == "insync.client" and "LOAD_IN_PROGRESS" not in each.getMessage()
                    ]
                ):
                    await second.poll(50)
    told = found[0]
    assert "UNRELEASED_INSTANCE_ID: instance 'i' is member" in told and "\n" not in told
    assert told.endswith("stop the other process, or give each a group_instance_id of its own")


async def test_who_takes_over_a_name_puts_the_other_out(tmp_path: Path) -> None:
    """Of the classic protocol, in which a process that comes back says nothing else."""
    async with scene(tmp_path) as set_up:
        options = {"group_id": "c", "group_instance_id": "i", **CLASSIC}
        async with Consumer(set_up.servers, **options) as first:
            first.subscribe(["t"])
            while not first.assignment():
                await first.poll(50)
            await set_up.joins("c", group_instance_id="i", **CLASSIC)
            with (
                pytest.raises(FencedInstanceIdError, match="give each process") as caught,
                trio.fail_after(20),
            ):
                while True:
                    await first.poll(50)
            assert "\n" not in str(caught.value)
