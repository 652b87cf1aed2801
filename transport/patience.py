"""How the conformance kits bear with slow and busy machines: a factor for times, and a repeat after a standstill.

A bound of time says something about a plugin only if the process that measures could run. The kits therefore watch
over their own process. A case that fails while the process was held up is repeated, a few times at most.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Awaitable, Callable
from types import TracebackType

PATIENCE = float(os.environ.get("INSYNC_KIT_PATIENCE", "1"))
"""How many times as long as usual everything may take: builds for sanitizers and emulated machines are slow."""

ATTEMPTS = 5
"""How often a case runs at most."""
_TOLERATED_SECONDS = 0.02 * PATIENCE
_TOLERATED_SHARE = 0.02
_LOOK_SECONDS = 0.01


class HeldUpWarning(UserWarning):
    """A case of a conformance kit failed while its process was held up, and is repeated."""


class StandstillWatch:
    """Measures for how long the process could not run while this is entered; an event loop that waits could."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="insync kit: standstills", daemon=True)

    def _look(self) -> None:
        while not self._is_over.is_set():
            began = time.monotonic()
            self._is_over.wait(_LOOK_SECONDS)
            late = time.monotonic() - began - _LOOK_SECONDS
            if late > _LOOK_SECONDS:
                self.seconds += late

    def __enter__(self) -> StandstillWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Whoever waits for the thread also hears of a standstill that ended just now.
        self._is_over.set()
        self._thread.join()


async def bear_with(
    name: str, seconds: float, attempt: Callable[[], Awaitable[None]], restore: Callable[[], Awaitable[None]]
) -> None:
    """Run a case; repeat it if it failed while the process was held up.

    A standstill counts if it is long beside the shortest bounds of the kits and beside the attempt. There is no
    repeat after `ATTEMPTS`, and none of a case that has taken `seconds` already: it hangs.

    Args:
      name: The case's.
      seconds: How long a case may take.
      attempt: The case.
      restore: Brings back the state in which a case begins.

    Raises:
      AssertionError: As the last attempt; with a note about standstills if there were any.
    """
    began = time.monotonic()
    for number in range(1, ATTEMPTS + 1):
        watch = StandstillWatch()
        started = time.monotonic()
        try:
            with watch:
                await attempt()
            return
        except AssertionError as error:
            now = time.monotonic()
            is_held_up = watch.seconds > max(_TOLERATED_SECONDS, _TOLERATED_SHARE * (now - started))
            if is_held_up:
                error.add_note(f"The process was held up for {watch.seconds:.2f} s, in attempt {number}.")
            if not is_held_up or number == ATTEMPTS or now - began >= seconds:
                raise
            said = str(error).rpartition("Seen: ")[2]
            warnings.warn(
                f"{name} is repeated: its process was held up for {watch.seconds:.2f} s, and it failed: {said}",
                HeldUpWarning,
                stacklevel=2,
            )
            try:
                await restore()
            except Exception:  # noqa: BLE001 - what cannot be restored is judged by what was seen
                raise error from None
    raise AssertionError("unreachable: the last attempt returns or raises")
