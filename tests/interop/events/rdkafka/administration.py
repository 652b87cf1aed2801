"""What administrators are answered."""

from __future__ import annotations

from typing import Any

import confluent_kafka as ck
from confluent_kafka import admin as ca

from ..record import PATIENCE, Tell, until
from .clients import NOW, client, ended, make, outcome, told, write


def _creations() -> dict[str, ca.NewTopic]:
    """Topics that cannot be made."""
    given: list[tuple[str, int, int, dict[str, Any]]] = [
        ("managed", 1, 3, {}),
        ("a b", 1, 3, {}),
        ("..", 1, 3, {}),
        ("x" * 250, 1, 3, {}),
        ("no-partitions", 0, 3, {}),
        ("many-replicas", 1, 9, {}),
        ("no-replicas", 1, 0, {}),
        ("__consumer_offsets", 1, 3, {}),
        ("unknown-setting", 1, 3, {"config": {"no.such.setting": "1"}}),
        ("bad-number", 1, 3, {"config": {"retention.ms": "soon"}}),
        ("bad-range", 1, 3, {"config": {"max.message.bytes": "-5"}}),
        ("bad-word", 1, 3, {"config": {"cleanup.policy": "burn"}}),
    ]
    placed = {"node-twice": [[1, 1]], "no-such-node": [[1, 9]], "uneven": [[1, 2], [1]]}
    return {
        name: ca.NewTopic(name, partitions, replicas, **more) for name, partitions, replicas, more in given
    } | {name: ca.NewTopic(name, len(places), replica_assignment=places) for name, places in placed.items()}


def creations(tell: Tell) -> None:
    admin = make("managed", 2)
    for name, new in _creations().items():
        tell(name[:30], ended(admin.create_topics, [new]))
    for topic, count in (("managed", 1), ("managed", 2), ("managed", 0), ("nowhere", 3)):
        grow = outcome(lambda topic=topic, count=count: ca.NewPartitions(topic, count), lambda made: made)
        if isinstance(grow, ca.NewPartitions):
            grow = ended(admin.create_partitions, [grow])
        tell(f"grow {topic} to {count}", grow)
    tell("delete what is not", ended(admin.delete_topics, ["nowhere"]))


def settings(tell: Tell) -> None:
    admin = make("settings")
    kind = ca.ConfigResource.Type.TOPIC
    for name, value in (
        ("no.such.setting", "1"),
        ("retention.ms", "soon"),
        ("retention.ms", "-5"),
        ("segment.bytes", "0"),
        ("retention.ms", "1000000"),
    ):
        entry = ca.ConfigEntry(name, value, incremental_operation=ca.AlterConfigOpType.SET)
        for topic in ("settings", "nowhere"):
            changed = ca.ConfigResource(kind, topic, incremental_configs=[entry])
            tell(f"{name}={value} of {topic}", ended(admin.incremental_alter_configs, [changed]))
    for topic in ("settings", "nowhere"):
        asked = ca.ConfigResource(kind, topic)
        tell(
            f"of {topic}",
            ended(
                admin.describe_configs,
                [asked],
                value=lambda found: [found[name].value for name in ("retention.ms", "cleanup.policy")],
            ),
        )


def records_and_leaders(tell: Tell) -> None:
    admin = make("kept", 2)
    write("kept", [b"a", b"b", b"c"])
    for topic, partition, offset in (
        ("kept", 0, 0),
        ("kept", 0, 9),
        ("kept", 0, 2),
        ("kept", 0, 1),
        ("kept", 9, 0),
        ("nowhere", 0, 0),
    ):
        place = ck.TopicPartition(topic, partition, offset)
        tell(
            f"delete {topic}-{partition} up to {offset}",
            ended(admin.delete_records, [place], value=lambda result: result.low_watermark),
        )
        if offset in (0, 9):
            tell(
                f"elect {topic}-{partition}, asked at {offset}",
                outcome(
                    lambda place=place: admin.elect_leaders(ck.ElectionType.PREFERRED, [place]).result(
                        PATIENCE
                    ),
                    lambda result: [told(each) for each in result.values()],
                ),
            )
    for topic, partition in (("kept", 0), ("kept", 1), ("nowhere", 0)):
        place = ck.TopicPartition(topic, partition)
        for when, spec in (
            ("earliest", ca.OffsetSpec.earliest()),
            ("latest", ca.OffsetSpec.latest()),
            ("greatest", ca.OffsetSpec.max_timestamp()),
            ("of a time", ca.OffsetSpec.for_timestamp(NOW)),
        ):
            tell(
                f"{when} of {topic}-{partition}",
                ended(
                    admin.list_offsets,
                    {place: spec},
                    value=lambda result: [
                        result.offset,
                        result.timestamp - NOW if result.timestamp > 0 else result.timestamp,
                    ],
                ),
            )
    for name in ("kept", "nowhere"):
        tell(
            f"describe {name}",
            ended(
                admin.describe_topics,
                ck.TopicCollection([name]),
                value=lambda result: [
                    [each.id, len(each.replicas), len(each.isr)] for each in result.partitions
                ],
            ),
        )


def groups_and_users(tell: Tell) -> None:
    admin = ca.AdminClient(client())
    tell(
        "describe no group",
        ended(admin.describe_consumer_groups, ["nobody"], value=lambda found: found.state.name),
    )
    asked = ck.ConsumerGroupTopicPartitions("nobody")
    tell(
        "offsets of no group",
        ended(admin.list_consumer_group_offsets, [asked], value=lambda found: len(found.topic_partitions)),
    )
    tell("delete no group", ended(admin.delete_consumer_groups, ["nobody"]))
    tell("no such user", ended(admin.describe_user_scram_credentials, ["nobody"]))
    mechanism = ca.ScramMechanism.SCRAM_SHA_256
    gone = ca.UserScramCredentialDeletion("nobody", mechanism)
    tell("delete no user", ended(admin.alter_user_scram_credentials, [gone]))
    for count in (10, 50_000, 4096):
        info = ca.ScramCredentialInfo(mechanism, count)
        change = ca.UserScramCredentialUpsertion("made", info, b"password")
        tell(f"a user of {count} iterations", ended(admin.alter_user_scram_credentials, [change]))
    found: Any = None

    def is_there() -> bool:
        nonlocal found
        found = ended(
            admin.describe_user_scram_credentials,
            ["made"],
            value=lambda user: [each.iterations for each in user.scram_credential_infos],
        )
        return found == [4096]

    until(is_there, 20)
    tell("the user, in time", found)
