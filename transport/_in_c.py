"""Functions that CPython has in C, too: `csrc/isr_framing.c`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

try:
    from . import _framing
except ImportError:  # setup.py builds it for CPython only
    _framing = None  # type: ignore[assignment]

F = TypeVar("F", bound=Callable[..., Any])


def in_c(twin: F) -> F:
    """Decorates a function that has a twin of its name in C. The C function does the same for plain arguments, and
    calls this one for all others; `__self__` of it is this one.
    """
    return twin if _framing is None else _framing.in_front_of(twin)


__all__ = ["_framing", "in_c"]
