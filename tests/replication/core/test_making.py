"""Values that are made without their class's `__init__` are what the class makes."""

from __future__ import annotations

import gc
from typing import Any

import attrs
import pytest

from insync.replication.core import messages as m
from insync.replication.core.broker.effects import Ask
from insync.replication.core.broker.events import Answered
from insync.replication.core.making import evolver, maker
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.types import ProducerEntry


@attrs.frozen(kw_only=True)
class Based:
    place: str


@attrs.frozen
class Mixed(Based):
    """Arguments by place and by name, defaults that are shared and that are made, and a name of its own."""

    first: int
    _second: int = 2
    many: list[int] = attrs.Factory(list)
    kinds: dict[str, int] = attrs.field(factory=dict, kw_only=True)


mixed, fetched = maker(Mixed), maker(m.FetchResult)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((1,), {"place": "x"}),
        ((1, 7), {"place": "x"}),
        ((1,), {"second": 7, "many": [3], "place": "", "kinds": {}}),
    ],
)
def test_the_same_arguments_make_the_same_value(arguments: tuple[int, ...], named: dict[str, Any]) -> None:
    made, usual = mixed(*arguments, **named), Mixed(*arguments, **named)
    assert type(made) is Mixed
    assert made == usual and repr(made) == repr(usual)
    assert attrs.evolve(made, first=9) == attrs.evolve(usual, first=9)


@pytest.mark.parametrize(
    "kind",
    [
        *(
            m.FetchPartition,
            m.FetchRequest,
            m.FetchResult,
            m.FetchResponse,
            m.ProduceResult,
            m.ProduceResponse,
        ),
        *(ev.Produce, ev.Fetch, ev.Fetched, ev.Appended),
        *(fx.Append, fx.FetchAnswer, fx.FetchNext, fx.ReplyProduce),
        *(Answered, Ask, ProducerEntry),
    ],
)
def test_every_field_of_what_a_record_makes_is_kept(kind: type[Any]) -> None:
    values = {each.name: f"value of {each.name}" for each in attrs.fields(kind)}
    made, usual = maker(kind)(**values), kind(**values)
    assert {name: getattr(made, name) for name in values} == values
    assert type(made) is kind and made == usual and hash(made) == hash(usual) and repr(made) == repr(usual)
    assert gc.is_tracked(made)


def test_what_is_changed_is_what_attrs_makes_of_it() -> None:
    evolve, base = evolver(Mixed), Mixed(1, 7, [3], place="x", kinds={"a": 1})
    for changes in ({}, {"first": 2}, {"second": 8, "place": "y"}, {"many": [], "kinds": {}}):
        made, usual = evolve(base, **changes), attrs.evolve(base, **changes)
        assert type(made) is Mixed and made is not base
        assert made == usual and repr(made) == repr(usual)
    assert evolve(base).many is base.many
    assert base == Mixed(1, 7, [3], place="x", kinds={"a": 1})
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        evolve(base, first=2).first = 3
    with pytest.raises(TypeError):
        evolve(base, other=1)


def test_a_value_refuses_to_be_changed() -> None:
    made: Any = fetched(topic="t", partition=0, error=0)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        made.error = 1
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        del made.error
    assert made.error == 0


def test_what_is_made_for_each_is_not_shared() -> None:
    one, other = mixed(1, place="x"), mixed(1, place="x")
    one.many.append(5)
    assert other.many == [] and one.kinds is not other.kinds


@pytest.mark.parametrize(
    ("arguments", "named"), [((), {"place": "x"}), ((1,), {}), ((1,), {"place": "x", "other": 1})]
)
def test_arguments_that_are_missing_or_unknown_are_refused(
    arguments: tuple[int, ...], named: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        mixed(*arguments, **named)


@attrs.frozen
class Checked:
    a: int = attrs.field(validator=attrs.validators.instance_of(int))


@attrs.frozen
class Converted:
    a: int = attrs.field(converter=int)


@attrs.frozen
class Counted:
    a: int = attrs.field(init=False, default=1)


@attrs.frozen
class Told:
    a: int

    def __attrs_post_init__(self) -> None:
        raise ValueError(self.a)


@attrs.frozen
class Derived:
    a: int
    b: int = attrs.Factory(lambda self: self.a, takes_self=True)


@pytest.mark.parametrize("kind", [Checked, Converted, Counted, Told, Derived])
def test_a_class_that_does_more_than_keep_its_arguments_is_refused(kind: type) -> None:
    with pytest.raises(TypeError, match=f"{kind.__name__}.*call the class itself"):
        maker(kind)
    with pytest.raises(TypeError, match=f"{kind.__name__}.*call the class itself"):
        evolver(kind)
