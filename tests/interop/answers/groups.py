"""Groups of both protocols: members that come, go and are wrong; offsets with epochs that are over."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from insync.plugins.kafka.protocol.apis import Api

from .cluster import Cluster, plain
from .job import Tell

JOIN, LEAVE, LEAVE_STATIC = 0, -1, -2


def subscription(*topics: str) -> bytes:
    """What a classic member says that it reads: version 0, without data of its own."""
    named = b"".join(struct.pack(">h", len(each)) + each.encode() for each in topics)
    return struct.pack(">hi", 0, len(topics)) + named + struct.pack(">i", -1)


def _offsets(
    *given: tuple[str, int, int], leader_epoch: int = -1, note: str | None = ""
) -> list[dict[str, Any]]:
    """Of topics by name, with their partitions and offsets."""
    return [
        {
            "name": name,
            "partitions": [
                {
                    "partition_index": index,
                    "committed_offset": offset,
                    "committed_leader_epoch": leader_epoch,
                    "committed_metadata": note,
                }
            ],
        }
        for name, index, offset in given
    ]


class Group:
    """A group at its coordinator."""

    def __init__(self, cluster: Cluster, group: str, at: str, tell: Tell) -> None:
        self.cluster, self.group, self.at, self.tell = cluster, group, at, tell

    @classmethod
    async def of(cls, cluster: Cluster, group: str, tell: Tell) -> Group:
        at = await cluster.coordinator(group)
        found = cls(cluster, group, at, tell)
        beat = {"group_id": group, "generation_id": 1, "member_id": "x"}
        await cluster.until(
            lambda: cluster.ask(at, Api.HEARTBEAT, 3, **beat),
            lambda told: told.error_code not in (14, 15, 16),
        )
        return found

    async def join(self, member: str = "", instance: str | None = None, version: int = 9, **more: Any) -> Any:
        values: dict[str, Any] = {
            "group_id": self.group,
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 5_000,
            "member_id": member,
            "group_instance_id": instance,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": subscription("groups-read")}],
        }
        return await self.cluster.ask(self.at, Api.JOIN_GROUP, version, **(values | more))

    async def joined(self, instance: str | None = None) -> Any:
        """A member that is alone in its group; its answer."""
        told = await self.join("", instance)
        return await self.join(told.member_id, instance) if told.error_code == 79 else told

    async def sync(self, member: str, generation: int, **more: Any) -> Any:
        values: dict[str, Any] = {
            "group_id": self.group,
            "generation_id": generation,
            "member_id": member,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": member, "assignment": b"mine"}],
        }
        return await self.cluster.ask(self.at, Api.SYNC_GROUP, 5, **(values | more))

    async def beat(self, member: str, generation: int, instance: str | None = None) -> Any:
        return await self.cluster.ask(
            self.at,
            Api.HEARTBEAT,
            4,
            group_id=self.group,
            generation_id=generation,
            member_id=member,
            group_instance_id=instance,
        )

    async def commit(
        self, title: str, member: str, epoch: int, *given: tuple[str, int, int], **more: Any
    ) -> None:
        told = await self.cluster.ask(
            self.at,
            Api.OFFSET_COMMIT,
            9,
            group_id=self.group,
            member_id=member,
            generation_id_or_member_epoch=epoch,
            group_instance_id=more.pop("instance", None),
            topics=_offsets(*given, **more),
        )
        self.tell(title, plain(told))

    async def fetch(
        self,
        title: str,
        names: list[tuple[str, list[int]]] | None,
        member: str | None = None,
        epoch: int = -1,
    ) -> None:
        topics = None if names is None else [{"name": n, "partition_indexes": i} for n, i in names]
        asked = {"group_id": self.group, "member_id": member, "member_epoch": epoch, "topics": topics}
        told = await self.cluster.ask(self.at, Api.OFFSET_FETCH, 9, groups=[asked])
        self.tell(title, plain(told))

    async def delete_offsets(self, title: str, name: str = "", *indexes: int) -> None:
        topics = [{"name": name, "partitions": [{"partition_index": index} for index in indexes]}]
        told = await self.cluster.ask(
            self.at, Api.OFFSET_DELETE, 0, group_id=self.group, topics=topics if name else []
        )
        self.tell(title, plain(told))

    async def consume(self, member: str, epoch: int, **more: Any) -> Any:
        """A heartbeat of the consumer protocol."""
        values = {"group_id": self.group, "member_id": member, "member_epoch": epoch}
        return await self.cluster.ask(self.at, Api.CONSUMER_GROUP_HEARTBEAT, 1, **(values | more))

    async def comes(self, member: str, topics: list[str] | None, epoch: int = JOIN, **more: Any) -> Any:
        values: dict[str, Any] = {
            "subscribed_topic_names": topics,
            "rebalance_timeout_ms": 5_000,
            "topic_partitions": [],
        }
        return await self.consume(member, epoch, **(values | more))


def _beat(told: Any) -> Any:
    """A heartbeat's answer, without the epoch of an error, and with partitions by number alone."""
    if isinstance(told, str):
        return told
    parts = None
    if told.assignment is not None:
        parts = sorted(sorted(each.partitions) for each in told.assignment.topic_partitions)
    return [told.error_code, told.member_epoch, told.heartbeat_interval_ms > 0, parts]


