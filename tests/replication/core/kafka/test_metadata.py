"""What is made of the records of Kafka's controllers, one by one."""

from __future__ import annotations

import pytest

from insync.replication.core.kafka import metadata as kafka_metadata

from ...node.recovery import kafka_folder as kafka


def told(*values: bytes) -> kafka_metadata.KafkaMetadata:
    return kafka_metadata.read((1, len(values)), values)


def test_a_transaction_of_the_controllers_counts_when_it_has_ended() -> None:
    begin, end, abort = (kafka.framed(kind, 0, b"\0") for kind in (23, 24, 25))
    made = [kafka.topic_record("t"), kafka.partition_record("t", 0, (1,))]
    assert [each.name for each in told(begin, *made, end).topics] == ["t"]
    assert not told(begin, *made, abort).topics
    assert not told(begin, *made).topics
    assert [each.name for each in told(begin, abort, *made).topics] == ["t"]


def test_changes_of_a_partition_and_of_settings() -> None:
    made = [kafka.topic_record("t"), kafka.partition_record("t", 0, (1, 2), epoch=5)]
    made += [kafka.change_record("t", 0, leader=2, isr=(2,)), kafka.change_record("t", 0, isr=(2, 1))]
    made += [kafka.config_record(2, "t", "a", "1"), kafka.config_record(2, "t", "b", "2")]
    (topic,) = told(*made, kafka.config_record(2, "t", "a", None)).topics
    partition = topic.partitions[0]
    assert (partition.isr, partition.leader_epoch, partition.replicas) == ((2, 1), 6, (1, 2))
    assert topic.config == {"b": "2"}
    gone = [kafka.framed(9, 0, kafka.topic_id("t") + b"\0")]
    assert not told(*made, *gone).topics
    (again,) = told(*made, *gone, kafka.topic_record("t", bytes(16))).topics
    assert again.config == {}, "settings go with the topic"


def test_those_eligible_to_lead_are_known_until_they_are_cleared() -> None:
    """KIP-966: tag 1 of a partition's record, tag 6 of a change."""
    body = (
        (0).to_bytes(4)
        + kafka.topic_id("t")
        + kafka.numbers((1, 2))
        + kafka.numbers((1,))
        + kafka.numbers(()) * 2
    )
    body += (1).to_bytes(4) + (0).to_bytes(4) * 2 + kafka.uvarint(1)
    eligible = kafka.numbers((2,))
    made = kafka.framed(3, 2, body + b"\1\1" + kafka.uvarint(len(eligible)) + eligible)
    first = [kafka.topic_record("t"), made]
    assert told(*first).topics[0].partitions[0].elr == (2,)
    for name in ("", "t"):
        assert told(*first, kafka.framed(28, 0, kafka.text(name) + b"\0")).topics[0].partitions[0].elr == ()
    assert told(*first, kafka.framed(28, 0, kafka.text("u") + b"\0")).topics[0].partitions[0].elr == (2,)


@pytest.mark.parametrize(
    "value", [b"", b"\xff" * 6, b"\x02\x02\x00", b"\x01\x02\x05x", b"\x01\x03\x00" + bytes(8)]
)
def test_bytes_that_are_no_metadata_record_are_refused(value: bytes) -> None:
    with pytest.raises(kafka_metadata.KafkaMetadataError):
        told(value)


def test_a_change_of_a_partition_that_nobody_made_is_refused() -> None:
    with pytest.raises(kafka_metadata.KafkaMetadataError, match="unknown"):
        told(kafka.change_record("t", 0, leader=1))


def test_what_topics_inherit_from_the_brokers_file() -> None:
    given = {
        "log.retention.hours": "2",
        "log.retention.minutes": "30",
        "log.roll.hours": "1",
        "zookeeper.connect": "x",
    }
    assert kafka_metadata.inherited(given) == {"retention.ms": "1800000", "segment.ms": "3600000"}
    assert kafka_metadata.inherited({"log.retention.hours": "-1"}) == {"retention.ms": "-1"}
    with pytest.raises(kafka_metadata.KafkaMetadataError, match=r"log\.roll\.hours=x"):
        kafka_metadata.inherited({"log.roll.hours": "x"})
