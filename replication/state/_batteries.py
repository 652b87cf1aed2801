"""The state of the collections, locks and queues that come with the package: what a service need not write."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NamedTuple

from ._packing import pack, unpack
from .machine import Context, Read, StateMachine, Write
from .objects import ReplicatedObject, command, query

_PIECE = 5_000
_MASK = (1 << 128) - 1
_ABSENT = object()
_NEVER = 1 << 62


class DictMachine(StateMachine):
    """Keys and values, packed; commands are packed lists. Its digest costs the same however much there is."""

    state_name = "ReplicatedDict"

    def __init__(self) -> None:
        self.data: dict[str | bytes, Any] = {}
        self._sum = 0

    def apply(self, context: Context, command: bytes) -> bytes:
        """[0, key, value] puts, [1, key] deletes, [2, key, old, value] swaps, [3, pairs] puts many."""
        do, *args = unpack(command)
        if do == 0:
            self._put(*args)
            return _NONE
        if do == 1:
            return pack(self._delete(*args))
        if do == 2:
            key, old, value = args
            if self.data.get(key) != old:
                return _FALSE
            if value is None:
                self._delete(key)
            else:
                self._put(key, value)
            return _TRUE
        if do == 3:
            for key, value in args[0]:
                self._put(key, value)
            return _NONE
        raise ValueError(f"unknown command {do!r}")

    def _put(self, key: str | bytes, value: Any) -> None:
        if type(key) is not str and type(key) is not bytes:
            raise TypeError(f"a key is a str or bytes, not {key!r:.50}")
        self._delete(key)
        self.data[key] = value
        self._sum = (self._sum + _mark(key, value)) & _MASK

    def _delete(self, key: str | bytes) -> bool:
        former = self.data.pop(key, _ABSENT)
        if former is _ABSENT:
            return False
        self._sum = (self._sum - _mark(key, former)) & _MASK
        return True

    def snapshot(self, write: Write) -> None:
        _write_rows(self.data, write)

    def view(self) -> Callable[[Write], None]:
        data = self.data.copy()
        return lambda write: _write_rows(data, write)

    def restore(self, read: Read) -> None:
        self.data, self._sum = {}, 0
        while (piece := read()) is not None:
            rows = unpack(piece)
            self.data.update(rows)
            for key, value in rows:
                self._sum += _mark(key, value)
        self._sum &= _MASK

    def digest(self) -> bytes:
        return len(self.data).to_bytes(8, "big") + self._sum.to_bytes(16, "big")


_NONE, _FALSE, _TRUE = pack(None), pack(False), pack(True)


def _write_rows(data: dict[str | bytes, Any], write: Write) -> None:
    rows = list(data.items())
    for at in range(0, len(rows), _PIECE):
        write(pack(rows[at : at + _PIECE]))


def _mark(key: str | bytes, value: Any) -> int:
    return int.from_bytes(blake2b(pack((key, value)), digest_size=16).digest(), "big")


class CounterState(ReplicatedObject):
    """Named whole numbers."""

    state_name = "ReplicatedCounter"

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    @command
    def add(self, name: str, amount: int) -> int:
        if type(name) is not str or type(amount) is not int:
            raise TypeError("a counter has a name and is added whole numbers")
        value = self.counts.get(name, 0) + amount
        if not -(1 << 63) <= value < 1 << 63:
            raise OverflowError(f"{name} would not fit into 64 bits")
        if value:
            self.counts[name] = value
        else:
            self.counts.pop(name, None)
        return value

    @query
    def value(self, name: str) -> int:
        return self.counts.get(name, 0)

    @query
    def values(self) -> dict[str, int]:
        return dict(self.counts)


class SetState(ReplicatedObject):
    """Texts, bytes and numbers, in the order in which they came."""

    state_name = "ReplicatedSet"

    def __init__(self) -> None:
        self.members: dict[str | bytes | int, None] = {}

    @command
    def add(self, member: str | bytes | int) -> bool:
        if type(member) not in (str, bytes, int):
            raise TypeError(f"a member is a str, bytes or int, not {member!r:.50}")
        if member in self.members:
            return False
        self.members[member] = None
        return True

    @command
    def discard(self, member: str | bytes | int) -> bool:
        return self.members.pop(member, _ABSENT) is not _ABSENT

    @query
    def contains(self, member: str | bytes | int) -> bool:
        return member in self.members

    @query
    def all(self) -> list[str | bytes | int]:
        return list(self.members)


class Holding(NamedTuple):
    """A lock that is held: by whom, with which fencing token, and until when by the records' time."""

    owner: str
    token: int
    until_ms: int


class LockState(ReplicatedObject):
    """Locks with leases. `token` grows with each new holder: what is guarded refuses a smaller one than before."""

    state_name = "ReplicatedLock"

    def __init__(self) -> None:
        self.held: dict[str, list[Any]] = {}

    @command
    def acquire(self, name: str, owner: str, lasts_ms: int) -> list[Any]:
        """[whether it is the owner's now, token, until when by record time]; its holder prolongs it by this."""
        _check_lease(name, owner, lasts_ms)
        now = self.context.timestamp_ms
        found = self.held.get(name)
        if found is not None and found[0] != owner and found[2] > now:
            return [False, found[1], found[2]]
        is_prolonged = found is not None and found[0] == owner and found[2] > now
        token = found[1] if found is not None and is_prolonged else self.context.position
        self.held[name] = [owner, token, now + lasts_ms]
        return [True, token, now + lasts_ms]

    @command
    def release(self, name: str, token: int) -> bool:
        """Whether it was still held under this token."""
        found = self.held.get(name)
        if found is None or found[1] != token:
            return False
        del self.held[name]
        return True

    @query
    def holder(self, name: str) -> Holding | None:
        """The last holder, if it has not given the lock back; its lease may have run out."""
        found = self.held.get(name)
        return Holding(*found) if found is not None else None


