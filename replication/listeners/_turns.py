"""A turn: records that a handler gets one after the other, wherever the handler is at home."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from ..client._serializing import Deserializers
from ..client.consumer import ConsumerRecord
from ._progress import Progress
from .errors import RecordFailedError

if TYPE_CHECKING:
    from ..client.producer import Producer

Handler = Callable[..., Any]


@attrs.define(eq=False)
class Turn:
    """Handled by one thread or task, and looked at by the listener's: each field is written by one of them."""

    records: Sequence[ConsumerRecord]
    """As they were read: not deserialized."""
    progress: Progress
    deserializers: Deserializers
    ends: float
    """By `time.monotonic()`: others are to have their turn."""
    is_batch: bool
    extra: Callable[[Sequence[ConsumerRecord]], tuple[Any, ...]]
    """The handler's arguments besides records."""
    done: int = 0
    """How many of the records are."""
    error: Exception | None = None
    """Why it ended before its time."""
    began: float = attrs.Factory(time.monotonic)
    """When the handler got what it has at hand."""
    is_over: bool = False
    """No further record is to be begun."""

    @property
    def failed(self) -> Sequence[ConsumerRecord]:
        """Those with which `error` came: one, or a batch that does not say which."""
        rest = self.records[self.done :]
        return rest if self.is_batch and not isinstance(self.error, RecordFailedError) else rest[:1]

    @property
    def cause(self) -> Exception:
        """Why they failed."""
        error = self.error
        assert error is not None
        if isinstance(error, RecordFailedError) and isinstance(error.__cause__, Exception):
            return error.__cause__
        return error

    def calls(self) -> Any:
        """The arguments of each call of the handler; what comes back between two of them has been done."""
        if self.is_batch:
            # Of a batch that holds something unreadable only what is before it is handed out, and then that alone.
            readable = list(self._readable())
            if readable:
                yield (readable, *self.extra(self.records[: len(readable)]))
                self.done = len(readable)
            return
        decode = self.deserializers
        for record in self.records:
            shown = next(decode.applied([record])) if decode else record
            yield (shown, *self.extra([record]))
            self.done += 1
            now = time.monotonic()
            if self.is_over or now >= self.ends:
                return
            self.began = now

    def _readable(self) -> Any:
        if not self.deserializers:
            yield from self.records
            return
        found = self.deserializers.applied(self.records)
        first = True
        while True:
            try:
                record = next(found)
            except StopIteration:
                return
            except Exception:
                if first:
                    self.is_batch = False  # it fails by itself
                    raise
                return
            yield record
            first = False

    def fail(self, error: Exception) -> None:
        """The handler, or what was to make something of a record's bytes, has raised."""
        self.error = error
        if isinstance(error, RecordFailedError) and self.is_batch:
            self.done = max(0, min(error.index, len(self.records) - 1))


async def drive(turn: Turn, handler: Callable[..., Awaitable[Any]]) -> None:
    """Handle a turn by an async function; in trio or asyncio."""
    try:
        for arguments in turn.calls():
            await handler(*arguments)
    except Exception as error:  # noqa: BLE001 - a handler may raise anything
        turn.fail(error)


def drive_blocking(turn: Turn, handler: Handler) -> None:
    """Handle a turn by a plain function."""
    try:
        for arguments in turn.calls():
            handler(*arguments)
    except Exception as error:  # noqa: BLE001 - a handler may raise anything
        turn.fail(error)


class Hands(ABC):
    """Where handlers are at home: in trio, in a loop of asyncio, or in threads. Called by the listener, in trio."""

    handler: Handler

    @abstractmethod
    async def run(self, turn: Turn) -> None:
        """Handle a turn. If this is cancelled so is the handler, where that can be."""

    @abstractmethod
    def acknowledgment(self, tell: Callable[[], Awaitable[None]], *, waits: bool) -> Any:
        """A handler's acknowledgment of records; `tell` does it in trio. waits: until it is committed."""

    def lend(self, producer: Producer) -> Any:
        """The producer with which a handler sends."""
        return producer

    async def flush(self, lent: Any) -> None:  # noqa: B027 - in trio nothing is on its way to the producer
        """All that was sent with it has come to the producer."""
