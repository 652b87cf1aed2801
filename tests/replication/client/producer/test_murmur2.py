from __future__ import annotations

import pytest

from insync.replication.client.producer._murmur2 import murmur2, partition_for_key

KAFKAS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "hash"), KAFKAS.items())
def test_hashes_are_kafkas(key, hash):
    assert murmur2(key) == hash


def test_negative_hashes_give_partitions_too():
    assert partition_for_key(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7
