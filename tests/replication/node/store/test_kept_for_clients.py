"""Names of producers, of which a node forgets exactly those that it was asked to, and blocks of producer ids."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from insync.replication import Node
from insync.replication.client import BatchProducer
from insync.replication.core import messages as m
from insync.replication.metadata.memory import MemoryStore
from insync.replication.node.requests import _handlers
from insync.replication.node.store import _client_state
from insync.replication.node.store._client_state import KeptForClients
from tests.replication.node.test_cluster import settings


async def new_id() -> int:
    return 7


async def known(kept: KeptForClients, name: str) -> bool:
    """Whether a producer of that name has been there: then its successor has a later epoch."""
    answer = await kept.producer(m.InitProducerIdRequest(identity=name), new_id)
    assert not answer.error
    return answer.producer_epoch > 0


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
async def test_all_producers_whose_names_begin_so_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(_client_state, "_DELETED_AT_ONCE", 3)
    async with MemoryStore() as store:
        kept = KeptForClients(store)
        for number in range(count):
            assert not await known(kept, f"job/{number}")
        assert not await known(kept, "joke")
        await kept.forget_producers("")
        assert await known(kept, "joke"), "no prefix is not every prefix"
        await kept.forget_producers("job/")
        assert [await known(kept, f"job/{number}") for number in range(count)] == [False] * count
        assert await known(kept, "joke")


async def test_no_producer_id_is_given_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node takes one block of ids after another out of the store."""
    monkeypatch.setattr(_handlers, "PRODUCER_ID_BLOCK", 3)
    async with Node(settings(tmp_path, 1)) as node, BatchProducer(node.endpoints) as producer:
        with trio.fail_after(30):
            given = [(await producer.identify()).producer_id for _ in range(8)]
    assert len(set(given)) == 8
