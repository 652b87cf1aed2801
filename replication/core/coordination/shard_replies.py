"""Replies of a shard on their way out: each waits for its write to be committed, and for its proof."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import attrs
import msgspec

from .decisions import Clock, Proof, Reply


@attrs.define
class Open:
    """A request that has not been answered."""

    message: object
    arrival: float
    deadline: float


class _Held(msgspec.Struct, frozen=True):
    """A reply that waits for its proof; the high watermark has passed its writes."""

    reply: Reply
    arrival: float


class Replies:
    """Open requests, and the replies that wait for them.

    isolation: seconds for which a leader that has lost its followers may still renew leases; commit: seconds for
    which a reply waits for its write.
    """

    def __init__(self, isolation: float, commit: float) -> None:
        self._isolation = isolation
        self._commit = commit
        self.opened: dict[int, Open] = {}
        self.since = float("-inf")
        """When all who could lead still followed this leader."""
        self.high_watermark = 0
        self.last_write = 0
        """The end of the last write."""
        self._deadlines: list[tuple[float, int]] = []
        self._waiting: list[tuple[int, int, Reply]] = []
        """Replies by the offset that the high watermark must reach."""
        self._unproved: list[_Held] = []
        self._written: dict[str, int] = {}
        """The end of the last write to each group, in the order of offsets, as far as it is not committed."""
        self._count = 0

    @property
    def awaits_proof(self) -> bool:
        """Whether a reply waits for nothing but contact with all who could lead."""
        return bool(self._unproved)

    @property
    def deadline(self) -> float | None:
        """When the next request is answered whatever has become of it."""
        while self._deadlines and self._deadlines[0][1] not in self.opened:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def overdue(self, now: float) -> Iterator[int]:
        """Requests whose time is over; the caller closes them."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request_id = heapq.heappop(self._deadlines)
            if request_id in self.opened:
                yield request_id

    def open(self, request_id: int, message: object, now: float, deadline: float) -> None:
        """A request has come that will be answered by `deadline`."""
        self.opened[request_id] = Open(message, now, deadline)
        heapq.heappush(self._deadlines, (deadline, request_id))

    def wrote(self, group: str, end: int) -> None:
        """The accepted writes to a group now end there."""
        self._written.pop(group, None)
        self._written[group] = end
        self.last_write = max(self.last_write, end)
        while self._written:
            oldest = next(iter(self._written))
            if self._written[oldest] > self.high_watermark:
                break
            del self._written[oldest]

    def add(self, reply: Reply, now: float) -> None:
        """From now on it waits for its write alone, and no longer than a write may take."""
        opened = self.opened.get(reply.request_id)
        if opened is None:
            return
        until = now + self._commit
        if until < opened.deadline:
            opened.deadline = until
            heapq.heappush(self._deadlines, (until, reply.request_id))
        self._count += 1
        heapq.heappush(self._waiting, (self._due_offset(reply), self._count, reply))

    def _due_offset(self, reply: Reply) -> int:
        if reply.groups is None:
            return self.last_write
        return max((self._written.get(group, 0) for group in reply.groups), default=0)

    def release(self, clock: Clock) -> list[Reply]:
        """Close every request whose writes are committed and that has its proof: what each is told."""
        if not self._waiting and not self._unproved:
            return []
        released: list[Reply] = []
        held, self._unproved = self._unproved, []
        while self._waiting and self._waiting[0][0] <= self.high_watermark:
            reply = heapq.heappop(self._waiting)[2]
            opened = self.opened.get(reply.request_id)
            if opened is None:
                continue
            if reply.proof is Proof.NONE:
                del self.opened[reply.request_id]
                released.append(reply)
            else:
                held.append(_Held(reply, opened.arrival))
        for each in held:
            if each.reply.request_id not in self.opened:
                continue
            if self._is_proved(each, clock):
                del self.opened[each.reply.request_id]
                released.append(each.reply)
            else:
                self._unproved.append(each)
        return released

    def _is_proved(self, held: _Held, clock: Clock) -> bool:
        match held.reply.proof:
            case Proof.LEASE:
                return clock.now - self.since <= self._isolation
            case Proof.READ:
                return self.since >= held.arrival
        raise AssertionError(f"{held} needs no proof")
