"""Whatever a client says is answered; what is written for it can be read, and what is too large is refused."""

from __future__ import annotations

import re
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from insync.replication.core.coordination import shard_events as ev
from insync.replication.core.coordination.bounds import MAX_NAME, MAX_PARTITIONS
from insync.replication.core.errors import ErrorCode
from insync.replication.core.groups.record_codec import decode_record, encode_key, encode_value
from insync.replication.core.messages import groups as gm

from .harness import GroupHost

REQUESTS = sorted(gm.RESPONSES, key=lambda cls: cls.__name__)
_NUMBERS = st.sampled_from([0, 1, -1, -2, 6_000, 2**31, 2**63, -(2**31) - 1])
_TEXTS = st.sampled_from(["t", "g", "", "consumer", "x" * (MAX_NAME + 1)])
_LIKELY = {
    "topic": st.just("t"),
    "topic_id": st.just(""),
    "partition": st.sampled_from([0, 1]),
    "group": st.sampled_from(["g", "h"]),
    "epoch": st.just(-1),
    "session_timeout_ms": st.just(6_000),
}
"""What most of a request must be for anything to come of it."""
_BYTES = st.sampled_from([b"", b"\0\1", b"x" * ((1 << 20) + 1)])


def _values(hint: Any) -> st.SearchStrategy[Any]:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is list:
        return st.lists(_values(arguments[0]), max_size=2)
    if arguments:
        return st.one_of(*map(_values, arguments))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _messages(hint)
    known = {int: _NUMBERS, str: _TEXTS, bytes: _BYTES, bool: st.booleans(), type(None): st.none()}
    return known[hint]


def _messages(cls: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    names = [field.name for field in structs.fields(cls)]
    return st.builds(
        cls, **{each: _LIKELY[each] if each in _LIKELY else _values(hints[each]) for each in names}
    )


@settings(max_examples=300, deadline=None)
@given(messages=st.lists(st.one_of([_messages(cls) for cls in REQUESTS]), min_size=1, max_size=6))
def test_any_request_is_answered_or_parked_and_what_it_writes_can_be_read(messages: list[Any]) -> None:
    host = GroupHost(t=2)
    for number, message in enumerate(messages, start=1):
        host.tell(ev.Ask(request_id=number, message=message, deadline=host.now + 1.0))
        reply = host.said.get(number)
        assert reply is None or type(reply) is gm.RESPONSES[type(message)]
    for batch in host.batches:
        for key, value in batch:
            encoded = None if value is None else encode_value(key, value)
            assert decode_record(encode_key(key), encoded) == (key, value)


_TOO_LARGE = [
    gm.DeleteGroupRequest(group="g" * (MAX_NAME + 1)),
    gm.ConsumerGroupHeartbeatRequest(group="g", member_id="m", member_epoch=2**31),
    gm.ConsumerGroupHeartbeatRequest(group="g", member_id="m", member_epoch=0, topics=["t"] * 10_001),
    gm.ConsumerGroupHeartbeatRequest(
        group="g",
        member_id="m",
        member_epoch=0,
        owned=[gm.TopicPartitionList(topic_id="t", partitions=[0] * (MAX_PARTITIONS // 2 + 1))] * 2,
    ),
    gm.JoinGroupRequest(
        group="g",
        session_timeout_ms=6_000,
        rebalance_timeout_ms=6_000,
        protocol_type="consumer",
        protocols=[gm.GroupProtocol(name="range", metadata=b"x" * ((1 << 20) + 1))],
    ),
    gm.SyncGroupRequest(group="g", member_id="m" * (MAX_NAME + 1), generation=1),
    gm.LeaveGroupRequest(group="g", members=[gm.LeavingMember(member_id="m")] * 10_001),
    gm.CommitGroupOffsetsRequest(
        group="g", offsets=[gm.GroupOffset(topic="t", partition=0, offset=1, leader_epoch=2**31)]
    ),
    gm.CommitGroupOffsetsRequest(group="g", offsets=[gm.GroupOffset(topic="t", partition=0, offset=2**63)]),
    gm.GroupOffsetsRequest(group="g", partitions=[gm.TopicPartitionName(topic="t", partition=2**31)]),
    gm.DescribeGroupsRequest(groups=["g"] * 10_001),
    gm.ListGroupsRequest(states=["s" * (MAX_NAME + 1)]),
]


@pytest.mark.parametrize("message", _TOO_LARGE, ids=lambda message: type(message).__name__)
def test_what_is_too_large_is_refused_with_what_it_is_and_how_much_is_allowed(message: Any) -> None:
    host = GroupHost(t=2)
    reply = host.ask(message)
    assert reply.error == ErrorCode.INVALID_REQUEST
    assert re.search(r"; (use|name) at most \d+|; it must fit in \d+ bits", reply.message)
    assert not host.batches


def _with_a_long_name(cls: type) -> list[tuple[str, Any]]:
    """The names of a request, each with a message in which this one alone is too long."""
    hints, whole, found = typing.get_type_hints(cls), {}, []
    for name, hint in hints.items():
        (kind,) = [each for each in typing.get_args(hint) if each is not type(None)] or [hint]
        is_list = typing.get_origin(kind) is list or typing.get_origin(hint) is list
        inner = typing.get_args(kind)[0] if typing.get_origin(kind) is list else kind
        whole[name] = [] if is_list else _SHORT[inner]
        if inner is str:
            found.append((name, name, "x" * (MAX_NAME + 1), is_list))
        elif issubclass(inner, msgspec.Struct):
            found += [(f"{name}.{place}", name, value, is_list) for place, value in _with_a_long_name(inner)]
    return [
        (place, cls(**whole | {name: [value] if is_list else value})) for place, name, value, is_list in found
    ]


_SHORT = {str: "n", int: 1, bytes: b"", bool: False}
_UNBOUNDED = {
    ("CommitGroupOffsetsRequest", "offsets.metadata"),  # compared with a setting of the group
    ("TxnOffsetCommitRequest", "offsets.metadata"),
    ("TxnOffsetCommitRequest", "transactional_id"),  # the transaction's coordinator is asked about it
    ("JoinGroupRequest", "fresh_id"),  # given by the node
}
_LONG = [
    pytest.param(message, id=f"{cls.__name__}.{place}")
    for cls in REQUESTS
    for place, message in _with_a_long_name(cls)
    if (cls.__name__, place) not in _UNBOUNDED
]


@pytest.mark.parametrize("message", _LONG)
def test_a_name_that_is_too_long_is_refused_wherever_it_stands(message: Any) -> None:
    reply = GroupHost(t=2).ask(message)
    assert reply.error == ErrorCode.INVALID_REQUEST
    assert f"{MAX_NAME + 1} characters; use at most {MAX_NAME}" in reply.message


def test_only_groups_of_the_consumer_protocol_are_described_as_such() -> None:
    host = GroupHost(t=2)
    commit = gm.CommitGroupOffsetsRequest(
        group="s", offsets=[gm.GroupOffset(topic="t", partition=0, offset=1)]
    )
    beat = gm.ConsumerGroupHeartbeatRequest(
        group="c", member_id="m", member_epoch=0, rebalance_timeout_ms=1_000, topics=["t"], owned=[]
    )
    host.ask(commit)
    host.ask(beat)
    simple, consumer, unknown = host.ask(gm.ConsumerGroupDescribeRequest(groups=["s", "c", "x"])).groups
    assert (simple.error, unknown.error) == (ErrorCode.GROUP_ID_NOT_FOUND,) * 2
    assert consumer.type == "consumer" and [each.member_id for each in consumer.members] == ["m"]
