"""Transactions whose requests go by both versions of Kafka's protocol: each ends wholly, or is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api, KafkaError
from insync.replication import Admin
from insync.replication.core.errors import ErrorCode

from .test_listener import client_of, make, node_at, write
from .test_transaction_versions import NOT_YET, begun, commit_offset, end, located, put, stable_offset
from .wire_client import WireClient

AddOffsets = message("AddOffsetsToTxnRequest")
FEW = {"transaction_state_log_num_partitions": 3, "offsets_topic_num_partitions": 3}


async def add_offsets(client: WireClient, ids: tuple[int, int]) -> int:
    asked = AddOffsets(transactional_id="etl", producer_id=ids[0], producer_epoch=ids[1], group_id="g")
    with trio.fail_after(60):
        while True:
            told = await client.ask(Api.ADD_OFFSETS_TO_TXN, 3, asked)
            if told.error_code not in NOT_YET:
                return int(told.error_code)


async def begin(node: Any, client: WireClient) -> tuple[int, int]:
    await make(node)
    await write(client, b"first")
    await located(client, "g", 0)
    return await begun(client)


async def ended_as(admin: Admin, status: str) -> None:
    with trio.fail_after(10):
        while (await admin.describe_transaction("etl")).status != status:
            pass


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("ended_by", [3, 4, 5])
@pytest.mark.parametrize("sent_by", [3, 4, 5])
async def test_offsets_of_one_version_end_with_a_transaction_of_the_other(
    tmp_path: Path, sent_by: int, ended_by: int, committed: bool
) -> None:
    """A marker that a partition refused for ever left the offsets of a group undecided for ever."""
    async with node_at(tmp_path, **FEW) as node, client_of(node) as client:
        ids = await begin(node, client)
        if sent_by < 5:
            assert await add_offsets(client, ids) == 0
        assert await commit_offset(client, sent_by, ids) == 0
        told = await end(client, ended_by, ids, committed=committed)
        assert told.error_code == 0
        assert await stable_offset(client) == (7 if committed else -1)
        status = "COMPLETE_COMMIT" if committed else "COMPLETE_ABORT"
        async with Admin(node.endpoints) as admin:
            await ended_as(admin, status)
        # The next one, by the epoch that its client knows.
        ids = (told.producer_id, told.producer_epoch) if ended_by == 5 else ids
        assert await commit_offset(client, 5, ids, 8) == 0
        assert (await end(client, ended_by, ids)).error_code == 0
        assert await stable_offset(client) == 8


@pytest.mark.parametrize(
    ("version", "error"), [(3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)]
)
async def test_offsets_of_the_first_version_need_their_group_added_before(
    tmp_path: Path, version: int, error: ErrorCode
) -> None:
    async with node_at(tmp_path, **FEW) as node, client_of(node) as client:
        ids = await begin(node, client)
        assert await commit_offset(client, version, ids) == error
        assert await stable_offset(client) == -1, "nothing is left behind"
        assert (await end(client, 3, ids)).error_code == ErrorCode.INVALID_TXN_STATE, "nothing has begun"
        assert await add_offsets(client, ids) == 0
        assert await commit_offset(client, version, ids) == 0
        assert (await end(client, 3, ids)).error_code == 0
        assert await stable_offset(client) == 7


@pytest.mark.parametrize("ended_by", [3, 5])
async def test_records_of_the_second_version_end_by_either(tmp_path: Path, ended_by: int) -> None:
    async with node_at(tmp_path, **FEW) as node, client_of(node) as client, Admin(node.endpoints) as admin:
        ids = await begin(node, client)
        assert await put(client, 12, ids) == 0
        assert (await end(client, ended_by, ids)).error_code == 0
        await ended_as(admin, "COMPLETE_COMMIT")
        (producers,) = (await admin.describe_producers([("t", 0)])).values()
        assert [each.start_offset for each in producers if each.producer_id == ids[0]] == [-1]


@pytest.mark.parametrize(
    ("may", "error"),
    [
        ("produce", KafkaError.GROUP_AUTHORIZATION_FAILED),
        ("consume", KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("produce+consume", 0),
        ("produce+admin", 0),
    ],
)
@pytest.mark.parametrize("version", [3, 5])
async def test_offsets_in_a_transaction_need_the_rights_of_a_producer_and_of_a_group(
    tmp_path: Path, version: int, may: str, error: int
) -> None:
    async with node_at(tmp_path, **FEW) as node, client_of(node) as client:
        ids = await begin(node, client)
    async with node_at(tmp_path, allow=(f"client={may}",), **FEW) as node, client_of(node) as client:
        assert await add_offsets(client, ids) == error
        assert await commit_offset(client, version, ids) == error
        if not error:
            assert (await end(client, version, ids)).error_code == 0
    async with node_at(tmp_path, **FEW) as node, client_of(node) as client:
        await located(client, "g", 0)
        assert await stable_offset(client) == (-1 if error else 7)
