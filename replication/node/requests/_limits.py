"""How much one request may ask for at a time: no client keeps a node from its other work."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from ... import wire
from ...core.messages import Kind
from .authorisation import OPERATIONS, Operation

MOST_ELEMENTS = 25_000
"""In the lists of a request, together: of partitions with names of usual length no more fit into a body."""
_NUMBERS = 8
"""Of those within an element, such as replicas, that count as one more."""
MOST_BYTES: Mapping[int, int] = {Kind.LEAVE_GROUP: 128 << 10}
"""Of the body of a request whose lists may have elements of one byte, each of which is an object."""
OF_NODES = frozenset(
    {Kind.FETCH, *(kind for kind, may in OPERATIONS.items() if may == {Operation.REPLICATE})}
)
"""Nodes ask each other of all partitions that they have in common, as many as fit into a body."""


def problem_of_body(kind: int, body: bytes | memoryview) -> str:
    """Why a body of a kind in `MOST_BYTES` is not to be decoded; empty: it may be."""
    most = MOST_BYTES[kind]
    if len(body) <= most:
        return ""
    return f"a request of kind {kind} has {len(body)} bytes, above {most}: ask in several requests"


def problem_of(kind: int, message: Any) -> str:
    """Why a request is not to be served; empty: it may be."""
    lists = _LISTS.get(kind)
    if not lists:
        return ""
    count = 0
    for name, within in lists:
        found = getattr(message, name) or ()
        count += len(found)
        for each in found if within else ():
            count += sum([len(getattr(each, part) or ()) for part in within]) // _NUMBERS
    if count <= MOST_ELEMENTS:
        return ""
    return f"the request has {count} elements, above {MOST_ELEMENTS}: ask in several requests"


def _lists_of(made: type) -> list[tuple[str, Any]]:
    found = []
    for name, hint in get_type_hints(made).items():
        for each in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
            if get_origin(each) is list:
                found.append((name, get_args(each)[0]))
    return found


def _lists(made: type[Any]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = []
    for name, element in _lists_of(made):
        is_struct = isinstance(element, type) and issubclass(element, msgspec.Struct)
        found.append((name, tuple(part for part, _ in _lists_of(element)) if is_struct else ()))
    return tuple(found)


_LISTS = {kind: _lists(made) for kind, made in wire.REQUEST_TYPES.items() if kind not in OF_NODES}
"""The lists of a request, each with those that its elements have."""
