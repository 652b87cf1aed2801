"""What metadata answers say of partitions, made once for each record."""

from __future__ import annotations

from msgspec import structs

from insync.replication import wire
from insync.replication.core import messages as m
from insync.replication.core.control.records import PartitionRecord
from insync.replication.core.types import PartitionId
from insync.replication.node.requests._described import Described, describe_partition


def record(partition: int, **fields: object) -> PartitionRecord:
    given = {
        "topic": "t",
        "partition": partition,
        "topic_id": "id",
        "replicas": (1, 2, 3),
        "isr": (1, 2),
        **fields,
    }
    return PartitionRecord(**given)  # type: ignore[arg-type]


def test_a_record_is_described_once_and_another_one_in_its_place_anew() -> None:
    described, first = Described(), record(0)
    info = described(first)
    assert info == describe_partition(first) and described(first) is info
    for change in ({"isr": (1,)}, {"leader": 2, "leader_epoch": 1}, {"replicas": (3, 1)}, {"elr": (2,)}):
        then = structs.replace(first, **change)
        assert described(then) == describe_partition(then) != info
    equal = structs.replace(first)
    assert described(equal) == info, "a record that came back to what it was"


def test_partitions_that_are_no_more_are_forgotten() -> None:
    described = Described()
    for partition in range(5):
        described(record(partition))
    described.keep([PartitionId("t", each) for each in range(5)])
    assert len(described._infos) == 5
    described.keep([PartitionId("t", 4)])
    assert list(described._infos) == [PartitionId("t", 4)]


def test_what_is_told_again_is_encoded_as_it_was() -> None:
    described, shown = Described(), record(0, leader=1, adding=(3,), recovering=True)
    first, again = (wire.encode(described(shown)) for _ in range(2))
    assert first == again == wire.encode(describe_partition(shown))
    assert isinstance(described(shown), m.PartitionInfo)
