"""How large what a client says may be. A larger value is refused before anything is made of it.

Names end in keys and values of the log, whose lengths and numbers have 16, 32 and 64 bits; and each request is
handled in one step, in which nobody else is served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from typing import Any

from ..errors import ErrorCode
from ..messages import groups as gm
from ..messages import transactions as tm
from .refusals import GroupRefusal

MAX_NAME = 1_024
"""Characters of a group id, member id, instance id, client id, rack, topic or assignor."""
MAX_PARTITIONS = 100_000
"""Partitions in one request."""
MAX_NAMES = 10_000
"""Topics, groups or members in one request."""
MAX_PROTOCOLS = 100
MAX_BYTES = 1 << 20
"""Of a subscription or an assignment of one member."""
_INT32 = range(-(1 << 31), 1 << 31)
_INT64 = range(-(1 << 63), 1 << 63)


def check_bounds(message: gm.Request) -> None:
    """Raises `GroupRefusal` with INVALID_REQUEST if something in a request is too long or too large."""
    _text("group", getattr(message, "group", ""))
    _CHECKS[type(message)](message)


def check_transaction(message: tm.Request) -> None:
    """The same for a request to a transaction's coordinator."""
    match message:
        case tm.DescribeTransactionsRequest():
            _texts("transactional_ids", message.transactional_ids)
            return
        case tm.ListTransactionsRequest():
            _texts("statuses", message.statuses)
            _count("producer_ids", message.producer_ids, MAX_NAMES)
            return
    _text("transactional_id", message.transactional_id)
    if not message.transactional_id:
        _refuse("transactional_id has", "0 characters", f"use 1 to {MAX_NAME}, and at most {MAX_NAME}")
    if isinstance(message, tm.AddPartitionsRequest):
        _count("partitions", message.partitions, MAX_PARTITIONS)
        for each in message.partitions:
            _text("topic", each.topic)
            _int32("partition", each.partition)
        if not 0 <= message.version < 1 << 15:
            _refuse("version is", message.version, "it must fit in 16 bits")


def _refuse(what: str, value: object, remedy: str) -> None:
    raise GroupRefusal(ErrorCode.INVALID_REQUEST, f"{what} {value}; {remedy}")


def _text(name: str, value: str | None) -> None:
    if value is not None and len(value) > MAX_NAME:
        _refuse(f"{name} has", f"{len(value)} characters", f"use at most {MAX_NAME}")


def _texts(name: str, values: Iterable[str], most: int = MAX_NAMES) -> None:
    count = 0
    for each in values:
        _text(name, each)
        count += 1
    if count > most:
        _refuse(f"{name} stands for", f"{count} names", f"name at most {most} in one request")


def _count(name: str, values: Sized, most: int) -> None:
    if len(values) > most:
        _refuse(f"{name} has", f"{len(values)} entries", f"use at most {most} in one request")


def _bytes(name: str, value: bytes) -> None:
    if len(value) > MAX_BYTES:
        _refuse(f"{name} has", f"{len(value)} bytes", f"use at most {MAX_BYTES}")


def _int32(name: str, *values: int) -> None:
    for each in values:
        if each not in _INT32:
            _refuse(f"{name} is", each, "it must fit in 32 bits")


def _int64(name: str, *values: int) -> None:
    for each in values:
        if each not in _INT64:
            _refuse(f"{name} is", each, "it must fit in 64 bits")


def _beat(message: gm.ConsumerGroupHeartbeatRequest) -> None:
    _text("member_id", message.member_id)
    _text("instance_id", message.instance_id)
    _text("rack", message.rack)
    _text("regex", message.regex)
    _text("assignor", message.assignor)
    _text("client_id", message.client_id)
    _text("client_host", message.client_host)
    _int32("member_epoch", message.member_epoch)
    _int32("rebalance_timeout_ms", message.rebalance_timeout_ms)
    _int32("max_wait_ms", message.max_wait_ms)
    _int64("sequence", message.sequence)
    _texts("topics", message.topics or ())
    owned = message.owned or ()
    _count("owned", owned, MAX_PARTITIONS)
    total = 0
    for each in owned:
        _text("owned", each.topic_id)
        total += len(each.partitions)
        if total > MAX_PARTITIONS:
            _refuse("owned has", f"{total} partitions", f"use at most {MAX_PARTITIONS} in one request")
        _int32("owned", *each.partitions)


