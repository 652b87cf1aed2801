"""Kafka's data folders are copied for the nodes of a new cluster, whose metadata store is written from them."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import trio
from msgspec import structs

from ....storage import adoption
from ....storage.batch import records
from ....storage.inspection import batches_in
from ....storage.verification import segment_files
from ... import wire
from ...core import faces
from ...core import store_transaction as tx
from ...core.control import records as rec
from ...core.coordination.routing import TRANSACTION_TOPIC
from ...core.groups.record_codec import Unknown
from ...core.kafka import metadata as kafka_metadata
from ...core.transactions.records import Status, TransactionKey, decode_transaction
from ...metadata import MetadataError, MetadataStore
from ..errors import AdoptionUnclearError, KafkaAdoptionError
from ..store import _store
from ..store._registration import boot_id
from ._repair import look_into

_STAGED = ".adopting"
_PAUSE = 0.1
_SETTLED = (Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT, Status.DEAD)

OnBytes = Callable[[int], None]


@attrs.frozen(kw_only=True)
class Source:
    """A folder of Kafka's, and where its copy is to be."""

    kafka: Path
    data_dir: Path


@attrs.frozen(kw_only=True)
class Surveyed:
    """A folder that was read through, and what a plan goes by of it."""

    source: Source
    foreign: adoption.ForeignFolder
    evidence: faces.AdoptedFolder


def survey(
    sources: Sequence[Source],
    metadata: Sequence[Path],
    settings: Mapping[str, str],
    formerly: Sequence[str],
    on_bytes: OnBytes,
) -> list[Surveyed]:
    """Read the folders, every byte of them. metadata: further folders that hold copies of the metadata log.
    formerly: topics that were compacted once.

    Raises:
      KafkaAdoptionError: With all that stands against an adoption that one folder can show.
    """
    problems: list[str] = []
    copies: dict[Path, kafka_metadata.KafkaMetadata] = {}
    for path in (*(each.kafka for each in sources), *metadata):
        with _collected(problems):
            adoption.identify(path)
            held = adoption.metadata_log(path)
            if held is not None:
                copies[path] = kafka_metadata.read(held.position, held.values)
    if problems:
        raise KafkaAdoptionError(problems)
    found = []
    with _collected(problems):
        latest = faces.latest_metadata(list(copies.values()))

        def compacts(topic: str) -> bool:
            return faces.compacts_in_kafka(latest, settings, topic, formerly)

        for each in sources:
            with _collected(problems):
                foreign = adoption.survey(each.kafka, compacts=compacts, on_bytes=on_bytes)
                found.append(
                    Surveyed(source=each, foreign=foreign, evidence=_told(foreign, latest, settings))
                )
    if problems:
        raise KafkaAdoptionError(problems)
    return found


@contextmanager
def _collected(problems: list[str]) -> Iterator[None]:
    """An error of a folder is one problem of perhaps many."""
    try:
        yield
    except adoption.ForeignFolderError as error:
        problems += [f"{error.path}: {each}" for each in error.problems]
    except faces.AdoptionError as error:
        problems += error.problems
    except kafka_metadata.KafkaMetadataError as error:
        problems.append(str(error))


def _told(
    foreign: adoption.ForeignFolder, metadata: kafka_metadata.KafkaMetadata, settings: Mapping[str, str]
) -> faces.AdoptedFolder:
    identity = foreign.identity
    logs = tuple(
        faces.FoundLog(
            topic=log.topic,
            partition=log.partition,
            topic_id=log.topic_id,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            epochs=tuple((entry.epoch, entry.start_offset) for entry in log.epochs),
            high_watermark=log.high_watermark,
            next_producer_id=log.next_producer_id,
        )
        for log in foreign.logs
    )
    folder = faces.FoundFolder(
        cluster_id=identity.cluster_id,
        node_id=identity.node_id,
        directory_id=identity.directory_id,
        boot_id=boot_id(),
        stopped_clean=0,
        incarnation=0,
        pulse=0,
        revision=0,
        logs=logs,
    )
    return faces.AdoptedFolder(
        source=str(foreign.path),
        folder=folder,
        metadata=metadata,
        open_transactions=tuple(_open_transactions(foreign)),
        settings=dict(settings),
    )


