"""A replicated object in use: its commands and queries as methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ._packing import pack, unpack
from .objects import ObjectMachine, ReplicatedObject, methods_of, raise_answer, since_of
from .replica import Replica
from .settings import StateSettings


class ObjectReplica(Replica):
    """A copy of a replicated object. `stale` is the object of this copy itself; only read it."""

    def __init__(
        self,
        make: Callable[[], ReplicatedObject],
        servers: str | Sequence[str],
        topic: str,
        *,
        name: str = "",
        settings: StateSettings | None = None,
        **options: Any,
    ) -> None:
        self._cls = type(make())
        super().__init__(
            servers, topic, lambda: ObjectMachine(make()), name=name, settings=settings, **options
        )

    @property
    def stale(self) -> ReplicatedObject:
        machine = self.machine
        assert isinstance(machine, ObjectMachine)
        return machine.value

    async def command(self, method: str, *args: Any, id: str | None = None, **kwargs: Any) -> Any:
        """Call a command by its name; returns its result or raises its exception."""
        self._require(f"command {method!r}", since_of(getattr(self._cls, method, None)))
        # In one order, as the same command under an idempotency key has the same bytes.
        answer = await self._submit(pack([method, args, dict(sorted(kwargs.items()))]), id)
        if answer.error:
            raise_answer(answer.error, answer.data, self._cls.errors)
        return unpack(answer.data)


class CommandMethod:
    """A command: `await seats.take("12A", "alice")`; with an idempotency key, `await seats.take.once(key, ...)`."""

    def __init__(self, replica: ObjectReplica, name: str) -> None:
        self._replica = replica
        self._name = name

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await self._replica.command(self._name, *args, **kwargs)

    async def once(self, id: str, /, *args: Any, **kwargs: Any) -> Any:
        """Run the command once for this key: if any process has run it with the key, return the answer to that.

        Raises:
          IdempotencyConflictError: The key belongs to a command with other arguments; this one was not applied.
        """
        return await self._replica.command(self._name, *args, id=id, **kwargs)


class QueryMethod:
    """A query: `await seats.free()` is current; `seats.free.stale()` reads this copy as it is."""

    def __init__(self, replica: ObjectReplica, name: str) -> None:
        self._replica = replica
        self._name = name

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        await self._replica.read()
        return self.stale(*args, **kwargs)

    async def after(self, token: int, /, *args: Any, **kwargs: Any) -> Any:
        """Run the query when this copy has all commands that the handle with this `token` had done."""
        await self._replica.read(after=token)
        return self.stale(*args, **kwargs)

    def stale(self, *args: Any, **kwargs: Any) -> Any:
        method = getattr(self._replica.stale, self._name)
        self._replica._require(f"query {self._name!r}", since_of(method))
        return method(*args, **kwargs)


class Replicated(ObjectReplica):
    """The result of `replicate`: has the commands and queries of the object, and the methods of `Replica`."""

    def __init__(self, make: Callable[[], ReplicatedObject], *args: Any, **options: Any) -> None:
        super().__init__(make, *args, **options)
        for kind, method in (("command", CommandMethod), ("query", QueryMethod)):
            for name in methods_of(self._cls, kind):
                setattr(self, name, method(self, name))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self._cls.__name__} has no command or query {name!r}")


def replicate(
    make: Callable[[], ReplicatedObject],
    servers: str | Sequence[str],
    topic: str,
    *,
    name: str = "",
    settings: StateSettings | None = None,
    **options: Any,
) -> Replicated:
    """A copy of a replicated object and a handle to it: `async with replicate(Seats, servers, "seats") as seats`.

    Args:
      make: Creates the object: its class, or a function without arguments.

    The other arguments, and the errors on entering, are those of `Replica`.
    """
    return Replicated(make, servers, topic, name=name, settings=settings, **options)


__all__ = ["CommandMethod", "ObjectReplica", "QueryMethod", "Replicated", "replicate"]
