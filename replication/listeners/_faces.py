"""The common part of the listeners for asyncio and for threads: a thread of trio's, and producers lent from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

from .._portal import Portal
from ..client.errors import ClosedError
from ..client.producer import Producer
from ..client.threads._handover import Handover
from ._engine import Engine
from .listener import Listening


class Elsewhere(Listening):
    """A listener whose handlers are not in trio: its engine runs in a thread of trio's."""

    _opened: Portal[Engine] | None = None

    def stop(self) -> None:
        """Have `run` end: what is in hand is finished, offsets are committed, the group is left. In any thread."""
        engine, opened = self._engine, self._opened
        if engine is not None and engine.state == "stopped":
            return
        # Before the portal is looked at: `run` looks at this when it has set that.
        self._stop_asked = True
        if engine is not None and opened is not None:
            opened.try_post(engine.stop)

    def _set_opened(self, opened: Portal[Engine]) -> None:
        """The engine's thread is there; a `stop` that came while it was not is a stop."""
        self._opened = opened
        if self._stop_asked:
            self.stop()

    def _ended(self) -> None:
        """A run is over, and so is what was asked of it."""
        self._opened, self._stop_asked = None, False

    @property
    def _portal(self) -> Portal[Engine] | None:
        """None: it does not run."""
        return None if self._opened is None or self._opened.closed else self._opened


def portal_of(engine: Engine) -> Portal[Engine]:
    """The thread in which a listener runs."""
    return Portal(
        lambda: nullcontext(engine),
        name="insync-listener",
        closed_error=lambda what: ClosedError(f"the listener was {what}"),
    )


class Asked:
    """Handed to the handler with its record, or its batch, in the manual modes; `waits` until it is committed."""

    def __init__(self, portal: Portal[Engine], tell: Callable[[], Awaitable[None]], *, waits: bool) -> None:
        self._portal = portal
        self._tell = tell
        self._waits = waits


def lent(face: type[Any], portal: Portal[Any], producer: Producer) -> Any:
    """A producer of a façade over one that is open in this thread, and is closed by who has opened it."""

    class Lent(face):
        _portal, _held = portal, producer

        def __init__(self) -> None:
            self._settings = producer._settings
            self._unyielded = 0
            timeout_ms = self._settings.delivery_timeout_ms
            self._handover = Handover(portal, lambda: producer, timeout_ms, face._delivery_class)
            portal.finish = None

    Lent.__name__ = Lent.__qualname__ = face.__name__
    return Lent()
