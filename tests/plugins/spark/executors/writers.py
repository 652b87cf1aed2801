"""Writers whose every acknowledgement is kept, to be held against what is in the replicas afterwards."""

from __future__ import annotations

import itertools
import math
import threading
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import attrs

if TYPE_CHECKING:
    from pyspark import SparkContext

    from insync.plugins.spark import LogsHandle

_AT_ONCE = 10
_PAUSE_S = 0.02
_TASK_RECORDS = 300


@attrs.frozen
class Acknowledged:
    """One record that was acknowledged; times are of the monotonic clock."""

    offset: int
    value: bytes
    sent: float
    at: float


class _Thread(ABC):
    """Something that goes on in a thread as long as a block is open; `failure` is what ended it before."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - told by whoever looks at the writer
            self.failure = error

    @abstractmethod
    def _work(self) -> None: ...


class Writer(_Thread):
    """Writes to one partition from the driver, a few records at a time, until it is closed."""

    def __init__(self, handle: LogsHandle, topic: str, partition: int, **settings: Any) -> None:
        super().__init__()
        self.topic, self.partition = topic, partition
        self.acknowledged: list[Acknowledged] = []
        self._handle, self._settings = handle, settings

    def went_on(self, since: float) -> bool:
        """Whether a record that was sent after `since` has been acknowledged."""
        return bool(self.acknowledged) and self.acknowledged[-1].sent >= since

    def first_after(self, since: float) -> float:
        """When a record that was sent after `since` was acknowledged first; infinite if none has been."""
        return min((each.at for each in list(self.acknowledged) if each.sent >= since), default=math.inf)

    def longest_gap(self, since: float) -> float:
        """Between two acknowledgements, from the last before `since` on."""
        times = [each.at for each in list(self.acknowledged)]
        first = max((n for n, at in enumerate(times) if at <= since), default=0)
        return max((after - before for before, after in itertools.pairwise(times[first:])), default=0.0)

    def _work(self) -> None:
        with self._handle.producer(**self._settings) as producer:
            for number in itertools.count():
                if self._closing.is_set():
                    return
                sent = time.monotonic()
                values = [b"%d-%d-%d" % (self.partition, number, n) for n in range(_AT_ONCE)]
                deliveries = [producer.send(self.topic, each, partition=self.partition) for each in values]
                for value, delivery in zip(values, deliveries, strict=True):
                    offset = delivery.result().offset
                    self.acknowledged.append(Acknowledged(offset, value, sent, time.monotonic()))
                self._closing.wait(_PAUSE_S)


class TaskWriter(_Thread):
    """Runs one job after the other whose tasks write to a topic; what jobs that ended well have written is kept."""

    def __init__(self, context: SparkContext, handle: LogsHandle, topic: str) -> None:
        super().__init__()
        self.values: set[bytes] = set()
        self.jobs = 0
        self._context, self._handle, self._topic = context, handle, topic

    def _work(self) -> None:
        while not self._closing.is_set():
            values = [b"job-%d-%d" % (self.jobs, n) for n in range(_TASK_RECORDS)]
            self._context.parallelize(values, 3).foreachPartition(self._handle.write_partition(self._topic))
            self.values.update(values)
            self.jobs += 1
            self._closing.wait(_PAUSE_S)
