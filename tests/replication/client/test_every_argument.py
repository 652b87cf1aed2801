"""Every argument of every method of every client: what is of the wrong shape is refused, and nothing is sent.

A parameter that stands in no list here fails: say what is wrong for it.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Iterator
from typing import Any

import pytest
import trio

import insync.replication.asyncio as bridge
from insync.replication.client import (
    Admin,
    BatchProducer,
    BlockingAdmin,
    BlockingConsumer,
    BlockingProducer,
    ClosedError,
    Consumer,
    GroupMetadata,
    InvalidArgumentError,
    Producer,
    TransactionalBatchProducer,
)
from insync.replication.core.messages import Kind

from .fake_cluster import FakeCluster, fake_cluster
from .patience import PATIENCE
from .threaded_cluster import threaded_cluster

SOMETHING = object()
TEXT = [None, 5, b"t", ["t"], {"t": 1}, SOMETHING]
NUMBER = [None, "1", 1.5, [1], True, 2**70, SOMETHING]
PAIR = [None, 5, "t0", b"t0", "t", ("t",), ("t", "0"), ("t", 0, 1), ("t", True), ("t", -1), (5, 0), SOMETHING]
PAIRS = [None, 5, "t", ["t"], [5], ("t", 0), [("t", "0")], [("t", 2**31)], [None], {"t": 1}, SOMETHING]
BY_PAIR = [None, 5, "t", ["t"], [("t", 0)], {"t": 1}, {("t", "0"): 1}, SOMETHING]
OFFSETS = [{("t", 0): each} for each in (None, "5", 1.5, -5, 2**63, [5], SOMETHING)]
NAMES = [None, 5, "t", b"t", [5], [None], ["\ud800"], SOMETHING]
FLAG = [None, "no", 1, SOMETHING]
MILLISECONDS = [None, "1", math.nan, -1, [1], True, SOMETHING]
FUNCTION = [None, 3, "f"]
WRONG: dict[str, list[Any]] = {
    **dict.fromkeys(["topic", "topic_id", "name", "group", "prefix", "entity_type"], TEXT),
    **dict.fromkeys(["replication_factor", "producer_id", "count", "node"], NUMBER),
    **dict.fromkeys(["names", "topics", "reset", "remove"], NAMES),
    **dict.fromkeys(["unclean", "if_absent", "exist_ok", "check_room"], FLAG),
    **{name: [*NUMBER, -1] for name in ("offset", "start_offset", "longer_than_ms")},
    "offsets": BY_PAIR + OFFSETS,
    "timestamps": BY_PAIR + OFFSETS,
    "replicas": BY_PAIR + [{("t", 0): each} for each in (3, "12", ["1"], [1.5], [None])],
    "nodes": [None, 5, "12", ["1"], [None], [1.5]],
    "config": [5, "t", ["t"], {5: 1}, {"a": None}, {"a": [1]}, {"a": 2**70}, {"a": "\ud800"}, SOMETHING],
    "limits": [5, "t", ["t"], {5: 1}, {"a": "x"}, {"a": None}, {"a": 1.5}, SOMETHING],
    "timeout_ms": MILLISECONDS,
    "timeout": ["1", math.nan, [1], SOMETHING],
    "value": [5, "text", ["x"], SOMETHING],
    "key": [5, "text", ["x"], SOMETHING],
    "values": [None, 5, "t", b"t", {"t": 1}, {b"t"}, [5], ["t"], iter([b"x"]), SOMETHING],
    "keys": [5, "t", b"t", {0: b"k"}, [5], ["t"], [b"k", b"k"], SOMETHING],
    "headers": [5, "ab", [5], [("a", "b")], {"a": b"b"}, iter([("a", b"b")])],
    "timestamp_ms": [*NUMBER, -5],
    "on_delivery": FUNCTION,
    "on_commit": FUNCTION,
    "listener": [5, "f", {}, SOMETHING],
    "pattern": [5, "(", b"t", ["t"], SOMETHING],
    "leave_group": FLAG,
    "since": [5, "t", [1], {1: 2}, SOMETHING],
    **dict.fromkeys(["groups", "states", "types"], NAMES),
    "to": [*TEXT, "sooner"],
    "amount": ["1", 1.5, [1], True, 2**70, SOMETHING],
    "batch": [None, 5, "x", ["x"]],
    "isolation": [None, 5, b"current", "newest"],
    "assignments": [None, 5, "t", [], [1], ["t"], [["t"]], [[1.5]], [[-1]], [[2**31]], {"t": 1}, SOMETHING],
    "validate_only": FLAG,
    "password": [None, 5, b"t", "\ud800", SOMETHING],
    "allow": [5, "admin", ["fly"], [5], SOMETHING],
    "mechanisms": [None, 5, "SCRAM-SHA-256", [], ["PLAIN"], [5], SOMETHING],
    "iterations": [*NUMBER, 4095, 16385],
    "who": [None, 5, "t", (1,), (1, "2"), (1, -1), (True, 1), [1, 2], SOMETHING],
    "committed": FLAG,
    "group_metadata": [None, 5, "g", {"group_id": "g"}, SOMETHING],
}
RIGHT: dict[str, Any] = {
    **dict.fromkeys(["topic", "name", "group", "prefix"], "t"),
    "entity_type": "user",
    "count": 1,
    "node": 0,
    "value": b"v",
    "values": [b"v"],
    "batch": b"b",
    "offset": 0,
    "start_offset": 0,
    "producer_id": 7,
    "offsets": {("t", 0): 0},
    "timestamps": {("t", 0): 0},
    "replicas": {("t", 0): [0]},
    "nodes": [0],
    "groups": ["g"],
    "to": "earliest",
    "group_metadata": GroupMetadata(group_id="g"),
    "password": "x",
    "who": (1, 2),
    "committed": True,
}


def wrong_for(method: str, parameter: inspect.Parameter) -> list[Any]:
    if parameter.name == "partitions":
        wrong = NUMBER if method in ("create_topic", "create_partitions") else PAIRS
    elif parameter.name == "partition":
        # A number that is above all that there are is whole, and is told of as unknown.
        wrong = [each for each in NUMBER if each != 2**70] if "send" in method else PAIR
    elif (method, parameter.name) == ("send_offsets", "offsets"):
        # As `positions` has them: of some partitions it does not know yet.
        wrong = [each for each in WRONG["offsets"] if each != {("t", 0): None}]
    else:
        wrong = WRONG[parameter.name]
    return [each for each in wrong if each is not None or parameter.default is not None]


def right_for(method: str, name: str) -> Any:
    if name == "partitions":
        return 1 if method in ("create_topic", "create_partitions") else [("t", 0)]
    if name == "partition":
        return 0 if "send" in method else ("t", 0)
    return RIGHT[name]


def methods(*classes: type) -> list[Any]:
    return [
        pytest.param(cls, name, id=f"{cls.__name__}.{name}")
        for cls in classes
        for name, function in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and len(inspect.signature(function).parameters) > 1
    ]


def calls(cls: type, method: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All calls that have one argument wrong, with its name."""
    parameters = list(inspect.signature(getattr(cls, method)).parameters.values())[1:]
    for one in parameters:
        others = [each.name for each in parameters if each.default is each.empty and each is not one]
        if one.name == "keys":
            others = ["topic", "values"]
        for wrong in wrong_for(method, one):
            yield one.name, {name: right_for(method, name) for name in others} | {one.name: wrong}


