"""Records of `__consumer_offsets`: Kafka's bytes, byte for byte, and whatever else may stand in a log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.replication.core.groups import record_codec
from insync.replication.core.groups import records as r
from insync.replication.core.groups.record_codec import Unknown, decode_record, encode_key, encode_value
from insync.replication.core.kafka.schema import MAX_VERSION, Field, Schema, decode

from .golden import FIRST, GOLDEN, as_read, lines

WRITTEN = {"offset": 3, "classic": 3, "classic_empty": 3}
"""The version that is written; 0 for all others."""


@pytest.mark.parametrize(("name", "version", "key", "value"), lines())
def test_kafkas_bytes_are_read_and_written(name: str, version: int, key: bytes, value: bytes) -> None:
    decoded = decode_record(key, value)
    assert decoded == as_read(name, version)
    ours, wanted = GOLDEN[name]
    assert encode_key(ours) == key
    assert encode_value(ours, wanted, version) == value
    if WRITTEN.get(name, 0) == version and "offset_" not in name:
        assert encode_value(ours, wanted) == value


def test_every_type_has_a_golden_record() -> None:
    found = {int.from_bytes(key[:2], "big") for _, _, key, _ in lines()}
    assert found == {1, 2, 3, 4, 5, 6, 7, 8, 16}


def test_type_zero_is_an_offset_too() -> None:
    key = encode_key(r.OffsetKey("g", "t", 1))
    assert decode_record(b"\x00\x00" + key[2:], None) == (r.OffsetKey("g", "t", 1), None)


def test_the_epochs_of_partitions_come_back() -> None:
    """KIP-1251's tag 0 of each topic; the length of the tagged field and its array by hand."""
    owned = {r.TopicPartition(FIRST, 1): 7, r.TopicPartition(FIRST, 0): 3}
    value = r.CurrentValue(epoch=7, previous_epoch=6, assigned=r.owned_topics(owned))
    key = r.CurrentKey("g", "m")
    data = encode_value(key, value)
    tail = bytes.fromhex("03 00000000 00000001 01 00 09 03 00000003 00000007".replace(" ", ""))
    assert data == bytes.fromhex("0000 00000007 00000006 00 02".replace(" ", "") + FIRST) + tail + b"\x01\x00"
    assert decode_record(encode_key(key), data) == (key, value)
    assert r.as_owned(value.assigned, 9) == owned


def test_partitions_without_epochs_get_that_of_their_member() -> None:
    topics = (
        r.TopicPartitions(topic_id=FIRST, partitions=(0, 1)),
        r.TopicPartitions(topic_id=FIRST, partitions=(2,), epochs=(1, 2)),
    )
    assert r.as_owned(topics, 9) == {r.TopicPartition(FIRST, number): 9 for number in range(3)}
    assert r.as_set(topics) == {r.TopicPartition(FIRST, number) for number in range(3)}


def test_a_tag_from_the_future_is_skipped() -> None:
    key, value = (
        encode_key(r.ConsumerGroupKey("g")),
        encode_value(r.ConsumerGroupKey("g"), r.ConsumerGroupValue(epoch=4)),
    )
    newer = value[:-1] + b"\x01\x63\x02ab"
    assert decode_record(key, newer) == (r.ConsumerGroupKey("g"), r.ConsumerGroupValue(epoch=4))


def test_a_nullable_structure_under_a_tag_may_be_null() -> None:
    key = r.MemberKey("g", "m")
    data = encode_value(key, r.MemberValue())[:-1] + b"\x01\x00\x01\xff"
    assert decode_record(encode_key(key), data) == (key, r.MemberValue())


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (None, b"", "without a type"),
        (b"\x00", b"", "without a type"),
        (b"\x00\x09\x00\x01g", b"\x00\x00", "type 9"),
        (b"\x00\x11\x00\x01g", None, "type 17"),
        (b"\xff\xff\x00\x01g", None, "type -1"),
        (b"\x00\x03\x00\x01g", b"\x00\x01", "type 3 version 1"),
        (b"\x00\x02\x00\x01g", b"\x00\x05", "type 2 version 5"),
        (b"\x00\x02\x00\x01g", b"\xff\xff", "type 2 version -1"),
        (b"\x00\x03\x00\x01g", b"\x00", "without a version"),
        (b"\x00\x03\x00\x01g", b"\x00\x00\x00", "ends at byte 1"),
        (b"\x00\x03\x00\x01gg", None, "1 bytes after"),
        (b"\x00\x03\xff\xff", None, "null"),
        (b"\x00\x03\x00\x01\xff", None, "UTF-8"),
        (b"\x00\x07\x00\x01g\x00\x01m", b"\x00\x00\x00", "null"),
        (b"\x00\x07\x00\x01g\x00\x01m", b"\x00\x00\xff\xff\xff\xff\x07", "elements in 0 bytes"),
        (b"\x00\x07\x00\x01g\x00\x01m", b"\x00\x00\xff\xff\xff\xff\xff\x07", "five bytes"),
        (b"\x00\x03\x00\x01g", b"\x00\x00\x00\x00\x00\x01\x01\x00\x09" + bytes(9), "tag 0 has 1 bytes"),
    ],
)
def test_what_cannot_be_read_is_named_and_left_alone(
    key: bytes | None, value: bytes | None, reason: str
) -> None:
    found = decode_record(key, value)
    assert isinstance(found, Unknown)
    assert reason in found.reason


@given(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 8, 16]), st.binary(max_size=40), st.binary(max_size=80))
def test_no_bytes_raise(type_: int, key: bytes, value: bytes) -> None:
    decode_record(type_.to_bytes(2, "big") + key, value)


@given(st.sampled_from(lines()), st.integers(0, 200), st.integers(0, 255))
def test_no_damage_raises(line: tuple[str, int, bytes, bytes], at: int, byte: int) -> None:
    _, _, key, value = line
    broken = bytearray(value)
    broken[at % len(broken)] = byte
    decode_record(key, bytes(broken))


@given(st.text(max_size=5), st.text(max_size=5), st.integers(0, 60), st.binary(max_size=3), st.integers(0, 4))
def test_the_quick_way_reads_what_the_tables_read(
    group: str, metadata: str, at: int, damage: bytes, where: int
) -> None:
    """Whole records and damaged ones alike."""
    key = r.OffsetKey(group, "topic", 7)
    value = r.OffsetValue(offset=-5, leader_epoch=3, metadata=metadata, commit_timestamp=9)
    parts = [encode_key(key), encode_value(key, value)]
    assert record_codec._decode_offset(*parts) == (key, value)
    if where < len(parts):
        parts[where] = parts[where][:at] + damage + parts[where][at + 1 :]
    told = decode_record(*parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_codec, "_decode_offset", lambda key, value: None)
        assert decode_record(*parts) == told


def test_a_message_of_plain_versions_has_no_tags() -> None:
    schema = Schema(cls=dict, fields=[Field(name="x", type="int8", tag=1, default=3)], flexible=MAX_VERSION)
    assert decode(schema, b"", 0) == {"x": 3}
