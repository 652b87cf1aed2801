"""A consumer that runs in a thread of trio's while its callers, and their callbacks, are elsewhere."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import trio

from ...core.types import PartitionId
from .. import _arguments as given
from .._settings import ConsumerSettings
from ..consumer import Consumer, ConsumerRecord, FetchedBatches, put_back, put_back_batches
from ..consumer._group import CALLBACKS
from ..consumer._member import Due, OnCommit

Unread = dict[PartitionId, int]
"""Of each partition the first record that was polled for a loop that has not come to it yet."""


def consumer_elsewhere(bootstrap_servers: str | Sequence[str], settings: ConsumerSettings) -> Consumer:
    """A consumer whose caller runs the callbacks: it runs the results of `poll_step` and `close_step`."""
    consumer = Consumer(bootstrap_servers, settings=settings)
    consumer._listens_elsewhere = True
    return consumer


async def poll_step(consumer: Consumer, seconds: float, *, batches: bool = False) -> Any:
    """The result of a poll; or a `Due`, to be run before the next step (and then `called_back`)."""
    return await consumer._step(trio.current_time() + seconds, batches=batches)


def undo_step(consumer: Consumer, step: Any) -> None:
    """Nobody has waited for a step: what it gave comes again."""
    if isinstance(step, list) and step:
        if isinstance(step[0], FetchedBatches):
            put_back_batches(consumer, step)
        else:
            put_back(consumer, step)


def called_back(consumer: Consumer) -> None:
    """The callback of the last step has run."""
    if consumer._member is not None:
        consumer._member.called_back()


async def close_step(consumer: Consumer, seconds: float, leave_group: bool | None) -> Due | None:
    """Leave the group: what is to be run before the next step, or None when it is over."""
    return await consumer._closing(seconds, leave_group)


def in_group(consumer: Consumer) -> bool:
    """Whether there is a group to leave; in any thread."""
    return consumer._member is not None


def may_hand_out(consumer: Consumer) -> bool:
    """Whether what has been polled may still be handed out; in any thread."""
    member = consumer._member
    return member is None or member.may_hand_out


async def commit(
    consumer: Consumer,
    offsets: Mapping[tuple[str, int], int] | None,
    timeout_ms: int | None,
    unread: Unread,
) -> None:
    """As `Consumer.commit`; by default without what is unread."""
    await consumer.commit(consumer._read_but(offsets, unread), timeout_ms=timeout_ms)


def commit_nowait(
    consumer: Consumer,
    offsets: Mapping[tuple[str, int], int] | None,
    on_commit: OnCommit | None,
    unread: Unread,
) -> None:
    """As `Consumer.commit_nowait`; by default without what is unread."""
    consumer.commit_nowait(consumer._read_but(offsets, unread), on_commit)


def positions(consumer: Consumer, unread: Unread) -> dict[PartitionId, int | None]:
    """As `Consumer.positions`, of what is handed out by a loop."""
    return {at: unread.get(at, position) for at, position in consumer.positions().items()}


def position(consumer: Consumer, partition: tuple[str, int], unread: Unread) -> int | None:
    """As `Consumer.position`, likewise."""
    found = consumer.position(partition)
    return unread.get(PartitionId(*partition), found)


async def lag(consumer: Consumer, unread: Unread) -> dict[PartitionId, int]:
    """As `Consumer.lag`, likewise."""
    polled = consumer.positions()
    behind = await consumer.lag()
    return {at: found + _between(unread.get(at), polled.get(at)) for at, found in behind.items()}


def _between(unread: int | None, polled: int | None) -> int:
    return max(0, polled - unread) if unread is not None and polled is not None else 0


def at_hand(consumer: Consumer, record: ConsumerRecord) -> None:
    """A loop hands this out, and all that it handed out before is done with; in any thread."""
    if consumer._member is not None:
        consumer._at_hand = PartitionId(record.topic, record.partition), record.offset


def first_of(aheads: Iterable[Iterable[ConsumerRecord]]) -> Unread:
    """Where the records begin that are in none of the callers' hands."""
    found: Unread = {}
    for ahead in aheads:
        # Another thread may take from it meanwhile.
        for record in list(ahead):
            at = PartitionId(record.topic, record.partition)
            found[at] = min(found.get(at, record.offset), record.offset)
    return found


def refuse_async(listener: object) -> None:
    """Raises `InvalidArgumentError`: code that blocks cannot await what it calls."""
    for name in CALLBACKS:
        function = getattr(listener, name, None)
        if inspect.iscoroutinefunction(function):
            raise given.refused(f"the listener's {name}", function, "it must not be async here")
