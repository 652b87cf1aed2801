"""A listener that dies at the worst moment, in a process of its own: `live(facts)`.

`facts`: `servers`, `group`, `face`, `options` of the listener, `log` (a file that gets a line for all that is done,
at once), `poison` (values whose handler raises), `done` (values that count as handled), `until`
(how many different ones end it) and `die`: a moment, and how often it is to have come. The moments:

- `before-commit`, `after-commit`: offsets are about to be sent to the group, or were just acknowledged.
- `in-handler`: a handler is at work.
- `before-forward`, `after-forward`: a record that failed is about to be written elsewhere, or was just now.
- `in-pause`: a record has failed, and waits for its next attempt.
- `at-stop`: the listener ends because a record has failed.
- `before-end`, `after-end`: a transaction is about to be committed, or was.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
from collections.abc import Callable
from typing import Any

import trio

from insync.replication.client.consumer import Consumer
from insync.replication.client.producer import Producer
from insync.replication.listeners import AckMode, Listener
from insync.replication.listeners import asyncio as in_asyncio
from insync.replication.listeners import blocking as in_threads
from insync.replication.listeners._engine import Engine
from insync.replication.listeners._lanes import Lane

FACES: dict[str, Any] = {"trio": Listener, "asyncio": in_asyncio.Listener, "threads": in_threads.Listener}


class Moments:
    """Counts moments, and ends this process at the chosen one."""

    def __init__(self, name: str, number: int) -> None:
        self._name = name
        self._left = number

    def come(self, name: str) -> None:
        if name == self._name:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, method: str, before: str, after: str, told: Callable[..., None]) -> None:
        """An async method whose begin and end are moments."""
        right = getattr(owner, method)

        async def changed(this: Any, *args: Any, **kwargs: Any) -> Any:
            self.come(before)
            result = await right(this, *args, **kwargs)
            told(*args)
            self.come(after)
            return result

        setattr(owner, method, changed)


def live(facts: dict[str, Any]) -> None:
    """Run it to its end, or until it dies."""
    log = os.open(facts["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(*words: object) -> None:
        os.write(log, (" ".join(map(str, words)) + "\n").encode())

    moments = Moments(*facts["die"])
    moments.around(
        Consumer,
        "commit",
        "before-commit",
        "after-commit",
        lambda offsets: [note("committed", at[0], at[1], offset) for at, offset in offsets.items()],
    )
    moments.around(Engine, "forward", "before-forward", "after-forward", lambda *_: None)
    moments.around(Producer, "commit", "before-end", "after-end", lambda: None)
    waits = Lane.wait

    async def wait(self: Lane, seconds: float) -> None:
        moments.come("in-pause")
        await waits(self, seconds)

    Lane.wait = wait  # type: ignore[method-assign]
    fails = Engine.fail

    def fail(self: Engine, error: BaseException) -> None:
        fails(self, error)
        moments.come("at-stop")

    Engine.fail = fail  # type: ignore[method-assign]

    options = facts["options"]
    options["ack_mode"] = AckMode[options.get("ack_mode", "BATCH")]
    listener = FACES[facts["face"]](
        facts["servers"],
        group_id=facts["group"],
        topics=["t"],
        # Who comes back under the name of a dead one has its partitions at once.
        group_protocol="classic",
        group_instance_id="worker",
        **options,
    )
    poison = {value.encode() for value in facts["poison"]}
    done: set[bytes] = set(map(str.encode, facts["done"]))

    def handle(record: Any, extra: Any = None) -> Any:
        note("began", record.topic, record.partition, record.offset, record.value.decode())
        moments.come("in-handler")
        if record.value in poison:
            raise ValueError("poison")
        note("handled", record.topic, record.partition, record.offset, record.value.decode())
        done.add(record.value)
        if len(done) >= facts["until"]:
            listener.stop()
        if hasattr(extra, "acknowledge"):
            return extra.acknowledge()
        return extra.send("out", record.value, key=facts["group"].encode()) if extra is not None else None

    async def handle_async(*arguments: Any) -> None:
        result = handle(*arguments)
        if inspect.isawaitable(result):
            await result

    listener.handler(handle if facts["face"] == "threads" else handle_async)
    if facts["face"] == "trio":
        trio.run(listener.run)
    elif facts["face"] == "asyncio":
        asyncio.run(listener.run())
    else:
        listener.run()
