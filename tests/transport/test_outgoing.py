"""Headers and payloads on their way out: what C makes of them is what its twins in Python make."""

from __future__ import annotations

import mmap
import struct
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from insync.transport import _framing, ranges
from insync.transport.connections import _outgoing
from insync.transport.frames import encode_header

from .test_framing import twin, without_memory


class Number(IntEnum):
    ONE = 1
    LARGE = 70_000


class Bytes(bytes):
    def __len__(self) -> int:
        return 2


class Index:
    def __index__(self) -> int:
        return 5


class Plus(int):
    def __add__(self, other: int) -> int:
        return 1 << 20


def outcome(function: Callable[..., object], *args: object, **named: object) -> object:
    """What comes of a call: a result with its types, or an error with its text."""
    try:
        result = function(*args, **named)
    except (TypeError, ValueError, AttributeError, struct.error, BufferError) as error:
        return type(error), str(error)
    if isinstance(result, tuple):
        return [(type(one), one) for one in result]
    return type(result), result


WHOLE = st.one_of(
    st.integers(0, 300),
    st.sampled_from(
        [n + d for n in (0, 2**8, 2**16, 2**32, 2**42, 2**63, 2**64) for d in (-1025, -1024, -1, 0, 1)]
    ),
    st.integers(),
)
NUMBERS = WHOLE | st.sampled_from([*Number, True, Index(), Plus(3), 1.0, None, "1"])
NAMES = ("kind", "kind_version", "flags", "aux", "payload_length", "payload_crc", "max_response")
BODIES = st.binary(max_size=5) | st.sampled_from(
    [bytes(5000), Bytes(b"bytes"), bytearray(b"array"), memoryview(b"view"), "text", None, 0, 7]
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(NUMBERS, min_size=2, max_size=2) | st.lists(WHOLE, max_size=3),
    st.dictionaries(st.sampled_from(NAMES), NUMBERS, max_size=7),
    st.dictionaries(st.sampled_from(["body", "frame_type", "corr", "other"]), BODIES, max_size=1),
)
@example([1, 1], {"max_response": -1023}, {})
@example([1, 1], {"max_response": (2**32 - 1) << 10}, {})
@example([1, 1], {"max_response": ((2**32 - 1) << 10) + 1}, {})
@example(
    [255, 2**63 - 1], {"kind": 65535, "kind_version": 255, "flags": 255, "aux": 2**32 - 1}, {"body": b"b"}
)
@example([1, 1], {"payload_length": 2**63 - 1, "payload_crc": 2**32 - 1}, {})
@example([1, 1], {"max_response": Plus(3)}, {})
@example([1, 1], {}, {"frame_type": 7})
@example([1, 1], {}, {"corr": 7})
@example([1, 1], {}, {"body": Bytes(b"bytes")})
def test_headers_are_the_same(places, numbers, others):
    expected = outcome(twin(encode_header), *places, **numbers, **others)
    assert outcome(encode_header, *places, **numbers, **others) == expected


@pytest.mark.parametrize("name", ["frame_type", "corr", *NAMES])
def test_each_number_has_its_own_place_and_bound(name):
    bits = {"frame_type": 8, "corr": 64, "kind": 16, "kind_version": 8, "flags": 8}.get(name, 32)
    bits = {"payload_length": 64, "max_response": 42}.get(name, bits)
    for value in [1 << bit for bit in range(bits + 1)] + [(1 << bits) - 1024, (1 << bits) - 1, -1]:
        args = {"frame_type": 1, "corr": 1, name: value}
        places = args.pop("frame_type"), args.pop("corr")
        expected = outcome(twin(encode_header), *places, **args)
        assert outcome(encode_header, *places, **args) == expected


def test_names_are_compared_by_their_letters():
    name = "".join(["ki", "nd"])
    assert encode_header(1, 1, **{name: 7}) == encode_header(1, 1, kind=7)  # type: ignore[arg-type]
    assert encode_header(frame_type=1, corr=1) == encode_header(1, 1)


class Range:
    """Of a file, as far as it is looked at here."""

    def __init__(self, length: int) -> None:
        self.offset, self.length = 3, length

    def fileno(self) -> int:
        raise AssertionError

    def __eq__(self, other: object) -> bool:
        return type(other) is Range and other.length == self.length


def _released() -> memoryview:
    view = memoryview(b"gone")
    view.release()
    return view


