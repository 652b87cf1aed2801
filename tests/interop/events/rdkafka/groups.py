"""What members of groups hear."""

from __future__ import annotations

from typing import Any

import confluent_kafka as ck
from confluent_kafka import admin as ca

from ..record import PATIENCE, Heard, Tell, until
from .clients import client, make, outcome, told, write


class Member(Heard):
    """A member of a group, and what it is told of its partitions."""

    def __init__(self, group: str, name: str, topic: str, **more: Any) -> None:
        super().__init__()
        self.commits: list[Any] = []
        self.errors: list[Any] = []
        usual = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        settings = client(**{**usual, "group_id": group, "client_id": name, **more})
        settings["error_cb"] = lambda error: self.errors.append(told(error))
        self.consumer = ck.Consumer({**settings, "on_commit": self._committed})
        self.consumer.subscribe(
            [topic],
            on_assign=lambda _, places: self.on_partitions_assigned(places),
            on_revoke=lambda _, places: self.on_partitions_revoked(places),
            on_lost=lambda _, places: self.on_partitions_lost(places),
        )

    def _committed(self, error: Any, places: Any) -> None:
        self.commits.append(
            [told(error), [[each.partition, each.offset, each.metadata, told(each.error)] for each in places]]
        )

    def poll(self) -> None:
        self.consumer.poll(0.1)


def share(tell: Tell, group: str, by_number: bool, **more: Any) -> None:
    """Two members come, and one goes. by_number: which partitions each has is told, and not only how many."""
    make(group, 4)
    first = Member(group, "a", group, **more)
    until(lambda: first.poll() or len(first.held) == 4)
    second = Member(group, "b", group, **more)
    until(lambda: first.poll() or second.poll() or len(first.held) == len(second.held) == 2)
    second.consumer.close()
    until(lambda: first.poll() or len(first.held) == 4)
    first.consumer.close()
    for name, member in (("first", first), ("second", second)):
        tell(name, member.told if by_number else [[what, len(numbers)] for what, numbers in member.told])


def commits(tell: Tell) -> None:
    make("commits", 2)
    write("commits", [b"a", b"b"])
    member = Member("commits", "a", "commits")
    until(lambda: member.poll() or len(member.held) == 2)

    def place(offset: int, partition: int = 0, metadata: str = "", topic: str = "commits") -> Any:
        return ck.TopicPartition(topic, partition, offset, metadata)

    def commit(consumer: ck.Consumer, *places: Any) -> Any:
        return outcome(
            lambda: consumer.commit(offsets=list(places), asynchronous=False),
            lambda result: [[each.partition, each.offset, told(each.error)] for each in result],
        )

    tell("waited for", commit(member.consumer, place(1, 0, "note"), place(0, 1)))
    member.consumer.commit(offsets=[place(2, 0, "later")], asynchronous=True)
    until(lambda: member.poll() or len(member.commits) >= 1)
    tell("callbacks", member.commits)
    found = member.consumer.committed([place(0), place(0, 1)], PATIENCE)
    tell("committed", [[each.offset, each.metadata] for each in found])
    tell("beyond the end", commit(member.consumer, place(1000)))
    tell("no such partition", commit(member.consumer, place(1, 9)))
    tell("no such topic", commit(member.consumer, place(1, 0, "", "nowhere")))
    tell("too much metadata", commit(member.consumer, place(1, 0, "x" * 5000)))
    stranger = ck.Consumer(client(group_id="commits"))
    tell("by no member", commit(stranger, place(1)))
    admin = ca.AdminClient(client())
    group = ck.ConsumerGroupTopicPartitions("commits", [place(0)])
    tell(
        "altered under a member",
        outcome(
            lambda: admin.alter_consumer_group_offsets([group])["commits"].result(PATIENCE),
            lambda result: [told(each.error) for each in result.topic_partitions],
        ),
    )
    tell(
        "deleted under a member",
        outcome(lambda: admin.delete_consumer_groups(["commits"])["commits"].result(PATIENCE)),
    )
    described = admin.describe_consumer_groups(["commits"])["commits"].result(PATIENCE)
    tell("described", [described.state.name, described.partition_assignor, len(described.members)])
    member.consumer.close()
    described = admin.describe_consumer_groups(["commits"])["commits"].result(PATIENCE)
    tell("described when it has left", [described.state.name, len(described.members)])
    tell("by no member, empty", commit(stranger, place(1)))
    stranger.close()
    tell("deleted", outcome(lambda: admin.delete_consumer_groups(["commits"])["commits"].result(PATIENCE)))
    tell(
        "deleted again",
        outcome(lambda: admin.delete_consumer_groups(["commits"])["commits"].result(PATIENCE)),
    )


def fenced_instances(tell: Tell) -> None:
    for protocol in ("classic", "consumer"):
        topic = f"instances-{protocol}"
        make(topic)
        given = {"group_instance_id": "one", "group_protocol": protocol}
        first = Member(topic, "a", topic, **given)
        until(lambda first=first: first.poll() or first.held)
        second = Member(topic, "b", topic, **given)
        until(
            lambda first=first, second=second: first.poll() or second.poll() or first.errors or second.errors,
            20,
        )
        tell(f"{protocol}: first", first.errors)
        tell(f"{protocol}: second", [second.errors, sorted(second.held)])
        for each in (first, second):
            each.consumer.close()