def _open_transactions(foreign: adoption.ForeignFolder) -> Iterator[faces.OpenTransaction]:
    for log in foreign.logs:
        for producer_id, _ in log.open_transactions:
            yield faces.OpenTransaction(topic=log.topic, partition=log.partition, producer_id=producer_id)
        if log.topic == TRANSACTION_TOPIC:
            for transactional_id in _unsettled(foreign.path / log.folder_name):
                yield faces.OpenTransaction(
                    topic=log.topic, partition=log.partition, transactional_id=transactional_id
                )


def _unsettled(folder: Path) -> list[str]:
    """Transactional ids whose transaction, by the coordinator's log, is not over in every partition."""
    statuses: dict[str, Status] = {}
    for segment in segment_files(folder):
        for found, data in batches_in(segment):
            if found.info is None or found.info.is_control:
                continue
            for each in records(bytes(data)):
                decoded = decode_transaction(each.key, each.value)
                if isinstance(decoded, Unknown):
                    # Nothing to judge by: the coordinator will pass over it as well.
                    continue
                key, value = decoded
                assert isinstance(key, TransactionKey)
                if value is None:
                    statuses.pop(key.transactional_id, None)
                else:
                    statuses[key.transactional_id] = value.status
    return sorted(name for name, status in statuses.items() if status not in _SETTLED)


def plan(evidence: Sequence[faces.AdoptedFolder], formerly: Sequence[str]) -> faces.Adoption:
    """The contents to be written into the store of the new cluster.

    Raises:
      KafkaAdoptionError: The folders do not make a whole cluster, or something is under way in it.
    """
    try:
        return faces.plan_adoption(evidence, secrets.token_hex(32), formerly)
    except faces.AdoptionError as error:
        raise KafkaAdoptionError(error.problems) from error


class Copies:
    """Copies that are being made: all of them get their names together, and none stays if the block fails."""

    def __init__(self, found: Sequence[Surveyed]) -> None:
        self._found = found
        self._named: list[Path] = []
        self._are_kept = False

    def __enter__(self) -> Copies:
        targets = [each.source.data_dir.resolve() for each in self._found]
        for target in targets:
            if targets.count(target) > 1:
                raise KafkaAdoptionError([f"{target} is named twice as --data-dir: each copy needs a folder"])
            for each in self._found:
                if target.is_relative_to(each.source.kafka.resolve()):
                    raise KafkaAdoptionError(
                        [f"{target} is inside {each.source.kafka}, which is Kafka's: name another --data-dir"]
                    )
        for each in self._found:
            target = each.source.data_dir
            if adoption.is_unused_copy(target):
                # Of a run that was killed, or of one that has to be made again.
                shutil.rmtree(target)
            elif target.exists() and (not target.is_dir() or any(target.iterdir())):
                raise KafkaAdoptionError(
                    [f"{target} exists already: name an empty folder, or one that does not exist yet"]
                )
            shutil.rmtree(_staged(target), ignore_errors=True)
        return self

    def make(self, on_bytes: OnBytes) -> list[faces.AdoptedFolder]:
        """Raises StorageError, OSError."""
        told = []
        for each in self._found:
            staged = _staged(each.source.data_dir)
            adoption.copy(each.foreign, staged, on_bytes=on_bytes)
            told.append(structs.replace(each.evidence, folder=look_into(staged)))
        return told

    def name(self) -> None:
        """Raises OSError."""
        for each in self._found:
            target = each.source.data_dir
            os.rename(_staged(target), target)
            self._named.append(target)
            adoption.settle_name(target)

    def keep(self) -> None:
        """Keep the copies, whatever comes: the store may have taken them."""
        self._are_kept = True

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is not None and not self._are_kept:
            for each in self._found:
                shutil.rmtree(_staged(each.source.data_dir), ignore_errors=True)
            for target in self._named:
                shutil.rmtree(target, ignore_errors=True)


def _staged(target: Path) -> Path:
    return target.with_name(target.name + _STAGED)


