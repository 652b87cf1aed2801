"""A received payload that several partitions use: given back to the transport when the last is done with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import attrs

from ....storage import CorruptBatchError
from ....storage.batch import BatchInfo, marker_of, scan
from ....transport import Payload
from ...core.broker.producing.payloads import MalformedBatchError, RefusedBatchError
from ...core.errors import ErrorCode
from ...core.types import TransactionMarker
from ._batch_checks import Findings, check_batches


@attrs.define(eq=False, slots=True)
class Batches:
    """The bytes behind a `handle` of the core; `release` is called once they are no longer needed.

    `taken`: the core has asked for their append, so the writer will release them.
    """

    data: memoryview
    infos: Sequence[BatchInfo]
    release: Callable[[], None]
    taken: bool = False

    def marker(self, at: int) -> TransactionMarker | None:
        """See `core.broker.producing.payloads.Batches`."""
        position = sum(info.size_bytes for info in self.infos[:at])
        said = marker_of(self.data[position : position + self.infos[at].size_bytes])
        return None if said is None else TransactionMarker(not said.is_abort, said.coordinator_epoch)


class SharedPayload:
    """Counts users; starts with one, its maker. For the broker it is a `core.broker.producing.payloads.Payload`.

    The last one's end is also that of every slice: the transport uses memory again only if nobody looks at it.
    """

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self._users = 1
        self.view = payload.view()
        self.size = len(self.view)
        self._slices: list[memoryview] = []
        self.lent: dict[int, Batches] = {}
        """Batches that were given out in this step, by their positions."""
        self.findings: Findings = {}
        """The findings in batches that had to be decompressed first."""

    def batches(self, position: int, size: int) -> Batches:
        """See `core.broker.producing.payloads.Payload`."""
        part = self.view[position : position + size]
        try:
            infos = scan(part)
        except CorruptBatchError as error:
            raise MalformedBatchError(str(error)) from error
        return self._lend(position, part, infos)

    def produced(self, position: int, size: int) -> Batches:
        """See `core.broker.producing.payloads.Payload`."""
        found = self.findings.get(position)
        if isinstance(found, RefusedBatchError):
            raise found
        part = self.view[position : position + size]
        return self._lend(position, part, found or check_batches(part))

    def _lend(self, position: int, part: memoryview, infos: Sequence[BatchInfo]) -> Batches:
        """A slice, for one more user."""
        self._users += 1
        self._slices.append(part)
        lent = self.lent[position] = Batches(part, infos, self.release)
        return lent

    def let_go(self) -> None:
        """The step that read it is over: its maker is done, and so are batches that no log was asked to append."""
        lent, self.lent = self.lent, {}
        for batches in lent.values():
            if not batches.taken:
                batches.release()
        self.release()

    def release(self) -> None:
        """One user is done."""
        self._users -= 1
        if self._users == 0:
            for part in self._slices:
                part.release()
            self.view.release()
            self._payload.release()


class _NoPayload:
    """Of a message without one."""

    size = 0

    def produced(self, position: int, size: int) -> Batches:
        raise RefusedBatchError(ErrorCode.CORRUPT_MESSAGE, "the message has no payload")

    def batches(self, position: int, size: int) -> Batches:
        raise MalformedBatchError("the message has no payload")


NO_PAYLOAD: Final = _NoPayload()
