"""A received payload that several partitions use: given back to the transport when the last is done with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import attrs

from ...storage import CorruptBatchError
from ...storage.batch import BatchInfo, scan
from ...transport import Payload
from ..core.broker.payloads import MalformedBatchError


@attrs.define(eq=False, slots=True)
class Batches:
    """The bytes behind a `handle` of the core; `release` is called once they are no longer needed.

    `taken`: the core has asked for their append, so the writer will release them.
    """

    data: memoryview
    infos: Sequence[BatchInfo]
    release: Callable[[], None]
    taken: bool = False


class SharedPayload:
    """Counts users; starts with one, its maker. For the broker it is a `core.broker.payloads.Payload`.

    The last one's end is also that of every slice: the transport uses memory again only if nobody looks at it.
    """

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self._users = 1
        self.view = payload.view()
        self._slices: list[memoryview] = []
        self._lent: list[Batches] = []

    @property
    def size(self) -> int:
        return len(self.view)

    def batches(self, position: int, size: int) -> Batches:
        """See `core.broker.payloads.Payload`."""
        try:
            infos = scan(self.view[position : position + size])
        except CorruptBatchError as error:
            raise MalformedBatchError(str(error)) from error
        lent = Batches(self.slice(position, size), infos, self.release)
        self._lent.append(lent)
        return lent

    def slice(self, start: int, size: int) -> memoryview:
        """`size` bytes from `start` on, for one more user."""
        self._users += 1
        part = self.view[start : start + size]
        self._slices.append(part)
        return part

    def let_go(self) -> None:
        """The step that read it is over: its maker is done, and so are batches that no log was asked to append."""
        lent, self._lent = self._lent, []
        for batches in lent:
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

    def batches(self, position: int, size: int) -> Batches:
        raise MalformedBatchError("the message has no payload")


NO_PAYLOAD: Final = _NoPayload()
