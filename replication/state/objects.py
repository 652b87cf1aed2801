"""Replicated objects: a class whose `@command` methods run on every copy, in the order of the log."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from ._packing import pack, unpack
from .errors import CommandError, StateError
from .machine import Context, Read, StateMachine, Write

F = TypeVar("F", bound=Callable[..., Any])
_PIECE = 2_000


def command(method: F) -> F:
    """A method that changes the object. It runs on every copy; its result or exception is the answer.

    It must not be async, must depend only on its arguments and the object, and may use `self.context`.
    Arguments and answers are None, bool, int, float, str, bytes, and lists and dicts of them (a tuple arrives as a
    list).
    """
    _check(method, "@command")
    method.__insync_kind__ = "command"  # type: ignore[attr-defined]
    return method


def query(method: F) -> F:
    """A method that only reads. It runs on one copy and may return anything.

    Return a copy of a list or dict of the state. A caller who changed the original would make this copy differ from
    the others, and one in another thread may read it while a command changes it.
    """
    _check(method, "@query")
    method.__insync_kind__ = "query"  # type: ignore[attr-defined]
    return method


def _check(method: Callable[..., Any], what: str) -> None:
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        raise TypeError(
            f"{what} {method.__name__} is async: it runs in the log's order and waits for nothing"
        )


class ReplicatedObject:
    """Base class: set the state in `__init__`, and add methods that are commands and queries.

    The state is `vars(self)`, if its values can be packed (None, bool, int, float, str, bytes, and lists, dicts and
    sets of them); otherwise override `get_state` and `set_state`. Names that begin with `_v_` do not belong to the
    state.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = ()
    """Exception classes of the service that commands raise. Callers receive them as these classes."""
    context: Context
    """The context of the command that runs now."""

    def get_state(self) -> dict[str, Any]:
        """Names and values for a snapshot, which writes large dicts in pieces."""
        return {name: value for name, value in vars(self).items() if not _is_passing(name)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a result of `get_state`."""
        for name in [name for name in vars(self) if not _is_passing(name)]:
            delattr(self, name)
        vars(self).update(state)


def _is_passing(name: str) -> bool:
    return name == "context" or name.startswith("_v_")


def methods_of(cls: type, kind: str) -> dict[str, Callable[..., Any]]:
    """The commands or queries of a class, by name."""
    return {
        name: method
        for name, method in inspect.getmembers(cls, inspect.isfunction)
        if getattr(method, "__insync_kind__", None) == kind
    }


class ObjectMachine(StateMachine):
    """The state machine of a replicated object."""

    def __init__(self, value: ReplicatedObject) -> None:
        self.value = value
        self._commands = methods_of(type(value), "command")

    def apply(self, context: Context, command: bytes) -> bytes:
        name, args, kwargs = unpack(command)
        method = self._commands.get(name)
        if method is None:
            raise CommandError("UnknownCommand", f"{type(self.value).__name__} has no command {name!r}")
        self.value.context = context
        return pack(method(self.value, *args, **kwargs))

    def snapshot(self, write: Write) -> None:
        write_state(self.value.get_state(), write)

    def restore(self, read: Read) -> None:
        self.value.set_state(read_state(read))


def write_state(state: dict[str, Any], write: Write) -> None:
    """Names and values in pieces: a large dict becomes many pieces."""
    write(pack([[name, *_shape(value)] for name, value in state.items()]))
    for value in state.values():
        kind, _ = _shape(value)
        if kind == "value":
            write(pack(value))
            continue
        rows = list(value.items()) if kind == "dict" else sorted(value, key=pack)
        for at in range(0, len(rows), _PIECE):
            write(pack(rows[at : at + _PIECE]))


def read_state(read: Read) -> dict[str, Any]:
    """Read the pieces of `write_state`; raises StateError for anything else."""

    def piece() -> Any:
        data = read()
        if data is None:
            raise StateError("the snapshot ends too early")
        return unpack(data)

    state: dict[str, Any] = {}
    for name, kind, count in piece():
        if kind == "value":
            state[name] = piece()
            continue
        rows: list[Any] = []
        while len(rows) < count:
            rows += piece()
        state[name] = dict(rows) if kind == "dict" else set(rows)
    return state


def _shape(value: Any) -> tuple[str, int]:
    if type(value) is dict:
        return "dict", len(value)
    if isinstance(value, set | frozenset):
        return "set", len(value)
    return "value", 0


def raise_answer(kind: str, data: bytes, known: tuple[type[Exception], ...]) -> None:
    """Raise the exception of a command: a built-in one or one of the object's `errors`, else `CommandError`."""
    args = unpack(data)
    for cls in known:
        if cls.__name__ == kind:
            raise _made(cls, args)
    own = getattr(builtins, kind, None)
    if isinstance(own, type) and issubclass(own, Exception):
        raise _made(own, args)
    if kind == CommandError.__name__:
        kind, _, text = str(args[0]).partition(": ") if len(args) == 1 else (kind, "", str(args))
        raise CommandError(kind, text)
    raise CommandError(kind, ", ".join(map(str, args)))


def _made(cls: type[Exception], args: list[Any]) -> Exception:
    try:
        return cls(*args)
    except Exception:  # noqa: BLE001 - its constructor wants something else
        made = cls.__new__(cls)
        made.args = tuple(args)
        return made
