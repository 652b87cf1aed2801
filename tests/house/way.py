"""The way of one record, from `Producer.send` to its acknowledgement, and the dispatches by type on it.

The cluster: three nodes and a producer in one event loop of this process. The nodes have their default listeners
(shared memory within one machine) and a metadata store in memory. The topic has one partition with three replicas,
and acks=all. After `WARM` records, `RECORDS` records are sent alone, each when all tasks wait.

Calls: of Python functions of the product (`scope.PRODUCT`), from the call of `send` to the return of the delivery's
`wait`, in the event loop's thread. They are calls of client, leader and followers. Lambdas, properties and (in
Python 3.11) comprehensions are functions. A coroutine that goes on is called again. Functions in C, of libraries,
and those that attrs and `exec` make do not count. Calls in other threads, which write the logs, have their own row.

Timers add calls to some records, and trio runs its tasks in random order. The rows are of the record with the
fewest calls, which about half of the records have. Two runs differ by less than 1 %.

Dispatches: choices of a handler by the type or kind of an object. `ast` finds `table[type(x)]`,
`table.get(type(x))`, the same with `x.__class__`, `x.kind` or a name that the same file gives one of them, and
`match` with a case for a class. Calls of `functools.singledispatch` functions are seen as they run. One counts each
time that its line runs, from the leader's step of the broker (`BEGINS`) to the handover of the append to the log's
thread (`ENDS`). Chains of `isinstance` are not found.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from insync.replication import Admin, Node, NodeSettings, Producer

from .scope import PRODUCT, ROOT, Row, Tree, most

NODES = 3
WARM = 100
RECORDS = 40
SECONDS = 120.0
QUIET = 0.002
"""Seconds in which no task ran: the followers' fetches wait at the leader again."""
BEGINS, ENDS = "Broker.step", "LogWriter.submit"
"""Functions, by qualified name. The last call of the first before the first call of the second is the leader's."""

Sites = frozenset[tuple[str, int]]
"""Lines with a dispatch: file and number."""
_CHOICES = (ast.Subscript, ast.Call, ast.Match)
_GENERIC = "singledispatch.<locals>.dispatch"
"""The function of the standard library that chooses for `functools.singledispatch` and `singledispatchmethod`."""


@attrs.frozen
class Way:
    """Calls of one record by function, on the event loop and in other threads; and its events in their order:
    dispatches, `BEGINS` and `ENDS`.
    """

    calls: Counter[CodeType]
    beside: Counter[CodeType]
    events: tuple[str, ...]

    def dispatches(self) -> tuple[str, ...]:
        """Of the leader's append."""
        before = self.events[: self.events.index(ENDS)] if ENDS in self.events else ()
        if BEGINS not in before:
            raise RuntimeError(
                f"no record passed {BEGINS} and then {ENDS} of {ROOT}: install this tree, or give the functions' "
                "names in tests/house/way.py"
            )
        return before[len(before) - before[::-1].index(BEGINS) :]


