"""The error that an answer tells, wherever in it that stands."""

from __future__ import annotations

from functools import cache

from insync.replication.core.errors import ErrorCode

from ..protocol import Encoded, Struct, message
from ..protocol.apis import KafkaError
from ..protocol.tables import Struct as Described

NONE = "none"


def first_error(answer: Struct) -> int:
    """The first error of an answer that is not 0: its own, or that of a part of it."""
    return _first(answer, _plan_of(answer.TABLE.name))


def name_of(code: int) -> str:
    """An error as a label, in small letters; a number that no table has stays one."""
    if code == ErrorCode.NONE:
        return NONE
    for table in (ErrorCode, KafkaError):
        try:
            return table(code).name.lower()
        except ValueError:
            continue
    return str(code)


Plan = tuple[tuple[str, "Plan | None", bool], ...]
"""Fields to look at: of a code its name, of a part also the plan for that, and whether there are many of it."""


@cache
def _plan_of(name: str) -> Plan:
    """Of a message, kept by its name: what a table describes is compared, and hashed, field by field."""
    return _plan(message(name).TABLE.struct)


def _plan(struct: Described) -> Plan:
    found: list[tuple[str, Plan | None, bool]] = []
    for field in struct.fields:
        if field.name.endswith("error_code") and not field.is_array:
            found.append((field.name, None, False))
        elif field.struct is not None and (below := _plan(field.struct)):
            found.append((field.name, below, field.is_array))
    return tuple(found)


def _first(told: Struct, plan: Plan) -> int:
    for name, below, is_many in plan:
        value = getattr(told, name)
        if below is None:
            if value:
                return int(value)
            continue
        if type(value) is Encoded:
            if value.error:
                return value.error
            continue
        for each in (value or ()) if is_many else (value,):
            code = _first(each, below) if each is not None else 0
            if code:
                return code
    return 0