LONG = bytes(range(256)) * 256
# Writable views have no hash, which `sampled_from` asks for.
ODD = [
    LONG,
    LONG + b"x",
    Bytes(b"bytes"),
    memoryview(bytearray(b"abcdefgh")).cast("I"),
    memoryview(b"abcdefgh").cast("B", (2, 4)),
    memoryview(b"abcdefgh")[::2],
    memoryview(b"abcdefgh")[3:5],
    _released(),
    Range(0),
    Range(7),
    7,
]
PARTS = st.one_of(
    st.binary(max_size=5),
    st.binary(max_size=5).map(bytearray),
    st.binary(max_size=5).map(memoryview),
    st.integers(0, len(ODD) - 1).map(ODD.__getitem__),
)
FEW = st.lists(PARTS, max_size=4)
SEQUENCES = FEW | FEW.map(tuple) | st.just(b"") | st.just(range(0))


@settings(max_examples=500, deadline=None)
@given(SEQUENCES)
@example([LONG])
@example([LONG[:-1], b"x", b""])
@example((LONG, b"x"))
@example([])
@example([b""])
@example([Bytes(b"bytes")])
@example([memoryview(mmap.mmap(-1, 4096))])
def test_payloads_are_the_same(parts):
    for function in (_outgoing.size_of, _outgoing.payload_of):
        assert outcome(function, parts) == outcome(twin(function), parts)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(SEQUENCES, st.integers(-1, 12) | st.sampled_from([len(LONG), len(LONG) + 1, 1 << 70, True, 5.0]))
@example([b"123", bytearray(b"45")], 5)
@example([b"123", bytearray(b"45"), b""], 5)
@example([b"123", bytearray(b"45")], 4)
@example([], 0)
@example([Bytes(b"bytes")], 2)
def test_what_is_left_is_the_same(parts, count):
    assert outcome(ranges.after, parts, count) == outcome(twin(ranges.after), parts, count)


def test_nothing_is_held_after_a_look():
    array, view = bytearray(b"array"), memoryview(bytearray(b"view"))
    for function in (_outgoing.size_of, _outgoing.payload_of):
        function([array, view])
        function([array, view, LONG])
        function([array, view, Range(1)])
    array.append(1)
    view.release()
    for arguments in ([], [1, 2]):
        with pytest.raises(TypeError):
            ranges.after([b""], *arguments)  # type: ignore[call-arg]


class Asked(Exception):
    pass


def alone(name: str) -> Any:
    """The function in C, of which the twin is not to be asked."""

    def asked(*args: object, **named: object) -> object:
        raise Asked

    asked.__name__ = name
    return _framing.in_front_of(asked)


def test_plain_arguments_need_no_python():
    encode, parts = alone("encode_header"), [b"b", bytearray(b"a"), memoryview(b"m"), LONG[:-3]]
    numbers = {"kind": 2**16 - 1, "kind_version": 255, "flags": 255, "aux": 2**32 - 1, "body": LONG + LONG}
    numbers |= {"payload_length": 2**63 - 1, "payload_crc": 2**32 - 1, "max_response": (2**32 - 1) << 10}
    assert encode(255, 2**63 - 1, **numbers) == encode_header(255, 2**63 - 1, **numbers)
    assert encode(Number.ONE, 0) == encode_header(1, 0)
    assert alone("size_of")([*parts, LONG]) == 2 * len(LONG)
    assert alone("size_of")(()) == 0
    assert alone("payload_of")(parts) == _outgoing.payload_of(parts)
    assert alone("payload_of")(()) == (0, 0, 0)
    assert alone("after")([*parts, LONG], 2 * len(LONG)) == []
    assert alone("after")((), 0) == []


def test_other_threads_run_while_the_crc_of_much_is_computed():
    """They do where Python calls for it, by cffi."""
    with pytest.raises(Asked):
        alone("payload_of")([b"x", LONG])


def test_nothing_is_held_without_memory():
    array = bytearray(LONG[:-1])
    calls = [
        lambda: encode_header(1, 1 << 40, body=LONG),
        lambda: _outgoing.size_of([array]),
        lambda: _outgoing.payload_of([array]),
        lambda: ranges.after([array], len(array)),
    ]
    for call in calls:
        results = list(without_memory(call))
        assert MemoryError in results and results[-1] == call()
    array.append(1)


def test_a_function_in_front_of_another_holds_it_only():
    def twin(parts: object) -> object:
        return parts

    twin.__name__ = "".join(["size", "_of"])
    counts = [sys.getrefcount(twin), sys.getrefcount(twin.__name__)]
    for _ in range(10):
        assert _framing.in_front_of(twin)(7) == 7
    assert [sys.getrefcount(twin), sys.getrefcount(twin.__name__)] == counts