def _check_lease(name: str, owner: str, lasts_ms: int) -> None:
    if type(name) is not str or type(owner) is not str or type(lasts_ms) is not int or lasts_ms <= 0:
        raise TypeError("a lease has a name, an owner and a duration in ms above 0")


class Item(NamedTuple):
    """An item that `take` gives: acknowledge it by `id` and `token` within the lease."""

    id: int
    token: int
    value: Any
    deliveries: int
    """How often it has been given out, this time included."""


class QueueState(ReplicatedObject):
    """First in, first out; what is taken and not acknowledged within its lease is given out again."""

    state_name = "ReplicatedQueue"

    def __init__(self, most_deliveries: int = 5) -> None:
        self.waiting: dict[int, list[Any]] = {}
        """By id, in order: [value, deliveries]; what was never given out."""
        self.returned: dict[int, list[Any]] = {}
        """The same of what is to be given out again: it is older than all that waits, and goes first."""
        self.taken: dict[int, list[Any]] = {}
        """By id: [value, deliveries, token, until when by record time]."""
        self.dead: dict[int, list[Any]] = {}
        """By id: [value, deliveries]; what was given out `most_deliveries` times in vain."""
        self.most_deliveries = most_deliveries

    @command
    def put(self, value: Any) -> int:
        """The id of the item."""
        self.waiting[self.context.position] = [value, 0]
        return self.context.position

    @command
    def take(self, lease_ms: int) -> list[Any] | None:
        """[id, token, value, deliveries] of the oldest item; None: there is none to be had now."""
        if type(lease_ms) is not int or lease_ms <= 0:
            raise TypeError("lease_ms is a whole number above 0")
        self._return_overdue()
        source = self.returned or self.waiting
        if not source:
            return None
        number = next(iter(source))
        value, deliveries = source.pop(number)
        token, until = self.context.position, self.context.timestamp_ms + lease_ms
        self.taken[number] = [value, deliveries + 1, token, until]
        self._v_due = min(until, self._due)
        return [number, token, value, deliveries + 1]

    @command
    def ack(self, number: int, token: int) -> bool:
        """Whether the item was still the taker's: then it is gone for good."""
        found = self.taken.get(number)
        if found is None or found[2] != token:
            return False
        del self.taken[number]
        return True

    @command
    def nack(self, number: int, token: int) -> bool:
        """Give an item back at once; whether it was still the taker's."""
        found = self.taken.get(number)
        if found is None or found[2] != token:
            return False
        del self.taken[number]
        self._give_back([(number, found)])
        return True

    @command
    def prolong(self, number: int, token: int, lease_ms: int) -> bool:
        """Extend an item's lease from now on; returns whether the taker still held it."""
        if type(lease_ms) is not int or lease_ms <= 0:
            raise TypeError("lease_ms is a whole number above 0")
        found = self.taken.get(number)
        if found is None or found[2] != token:
            return False
        found[3] = self.context.timestamp_ms + lease_ms
        return True

    @command
    def requeue_dead(self) -> int:
        """Put all dead letters back, with their deliveries forgotten; how many."""
        count = len(self.dead)
        self._insert([(number, [value, 0]) for number, (value, _) in self.dead.items()])
        self.dead = {}
        return count

    def _return_overdue(self) -> None:
        now = self.context.timestamp_ms
        if now < self._due:
            return
        overdue = [(number, found) for number, found in self.taken.items() if found[3] <= now]
        for number, _ in overdue:
            del self.taken[number]
        self._v_due = min((found[3] for found in self.taken.values()), default=_NEVER)
        self._give_back(overdue)

    @property
    def _due(self) -> int:
        """No lease runs out before this: a bound, so that not every `take` has to look at all that is taken."""
        return getattr(self, "_v_due", 0)

    def _give_back(self, items: list[tuple[int, list[Any]]]) -> None:
        back = []
        for number, found in items:
            if found[1] >= self.most_deliveries:
                self.dead[number] = found[:2]
            else:
                back.append((number, found[:2]))
        self._insert(back)

    def _insert(self, items: list[tuple[int, list[Any]]]) -> None:
        """Where they stood: what is older is given out first."""
        if items:
            self.returned = dict(sorted([*self.returned.items(), *items]))

    @query
    def next_due_ms(self) -> int | None:
        """When the first lease runs out, by record time; None: nothing is taken."""
        return min((found[3] for found in self.taken.values()), default=None)

    @query
    def size(self) -> int:
        """Items that wait to be taken."""
        return len(self.waiting) + len(self.returned)

    @query
    def counts(self) -> dict[str, int]:
        return {"waiting": self.size(), "taken": len(self.taken), "dead": len(self.dead)}

    @query
    def dead_letters(self) -> list[Item]:
        return [Item(number, 0, value, deliveries) for number, (value, deliveries) in self.dead.items()]


__all__ = ["CounterState", "DictMachine", "Holding", "Item", "LockState", "QueueState", "SetState"]
