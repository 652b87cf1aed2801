"""The driver of a node's registration: transactions that were not carried out, or may have been."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from insync.replication import wire
from insync.replication.core import faces
from insync.replication.core import store_transaction as tx
from insync.replication.core.control import records as rec
from insync.replication.metadata import MemoryHub, MemoryStore, Put, Session, Unknown
from insync.replication.node.errors import DuplicateNodeError
from insync.replication.node.store._registration import Registration

KEY = rec.node_key(1)


def record(incarnation: int) -> rec.NodeRecord:
    return rec.NodeRecord(node_id=1, incarnation=incarnation, endpoints=(f"tcp://127.0.0.1:{incarnation}",))


class Decided:
    """As much of a membership as `enter` asks: the node id is free while nobody is registered."""

    node_id = 1

    def __init__(self) -> None:
        self.counts: list[tx.Transaction] = []

    def replaces_holder(self, seen: Mapping[str, tx.Seen]) -> bool:
        return KEY not in seen

    def enter(self, seen: Mapping[str, tx.Seen], endpoints: Any, revision: int) -> faces.Entry:
        put = tx.Put(KEY, record(2), ephemeral=True)
        transaction = tx.Transaction(compares=(tx.Absent(KEY),), puts=(put,))
        return faces.Entry(transaction=transaction, changes=(), unreadable=())

    def counted(self, transaction: tx.Transaction) -> None:
        self.counts.append(transaction)


class Rival(MemoryStore):
    """Another process registers just before the first transaction of this one arrives."""

    rival: Session | None = None

    async def commit(self, compares: Any, operations: Any, *, session: Any = None) -> Any:
        if session is not None and self.rival is None:
            self.rival = await self.open_session(60_000)
            put = Put(KEY, wire.encode_record(record(1)), ephemeral=True)
            await super().commit([], [put], session=self.rival)
        return await super().commit(compares, operations, session=session)


class Forgetful(MemoryStore):
    """It carries out what it is asked, and says that it does not know."""

    async def commit(self, compares: Any, operations: Any, *, session: Any = None) -> Any:
        await super().commit(compares, operations, session=session)
        return Unknown("the answer was lost")


class Lossy(MemoryStore):
    """Loses what it is asked next, or its answer, and says that it does not know."""

    loses = ""

    async def commit(self, compares: Any, operations: Any, *, session: Any = None) -> Any:
        lost, self.loses = self.loses, ""
        if lost != "the question":
            outcome = await super().commit(compares, operations, session=session)
        return Unknown(f"{lost} was lost") if lost else outcome


def registration(store: MemoryStore) -> tuple[Registration, Decided]:
    decided = Decided()
    return Registration(store, cast("faces.Membership", decided), lambda proofs: None), decided


async def test_the_registration_of_another_process_is_not_taken_for_ones_own() -> None:
    async with Rival(MemoryHub()) as store:
        one, decided = registration(store)
        session = await store.open_session(60_000)
        with pytest.raises(DuplicateNodeError, match=r"living process at tcp://127\.0\.0\.1:1"):
            await one.enter(session, [], patience=0.0)
        assert decided.counts == []


@pytest.mark.parametrize("kind", [MemoryStore, Forgetful])
async def test_what_was_entered_is_counted_also_where_the_answer_was_lost(kind: type[MemoryStore]) -> None:
    async with kind(MemoryHub()) as store:
        one, decided = registration(store)
        session = await store.open_session(60_000)
        revision = await one.enter(session, [], patience=0.0)
        read = await store.get(KEY)
        assert read.entry is not None and read.revision == revision
        assert [each.puts[0].key for each in decided.counts] == [KEY]


@pytest.mark.parametrize("lost", ["the question", "the answer"])
async def test_a_process_whose_session_was_lost_is_in_again_when_the_store_shows_it(lost: str) -> None:
    holdings = faces.Holdings(
        directories=(), some_offline=False, held=lambda partition: faces.Held(never=True), offline=frozenset
    )
    membership = faces.Membership(node_id=1, boot_id="boot", process="p", holdings=holdings)
    membership.begin({}, 0)
    async with Lossy(MemoryHub()) as store:
        one = Registration(store, membership, lambda proofs: None)
        former = await store.open_session(60_000)
        await one.enter(former, ["tcp://a"], patience=0.0)
        await former.close()
        assert (await store.get(KEY)).entry is None
        session = await store.open_session(60_000)
        store.loses = lost
        revision = await one.enter_again(session, ["tcp://a"])
        read = await store.get(KEY)
        assert read.entry is not None and read.entry.session_id == session.id
        assert revision == read.revision and store.loses == ""
