"""`python -m tests.replication.host_program WAY FOLDER`: a program that embeds a node, a producer and a consumer.

WAY: `trio`, `asyncio` or `threads`. It notes all that belongs to the process before it imports the library, while
records go through, and afterwards, and prints each of its things that are not as they were, by a line.
"""

from __future__ import annotations

import asyncio
import decimal
import gc
import importlib
import locale
import logging
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import trio

RECORDS = 200
_PATIENCE = 30.0
"""Seconds in which threads, descriptors and children must be gone."""


def settings_of_process() -> dict[str, Any]:
    """All that a library could change, and that others in the process rely on."""
    root = logging.getLogger()
    status = Path("/proc/self/status").read_text().splitlines()
    return {
        "affinity": os.sched_getaffinity(0),
        "scheduler": (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)),
        "signal handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "signal mask": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "collector": (
            gc.isenabled(),
            gc.get_threshold(),
            gc.get_freeze_count(),
            gc.get_debug(),
            [*gc.callbacks],
        ),
        "logging": (
            root.level,
            [*root.handlers],
            [*root.filters],
            root.manager.disable,
            logging.getLoggerClass(),
        ),
        "log records": logging.getLogRecordFactory(),
        "captured warnings": warnings.showwarning,
        "warnings": [*warnings.filters],
        "umask": [line for line in status if line.startswith("Umask")],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "limits": {
            each: resource.getrlimit(getattr(resource, each))
            for each in dir(resource)
            if each.startswith("RLIMIT_")
        },
        "hooks": (sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook),
        "tracing": (sys.gettrace(), sys.getprofile(), sys.getswitchinterval(), sys.getrecursionlimit()),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "locale": locale.setlocale(locale.LC_ALL),
        "chance": random.getstate(),
        "decimals": str(decimal.getcontext()),
        "socket timeout": socket.getdefaulttimeout(),
        "asyncio policy": type(asyncio.get_event_loop_policy()),
        "folder of temporary files": tempfile.tempdir,
    }


def left_behind() -> dict[str, Any]:
    """Threads, descriptors and children. Trio keeps its idle threads for 10 s, for whoever asks next."""
    descriptors = {}
    for each in Path("/proc/self/fd").iterdir():
        try:
            descriptors[each.name] = os.readlink(each)
        except FileNotFoundError:
            continue  # that of the listing
    return {
        "threads": {each.name for each in threading.enumerate() if not each.name.startswith("Trio thread")},
        "descriptors": {
            name: of for name, of in descriptors.items() if not of.startswith(("/proc/", "/dev/urandom"))
        },
        "children": [
            each.read_text()
            for each in Path("/proc/self/task").glob("*/children")
            if each.read_text().strip()
        ],
    }


def differences(before: dict[str, Any], now: dict[str, Any], when: str) -> list[str]:
    return [
        f"{when}: {name} was {before[name]!r}, is {now[name]!r}"
        for name in before
        if before[name] != now[name]
    ]


class Watch:
    """Says what is no longer as it was when it was made."""

    def __init__(self) -> None:
        self.before = settings_of_process()
        self.found: list[str] = []

    def look(self, when: str) -> None:
        self.found += differences(self.before, settings_of_process(), when)


async def _with_tasks(package: str, folder: Path) -> list[str]:
    watch = Watch()
    api = importlib.import_module(package)
    watch.look("imported")
    async with api.Node(_settings(folder)) as node:
        async with api.Admin(node.endpoints) as admin:
            await admin.create_topic("t", 2, 1)
        async with (
            api.Producer(node.endpoints) as producer,
            api.Consumer(node.endpoints, **_READING) as consumer,
        ):
            await consumer.assign_topic("t")
            for number in range(RECORDS):
                await producer.send_and_wait("t", b"%d" % number)
                watch.look("while writing")
            found = 0
            while found < RECORDS:
                found += len(await consumer.poll(1000))
                watch.look("while reading")
    watch.look("afterwards")
    return watch.found


def _with_threads(package: str, folder: Path) -> list[str]:
    watch = Watch()
    api = importlib.import_module(package)
    watch.look("imported")
    with api.BlockingNode(_settings(folder)) as node:
        with api.BlockingAdmin(node.endpoints) as admin:
            admin.create_topic("t", 2, 1)
        with (
            api.BlockingProducer(node.endpoints) as producer,
            api.BlockingConsumer(node.endpoints, **_READING) as consumer,
        ):
            consumer.assign_topic("t")
            for number in range(RECORDS):
                producer.send("t", b"%d" % number).result()
                watch.look("while writing")
            found = 0
            while found < RECORDS:
                found += len(consumer.poll(1000))
                watch.look("while reading")
    watch.look("afterwards")
    return watch.found


_READING: dict[str, Any] = {"auto_offset_reset": "earliest"}


def _settings(folder: Path) -> Any:
    from insync.replication import NodeSettings

    return NodeSettings(node_id=1, data_dir=folder / "node-1", store=f"sqlite://{folder / 'meta.db'}")


def main(way: str, folder: Path) -> int:
    watch, left = Watch(), left_behind()
    if way == "trio":
        found = trio.run(_with_tasks, "insync.replication", folder)
    elif way == "asyncio":
        found = asyncio.run(_with_tasks("insync.replication.asyncio", folder))
    else:
        found = _with_threads("insync.replication", folder)
    watch.look("after the run")
    found += watch.found
    until = time.monotonic() + _PATIENCE
    while (still := differences(left, left_behind(), "left behind")) and time.monotonic() < until:
        time.sleep(0.05)
    print("\n".join(dict.fromkeys(found + still)))
    return bool(found or still)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
