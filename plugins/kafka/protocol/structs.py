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
    KIND: ClassVar[type[Struct]]
    """The class as such, which `ABSENT` has in common with the others of it."""
    ABSENT: ClassVar[Struct]
    """The value for a part that is not there: all defaults, and the same one in every message, so that it refuses
    to be changed. Parts that can have lists have none.
    """
    TABLE: ClassVar[tables.Table]
    """Of messages alone."""

    of: ClassVar[Callable[..., Any]]
    """Makes one from the same arguments as the class itself, in a third of the time: for those of which a request
    has many.
    """

    def __init__(self, *values: Any, **named: Any) -> None:
        raise TypeError("a class of its own is made from each table")

    if TYPE_CHECKING:
        # Which fields there are is known to the tables alone.
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct) or self.KIND is not other.KIND:
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
        return f"{field.struct.name}{'.ABSENT' if _is_fixed(field.struct) else '()'}"
    if field.default is None:
        return _ZEROS.get(field.type, "0")
    return "True" if field.default == "true" else field.default


def _is_fixed(struct: tables.Struct) -> bool:
    """Whether nothing in a part can be changed but its fields themselves."""
    return not any(
        each.default != "null" and (each.is_array or (each.struct is not None and not _is_fixed(each.struct)))
        for each in struct.fields
    )


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
    made: Any = type(struct.name, (Struct,), {"__slots__": names, "NAMES": names})
    made.KIND = made
    made.__init__, made.of = _makers(struct, made, known)
    if _is_fixed(struct):
        made.ABSENT = made()
        made.ABSENT.__class__ = type(struct.name, (made,), {"__slots__": (), "__setattr__": _refuse})
    known[struct.name] = made
    return made


def _refuse(absent: Struct, name: str, value: object) -> None:
    raise TypeError(
        f"{type(absent).__name__}.{name} = {value!r} would change what stands for absence in every message; "
        f"put a new {type(absent).__name__} in its place"
    )


def _makers(
    struct: tables.Struct, made: type[Struct], known: dict[str, type[Struct]]
) -> tuple[Callable[..., None], Callable[..., Struct]]:
    """`__init__` and `of`. Both are written out: a message is made for each request, and a loop over its fields
    would cost twice as much. To call a class costs more than the rest of it, mostly for a dict of named arguments.
    """
    arguments, body = [], []
    for field in struct.fields:
        value = default(field)
        # A value that can be changed is made for each message by itself.
        fresh = value == "[]" or value.endswith("()")
        arguments.append(f"{field.name}={'UNSET' if fresh else value}")
        chosen = f"{value} if {field.name} is UNSET else {field.name}" if fresh else field.name
        body.append(f"    self.{field.name} = {chosen}")
    source = "\n".join(
        [
            f"def __init__({', '.join(['self', *arguments])}):",
            *(body or ["    pass"]),
            f"def of({', '.join(arguments)}):",
            "    self = NEW(MADE)",
            *body,
            "    return self",
        ]
    )
    names: dict[str, Any] = {"UNSET": object(), "NO_ID": NO_ID, "NEW": object.__new__, "MADE": made, **known}
    exec(compile(source, f"<{struct.name}>", "exec"), names)
    return names["__init__"], staticmethod(names["of"])
