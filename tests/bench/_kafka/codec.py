"""What the codec of Kafka's messages costs, beside one call of `struct` for each field at a place that is known."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from insync.plugins.kafka.protocol import Struct, decode, encode, message
from insync.plugins.kafka.protocol.tables import FIXED, Field
from insync.plugins.kafka.protocol.tables import Struct as Layout

Piece = tuple[str, Any]
"""A format of `struct` and its value; the records of an answer are none, because a hole is left for them."""


def _lengths(size: int, *, wide: bool, flexible: bool) -> Piece:
    """How long something is, as it stands before it; -1: it is null."""
    if not flexible:
        return "i" if wide else "h", size
    rest, found = size + 1, bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    found.append(rest)
    return f"{len(found)}s", bytes(found)


def _pieces(layout: Layout, told: Struct, version: int, flexible: bool) -> Iterator[Piece]:
    for field in layout.at(version):
        value = getattr(told, field.name)
        if not field.is_array:
            yield from _value(field, value, version, flexible)
            continue
        yield _lengths(-1 if value is None else len(value), wide=True, flexible=flexible)
        for each in value or ():
            yield from _value(field, each, version, flexible)
    if flexible:
        yield "B", 0


def _value(field: Field, value: Any, version: int, flexible: bool) -> Iterator[Piece]:
    if field.struct is not None:
        yield from _pieces(field.struct, value, version, flexible)
    elif field.type in FIXED:
        yield FIXED[field.type], value
    elif field.type == "uuid":
        yield "16s", value
    else:
        data = value.encode() if isinstance(value, str) else value
        size = data if isinstance(data, int) else -1 if data is None else len(data)
        yield _lengths(size, wide=field.type != "string", flexible=flexible)
        if isinstance(data, bytes):
            yield f"{size}s", data


def pieces_of(told: Struct, version: int) -> list[Piece]:
    """A message without tags, field by field."""
    found = list(_pieces(told.TABLE.struct, told, version, version in told.TABLE.flexible))
    written = b"".join(struct.pack(f">{letters}", value) for letters, value in found)
    assert written == b"".join(encode(told, version)), "the floor is not that of this message"
    return found


def _best(rounds: int, run: Callable[[], object]) -> float:
    """Processor time of one, in µs."""
    best = float("inf")
    for _ in range(7):
        start = time.process_time()
        for _ in range(rounds):
            run()
        best = min(best, (time.process_time() - start) / rounds)
    return best * 1e6


def decoding(told: Struct, version: int, rounds: int) -> tuple[float, float]:
    """µs of ours and of `struct`. Records are not copied by either."""
    buffer, plan, at = encode(told, version)[0], [], 0
    for letters, _ in pieces_of(told, version):
        size = struct.calcsize(f">{letters}")
        if size <= 1024:
            plan.append((struct.Struct(f">{letters}").unpack_from, at))
        at += size

    def floor() -> None:
        for unpack, position in plan:
            unpack(buffer, position)

    return _best(rounds, partial(decode, type(told), version, buffer)), _best(rounds, floor)


def encoding(told: Struct, version: int, rounds: int) -> tuple[float, float]:
    """The same for the other way."""
    plan = [(struct.Struct(f">{letters}").pack, value) for letters, value in pieces_of(told, version)]

    def floor() -> None:
        out = bytearray()
        for pack, value in plan:
            out += pack(value)
        bytes(out)

    return _best(rounds, partial(encode, told, version)), _best(rounds, floor)


def rows(scale: int) -> Iterator[tuple[str, float, float, float]]:
    """Name, µs of ours, µs of `struct`, and how many times `struct` ours took when the codec was designed.

    scale: by how much fewer rounds there are.
    """
    few, many = max(1, 200 // scale), max(1, 5000 // scale)
    for size, designed in ((16, 3.8), (1024, 4.3)):
        yield f"Produce v13, {size} KiB, decode", *decoding(_produce(size << 10), 13, many), designed
    yield "Produce v13 answer, encode", *encoding(_produced(), 13, many), 1.9
    for count, designed in ((0, 2.2), (1, 2.2), (50, 1.4)):
        rounds = many if count < 9 else few
        yield f"Fetch v17, {count} partitions, decode", *decoding(_fetch(count), 17, rounds), designed
    for count, size, designed in ((1, 1 << 20, 2.3), (50, 16 << 10, 2.7)):
        told, rounds = _fetched(count, size), many if count < 9 else few
        yield f"Fetch v17 answer, {count} partitions, encode", *encoding(told, 17, rounds), designed
    yield (
        "Metadata v12 answer, 1,000 partitions, encode",
        *encoding(_metadata(1000), 12, max(1, 20 // scale)),
        2.5,
    )
    yield "Heartbeat v4, decode", *decoding(_heartbeat(), 4, many), 2.9
    yield "Heartbeat v4 answer, encode", *encoding(message("HeartbeatResponse")(), 4, many), 1.0
    for count, designed in ((1, 2.9), (100, 2.3)):
        rounds = many if count < 9 else few
        yield f"OffsetCommit v8, {count} partitions, decode", *decoding(_commit(count), 8, rounds), designed


def _produce(size: int) -> Struct:
    made = message("ProduceRequest")
    part = made.PartitionProduceData(index=3, records=bytes(size))
    topic = made.TopicProduceData(topic_id=bytes(range(16)), partition_data=[part])
    told: Struct = made(acks=-1, timeout_ms=30_000, topic_data=[topic])
    return told


def _produced() -> Struct:
    made = message("ProduceResponse")
    part = made.PartitionProduceResponse(index=3, base_offset=123_456)
    topic = made.TopicProduceResponse(topic_id=bytes(range(16)), partition_responses=[part])
    told: Struct = made(responses=[topic])
    return told


def _fetch(count: int) -> Struct:
    made = message("FetchRequest")
    parts = [
        made.FetchPartition(partition=each, fetch_offset=1000 + each, partition_max_bytes=1 << 20)
        for each in range(count)
    ]
    topics = [made.FetchTopic(topic_id=bytes(range(16)), partitions=parts)] if count else []
    told: Struct = made(max_wait_ms=500, min_bytes=1, session_id=7, session_epoch=8, topics=topics)
    return told


def _fetched(count: int, size: int) -> Struct:
    made = message("FetchResponse")
    parts = [
        made.PartitionData(partition_index=each, high_watermark=9, last_stable_offset=9, records=size)
        for each in range(count)
    ]
    topic = made.FetchableTopicResponse(topic_id=bytes(range(16)), partitions=parts)
    told: Struct = made(session_id=7, responses=[topic])
    return told


def _metadata(count: int) -> Struct:
    made = message("MetadataResponse")
    parts = [
        made.MetadataResponsePartition(
            partition_index=each, leader_id=1, leader_epoch=5, replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3]
        )
        for each in range(count)
    ]
    topic = made.MetadataResponseTopic(name="topic", topic_id=bytes(range(16)), partitions=parts)
    brokers = [
        made.MetadataResponseBroker(node_id=each, host="127.0.0.1", port=9092 + each) for each in (1, 2, 3)
    ]
    told: Struct = made(brokers=brokers, cluster_id="x" * 22, controller_id=1, topics=[topic])
    return told


def _heartbeat() -> Struct:
    told: Struct = message("HeartbeatRequest")(group_id="group", generation_id=7, member_id="m" * 40)
    return told


def _commit(count: int) -> Struct:
    made = message("OffsetCommitRequest")
    parts = [
        made.OffsetCommitRequestPartition(partition_index=each, committed_offset=9, committed_metadata="")
        for each in range(count)
    ]
    topic = made.OffsetCommitRequestTopic(name="topic", partitions=parts)
    told: Struct = made(group_id="group", generation_id_or_member_epoch=7, member_id="m" * 40, topics=[topic])
    return told
