"""How two long sequences of record hashes differ, when they should be equal.

Equal stretches are compared in C; at a difference both sides are searched, in growing windows, for the nearest
place where they agree again. So a few defects in millions of records cost little, and one dropped record is
one difference however many follow it.
"""

from __future__ import annotations

import difflib
from array import array

import attrs

ANCHOR = 8
"""So many equal elements in a row (or the common end) count as agreement."""
_FIRST_WINDOW = 64
_LAST_WINDOW = 1 << 16
"""Logs that agree nowhere within so many records are taken as different to their ends."""
_REFINE_MAX = 2_000
_BLOCK = 4_096


@attrs.frozen
class Edit:
    """`expected[expected_start:expected_stop]` stands as `actual[actual_start:actual_stop]`; bounds exclusive."""

    expected_start: int
    expected_stop: int
    actual_start: int
    actual_stop: int


def differences(expected: array[int], actual: array[int]) -> list[Edit]:
    """All places where the two differ, in order; empty if they are equal."""
    edits: list[Edit] = []
    i = j = 0
    while True:
        same = _common_prefix(expected, i, actual, j)
        i, j = i + same, j + same
        if i == len(expected) and j == len(actual):
            return edits
        a, b = _resynchronise(expected, i, actual, j)
        edits.extend(_refine(expected, Edit(i, i + a, j, j + b), actual))
        i, j = i + a, j + b


def _common_prefix(expected: array[int], i: int, actual: array[int], j: int) -> int:
    length = min(len(expected) - i, len(actual) - j)
    at = 0
    while at < length:
        size = min(_BLOCK, length - at)
        if expected[i + at : i + at + size] != actual[j + at : j + at + size]:
            return at + next(n for n in range(size) if expected[i + at + n] != actual[j + at + n])
        at += size
    return length


def _resynchronise(expected: array[int], i: int, actual: array[int], j: int) -> tuple[int, int]:
    """How many elements to skip on each side until both agree again; the smallest sum within the window."""
    window = _FIRST_WINDOW
    while window <= _LAST_WINDOW:
        best = _nearest(expected, i, actual, j, window)
        if best is not None:
            return best
        window *= 32
    return len(expected) - i, len(actual) - j


def _nearest(expected: array[int], i: int, actual: array[int], j: int, window: int) -> tuple[int, int] | None:
    anchors: dict[bytes, int] = {}
    for a in range(min(window, len(expected) - i) + 1):
        anchors.setdefault(expected[i + a : i + a + ANCHOR].tobytes(), a)
    best: tuple[int, int] | None = None
    for b in range(min(window, len(actual) - j) + 1):
        if best is not None and b >= sum(best):
            break
        found = anchors.get(actual[j + b : j + b + ANCHOR].tobytes())
        if found is not None and (best is None or found + b < sum(best)):
            best = found, b
    return best


def _refine(expected: array[int], edit: Edit, actual: array[int]) -> list[Edit]:
    """The least edits within a small difference: of two swapped records one has moved, not two."""
    left = expected[edit.expected_start : edit.expected_stop].tolist()
    right = actual[edit.actual_start : edit.actual_stop].tolist()
    if not left or not right or len(left) + len(right) > _REFINE_MAX:
        return [edit]
    return [
        Edit(
            edit.expected_start + a0, edit.expected_start + a1, edit.actual_start + b0, edit.actual_start + b1
        )
        for tag, a0, a1, b0, b1 in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
        if tag != "equal"
    ]
