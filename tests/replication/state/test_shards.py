"""State that is divided over partitions: a key has one place, on each face, and shards do not know each other."""

from __future__ import annotations

import asyncio

import pytest
import trio

from insync.replication import Admin
from insync.replication.client.errors import InvalidArgumentError, InvalidSettingError
from insync.replication.core.types import PartitionId
from insync.replication.state import ReplicatedDict, Shards, StateClosedError, StateError
from insync.replication.state import asyncio as in_asyncio
from insync.replication.state import blocking as in_threads

KEYS = [f"key-{n}" for n in range(20)]


async def test_each_key_has_one_shard_and_each_shard_its_own_log(servers: list[str]) -> None:
    with trio.fail_after(60):
        async with Shards(ReplicatedDict.open, servers, "state", shards=3, name="a") as shards:
            for key in KEYS:
                await shards.of(key).put(key, key.upper())
            assert [shards.of(key) for key in KEYS] == [list(shards)[shards.number_of(key)] for key in KEYS]
            assert {shards.number_of(key) for key in KEYS} == {0, 1, 2}
            # Where Kafka's clients put it: murmur2, whatever the process.
            assert shards.number_of(b"key-0") == shards.number_of("key-0")
        async with Shards(ReplicatedDict.open, servers, "state", shards=3, name="b") as shards:
            assert [await shards.of(key).get(key) for key in KEYS] == [key.upper() for key in KEYS]
            held = [len(await shard.items()) for shard in shards]
            assert sum(held) == len(KEYS) and all(held), "none has another's keys"
        async with Admin(servers) as admin:
            ends = await admin.read_index([("state", n) for n in range(3)])
        assert all(ends[PartitionId("state", n)] > 0 for n in range(3))


async def test_another_number_of_shards_is_refused(servers: list[str]) -> None:
    with trio.fail_after(60):
        async with ReplicatedDict.open(servers, "state"):
            pass
        shards = Shards(ReplicatedDict.open, servers, "state", shards=2)
        with pytest.raises(StateError, match="has 1 partition, but it was opened with 2 shards"):
            async with shards:
                pass
    with pytest.raises(StateClosedError, match="not open"):
        shards.of("x")
    with pytest.raises(InvalidArgumentError):
        shards.number_of(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        Shards(ReplicatedDict.open, servers, "state", shards=0)
    with pytest.raises(InvalidSettingError, match="remove them"):
        Shards(ReplicatedDict.open, servers, "state", shards=2, partition=1)


def test_in_threads_and_asyncio(threaded_servers: list[str]) -> None:
    with in_threads.Shards(
        in_threads.ReplicatedDict.open, threaded_servers, "state", shards=2, name="a"
    ) as shards:
        for key in KEYS:
            shards.of(key).put(key, 1)

    async def main() -> list[object]:
        opener = in_asyncio.ReplicatedDict.open
        async with in_asyncio.Shards(opener, threaded_servers, "state", shards=2, name="b") as shards:
            return [await shards.of(key).get(key) for key in KEYS]

    assert asyncio.run(main()) == [1] * len(KEYS)
