"""`python -m tests.wakeups [--messages N] [--seed N] [URL ...]`: is a wake-up ever lost between two processes?

Requests of random sizes in bursts of random lengths, each burst to its end, so that both ends fall asleep and are
woken again hundreds of thousands of times: for bytes that arrive, for room to send, for what is queued by another
task. There are no timeouts and no keepalive that would hide a lost one: it shows as a standstill. Ends with status
1 if one comes, or if an answer is not what was asked for.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import attrs
import trio

from insync.transport import Connection, Identity, Limits, Request, Response, TransportError, connect, serve

URLS = ("tcp://127.0.0.1:0", "unix://@", "shm://@")
MESSAGES = 10_000_000
PATIENCE = 20
"""Seconds without an answer, counted one by one while this process runs, that are taken for a standstill."""
NOW, LATER = 1, 2
"""Kinds of requests: answered by the reader, or by another task."""
LIMITS = Limits(keepalive=1e6)
SIZES = (0, 1, 64, 5_000, 20_000, 70_000, 200_000, 1_500_000)
WEIGHTS = (300, 200, 400, 60, 20, 10, 6, 1)
MOST_UNDER_WAY = 64
BURSTS = (1, 1, 1, 2, 2, 3, 10, 100)


class StandstillError(Exception):
    """No answer came for a while."""


@attrs.define
class Answerer:
    """Sends payloads back: at once, or from a task that sleeps in between."""

    waiting: list[Request] = attrs.Factory(list)
    news: trio.Event = attrs.Factory(trio.Event)

    def handle(self, request: Request) -> None:
        if request.kind == LATER:
            self.waiting.append(request)
            self.news.set()
        else:
            self.answer(request)

    @staticmethod
    def answer(request: Request) -> None:
        with request.payload as payload:
            request.reply(request.body, [bytes(payload.view())])

    async def run(self) -> None:
        while True:
            await self.news.wait()
            self.news = trio.Event()
            waiting, self.waiting = self.waiting, []
            for request in waiting:
                self.answer(request)


async def answer(url: str, *, say: Callable[[str], None]) -> None:
    """Serve at `url` until cancelled; `say` is told where that is."""
    answerer = Answerer()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answerer.run)
        serving = await nursery.start(
            partial(serve, url, answerer.handle, identity=Identity("wakeups", 1), limits=LIMITS)
        )
        say(str(serving.endpoints[0]))


@attrs.define
class Asker:
    """Asks `messages` times, in bursts."""

    messages: int
    random: random.Random
    answered: int = 0
    bursts: int = 0
    asked: int = 0
    end_of_burst: int = 0
    is_over: trio.Event = attrs.Factory(trio.Event)
    wrong: list[str] = attrs.Factory(list)

    async def run(self, url: str) -> None:
        """Raises StandstillError, ValueError for a wrong answer."""
        content = self.random.randbytes(max(SIZES))
        async with trio.open_nursery() as nursery:
            connection = await connect(url, identity=Identity(), nursery=nursery, limits=LIMITS)
            nursery.start_soon(self._watch, url)
            while self.answered < self.messages and not self.wrong:
                length = min(self.random.choice(BURSTS), self.messages - self.answered)
                self.end_of_burst, self.is_over = self.answered + length, trio.Event()
                for _ in range(min(length, self.random.randint(1, MOST_UNDER_WAY))):
                    self._ask(connection, content)
                await self.is_over.wait()
                self.bursts += 1
            if self.wrong:
                raise ValueError(f"{url}: {self.wrong[0]}")
            await connection.aclose()
            nursery.cancel_scope.cancel()

    def _ask(self, connection: Connection, content: bytes) -> None:
        self.asked += 1
        number = self.asked
        (size,) = self.random.choices(SIZES, WEIGHTS)
        body = number.to_bytes(8)
        view = memoryview(content)[:size]

        def done(answer: Response | TransportError) -> None:
            if isinstance(answer, TransportError):
                self.wrong.append(f"request {number} failed: {answer}")
            else:
                with answer:
                    if answer.body != body or answer.payload.view() != view:
                        self.wrong.append(f"request {number} of {size} bytes got another answer")
            self.answered += 1
            if self.wrong or self.answered == self.end_of_burst:
                self.is_over.set()
            elif self.asked < self.end_of_burst:
                self._ask(connection, content)

        kind = LATER if self.random.random() < 0.2 else NOW
        connection.request_nowait(kind, body, [view], timeout=float("inf"), on_done=done)

    async def _watch(self, url: str) -> None:
        seen, silent = -1, 0
        while silent < PATIENCE:
            await trio.sleep(1)
            silent = silent + 1 if self.answered == seen else 0
            seen = self.answered
        raise StandstillError(
            f"{url}: no answer for {PATIENCE} s after {self.answered} of {self.asked} requests: a wake-up is lost"
        )


@contextmanager
def far_end(url: str) -> Iterator[str]:
    """A process that answers; gives its address."""
    command = [sys.executable, "-m", "tests.wakeups", "--answer", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


async def _answer_until_input_ends(url: str) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(answer, url, say=partial(print, flush=True)))
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wakeups", description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="of all transports together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--answer", metavar="URL", help="be the far end")
    parser.add_argument("urls", nargs="*", default=URLS, metavar="URL")
    args = parser.parse_args(arguments)
    if args.answer:
        trio.run(_answer_until_input_ends, args.answer)
        return 0
    share = args.messages // len(args.urls)
    verdicts = [check(url, share, args.seed) for url in args.urls]
    return 0 if all(verdicts) else 1


def check(url: str, messages: int, seed: int) -> bool:
    """Say how it went over one transport; False if badly."""
    asker = Asker(messages, random.Random(seed))
    failures: list[Exception] = []
    start = time.monotonic()
    try:
        with far_end(url) as address:
            trio.run(asker.run, address)
    except* (StandstillError, ValueError) as errors:
        failures += errors.exceptions
    if failures:
        print(*failures, sep="\n", file=sys.stderr)
        return False
    took = time.monotonic() - start
    print(
        f"{url}: {asker.answered:,} answers in {asker.bursts:,} bursts, {took:.0f} s, none lost", flush=True
    )
    return True


if __name__ == "__main__":
    sys.exit(main())
