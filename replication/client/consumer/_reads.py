"""The partitions that a consumer fetches and hands out, and whose turn it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ...core.types import PartitionId
from ._fetcher import Fetcher, Reading


class Reads:
    """The readings of a fetcher, in the order in which they take turns; a group gives and takes them."""

    def __init__(self, fetcher: Fetcher) -> None:
        self.fetcher = fetcher
        self.turns: deque[Reading] = deque()
        """Those that may be handed out."""

    def reading(self, at: PartitionId) -> Reading | None:
        """The reading of a partition, if there is one."""
        return self.fetcher.readings.get(at)

    def assign(self, partitions: Iterable[PartitionId]) -> list[Reading]:
        """Read exactly these; gives those that are new."""
        former = self.fetcher.readings
        readings = {at: former.get(at) or self.fetcher.new_reading(at) for at in partitions}
        self.fetcher.readings = readings
        self.turns = deque(readings.values())
        for at in former.keys() - readings.keys():
            former[at].restart(None)
        self.fetcher.interrupt()
        return [each for at, each in readings.items() if at not in former]

    def prepare(self, at: PartitionId, offset: int | None) -> None:
        """Have a position, which the caller may change, and hand out nothing; None: by `auto_offset_reset`."""
        reading = self.fetcher.readings[at] = self.fetcher.new_reading(at)
        if offset is not None:
            reading.restart(offset)
        reading.withheld = True

    def serve(self, at: PartitionId) -> None:
        """Hand out what was prepared."""
        reading = self.fetcher.readings[at]
        reading.withheld = False
        self.turns.append(reading)
        self.fetcher.interrupt()
        self.wake()

    def withhold(self, partitions: Iterable[PartitionId]) -> None:
        """Hand out nothing of these any more; their positions stay known until `drop`."""
        for at in partitions:
            reading = self.reading(at)
            if reading is not None:
                reading.restart(reading.position)
                reading.withheld = True
        self.turns = deque([each for each in self.turns if not each.withheld])
        self.fetcher.interrupt()

    def drop(self, partitions: Iterable[PartitionId]) -> None:
        """Forget these, which are withheld."""
        for at in partitions:
            reading = self.reading(at)
            if reading is not None and reading.withheld:
                del self.fetcher.readings[at]

    def wake(self) -> None:
        """Let the tasks that wait for records look again."""
        self.fetcher.arrived.set()
