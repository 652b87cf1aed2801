"""Classes of messages, made from their tables: every field of every version, with the table's defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from . import tables

_ZEROS = {
    "string": '""',
    "bytes": 'b""',
    "uuid": "NO_ID",
    "records": "None",
    "bool": "False",
    "float64": "0.0",
}
NO_ID = bytes(16)
"""The uuid that stands for none."""


@attrs.frozen(slots=True)
class Encoded:
    """Elements of an array of a message that are encoded already, one behind the other, in the message's version.

    error: the first that one of them tells, 0 if there is none.
    """

    count: int
    data: bytes
    error: int = 0


class Struct:
    """A message or a part of one. It has the fields of all versions; those of other versions have their defaults.

    A string is a `str`; bytes and uuids are `bytes`; arrays are lists. `records` decode to (position, size); they
    are encoded from bytes, or from a size for which a hole is left. An array of parts may be `Encoded` if it is the
    message's own and not that of a part.
    """

    __slots__ = ()
    NAMES: ClassVar[tuple[str, ...]] = ()
    TABLE: ClassVar[tables.Table]
    """Of messages alone."""

    def __init__(self, *values: Any, **named: Any) -> None:
        raise TypeError("a class of its own is made from each table")

    if TYPE_CHECKING:
        # Which fields there are is known to the tables alone.
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.NAMES)

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.NAMES)
        return f"{type(self).__name__}({told})"

    def __getattr__(self, name: str) -> Any:
        # For type checkers: which fields there are is known to the tables alone.
        raise AttributeError(f"{type(self).__name__} has no field {name!r}; it has {', '.join(self.NAMES)}")


def default(field: tables.Field) -> str:
    """The value of a field that is not there, as an expression."""
    if field.default == "null":
        return "None"
    if field.is_array:
        return "[]"
    if field.struct is not None:
        return f"{field.struct.name}()"
    if field.default is None:
        return _ZEROS.get(field.type, "0")
    return "True" if field.default == "true" else field.default


def make(table: tables.Table) -> tuple[type[Struct], dict[str, type[Struct]]]:
    """The class of a message, and those of its parts by name; a part is an attribute of the message's class too."""
    known: dict[str, type[Struct]] = {}
    made = _make(table.struct, known)
    made.TABLE = table
    for name, part in known.items():
        if part is not made:
            setattr(made, name, part)
    return made, known


def _make(struct: tables.Struct, known: dict[str, type[Struct]]) -> type[Struct]:
    for field in struct.fields:
        if field.struct is not None and field.struct.name not in known:
            _make(field.struct, known)
    names = tuple(each.name for each in struct.fields)
    made = type(struct.name, (Struct,), {"__slots__": names, "NAMES": names})
    made.__init__ = _initialiser(struct, known)  # type: ignore[misc]
    known[struct.name] = made
    return made


def _initialiser(struct: tables.Struct, known: dict[str, type[Struct]]) -> Callable[..., None]:
    """Written out: a message is made for each request, and a loop over its fields would cost twice as much."""
    arguments, body = ["self"], []
    for field in struct.fields:
        value = default(field)
        # A value that can be changed is made for each message by itself.
        fresh = value == "[]" or value.endswith("()")
        arguments.append(f"{field.name}={'UNSET' if fresh else value}")
        chosen = f"{value} if {field.name} is UNSET else {field.name}" if fresh else field.name
        body.append(f"    self.{field.name} = {chosen}")
    source = f"def __init__({', '.join(arguments)}):\n" + "\n".join(body or ["    pass"])
    names: dict[str, Any] = {"UNSET": object(), "NO_ID": NO_ID, **known}
    exec(compile(source, f"<{struct.name}>", "exec"), names)
    made: Callable[..., None] = names["__init__"]
    return made