async def classic(cluster: Cluster, tell: Tell) -> None:
    """What single requests are told: joins, heartbeats and leaves at the edges."""
    await cluster.make("groups-read", [[1, 2, 3], [2, 3, 1]])
    group = await Group.of(cluster, "classic", tell)

    def join(told: Any) -> Any:
        return [
            told.error_code,
            told.generation_id,
            told.protocol_type,
            told.protocol_name,
            told.skip_assignment,
            len(told.members),
        ]

    plain_protocol = [{"name": "range", "metadata": b""}]
    wrong: dict[str, dict[str, Any]] = {
        "no name": {"group_id": ""},
        "a session of 5999 ms": {"session_timeout_ms": 5_999},
        "a session of 1800001 ms": {"session_timeout_ms": 1_800_001},
        "no protocols": {"protocols": []},
        "no type": {"protocol_type": ""},
        "a stranger": {"member": "stranger"},
        "an instance of nobody": {"member": "stranger", "instance": "nobody"},
        "an empty instance": {"instance": ""},
        "an instance with a blank": {"instance": "a b"},
        "an instance of 249 characters": {"instance": "i" * 249},
        "an instance of 250 characters": {"instance": "i" * 250},
        "an instance that is a point": {"instance": "."},
    }
    for title, more in wrong.items():
        other = await Group.of(cluster, f"classic {title}", tell)
        tell(f"join: {title}", join(await other.join(**more)))
    first = await group.joined()
    tell("joined", join(first))
    me, generation = first.member_id, first.generation_id
    tell("sync by a stranger", plain(await group.sync("stranger", generation)))
    tell("sync of another generation", plain(await group.sync(me, generation + 1)))
    tell("heartbeat before sync", plain(await group.beat(me, generation)))
    await group.commit("commit before sync", me, generation, ("groups-read", 0, 1))
    tell("sync", plain(await group.sync(me, generation)))
    tell("sync of another protocol", plain(await group.sync(me, generation, protocol_name="roundrobin")))
    tell("sync of another type", plain(await group.sync(me, generation, protocol_type="connect")))
    tell("sync again", plain(await group.sync(me, generation)))
    tell("heartbeat", plain(await group.beat(me, generation)))
    tell("heartbeat of another generation", plain(await group.beat(me, generation + 1)))
    tell("heartbeat of generation -1", plain(await group.beat(me, -1)))
    tell("heartbeat of a stranger", plain(await group.beat("stranger", generation)))
    tell("heartbeat of an instance", plain(await group.beat(me, generation, "nobody")))
    tell("heartbeat of no member", plain(await group.beat("", generation)))
    tell("another type", join(await group.join(protocol_type="connect", protocols=plain_protocol)))
    await group.commit("commit", me, generation, ("groups-read", 0, 1))
    await group.commit("of another generation", me, generation + 1, ("groups-read", 0, 2))
    await group.commit("of an old generation", me, generation - 1, ("groups-read", 0, 2))
    await group.commit("of generation -1", me, -1, ("groups-read", 0, 2))
    await group.commit("of generation -1, by nobody", "", -1, ("groups-read", 0, 2))
    await group.commit("by a stranger", "stranger", generation, ("groups-read", 0, 2))
    await group.commit("by an instance", me, generation, ("groups-read", 0, 2), instance="nobody")
    await group.commit("no such partition", me, generation, ("groups-read", 9, 2))
    await group.commit("below 0", me, generation, ("groups-read", -1, 2))
    await group.commit("no such topic", me, generation, ("nowhere", 0, 2))
    await group.commit("a bad name", me, generation, ("a b", 0, 2))
    await group.commit("an offset of -1", me, generation, ("groups-read", 0, -1))
    await group.commit("an offset of -2", me, generation, ("groups-read", 0, -2))
    await group.commit("a null for a note", me, generation, ("groups-read", 0, 5), note=None)
    await group.commit("a note of 4096 bytes", me, generation, ("groups-read", 0, 5), note="n" * 4096)
    await group.commit("a note of 4097 bytes", me, generation, ("groups-read", 0, 5), note="n" * 4097)
    await group.commit("an epoch of -2", me, generation, ("groups-read", 0, 5), leader_epoch=-2)
    await group.commit("an epoch of the future", me, generation, ("groups-read", 1, 6), leader_epoch=77)
    await group.commit("nothing", me, generation)
    await group.commit("a partition twice", me, generation, ("groups-read", 0, 5), ("groups-read", 0, 6))
    await group.fetch("fetched", [("groups-read", [0, 1, 9]), ("nowhere", [0])])
    await group.fetch("fetched all", None)
    await group.fetch("fetched none", [])
    await group.fetch("fetched, a partition twice", [("groups-read", [0, 1, 0])])
    asked = {"group_id": "classic", "member_id": None, "member_epoch": -1, "topics": None}
    twice = await cluster.ask(group.at, Api.OFFSET_FETCH, 9, groups=[asked, asked])
    tell("fetched twice at once", plain(twice))
    await group.fetch("fetched, a bad name", [("a b", [0])])
    await group.fetch("fetched by a member", [("groups-read", [0])], me, generation)
    await group.fetch("fetched by a stranger", [("groups-read", [0])], "stranger", 0)
    await group.fetch("fetched by an epoch alone", [("groups-read", [0])], None, 7)
    await group.delete_offsets("deleted while it reads", "groups-read", 0)
    await group.delete_offsets("deleted of no topic", "nowhere", 0)
    await group.delete_offsets("nothing deleted")
    tell(
        "group deleted",
        plain(await cluster.ask(group.at, Api.DELETE_GROUPS, groups_names=["classic"])),
    )
    tell(
        "same group twice",
        plain(await cluster.ask(group.at, Api.DELETE_GROUPS, groups_names=["classic"] * 2)),
    )
    tell("848 beside it", _beat(await group.comes("m" * 22, ["groups-read"])))

    async def leave(title: str, *members: tuple[str, str | None]) -> None:
        given = [{"member_id": member, "group_instance_id": instance} for member, instance in members]
        told = await cluster.ask(group.at, Api.LEAVE_GROUP, 5, group_id="classic", members=given)
        tell(title, plain(told))

    await leave("no one leaves")
    await leave("a stranger leaves", ("stranger", None))
    await leave("an instance leaves", ("", "nobody"))
    await leave("a member with an instance leaves", (me, "nobody"))
    await leave("a member and a stranger leave", (me, None), ("stranger", None), (me, None))
    tell("heartbeat then", plain(await group.beat(me, generation)))
    await group.commit("commit then", me, generation, ("groups-read", 0, 5))
    await group.commit("commit then, by nobody", "", -1, ("groups-read", 0, 5))
    await group.delete_offsets("deleted then", "groups-read", 0, 1)
    await group.fetch("fetched then", [("groups-read", [0, 1])])
    described = await cluster.ask(
        group.at, Api.DESCRIBE_GROUPS, groups=["classic"], include_authorized_operations=False
    )
    tell("described", plain(described))
    described = await cluster.ask(group.at, Api.DESCRIBE_GROUPS, groups=["classic"] * 2)
    tell("described twice", [[each.group_id, each.group_state] for each in described.groups])
    tell(
        "group deleted then", plain(await cluster.ask(group.at, Api.DELETE_GROUPS, groups_names=["classic"]))
    )
    tell("and again", plain(await cluster.ask(group.at, Api.DELETE_GROUPS, groups_names=["classic"])))
    for kind in (2, 3, -1):
        told = await cluster.ask(None, Api.FIND_COORDINATOR, 4, key_type=kind, coordinator_keys=["classic"])
        tell(f"coordinator of kind {kind}", plain([each.error_code for each in told.coordinators]))
    told = await cluster.ask(
        None, Api.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["", "classic", "classic"]
    )
    tell("coordinators", sorted([each.key, each.error_code] for each in told.coordinators))
    told = await cluster.ask(None, Api.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[])
    tell("coordinators of none", plain(told))


