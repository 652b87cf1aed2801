"""Replicated objects: a class whose `@command` methods run on every copy, in the order of the log."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, overload

from . import _versions
from ._packing import pack, unpack
from .errors import CommandError, StateError
from .machine import Context, Read, StateMachine, Write

F = TypeVar("F", bound=Callable[..., Any])
_PIECE = 2_000
_NAMES = """
    applied changes clock_ms close close_seconds command digest is_keeper lag machine moved name raise_version
    read restored_from settings snapshot stale state_version submit token wait_until
"""
TAKEN = frozenset(_NAMES.split())
"""Names of the handles' own, in trio, asyncio and threads: no command or query can have them."""


@overload
def command(method: F, /) -> F: ...
@overload
def command(*, since: int = 1) -> Callable[[F], F]: ...
def command(method: F | None = None, /, *, since: int = 1) -> F | Callable[[F], F]:
    """A method that changes the object. It runs on every copy; its result or exception is the answer.

    It must not be async, must depend only on its arguments and the object, and may use `self.context`.
    Arguments and answers are None, bool, int, float, str, bytes, and lists and dicts of them (a tuple arrives as a
    list).

    `@command(since=2)`: until the topic has version 2, calls raise `VersionNotRaisedError`.
    """
    return _marked("command", method, since)


@overload
def query(method: F, /) -> F: ...
@overload
def query(*, since: int = 1) -> Callable[[F], F]: ...
def query(method: F | None = None, /, *, since: int = 1) -> F | Callable[[F], F]:
    """A method that only reads. It runs on one copy and may return anything.

    Return a copy of a list or dict of the state. A caller who changed the original would make this copy differ from
    the others, and one in another thread may read it while a command changes it.

    `@query(since=2)`: until the topic has version 2, calls raise `VersionNotRaisedError`.
    """
    return _marked("query", method, since)


def _marked(kind: str, method: F | None, since: int) -> F | Callable[[F], F]:
    def mark(method: F) -> F:
        _check(method, f"@{kind}")
        method.__insync_kind__, method.__insync_since__ = kind, since  # type: ignore[attr-defined]
        return method

    return mark if method is None else mark(method)


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

    `__init__` makes the state of version 1. With `state_version = 2` the class has a method `migrate_1_to_2(self)`,
    which runs when the topic's version is raised; until then `self.context.version` is 1, and commands work as
    before.

    Raises:
      TypeError: When the class is defined: a command or query has a name of the handle's own, or one that begins
        with `_`; `since` is above `state_version`; a migration is missing.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = ()
    """Exception classes of the service that commands raise. Callers receive them as these classes."""
    state_name: ClassVar[str] = ""
    """By which logs know the class; default: its name. Set it to the former name to rename a class."""
    state_version: ClassVar[int] = 1
    """The version of the code. Raise it with each change of the state or of the commands."""
    context: Context
    """The context of the command that runs now."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        methods = methods_of(cls, "command") | methods_of(cls, "query")
        for name in methods:
            if name in TAKEN or name.startswith("_"):
                raise TypeError(
                    f"{cls.__name__}.{name}: handles have this name for themselves; use one that does not begin "
                    f"with _ and is none of {', '.join(sorted(TAKEN))}"
                )
        _versions.check(cls)
        for name, method in methods.items():
            since = since_of(method)
            if not isinstance(since, int) or not 1 <= since <= cls.state_version:
                raise TypeError(
                    f"{cls.__name__}.{name} has since={since!r}, but state_version is {cls.state_version}: raise "
                    "state_version to it"
                )

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


def since_of(method: Callable[..., Any] | None) -> int:
    """The topic's version from which on a command or query can be called."""
    return getattr(method, "__insync_since__", 1)


class ObjectMachine(StateMachine):
    """The state machine of a replicated object."""

    def __init__(self, value: ReplicatedObject) -> None:
        self.value = value
        cls = type(value)
        self.state_name, self.state_version = cls.state_name or cls.__name__, cls.state_version
        self._commands = methods_of(type(value), "command")

    def apply(self, context: Context, command: bytes) -> bytes:
        name, args, kwargs = unpack(command)
        method = self._commands.get(name)
        if method is None or since_of(method) > context.version:
            # Answered as by code of that version, which does not know it.
            raise CommandError("UnknownCommand", f"{self.state_name} has no command {name!r}")
        self.value.context = context
        return pack(method(self.value, *args, **kwargs))

    def migrate(self, context: Context) -> None:
        self.value.context = context
        getattr(self.value, _versions.migration(context.version))()

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
