"""An iterator that outlives the cancellation of a reader."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Resumable(AsyncIterator[T], Generic[T]):
    """Each item comes from a call of its own. An async generator would be over after a timeout of one item.

    following: gives the next item, loses none if it is cancelled, and raises StopAsyncIteration at the end.
    """

    def __init__(self, following: Callable[[], Awaitable[T]]) -> None:
        self._following = following

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return await self._following()
