"""The decisions of a state machine on a shard, and the interface between the two."""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ..errors import ErrorCode
from .shard_events import Entry, Marker, ProducerId


class Clock(msgspec.Struct, frozen=True):
    """`now`: monotonic seconds, for durations. `wall_ms`: milliseconds since 1970, for what records say."""

    now: float
    wall_ms: int


class Proof(enum.Enum):
    """The proof that a reply needs besides the high watermark, because another node may lead by now."""

    NONE = enum.auto()
    """A write that is committed proves itself."""
    LEASE = enum.auto()
    """All who could lead have followed this leader lately: a member may go on by what it is told."""
    READ = enum.auto()
    """All who could lead still followed this leader when the request was here: what it reads is the latest."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """`groups`: those of which it tells; None: of all. It waits for the last write to any of them."""

    request_id: int
    body: Any
    groups: frozenset[str] | None
    proof: Proof = Proof.LEASE


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """For the operator: what a decision does to a group (`reason`), in numbers and names (`details`).

    Of a transaction `group` is its transactional id.
    """

    group: str
    reason: str
    details: Mapping[str, object] = msgspec.field(default_factory=dict)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One batch and what is said once it is committed; no entries: a read, an error, or nothing to change.

    `request_id`: whose request it decides; it fails with the batch. None: of a timer; taken again from the state
    of then. `then` changes what is not replicated, such as timers; it runs when the batch is accepted.
    """

    request_id: int | None = None
    entries: tuple[tuple[Any, Any | None], ...] = ()
    replies: tuple[Reply, ...] = ()
    producer: ProducerId | None = None
    then: Callable[[], None] | None = None
    notes: tuple[Note, ...] = ()


class StateMachine(Protocol):
    """A state that is the log's entries applied in order, and decisions on it.

    Entries are applied as they stand in the log, and in a load as a compaction has left them: the last one of each
    key counts, in whatever order keys come. Unreplicated state (timers, parked requests) begins at `activate`.
    """

    def apply(self, entry: Entry) -> None:
        """One record. Nothing that a log may hold raises."""

    def mark(self, marker: Marker) -> frozenset[str]:
        """The end of a transaction; the groups that it changes."""

    def activate(self, clock: Clock) -> None:
        """All is loaded: derive what is derived, and begin every timer."""

    def view_changed(self, view: Any) -> None:
        """The topics that there are. Told before `activate` too."""

    def decide(self, request_id: int, message: Any, clock: Clock) -> Decision:
        """The answer to a request; a decision without a reply to it parks it."""

    def may_share(self, message: Any) -> bool:
        """Whether the decision on a message reads nothing that decisions on other such messages write, and has no
        producer: then they may be written together.
        """

    def due(self, clock: Clock) -> Decision | None:
        """The decision to take without a request, None: nothing for now. Asked again until it is accepted."""

    def tick(self, clock: Clock) -> None:
        """Timers whose time has come become due."""

    def slip(self, seconds: float) -> None:
        """Nobody could be heard for so long: every timer goes by so much later."""

    def withdrawn(self, request_id: int, clock: Clock) -> None:
        """A request was answered otherwise (its deadline passed); it is parked no more."""

    def failure(self, message: Any, error: ErrorCode, leader: int = -1, leader_epoch: int = -1) -> Any:
        """The reply to a message that was not, or not certainly, carried out."""

    @property
    def deadline(self) -> float | None:
        """When `tick` is owed."""


class OutwardMachine(abc.ABC):
    """A `StateMachine` that also has to do with others than its log. Its open requests are lost with the
    leadership, and made again by the next one.
    """

    @abc.abstractmethod
    def heard(self, message: Any, clock: Clock) -> None:
        """An answer from outside. It may come late, twice or never."""

    @abc.abstractmethod
    def send(self, high_watermark: int, leader_epoch: int, clock: Clock) -> Sequence[object]:
        """The requests to make now; called after each event of a loaded shard."""