async def static(cluster: Cluster, tell: Tell) -> None:
    """Members with an instance id, of the classic protocol."""
    await cluster.make("static-read")
    group = await Group.of(cluster, "static", tell)
    first = await group.join("", "one")
    tell(
        "first", [first.error_code, first.generation_id, first.leader == first.member_id, len(first.members)]
    )
    tell("sync", plain(await group.sync(first.member_id, first.generation_id, group_instance_id="one")))
    again = await group.join("", "one")
    tell(
        "the same instance",
        [
            again.error_code,
            again.generation_id,
            again.leader == again.member_id,
            again.skip_assignment,
            len(again.members),
        ],
    )
    tell("heartbeat of the former", plain(await group.beat(first.member_id, again.generation_id, "one")))
    tell(
        "heartbeat of the former, by id alone", plain(await group.beat(first.member_id, again.generation_id))
    )
    tell("heartbeat of the new one", plain(await group.beat(again.member_id, again.generation_id, "one")))
    await group.commit(
        "commit of the former", first.member_id, again.generation_id, ("static-read", 0, 1), instance="one"
    )
    told = await group.join(first.member_id, "one")
    tell("join of the former", [told.error_code, told.generation_id])
    told = await group.sync(first.member_id, again.generation_id, group_instance_id="one")
    tell("sync of the former", plain(told))
    for title, member in (("another member", "x"), ("no member", "")):
        given = [{"member_id": member, "group_instance_id": "one"}]
        left = await cluster.ask(group.at, Api.LEAVE_GROUP, 5, group_id="static", members=given)
        tell(f"{title} leaves", plain(left))
    tell("heartbeat then", plain(await group.beat(again.member_id, again.generation_id, "one")))


