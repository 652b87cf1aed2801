"""The scan of a node's log directories when it starts; in a thread, before it serves anything."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import attrs
from msgspec import structs

from ....storage import (
    CorruptLogError,
    CorruptMetadataError,
    DuplicateLogError,
    FolderProof,
    Log,
    LogDirectory,
    LogDirectoryError,
    LogSettings,
    MisplacedError,
    StorageBrokenError,
    StorageError,
    StorageFullError,
    Stray,
    TooManyOpenFilesError,
    WrongTopicIdError,
    read_identity,
    read_topic_id,
)
from ...core.control.view import ClusterView, Standing
from ...core.faces import Evidence, Held, Holdings, NextProof
from ...core.types import NO_EPOCH, PartitionId
from ..log_lines import event
from ..settings import NodeSettings
from ._maintenance_thread import log_settings, wall_clock_ms

log = logging.getLogger("insync.node")

DAMAGED = (CorruptLogError, CorruptMetadataError)
"""Errors by which a log counts as lost: it is copied again once another replica leads."""

OF_THE_DEVICE = (StorageFullError, StorageBrokenError)
"""Errors that say nothing of the log that was being opened: the next one would meet them, too."""


def is_of_the_device(error: StorageError) -> bool:
    """Whether the device is to blame, so that nothing in the same directory can be relied on."""
    return isinstance(error, OF_THE_DEVICE)


@attrs.define(eq=False)
class Found:
    """Directories that are open and locked, the logs in them, and what could not be opened."""

    directories: list[LogDirectory] = attrs.Factory(list)
    unusable: dict[Path, str] = attrs.Factory(dict)
    """Configured directories that the device refuses, and why."""
    logs: dict[PartitionId, Log] = attrs.Factory(dict)
    offline: set[PartitionId] = attrs.Factory(set)
    """Partitions of this node that are, or may be, in an unusable directory; and those that are refused."""
    refused: dict[PartitionId, StorageError] = attrs.Factory(dict)
    """Logs that cannot be opened though their directory works, and why. Nothing was changed in them."""
    topic_ids: dict[PartitionId, str] = attrs.Factory(dict)
    """The topic id of each log: its own, or that of the store; empty if neither is known."""
    _homes: dict[PartitionId, LogDirectory] = attrs.Factory(dict)
    """Of the logs that are open, and of damaged ones: whose folders are certainly those of their partitions."""
    _folders: dict[PartitionId, LogDirectory] = attrs.Factory(dict)

    @classmethod
    def open_directories(cls, settings: NodeSettings, cluster_id: str) -> Found:
        """Lock every directory that works.

        Raises:
          LogDirectoryError: One belongs to another node or cluster, or is in use; or none works.
          TooManyOpenFilesError: No descriptor is left. It says nothing of any directory.
        """
        found = cls()
        log_settings = LogSettings(
            flush_interval_messages=settings.flush_interval_messages,
            flush_interval_ms=settings.flush_interval_ms,
        )
        try:
            for folder in settings.folders:
                try:
                    directory = LogDirectory(
                        folder,
                        cluster_id=cluster_id,
                        node_id=settings.node_id,
                        settings=log_settings,
                        on_mended=_index_rebuilt,
                    )
                    found.directories.append(directory)
                    _tell_damaged(directory)
                except (*OF_THE_DEVICE, MisplacedError) as error:
                    found._give_up(folder, error)
            found._check_any_left()
        except BaseException:
            found.close()
            raise
        return found

    def open_logs(self, view: ClusterView, node_id: int) -> None:
        """Open every log that there is; then `offline` says which of the node's partitions cannot be used.

        A log that cannot be opened costs its partition alone, a device that refuses its directory.

        Raises:
          LogDirectoryError: No directory works.
          TooManyOpenFilesError: No descriptor is left. It says nothing of any directory.
        """
        for directory in list(self.directories):
            try:
                self._open_logs_of(directory, view)
            except OF_THE_DEVICE as error:
                self.directories.remove(directory)
                self._drop_logs_of(directory)
                with suppress(StorageError, OSError):
                    directory.close(clean=False)
                self._give_up(directory.path, error)
                self._check_any_left()
        if self.unusable:
            self.offline.update(
                partition
                for partition, versioned in view.partitions.items()
                if node_id in versioned.record.replicas and partition not in self.logs
            )
        self.offline.update(self.refused)
        for partition in (*self.logs, *self.offline):
            self.topic_ids[partition] = self._topic_id(partition, view)

    def _topic_id(self, partition: PartitionId, view: ClusterView) -> str:
        """Opening has compared the log's id with that of a topic that the store knows."""
        topic, home = view.topics.get(partition.topic), self._homes.get(partition)
        if topic is not None:
            return topic.topic_id
        own = read_topic_id(home.path / f"{partition.topic}-{partition.partition}") if home else ""
        versioned = view.partitions.get(partition)
        return own or (versioned.record.topic_id if versioned is not None else "")

    def _open_logs_of(self, directory: LogDirectory, view: ClusterView) -> None:
        """Raises StorageFullError or StorageBrokenError if the device is to blame, TooManyOpenFilesError."""
        for topic, number in directory.partitions():
            partition = PartitionId(topic, number)
            other = self._folders.setdefault(partition, directory)
            if other is not directory:
                # Nobody can know which of them has what was acknowledged.
                self.logs.pop(partition, None)
                self._homes.pop(partition, None)
                self._refuse(
                    partition, DuplicateLogError(str(partition), str(other.path), str(directory.path))
                )
                continue
            try:
                self.logs[partition] = open_log(directory, partition, view, create=False)
            except (StorageFullError, TooManyOpenFilesError):
                raise
            except StorageBrokenError as error:
                directory.check_device()
                self._refuse(partition, error)
            except WrongTopicIdError as error:
                standing = view.standing_of(error.found)
                if standing is Standing.PRESENT:
                    # Of a topic that there is, under the name of another.
                    self._refuse(partition, error)
                    continue
                if standing is Standing.DELETED:
                    log.warning("%s is deleted with its topic: %s", partition, error)
                    directory.delete_log(*partition)
                else:
                    why = f"{error}, and the metadata store does not say that topic id {error.found} was deleted"
                    set_aside(directory, partition, why)
                del self._folders[partition]
            except StorageError as error:
                self._refuse(partition, error)
                if isinstance(error, DAMAGED):
                    self._homes[partition] = directory
            else:
                self._homes[partition] = directory

    def _refuse(self, partition: PartitionId, error: StorageError) -> None:
        self.refused[partition] = error
        log.error(
            event(
                "log_refused",
                partition=str(partition),
                why=error,
                remedy="the node copies it again once another replica leads; check the device"
                if isinstance(error, DAMAGED)
                else "repair the folder or move it aside, then restart the node",
            )
        )

    def _drop_logs_of(self, directory: LogDirectory) -> None:
        for partition in self.held_by(directory):
            del self._homes[partition]
            self.logs.pop(partition, None)
            self.refused.pop(partition, None)
            self.offline.add(partition)

    def _give_up(self, folder: Path, error: StorageError) -> None:
        self.unusable[folder] = str(error)
        log.error(
            event(
                "log_directory_changed",
                path=folder,
                state="offline",
                why=error,
                remedy="the node starts without it if it has another one; repair it and restart the node",
            )
        )

    def _check_any_left(self) -> None:
        if not self.directories:
            raise LogDirectoryError("; ".join(self.unusable.values()))

    def held_by(self, directory: LogDirectory) -> list[PartitionId]:
        return [partition for partition, home in self._homes.items() if home is directory]

    def high_watermarks(self) -> dict[PartitionId, int]:
        """As last checkpointed, of the logs that are open."""
        marks = {directory: directory.high_watermarks() for directory in self.directories}
        return {partition: marks[home].get(partition, 0) for partition, home in self._homes.items()}

    def holdings(self, offline: set[PartitionId]) -> Holdings:
        """The log directories' facts for the registration; `offline` is read whenever the node registers."""
        marks = self.high_watermarks()

        def held(partition: PartitionId) -> Held:
            opened = self.logs.get(partition)
            if opened is None:
                never = all(each.never_held(*partition) for each in self.directories)
                return Held(never=never and not self.unusable)
            home = self._homes[partition]
            return Held(
                home=home.directory_id,
                log_end_offset=opened.log_end_offset,
                committed=marks.get(partition, 0),
                last_epoch=max((each.epoch for each in opened.epochs), default=NO_EPOCH),
                restored=home.is_restored(*partition),
            )

        return Holdings(
            directories=tuple(
                Evidence(
                    directory_id=each.directory_id,
                    stopped_clean=each.previous_broker_epoch if each.was_clean else None,
                    proof=each.proof,
                )
                for each in self.directories
            ),
            some_offline=bool(self.unusable),
            held=held,
            offline=lambda: frozenset(offline),
            refused=frozenset(self.refused),
            damaged=frozenset(p for p, error in self.refused.items() if isinstance(error, DAMAGED)),
        )

    def write_proofs(self, proofs: Mapping[str, NextProof]) -> None:
        """Make what directories have to remember durable; one whose device refuses raises StorageError."""
        for directory in self.directories:
            proof = proofs.get(directory.directory_id)
            if proof is not None:
                directory.write_proof(FolderProof(**structs.asdict(proof)))

    def settle_restored(self) -> None:
        """The node has registered. A note that stays costs nothing but another copy at the next start."""
        for directory in self.directories:
            with suppress(StorageError):
                directory.settle_restored()

    def close(self) -> None:
        """Let everything go; nothing was changed."""
        for directory in self.directories:
            with suppress(StorageError):
                directory.close(directory.was_clean, broker_epoch=directory.previous_broker_epoch)