def _join(message: gm.JoinGroupRequest) -> None:
    _text("member_id", message.member_id)
    _text("instance_id", message.instance_id)
    _text("client_id", message.client_id)
    _text("client_host", message.client_host)
    _text("protocol_type", message.protocol_type)
    _int32("session_timeout_ms", message.session_timeout_ms)
    _int32("rebalance_timeout_ms", message.rebalance_timeout_ms)
    _count("protocols", message.protocols, MAX_PROTOCOLS)
    for each in message.protocols:
        _text("protocols", each.name)
        _bytes("metadata", each.metadata)


def _sync(message: gm.SyncGroupRequest) -> None:
    _heartbeat(message)
    _count("assignments", message.assignments, MAX_NAMES)
    for each in message.assignments:
        _text("member_id", each.member_id)
        _bytes("assignment", each.assignment)


def _heartbeat(message: gm.HeartbeatRequest | gm.SyncGroupRequest) -> None:
    _text("member_id", message.member_id)
    _text("instance_id", message.instance_id)
    _int32("generation", message.generation)


def _leave(message: gm.LeaveGroupRequest) -> None:
    _count("members", message.members, MAX_NAMES)
    for each in message.members:
        _text("member_id", each.member_id)
        _text("instance_id", each.instance_id)


def _commit(message: gm.CommitGroupOffsetsRequest | gm.TxnOffsetCommitRequest) -> None:
    _text("member_id", message.member_id)
    _text("instance_id", message.instance_id)
    _int32("epoch", message.epoch)
    if isinstance(message, gm.TxnOffsetCommitRequest):
        _int64("producer_id", message.producer_id)
        if not -1 <= message.producer_epoch < 1 << 15:
            _refuse("producer_epoch is", message.producer_epoch, "it must fit in 16 bits")
    _count("offsets", message.offsets, MAX_PARTITIONS)
    for each in message.offsets:
        # Partition and metadata are compared with the topic and with a setting, whatever their size.
        if len(each.topic) > MAX_NAME or len(each.topic_id) > MAX_NAME:
            _text("topic", each.topic)
            _text("topic_id", each.topic_id)
        if each.offset not in _INT64 or each.leader_epoch not in _INT32:
            _int64("offset", each.offset)
            _int32("leader_epoch", each.leader_epoch)


def _partitions(message: gm.GroupOffsetsRequest | gm.DeleteGroupOffsetsRequest) -> None:
    partitions = message.partitions or ()
    _count("partitions", partitions, MAX_PARTITIONS)
    for each in partitions:
        _text("topic", each.topic)
        _text("topic_id", each.topic_id)
        _int32("partition", each.partition)


def _read(message: gm.GroupOffsetsRequest) -> None:
    _text("member_id", message.member_id)
    _partitions(message)


def _list(message: gm.ListGroupsRequest) -> None:
    _texts("states", message.states)
    _texts("types", message.types)


def _groups(message: gm.DescribeGroupsRequest | gm.ConsumerGroupDescribeRequest) -> None:
    _texts("groups", message.groups)


_CHECKS: dict[type, Callable[[Any], None]] = {
    gm.ConsumerGroupHeartbeatRequest: _beat,
    gm.JoinGroupRequest: _join,
    gm.SyncGroupRequest: _sync,
    gm.HeartbeatRequest: _heartbeat,
    gm.LeaveGroupRequest: _leave,
    gm.CommitGroupOffsetsRequest: _commit,
    gm.TxnOffsetCommitRequest: _commit,
    gm.GroupOffsetsRequest: _read,
    gm.ListGroupsRequest: _list,
    gm.DescribeGroupsRequest: _groups,
    gm.ConsumerGroupDescribeRequest: _groups,
    gm.DeleteGroupRequest: lambda message: None,
    gm.DeleteGroupOffsetsRequest: _partitions,
}
