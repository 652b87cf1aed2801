"""The common part of clients for code without trio: a daemon thread in which the trio client is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..._portal import Held, Portal
from .. import _arguments as given
from ..connection._client import Client
from ..errors import ClosedError

C = TypeVar("C", bound=Client)


def client_portal(make: Callable[[], C]) -> Portal[C]:
    """A thread for a client."""
    # mypy does not see what `Self` is in a type variable.
    return Portal(make, name="insync-client", closed_error=_closed)  # type: ignore[arg-type]


def _closed(what: str) -> ClosedError:
    return ClosedError(f"the client was {what}")


class BlockingClient(Held[C]):
    def close(self, timeout: float | None = None) -> None:
        """End it, waiting at most `timeout` seconds. May be called again."""
        super().close(given.timeout(timeout))
