"""The work of a task of the source: one range of offsets of one partition, as Arrow batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from ...replication import ReplicationError
from ...replication.client import BlockingConsumer, OffsetOutOfRangeError
from ...storage.batch import StorageError
from . import _clients
from ._decode import Decoder
from ._offsets import Range
from ._options import Connection
from ._workers import settle
from .errors import DataLossError, SparkError, StalledError, TopicRecreatedError

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("insync.spark")
_POLL_MS = 1000


@attrs.frozen(kw_only=True)
class ReadOptions:
    """The options that tasks need; they travel with the reader."""

    connection: Connection
    names: tuple[str, ...]
    fail_on_data_loss: bool
    poll_timeout_ms: int


def read_range(options: ReadOptions, wanted: Range) -> Iterator[pa.RecordBatch]:
    """All that the range holds. Gaps that compaction left are no loss.

    Raises:
      DataLossError: Part of the range has been deleted, and that is to be told; TopicRecreatedError if all of it
        was, as its topic was deleted and made again.
      StalledError: Nothing came for `pollTimeoutMs`.
      SparkError: A batch cannot be decoded.
    """
    if len(wanted) <= 0:
        return
    with _clients.consumer(options.connection) as consumer:
        at = (wanted.topic, wanted.partition)
        consumer.assign([at])
        try:
            yield from _Task(options, wanted, consumer).run()
        except ReplicationError as error:
            # As `plainly` has it: Spark shows the user the whole traceback.
            raise error.with_traceback(None) from None
        finally:
            # Nothing is to be read ahead for nobody.
            consumer.assign([])
            settle()


class _Task:
    def __init__(self, options: ReadOptions, wanted: Range, consumer: BlockingConsumer) -> None:
        self._options = options
        self._wanted = wanted
        self._consumer = consumer
        self._name = f"{wanted.topic}-{wanted.partition}"
        self._has_warned = False
        self._decoder = Decoder(wanted.topic, wanted.partition, options.names)

    def run(self) -> Iterator[pa.RecordBatch]:
        position, end = self._wanted.start, self._wanted.end
        self._seek(position)
        quiet_since = time.monotonic()
        while position < end:
            try:
                found = self._consumer.poll_batches(_POLL_MS)
            except OffsetOutOfRangeError as error:
                position = self._lost(position, error)
                continue
            if not found:
                reached = self._consumer.position((self._wanted.topic, self._wanted.partition))
                if reached is not None and reached > position:
                    # All of it was aborted: a range ends where it ends, and not at a record.
                    position, quiet_since = reached, time.monotonic()
                elif self._is_throttled():
                    # The leader has answered, and said for how long it will not again.
                    quiet_since = time.monotonic()
                else:
                    self._check_quiet(quiet_since, position)
                continue
            for fetched in found:
                if position < end:
                    try:
                        yield from self._decoder.decode(fetched.data, fetched.batches, position, end)
                    except StorageError as error:
                        raise SparkError(f"{self._name} from offset {position} on: {error}") from error
                position = fetched.next_offset
            quiet_since = time.monotonic()

    def _is_throttled(self) -> bool:
        pause = self._consumer.throttled_ms((self._wanted.topic, self._wanted.partition))
        if pause > self._options.poll_timeout_ms and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s: the quota of client_id=%r lets this task wait for %.1f s; give it a higher one "
                "(insync config quotas) if that is too long",
                self._name,
                self._options.connection.client_id,
                pause / 1000,
            )
        return pause > 0

    def _seek(self, offset: int) -> None:
        # A client that another task has used may still know a former topic of the name.
        self._consumer.seek(
            (self._wanted.topic, self._wanted.partition), offset, topic_id=self._wanted.topic_id
        )

    def _check_quiet(self, since: float, position: int) -> None:
        if time.monotonic() - since > self._options.poll_timeout_ms / 1000:
            raise StalledError(
                f"{self._name}: nothing came from offset {position} on for "
                f"pollTimeoutMs={self._options.poll_timeout_ms}; has the partition a leader that can be reached? A "
                "node also lets clients wait whose client_id has taken more than their quota (insync config "
                f"quotas): give {self._options.connection.client_id!r} a higher one, or raise pollTimeoutMs"
            )

    def _lost(self, position: int, error: OffsetOutOfRangeError) -> int:
        """Where to go on behind what is not there any more; told, or only logged."""
        end = self._wanted.end
        if error.topic_ids is not None:
            tell_loss(
                [f"{self._name}: offsets [{position}, {end}) are gone: {made_again(*error.topic_ids)}"],
                self._options.fail_on_data_loss,
                TopicRecreatedError,
            )
            return end
        if position >= error.log_start_offset:
            what = (
                f"offsets [{position}, {end}) are not in the log any more, which ends at {error.end_offset}"
            )
            after = end
        else:
            gone = min(end, error.log_start_offset)
            what = (
                f"offsets [{position}, {gone}) have been deleted; the log begins at {error.log_start_offset}"
            )
            after = gone
        tell_loss([f"{self._name}: {what}"], self._options.fail_on_data_loss)
        if after < end:
            self._seek(after)
        return after


_REMEDIES = {
    DataLossError: "Set failOnDataLoss to false to continue with the remaining records",
    TopicRecreatedError: "Begin a new checkpoint (with another streamId, or after "
    "Admin.forget_offsets('spark-start/STREAMID'), if the stream has one), or set failOnDataLoss to false "
    "to go on at the first record of the new topic",
}


def tell_loss(losses: Sequence[str], fail: bool, kind: type[DataLossError] = DataLossError) -> None:
    """Raise an error of that kind if that is wanted; a warning in the log otherwise."""
    if not losses:
        return
    said = "; ".join(losses)
    if fail:
        raise kind(f"{said}. {_REMEDIES[kind]}")
    _log.warning("data loss: %s", said)


def made_again(former: str, present: str) -> str:
    return f"the topic with the id {former} was deleted, and made again with the id {present}"
