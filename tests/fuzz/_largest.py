"""`python -m tests.fuzz._largest [API...]`: how long the largest requests within the limits hold a node's loop.

For each API of Kafka's, version and array in it: a request that has as many elements there as may be, all alike or
all different. For each kind of the native protocol and list in it as well. The table has the longest
of the turns that the loop made of such a request, in milliseconds of processor time, and the calls that it made in
that turn: these do not depend on the machine, and the test counts them.
"""

from __future__ import annotations

import argparse
import logging
import queue
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs
import msgspec
from msgspec import structs

from insync.plugins.kafka.core.connection import MOST_ELSE
from insync.plugins.kafka.handlers import OFFERED
from insync.plugins.kafka.protocol import (
    MAX_ELEMENTS,
    MAX_PRODUCED,
    MalformedError,
    Struct,
    decode,
    encode,
    message_of,
)
from insync.plugins.kafka.protocol.apis import Api
from insync.plugins.kafka.protocol.tables import Field
from insync.plugins.kafka.protocol.tables import Struct as Layout
from insync.replication import wire
from insync.replication.node.process._collector import collect_seldom
from insync.replication.node.requests._limits import MOST_BYTES, MOST_ELEMENTS, OF_NODES
from insync.transport import Response
from insync.transport.frames import Limits

from ._hosted_node import TOPIC, HostedNode

MODES = ("same", "differ")
_ENOUGH, _PATIENCE = 60.0, 5.0
"""Seconds in which every request is answered, or its connection closed; and for one that may wait for records."""


@attrs.define
class Turn:
    """The longest of a request's: by its processor time, in seconds, or by its calls."""

    seconds: float = 0.0
    calls: int = 0


class _Steps:
    """A queue of the loop's turns, each of which is measured. is_counting: whether calls are counted, too."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.longest = Turn()
        self.is_counting = False
        self.put = self._queue.put

    def get(self, timeout: float) -> Callable[[], None]:
        step = self._queue.get(timeout=timeout)

        def measured() -> None:
            calls = 0

            def count(frame: FrameType, event: str, what: object) -> None:
                nonlocal calls
                calls += event[-4:] == "call"

            if self.is_counting:
                sys.setprofile(count)
            began = time.thread_time()
            try:
                step()
            finally:
                took = time.thread_time() - began
                if self.is_counting:
                    sys.setprofile(None)
            self.longest.seconds = max(self.longest.seconds, took)
            self.longest.calls = max(self.longest.calls, calls)

        return measured


class MeasuredNode(HostedNode):
    """A node of which each turn is measured."""

    def __init__(self, *, counts: bool = False) -> None:
        super().__init__("kafka://127.0.0.1:0?auto_create_topics=false")
        self.steps = _Steps()
        self.steps.is_counting = counts
        self._steps = self.steps  # type: ignore[assignment]

    def ask_natively(self, kind: int, body: bytes) -> tuple[Turn, str]:
        """The longest turn of a request of the native protocol, and what came of it."""
        self.turn(lambda: False, 0.02)
        self.steps.longest = Turn()
        outcome = self.ask(kind, body, [], _PATIENCE)
        self.turn(lambda: False, 0.05)
        if isinstance(outcome, Response):
            with outcome:
                return self.steps.longest, f"answer {len(outcome.body) >> 10} KiB"
        return self.steps.longest, str(outcome)

    def send(self, frame: bytes) -> tuple[Turn, int]:
        """The longest turn of a request of Kafka's, and the bytes of its answer; 0 if the node hangs up."""
        host, _, port = self.endpoints[-1].removeprefix("kafka://").rpartition("?")[0].rpartition(":")
        if not host:
            host, _, port = self.endpoints[-1].removeprefix("kafka://").rpartition(":")
        with socket.create_connection((host, int(port)), 10) as client:
            client.setblocking(False)
            view, found, is_over = memoryview(frame), bytearray(), False

            def came() -> bool:
                nonlocal view, is_over
                try:
                    if view:
                        view = view[client.send(view) :]
                    while piece := client.recv(1 << 20):
                        found.extend(piece)
                    is_over = True
                except BlockingIOError:
                    pass
                except OSError:
                    is_over = True
                return is_over or (len(found) >= 4 and len(found) >= 4 + struct.unpack_from(">i", found)[0])

            self.turn(lambda: False, 0.02)
            self.steps.longest = Turn()
            end = time.monotonic() + _ENOUGH
            while not came() and time.monotonic() < end:
                self.turn(came, 0.01)
            if not came():
                raise TimeoutError(f"no answer within {_ENOUGH:g} s")
        self.turn(lambda: False, 0.05)
        return self.steps.longest, len(found)


