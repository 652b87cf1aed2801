"""A fuzzer for Python: inputs that reach a new pair of lines, or one more often, are kept and changed further.

The idea of libFuzzer and AFL, with `sys.settrace` as the coverage; slow beside them, and without a dependency.
"""

from __future__ import annotations

import logging
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha1
from pathlib import Path
from types import FrameType, ModuleType

import attrs

from ._fuzzing import Outcome

Edges = set[tuple[object, int, int, int]]
_INTERESTING = (
    0,
    1,
    7,
    8,
    47,
    48,
    49,
    127,
    128,
    255,
    4096,
    65535,
    65536,
    (1 << 31) - 1,
    1 << 31,
    (1 << 64) - 1,
)


@attrs.frozen
class PythonTarget:
    """A function that takes any input and raises nothing, unless something is wrong."""

    name: str
    run: Callable[[bytes], None]
    modules: Sequence[ModuleType]
    """Whose lines are the coverage."""
    seeds: Callable[[], Iterable[bytes]] = tuple
    max_len: int = 4096
    compiled: str = ""
    """How the places of functions end that the program compiles, whose lines count, too; "": there are none."""


class _Coverage:
    """Pairs of lines that follow one another, and how often (in powers of two)."""

    def __init__(self, modules: Sequence[ModuleType], compiled: str = "") -> None:
        self._files = {module.__file__ for module in modules}
        self._compiled = compiled
        self._counts: Counter[tuple[object, int, int]] = Counter()

    def of(self, run: Callable[[bytes], None], data: bytes) -> Edges:
        self._counts.clear()
        sys.settrace(self._enter)
        try:
            run(data)
        finally:
            sys.settrace(None)
        return {(*edge, count.bit_length()) for edge, count in self._counts.items()}

    def _enter(self, frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        place = frame.f_code.co_filename
        if place not in self._files and not (self._compiled and place.endswith(self._compiled)):
            return None
        last = 0

        def step(frame: FrameType, event: str, _: object) -> Callable[..., object]:
            nonlocal last
            if event == "line":
                self._counts[frame.f_code, last, frame.f_lineno] += 1
                last = frame.f_lineno
            return step

        return step


def mutated(draw: random.Random, data: bytes, other: bytes, max_len: int) -> bytes:
    """A few changes at random: bits, bytes, numbers, pieces left out, doubled, or taken from another input."""
    found = bytearray(data)
    for _ in range(1 << draw.randrange(4)):
        at = draw.randrange(len(found) + 1)
        span = draw.randrange(1, 1 << draw.randrange(1, 9))
        match draw.randrange(7):
            case 0 if at < len(found):
                found[at] ^= 1 << draw.randrange(8)
            case 1 if at < len(found):
                found[at] = draw.randrange(256)
            case 2:
                size = draw.choice((1, 2, 4, 8))
                value = draw.choice(_INTERESTING) % (1 << 8 * size)
                found[at : at + size] = value.to_bytes(size, "little")
            case 3:
                del found[at : at + span]
            case 4:
                found[at:at] = found[at : at + span]
            case 5:
                start = draw.randrange(len(other) + 1)
                found[at:at] = other[start : start + span]
            case _:
                found[at : at + span] = draw.randbytes(span)
    return bytes(found[:max_len])


def fuzz_python(target: PythonTarget, folder: Path, seconds: float, seed: int) -> Outcome:
    """Try inputs for that long; those kept, and one that failed, are in `folder`."""
    kept = folder / f"{target.name}.corpus"
    kept.mkdir(exist_ok=True)
    # What is logged about bad input is as it should be, and would cost most of the time.
    logging.disable()
    try:
        return _search(target, kept, random.Random(seed), time.monotonic() + seconds)
    finally:
        logging.disable(logging.NOTSET)


def _search(target: PythonTarget, kept: Path, draw: random.Random, end: float) -> Outcome:
    coverage, corpus, reached, units = _Coverage(target.modules, target.compiled), list[bytes](), Edges(), 0
    waiting = [*target.seeds(), *(path.read_bytes() for path in sorted(kept.iterdir())), b""]
    while waiting or time.monotonic() < end:
        data = (
            waiting.pop()
            if waiting
            else mutated(draw, draw.choice(corpus), draw.choice(corpus), target.max_len)
        )
        units += 1
        try:
            edges = coverage.of(target.run, data)
        except Exception:  # noqa: BLE001 - whatever comes out is what was looked for
            bad = kept.parent / f"{target.name}.failed-{sha1(data).hexdigest()}"
            bad.write_bytes(data)
            return _outcome(target, units, reached, corpus, traceback.format_exc()[-6000:], bad)
        if not corpus or not edges <= reached:
            reached |= edges
            corpus.append(data)
            (kept / sha1(data).hexdigest()).write_bytes(data)
    return _outcome(target, units, reached, corpus)


def _outcome(
    target: PythonTarget,
    units: int,
    reached: Edges,
    corpus: list[bytes],
    failure: str = "",
    bad: Path | None = None,
) -> Outcome:
    edges = len({edge[:3] for edge in reached})
    return Outcome(target.name, units, edges, len(corpus), 0, failure, bad)
