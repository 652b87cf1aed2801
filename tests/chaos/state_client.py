"""A process that uses a ReplicatedDict, and says what it calls and is answered: JSON lines on standard output.

    {"ready": true}   the dict is open, and SIGTERM is heard
    {"call": n, "at": s, "key": key, "action": ["get"] | ["put", new] | ["put_if", old, new] | ["delete"]}
    {"answered": n, "at": s, "answer": value}
    {"refused": n}   the command was not applied, for certain
    {"error": name}   no answer came of a call
    {"broken": text}   its copy differs from the others

A call is said before it is made. Times are of the machine's monotonic clock. It ends by itself when another process
opens its name, and after SIGTERM.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from typing import Any

import trio

from insync.replication.client import ClientError
from insync.replication.state import DivergedError, FencedError, ReplicatedDict, StateClosedError

from .defects import plant
from .told_to_stop import ToldToStop

TOPIC = "state"
PERIODS = (5, 10, 20, 40)
"""Seconds for which a key is used. Then another takes its place, so that no key collects unknown outcomes."""
_TASKS = 3
_PAUSE = 0.04
_PATIENCE = 0.3, 8.0
_SETTINGS = {"snapshot_every": 1_000, "digest_every": 100, "open_timeout_ms": 90_000}
_REQUEST_TIMEOUTS_MS = (2_000, 4_000, 8_000)
"""Of the clients in turn: one that gives up early finds a new leader while others still ask the old one."""


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


class Client(ToldToStop):
    """Some tasks that call, each one thing after the other, until SIGTERM comes or another has the name."""

    def __init__(self, state: ReplicatedDict, name: str, seed: int) -> None:
        self._state = state
        self._name = name
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._last: dict[str, Any] = {}
        """The value that each key was last seen with here."""

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.stop_on_signal)
            say(ready=True)
            async with trio.open_nursery() as calls:
                for _ in range(_TASKS):
                    calls.start_soon(self._call)
            nursery.cancel_scope.cancel()

    async def _call(self) -> None:
        while not self.stopping:
            number, key = next(self._numbers), self._key()
            action = self._action(key, f"{self._name}.{number}")
            say(call=number, at=time.monotonic(), key=key, action=action)
            try:
                with trio.move_on_after(self._random.uniform(*_PATIENCE)) as patience:
                    answer = await self._do(key, *action)
                if patience.cancelled_caught:
                    say(error="no answer in time")
                else:
                    say(answered=number, at=time.monotonic(), answer=answer)
            except FencedError:
                if action[0] != "get":
                    say(refused=number)
                self.stopping = True
            except DivergedError as error:
                say(broken=str(error))
                raise
            except StateClosedError:
                raise
            except ClientError as error:
                say(error=type(error).__name__)
            await trio.sleep(self._random.uniform(0, 2 * _PAUSE))

    def _key(self) -> str:
        slot = self._random.randrange(len(PERIODS))
        return f"{slot}:{int(time.monotonic() // PERIODS[slot])}"

    def _action(self, key: str, new: str) -> list[Any]:
        """Half of the calls are reads; most comparisons are with the value that this process has seen last."""
        kind = self._random.choices(("get", "put", "put_if", "delete"), (50, 22, 22, 6))[0]
        if kind == "put_if":
            return [kind, self._last.get(key), new]
        return [kind, new] if kind == "put" else [kind]

    async def _do(self, key: str, kind: str, *values: Any) -> Any:
        answer = await getattr(self._state, kind)(key, *values)
        if kind != "delete" and answer is not False:
            self._last[key] = answer if kind == "get" else values[-1]
        return answer


async def use(servers: str, name: str, seed: int) -> None:
    timeout = _REQUEST_TIMEOUTS_MS[seed % len(_REQUEST_TIMEOUTS_MS)]
    async with ReplicatedDict.open(
        servers, TOPIC, name=name, request_timeout_ms=timeout, **_SETTINGS
    ) as state:
        await Client(state, name, seed).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--seed", type=int, required=True)
    given = parser.parse_args()
    plant()
    trio.run(use, given.servers, given.name, given.seed)


if __name__ == "__main__":
    main()