def dispatch_lines(source: str) -> set[int]:
    """Numbers of the lines that choose by type or kind."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and _is_type(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return {node.lineno for node in nodes if isinstance(node, _CHOICES) and _is_dispatch(node, names)}


def _is_dispatch(node: ast.Subscript | ast.Call | ast.Match, names: set[str]) -> bool:
    match node:
        case ast.Subscript():
            return isinstance(node.ctx, ast.Load) and _is_type(node.slice, names)
        case ast.Call(func=ast.Attribute(attr="get"), args=[key, *_]):
            return _is_type(key, names)
        case ast.Match():
            return any(
                isinstance(part, ast.MatchClass) for case in node.cases for part in ast.walk(case.pattern)
            )
    return False


def _is_type(key: ast.AST, names: set[str]) -> bool:
    match key:
        case ast.Call(func=ast.Name(id="type"), args=[_]) | ast.Attribute(attr="kind" | "__class__"):
            return True
        case ast.Name():
            return key.id in names
    return False


def sites(tree: Tree) -> Sites:
    """All dispatches in the product."""
    return frozenset(
        (name, line) for name in tree.under(*PRODUCT) for line in dispatch_lines(tree.text(name))
    )


@cache
def product_file(name: str) -> str:
    """The path in the tree of a product file that code was compiled from; empty for other files."""
    path = Path(name).resolve()
    inside = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path()
    return str(inside) if inside.parts and inside.parts[0] in PRODUCT else ""


class Trace:
    """Notes calls while it is entered: in its own thread, and in those that begin after it is made."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._with_sites = {name for name, _ in sites}
        self._loop = threading.get_ident()
        self._is_on = False
        threading.setprofile(self._called)

    def __enter__(self) -> None:
        self._calls: list[CodeType] = []
        self._beside: list[CodeType] = []
        self._events: list[str] = []
        self._former = sys.gettrace()
        self._is_on = True
        sys.setprofile(self._called)
        sys.settrace(self._entered)

    def __exit__(self, *failure: object) -> None:
        sys.settrace(self._former)
        sys.setprofile(None)
        self._is_on = False

    def way(self) -> Way:
        """Taken by the last record."""
        return Way(Counter(self._calls), Counter(self._beside), tuple(self._events))

    def close(self) -> None:
        """Threads that begin from now on are not heard."""
        threading.setprofile(None)

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        if self._is_on and event == "call" and product_file(frame.f_code.co_filename):
            on_loop = threading.get_ident() == self._loop
            (self._calls if on_loop else self._beside).append(frame.f_code)

    def _entered(self, frame: FrameType, event: str, argument: Any) -> Any:
        name, file = frame.f_code.co_qualname, product_file(frame.f_code.co_filename)
        if name == _GENERIC or (file and name in (BEGINS, ENDS)):
            self._events.append(name)
        return self._ran if file in self._with_sites else None

    def _ran(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = product_file(frame.f_code.co_filename)
        if event == "line" and (file, frame.f_lineno) in self._sites:
            self._events.append(f"{file}:{frame.f_lineno} {frame.f_code.co_qualname}")
        return self._ran


async def _send_alone(folder: Path, trace: Trace) -> list[Way]:
    async with AsyncExitStack() as stack:
        servers: list[str] = []
        for node_id in range(1, NODES + 1):
            settings = NodeSettings(
                node_id=node_id,
                data_dir=folder / f"node-{node_id}",
                store=f"memory://{folder.name}",
                # A machine that stands still for seconds costs no node its place.
                session_timeout_ms=60_000,
                leader_silence_timeout_ms=0,
            )
            servers += (await stack.enter_async_context(Node(settings))).endpoints
        admin = await stack.enter_async_context(Admin(servers))
        await admin.create_topic("house", partitions=1, replication_factor=NODES)
        producer = await stack.enter_async_context(Producer(servers, linger_ms=0))
        for _ in range(WARM):
            await producer.send_and_wait("house", b"x" * 100)
        ways = []
        for _ in range(RECORDS):
            await wait_all_tasks_blocked(QUIET)
            with trace:
                await (await producer.send("house", b"x" * 100)).wait()
            ways.append(trace.way())
        return ways


async def _in_time(folder: Path, trace: Trace) -> list[Way]:
    with trio.fail_after(SECONDS):
        return await _send_alone(folder, trace)


def shortest_way(tree: Tree) -> Way:
    """The way of the record with the fewest calls."""
    trace = Trace(sites(tree))
    with closing(trace), tempfile.TemporaryDirectory(prefix="insync-house-") as name:
        ways = trio.run(_in_time, Path(name), trace)
    return min(ways, key=lambda way: (way.calls.total(), way.beside.total()))


def rows(tree: Tree) -> Iterator[Row]:
    """Files, functions and calls of a record; dispatches of its append."""
    way = shortest_way(tree)
    by_file: Counter[str] = Counter()
    for code, count in way.calls.items():
        by_file[product_file(code.co_filename)] += count
    yield Row("files of a record", len(by_file), "files", most(by_file))
    functions, beside = _named(way.calls), _named(way.beside)
    yield Row("functions of a record", len(functions), "functions", most(functions))
    yield Row("calls of a record", functions.total(), "calls on the event loop", most(functions))
    yield Row("calls beside a record", beside.total(), "calls in other threads", most(beside))
    dispatches = way.dispatches()
    yield Row("dispatches of an append", len(dispatches), "choices by type or kind", dispatches)


def _named(calls: Counter[CodeType]) -> Counter[str]:
    found: Counter[str] = Counter()
    for code, count in calls.items():
        found[f"{product_file(code.co_filename)}:{code.co_firstlineno} {code.co_qualname}"] += count
    return found