def set_aside(directory: LogDirectory, partition: PartitionId, why: str) -> Stray | None:
    """Keep a log that cannot be used as a stray log, and say so. Raises StorageError."""
    stray = directory.set_aside(partition, why, wall_clock_ms())
    if stray is not None:
        log.error(
            event(
                "log_set_aside",
                partition=str(partition),
                path=stray.path,
                why=why,
                remedy="nothing is lost: see `insync stray list`, then restore or delete it",
            )
        )
    return stray


def keep_tail(directory: LogDirectory, partition: PartitionId, offset: int | None, why: str) -> Stray:
    """Copy the records from an offset on (None: all) as a stray log, and say so. Raises StorageError."""
    stray = directory.keep_tail(partition, offset, why, wall_clock_ms())
    log.error(
        event(
            "log_tail_kept",
            partition=str(partition),
            path=stray.path,
            why=why,
            remedy="read its records with `insync log dump --records`, then delete it",
        )
    )
    return stray


def _tell_damaged(directory: LogDirectory) -> None:
    for path, consequence in directory.damaged.items():
        log.error(
            event(
                "small_file_damaged",
                path=path,
                why=f"its checksum does not match, or its form is another: {consequence}",
                remedy="none is needed: the node writes it again; check the device",
            )
        )
    for stray in directory.strays():
        if stray.since_ms is None:
            log.error(
                event(
                    "stray_log_unexplained",
                    path=stray.note,
                    why=f"why the log was set aside is {stray.why}",
                    remedy="no record is affected, and the node keeps it: see `insync stray list`, then restore or "
                    "delete it",
                )
            )


def _index_rebuilt(key: tuple[str, int], path: Path, why: str) -> None:
    log.warning(
        event(
            "index_rebuilt",
            partition=f"{key[0]}-{key[1]}",
            path=path,
            why=why,
            remedy="none is needed: no record is affected; find out who changes files in the data folder",
        )
    )


def clusters_of(folders: Iterable[Path]) -> dict[Path, str]:
    """The clusters that data folders belong to; those that are new, or cannot be read, are left out."""
    found = {}
    for folder in folders:
        with suppress(StorageError, OSError):
            found[folder], _, _ = read_identity(folder)
    return found


def open_log(directory: LogDirectory, partition: PartitionId, view: ClusterView, *, create: bool) -> Log:
    """Open one log with the settings and the identity of its topic, as far as the store knows the topic."""
    topic = view.topics.get(partition.topic)
    return directory.open_log(
        *partition,
        create=create,
        topic_id=topic.topic_id if topic is not None else None,
        settings=log_settings(directory.settings, topic.config) if topic is not None else None,
    )
