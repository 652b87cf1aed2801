"""The common part of the conformance kits: a case for each promise of an interface, how it is run and judged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import ClassVar, Generic, TypeVar

import attrs
import trio

from ..transport.patience import PATIENCE, bear_with
from ..transport.verdicts import judged, leaves, shortened
from ..transport.versions import FIRST
from ._places import place_of

B = TypeVar("B")
"""The bench that a plugin's author supplies for the case."""
C = TypeVar("C", bound="Promise")


class PromiseBrokenError(AssertionError):
    """The tested implementation does not keep a promise of its interface. The text has a bounded length."""

    def __init__(self, text: str) -> None:
        super().__init__(shortened(text))


@attrs.frozen
class Promise(Generic[B]):
    """One promise of an interface: its name, its sentence, and what checks it.

    subject: what is tested, in one word. seconds: how long a case may take before it counts as hung, on a usual
    machine. tries: the methods of a bench whose errors are those of the subject.
    """

    subject: ClassVar[str]
    seconds: ClassVar[float]
    tries: ClassVar[Collection[str]] = ()

    name: str
    promise: str
    check: Callable[[B], Awaitable[None]]
    since: tuple[int, int] = FIRST
    """The version of the interface, as (major, minor), that brought this case."""

    async def run(self, bench: B) -> None:
        """Check it; once more if it fails while this process was held up (see `insync.transport.patience`).

        A case that cannot go on in this bench is a `NotTestedWarning`. Raises `PromiseBrokenError`, which names the
        promise and what was seen instead, and `BenchError` if the bench itself fails.
        """
        await bear_with(
            self.name, self.seconds * PATIENCE, partial(self._attempt, bench), partial(self.restore, bench)
        )

    async def restore(self, bench: B) -> None:
        """Bring back the state in which a case begins."""

    async def _attempt(self, bench: B) -> None:
        seconds = self.seconds * PATIENCE
        try:
            with trio.move_on_after(seconds) as scope:
                await self.check(bench)
        except Exception as error:
            if judged(self.name, bench, error, tries=self.tries):
                raise self._broken(shortened("; ".join(map(_seen, leaves(error))), 3_000)) from error
        if scope.cancelled_caught:
            raise self._broken(f"the case was not over after {seconds:g} s")

    def _broken(self, seen: str) -> PromiseBrokenError:
        return PromiseBrokenError(
            f"the {self.subject} breaks a promise. {self.promise} ({self.name})\nSeen: {seen}"
        )


def _seen(error: BaseException) -> str:
    """An error that is not the kit's own with type and place."""
    if isinstance(error, PromiseBrokenError):
        return str(error)
    return f"{type(error).__name__}: {error}{place_of(error)}"


Check = TypeVar("Check", bound=Callable[..., Awaitable[None]])


def collect(kind: type[C], cases: list[C], since: tuple[int, int] = FIRST) -> Callable[[Check], Check]:
    """Decorator: add the function as a case of that kind and version; its docstring is the promise."""

    def add(check: Check) -> Check:
        cases.append(kind(check.__name__, " ".join((check.__doc__ or "").split()), check, since))
        return check

    return add


def expect(holds: object, message: str) -> None:
    """An assertion that survives `python -O`."""
    if not holds:
        raise PromiseBrokenError(message)
