"""Requests by schedule: each is sent when it is due, whatever has become of those before it (an open loop).

Clients that wait for an answer before they ask again send less while a service is slow: what they measure is their
own patience. Here the time of an answer counts from when its question was due.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import attrs


@attrs.define(eq=False)
class Offered:
    """What was asked, and what came of it. An `attempt` that fails is made again, as part of its request."""

    requests: int = 0
    answered: int = 0
    refused: int = 0
    """Attempts that were refused, or came to nothing: the service said that it cannot now, or nobody was there."""
    seconds: float = 0.0
    """How long the schedule ran."""
    took: list[float] = attrs.Factory(list)

    async def request(self, due: float, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Ask until there is an answer, for a minute at most: what `attempt` gave; it gives None if it failed."""
        self.requests += 1
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            answer = await attempt()
            if answer is not None:
                self.answered += 1
                self.took.append(time.monotonic() - due)
                return answer
            self.refused += 1
            await asyncio.sleep(0.05)
        return None

    async def schedule(
        self, rate: float, is_over: Callable[[], bool], one: Callable[[int, float], Coroutine[Any, Any, None]]
    ) -> None:
        """Begin `one(number, due)` `rate` times a second, until `is_over`; back when all of them have ended."""
        began = time.monotonic()
        end = float("inf")
        async with asyncio.TaskGroup() as group:
            number = 0
            while (due := began + number / rate) < end:
                # What is late is begun at once: the schedule does not wait for who is behind it.
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                group.create_task(one(number, due))
                number += 1
                if end == float("inf") and is_over():
                    end = time.monotonic()
            self.seconds = end - began

    def told(self) -> dict[str, Any]:
        """Counts and times, as figures of one line of JSON."""
        took = sorted(self.took) or [0.0]
        return {
            "requests": self.requests,
            "answered": self.answered,
            "refused": self.refused,
            "requests_per_second": round(self.requests / max(self.seconds, 1e-9), 1),
            "p50_ms": round(took[len(took) // 2] * 1000, 1),
            "p99_ms": round(took[len(took) * 99 // 100] * 1000, 1),
            "longest_ms": round(took[-1] * 1000, 1),
        }
