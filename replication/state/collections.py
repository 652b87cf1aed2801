"""A dict, counters and a set that every process shares."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from ..client import _arguments as given
from ._batteries import CounterState, DictMachine, SetState
from ._packing import pack, unpack
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
        """Back when it is committed and applied here; `id` as in `submit`."""
        await self._do([0, _key(key), value], id)

    async def put_many(self, values: Mapping[Key, Any], *, id: str | None = None) -> None:
        """Put all of them, at one moment."""
        await self._do([3, [[_key(key), value] for key, value in values.items()]], id)

    async def put_if(self, key: Key, old: Any, value: Any, *, id: str | None = None) -> bool:
        """Put the value if `old` is what is there (None: nothing); whether it was. The value None takes it away."""
        return bool(await self._do([2, _key(key), old, value], id))

    async def delete(self, key: Key, *, id: str | None = None) -> bool:
        """Whether there was something."""
        return bool(await self._do([1, _key(key)], id))

    async def _do(self, command: list[Any], id: str | None) -> Any:
        answer = await self._submit(pack(command), id)
        if answer.error:
            raise_answer(answer.error, answer.data, ())
        return unpack(answer.data)

    # Looking

    async def get(self, key: Key, default: Any = None, *, after: int | None = None) -> Any:
        """The current value: every write that was done before this call counts, by whomever and wherever.

        With `after` (a `token`) only what the handle with that token had written counts; it asks no leader.
        """
        await self.read(after=after)
        return self._data.get(_key(key), default)

    async def items(self, *, after: int | None = None) -> dict[Key, Any]:
        """All of it, current."""
        await self.read(after=after)
        return dict(self._data)

    def get_stale(self, key: Key, default: Any = None) -> Any:
        """What this copy has: at once, and perhaps no longer so."""
        return self._data.get(_key(key), default)

    def items_stale(self) -> dict[Key, Any]:
        """All that this copy has."""
        return dict(self._data)

    def __len__(self) -> int:
        """How many keys this copy has."""
        return len(self._data)

    def __bool__(self) -> bool:
        return True

    @asynccontextmanager
    async def watch(self, key: Key) -> AsyncIterator[AsyncIterator[Any]]:
        """The values of a key: that of now, current, then each that it takes; None: it is not there.

        Values that follow on each other quickly may be left out, never the last one.
        """
        _key(key)
        await self.read()

        async def values() -> AsyncIterator[Any]:
            seen: Any = _NOTHING
            while True:
                value = self._data.get(key)
                if seen is _NOTHING or value != seen:
                    seen = value
                    yield value
                else:
                    await self.moved()

        watched = values()
        try:
            yield watched
        finally:
            await watched.aclose()  # type: ignore[attr-defined]

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
    """Counters by name, whole numbers of 64 bits; one that was never added to is 0."""

    make = CounterState

    async def add(self, name: str, amount: int = 1, *, id: str | None = None) -> int:
        """The value with this added. Raises OverflowError if it would not fit."""
        return int(await self.command("add", name, amount, id=id))

    async def value(self, name: str, *, after: int | None = None) -> int:
        """The current value."""
        await self.read(after=after)
        return self.value_stale(name)

    async def values(self, *, after: int | None = None) -> dict[str, int]:
        """All that are not 0, current."""
        await self.read(after=after)
        return self._state.values()

    def value_stale(self, name: str) -> int:
        """What this copy has."""
        return self._state.value(name)

    @property
    def _state(self) -> CounterState:
        state = self.stale
        assert isinstance(state, CounterState)
        return state


class ReplicatedSet(_Battery):
    """Texts, bytes and whole numbers, each once."""

    make = SetState

    async def add(self, member: Member, *, id: str | None = None) -> bool:
        """Whether it was not there before."""
        return bool(await self.command("add", member, id=id))

    async def discard(self, member: Member, *, id: str | None = None) -> bool:
        """Whether it was there."""
        return bool(await self.command("discard", member, id=id))

    async def contains(self, member: Member, *, after: int | None = None) -> bool:
        """Whether it is there now."""
        await self.read(after=after)
        return self.contains_stale(member)

    async def members(self, *, after: int | None = None) -> list[Member]:
        """All of them, current, in the order in which they came."""
        await self.read(after=after)
        return self._state.all()

    def contains_stale(self, member: Member) -> bool:
        """What this copy says."""
        return self._state.contains(member)

    def __len__(self) -> int:
        """How many this copy has."""
        return len(self._state.members)

    def __bool__(self) -> bool:
        return True

    @property
    def _state(self) -> SetState:
        state = self.stale
        assert isinstance(state, SetState)
        return state
