"""A test that exceeds its timeout says where: the threads of its process, and the tasks of each trio loop in them.

pytest-timeout prints the other threads alone, and cannot print in a worker of xdist. A thread that runs trio stands
in trio's wait, whatever its tasks wait for. Here all of it is part of the failure.
"""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import trio
from pytest_timeout import is_debugging

_MACHINERY = ("/pluggy/", "/_pytest/", "/xdist/", "/execnet/")
"""Whose frames stand below every test."""


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """In the place of pytest-timeout's own; a test that asks for its thread still gets that."""
    if settings.method != "signal" or threading.current_thread() is not threading.main_thread():
        return None

    def late(_: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True
        if not settings.disable_debugger_detection and is_debugging():
            return
        pytest.fail(f"Timeout (>{settings.timeout:g} s).\n{where(frame)}")

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]  # pytest-timeout calls it
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    return True


def where(frame: FrameType | None) -> str:
    """Where all threads and tasks stand. frame: of the main thread, where the signal came."""
    names = {each.ident: each.name for each in threading.enumerate()}
    frames = {**sys._current_frames(), threading.get_ident(): frame}
    return "\n".join(
        part for ident, each in frames.items() for part in _thread(names.get(ident, str(ident)), each)
    )


def _thread(name: str, frame: FrameType | None) -> Iterator[str]:
    stack = [
        each
        for each in traceback.extract_stack(frame)
        if not any(map(each.filename.__contains__, _MACHINERY))
    ]
    yield f"~~ thread {name}\n{''.join(traceback.format_list(stack))}"
    while frame is not None:
        # Trio's loop has its runner in this variable; its tasks have frames that no thread has.
        main = getattr(frame.f_locals.get("runner"), "main_task", None)
        if isinstance(main, trio.lowlevel.Task):
            yield from _tasks(name, main, 0)
        frame = frame.f_back


def _tasks(thread: str, task: trio.lowlevel.Task, depth: int) -> Iterator[str]:
    stack = traceback.StackSummary.extract(task.iter_await_frames())
    yield f"~~ task {task.name} of thread {thread}, depth {depth}\n{''.join(stack.format())}"
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _tasks(thread, child, depth + 1)
