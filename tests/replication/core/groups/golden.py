"""What each line of `golden_records.txt` says, in our words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import structs

from insync.replication.core.groups import records as r

FILE = Path(__file__).parent / "golden_records.txt"
FIRST = "0123456789abcdef0fedcba987654321"
SECOND = "7fffffffffffffffffffffffffffffff"

_offset = r.OffsetValue(
    offset=123456789012, leader_epoch=5, metadata="from épée", commit_timestamp=1700000000001
)
_stable = r.ClassicGroupValue(
    protocol_type="consumer",
    generation=9,
    protocol="range",
    leader="m-1",
    state_timestamp=1700000000002,
    members=(
        r.ClassicMemberValue(
            member_id="m-1",
            instance_id="i-1",
            client_id="c",
            client_host="/127.0.0.1",
            rebalance_timeout_ms=300000,
            session_timeout_ms=45000,
            subscription=b"\x00\x01\x02",
            assignment=b"\x03\x04",
        ),
        r.ClassicMemberValue(member_id="m-2", rebalance_timeout_ms=1, session_timeout_ms=2),
    ),
)
_member = r.MemberValue(
    instance_id="i",
    rack="r",
    client_id="c",
    client_host="/10.0.0.1",
    topics=("a", "b"),
    regex="a.*",
    rebalance_timeout_ms=300000,
    assignor="uniform",
)
GOLDEN: dict[str, tuple[Any, Any]] = {
    "offset": (r.OffsetKey("größe", "orders", 7), _offset),
    "offset_expiring": (
        r.OffsetKey("größe", "orders", 7),
        structs.replace(_offset, expire_timestamp=1700000600000),
    ),
    "offset_of_id": (r.OffsetKey("größe", "orders", 7), structs.replace(_offset, topic_id=FIRST)),
    "classic": (r.ClassicGroupKey("classic"), _stable),
    "classic_empty": (
        r.ClassicGroupKey("classic"),
        r.ClassicGroupValue(protocol_type="consumer", generation=10, state_timestamp=5),
    ),
    "group": (r.ConsumerGroupKey("modern"), r.ConsumerGroupValue(epoch=300)),
    "group_hashed": (r.ConsumerGroupKey("modern"), r.ConsumerGroupValue(epoch=300, metadata_hash=-3)),
    "topics": (
        r.TopicMetadataKey("modern"),
        r.TopicMetadataValue(
            topics=(
                r.TopicMetadata(
                    topic_id=FIRST,
                    topic="orders",
                    partitions=2,
                    racks=(r.PartitionRacks(partition=1, racks=("r1", "r2")),),
                ),
            )
        ),
    ),
    "member": (r.MemberKey("modern", "m"), _member),
    "member_classic": (
        r.MemberKey("modern", "m"),
        structs.replace(
            _member,
            classic=r.ClassicMetadata(
                session_timeout_ms=45000,
                protocols=(r.ClassicProtocol(name="range", metadata=b"\x00\x03\x09"),),
            ),
        ),
    ),
    "member_bare": (r.MemberKey("modern", "m"), r.MemberValue()),
    "target_epoch": (r.TargetEpochKey("modern"), r.TargetEpochValue(epoch=300)),
    "target": (
        r.TargetKey("modern", "m"),
        r.TargetValue(
            topics=(
                r.TopicPartitions(topic_id=FIRST, partitions=(0, 200)),
                r.TopicPartitions(topic_id=SECOND, partitions=()),
            )
        ),
    ),
    "current": (
        r.CurrentKey("modern", "m"),
        r.CurrentValue(
            epoch=300,
            previous_epoch=299,
            state=r.MemberState.UNREVOKED,
            assigned=(r.TopicPartitions(topic_id=FIRST, partitions=(0, 1)),),
            pending=(r.TopicPartitions(topic_id=SECOND, partitions=(5,)),),
        ),
    ),
    "regex": (r.RegexKey("modern", "a.*"), r.RegexValue(topics=("a", "ab"), version=12, timestamp=13)),
}


def lines() -> list[tuple[str, int, bytes, bytes]]:
    """(name, version, key, value) of each record."""
    found = []
    for line in FILE.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            name, version, key, value = line.split()
            found.append((name, int(version), bytes.fromhex(key), bytes.fromhex(value)))
    return found


def as_read(name: str, version: int) -> tuple[Any, Any]:
    """What a record of that version can say: older ones lack some fields."""
    key, value = GOLDEN[name]
    if name == "offset" and version < 3:
        value = structs.replace(value, leader_epoch=-1)
    if name == "offset_expiring":
        value = structs.replace(value, leader_epoch=-1)
    if name.startswith("classic"):
        if version < 2:
            value = structs.replace(value, state_timestamp=r.NO_TIMESTAMP)
        missing: dict[str, Any] = {"instance_id": None} if version < 3 else {}
        if version < 1:
            missing["rebalance_timeout_ms"] = -1
        value = structs.replace(
            value, members=tuple([structs.replace(each, **missing) for each in value.members])
        )
    return key, value