@contextmanager
def kept_from_kafka(sources: Sequence[Source]) -> Iterator[None]:
    """No broker can start on the folders while the block lasts.

    Raises ForeignFolderError if one runs.
    """
    with ExitStack() as stack:
        for each in sources:
            stack.enter_context(adoption.kept_from_kafka(each.kafka))
        yield


async def check_store(store: MetadataStore) -> None:
    """Raises KafkaAdoptionError if the store belongs to a cluster, MetadataError if it cannot be reached."""
    entry = (await store.get(rec.CLUSTER_KEY)).entry
    if entry is not None:
        found = wire.decode_record(rec.ClusterRecord, entry.value).cluster_id
        raise KafkaAdoptionError(
            [
                f"the metadata store belongs to cluster {found}: an adoption creates a new cluster; name an "
                "empty store (to copy a topic into an existing cluster, use MirrorMaker)"
            ]
        )


async def write_store(store: MetadataStore, planned: faces.Adoption, copies: Copies) -> None:
    """Make the store that of the adopted cluster. The copies get their names when all but its identity is written.

    Until the identity stands there no node starts on the copies, and a run that was interrupted is made again.

    Raises:
      KafkaAdoptionError: The store belongs to a cluster, or somebody else writes to it.
      AdoptionUnclearError: Whether it has been written to the end is not known.
      MetadataError: The store cannot be reached.
    """
    await check_store(store)
    leftovers = (await store.list("/")).entries
    for key in leftovers:
        await _commit(store, [(tx.AtVersion(key, leftovers[key].version), tx.Put(key, None))])
    for key in {put.key for _, put in planned.writes} - leftovers.keys():
        if not key.startswith("/"):
            entry = (await store.get(key)).entry
            if entry is not None:
                await _commit(store, [(tx.AtVersion(key, entry.version), tx.Put(key, None))])
    await _commit(store, planned.writes)
    # Nothing may interrupt this: the copies are removed unless it is known that the store has taken them.
    with trio.CancelScope(shield=True):
        copies.name()
        await _seal(store, planned, copies)


async def _seal(store: MetadataStore, planned: faces.Adoption, copies: Copies) -> None:
    """Write the identity. An outcome that was lost is looked up.

    Raises:
      AdoptionUnclearError: The store cannot be asked whether it has taken it.
    """
    compare, put = planned.identity
    while True:
        outcome = await _store.commit(
            store, tx.Transaction(compares=(compare,), puts=(put,), session=False), None
        )
        if isinstance(outcome, tx.Committed):
            return
        try:
            entry = (await store.get(rec.CLUSTER_KEY)).entry
        except MetadataError as error:
            if not isinstance(outcome, tx.Unclear):
                raise
            copies.keep()
            raise AdoptionUnclearError(
                f"it is unknown whether the metadata store has recorded the cluster ({error}), so the copies were "
                "kept: run the command again; if it says that the store belongs to this cluster, start the nodes"
            ) from error
        if entry is not None and wire.decode_record(rec.ClusterRecord, entry.value) == put.record:
            return
        if not isinstance(outcome, tx.Unclear):
            raise KafkaAdoptionError(
                ["another cluster has been created in the metadata store: name an empty store"]
            )
        await trio.sleep(_PAUSE)


async def _commit(store: MetadataStore, writes: Sequence[tuple[tx.Compare, tx.Put]]) -> None:
    outcome = await _store.write_all(store, writes)
    if outcome is not None:
        raise KafkaAdoptionError(
            [f"another process wrote to the metadata store ({outcome}): stop every node, and run this again"]
        )


def write_evidence(path: Path, evidence: Sequence[faces.AdoptedFolder]) -> None:
    """For the machine that writes the store, a line for each folder. Raises OSError."""
    path.write_bytes(b"".join(wire.encode_record(each) + b"\n" for each in evidence))


def read_evidence(path: Path) -> list[faces.AdoptedFolder]:
    """Raises KafkaAdoptionError if the file is not one that `write_evidence` wrote."""
    try:
        lines = path.read_bytes().splitlines()
        return [wire.decode_record(faces.AdoptedFolder, line) for line in lines if line]
    except (OSError, wire.WireError) as error:
        raise KafkaAdoptionError([f"{path} is not what --evidence has written: {error}"]) from error
