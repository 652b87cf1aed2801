"""The parent's end of a node in a process of its own: started, listened to, stopped, never left behind."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import trio

from .. import errors
from ..errors import InvalidSettingError, NodeError, NodeStoppedError
from ..log_lines import event
from ..settings import NodeSettings
from ._child import GRACE

log = logging.getLogger("insync.node")

_HURRY = 5.0
"""Seconds in which a child must end that was told to end at once."""
_ONE_PROCESS = ("mem://", "memory://")
"""Transports and stores that only one process can use."""


@attrs.frozen(kw_only=True)
class Facts:
    """The facts that the child's node tells when it serves."""

    endpoints: list[str]
    gateway_endpoints: list[str]
    store_url: str
    cluster_id: str
    incarnation: int
    metrics_address: str


@attrs.define(eq=False)
class _Heard:
    """The child's failure, if there is one, and whether the child has been told to stop."""

    failure: NodeError | None = None
    is_stopping: bool = False


@asynccontextmanager
async def child(settings: NodeSettings) -> AsyncIterator[Facts]:
    """A node in a child process, for as long as the block lasts; its log lines are logged here.

    Raises:
      NodeError: As the node raised it in the child, by its class and text; `NodeStoppedError` if the process was
        killed. If that happens within the block, it is cancelled first.
    """
    _check(settings)
    heard = _Heard()
    process = await _start(settings)
    try:
        async with trio.open_nursery() as nursery:
            facts: Facts | None = await nursery.start(_listen, process, settings, heard, nursery.cancel_scope)
            if facts is not None:
                yield facts
                await _stop(process, heard, b"stop\n", settings.controlled_shutdown_timeout_ms / 1000 + GRACE)
    finally:
        # After a cancellation or an error there is no hand-over, as with a node in this process.
        with trio.CancelScope(shield=True):
            # Nobody listens any more: a child that has much to say must not wait for that.
            assert process.stdout is not None
            await process.stdout.aclose()
            await _stop(process, heard, b"end\n", _HURRY)
    if heard.failure is not None:
        raise heard.failure


def _check(settings: NodeSettings) -> None:
    for url in (settings.store, *settings.listeners):
        if url.startswith(_ONE_PROCESS):
            raise InvalidSettingError(
                f"{url} can be used by one process alone, and own_process=True puts the node into another: take a "
                "transport or store that processes share"
            )


async def _start(settings: NodeSettings) -> trio.Process:
    given = {
        field.name: str(value) if isinstance(value, Path) else value
        for field in attrs.fields(NodeSettings)
        if (value := getattr(settings, field.name)) is not None
    }
    first = {"settings": given, "path": sys.path, "level": logging.getLogger("insync").getEffectiveLevel()}
    try:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", f"{__package__}._child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise NodeError(f"node {settings.node_id}: no process can be started for it: {error}") from error
    assert process.stdin is not None
    try:
        with suppress(trio.BrokenResourceError):  # it has ended already, and `_listen` says so
            await process.stdin.send_all(json.dumps(first, default=str).encode() + b"\n")
    except BaseException:
        process.kill()
        raise
    return process


async def _listen(
    process: trio.Process,
    settings: NodeSettings,
    heard: _Heard,
    block: trio.CancelScope,
    task_status: trio.TaskStatus[Facts | None],
) -> None:
    """Read the child's lines until it ends; if it was not stopped, end the block."""
    assert process.stdout is not None
    buffer, is_ready = b"", False
    async for chunk in process.stdout:
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            told = json.loads(line)
            match told.pop("kind"):
                case "ready":
                    is_ready = True
                    task_status.started(Facts(**told))
                case "failed":
                    heard.failure = _failure(told["error"], told["message"])
                case "log":
                    _log(told)
                case "dropped":
                    log.warning("node %d: %d lines of its log were lost", settings.node_id, told["count"])
    status = await process.wait()
    if heard.failure is None and not heard.is_stopping:
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        heard.failure = NodeStoppedError(f"the process of node {settings.node_id} ended {how}")
    if not is_ready:
        task_status.started(None)
    elif not heard.is_stopping:
        log.error(event("child_ended", node=settings.node_id, why=str(heard.failure)))
        block.cancel()


def _failure(name: str, message: str) -> NodeError:
    made = getattr(errors, name, NodeError)
    return made(message) if issubclass(made, NodeError) else NodeError(message)


def _log(told: dict[str, Any]) -> None:
    logger = logging.getLogger(told["logger"])
    if not logger.isEnabledFor(told["level"]):
        return
    message = event(told["event"], **told["facts"]) if "event" in told else told["message"]
    if "exception" in told:
        message = f"{message}\n{told['exception']}"
    record = logger.makeRecord(told["logger"], told["level"], "child", 0, message, (), None)
    record.created = told["created"]
    logger.handle(record)


async def _stop(process: trio.Process, heard: _Heard, order: bytes, patience: float) -> None:
    """Have the child stop, and kill it if it has not within `patience` seconds."""
    heard.is_stopping = True
    if process.returncode is not None:
        return
    assert process.stdin is not None
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # it is ending
        await process.stdin.send_all(order)
    with trio.move_on_after(patience):
        await process.wait()
    if process.returncode is None:
        log.error("killing a node's process, which has not ended within %g s", patience)
        process.kill()
    await process.wait()
