"""What is written is read back; what is newer is read too; what is damaged is refused by name."""

from __future__ import annotations

import json
import typing

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.replication import wire
from insync.replication.core import messages as m
from insync.replication.core.control import records as rec

RECORDS = [
    rec.ClusterRecord,
    rec.NodeRecord,
    rec.IncarnationRecord,
    rec.ControllerRecord,
    rec.EpochRecord,
    rec.ProducerIdsRecord,
    rec.ProducerRecord,
    rec.OffsetsRecord,
    rec.TopicRecord,
    rec.PartitionRecord,
    rec.QuotaRecord,
    rec.DeletedTopicRecord,
    rec.UserRecord,
]


def instances(cls: type) -> st.SearchStrategy[typing.Any]:
    """Any instance of a message class, by the types of its fields."""
    return st.builds(cls, **{name: values(hint) for name, hint in typing.get_type_hints(cls).items()})


def values(hint: typing.Any) -> st.SearchStrategy[typing.Any]:
    if hint is int:
        return st.integers(-(2**63), 2**63 - 1)
    if hint is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if attrs.has(hint) or (isinstance(hint, type) and issubclass(hint, msgspec.Struct)):
        return instances(hint)
    if hasattr(hint, "_fields"):
        return st.builds(hint, **{name: values(each) for name, each in typing.get_type_hints(hint).items()})
    arguments = typing.get_args(hint)
    match typing.get_origin(hint):
        case origin if origin is list:
            return st.lists(values(arguments[0]), max_size=2)
        case origin if origin is frozenset:
            return st.frozensets(values(arguments[0]), max_size=3)
        case origin if origin is tuple:
            return st.lists(values(arguments[0]), max_size=3).map(tuple)
        case origin if origin is dict:
            return st.dictionaries(st.text(max_size=3), values(arguments[1]), max_size=2)
        case None:
            return st.from_type(hint)
    return st.one_of(*map(values, arguments))


@pytest.mark.parametrize("kind", m.Kind)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_requests_and_answers_come_back_as_they_were(kind: m.Kind, data: st.DataObject) -> None:
    request = data.draw(instances(wire.REQUEST_TYPES[kind]))
    assert wire.decode_request(kind, wire.encode(request)) == request
    response = data.draw(instances(wire.RESPONSE_TYPES[kind]))
    assert wire.decode_response(kind, memoryview(wire.encode(response))) == response


@pytest.mark.parametrize("cls", RECORDS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_records_come_back_as_they_were(cls: type, data: st.DataObject) -> None:
    record = data.draw(instances(cls))
    assert wire.decode_record(cls, wire.encode_record(record)) == record


def test_every_kind_has_a_request_and_an_answer() -> None:
    assert set(wire.REQUEST_TYPES) == set(wire.RESPONSE_TYPES) == set(m.Kind)


def test_a_newer_peer_may_add_fields() -> None:
    body = msgspec.msgpack.encode({"topics": ["t"], "colour": "red"})
    assert wire.decode_request(m.Kind.METADATA, body) == m.MetadataRequest(topics=["t"])


def test_a_field_with_a_default_may_be_missing() -> None:
    assert wire.decode_request(m.Kind.METADATA, msgspec.msgpack.encode({})) == m.MetadataRequest()


@pytest.mark.parametrize("body", [b"", b"\xc1", msgspec.msgpack.encode({"acks": "all"}), b"\x80"])
def test_a_body_that_is_no_such_message_is_refused(body: bytes) -> None:
    with pytest.raises(wire.WireError, match="kind 0"):
        wire.decode_request(m.Kind.PRODUCE, body)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_break_the_decoder_otherwise(body: bytes) -> None:
    for kind in m.Kind:
        try:
            decoded = wire.decode_request(kind, body)
        except wire.WireError:
            continue
        assert isinstance(decoded, wire.REQUEST_TYPES[kind])


def test_values_within_values_without_end_are_refused() -> None:
    """In a field that this version does not know, which is passed over."""
    nested = b"\x81\xa1x" + b"\x91" * 100_000 + b"\xc0"
    with pytest.raises(wire.WireError, match="malformed request"):
        wire.decode_request(m.Kind.METADATA, nested)
    with pytest.raises(wire.WireError, match="malformed answer"):
        wire.decode_response(m.Kind.METADATA, nested)
    with pytest.raises(wire.WireError, match="TopicRecord"):
        wire.decode_record(rec.TopicRecord, b'{"x":' + b"[" * 100_000)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(wire.WireError, match="99"):
        wire.decode_response(99, b"\x80")


def test_a_damaged_record_is_refused_by_name() -> None:
    with pytest.raises(wire.WireError, match="PartitionRecord"):
        wire.decode_record(rec.PartitionRecord, b'{"topic": "t"')


def test_every_changed_byte_of_a_record_is_seen() -> None:
    """It is refused, or a name was changed that stands before the checksum, and the record is as it was."""
    record = rec.PartitionRecord(topic="t", partition=0, topic_id="5a", replicas=(1, 2), isr=(1, 2), leader=1)
    sound = wire.encode_record(record)
    assert json.loads(sound)["crc32"], "any tool reads it"
    refused = 0
    for at in range(len(sound)):
        for bit in range(8):
            try:
                found = wire.decode_record(
                    rec.PartitionRecord, sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :]
                )
            except wire.WireError:
                refused += 1
            else:
                assert found == record, at
    assert refused > 8 * (len(sound) - len(',"crc32":"01234567"}'))


def test_a_record_without_a_checksum_is_read() -> None:
    """An earlier release wrote it, or somebody has corrected it by hand."""
    record = rec.ProducerIdsRecord(next_producer_id=3)
    text = json.loads(wire.encode_record(record))
    del text["crc32"]
    assert wire.decode_record(rec.ProducerIdsRecord, json.dumps(text).encode()) == record
