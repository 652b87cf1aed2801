"""The unsettled transactions of one log, and how far readers of committed records may read (KIP-98)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ..types import EndedTransaction


class OpenTransactions:
    """Those that are open, and those whose marker may still be cut off again: it is not committed.

    Batches whose append is under way count as written: readers see none of them before they are committed.
    """

    def __init__(
        self, open_ones: Iterable[tuple[int, int]] = (), ended: Iterable[EndedTransaction] = ()
    ) -> None:
        """open_ones: producer ids, each with the first offset of its transaction."""
        self._open = dict(open_ones)
        self._ended = deque((each.first_offset, each.marker_offset) for each in ended)
        """First offset and marker of each, in the order of the markers."""

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def first_offset(self, producer_id: int) -> int:
        """Where a producer's open transaction begins; -1 without one."""
        return self._open.get(producer_id, -1)

    def begin(self, producer_id: int, offset: int) -> None:
        """A transactional batch stands at `offset`, which begins a transaction if none is open."""
        self._open.setdefault(producer_id, offset)

    def end(self, producer_id: int, marker_offset: int) -> None:
        """A marker stands at `marker_offset`."""
        first = self._open.pop(producer_id, None)
        if first is not None:
            self._ended.append((first, marker_offset))

    def stable_offset(self, high_watermark: int, log_start_offset: int) -> int:
        """The last stable offset: every transaction below it is decided, and its marker committed.

        Retention may have cut the beginning of a transaction; nothing below the log start is read.
        """
        if not self._open and not self._ended:
            return high_watermark
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            ended.popleft()
        firsts = [*self._open.values(), *(first for first, _ in ended), high_watermark]
        return max(min(firsts), min(log_start_offset, high_watermark))
