"""Errors in what a replica tells the parts around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import structs

from insync.replication.core.partition.replica import Replica


@contextmanager
def telling(replica: Replica, part: str, change: Callable[[Any], Any | None]) -> Iterator[None]:
    """Within the block the replica tells that part of `Parts` something else; None: nothing."""
    right = replica.parts
    call = getattr(right, part)

    def told(*arguments: Any) -> None:
        said = change(arguments[-1])
        if said is not None:
            call(*arguments[:-1], said)

    replica.parts = structs.replace(right, **{part: told})
    try:
        yield
    finally:
        replica.parts = right
