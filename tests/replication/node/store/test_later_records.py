"""Records of a later minor version: a node skips what it does not know of them, and compares all of it."""

from __future__ import annotations

import json

from insync.replication import wire
from insync.replication.core import store_transaction as tx
from insync.replication.core.control import records as rec
from insync.replication.metadata import MemoryStore, Put
from insync.replication.node.store import _store

RECORD = rec.PartitionRecord(topic="t", partition=0, topic_id="a", replicas=(1, 2), isr=(1, 2), leader=1)
KEY = rec.partition_key(RECORD.id)


def of_a_later_version(value: int) -> bytes:
    """The record, with a field that this version does not know."""
    return json.dumps(json.loads(wire.encode_record(RECORD)) | {"since_then": value}).encode()


async def test_a_record_with_an_unknown_field_is_compared_with_all_that_is_in_it() -> None:
    async with MemoryStore() as store:
        await store.commit([], [Put(KEY, of_a_later_version(1))])
        (seen,) = (await _store.get(store, KEY)).values()
        assert seen.record == RECORD and not seen.problem

        def change(value: object) -> tx.Transaction:
            return tx.Transaction(
                compares=(tx.SameValue(KEY, value),), puts=(tx.Put(KEY, RECORD),), session=False
            )

        known = wire.encode_record(RECORD)
        assert isinstance(await _store.commit(store, change(known), None), tx.Conflict)
        await store.commit([], [Put(KEY, of_a_later_version(2))])
        assert isinstance(await _store.commit(store, change(seen.value), None), tx.Conflict)
        (seen,) = (await _store.get(store, KEY)).values()
        assert isinstance(await _store.commit(store, change(seen.value), None), tx.Committed)
        (seen,) = (await _store.get(store, KEY)).values()
        assert seen.value == known, "what it does not know is not written back"