def asked(cluster: FakeCluster) -> int:
    """Requests but those for metadata, which every client has from time to time."""
    return sum(node.seen.total() - node.seen[Kind.METADATA] for node in cluster.nodes)


@pytest.mark.parametrize(
    ("cls", "method"), methods(Admin, Consumer, Producer, BatchProducer, TransactionalBatchProducer)
)
async def test_on_trio(cls: Any, method: str) -> None:
    options = {"transactional_id": "w"} if cls is TransactionalBatchProducer else {}
    async with fake_cluster(t=1) as cluster, cls(cluster.urls, **options) as client:
        if cls is Producer:
            await client.prepare("t")
        if cls is Consumer:
            client.assign([("t", 0)])
            client.pause()
            client.seek(("t", 0), 0)
        before = asked(cluster)
        tried = 0
        for name, arguments in calls(cls, method):
            with pytest.raises(InvalidArgumentError) as caught:
                made = getattr(client, method)(**arguments)
                if inspect.isawaitable(made):
                    await made
                pytest.fail(f"{arguments} was taken")
            said = str(caught.value)
            assert len(said) < 250 and (name.rstrip("s") in said or "partition" in said)
            tried += 1
        assert tried and asked(cluster) == before
        # The tasks of the client have not noticed.
        await client._cluster.refresh()


@pytest.mark.parametrize(("cls", "method"), methods(Admin, Consumer, Producer, BatchProducer))
async def test_after_the_end_every_call_says_so(cls: Any, method: str) -> None:
    if method == "close":
        return  # again: nothing is wrong with that
    async with fake_cluster(t=1) as cluster:
        async with cls(cluster.urls) as client:
            pass
        parameters = list(inspect.signature(getattr(cls, method)).parameters.values())[1:]
        needed = [each.name for each in parameters if each.default is each.empty]
        with trio.fail_after(PATIENCE), pytest.raises(ClosedError):
            made = getattr(client, method)(**{name: right_for(method, name) for name in needed})
            if inspect.isawaitable(made):
                await made


@pytest.mark.parametrize(("cls", "method"), methods(BlockingAdmin, BlockingConsumer, BlockingProducer))
def test_from_threads(cls: Any, method: str) -> None:
    with threaded_cluster() as cluster, cls(cluster.urls) as client:
        if cls is BlockingProducer:
            client.prepare("t")
        tried = 0
        for _, arguments in calls(cls, method):
            with pytest.raises(InvalidArgumentError):
                made = getattr(client, method)(**arguments)
                if cls is BlockingProducer and method != "close":
                    made.result(10)
                pytest.fail(f"{arguments} was taken")
            tried += 1
        assert tried
        assert client._portal.call(client._held._cluster.refresh, 10) is None
        assert sum(node.seen[Kind.PRODUCE] for node in cluster.cluster.nodes) == 0


@pytest.mark.parametrize(("cls", "method"), methods(bridge.Admin, bridge.Consumer, bridge.Producer))
def test_on_asyncio(cls: Any, method: str) -> None:
    async def main(urls: list[str]) -> int:
        tried = 0
        async with cls(urls) as client:
            if cls is bridge.Producer:
                await client.prepare("t")
            for _, arguments in calls(cls, method):
                with pytest.raises(InvalidArgumentError):
                    made = getattr(client, method)(**arguments)
                    if inspect.isawaitable(made):
                        made = await made
                    if hasattr(made, "wait"):
                        await made.wait()
                    pytest.fail(f"{arguments} was taken")
                tried += 1
            await client._call(client._held._cluster.refresh)
        return tried

    with threaded_cluster() as cluster:
        assert asyncio.run(main(cluster.urls))
        assert sum(node.seen[Kind.PRODUCE] for node in cluster.cluster.nodes) == 0
