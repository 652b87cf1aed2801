"""Codecs of Kafka's messages: they round-trip, agree with Kafka's own classes, and bear any bytes."""

from __future__ import annotations

import random
import subprocess
import tracemalloc
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.plugins.kafka.protocol import MalformedError, Struct, decode, encode, message, message_of
from insync.plugins.kafka.protocol.structs import make
from insync.plugins.kafka.protocol.tables import read
from insync.plugins.kafka.schema import TEXTS

from ....interop.kafka import Java
from .samples import inline, messages

MESSAGES = Path(__file__).parent / "Messages.java"
KINDS = [(table.name, version) for text in TEXTS for table in read(text) for version in table.versions]
OF_KAFKA = 3
"""Random messages of each API and version that Kafka's classes make."""


def whole(told: Struct, version: int) -> bytes:
    (only,) = encode(told, version)
    return only


@cache
def minimal(name: str, version: int) -> bytes:
    return whole(message(name)(), version)


@pytest.mark.slow
@settings(max_examples=1000)
@given(st.data())
def test_what_is_encoded_is_decoded(data: st.DataObject) -> None:
    name, version = data.draw(st.sampled_from(KINDS))
    told = data.draw(messages(message(name), version))
    before = data.draw(st.binary(max_size=5))
    encoded = whole(told, version)
    for buffer in (before + encoded, memoryview(bytearray(before + encoded))):
        found, end = decode(message(name), version, buffer, len(before))
        assert end == len(buffer)
        assert inline(found, bytes(buffer)) == told


@pytest.mark.interop
def test_kafkas_own_messages_are_read_and_written_again(clients: Java) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    seen = set()
    for line in clients.run(str(MESSAGES), "make", str(seed), str(OF_KAFKA)).splitlines():
        key, direction, number, *rest = line.split()
        kind, version = message_of(int(key), is_request=direction == "request"), int(number)
        if kind is None:
            continue
        frame = bytes.fromhex(rest[0]) if rest else b""
        told, end = decode(kind, version, frame)
        assert end == len(frame), (kind.__name__, version)
        assert whole(inline(told, frame), version) == frame, (kind.__name__, version)
        seen.add((kind.__name__, version))
    assert seen == set(KINDS)


@pytest.mark.interop
def test_kafka_reads_our_messages_and_writes_the_same_bytes(clients: Java) -> None:
    """The messages are drawn first, because one Java program reads all of them."""
    lines: list[str] = []

    def line(name: str, version: int, told: bytes) -> str:
        table = message(name).TABLE
        return f"{table.key} {'request' if table.is_request else 'response'} {version} {told.hex()}"

    @settings(max_examples=1500, database=None)
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        name, version = data.draw(st.sampled_from(KINDS))
        lines.append(line(name, version, whole(data.draw(messages(message(name), version)), version)))

    lines += [line(name, version, minimal(name, version)) for name, version in KINDS]
    draw()
    done = subprocess.run(
        clients.command(str(MESSAGES), "echo"),
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    told = done.stdout.splitlines()
    assert len(told) == len(lines)
    for sent, came in zip(lines, told, strict=True):
        assert sent.split(" ")[3] == came, " ".join(sent.split(" ")[:3])


def test_records_are_a_place_and_a_hole() -> None:
    """Neither direction copies records: a decoder returns their place, an encoder leaves room for them."""
    kind = message("ProduceRequest")
    batch = bytes(range(100))
    part = kind.PartitionProduceData(index=3, records=batch)
    told = kind(acks=-1, topic_data=[kind.TopicProduceData(name="t", partition_data=[part, part])])
    for version in (8, 9):
        frame = whole(told, version)
        found, _ = decode(kind, version, frame)
        places = [each.records for each in found.topic_data[0].partition_data]
        assert [frame[at : at + size] for at, size in places] == [batch, batch]
        part.records = len(batch)
        head, middle, tail = encode(told, version)
        part.records = batch
        assert head + batch + middle + batch + tail == frame


def test_a_field_that_the_version_does_not_have_is_left_out() -> None:
    kind = message("FetchRequest")
    told = kind(rack_id="r1", max_wait_ms=7)
    old, _ = decode(kind, 4, whole(told, 4))
    new, _ = decode(kind, 11, whole(told, 11))
    assert (old.rack_id, new.rack_id, old.max_wait_ms) == ("", "r1", 7)


def test_a_tagged_field_is_written_only_if_it_says_something() -> None:
    kind = message("FetchRequest")
    plain, tagged = whole(kind(), 12), whole(kind(cluster_id="c"), 12)
    assert len(tagged) == len(plain) + 4  # tag, size, and a string of one letter
    assert decode(kind, 12, tagged)[0].cluster_id == "c"


def test_unknown_tags_are_passed_over() -> None:
    kind = message("FetchRequest")
    plain = whole(kind(max_wait_ms=5), 12)
    assert plain[-1] == 0
    found, end = decode(kind, 12, plain[:-1] + bytes([2, 77, 3, 1, 2, 3, 99, 0]))
    assert (found.max_wait_ms, end) == (5, len(plain) + 7)


@pytest.mark.parametrize(
    ("tags", "why"),
    [
        (bytes([1, 0, 3, 2, 99, 0]), "cluster_id is not as long as its tag says"),
        (bytes([1, 77, 200, 1]), "a tagged field is longer than what follows"),
        (bytes([1, 77, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01]), "a length has more than five bytes"),
        (bytes([1, 77, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F]), "a length has more than 32 bits"),
        (bytes([5, 77, 0]), "it ends too early"),
    ],
)
def test_wrong_tags_are_refused(tags: bytes, why: str) -> None:
    plain = whole(message("FetchRequest")(), 12)
    with pytest.raises(MalformedError, match=f"FetchRequest v12: {why}"):
        decode(message("FetchRequest"), 12, plain[:-1] + tags)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("ffff", "name may not be null"),
        ("7fff61", "name is longer than what follows"),
        ("000161", "it ends too early"),
        ("0001ff00000000", "text is not UTF-8"),
        ("00016100000009", "partitions has more elements than bytes follow"),
        ("000161ffffffff", "partitions may not be null"),
        ("0001617fffffff" + "00" * 40, "partitions has more elements"),
    ],
)
def test_wrong_lengths_are_refused(body: str, why: str) -> None:
    frame = bytes.fromhex("ffffffff" + "00" + "00000001" + body)
    with pytest.raises(MalformedError, match=f"ListOffsetsRequest v2: {why}"):
        decode(message("ListOffsetsRequest"), 2, frame)


