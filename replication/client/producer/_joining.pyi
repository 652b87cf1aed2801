from collections.abc import Callable, Sequence
from typing import Any, Final

from typing_extensions import Buffer

from ..._portal import Portal
from ..errors import ClientError
from ..threads._handover import HandedOver, Queued
from ._batch import Batch
from ._partitioning import PartitionQueue, TopicQueues
from .delivery import Delivery
from .producer import Producer

FULL: Final = 0
QUEUED: Final = 1
FIRST: Final = 2
CLOSED: Final = 3

class GrowingBatch(Buffer):
    @property
    def size(self) -> int: ...
    @property
    def count(self) -> int: ...
    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: bytes | None,
        timestamp_ms: int | None,
        /,
    ) -> int: ...
    def extend(
        self,
        key: bytes | None,
        values: Sequence[bytes | None],
        start: int,
        stop: int,
        most: int,
        timestamp_ms: int | None,
        /,
    ) -> int: ...
    def finish(
        self, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool, /
    ) -> None: ...
    def timestamp(self, index: int, /) -> int: ...
    def release(self) -> None: ...

class Place:
    _batch: Batch
    _index: int
    def __init__(self, batch: Batch, index: int) -> None: ...

class Tail:
    queue: PartitionQueue
    open: Batch | None
    enough: int
    def __init__(self, queue: PartitionQueue) -> None: ...

class TopicTails:
    sticky: Tail | None
    sticky_until: int
    by_key: dict[bytes, Tail]

class Joiner:
    barred: ClientError | None
    used: int
    waiting: int
    unyielded: int
    direct: bool
    _topics: dict[str, TopicQueues]
    _largest: int
    _buffer_memory: int
    def __init__(
        self, delivery_type: type[Place], buffer_memory: int, largest: int, overhead: int, pause_after: int
    ) -> None: ...
    def join(self, topic: str, value: bytes | None, key: bytes | None, /) -> Delivery | None: ...
    def send(self, topic: str, value: Any, key: Any, /) -> Delivery | None: ...

class Handed:
    _delivery: Delivery | None
    _lost: Any
    _callbacks: list[Callable[[Any], None]] | None
    _producer: Any
    _looked_at: bool

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
    def move(self, accumulator: Joiner, /) -> int: ...

class Entrance:
    def __init__(
        self,
        queue: RecordQueue,
        accumulator: Joiner,
        portal: Portal[Producer],
        begin: Callable[[], None],
        kind: type[HandedOver],
        seconds: float,
        record_cost: int,
    ) -> None: ...
    def __call__(self, owner: object, topic: str, value: Any, key: Any, /) -> Any: ...
