"""What a node forgets of what it keeps for clients: exactly the names that begin as it was asked, however many."""

from __future__ import annotations

import pytest

from insync.replication.core import messages as m
from insync.replication.metadata.memory import MemoryStore
from insync.replication.node.store import _client_state
from insync.replication.node.store._client_state import KeptForClients


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
