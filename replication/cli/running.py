"""Running one command under trio until it ends or a signal asks it to."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable

import trio

PARENT_GRACE = 10.0
"""Seconds for an orderly stop after the parent has gone; then the process ends anyhow."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(main: Callable[[], Awaitable[int | None]]) -> int:
    """Run `main`; on SIGINT, SIGTERM or SIGHUP it is cancelled, cleans up, and the status is 128 + signal.

    Log lines of clients are for programs; here the command's own output and errors say it, so they are not shown.
    """
    if os.environ.get("INSYNC_TRACEBACK") == "1":
        logging.basicConfig(level="INFO")
    else:
        logging.getLogger("insync").addHandler(logging.NullHandler())
    return trio.run(_until_signalled, main)


def stop_when_stdin_ends() -> None:
    """For children: the parent holds the other end, which the kernel closes however the parent dies."""
    threading.Thread(target=_watch_stdin, name="stdin-watch", daemon=True).start()


def _watch_stdin() -> None:
    """A thread, so that it works while the event loop is busy or stuck."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(PARENT_GRACE)
    os._exit(1)


async def _until_signalled(main: Callable[[], Awaitable[int | None]]) -> int:
    caught: list[int] = []
    status: int | None = 0
    with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:

            async def cancel_on_signal() -> None:
                async for number in signals:
                    caught.append(number)
                    nursery.cancel_scope.cancel()

            nursery.start_soon(cancel_on_signal)
            status = await main()
            nursery.cancel_scope.cancel()
    return 128 + caught[0] if caught else status or 0