def framed(api: int, version: int, request: Struct) -> bytes:
    head = struct.pack(">hhih", api, version, 1, 4) + b"fuzz" + b"\0" * OFFERED.is_flexible(api, version)
    body = b"".join(encode(request, version))
    return struct.pack(">i", len(head) + len(body)) + head + body


def paths(layout: Layout, version: int, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every array of a message, by the names that lead to it."""
    for field in layout.at(version):
        if field.is_array:
            yield (*before, field.name)
        if field.struct is not None:
            yield from paths(field.struct, version, (*before, field.name))


def largest(api: int, version: int, path: tuple[str, ...], mode: str) -> bytes:
    """The frame of the request that has as many elements in one array as the decoder takes."""
    kind = message_of(api, is_request=True)
    assert kind is not None
    most = MAX_PRODUCED if api == Api.PRODUCE else MAX_ELEMENTS
    low, high = 0, 8 * most + 1

    def made(count: int) -> bytes:
        return framed(api, version, _filled(kind, kind, kind.TABLE.struct, version, path, count, mode))

    # Elements may have elements of their own: how many there may be is found out by trying.
    while high - low > max(1, low // 200):
        middle = (low + high) // 2
        frame = made(middle)
        start = 14 + OFFERED.is_flexible(api, version)
        try:
            if len(frame) > MOST_ELSE:
                raise MalformedError("more than a frame may have")
            decode(kind, version, frame, 4 + start, elements=most)
        except MalformedError:
            high = middle
        else:
            low = middle
    return made(low)


def _filled(
    top: type[Struct],
    made: type[Struct],
    layout: Layout,
    version: int,
    path: tuple[str, ...],
    count: int,
    mode: str,
) -> Struct:
    given: dict[str, Any] = {}
    for field in layout.at(version):
        if not path or field.name != path[0]:
            given[field.name] = _plain(top, field, version, 0, "same")
            continue
        many = count if len(path) == 1 else 1
        if len(path) > 1 and field.struct is not None:
            part = getattr(top, field.struct.name)
            one = _filled(top, part, field.struct, version, path[1:], count, mode)
            given[field.name] = [one] if field.is_array else one
        else:
            given[field.name] = [_element(top, field, version, index, mode) for index in range(many)]
    return made(**{name: value for name, value in given.items() if value is not _LEFT_OUT})


_LEFT_OUT = object()


def _plain(top: type[Struct], field: Field, version: int, index: int, mode: str) -> Any:
    if field.is_array:
        return []
    if field.struct is not None:
        return _LEFT_OUT if version in field.nullable else _element(top, field, version, index, mode)
    return _value(field, index, mode)


def _element(top: type[Struct], field: Field, version: int, index: int, mode: str) -> Any:
    """One that says something: an array within it has an element."""
    if field.struct is None:
        return _value(field, index, mode)
    given = {}
    for each in field.struct.at(version):
        if each.is_array:
            given[each.name] = [_element(top, each, version, index, "same")]
        else:
            given[each.name] = _plain(top, each, version, index, mode)
    return getattr(top, field.struct.name)(
        **{name: value for name, value in given.items() if value is not _LEFT_OUT}
    )


def _value(field: Field, index: int, mode: str) -> Any:
    name, kind = field.name, field.type
    differs = mode == "differ"
    if kind == "string":
        return f"n{index}" if differs else TOPIC
    if kind == "uuid":
        return (index + 1).to_bytes(16, "big") if differs else b"\1" * 16
    if kind in ("bytes", "records"):
        return b""
    if kind == "bool":
        return False
    if kind == "float64":
        return 1.0
    if "partition" in name or "index" in name:
        return index if differs else 0
    if name.endswith("timeout_ms"):
        return 1000
    if name == "replica_id":
        return -1
    if name == "resource_type":
        return 2  # a topic
    return index % 100 if differs and kind in ("int8", "int16", "int32") else 1


def native_lists() -> Iterator[tuple[int, str, Any]]:
    """Kind, field and type of the elements of every list that a request has."""
    for kind, made in wire.REQUEST_TYPES.items():
        for name, hint in get_type_hints(made).items():
            for each in get_args(hint) or ():
                given = hint if get_origin(hint) is list else each
                if get_origin(given) is list:
                    yield kind, name, get_args(given)[0]
                    break


def largest_native(kind: int, name: str, element: Any, mode: str) -> bytes:
    """The body with as many elements in a list as are served: the smallest, or all different."""
    made = wire.REQUEST_TYPES[kind]
    base = {
        each.name: _native(get_type_hints(made)[each.name], 0, mode)
        for each in structs.fields(made)
        if each.required
    }
    most = 1 << 30 if kind in OF_NODES else MOST_ELEMENTS
    size, elements = MOST_BYTES.get(kind, Limits().max_body_bytes) - 1024, []
    one = _native(element, 0, mode)
    while len(elements) < most:
        each = _native(element, len(elements), mode) if mode == "differ" else one
        size -= len(msgspec.msgpack.encode(each))
        if size < 0:
            break
        elements.append(each)
    base[name] = elements
    return msgspec.msgpack.encode(base)


def _native(kind: Any, index: int, mode: str) -> Any:
    differs = mode == "differ"
    if get_origin(kind) in (Union, UnionType):
        return None
    if get_origin(kind) is list:
        return []
    if issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return {
            each.name: _native(hints[each.name], index, mode)
            for each in structs.fields(kind)
            if each.required
        }
    empty: dict[Any, Any] = {str: f"n{index}" if differs else "", bytes: b"", bool: False, float: 0.0}
    return empty.get(kind, index if differs else 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz._largest", description=__doc__)
    parser.add_argument("apis", nargs="*", help="names, such as METADATA; none: all")
    parser.add_argument("--calls", action="store_true", help="count calls, which makes every turn slower")
    parser.add_argument("--all-versions", action="store_true", help="and not only the first and the last")
    parser.add_argument("--over", type=float, default=0.0, help="milliseconds; shorter turns are left out")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    collect_seldom()  # as a node does that has a process of its own
    with MeasuredNode(counts=args.calls) as node:
        for number, name, element in native_lists():
            called = f"{wire.REQUEST_TYPES[number].__name__}.{name}"
            if args.apis and called.partition(".")[0] not in args.apis:
                continue
            for mode in MODES:
                body = largest_native(number, name, element, mode)
                turn, said = node.ask_natively(number, body)
                if 1000 * turn.seconds >= args.over:
                    print(
                        f"{1000 * turn.seconds:8.1f} ms {turn.calls:9} calls  {called} {mode}: "
                        f"{len(body) >> 10} KiB, {said[:100]}",
                        flush=True,
                    )
        for api in sorted(OFFERED.ranges):
            if args.apis and Api(api).name not in args.apis:
                continue
            kind = message_of(api, is_request=True)
            assert kind is not None
            least, most = OFFERED.ranges[api]
            for version in range(least, most + 1) if args.all_versions else sorted({least, most}):
                for path in paths(kind.TABLE.struct, version):
                    for mode in MODES:
                        frame = largest(api, version, path, mode)
                        turn, size = node.send(frame)
                        if 1000 * turn.seconds >= args.over:
                            print(
                                f"{1000 * turn.seconds:8.1f} ms {turn.calls:9} calls  "
                                f"{Api(api).name} v{version} {'.'.join(path)} {mode}: "
                                f"{len(frame) >> 10} KiB, answer {size >> 10} KiB",
                                flush=True,
                            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
