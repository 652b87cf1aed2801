from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ..._portal import Portal
from ..threads._handover import HandedOver, Queued
from ._accumulator import Accumulator
from .delivery import Delivery
from .producer import Producer

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

class RecordQueue:
    queued: int
    moving: bool
    def __init__(self, most: int) -> None: ...
    def __len__(self) -> int: ...
    def offer(self, record: HandedOver, cost: int, deadline: float, arguments: tuple[Any, ...], /) -> int: ...
    def first(self) -> Queued | None: ...
    def popleft(self) -> None: ...
    def settle(self, cost: int, /) -> bool: ...
    def waiting(self) -> list[HandedOver]: ...
    def close(self) -> list[HandedOver]: ...
    def move(self, joiner: Joiner, /) -> int: ...

class Entrance:
    def __init__(
        self,
        queue: RecordQueue,
        joiner: Joiner,
        producer: Producer,
        portal: Portal[Producer],
        begin: Callable[[], None],
        kind: type[HandedOver],
        seconds: float,
        record_cost: int,
    ) -> None: ...
    def __call__(self, owner: object, topic: str, value: Any, key: Any, /) -> Any: ...

def bind_records(kind: type[HandedOver], /) -> None: ...
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
