"""The messages between nodes, tasks and the keeper: JSON, one struct a request."""

from __future__ import annotations

import enum
from typing import TypeVar

import msgspec


class Kind(enum.IntEnum):
    """Requests that the directory answers."""

    REPORT = 1
    """A node serves, and where; for as long as its connection lasts."""
    ORDERS = 2
    """Answered when the node is to end."""
    LOOK = 3
    """Answered with the nodes that there are."""


class Report(msgspec.Struct, frozen=True):
    """A node that serves in a task. `urls` are its endpoints."""

    slot: int
    executor: str
    pid: int
    urls: tuple[str, ...]


class Order(msgspec.Struct, frozen=True):
    """End. keep: leave the files, for whoever takes the slot next or because the user wants them."""

    keep: bool


class Found(msgspec.Struct, frozen=True):
    """The endpoints of each node that serves."""

    nodes: dict[int, tuple[str, ...]]


class Started(msgspec.Struct, frozen=True, tag="started"):
    """From the keeper to the driver: it serves, at these URLs."""

    directory: str
    store: str


class Up(msgspec.Struct, frozen=True, tag="up"):
    """From the keeper to the driver: a node has come."""

    node: Report


class Down(msgspec.Struct, frozen=True, tag="down"):
    """From the keeper to the driver: a node has gone."""

    node: Report


Told = Started | Up | Down


class Config(msgspec.Struct, frozen=True):
    """From the driver to the keeper, first of all.

    directory, store: where to listen. folder: where the metadata stand; removed at the end unless `keep`.
    logs: the run's folders on this host, where nodes may leave logs that nobody else can remove.
    """

    secret: str
    directory: str
    store: str
    folder: str
    logs: tuple[str, ...]
    keep: bool


class Stop(msgspec.Struct, frozen=True):
    """From the driver to the keeper: this node is to end; `executor` None: wherever it is."""

    slot: int
    executor: str | None
    keep: bool


T = TypeVar("T")

encode = msgspec.json.encode


def decode(data: bytes, kind: type[T]) -> T:
    """Raises ValueError (msgspec's DecodeError or ValidationError) for anything else."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError as error:
        raise ValueError(f"malformed {kind.__name__}: {error}") from error
