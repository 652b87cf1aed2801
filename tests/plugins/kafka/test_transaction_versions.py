"""Transactions by both versions of Kafka's protocol, request by request: by which of them a client goes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import trio

from insync.plugins.kafka.handlers.transactions import FIRST, SECOND, known_error, version_of
from insync.plugins.kafka.handlers.versions import FEATURES
from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api
from insync.replication.core.errors import ErrorCode
from insync.storage.batch import build_batch

from .test_listener import client_of, fetch, make, node_at, parts_of, produce, write
from .wire_client import WireClient

Versions, Init, End = (message(f"{name}Request") for name in ("ApiVersions", "InitProducerId", "EndTxn"))
Find, Commit, Committed = (
    message("FindCoordinatorRequest"),
    message("TxnOffsetCommitRequest"),
    message("OffsetFetchRequest"),
)
NOT_YET = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


async def located(client: WireClient, key: str, key_type: int) -> None:
    """Ask for a coordinator: that makes the topic of coordinators."""
    with trio.fail_after(60):
        while (
            await client.ask(Api.FIND_COORDINATOR, 3, Find(key=key, key_type=key_type))
        ).error_code in NOT_YET:
            pass


async def begun(client: WireClient) -> tuple[int, int]:
    """Producer id and epoch of a transactional id, once there is a coordinator."""
    await located(client, "etl", 1)
    with trio.fail_after(60):
        while True:
            asked = Init(transactional_id="etl", transaction_timeout_ms=60_000)
            found = await client.ask(Api.INIT_PRODUCER_ID, 5, asked)
            if found.error_code not in NOT_YET:
                assert found.error_code == 0
                return found.producer_id, found.producer_epoch


def put_request(ids: tuple[int, int], *, sequence: int = 0, partition: int = 0) -> Any:
    """Of one record in a transaction of the producer with this id and epoch."""
    data = build_batch(
        [None],
        [b"x"],
        timestamps_ms=time.time_ns() // 1_000_000,
        producer_id=ids[0],
        producer_epoch=ids[1],
        base_sequence=sequence,
        transactional=True,
    )
    asked = produce(data, partition=partition)
    asked.transactional_id = "etl"
    return asked


async def put(client: WireClient, version: int, ids: tuple[int, int], sequence: int = 0) -> int:
    told = await client.ask(Api.PRODUCE, version, put_request(ids, sequence=sequence))
    return int(told.responses[0].partition_responses[0].error_code)


async def end(client: WireClient, version: int, ids: tuple[int, int], *, committed: bool = True) -> Any:
    asked = End(transactional_id="etl", producer_id=ids[0], producer_epoch=ids[1], committed=committed)
    with trio.fail_after(60):
        while True:
            told = await client.ask(Api.END_TXN, version, asked)
            if told.error_code not in NOT_YET:
                return told


async def commit_offset(client: WireClient, version: int, ids: tuple[int, int], offset: int = 7) -> int:
    part = Commit.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    asked = Commit(
        transactional_id="etl",
        group_id="g",
        producer_id=ids[0],
        producer_epoch=ids[1],
        topics=[Commit.TxnOffsetCommitRequestTopic(name="t", partitions=[part])],
    )
    with trio.fail_after(60):
        while True:
            told = await client.ask(Api.TXN_OFFSET_COMMIT, version, asked)
            error = int(told.topics[0].partitions[0].error_code)
            if error not in NOT_YET:
                return error


async def stable_offset(client: WireClient) -> int:
    """The committed offset, once no transaction is undecided about it."""
    wanted = Committed.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    asked = Committed(group_id="g", topics=[wanted], require_stable=True)
    with trio.fail_after(10):
        while True:
            (place,) = (await client.ask(Api.OFFSET_FETCH, 7, asked)).topics[0].partitions
            if place.error_code != ErrorCode.UNSTABLE_OFFSET_COMMIT:
                assert place.error_code == 0
                return int(place.committed_offset)


async def test_features_are_told_of_by_their_names(tmp_path: Path) -> None:
    asked = Versions(client_software_name="a", client_software_version="1")
    async with node_at(tmp_path) as node, client_of(node) as client:
        for version, listed in ((3, {}), (4, FEATURES)):
            told = await client.ask(Api.API_VERSIONS, version, asked)
            supported = {each.name: (each.min_version, each.max_version) for each in told.supported_features}
            assert supported == listed
            final = {each.name: each.max_version_level for each in told.finalized_features}
            assert final == {"group.version": 1, "transaction.version": 2}
            assert told.finalized_features_epoch >= 0


async def test_who_writes_by_the_second_version_names_no_partitions(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        await write(client, b"first")
        first = await begun(client)
        assert await put(client, 12, first) == 0
        told = await end(client, 5, first)
        assert (told.error_code, told.producer_id, told.producer_epoch) == (0, first[0], first[1] + 1)
        again = await end(client, 5, first)
        assert (again.error_code, again.producer_epoch) == (0, told.producer_epoch), "the same is told again"
        second = told.producer_id, told.producer_epoch
        assert await put(client, 12, first, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await put(client, 12, second) == 0
        ended = await end(client, 5, second, committed=False)
        assert (ended.error_code, ended.producer_epoch) == (0, second[1] + 1)
        third = ended.producer_id, ended.producer_epoch
        await located(client, "g", 0)
        assert await commit_offset(client, 5, third) == 0
        assert (await end(client, 5, third)).error_code == 0
        assert await stable_offset(client) == 7


async def test_who_writes_by_the_first_version_names_partitions_before(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        await write(client, b"first")
        ids = await begun(client)
        assert await put(client, 11, ids) == ErrorCode.TRANSACTION_ABORTABLE
        assert await put(client, 9, ids) == ErrorCode.INVALID_TXN_STATE, "it does not know the other error"
        Add = message("AddPartitionsToTxnRequest")
        asked = Add(
            v3_and_below_transactional_id="etl",
            v3_and_below_producer_id=ids[0],
            v3_and_below_producer_epoch=ids[1],
            v3_and_below_topics=[Add.AddPartitionsToTxnTopic(name="t", partitions=[0])],
        )
        added = await client.ask(Api.ADD_PARTITIONS_TO_TXN, 3, asked)
        assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
        assert await put(client, 11, ids) == 0
        assert (await end(client, 4, ids)).error_code == 0
        assert await begun(client) == (ids[0], ids[1] + 1), "no end of the first version gives another epoch"


@pytest.mark.parametrize(
    ("api", "first", "second"), [(Api.PRODUCE, 11, 12), (Api.END_TXN, 4, 5), (Api.TXN_OFFSET_COMMIT, 4, 5)]
)
def test_the_version_of_a_request_says_by_which_its_sender_goes(api: Api, first: int, second: int) -> None:
    assert (version_of(api, first), version_of(api, second)) == (FIRST, SECOND)
    assert version_of(Api.ADD_PARTITIONS_TO_TXN, 3) == FIRST


@pytest.mark.parametrize(
    ("api", "version", "error", "told"),
    [
        (Api.END_TXN, 5, ErrorCode.TRANSACTION_ABORTED, ErrorCode.PRODUCER_FENCED),
        (Api.END_TXN, 2, ErrorCode.TRANSACTION_ABORTED, ErrorCode.PRODUCER_FENCED),
        (Api.END_TXN, 1, ErrorCode.TRANSACTION_ABORTED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (Api.END_TXN, 4, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (Api.END_TXN, 3, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (Api.PRODUCE, 10, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (Api.TXN_OFFSET_COMMIT, 3, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (Api.ADD_PARTITIONS_TO_TXN, 3, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_errors_are_those_that_the_sender_knows(api: Api, version: int, error: int, told: int) -> None:
    assert known_error(api, version, error) == told


async def test_readers_of_committed_records_are_told_where_these_end(tmp_path: Path) -> None:
    Listed = message("ListOffsetsRequest")
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        await write(client, b"first")
        ids = await begun(client)
        assert await put(client, 12, ids) == 0
        part = Listed.ListOffsetsPartition(partition_index=0, timestamp=-1)
        topics = [Listed.ListOffsetsTopic(name="t", partitions=[part])]
        for isolation, end_offset in ((0, 2), (1, 1)):
            asked = Listed(replica_id=-1, isolation_level=isolation, topics=topics)
            (topic,) = (await client.ask(Api.LIST_OFFSETS, 7, asked)).topics
            assert topic.partitions[0].offset == end_offset
        for offset in (0, 1):
            # From 1 on there is nothing for them yet.
            wanted = fetch(offset)
            wanted.isolation_level = 1
            found = parts_of(await client.ask(Api.FETCH, 11, wanted))[0]
            assert (found.records[1] > 0) is (offset == 0)
            assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (2, 1, 0)
        assert (await end(client, 5, ids)).error_code == 0
