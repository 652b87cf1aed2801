"""A group of librdkafka's consumers, with the consumer protocol (KIP-848), at three brokers of a real Kafka.

Members only join, give and take: every partition that they are assigned is paused. One of them is a process of its
own, which can be killed: `python -m tests.bench._kafka.groups SERVERS`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

TOPIC, GROUP = "t", "g"
PATIENCE = 120.0
"""Seconds for the members to share the partitions out; a JVM has to get warm."""


def settings(session_ms: int, heartbeat_ms: int) -> str:
    """Lines for the brokers: sessions and heartbeats as ours have them."""
    return (
        f"group.consumer.min.session.timeout.ms={session_ms}\ngroup.consumer.session.timeout.ms={session_ms}\n"
        f"group.consumer.min.heartbeat.interval.ms={heartbeat_ms}\n"
        f"group.consumer.heartbeat.interval.ms={heartbeat_ms}\n"
    )


def _consumer(servers: str) -> Any:
    import confluent_kafka as ck

    return ck.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": GROUP,
            "group.protocol": "consumer",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )


class Members:
    """Consumers of this process, polled in turn by the caller of `until`. Partitions are numbers."""

    def __init__(self, servers: str, partitions: int) -> None:
        self._servers = servers
        self._partitions = partitions
        self.living: list[Any] = []
        self.owned: dict[int, set[int]] = {}
        """By the place of the consumer in the order of their starts."""
        self.lost: dict[int, float] = {}
        self.gaps: list[float] = []
        self._started = 0

    def start(self) -> None:
        consumer, place = _consumer(self._servers), self._started
        self._started += 1
        self.owned[place] = set()

        def assigned(who: Any, partitions: Sequence[Any]) -> None:
            who.incremental_assign(partitions)
            who.pause(partitions)
            now = time.monotonic()
            for each in partitions:
                self.owned[place].add(each.partition)
                if each.partition in self.lost:
                    self.gaps.append(now - self.lost.pop(each.partition))

        def revoked(who: Any, partitions: Sequence[Any]) -> None:
            who.incremental_unassign(partitions)
            self._loses(place, {each.partition for each in partitions})

        consumer.subscribe([TOPIC], on_assign=assigned, on_revoke=revoked)
        self.living.append((place, consumer))

    def _loses(self, place: int, partitions: set[int]) -> None:
        now = time.monotonic()
        for each in partitions & self.owned[place]:
            self.owned[place].discard(each)
            self.lost[each] = now

    def leave(self) -> threading.Thread:
        """The oldest closes; a thread, because it waits for the answer of its coordinator."""
        place, consumer = self.living.pop(0)
        self._loses(place, set(self.owned[place]))
        thread = threading.Thread(target=consumer.close)
        thread.start()
        return thread

    def killed(self) -> None:
        """What nobody of this process has was that of a process that is dead now."""
        now = time.monotonic()
        mine = set().union(*self.owned.values())
        self.lost |= {each: now for each in range(self._partitions) if each not in mine}

    def until(self, shares: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not shares():
            for _, consumer in self.living:
                consumer.poll(0)
            if time.monotonic() > deadline:
                raise RuntimeError("Kafka's group is not shared out")

    def own(self, partitions: int) -> bool:
        """Whether the members of this process have so many partitions, in fair shares."""
        counts = [len(self.owned[place]) for place, _ in self.living]
        return sum(counts) == partitions and max(counts) - min(counts) <= 1

    def close(self) -> None:
        threads = [threading.Thread(target=consumer.close) for _, consumer in self.living]
        for each in threads:
            each.start()
        for each in threads:
            each.join()


@contextmanager
def _other(servers: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", "tests.bench._kafka.groups", servers])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def rebalances(servers: str, count: int, partitions: int) -> dict[str, dict[str, float]]:
    """Seconds, by what happens (`joins`, `leaves`, `killed`): until all is shared again, and without an owner."""
    members = Members(servers, partitions)
    found: dict[str, dict[str, float]] = {}

    def measure(name: str, act: Callable[[], object], shares: Callable[[], bool]) -> None:
        members.gaps.clear()
        began = time.monotonic()
        act()
        members.until(shares)
        gaps = sorted(members.gaps)
        found[name] = {"all": time.monotonic() - began}
        if gaps:
            found[name] |= {"median": statistics.median(gaps), "p99": gaps[int(len(gaps) * 0.99)]}

    def fair(others: int) -> bool:
        """Whether all is shared, with a share like everybody's for each process besides this one."""
        least = partitions // (len(members.living) + others)
        return any(members.own(partitions - others * each) for each in (least, least + 1))

    closing: list[threading.Thread] = []

    def kill() -> None:
        other.kill()
        other.wait()
        members.killed()

    with _other(servers) as other:
        for _ in range(count - 1):
            members.start()
        members.until(lambda: fair(1))
        measure("joins", members.start, lambda: fair(1))
        measure("leaves", lambda: closing.append(members.leave()), lambda: fair(1))
        measure("killed", kill, lambda: fair(0))
    members.close()
    for each in closing:
        each.join()
    return found


if __name__ == "__main__":
    alone = Members(sys.argv[1], 0)
    alone.start()
    while True:
        for _, one in alone.living:
            one.poll(1)
