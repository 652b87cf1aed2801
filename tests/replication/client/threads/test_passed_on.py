"""What callers from threads and asyncio give, arrives at the trio client's parameter of the same name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import insync.replication.asyncio as bridge
from insync.replication.client import Admin, BlockingAdmin

OWN = {"timeout"}
"""Of the caller, who waits no longer; the trio client has no such parameter."""


class Recorder:
    """Stands for an `Admin`: notes with what each of its methods is called."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def __getattr__(self, method: str) -> Callable[..., Any]:
        async def called(*arguments: Any, **named: Any) -> None:
            bound = inspect.signature(getattr(Admin, method)).bind(self, *arguments, **named)
            self.given = dict(bound.arguments)
            del self.given["self"]

        return called


def methods(cls: type) -> list[str]:
    return [
        name
        for name in dir(cls)
        if not name.startswith("_")
        and name not in ("aclose", "close")
        and callable(getattr(Admin, name, None))
    ]


def all_given(cls: type, method: str) -> dict[str, Any]:
    return {name: [name] for name in inspect.signature(getattr(cls, method)).parameters if name != "self"}


@pytest.mark.parametrize("method", methods(BlockingAdmin))
def test_from_threads(method: str) -> None:
    admin = object.__new__(BlockingAdmin)
    recorder = Recorder()
    admin._held = recorder
    admin._portal = SimpleNamespace(call=lambda function, *_: drive(function()))  # type: ignore[assignment]
    given = all_given(BlockingAdmin, method) | {"timeout": 1.0}
    accepted = inspect.signature(getattr(BlockingAdmin, method)).parameters
    getattr(admin, method)(**{name: value for name, value in given.items() if name in accepted})
    assert recorder.given == {name: value for name, value in given.items() if name not in OWN}


@pytest.mark.parametrize("method", methods(bridge.Admin))
def test_on_asyncio(method: str) -> None:
    admin = object.__new__(bridge.Admin)
    recorder = Recorder()

    async def call(function: Callable[[], Any]) -> Any:
        return await function()

    ready = SimpleNamespace(result=lambda *_: recorder)
    admin._opened = SimpleNamespace(ready=ready)  # type: ignore[assignment]
    admin._call = call  # type: ignore[method-assign]
    given = all_given(bridge.Admin, method)
    drive(getattr(admin, method)(**given))
    assert recorder.given == {name: value for name, value in given.items() if name not in OWN}


def drive(coroutine: Any) -> Any:
    """Run what never waits."""
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    return ended.value.value
