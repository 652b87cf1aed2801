"""The log directories of a node while it runs: which partition lives where, and what becomes of one that fails.

A log directory that the device refuses to write (or does not get done with) is offline until the node is started
again: nothing more is told of its logs, its partitions are named in the node's registration so that others lead
them, and the other directories go on. Only a node without any working directory stops.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import attrs
import trio
from msgspec import structs

from ....storage import (
    CompactionResult,
    FolderProof,
    Log,
    LogDirectory,
    StorageBrokenError,
    StorageError,
    StorageFullError,
    Stray,
    waits_for_descriptors,
)
from ...core.faces import ClockVerdict, NextProof, StallWatch
from ...core.types import PartitionId
from ..log_lines import event
from ..settings import NodeSettings
from ._log_flusher import LogFlusher
from ._log_writer import LogWriter
from ._maintenance_thread import LogKeeper, Progress
from ._maintenance_troubles import MaintenanceTroubles
from ._startup_scan import Found, is_of_the_device

log = logging.getLogger("insync.node")

_STUCK_SECONDS = 0.5
_STALLS_TO_CLOSE = 4
LOOKS_PER_STALL = 4
"""How often a write that does not end is looked at within `storage_stall_timeout_ms`."""


class Owner(Protocol):
    """The calls of log directories to the node that they belong to; on the event loop."""

    def settle(self) -> None: ...

    def thread_died(self, error: Exception) -> None: ...

    def log_failed(self, partition: PartitionId, error: StorageError) -> None: ...

    def went_offline(self, partitions: Collection[PartitionId], reason: str) -> None: ...

    def high_watermark(self, partition: PartitionId) -> int | None:
        """Called from other threads, too."""

    def leads(self, partition: PartitionId) -> bool:
        """Called from other threads, too."""

    def judge_clocks(self, now_ms: int) -> ClockVerdict:
        """Called from other threads, too."""

    def clocks_judged(self, verdict: ClockVerdict) -> None: ...

    def log_start_raised(self, partition: PartitionId) -> None: ...

    def maintenance_failed(self, partition: PartitionId, error: StorageError) -> None: ...

    def maintained(self, partition: PartitionId, compaction: CompactionResult | None) -> None: ...

    def high_watermarks(self, partitions: Collection[PartitionId]) -> Mapping[tuple[str, int], int]: ...


class Home:
    """One log directory, its partitions and the threads that work for it."""

    def __init__(self, directory: LogDirectory, settings: NodeSettings, owner: Owner) -> None:
        self.directory = directory
        self.partitions: set[PartitionId] = set()
        self.strays: list[Stray] = []
        """Stray logs here: as found at the last look, and those set aside since."""
        self.failure = ""
        """Why it is offline; empty while it works."""
        self.is_stuck = False
        """Whether a thread of it may never come back."""
        self._owner = owner
        self.writer = LogWriter(directory.path.name, owner.settle, self._thread_died)
        self.flusher = LogFlusher(
            directory,
            settings.flush_interval_ms,
            lambda partition, error: owner.log_failed(PartitionId(*partition), error),
            self._thread_died,
        )
        self.keeper = LogKeeper(
            directory,
            settings.log_maintenance_interval_ms,
            settings.log_cleaner_io_max_bytes_per_second,
            settings.stray_retention_ms,
            owner,
            Progress(
                owner.log_start_raised,
                owner.maintenance_failed,
                owner.maintained,
                owner.clocks_judged,
                self._found_strays,
                self._thread_died,
            ),
        )
        self.stalls = StallWatch(settings.storage_stall_timeout_ms / 1000)

    @property
    def path(self) -> Path:
        return self.directory.path

    def add_stray(self, result: object) -> None:
        """The result of a piece of work that sets a log aside, if there was one."""
        if isinstance(result, Stray):
            self.strays.append(result)

    def _found_strays(self, strays: list[Stray]) -> None:
        self.strays = strays

    def _thread_died(self, error: Exception) -> None:
        if self.failure:
            log.warning("a thread of %s, which is offline, ended: %r", self.path, error)
        else:
            self._owner.thread_died(error)


@attrs.define(eq=False)
class Offline:
    """News of failed directories for the metadata store; `changed` is set when there is some."""

    partitions: set[PartitionId]
    untrusted: set[str] = attrs.Factory(set)
    """Ids of directories that may have lost what was written to them."""
    changed: trio.Event = attrs.Factory(trio.Event)
    is_told: trio.Event = attrs.Factory(trio.Event)
    """Whether the store has it."""

    def add(self, partitions: Collection[PartitionId], untrusted: Collection[str] = ()) -> None:
        self.partitions.update(partitions)
        self.untrusted.update(untrusted)
        self.is_told = trio.Event()
        self.changed.set()


class LogDirectories:
    """All of them. `offline` is kept up to date by this."""

    def __init__(self, settings: NodeSettings, found: Found, offline: Offline, owner: Owner) -> None:
        self.all = [Home(directory, settings, owner) for directory in found.directories]
        self.unusable = dict(found.unusable)
        """Configured directories that could not be used at the start, and why."""
        self.offline = offline
        self._settings = settings
        self._owner = owner
        self._homes: dict[PartitionId, Home] = {}
        self.troubles = MaintenanceTroubles()
        for home in self.all:
            for partition in found.held_by(home.directory):
                self._settle_in(partition, home)

    def __iter__(self) -> Iterator[Home]:
        return iter(self.all)

    @property
    def working(self) -> list[Home]:
        return [home for home in self.all if not home.failure]

    def home_of(self, partition: PartitionId) -> Home | None:
        return self._homes.get(partition)

    def home_for(self, partition: PartitionId) -> Home:
        """Where a new partition goes: to the working directory with the fewest, as in Kafka."""
        home = min(self.working or self.all, key=lambda each: len(each.partitions))
        self._settle_in(partition, home)
        return home

    def forget(self, partition: PartitionId) -> None:
        """The partition's log is gone for good."""
        self.troubles.forget(partition)
        home = self._homes.pop(partition, None)
        if home is not None:
            home.partitions.discard(partition)
        if partition in self.offline.partitions:
            self.offline.partitions.discard(partition)
            self.offline.changed.set()

    def _settle_in(self, partition: PartitionId, home: Home) -> None:
        self._homes[partition] = home
        home.partitions.add(partition)

    def start(self) -> None:
        for home in self.all:
            home.writer.start()
            home.flusher.start()
            home.keeper.start()

    def fall_silent(self) -> None:
        for home in self.all:
            home.writer.fall_silent()

    def failed(self, partition: PartitionId, error: StorageError) -> None:
        """A log could not be written, or flushed: that takes its directory offline if the device is to blame."""
        home = self._homes.get(partition)
        if home is not None and is_of_the_device(error):
            self.take_offline(home, str(error), keeps_all=isinstance(error, StorageFullError))
        elif partition not in self.offline.partitions:
            log.error(
                "%s is offline on this node, the other log directories stay in use: %s", partition, error
            )
            self.offline.add([partition])
            self._owner.went_offline([partition], str(error))

    def maintenance_failed(self, partition: PartitionId, error: StorageError) -> None:
        """Failed retention or compaction is tried again, unless the device is broken."""
        home = self._homes.get(partition)
        if home is not None and isinstance(error, StorageBrokenError):
            self.take_offline(home, str(error))
        else:
            self.troubles.failed(partition, error)

    def take_offline(self, home: Home, reason: str, *, keeps_all: bool = False) -> None:
        """Give a directory up until the next start. `keeps_all`: nothing that was written can have been lost."""
        if home.failure:
            return
        home.failure = reason
        log.error(
            event(
                "log_directory_changed",
                path=home.path,
                state="offline",
                partitions=len(home.partitions),
                why=reason,
                remedy="free space or repair the device, then restart the node; meanwhile other nodes lead",
            )
        )
        self.offline.add(home.partitions, () if keeps_all else (home.directory.directory_id,))
        self._owner.went_offline(
            frozenset(home.partitions), f"log directory {home.path} is offline: {reason}"
        )

    async def watch(self) -> None:
        """Give up directories that do not get done with a write within `storage_stall_timeout_ms`.

        Looks count, not the time between them: a process that was stopped for a while has no hanging disk. Nor has
        one whose threads wait for a descriptor.
        """
        timeout = self._settings.storage_stall_timeout_ms / 1000
        period = timeout / LOOKS_PER_STALL
        waits = 0
        while True:
            before = trio.current_time()
            await trio.sleep(period)
            elapsed = min(trio.current_time() - before, 2 * period)
            if waits != (waits := waits_for_descriptors()):
                elapsed = 0.0
            for home in self.working:
                if home.stalls.look(home.writer.signs_of_life, elapsed):
                    home.is_stuck = True
                    self.take_offline(
                        home,
                        f"a write has not finished for {timeout:g} s (storage_stall_timeout_ms); "
                        "check the device",
                    )

    async def checkpoint(self, home: Home) -> None:
        """Write the high watermarks of a directory down now and then: hints for the next start."""
        period = self._settings.replica_high_watermark_checkpoint_interval_ms / 1000
        while not home.failure:
            await trio.sleep(period)
            marks = self._owner.high_watermarks(home.partitions)
            try:
                await trio.to_thread.run_sync(home.directory.write_checkpoints, marks, abandon_on_cancel=True)
            except StorageBrokenError as error:
                self.take_offline(home, str(error))
            except StorageError as error:
                log.warning("the checkpoints of %s could not be written: %s", home.path, error)

    async def write_proofs(self, proofs: Mapping[str, NextProof]) -> list[str]:
        """Have working directories remember how old they are, durably; the ids of those that do."""
        written = []
        for home in self.working:
            directory_id = home.directory.directory_id
            if directory_id not in proofs:
                continue
            proof = FolderProof(**structs.asdict(proofs[directory_id]))
            try:
                await trio.to_thread.run_sync(home.directory.write_proof, proof, abandon_on_cancel=True)
                written.append(directory_id)
            except StorageBrokenError as error:
                self.take_offline(home, str(error))
            except StorageError as error:
                log.warning("cannot store the proof counter of %s: %s", home.path, error)
        return written

    async def stop_threads(self) -> None:
        """Have all that was asked for done; threads that hang in the device are left behind."""
        for home in self.all:
            await self._stop_threads_of(home)

    async def _stop_threads_of(self, home: Home) -> None:
        """A device that hangs must not keep the process: others lead already what it led."""
        timeout = self._settings.storage_stall_timeout_ms / 1000
        while True:
            number = home.writer.signs_of_life
            with trio.move_on_after(_STUCK_SECONDS if home.is_stuck else timeout):
                await home.keeper.stop()
                await home.writer.stop()
                await home.flusher.stop()
                return
            if home.is_stuck:
                return
            if home.writer.signs_of_life == number:
                self.give_up_at_stop(home)
                return

    def patience_to_close(self, home: Home) -> float:
        """Seconds: some stalls, because all logs of the directory are brought to the device at once."""
        stall = self._settings.storage_stall_timeout_ms / 1000
        return _STUCK_SECONDS if home.is_stuck else _STALLS_TO_CLOSE * stall

    def give_up_at_stop(self, home: Home) -> None:
        """A directory is not done, and is left as it is: as after a kill, the next start checks all of it."""
        home.is_stuck = True
        if home.failure:
            return
        home.failure = "its device hung (storage_stall_timeout_ms) when the node stopped"
        log.error(
            event(
                "log_directory_changed",
                path=home.path,
                state="offline",
                partitions=len(home.partitions),
                why=home.failure,
                remedy="check the device; the next start of the node checks the directory",
            )
        )


def opened_log(log: object) -> Log:
    """The result of a piece of work that opens a log."""
    assert isinstance(log, Log)
    return log


async def remove_deleted_logs(home: Home) -> None:
    """Give back what deleted logs take up; readers that hold their files may go on."""
    try:
        await trio.to_thread.run_sync(home.directory.remove_deleted_logs, abandon_on_cancel=True)
    except StorageError as error:
        log.warning("deleted logs in %s could not be removed: %s", home.path, error)
