"""The metadata store as the machine sees it: readings as records, transactions as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ... import metadata as store_api
from ... import wire
from ...core import store_transaction as tx
from ...core.control import records as rec
from ...metadata import Entry, Limits, MetadataStore, Session, SessionExpiredError, TransactionTooLargeError

_PORTION = 100
"""Writes in one transaction of `write_all`."""
_BY_PREFIX: tuple[tuple[str, type], ...] = (
    (rec.PARTITIONS_PREFIX, rec.PartitionRecord),
    (rec.NODES_PREFIX, rec.NodeRecord),
    (rec.TOPICS_PREFIX, rec.TopicRecord),
    (rec.DELETED_PREFIX, rec.DeletedTopicRecord),
    (rec.QUOTAS_PREFIX, rec.QuotaRecord),
    (rec.USERS_PREFIX, rec.UserRecord),
    (rec.INCARNATIONS_PREFIX, rec.IncarnationRecord),
    (rec.PULSES_PREFIX, rec.PulseRecord),
)
_BY_KEY: dict[str, type] = {
    rec.CLUSTER_KEY: rec.ClusterRecord,
    rec.CONTROLLER_KEY: rec.ControllerRecord,
    rec.CONTROLLER_EPOCH_KEY: rec.EpochRecord,
}


def record_class(key: str) -> type | None:
    """Of the record that stands under a key; None for keys that nodes do not read."""
    found = _BY_KEY.get(key)
    if found is not None:
        return found
    for prefix, cls in _BY_PREFIX:  # not by a generator: it is asked for each of thousands of partitions
        if key.startswith(prefix):
            return cls
    return None


def seen(entries: Mapping[str, Entry]) -> dict[str, tx.Seen]:
    """The contents of entries, by key; a value that cannot be read is there without its record."""
    found = {}
    for key, entry in entries.items():
        cls = record_class(key)
        if cls is None:
            continue
        record: object = None
        problem = ""
        try:
            record = wire.decode_record(cls, entry.value)
        except wire.WireError as error:
            problem = str(error)
        found[key] = tx.Seen(
            key=key,
            record=record,
            version=entry.version,
            value=entry.value,
            session=entry.session_id,
            problem=problem,
        )
    return found


async def get(store: MetadataStore, *keys: str) -> dict[str, tx.Seen]:
    """The values of some keys, each at a moment of its own.

    Raises MetadataError.
    """
    entries = [(await store.get(key)).entry for key in keys]
    return seen({entry.key: entry for entry in entries if entry is not None})


def fits(limits: Limits, transaction: tx.Transaction) -> bool:
    """Whether a store takes a transaction of that size."""
    if limits.max_operations is None and limits.max_bytes is None:
        return True
    try:
        limits.check(
            [_compare(each) for each in transaction.compares], [_operation(each) for each in transaction.puts]
        )
    except TransactionTooLargeError:
        return False
    return True


async def commit(
    store: MetadataStore, transaction: tx.Transaction, session: Session | None
) -> tx.Committed | tx.Conflict | tx.SessionOver | tx.Unclear:
    """Carry a transaction out.

    Raises MetadataError: nothing was written.
    """
    try:
        outcome = await store.commit(
            [_compare(each) for each in transaction.compares],
            [_operation(each) for each in transaction.puts],
            session=session if transaction.session else None,
        )
    except SessionExpiredError:
        return tx.SessionOver()
    match outcome:
        case store_api.Committed():
            return tx.Committed(outcome.revision, outcome.versions)
        case store_api.Conflict():
            return tx.Conflict(outcome.key)
        case store_api.Unknown():
            return tx.Unclear(outcome.reason)


async def write_all(
    store: MetadataStore, writes: Sequence[tuple[tx.Compare, tx.Put]]
) -> tx.Conflict | tx.SessionOver | tx.Unclear | None:
    """Carry out any number of writes, some in each transaction; what ended it early, or None.

    Raises MetadataError: the store failed; what was written before stays.
    """
    for first in range(0, len(writes), _PORTION):
        portion = writes[first : first + _PORTION]
        transaction = tx.Transaction(
            compares=tuple(compare for compare, _ in portion),
            puts=tuple(put for _, put in portion),
            session=False,
        )
        outcome = await commit(store, transaction, None)
        if not isinstance(outcome, tx.Committed):
            return outcome
    return None


def _compare(compare: tx.Compare) -> store_api.Compare:
    match compare:
        case tx.Absent():
            return store_api.Missing(compare.key)
        case tx.AtVersion():
            return store_api.VersionIs(compare.key, compare.version)
        case tx.SameValue():
            assert isinstance(compare.value, bytes)
            return store_api.ValueIs(compare.key, compare.value)


def _operation(put: tx.Put) -> store_api.Operation:
    if put.record is None:
        return store_api.Delete(put.key)
    return store_api.Put(put.key, wire.encode_record(put.record), ephemeral=put.ephemeral)
