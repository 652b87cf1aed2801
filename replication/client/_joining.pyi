from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ._accumulator import Accumulator
from .delivery import Delivery

class Joiner:
    def __init__(self, accumulator: Accumulator, clock: Callable[[], float] | None = None) -> None: ...
    def __call__(self, topic: str, value: bytes | None, key: bytes | None, /) -> Delivery | None: ...

class Sender:
    def __init__(
        self,
        joiner: Joiner,
        in_full: Callable[..., Coroutine[Any, Any, Delivery]],
        pause: Callable[[], Awaitable[None]],
        most: int,
    ) -> None: ...
    def __call__(self, topic: str, value: Any, **named: Any) -> Coroutine[Any, Any, Delivery]: ...
    def close(self) -> None: ...

class Sending: ...

def bind(
    *,
    accumulator: type,
    queues: type,
    topic: type,
    queue: type,
    batch: type,
    delivery: type,
    overhead: int,
) -> None: ...
