from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

def in_front_of(twin: F, /) -> F: ...
def bind(
    *,
    link: type,
    limits: type,
    header: type,
    frame: type,
    empty: type,
    payload: type,
    most: int,
) -> None: ...
