"""What users see is described: every class, every method, every setting."""

from __future__ import annotations

import inspect

import attrs
import pytest

import insync.replication.asyncio as bridge
from insync.replication import BlockingNode, Node, client
from insync.replication.client import ClientSettings, ConsumerSettings, ProducerSettings

CLASSES = [
    *(getattr(client, name) for name in client.__all__ if inspect.isclass(getattr(client, name))),
    *(getattr(bridge, name) for name in bridge.__all__),
    *(Node, BlockingNode),
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_classes_and_their_methods_are_described(cls: type) -> None:
    assert inspect.getdoc(cls)
    for name, member in vars(cls).items():
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        what = member.fget if isinstance(member, property) else member
        # A property that says all with its name and its type needs no words.
        assert inspect.getdoc(what) or isinstance(member, property), name


@pytest.mark.parametrize("cls", [ClientSettings, ProducerSettings, ConsumerSettings])
def test_every_setting_is_described(cls: type) -> None:
    described = inspect.getdoc(cls) or ""
    inherited = {field.name for field in attrs.fields(ClientSettings)} if cls is not ClientSettings else set()
    for field in attrs.fields(cls):
        if field.name not in inherited:
            assert field.name in described, field.name
