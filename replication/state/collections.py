"""A dict, counters and a set that every process shares."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from ..client import _arguments as given
from ._batteries import CounterState, DictMachine, SetState
from ._packing import own, pack, unpack
from ._resumable import Resumable
from .handle import ObjectReplica
from .objects import raise_answer
from .replica import Replica
from .settings import StateSettings

Key = str | bytes
Member = str | bytes | int


class ReplicatedDict(Replica):
    """`async with ReplicatedDict.open(servers, "state", name="api-1") as d: await d.put("colour", "red")`.

    Keys are str or bytes; values None, bool, int, float, str, bytes, and lists and dicts of them.
    """

    @classmethod
    def open(
        cls,
        servers: str | Sequence[str],
        topic: str,
        *,
        name: str = "",
        settings: StateSettings | None = None,
        **options: Any,
    ) -> Self:
        """The arguments are those of `Replica`."""
        return cls(servers, topic, DictMachine, name=name, settings=settings, **options)

    # Changing

    async def put(self, key: Key, value: Any, *, id: str | None = None) -> None:
        """Put a value; returns when it is committed and applied here. `id` as in `submit`."""
        await self._do([0, _key(key), value], id)

    async def put_many(self, values: Mapping[Key, Any], *, id: str | None = None) -> None:
        """Put several values atomically."""
        given.mapping("values", values, "give a dict of keys and values")
        await self._do([3, [[_key(key), value] for key, value in values.items()]], id)

    async def put_if(self, key: Key, old: Any, value: Any, *, id: str | None = None) -> bool:
        """Put the value (None: delete) if the current one is `old` (None: absent); returns whether it was."""
        return bool(await self._do([2, _key(key), old, value], id))

    async def delete(self, key: Key, *, id: str | None = None) -> bool:
        """Delete a key; returns whether it existed."""
        return bool(await self._do([1, _key(key)], id))

    async def _do(self, command: list[Any], id: str | None) -> Any:
        answer = await self._submit(pack(command), id)
        if answer.error:
            raise_answer(answer.error, answer.data, ())
        return unpack(answer.data)

    # Reading

    async def get(self, key: Key, default: Any = None, *, after: int | None = None) -> Any:
        """The current value, which includes every write that any process finished before this call.

        With `after` (a `token`) it only includes the writes of the handle with that token, and asks no leader.
        """
        await self.read(after=after)
        return self.get_stale(key, default)

    async def items(self, *, after: int | None = None) -> dict[Key, Any]:
        """All current items."""
        await self.read(after=after)
        return self.items_stale()

    def get_stale(self, key: Key, default: Any = None) -> Any:
        """The value in this copy: returns at once, and may be outdated."""
        value = self._data.get(_key(key), _NOTHING)
        return default if value is _NOTHING else own(value)

    def items_stale(self) -> dict[Key, Any]:
        """All items of this copy, which may be outdated."""
        return {key: own(value) for key, value in self._data.items()}

    def __len__(self) -> int:
        """The number of keys in this copy."""
        return len(self._data)

    def __bool__(self) -> bool:
        return True

    @asynccontextmanager
    async def watch(self, key: Key) -> AsyncIterator[AsyncIterator[Any]]:
        """The values of a key: the current one, then each new one; None: the key is absent.

        It may skip values that change quickly, but never the last one.
        """
        _key(key)
        await self.read()

        seen: Any = _NOTHING
        told, is_over = b"", False

        async def following() -> Any:
            nonlocal seen, told
            while not is_over:
                value = self._data.get(key)
                if value is seen:
                    await self.moved()
                    continue
                # By their bytes: 1 equals True, and a NaN not even itself.
                seen, before, told = value, told, pack(value)
                if told != before:
                    return unpack(told)
            raise StopAsyncIteration

        try:
            yield Resumable(following)
        finally:
            is_over = True

    @property
    def _data(self) -> dict[Key, Any]:
        machine = self.machine
        assert isinstance(machine, DictMachine)
        return machine.data


_NOTHING = object()


def _key(key: Key) -> Key:
    if not isinstance(key, str | bytes):
        raise given.refused("key", key, "a key is a str or bytes")
    return key


def _member(member: Member) -> Member:
    # Members of a StrEnum or IntEnum are what they stand for, as in a record.
    if isinstance(member, str):
        return str.__str__(member)
    if isinstance(member, int) and not isinstance(member, bool):
        return operator.index(member)
    if isinstance(member, bytes):
        return bytes(memoryview(member))
    raise given.refused("member", member, "a member is a str, bytes or int")


class _Battery(ObjectReplica):
    make: Callable[[], Any]

    @classmethod
    def open(
        cls,
        servers: str | Sequence[str],
        topic: str,
        *,
        name: str = "",
        settings: StateSettings | None = None,
        **options: Any,
    ) -> Self:
        """The arguments are those of `Replica`."""
        return cls(cls.make, servers, topic, name=name, settings=settings, **options)


class ReplicatedCounter(_Battery):
    """Counters by name, 64-bit integers; a new counter is 0."""

    make = CounterState

    async def add(self, name: str, amount: int = 1, *, id: str | None = None) -> int:
        """Add to a counter; returns the new value. Raises OverflowError beyond 64 bits."""
        arguments = given.text("name", name), given.whole("amount", amount)
        return int(await self.command("add", *arguments, id=id))

    async def value(self, name: str, *, after: int | None = None) -> int:
        """The current value."""
        await self.read(after=after)
        return self.value_stale(name)

    async def values(self, *, after: int | None = None) -> dict[str, int]:
        """All current counters that are not 0."""
        await self.read(after=after)
        return self._state.values()

    def value_stale(self, name: str) -> int:
        """The value in this copy, which may be outdated."""
        return self._state.value(given.text("name", name))

    @property
    def _state(self) -> CounterState:
        state = self.stale
        assert isinstance(state, CounterState)
        return state


class ReplicatedSet(_Battery):
    """A set of str, bytes and int."""

    make = SetState

    async def add(self, member: Member, *, id: str | None = None) -> bool:
        """Add a member; returns whether it is new."""
        return bool(await self.command("add", _member(member), id=id))

    async def discard(self, member: Member, *, id: str | None = None) -> bool:
        """Remove a member; returns whether it existed."""
        return bool(await self.command("discard", _member(member), id=id))

    async def contains(self, member: Member, *, after: int | None = None) -> bool:
        """Whether it is currently a member."""
        await self.read(after=after)
        return self.contains_stale(member)

    async def members(self, *, after: int | None = None) -> list[Member]:
        """All current members in the order of their addition."""
        await self.read(after=after)
        return self._state.all()

    def contains_stale(self, member: Member) -> bool:
        """Whether this copy has it, which may be outdated."""
        return self._state.contains(_member(member))

    def __len__(self) -> int:
        """The number of members in this copy."""
        return len(self._state.members)

    def __bool__(self) -> bool:
        return True

    @property
    def _state(self) -> SetState:
        state = self.stale
        assert isinstance(state, SetState)
        return state
