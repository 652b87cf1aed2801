"""A handler over the records of a group."""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import trio

from ..client import _arguments as given
from ..client._settings import bootstrap_urls
from ..client.errors import InvalidSettingError
from ..core.types import PartitionId
from ._engine import Engine
from ._turns import Handler, Hands, Turn, drive
from .errors import ListenerError
from .settings import ListenerSettings, split
from .status import ListenerStatus

H = TypeVar("H", bound=Callable[..., Any])
_NOTHING = {
    "handled": 0,
    "failures": 0,
    "retried": 0,
    "dead_letters": 0,
    "skipped": 0,
    "commit_failures": 0,
}


class Listening:
    """The common part of the listeners for trio, asyncio and threads.

    Args:
      servers: URLs of some nodes.
      group_id: Of the consumer group whose records are handled.
      topics: Their names.
      settings: All settings at once; or give single ones as keywords (fields of `ListenerSettings`). Further
        keywords are settings of the consumer.

    Raises:
      InvalidSettingError: A setting that does not exist, or cannot be.
    """

    _is_async = True

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        group_id: str,
        topics: Sequence[str],
        settings: ListenerSettings | None = None,
        **options: Any,
    ) -> None:
        self._servers = bootstrap_urls(servers)
        self._topics = given.names("topics", topics)
        if not self._topics or not given.text("group_id", group_id):
            raise InvalidSettingError("a listener needs a group_id and at least one topic")
        self._settings, self._consumer, self._shared = split({**options, "group_id": group_id}, settings)
        self._handler: Handler | None = None
        self._is_batch = False
        self._engine: Engine | None = None
        self._stop_asked = False

    def handler(self, function: H) -> H:
        """Use this function: `handler(record)`; in the manual modes `handler(record, ack)`, with
        `transactional_id_prefix` `handler(record, producer)`.

        Raises `InvalidArgumentError` if it is async in threads, or is not elsewhere.
        """
        return self._use(function, is_batch=False)

    def batch_handler(self, function: H) -> H:
        """The same for a function that takes a list of records of one partition (or key), all that are at hand.

        `RecordFailedError(index)` tells which of them has failed; else all have.
        """
        return self._use(function, is_batch=True)

    def _use(self, function: H, *, is_batch: bool) -> H:
        given.function("handler", function)
        called = getattr(function, "__call__", None)  # noqa: B004 - of an object that is called
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
        if is_async != self._is_async:
            must = "it must be async here" if self._is_async else "it must not be async here"
            raise given.refused("handler", function, must)
        self._handler, self._is_batch = function, is_batch
        return function

    def _begin(self, hands: Hands) -> Engine:
        if self._handler is None:
            raise ListenerError("the listener has no handler: decorate a function with @listener.handler")
        if self._engine is not None and self._engine.state != "stopped":
            raise ListenerError("the listener is already running; create another one to run two")
        hands.handler = self._handler
        engine = self._engine = Engine(
            self._servers,
            self._topics,
            self._settings,
            self._consumer,
            self._shared,
            hands,
            is_batch=self._is_batch,
        )
        if self._stop_asked:
            self._stop_asked = False
            engine.stop()
        return engine

    def _running(self) -> Engine:
        if self._engine is None or self._engine.state not in ("running", "stopping"):
            raise ListenerError("the listener is not running")
        return self._engine

    def _status(self) -> ListenerStatus:
        if self._engine is None:
            return ListenerStatus(state="new", partitions={}, **_NOTHING)
        return self._engine.status()


def partitions_given(partitions: Iterable[tuple[str, int]] | None) -> list[PartitionId] | None:
    """Those that a caller names; None: all."""
    return None if partitions is None else given.partitions(partitions)


def may_take_sigterm() -> bool:
    """Whether SIGTERM has no handler, and this thread may set one."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


class Acknowledgment:
    """Handed to the handler with its record, or its batch, in the manual modes."""

    def __init__(self, tell: Callable[[], Awaitable[None]]) -> None:
        self._tell = tell

    async def acknowledge(self) -> None:
        """It is done. Offsets are committed up to the first record that is not."""
        await self._tell()


class _Hands(Hands):
    async def run(self, turn: Turn) -> None:
        await drive(turn, self.handler)

    def acknowledgment(self, tell: Callable[[], Awaitable[None]], *, waits: bool) -> Acknowledgment:
        return Acknowledgment(tell)


class Listener(Listening):
    __doc__ = (
        "`listener = Listener(servers, group_id=..., topics=[...])`, then a handler, then `await run()`.\n\n    "
        + (Listening.__doc__ or "").split("\n\n", 1)[1]
    )

    def stop(self) -> None:
        """Have `run` end: what is in hand is finished, offsets are committed, the group is left."""
        if self._engine is None:
            self._stop_asked = True
        else:
            self._engine.stop()

    def pause(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Begin no further record of these partitions, or of any; what is in hand is finished.

        Raises ListenerError if it does not run, and NotAssignedError for a partition that it does not have.
        """
        self._running().pause(partitions_given(partitions))

    def resume(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Go on with these partitions, or with all; raises what `pause` raises."""
        self._running().resume(partitions_given(partitions))

    def status(self) -> ListenerStatus:
        """The listener's state, its partitions and their lag."""
        return self._status()

    async def run(self) -> None:
        """Handle records until `stop`, SIGTERM (in the main thread, if nobody else has it), or a failure.

        Cancelled, it ends at once: what is in hand is handled again by the next member that has the partition.

        Raises:
          HandlerFailedError: A handler has failed too often, and `on_failure` is "stop".
          ListenerError: The listener has no handler, or runs already.
          UnknownTopicError: A topic for records that fail does not exist.
          ClientError: What polling raises.
        """
        engine = self._begin(_Hands())
        if not may_take_sigterm():
            await engine.run()
            return
        async with trio.open_nursery() as nursery:
            with trio.open_signal_receiver(signal.SIGTERM) as signals:
                nursery.start_soon(_await_signal, signals, engine)
                failure: BaseException | None = None
                try:
                    await engine.run()
                except Exception as error:  # noqa: BLE001 - raised below, without the group of the nursery
                    failure = error
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure


async def _await_signal(signals: Any, engine: Engine) -> None:
    async for _ in signals:
        engine.stop()
