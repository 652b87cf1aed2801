"""State divided by keys over the partitions of one topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from ..client import _arguments as given
from ..client.errors import InvalidSettingError
from ..client.producer._murmur2 import partition_for_key
from .errors import StateClosedError

H = TypeVar("H")


class _Divided(Generic[H]):
    """Args:
      open: The function that opens one shard: `Replica`, `replicate`, or `open` of a class such as
        `ReplicatedDict`.
      arguments: Arguments of `open`: servers, topic and so on.
      shards: The number of shards and of the topic's partitions, which cannot change later.
      options: Keywords of `open`, the same for each shard.

    Keys map to shards as Kafka's clients map keys to partitions. Each shard is a separate state with its own
    session, snapshots and keeper. No order and no atomicity is promised across two shards.

    Raises:
      StateError: On opening: the topic has another number of partitions.
    """

    def __init__(self, open: Callable[..., H], *arguments: Any, shards: int, **options: Any) -> None:
        if "partition" in options or "partitions" in options:
            raise InvalidSettingError("shards sets partition and partitions; remove them")
        count = given.whole("shards", shards, least=1)
        self._makers = [
            lambda number=number: open(*arguments, partition=number, partitions=count, **options)
            for number in range(count)
        ]
        self._opened: list[H] = []

    def __len__(self) -> int:
        return len(self._makers)

    def __iter__(self) -> Iterator[H]:
        """The handles of all shards, by number."""
        self._check()
        return iter(self._opened)

    def number_of(self, key: str | bytes) -> int:
        """The number of a key's shard."""
        if not isinstance(key, str | bytes):
            raise given.refused("key", key, "it must be a string or bytes")
        return partition_for_key(key.encode() if isinstance(key, str) else key, len(self))

    def of(self, key: str | bytes) -> H:
        """The handle of a key's shard; raises `StateClosedError` outside of the block."""
        self._check()
        return self._opened[self.number_of(key)]

    def _check(self) -> None:
        if len(self._opened) < len(self._makers):
            raise StateClosedError("the shards are not open; use them inside their `with` block")


class Shards(_Divided[H]):
    __doc__ = (
        '`async with Shards(replicate, Seats, servers, "seats", shards=8, name="api-1") as seats`, then '
        '`await seats.of("12A").take("12A", "alice")`; for trio and asyncio.\n\n    '
        + (_Divided.__doc__ or "")
    )

    _stack: AsyncExitStack

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            opened: list[H] = [await stack.enter_async_context(make()) for make in self._makers]  # type: ignore[arg-type]
            self._stack, self._opened = stack.pop_all(), opened
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened = []
        await self._stack.__aexit__(kind, error, traceback)


class BlockingShards(_Divided[H]):
    __doc__ = (
        '`with Shards(replicate, Seats, servers, "seats", shards=8, name="api-1") as seats`, then '
        '`seats.of("12A").take("12A", "alice")`; for threads.\n\n    ' + (_Divided.__doc__ or "")
    )

    _stack: ExitStack

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            opened: list[H] = [stack.enter_context(make()) for make in self._makers]  # type: ignore[arg-type]
            self._stack, self._opened = stack.pop_all(), opened
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened = []
        self._stack.__exit__(kind, error, traceback)
