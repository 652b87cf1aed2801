"""Verdicts of the conformance kits: texts of bounded length, what was not tested, errors of a bench."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Collection, Iterator

from ._border import place_of

LONGEST = 4_000


class NotTestedWarning(UserWarning):
    """A conformance kit did not test a promise, or not in full; the text names the case and what to add."""


class NotTestedError(Exception):
    """Ends a case that cannot go on; the text says what to add. The kits make a `NotTestedWarning` of it."""


class BenchError(Exception):
    """The bench that a plugin's author supplies has failed: the case says nothing about the plugin."""


def not_tested(cases: str, why: str) -> None:
    """Warn that cases were not tested."""
    warnings.warn(f"{cases} not tested in full: {why}", NotTestedWarning, stacklevel=3)


def shortened(text: str, most: int = LONGEST) -> str:
    """A text that is longer than `most` characters loses its middle."""
    if len(text) <= most:
        return text
    kept = most // 2
    return f"{text[:kept]} [... {len(text) - 2 * kept:,} characters ...] {text[-kept:]}"


def judged(case: str, bench: object, error: Exception, *, tries: Collection[str] = ()) -> bool:
    """Whether the failure of a case says something about the plugin. A case that cannot go on is warned of.

    Args:
      case: Its name.
      bench: What the plugin's author supplies.
      error: The case's.
      tries: Names of methods of the bench whose errors are those of the plugin.

    Raises:
      BenchError: The bench failed.
    """
    found = list(leaves(error))
    lacking = [each for each in found if isinstance(each, NotTestedError)]
    if len(lacking) == len(found):
        not_tested(f"{case} was", str(lacking[0]))
        return False
    at_fault = [_method(bench, each) for each in found]
    if all(method and method not in tries for method in at_fault):
        first = found[0]
        raise BenchError(
            f"{case}: {type(bench).__name__}.{at_fault[0]} failed, which is the bench and not what it tests: "
            f"{type(first).__name__}: {shortened(str(first))} (at {place_of(first)})"
        ) from error
    return True


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors, without the groups around them."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def _method(bench: object, error: BaseException) -> str:
    """The bench's method, or missing attribute, by which this error came; empty if by none."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_locals.get("self") is bench:
            return frame.f_code.co_name
    return str(error.name) if isinstance(error, AttributeError) and error.obj is bench else ""
