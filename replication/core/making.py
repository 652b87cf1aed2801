"""Makes frozen values in a quarter of the time: for those of which a node makes many for each request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import attrs

P = ParamSpec("P")
T = TypeVar("T")

named = tuple.__new__
"""`named(Kind, (value, ...))` makes a named tuple of all fields, without its class's call of a Python function."""


def maker(kind: Callable[P, T]) -> Callable[P, T]:
    """A function that makes what the frozen attrs class `kind` makes, from the same arguments.

    To call the class costs a dict of the named arguments, and a call of `object.__setattr__` for each field, since
    the class refuses plain assignment. The function assigns the fields of an instance of a subclass that does not
    refuse, and then gives the instance its class: nobody else has seen it before.

    Raises:
      TypeError: `kind` is no attrs class, or does more with its arguments than keep them (converters, validators,
        `__attrs_post_init__`, fields that are no arguments or depend on others).
    """
    assert isinstance(kind, type)
    arguments: list[str] = []
    named: list[str] = []
    body: list[str] = []
    names: dict[str, Any] = {"NEW": object.__new__, "KIND": kind, "UNSET": object(), "OPEN": _open(kind)}
    for field in attrs.fields(kind):
        is_fresh = isinstance(field.default, attrs.Factory)  # type: ignore[arg-type]  # a class at run time
        if field.converter or field.validator or not field.init or (is_fresh and field.default.takes_self):
            raise TypeError(f"{kind.__name__}.{field.name} is not merely kept: call the class itself")
        argument = value = field.alias
        if is_fresh:
            names[f"new_{argument}"] = field.default.factory
            value = f"new_{argument}() if {argument} is UNSET else {argument}"
            argument += "=UNSET"
        elif field.default is not attrs.NOTHING:
            names[f"default_{argument}"] = field.default
            argument += f"=default_{argument}"
        (named if field.kw_only else arguments).append(argument)
        body.append(f"    self.{field.name} = {value}")
    if named:
        arguments += ["*", *named]
    lines = [
        f"def make({', '.join(arguments)}):",
        "    self = NEW(OPEN)",
        *body,
        "    self.__class__ = KIND",
        "    return self",
    ]
    exec(compile("\n".join(lines), f"<maker of {kind.__name__}>", "exec"), names)
    made: Callable[P, T] = names["make"]
    return made


def evolver(kind: Callable[..., T]) -> Callable[..., T]:
    """A function that makes what `attrs.evolve` makes of an instance of the frozen attrs class `kind`.

    `attrs.evolve` looks the fields of the class up at each call, and calls the class. Not for subclasses of `kind`.
    The new instance shares the values of all fields that are not named, also those that a factory has made.

    Raises:
      TypeError: `maker` refuses `kind`.
    """
    maker(kind)
    assert isinstance(kind, type)
    arguments = [field.alias for field in attrs.fields(kind)]
    names: dict[str, Any] = {"NEW": object.__new__, "KIND": kind, "UNSET": object(), "OPEN": _open(kind)}
    lines = [
        f"def evolve(base, /, *, {', '.join(f'{each}=UNSET' for each in arguments)}):",
        "    self = NEW(OPEN)",
        *(
            f"    self.{field.name} = base.{field.name} if {field.alias} is UNSET else {field.alias}"
            for field in attrs.fields(kind)
        ),
        "    self.__class__ = KIND",
        "    return self",
    ]
    exec(compile("\n".join(lines), f"<evolver of {kind.__name__}>", "exec"), names)
    evolve: Callable[..., T] = names["evolve"]
    return evolve


def _open(kind: type) -> type:
    """A subclass of the same layout that lets its fields be assigned."""
    if hasattr(kind, "__attrs_post_init__"):
        raise TypeError(f"{kind.__name__} does more than keep its arguments: call the class itself")
    # Without a `__delattr__` of its own, the interpreter would look up and call `__setattr__` for each assignment.
    methods = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    return type(kind.__name__, (kind,), {"__slots__": (), "__module__": kind.__module__, **methods})
