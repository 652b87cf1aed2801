"""Bytes of the records of `__transaction_state`, against those that Kafka's serializers write."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from insync.replication.core.groups.record_codec import Unknown
from insync.replication.core.transactions.records import (
    Status,
    TopicPartitions,
    TransactionKey,
    TransactionValue,
    by_topic,
    decode_transaction,
    encode_transaction,
    encode_transaction_key,
)

FILE = Path(__file__).with_name("golden_transactions.txt")
KEY = TransactionKey("etl-épée")
EMPTY = TransactionValue(
    producer_id=1234567890123,
    producer_epoch=0,
    timeout_ms=60_000,
    status=Status.EMPTY,
    last_update_ms=1_700_000_000_001,
)
ONGOING = structs.replace(
    EMPTY,
    status=Status.ONGOING,
    producer_epoch=7,
    topics=(
        TopicPartitions(topic="größe", partitions=(0, 300)),
        TopicPartitions(topic="orders", partitions=(2,)),
    ),
    start_ms=1_700_000_000_000,
)
GOLDEN = {
    "empty": EMPTY,
    "ongoing": ONGOING,
    "prepared": structs.replace(
        ONGOING, status=Status.PREPARE_COMMIT, producer_epoch=32767, next_producer_id=99, client_version=2
    ),
    "complete": structs.replace(
        EMPTY,
        status=Status.COMPLETE_ABORT,
        topics=(),
        previous_producer_id=1234567890123,
        producer_id=99,
        client_version=2,
    ),
}


def lines() -> list[tuple[str, int, bytes, bytes]]:
    found = []
    for line in FILE.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            name, version, key, value = line.split()
            found.append((name, int(version), bytes.fromhex(key), bytes.fromhex(value)))
    return found


@pytest.mark.parametrize(("name", "version", "key", "value"), lines())
def test_the_bytes_are_kafkas(name: str, version: int, key: bytes, value: bytes) -> None:
    assert encode_transaction_key(KEY) == key
    assert encode_transaction(GOLDEN[name], version) == value
    assert decode_transaction(key, value) == (KEY, GOLDEN[name])


def test_what_kafka_has_no_field_for_is_kept_and_skipped_by_others() -> None:
    ours = structs.replace(EMPTY, last_epoch=5)
    data = encode_transaction(ours)
    assert decode_transaction(encode_transaction_key(KEY), data) == (KEY, ours)
    assert data != encode_transaction(EMPTY)


def test_a_tombstone_and_what_nobody_understands() -> None:
    key = encode_transaction_key(KEY)
    assert decode_transaction(key, None) == (KEY, None)
    for wrong in ((None, b""), (b"\0", None), (b"\0\1" + key[2:], None), (key, b"\0"), (key, b"\0\2")):
        assert isinstance(decode_transaction(*wrong), Unknown)
    bad = bytearray(encode_transaction(EMPTY, 0))
    bad[16] = 9  # the state
    assert isinstance(decode_transaction(key, bytes(bad)), Unknown)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_nothing_in_a_log_raises(key: bytes, value: bytes) -> None:
    decode_transaction(key, value)
    decode_transaction(encode_transaction_key(KEY), b"\0\1" + value)


def test_partitions_stand_by_topic_in_order() -> None:
    partitions = frozenset({("b", 3), ("a", 2), ("b", 1)})
    topics = by_topic(partitions)
    assert [(each.topic, each.partitions) for each in topics] == [("a", (2,)), ("b", (1, 3))]
    assert structs.replace(EMPTY, topics=topics).partitions == partitions


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 128, 249, 16_383])
def test_names_of_any_length_are_read_as_they_were_written(length: int) -> None:
    """Lengths are numbers of one byte or of several."""
    topics = (TopicPartitions(topic="t" * length, partitions=tuple(range(length))),)
    written = structs.replace(ONGOING, topics=topics)
    key = TransactionKey("k" * length)
    for _ in range(2):
        found = decode_transaction(encode_transaction_key(key), encode_transaction(written))
        assert found == (key, written)