async def consumers(cluster: Cluster, tell: Tell) -> None:
    """The consumer protocol (KIP-848)."""
    topic_id = await cluster.make("consumed", [[1, 2, 3], [2, 3, 1]])
    group = await Group.of(cluster, "consumers", tell)
    a, b = (str(UUID(int=number)) for number in (1, 2))
    wrong: dict[str, tuple[str, int, dict[str, Any]]] = {
        "no name": (a, JOIN, {"group_id": ""}),
        "no member": ("", JOIN, {}),
        "no topics": (a, JOIN, {"subscribed_topic_names": None}),
        "a null of partitions": (a, JOIN, {"topic_partitions": None}),
        "partitions of its own": (a, JOIN, {"topic_partitions": [{"topic_id": topic_id, "partitions": [0]}]}),
        "no time to rebalance": (a, JOIN, {"rebalance_timeout_ms": -1}),
        "0 ms to rebalance": (a, JOIN, {"rebalance_timeout_ms": 0}),
        "an empty instance": (a, JOIN, {"instance_id": ""}),
        "an empty rack": (a, JOIN, {"rack_id": ""}),
        "an empty assignor": (a, JOIN, {"server_assignor": ""}),
        "no such assignor": (a, JOIN, {"server_assignor": "sticky"}),
        "an empty pattern": (a, JOIN, {"subscribed_topic_regex": "", "subscribed_topic_names": None}),
        "a broken pattern": (a, JOIN, {"subscribed_topic_regex": "(", "subscribed_topic_names": None}),
        "epoch -3": (a, -3, {}),
        "epoch -2 without an instance": (a, LEAVE_STATIC, {}),
        "a stranger with epoch 1": (a, 1, {}),
        "a stranger leaves": (a, LEAVE, {}),
        "a strange instance leaves": (a, LEAVE_STATIC, {"instance_id": "nobody"}),
    }
    for title, (member, epoch, more) in wrong.items():
        other = await Group.of(cluster, f"consumers {title}", tell)
        tell(f"heartbeat: {title}", _beat(await other.comes(member, ["consumed"], epoch, **more)))
    first = await group.comes(a, ["consumed"])
    tell("comes", _beat(first))
    epoch = first.member_epoch
    owned = [{"topic_id": topic_id, "partitions": [0, 1]}]
    tell("says nothing new", _beat(await group.consume(a, epoch)))
    tell("has them", _beat(await group.consume(a, epoch, topic_partitions=owned)))
    tell("comes again", _beat(await group.comes(a, ["consumed"])))
    tell("a future epoch", _beat(await group.consume(a, epoch + 5)))
    tell("an assignor that is none", _beat(await group.consume(a, epoch, server_assignor="x")))
    told = await group.comes(a, ["consumed", "not-there"], epoch, topic_partitions=owned)
    tell("another subscription", _beat(told))
    epoch = told.member_epoch
    for title, more in (
        ("an empty pattern beside it", {"subscribed_topic_regex": ""}),
        ("a pattern of the client's", {"subscribed_topic_names": ["consumed", "not-there"]}),
        ("an empty name", {"subscribed_topic_names": ["consumed", ""]}),
        ("a bad name", {"subscribed_topic_names": ["consumed", "a b"]}),
        ("a name twice", {"subscribed_topic_names": ["consumed", "consumed"]}),
        ("no names", {"subscribed_topic_names": []}),
        ("the first names", {"subscribed_topic_names": ["consumed"]}),
        ("more time to rebalance", {"rebalance_timeout_ms": 60_000}),
        ("a rack", {"rack_id": "r"}),
    ):
        told = await group.consume(a, epoch, topic_partitions=owned, **more)
        # Whether an assignment that has not changed is told again is the cluster's affair.
        tell(title, [told.error_code, told.member_epoch])
        if not told.error_code:
            epoch = told.member_epoch
        now = await cluster.until(
            lambda epoch=epoch: group.consume(a, epoch),
            lambda told: told.error_code or told.assignment is None,
        )
        epoch = max(epoch, now.member_epoch)
    tell("a classic member beside it", plain([(await group.join()).error_code]))
    tell("an old epoch", _beat(await group.consume(a, epoch - 1)))
    tell("an old epoch with its partitions", _beat(await group.consume(a, epoch - 1, topic_partitions=owned)))
    await group.commit("commit", a, epoch, ("consumed", 0, 3))
    await group.commit("commit of a stale epoch", a, epoch - 1, ("consumed", 0, 4))
    await group.commit("commit of a future epoch", a, epoch + 1, ("consumed", 0, 4))
    await group.commit("commit of epoch -1", a, -1, ("consumed", 0, 4))
    await group.commit("commit of epoch 0", a, 0, ("consumed", 0, 4))
    await group.commit("commit by a stranger", b, epoch, ("consumed", 0, 4))
    await group.commit("commit by nobody", "", -1, ("consumed", 0, 4))
    await group.commit("commit by an instance", a, epoch, ("consumed", 0, 4), instance="nobody")
    at = await cluster.coordinator("consumers")
    stale = {"group_id": "consumers", "member_id": a, "generation_id_or_member_epoch": 0}
    for version in (7, 8, 9):
        told = await cluster.ask(at, Api.OFFSET_COMMIT, version, **stale, topics=_offsets(("consumed", 0, 4)))
        tell(f"commit of epoch 0, version {version}", plain(told))
    await group.fetch("fetched", [("consumed", [0, 1])], a, epoch)
    await group.fetch("fetched with a stale epoch", [("consumed", [0])], a, epoch - 1)
    await group.fetch("fetched with a future epoch", [("consumed", [0])], a, epoch + 1)
    await group.fetch("fetched by a stranger", [("consumed", [0])], b, epoch)
    await group.fetch("fetched by nobody", [("consumed", [0])])
    await group.fetch("fetched by a member without an epoch", [("consumed", [0])], a)
    await group.delete_offsets("deleted while it reads", "consumed", 0)
    tell("group deleted", plain(await cluster.ask(group.at, Api.DELETE_GROUPS, groups_names=["consumers"])))
    for version in (5, 6):
        told = await cluster.ask(group.at, Api.DESCRIBE_GROUPS, version, groups=["consumers"])
        tell(f"described as a classic one, version {version}", plain(told))
    told = await cluster.ask(group.at, Api.CONSUMER_GROUP_DESCRIBE, group_ids=["consumers"])
    for each in told.groups:
        each.group_epoch = each.assignment_epoch = 0
        for member in each.members:
            member.member_epoch = 0
            member.subscribed_topic_regex = member.subscribed_topic_regex or None
    tell("described", plain(told))
    tell(
        "the same described twice",
        len((await cluster.ask(group.at, Api.CONSUMER_GROUP_DESCRIBE, group_ids=["consumers"] * 2)).groups),
    )
    beat = await group.beat(a, epoch)
    tell("a classic heartbeat", plain(beat))
    tell("a classic sync", plain(await group.sync(a, epoch)))
    left = await cluster.ask(group.at, Api.LEAVE_GROUP, 5, group_id="consumers", members=[{"member_id": a}])
    tell("a classic leave", plain(left))
    tell("leaves", _beat(await group.consume(a, LEAVE)))
    tell("leaves again", _beat(await group.consume(a, LEAVE)))
    await group.commit("commit then", a, epoch, ("consumed", 0, 5))
    await group.commit("commit then, by nobody", "", -1, ("consumed", 0, 5))
    await group.fetch("fetched then", [("consumed", [0])])
    await group.delete_offsets("deleted then", "consumed", 0)
    tell(
        "group deleted then",
        plain(await cluster.ask(group.at, Api.DELETE_GROUPS, groups_names=["consumers"])),
    )


