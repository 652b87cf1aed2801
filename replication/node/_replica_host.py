"""One replica on its node: hands events to the core and carries out what the core asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ...storage import Chunk, Log, StorageError
from ..core.broker.events import Report
from ..core.control.records import TopicConfig
from ..core.partition import effects as fx
from ..core.partition import events as ev
from ..core.partition.replica import Replica
from ..core.types import EndedTransaction, EpochEntry, PartitionId, ProducerEntry, SequencedBatch, named
from .log_lines import event
from .logs._log_writer import AppendWork, CallWork, Lane, Work
from .logs._maintenance_thread import log_settings
from .logs._startup_scan import keep_tail
from .requests._payloads import Batches

if TYPE_CHECKING:
    from .logs._directories import Home
    from .ports import Driving

log = logging.getLogger("insync.node")


class ReplicaHost:
    """Drives one `Replica`. All methods run on the event loop; the log is changed by the writer thread only."""

    def __init__(
        self,
        driver: Driving,
        partition: PartitionId,
        home: Home | None,
        failed: Callable[[PartitionId, StorageError], None],
    ) -> None:
        """home: the log directory; None if that is offline, or may be. failed: hears of a write that was lost."""
        self.partition = partition
        self.home = home
        self.lane = Lane(failed=partial(failed, partition))
        self._driver = driver

    @property
    def replica(self) -> Replica:
        return self._driver.broker.context.replicas[self.partition]

    @property
    def log(self) -> Log | None:
        return self.lane.log

    def submit(self, work: Work) -> None:
        """Have something done to the log, after all that was asked for before."""
        assert self.home is not None
        self.home.writer.submit(work)

    def step(self, event: ev.Event) -> None:
        """Tell the broker, and do as it says."""
        self._driver.step(named(Report, (self.partition, event)))

    def adopt(self, opened: Log) -> None:
        """The log is there, and empty."""
        self.lane.log = opened
        self.step(opened_event(opened, 0))

    def append(self, effect: fx.Append) -> None:
        """Have the writer thread write batches."""
        batches = effect.handle
        assert isinstance(batches, Batches)
        batches.taken = True
        chunk = Chunk(
            batches.data,
            batches.infos,
            effect.base_offset,
            effect.leader_epoch,
            may_skip=effect.may_skip,
        )
        end_offset = effect.batches[-1].next_offset
        done = partial(self._appended, batches, end_offset)
        if effect.begins_inside:
            begin = partial(_begin_inside, self._opened(), chunk, self.replica.log.log_start_offset)
            self.submit(CallWork(self.lane, begin, lambda _: done(), batches.release))
        else:
            self.submit(AppendWork(self.lane, chunk, done, batches.release))

    def _appended(self, batches: Batches, log_end_offset: int) -> None:
        batches.release()
        self.step(ev.Appended(log_end_offset=log_end_offset))

    def assign_epoch(self, effect: fx.AssignEpoch) -> None:
        """Have the start of an epoch stored."""
        opened = self._opened()
        self.submit(
            CallWork(
                self.lane,
                lambda: opened.assign_epoch(effect.epoch, effect.start_offset),
                lambda _: self.step(ev.EpochAssigned()),
            )
        )

    def truncate(self, effect: fx.Truncate) -> None:
        """Have the log cut, after a copy of the part that is to be kept."""
        opened = self._opened()
        if effect.restart or effect.offset < opened.log_end_offset:  # else only an epoch without records goes
            log.warning(
                event(
                    "log_truncated",
                    partition=str(self.partition),
                    end_offset=opened.log_end_offset,
                    to_offset=effect.offset,
                    why="nothing in it is in the leader's log"
                    if effect.restart
                    else "its end is not in the leader's log",
                )
            )
        cut = partial(opened.truncate_fully if effect.restart else opened.truncate, effect.offset)
        settled = self.replica.log.high_watermark
        if effect.keep:
            self._keep_tail(None if effect.restart else effect.offset)
        self.submit(CallWork(self.lane, partial(_cut, opened, cut, settled), self._truncated))

    def _keep_tail(self, offset: int | None) -> None:
        """Copy the part of the log that is about to be cut off; None: all of it."""
        assert self.home is not None
        record = self._driver.view.partitions[self.partition].record
        why = (
            f"leader {record.leader}, whose election was unclean at epoch {record.unclean_epoch}, lacks the "
            + ("log" if offset is None else f"records from offset {offset} on")
        )
        keep = partial(keep_tail, self.home.directory, self.partition, offset, why)
        self.submit(CallWork(self.lane, keep, self.home.add_stray, waits=True))

    def _truncated(self, event: object) -> None:
        assert isinstance(event, ev.Truncated)
        self.step(event)

    def advance_log_start(self, effect: fx.AdvanceLogStart) -> None:
        """Have the oldest records deleted."""
        opened = self._opened()
        self.submit(
            CallWork(
                self.lane,
                lambda: opened.advance_log_start_offset(effect.offset),
                lambda _: self.step(ev.LogStartAdvanced(log_start_offset=opened.log_start_offset)),
            )
        )

    def configure(self, config: TopicConfig) -> None:
        """The topic has other settings now."""
        if self.home is None or self.lane.closed:
            return
        base = self.home.directory.settings

        def configure() -> None:
            if self.lane.log is not None:
                self.lane.log.configure(log_settings(base, config))

        self.submit(CallWork(self.lane, configure, lambda _: None, waits=config.flushes))

    def log_start_raised(self) -> None:
        """Retention may have removed the oldest segments: tell the core where the log begins now."""
        if self.lane.log is not None and not self.lane.closed:
            self.step(ev.LogStartRaised(log_start_offset=self.lane.log.log_start_offset))

    def fail(self, reason: str) -> None:
        """The log is unusable from now on: fail the requests that wait for it, and ignore its later reports."""
        if not self.lane.closed:
            self.lane.broken = self.lane.closed = True
            self.step(ev.LogFailed(reason=reason))

    def _opened(self) -> Log:
        assert self.lane.log is not None
        return self.lane.log


def role_changed(effect: fx.RoleChanged) -> None:
    """A replica leads or follows."""
    log.debug(
        "%s: %s at leader epoch %d (leader %d): %s",
        effect.partition,
        effect.role,
        effect.leader_epoch,
        effect.leader,
        effect.reason,
    )


def cut_refused(effect: fx.CutRefused) -> None:
    """A replica does not follow a leader that lacks committed records."""
    log.error(
        "%s: the leader, node %d in epoch %d, lacks committed records; this replica keeps them, up to %d, "
        "and does not truncate its log to %d. Was the leader's folder restored to an older state, or has its "
        "device lost acknowledged writes? Stop node %d, so that another replica of the ISR leads; or, to "
        "abandon these records, move this node's folder of the partition away",
        effect.partition,
        effect.leader,
        effect.leader_epoch,
        effect.high_watermark,
        effect.offset,
        effect.leader,
    )


def opened_event(opened: Log, high_watermark: int) -> ev.Opened:
    """The state of a log, for the core."""
    return ev.Opened(
        log_start_offset=opened.log_start_offset,
        log_end_offset=opened.log_end_offset,
        high_watermark=high_watermark,
        epochs=_epochs(opened),
        producers=_producers(opened),
        ended=_ended(opened, high_watermark),
    )


def _begin_inside(opened: Log, chunk: Chunk, log_start: int) -> None:
    """The first batch of a log that starts inside it: segments start with a batch, so the log is rewritten."""
    opened.truncate_fully(chunk.batches[0].base_offset)
    opened.append([chunk])
    opened.advance_log_start_offset(log_start)
    if opened.settings.flushes:
        opened.flush()


def _cut(opened: Log, cut: Callable[[], None], settled: int) -> ev.Truncated:
    """`settled`: what the log held below it was committed."""
    cut()
    return ev.Truncated(
        log_start_offset=opened.log_start_offset,
        log_end_offset=opened.log_end_offset,
        epochs=_epochs(opened),
        producers=_producers(opened),
        ended=_ended(opened, settled),
    )


def keep_batch(effect: fx.KeepBatch) -> None:
    """The batch is needed after this step."""
    assert isinstance(effect.handle, Batches)
    effect.handle.taken = True


def drop_batch(effect: fx.DropBatch) -> None:
    """A batch that was kept is needed no more."""
    assert isinstance(effect.handle, Batches)
    effect.handle.release()


def _ended(opened: Log, settled: int) -> tuple[EndedTransaction, ...]:
    """Transactions whose marker is not known to be committed."""
    return tuple(
        EndedTransaction(each.producer_id, each.first_offset, each.last_offset)
        for each in opened.completed_transactions(settled)
    )


def _epochs(opened: Log) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(entry.epoch, entry.start_offset) for entry in opened.epochs)


def _producers(opened: Log) -> tuple[ProducerEntry, ...]:
    return tuple(
        ProducerEntry(
            state.producer_id,
            state.producer_epoch,
            tuple(SequencedBatch(*batch) for batch in state.batches),
            state.coordinator_epoch,
            state.first_offset,
        )
        for state in opened.producer_states()
        # Of a producer that wrote without sequences, and in no transaction, there is nothing to compare with.
        if state.batches or state.coordinator_epoch >= 0 or state.first_offset >= 0
    )
