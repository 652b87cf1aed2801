"""The child's end of a node in a process of its own: `python -m insync.replication.node.process._child`.

The first line of standard input has the settings, so that no secret stands in arguments or in the environment.
After it, the line `end` stops the node at once, and `stop`, or the end of the input, cleanly: a parent that dies
leaves no node behind. Standard output has one JSON object a line: `log`, `ready` with the node's facts, or `failed`
with the error that ended it.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, BinaryIO

import trio

from .._node import Node
from ..errors import NodeError
from ..log_lines import Event
from ..settings import NodeSettings
from ._collector import collect_seldom
from ._descriptors import allow_open_files

GRACE = 10.0
"""Seconds beyond `controlled_shutdown_timeout_ms` that a child may take to stop once its parent is gone."""
LINES_HELD = 10_000
"""Lines that wait for a parent that does not read them; further ones are dropped, and counted."""


class Report:
    """Reports to the parent, written by a thread, so that a paused parent does not block the node."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._lines: queue.Queue[bytes | None] = queue.Queue(LINES_HELD)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="report", daemon=True)
        self._thread.start()

    def say(self, kind: str, **facts: object) -> None:
        """One line; if too many wait already it is dropped."""
        try:
            if self._dropped:
                self._lines.put_nowait(_line("dropped", count=self._dropped))
                self._dropped = 0
            self._lines.put_nowait(_line(kind, **facts))
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write the lines that wait, if the parent reads them within a bounded time."""
        with suppress(queue.Full):
            self._lines.put(None, timeout=GRACE)
            self._thread.join(GRACE)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            # Writing fails once the parent is gone, which the leash notices. The queue is emptied nevertheless, so
            # that `close` finds room in it.
            with suppress(OSError):
                self._out.write(line)
                self._out.flush()


def _line(kind: str, **facts: object) -> bytes:
    return json.dumps({"kind": kind, **facts}, default=str).encode() + b"\n"


class ReportHandler(logging.Handler):
    """Hands every log record to the parent, whose own logging decides what becomes of it."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, Any] = {"logger": record.name, "level": record.levelno, "created": record.created}
        if isinstance(record.msg, Event):
            facts |= {"event": record.msg.name, "facts": dict(record.msg.facts)}
        else:
            facts["message"] = record.getMessage()
        if record.exc_info:
            facts["exception"] = logging.Formatter().formatException(record.exc_info)
        self._report.say("log", **facts)


def main() -> int:
    """Serve until told to stop; the exit status is 1 if the node has failed."""
    report = Report(_own_output())
    orders = _orders()
    given = json.loads(next(orders))
    # Plugins that the parent can import are to be found here too.
    sys.path[:] = given["path"]
    logging.basicConfig(level=given["level"], handlers=[ReportHandler(report)], force=True)
    # Ctrl-C at a terminal reaches every process of its group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    values: dict[str, Any] = {
        name: tuple(each) if isinstance(each, list) else each for name, each in given["settings"].items()
    }
    settings = NodeSettings(**values)
    try:
        collect_seldom()
        allow_open_files()
        trio.run(_serve, settings, report, orders)
    except NodeError as error:
        report.say("failed", error=type(error).__name__, message=str(error))
        return 1
    finally:
        report.close()
    return 0


def _own_output() -> BinaryIO:
    """Standard output for the report alone; what anybody prints goes to standard error."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return out


async def _serve(settings: NodeSettings, report: Report, orders: Iterator[bytes]) -> None:
    token, stop = trio.lowlevel.current_trio_token(), trio.Event()
    with trio.CancelScope() as everything:

        def ordered(order: bytes) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(everything.cancel if order == b"end" else stop.set)

        _watch_leash(orders, ordered, settings.controlled_shutdown_timeout_ms / 1000 + GRACE)
        async with Node(settings) as node:
            report.say(
                "ready",
                endpoints=list(node.endpoints),
                gateway_endpoints=list(node.gateway_endpoints),
                store_url=node.store_url,
                cluster_id=node.cluster_id,
                incarnation=node.incarnation,
                metrics_address=node.metrics_address,
            )
            await stop.wait()


def _orders() -> Iterator[bytes]:
    """Lines of standard input, past its buffer: the interpreter cannot end while a thread waits in there."""
    buffer = b""
    while chunk := os.read(0, 1 << 16):
        *lines, buffer = (buffer + chunk).split(b"\n")
        yield from lines


def _watch_leash(orders: Iterator[bytes], ordered: Callable[[bytes], None], grace: float) -> None:
    """A thread, so that it works while the event loop is busy or stuck."""

    def watch() -> None:
        for line in orders:
            ordered(line)
        ordered(b"stop")
        # Nothing outlives its parent for long, whatever it hangs in.
        threading.Event().wait(grace)
        os._exit(1)

    threading.Thread(target=watch, name="leash", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
