"""What is read of a stopped Kafka before anything is planned: which topics are compacted, and which folders fit."""

from __future__ import annotations

import pytest
from msgspec import structs

from insync.replication.core.kafka.metadata import KafkaMetadata, KafkaPartition, KafkaTopic
from insync.replication.core.recovery.adoption import AdoptedFolder, AdoptionError, compacts, latest, plan
from insync.replication.core.recovery.repair import FoundFolder, FoundLog

ID = "0" * 31 + "1"


def metadata(position: tuple[int, int] = (1, 1), **config: str) -> KafkaMetadata:
    """One topic, "t", whose replicas are on brokers 1 and 2."""
    partition = KafkaPartition(replicas=(1, 2), isr=(1, 2), leader_epoch=3)
    topic = KafkaTopic(name="t", topic_id=ID, partitions={0: partition}, config=config)
    return KafkaMetadata(
        position=position, topics=(topic,), broker_config={}, own_config={}, next_producer_id=0
    )


def folder(
    node_id: int, directory: str, *, cluster: str = "c", topic_id: str = ID, **config: str
) -> AdoptedFolder:
    log = FoundLog(
        topic="t", partition=0, topic_id=topic_id, log_start_offset=0, log_end_offset=5, epochs=((3, 0),)
    )
    found = FoundFolder(
        cluster_id=cluster,
        node_id=node_id,
        directory_id=directory,
        boot_id="",
        stopped_clean=1,
        incarnation=1,
        pulse=0,
        revision=0,
        logs=(log,),
    )
    return AdoptedFolder(
        source=f"/{directory}", folder=found, metadata=metadata(**config), open_transactions=(), settings={}
    )


@pytest.mark.parametrize(
    ("policy", "formerly", "compacted"),
    [
        ("delete", (), False),
        ("compact", (), True),
        ("compact,delete", (), True),
        ("delete", ("t",), True),
        ("delete", ("other",), False),
        ("compact", ("t",), True),
    ],
)
def test_offsets_may_be_missing_where_a_topic_is_or_was_compacted(
    policy: str, formerly: tuple[str, ...], compacted: bool
) -> None:
    assert compacts(metadata(**{"cleanup.policy": policy}), {}, "t", formerly) is compacted
    assert compacts(metadata(), {"log.cleanup.policy": policy}, "t", formerly) is compacted


def test_of_several_copies_of_the_metadata_the_furthest_counts() -> None:
    first, second = metadata((2, 5)), metadata((1, 90))
    assert latest([second, first, second]) is first
    with pytest.raises(AdoptionError, match="no folder holds __cluster_metadata-0"):
        latest([])


def test_folders_that_fit_are_planned_and_others_are_named() -> None:
    whole = folder(1, "a"), folder(2, "b")
    planned = plan(whole, "secret")
    assert list(planned.leaders.values()) == [(1, 2)]
    for wrong, said in (
        ((*whole, folder(1, "c")), "two folders of broker 1 hold t-0: name each folder once"),
        ((*whole, folder(2, "b")), "directory b was given twice"),
        ((folder(1, "a", cluster="other"), folder(2, "b")), "of several clusters: c, other"),
        ((*whole, folder(3, "c")), "/c holds t-0, of which broker 3 is no replica"),
        ((folder(1, "a"), folder(2, "b", topic_id="f" * 32)), "/b holds t-0, whose topic id ffff"),
    ):
        with pytest.raises(AdoptionError, match=said):
            plan(wrong, "secret")


def test_settings_that_change_nothing_are_told_and_those_that_cannot_be_kept_refuse_the_topic() -> None:
    """Whoever reads that a setting is refused can remove it in Kafka; one that is dropped silently is lost."""

    def planned(**config: str) -> tuple[str, ...]:
        return plan((folder(1, "a", **config), folder(2, "b", **config)), "secret").without_effect

    assert planned(preallocate="true") == ("t: preallocate=true",)
    assert planned(**{"remote.storage.enable": "false", "message.timestamp.type": "CreateTime"}) == ()
    for config, said in (
        ({"remote.storage.enable": "true"}, "what lies in tiered storage is not in these folders"),
        ({"message.timestamp.type": "LogAppendTime"}, "records keep their own time here"),
        ({"made.up": "1"}, "topic t has made.up=1, which topics here do not have"),
    ):
        with pytest.raises(AdoptionError, match=said):
            planned(**config)


@pytest.mark.parametrize(
    ("config", "broker", "durability", "ignored"),
    [
        ({}, {}, "replicated", ()),
        ({"flush.messages": "1"}, {}, "flushed", ()),
        ({}, {"log.flush.interval.messages": "1"}, "flushed", ()),
        (
            {"flush.messages": "9"},
            {"log.flush.interval.messages": "1"},
            "replicated",
            ("t: flush.messages=9",),
        ),
    ],
)
def test_a_topic_that_kafka_flushes_at_each_append_stays_so(
    config: dict[str, str], broker: dict[str, str], durability: str, ignored: tuple[str, ...]
) -> None:
    folders = [
        structs.replace(folder(node, name, **config), settings=broker) for node, name in ((1, "a"), (2, "b"))
    ]
    planned = plan(folders, "secret")
    assert planned.topics["t"].config.durability == durability
    assert planned.without_effect == ignored
