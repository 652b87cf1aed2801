"""State kept for clients in the metadata store: producers that outlive their processes, readers' offsets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import quote

from msgspec import structs

from ... import metadata as store_api
from ... import wire
from ...core import messages as m
from ...core.control import records as rec
from ...core.errors import ErrorCode

GREATEST_EPOCH = 2**15 - 1
MAX_NAME_BYTES = 1024
MAX_OFFSETS_BYTES = 512 << 10
"""Of all that is kept under one name; an answer with it fits into a frame."""
_DELETED_AT_ONCE = 200


class KeptForClients:
    """Reads and writes of single keys, each by compare-and-set; any node does them, and holds nothing itself.

    All raise MetadataError if the store is out of reach, WireError if a value in it cannot be read.
    """

    def __init__(self, store: store_api.MetadataStore) -> None:
        self._store = store

    async def producer(
        self, message: m.InitProducerIdRequest, new_id: Callable[[], Awaitable[int]]
    ) -> m.InitProducerIdResponse:
        """The id that goes with a name, and the next epoch: that of whoever asked before is fenced.

        A producer that tells its epoch only gets the next one if nobody has asked since (KIP-360): a producer that
        was replaced must not replace its successor. One whose answer was lost is taken for such, too, to be safe.
        """
        identity = message.identity
        key = rec.producer_key(_safe(identity))
        if len(key) > MAX_NAME_BYTES:
            return m.InitProducerIdResponse(
                error=ErrorCode.INVALID_REQUEST, message="the identity is too long"
            )
        while True:
            entry = (await self._store.get(key)).entry
            if message.producer_epoch >= 0 and not _is_of(entry, message):
                text = f"another producer has been opened under the name {identity!r}"
                return m.InitProducerIdResponse(error=ErrorCode.INVALID_PRODUCER_EPOCH, message=text)
            if entry is None:
                record = rec.ProducerRecord(producer_id=await new_id(), producer_epoch=0)
            else:
                kept = wire.decode_record(rec.ProducerRecord, entry.value)
                if kept.producer_epoch >= GREATEST_EPOCH:
                    text = f"identity {identity!r} has used up its {GREATEST_EPOCH + 1} epochs; take another name"
                    return m.InitProducerIdResponse(error=ErrorCode.INVALID_PRODUCER_EPOCH, message=text)
                record = structs.replace(kept, producer_epoch=kept.producer_epoch + 1)
            if await self._swap(key, entry, wire.encode_record(record)):
                return m.InitProducerIdResponse(
                    error=ErrorCode.NONE,
                    producer_id=record.producer_id,
                    producer_epoch=record.producer_epoch,
                )

    async def forget_producers(self, prefix: str) -> None:
        """All whose names begin so; there may be none."""
        if not prefix:
            return
        keys = list((await self._store.list(rec.producer_key(_safe(prefix)))).entries)
        for at in range(0, len(keys), _DELETED_AT_ONCE):
            await self._store.commit([], [store_api.Delete(key) for key in keys[at : at + _DELETED_AT_ONCE]])

    async def offsets(self, group: str) -> m.OffsetsResponse:
        """Those kept under a name."""
        return _told((await self._store.get(rec.offsets_key(_safe(group)))).entry)

    async def commit_offsets(self, message: m.OffsetCommitRequest) -> m.OffsetsResponse:
        """Keep them beside those of other partitions; none: forget all. The answer tells what is kept then."""
        key = rec.offsets_key(_safe(message.group))
        if not message.group or len(key) > MAX_NAME_BYTES:
            return m.OffsetsResponse(
                error=ErrorCode.INVALID_REQUEST, message="a group id must not be empty or long"
            )
        by_topic: dict[str, dict[str, int]] = {}
        for each in message.offsets:
            by_topic.setdefault(each.topic, {})[str(each.partition)] = each.offset
        while True:
            entry = (await self._store.get(key)).entry
            if entry is not None and message.if_absent:
                return _told(entry)
            record = _merged(entry, by_topic)
            value = wire.encode_record(record)
            if by_topic and len(value) > MAX_OFFSETS_BYTES:
                return m.OffsetsResponse(
                    error=ErrorCode.INVALID_REQUEST,
                    message=f"the offsets of {message.group!r} would take {len(value)} bytes, above "
                    f"{MAX_OFFSETS_BYTES}: use several names, or delete entries that nobody needs",
                )
            if await self._swap(key, entry, value if by_topic else None):
                return _listed(record if by_topic else rec.OffsetsRecord(offsets={}))

    async def _swap(self, key: str, entry: store_api.Entry | None, value: bytes | None) -> bool:
        """Whether no other writer was faster. After an unclear outcome the caller's next turn reads again."""
        compare: store_api.Compare = store_api.Missing(key)
        if entry is not None:
            compare = store_api.VersionIs(key, entry.version)
        operation = store_api.Delete(key) if value is None else store_api.Put(key, value)
        return isinstance(await self._store.commit([compare], [operation]), store_api.Committed)


def _is_of(entry: store_api.Entry | None, message: m.InitProducerIdRequest) -> bool:
    """Whether the name still belongs to the producer that asks."""
    if entry is None:
        return False
    kept = wire.decode_record(rec.ProducerRecord, entry.value)
    return (kept.producer_id, kept.producer_epoch) == (message.producer_id, message.producer_epoch)


def _safe(name: str) -> str:
    """As part of a key: a prefix of a name stays one."""
    return quote(name, safe="/")


def _merged(entry: store_api.Entry | None, by_topic: Mapping[str, Mapping[str, int]]) -> rec.OffsetsRecord:
    """The kept offsets, with these in place of former ones of the same partitions."""
    found: dict[str, dict[str, int]] = {}
    if entry is not None:
        kept = wire.decode_record(rec.OffsetsRecord, entry.value)
        found = {topic: dict(each) for topic, each in kept.offsets.items()}
    for topic, each in by_topic.items():
        found.setdefault(topic, {}).update(each)
    return rec.OffsetsRecord(offsets=found)


def _told(entry: store_api.Entry | None) -> m.OffsetsResponse:
    if entry is None:
        return m.OffsetsResponse(error=ErrorCode.NONE)
    return _listed(wire.decode_record(rec.OffsetsRecord, entry.value))


def _listed(kept: rec.OffsetsRecord) -> m.OffsetsResponse:
    offsets = [
        m.CommittedOffset(topic=topic, partition=int(partition), offset=offset)
        for topic, each in kept.offsets.items()
        for partition, offset in each.items()
    ]
    return m.OffsetsResponse(error=ErrorCode.NONE, offsets=offsets)
