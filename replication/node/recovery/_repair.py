"""A metadata store that was put back or lost is repaired from the folders of nodes that are stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ....storage import LogDirectory, read_identity, read_topic_id
from ... import wire
from ...core import store_transaction as tx
from ...core.control import records as rec
from ...core.faces import FoundFolder, FoundLog, Repair, RepairError, plan_repair
from ...metadata import MetadataStore
from ..errors import StoreRepairError
from ..store import _store
from ..store._registration import boot_id


def look_into(folder: Path) -> FoundFolder:
    """The facts in a folder that the store may have forgotten. Its logs are recovered as at a start of the node.

    Raises:
      StorageError: The folder is not a data folder, its node is running, or a log is damaged.
    """
    cluster_id, node_id, directory_id = read_identity(folder)
    directory = LogDirectory(folder, cluster_id=cluster_id, node_id=node_id)
    try:
        logs = []
        for topic, partition in directory.partitions():
            topic_id = read_topic_id(folder / f"{topic}-{partition}")
            logs.append(_found(directory, topic, partition, topic_id))
        proof = directory.proof
        return FoundFolder(
            cluster_id=cluster_id,
            node_id=node_id,
            directory_id=directory_id,
            boot_id=boot_id(),
            stopped_clean=directory.previous_broker_epoch if directory.was_clean else None,
            incarnation=proof.incarnation if proof is not None else 0,
            pulse=proof.pulse if proof is not None else 0,
            revision=proof.revision if proof is not None else 0,
            leader_epoch=proof.leader_epoch if proof is not None else 0,
            logs=tuple(logs),
        )
    finally:
        directory.close(directory.was_clean, broker_epoch=directory.previous_broker_epoch)


def _found(directory: LogDirectory, topic: str, partition: int, topic_id: str) -> FoundLog:
    log = directory.open_log(topic, partition, create=False)
    return FoundLog(
        topic=topic,
        partition=partition,
        topic_id=topic_id,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        epochs=tuple((entry.epoch, entry.start_offset) for entry in log.epochs),
        high_watermark=directory.high_watermarks().get((topic, partition), 0),
        next_producer_id=1 + max((each.producer_id for each in log.producer_states()), default=-1),
        may_skip=log.cleaned_offset is not None,
    )


async def repair(store: MetadataStore, folders: Sequence[FoundFolder]) -> Repair:
    """Write into the store what the folders know; then nodes take it for the one that they know.

    Raises:
      StoreRepairError: Folders and store do not belong together, or another process writes to the store.
      MetadataError: The store cannot be reached, or cannot be repaired.
    """
    entries = (await store.list("/")).entries
    extra = {rec.pulse_key(folder.node_id) for folder in folders}
    seen = {**_store.seen(entries), **await _store.get(store, *sorted(extra))}
    ids = (await store.get(rec.PRODUCER_IDS_KEY)).entry
    if ids is not None:
        record = wire.decode_record(rec.ProducerIdsRecord, ids.value)
        seen[ids.key] = tx.Seen(key=ids.key, record=record, version=ids.version, value=ids.value)
    try:
        planned = plan_repair(folders, seen)
    except RepairError as error:
        raise StoreRepairError(str(error)) from error
    outcome = await _store.write_all(store, planned.writes)
    if outcome is not None:
        raise StoreRepairError(
            f"the repair was interrupted ({outcome}): stop every node of the cluster and run it again"
        )
    await store.raise_revision(planned.floor)
    return planned
