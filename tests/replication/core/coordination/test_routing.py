"""Which partition keeps a group: as Kafka's own clients and tools compute it."""

from __future__ import annotations

import pytest

from insync.replication.core.coordination.routing import java_hash, partition_for_group


@pytest.mark.parametrize(
    ("group", "value", "partition"),
    [
        ("my-group", -1906497762, 12),
        ("orders", -1008770331, 31),
        ("g", 103, 3),
        ("polygenelubricants", -2147483648, 0),
        ("test-group", 627841412, 12),
        ("groupe-é", 506365602, 2),
        ("😀", 1772899, 49),
        ("txn-1", 110810510, 10),
        ("a", 97, 47),
        ("", 0, 0),
    ],
)
def test_vectors(group: str, value: int, partition: int) -> None:
    assert java_hash(group) == value
    assert partition_for_group(group) == partition


def test_the_least_int_goes_to_the_first_partition_of_any_number() -> None:
    """Its absolute value is no int in Java: 2^31 modulo 49 would be 2."""
    assert partition_for_group("polygenelubricants", 49) == 0


def test_text_that_is_no_unicode_has_a_partition_too() -> None:
    assert java_hash("\ud800") == 0xD800
