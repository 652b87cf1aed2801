"""Steps of an event loop, for tests of what is done in one of them."""

from __future__ import annotations

import trio


class Steps(trio.abc.Instrument):
    """An instrument that counts them."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1
