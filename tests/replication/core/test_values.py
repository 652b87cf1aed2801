"""Values of the core are shared by all who get them, so nobody may change one."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import msgspec
import pytest

from insync.replication import core
from insync.replication.core import messages as m


def structs_below(base: type) -> Iterator[type]:
    for kind in base.__subclasses__():
        yield kind
        yield from structs_below(kind)


def test_every_struct_of_the_core_is_frozen() -> None:
    for module in pkgutil.walk_packages(core.__path__, f"{core.__name__}."):
        importlib.import_module(module.name)
    found = {
        kind for kind in structs_below(msgspec.Struct) if kind.__module__.startswith(f"{core.__name__}.")
    }
    assert len(found) > 300
    assert [kind.__qualname__ for kind in found if not kind.__struct_config__.frozen] == []


def test_a_value_refuses_to_be_changed() -> None:
    made = m.FetchResult(topic="t", partition=0, error=0)
    with pytest.raises(AttributeError):
        made.error = 1  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del made.error
    assert made.error == 0