def test_elements_are_counted_over_all_arrays() -> None:
    kind = message("MetadataRequest")
    told = kind(topics=[kind.MetadataRequestTopic(name="t")] * 100)
    frame = whole(told, 9)
    assert len(decode(kind, 9, frame, elements=100)[0].topics) == 100
    with pytest.raises(MalformedError, match="v9: with topics it has more than the 99 elements"):
        decode(kind, 9, frame, elements=99)
    deep = message("OffsetCommitRequest")
    part = deep.OffsetCommitRequestPartition(partition_index=1)
    topics = [deep.OffsetCommitRequestTopic(name="t", partitions=[part] * 10)] * 3
    frame = whole(deep(group_id="g", topics=topics), 8)
    decode(deep, 8, frame, elements=33)
    with pytest.raises(MalformedError, match="with partitions it has more than the 32 elements"):
        decode(deep, 8, frame, elements=32)


def test_replicas_of_ten_thousand_partitions_are_no_more_elements_than_a_request_may_have() -> None:
    """Eight of them count as one: `kafka-reassign-partitions` names each."""
    kind = message("AlterPartitionReassignmentsRequest")
    parts = [kind.ReassignablePartition(partition_index=index, replicas=[1, 2, 3]) for index in range(10_000)]
    frame = whole(kind(topics=[kind.ReassignableTopic(name="t", partitions=parts)]), 1)
    assert decode(kind, 1, frame, elements=10_001)[0].topics[0].partitions == parts
    wide = [kind.ReassignablePartition(partition_index=0, replicas=[1] * 80)]
    frame = whole(kind(topics=[kind.ReassignableTopic(name="t", partitions=wide)]), 1)
    decode(kind, 1, frame, elements=12)
    with pytest.raises(MalformedError, match="with replicas it has more than the 11 elements"):
        decode(kind, 1, frame, elements=11)


def test_tagged_fields_that_nobody_knows_count_as_elements() -> None:
    """Four million in a frame of 8 MiB kept a node from everything else for 0.3 s."""
    kind = message("FetchRequest")
    plain = whole(kind(), 12)
    tags = plain[:-1] + bytes([3]) + bytes([77, 0]) * 3
    assert decode(kind, 12, tags, elements=3)[1] == len(tags)
    with pytest.raises(MalformedError, match="with its tagged fields it has more than the"):
        decode(kind, 12, tags, elements=2)


@pytest.mark.slow
@settings(max_examples=2000)
@given(st.data())
def test_no_bytes_raise_anything_else(data: st.DataObject) -> None:
    """Random bytes, and messages that were cut or changed somewhere."""
    name, version = data.draw(st.sampled_from(KINDS))
    if data.draw(st.booleans()):
        frame = bytearray(data.draw(st.binary(max_size=300)))
    else:
        frame = bytearray(whole(data.draw(messages(message(name), version)), version))
        for _ in range(data.draw(st.integers(0, 4))):
            if frame:
                frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
        frame = frame[: data.draw(st.integers(0, len(frame)))]
    try:
        _, end = decode(message(name), version, bytes(frame))
    except MalformedError:
        return
    assert 0 <= end <= len(frame)


