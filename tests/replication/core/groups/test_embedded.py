"""Subscriptions and assignments of the classic protocol: Kafka's bytes, and what no client of Kafka's would say."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from insync.replication.core.groups.assignors.assignment import Partition
from insync.replication.core.groups.embedded import (
    EmbeddedAssignment,
    EmbeddedSubscription,
    TopicPartitionNumbers,
    as_numbers,
    as_partitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from insync.replication.core.kafka.schema import RecordFormatError

GOLDEN = Path(__file__).parent / "golden_embedded.txt"
OWNED = (
    TopicPartitionNumbers(topic="a", partitions=(0, 2)),
    TopicPartitionNumbers(topic="größe", partitions=(1,)),
)
SAID = EmbeddedSubscription(
    topics=("a", "größe"), user_data=b"\x01\x02", owned=OWNED, generation=7, rack="rack"
)
GIVEN = EmbeddedAssignment(partitions=OWNED, user_data=b"\x09")
BARE = {
    "subscription_bare": EmbeddedSubscription(topics=()),
    "assignment_bare": EmbeddedAssignment(partitions=()),
}
LINES = [line.split() for line in GOLDEN.read_text("utf-8").splitlines() if not line.startswith("#")]


def as_said(version: int) -> EmbeddedSubscription:
    """What a subscription of that version can say."""
    missing: dict[str, object] = {"rack": None} if version < 3 else {}
    if version < 2:
        missing["generation"] = -1
    if version < 1:
        missing["owned"] = ()
    return structs.replace(SAID, **missing)


@pytest.mark.parametrize(("name", "number", "text"), LINES)
def test_kafkas_bytes_are_read_and_written(name: str, number: str, text: str) -> None:
    data, version = bytes.fromhex(text), int(number)
    if name.startswith("subscription"):
        bare = name.endswith("bare")
        assert decode_subscription(data) == (BARE[name] if bare else as_said(version))
        assert encode_subscription(EmbeddedSubscription(topics=()) if bare else SAID, version) == data
    else:
        wanted = BARE.get(name, GIVEN)
        assert isinstance(wanted, EmbeddedAssignment)
        assert decode_assignment(data) == wanted
        assert encode_assignment(wanted, version) == data


def test_a_later_version_begins_as_the_one_that_is_known() -> None:
    data = b"\x00\x09" + encode_subscription(SAID)[2:] + b"more"
    assert decode_subscription(data) == SAID
    with pytest.raises(RecordFormatError, match="4 bytes after"):
        decode_subscription(encode_subscription(SAID) + b"more")


def test_no_bytes_are_an_assignment_of_nothing_and_no_subscription() -> None:
    assert decode_assignment(b"") == EmbeddedAssignment(partitions=())
    for data in (b"", b"\x00", b"\xff\xff"):
        with pytest.raises(RecordFormatError, match="version"):
            decode_subscription(data)


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except RecordFormatError:
            continue


def test_partitions_there_and_back() -> None:
    partitions = as_partitions(OWNED)
    assert partitions == {Partition("a", 0), Partition("a", 2), Partition("größe", 1)}
    assert as_numbers(partitions) == OWNED
