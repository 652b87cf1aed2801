"""A small HTTP server for those who look after nodes: `/metrics`, `/health` and `/ready`, and nothing else.

One request for each connection; anything else is refused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

import attrs
import trio
from msgspec import structs

from ....transport.repeats import limited
from ....transport.urls import join_host_port
from ...core.messages import HealthCheck
from .health import Health
from .metrics import Metrics, render

log = limited(logging.getLogger("insync.node"))

MOST_HEAD_BYTES = 8192
TIMEOUT = 10.0
"""Seconds for one request, from its connection to the last byte of the answer."""
MOST_CONNECTIONS = 32
"""A connection beyond this number ends the oldest: a probe must not fail because of those who say nothing."""

_PLAIN = "text/plain; charset=utf-8"
_JSON = "application/json"
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class BadRequestError(Exception):
    """Not a request that can be served; (status, text)."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text


@attrs.frozen
class Head:
    """The request line and the headers, their names in small letters."""

    method: str
    path: str
    headers: dict[str, str]


@attrs.frozen
class Answer:
    status: int
    media_type: str
    body: bytes


@attrs.define(eq=False)
class OperationsServer:
    """Answers for one node, from before it starts. `serve` runs until it is cancelled."""

    waits_for: str = "the metadata store"
    """The part of a node's start, or end, that it is at."""
    _live: tuple[Metrics, Health] | None = None
    _open: dict[trio.CancelScope, None] = attrs.Factory(dict)
    """Connections, the oldest first."""
    _telling: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(1))
    """Admits one answer of metrics at a time; it goes on in its thread when its connection has had to make room."""

    def begins(self, metrics: Metrics, health: Health) -> None:
        """The node runs."""
        self._live = metrics, health

    def ends(self) -> None:
        """The node is about to stop."""
        self._live, self.waits_for = None, "its end"

    async def serve(
        self,
        host: str,
        port: int,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Tells `host:port` as soon as it listens. Raises OSError if it cannot."""
        listeners = await trio.open_tcp_listeners(port, host=host)
        at = _address(listeners)
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(trio.serve_listeners, self._welcome, [listener])
            task_status.started(at)

    async def _welcome(self, stream: trio.SocketStream) -> None:
        scope = trio.CancelScope(deadline=trio.current_time() + TIMEOUT)
        if len(self._open) >= MOST_CONNECTIONS:
            oldest = next(iter(self._open))
            oldest.cancel()
            del self._open[oldest]
        self._open[scope] = None
        try:
            with scope:
                await self._converse(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            log.debug("a client of the metrics port did not wait for the answer")
        finally:
            self._open.pop(scope, None)
            await trio.aclose_forcefully(stream)

    async def _converse(self, stream: trio.SocketStream) -> None:
        is_head = False
        try:
            head = await _read_head(stream)
            is_head = head.method == "HEAD"
            answer = await self._answer(head)
        except BadRequestError as error:
            answer = Answer(error.status, _PLAIN, f"{error.text}\n".encode())
        except trio.BrokenResourceError:
            raise
        except Exception:  # of a library, say: one request must not end the node
            log.exception("a request at the metrics port failed")
            answer = Answer(500, _PLAIN, b"the node failed to answer; its log says why\n")
        lines = (
            f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
            f"Content-Type: {answer.media_type}",
            f"Content-Length: {len(answer.body)}",
            "Cache-Control: no-store",
            "Connection: close",
        )
        start = "\r\n".join((*lines, "", "")).encode()
        await stream.send_all(start if is_head else start + answer.body)
        await stream.send_eof()

    async def _answer(self, head: Head) -> Answer:
        if head.method not in ("GET", "HEAD"):
            raise BadRequestError(405, f"{head.method} is not served here: use GET")
        match path := head.path.partition("?")[0]:
            case "/health":
                return Answer(200, _JSON, _json({"status": "alive"}))
            case "/ready" | "/metrics":
                if self._live is None:
                    waits = HealthCheck(name="start", ok=False, detail=f"the node waits for {self.waits_for}")
                    return _told([waits])
                metrics, health = self._live
                if path == "/ready":
                    return _told(health.checks())
                accept = head.headers.get("accept", "")
                async with self._telling:
                    snapshot = metrics.snapshot()
                    body, media_type = await trio.to_thread.run_sync(render, snapshot, accept)
                return Answer(200, media_type, body)
        raise BadRequestError(404, "not found; this server has /metrics, /health and /ready")


async def _read_head(stream: trio.SocketStream) -> Head:
    data = b""
    while b"\r\n\r\n" not in data and b"\n\n" not in data:
        if len(data) > MOST_HEAD_BYTES:
            raise BadRequestError(431, f"a request's head has at most {MOST_HEAD_BYTES} bytes")
        chunk = await stream.receive_some(MOST_HEAD_BYTES)
        if not chunk:
            raise BadRequestError(400, "the request ends before its head does")
        data += chunk
    lines = data.decode("latin-1").replace("\r\n", "\n").partition("\n\n")[0].split("\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequestError(400, "this is not an HTTP/1 request")
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadRequestError(400, "a header has no colon")
        headers[name.strip().lower()] = value.strip()
    return Head(words[0], words[1], headers)


def _told(checks: Sequence[HealthCheck]) -> Answer:
    ready = all(check.ok for check in checks)
    told = {"ready": ready, "checks": [structs.asdict(check) for check in checks]}
    return Answer(200 if ready else 503, _JSON, _json(told))


def _json(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _address(listeners: Sequence[trio.SocketListener]) -> str:
    return join_host_port(*listeners[0].socket.getsockname()[:2])