@pytest.mark.slow
def test_memory_is_bounded_by_the_input() -> None:
    """The most costly request of its size: empty parts of three bytes each."""
    worst = 0.0
    for name, version in KINDS:
        kind = message(name)
        for field in kind.TABLE.struct.at(version) if kind.TABLE.is_request else ():
            if not field.is_array or field.struct is None:
                continue
            part = getattr(kind, field.struct.name)()
            frame = whole(kind(**{field.name: [part] * 1000}), version)
            tracemalloc.start()
            told, _ = decode(kind, version, frame)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert len(getattr(told, field.name)) == 1000
            worst = max(worst, peak / len(frame))
    assert 50 < worst < 250


def test_a_message_tells_its_fields() -> None:
    kind = message("MetadataRequest")
    one = kind(topics=None, allow_auto_topic_creation=False)
    assert repr(one).startswith("MetadataRequest(topics=None, allow_auto_topic_creation=False")
    assert one == kind(topics=None, allow_auto_topic_creation=False)
    assert one != kind(topics=[])
    assert one != message("HeartbeatRequest")()
    assert kind().topics is not kind().topics
    with pytest.raises(AttributeError, match="MetadataRequest has no field 'topcis'; it has topics, "):
        _ = one.topcis
    with pytest.raises(AttributeError):
        one.topcis = []


def test_what_stands_for_absence_is_one_for_all_and_cannot_be_changed() -> None:
    Response = message("FetchResponse")
    one, other = Response.PartitionData(), Response.PartitionData.of()
    absent = one.current_leader
    assert absent is other.current_leader is Response.LeaderIdAndEpoch.ABSENT
    assert absent == Response.LeaderIdAndEpoch() and Response.LeaderIdAndEpoch() == absent
    assert absent != Response.LeaderIdAndEpoch(leader_id=1) and absent != Response.EpochEndOffset()
    with pytest.raises(TypeError, match="leader_id = 3 would change what stands for absence"):
        absent.leader_id = 3
    assert absent.leader_id == -1
    one.current_leader = Response.LeaderIdAndEpoch(leader_id=3)
    assert one != other and one.current_leader.leader_id == 3


def test_a_part_that_can_have_lists_is_made_for_each() -> None:
    Member = message("ConsumerGroupDescribeResponse").Member
    one, other = Member(), Member.of()
    one.assignment.topic_partitions.append(1)
    assert other.assignment.topic_partitions == []


_DEEP = """
Deep 1000 request 0 flexible none
  outer Outer 0
    inner Inner 0
      many []int32 0
"""


def test_a_part_whose_parts_can_have_lists_is_made_for_each() -> None:
    (table,) = read(_DEEP)
    made, parts = make(table)
    one, other = made(), made.of()
    one.outer.inner.many.append(1)  # type: ignore[attr-defined]
    assert other.outer.inner.many == []
    assert not hasattr(parts["Outer"], "ABSENT")


@pytest.mark.parametrize("name", ["FetchResponse", "FetchRequest", "ConsumerGroupDescribeResponse"])
def test_both_ways_to_make_a_message_give_the_same(name: str) -> None:
    made = message(name)
    assert made.of() == made() and type(made.of()) is made
    for field in made.NAMES:
        assert getattr(made.of(**{field: 5}), field) == 5 == getattr(made(**{field: 5}), field)
    with pytest.raises(TypeError):
        made.of(no_such_field=1)


@pytest.mark.parametrize("version", [12, 17])
def test_a_tag_of_a_part_is_written_by_what_it_says(version: int) -> None:
    """A part with all defaults is not written, whichever object holds it."""
    Response = message("FetchResponse")

    def encoded(**parts: Struct) -> bytes:
        part = Response.PartitionData(records=b"", **parts)
        return whole(Response(responses=[Response.FetchableTopicResponse(partitions=[part])]), version)

    plain = encoded()
    assert encoded(current_leader=Response.LeaderIdAndEpoch(), snapshot_id=Response.SnapshotId()) == plain
    told = encoded(current_leader=Response.LeaderIdAndEpoch(leader_epoch=4))
    found, _ = decode(Response, version, told)
    (part,) = found.responses[0].partitions
    assert part.current_leader == Response.LeaderIdAndEpoch(leader_epoch=4)
    assert part.diverging_epoch is Response.EpochEndOffset.ABSENT


@pytest.mark.parametrize("version", [0, 1, 3])
def test_a_text_ends_within_its_message(version: int) -> None:
    """Also where only its last byte is missing."""
    kind = message("FindCoordinatorRequest")
    whole = b"".join(encode(kind(key="group", key_type=0), version))
    at = whole.index(b"group")
    for size in range(at, at + len(b"group")):
        with pytest.raises(MalformedError):
            decode(kind, version, whole[:size])
    told, end = decode(kind, version, whole)
    assert (told.key, end) == ("group", len(whole))