async def static_consumers(cluster: Cluster, tell: Tell) -> None:
    """Members of the consumer protocol with an instance id."""
    await cluster.make("kept", [[1, 2, 3], [2, 3, 1]])
    group = await Group.of(cluster, "static consumers", tell)
    a, b, c = (str(UUID(int=number)) for number in (11, 12, 13))

    async def comes(title: str, member: str, epoch: int = JOIN, instance: str = "one") -> Any:
        told = await group.comes(member, ["kept"], epoch, instance_id=instance)
        tell(title, _beat(told))
        return told

    first = await comes("comes", a)
    await comes("another with its instance", b)
    await comes("the same comes again", a)
    tell("beats", _beat(await group.consume(a, first.member_epoch, instance_id="one")))
    tell("beats without its instance", _beat(await group.consume(a, first.member_epoch)))
    tell("beats with another instance", _beat(await group.consume(a, first.member_epoch, instance_id="two")))
    tell("goes for a while, another's", _beat(await group.consume(b, LEAVE_STATIC, instance_id="one")))
    tell("goes for a while", _beat(await group.consume(a, LEAVE_STATIC, instance_id="one")))
    tell("beats meanwhile", _beat(await group.consume(a, first.member_epoch, instance_id="one")))
    await group.commit("commits meanwhile", a, first.member_epoch, ("kept", 0, 1), instance="one")
    second = await comes("another takes its place", b)
    tell("the former beats", _beat(await group.consume(a, first.member_epoch, instance_id="one")))
    tell("the former leaves", _beat(await group.consume(a, LEAVE, instance_id="one")))
    await group.commit("the former commits", a, first.member_epoch, ("kept", 0, 1), instance="one")
    await group.commit("the new one commits", b, second.member_epoch, ("kept", 0, 1), instance="one")
    await group.commit(
        "the new one commits with another instance", b, second.member_epoch, ("kept", 0, 1), instance="two"
    )
    removed = await cluster.ask(
        group.at,
        Api.LEAVE_GROUP,
        5,
        group_id="static consumers",
        members=[{"member_id": "", "group_instance_id": "one"}],
    )
    tell("removed", plain(removed))
    tell("leaves", _beat(await group.consume(b, LEAVE, instance_id="one")))
    await comes("a third", c)
    tell("leaves with another's instance", _beat(await group.consume(c, LEAVE, instance_id="two")))


JOBS = {
    "classic groups": classic,
    "static members": static,
    "consumer groups": consumers,
    "static consumers": static_consumers,
}
