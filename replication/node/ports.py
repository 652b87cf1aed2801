"""How the wings of a node reach its driver, and each other: none of them imports it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from ..core.broker.effects import IsrSettled, LogsGathered, ReadKeys, WriteIsrs
from ..core.types import PartitionId

if TYPE_CHECKING:
    from ...storage import Log
    from ..core.broker.events import Event
    from ..core.broker.machine import Broker
    from ..core.control.admin_requests import Request, Response
    from ..core.control.records import NodeRecord
    from ..core.control.view import ClusterView
    from .logs._directories import Home
    from .operations.history import ChangeHistory


class StoreWriter(Protocol):
    """The node's side of the metadata store, as replicas and coordinators use it."""

    history: ChangeHistory

    def read_keys(self, effect: ReadKeys) -> None: ...

    def write_isrs(self, effect: WriteIsrs) -> None: ...

    def isr_settled(self, effect: IsrSettled) -> None: ...

    def read_again(self) -> None: ...

    def suspect(self, node: NodeRecord, reason: str) -> None: ...

    def step_back(self, partition: PartitionId) -> None: ...

    def logs_gathered(self, effect: LogsGathered) -> None: ...

    @property
    def is_controller(self) -> bool: ...

    async def producer_ids(self, count: int) -> int: ...

    async def revision(self) -> int: ...

    def grant(self, request: Request, reply: Callable[[Response], None]) -> None: ...


class Driving(Protocol):
    """The driver: `step` reports an event to the broker, and `settle` ends each entry from outside."""

    broker: Broker
    store: StoreWriter
    now: Callable[[], float]

    @property
    def view(self) -> ClusterView: ...

    def step(self, event: Event) -> None: ...

    def settle(self) -> None: ...


class Hosted(Protocol):
    """A replica here. `log`: None until it is open. `home`: None while its log directory is offline."""

    home: Home | None

    @property
    def log(self) -> Log | None: ...


Logs = Mapping[PartitionId, Hosted]
