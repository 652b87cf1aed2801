"""unix:// and shm:// beside tcp://, within one machine: following a log, bytes, and small requests."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from insync.replication.core.broker.fetching.following import HANDED_OVER
from insync.storage import Chunk, DiskLog
from insync.storage.batch import scan
from insync.transport import Connection, Identity, Payload, Response, TransportError, connect

from ._page_cache import touch
from ._peers.bare import Load
from ._peers.bare import follow as follow_bare
from ._peers.far_end import far_process
from ._peers.local_peer import BYTES, CPU, ECHO, FETCH, FETCH_BODY, PAYLOAD_BYTES, SECONDS
from .report import Result, against

GIB = 1 << 30
FETCH_BYTES = 1 << 20
"""`replica_fetch_max_bytes`, as it is by default."""
LARGE_FETCH_BYTES = HANDED_OVER * FETCH_BYTES
SMALL_WINDOW, LARGE_WINDOW = 64, 4
URLS = {"tcp": "tcp://127.0.0.1:0", "unix": "unix://@", "shm": "shm://@"}


@attrs.frozen
class Far:
    """A leader's process: where it is reached, and where its log of `size` bytes ends."""

    url: str
    log_end_offset: int
    size: int


def bare_end(scheme: str, place: Path, total: int) -> AbstractContextManager[str]:
    """The leader of the loop by bare system calls; gives its address."""
    return far_process("_peers.bare", scheme, str(total), environment={"TMPDIR": str(place)})


Take = Callable[[DiskLog, Payload], None]


def append(log: DiskLog, payload: Payload) -> None:
    """Check the batches in memory, then write them, as nodes do."""
    data = payload.view()
    log.append([Chunk(data, scan(data), log.log_end_offset, None)])


@contextmanager
def far_end(scheme: str, place: Path, total: int) -> Iterator[Far]:
    with far_process("_peers.local_peer", URLS[scheme], str(place / scheme), str(total)) as ready:
        url, end = ready.split()
        yield Far(url, int(end), total)


async def follow(far: Far, take: Take, place: Path, fetch_bytes: int = 0) -> Load:
    """Fetch a log from its beginning to its end, one fetch after the other, into a log of one's own.

    `fetch_bytes` at a time; 0: as many as a node asks for.
    """
    folder = place / "follower"
    folder.mkdir()
    touch(place, far.size)
    log = DiskLog(folder, "bench", 0)
    try:
        async with trio.open_nursery() as nursery:
            connection = await connect(far.url, identity=Identity(), nursery=nursery)
            cpu = await _cpu(connection) + time.process_time()
            start = time.perf_counter()
            size = fetch_bytes or FETCH_BYTES * (HANDED_OVER if connection.hands_over_files else 1)
            while log.log_end_offset < far.log_end_offset:
                body = FETCH_BODY.pack(log.log_end_offset, size)
                with await connection.request(FETCH, body, timeout=30) as response:
                    take(log, response.payload)
            elapsed = time.perf_counter() - start
            cpu = await _cpu(connection) + time.process_time() - cpu
            await connection.aclose()
        return Load(log.size_bytes / elapsed, cpu / log.size_bytes * GIB)
    finally:
        log.close(clean=False)
        shutil.rmtree(folder)


async def payloads_load(far: Far, kind: int, count: int) -> Load:
    """Payloads of 1 MiB, of a file's ranges or of bytes, each looked at; a few asked for ahead."""
    body = FETCH_BODY.pack(0, PAYLOAD_BYTES) if kind == FETCH else b""
    async with trio.open_nursery() as nursery:
        connection = await connect(far.url, identity=Identity(), nursery=nursery)
        cpu = await _cpu(connection) + time.process_time()
        start = time.perf_counter()
        size = await _pipeline(connection, kind, body, count, LARGE_WINDOW)
        elapsed = time.perf_counter() - start
        cpu = await _cpu(connection) + time.process_time() - cpu
        await connection.aclose()
    return Load(size / elapsed, cpu / size * GIB)


async def round_trip(far: Far, count: int) -> float:
    async with trio.open_nursery() as nursery:
        connection = await connect(far.url, identity=Identity(), nursery=nursery)
        start = time.perf_counter()
        for _ in range(count):
            (await connection.request(ECHO, b"x" * 64, timeout=30)).release()
        elapsed = time.perf_counter() - start
        await connection.aclose()
    return elapsed / count


async def small_requests(far: Far, count: int) -> float:
    async with trio.open_nursery() as nursery:
        connection = await connect(far.url, identity=Identity(), nursery=nursery)
        start = time.perf_counter()
        await _pipeline(connection, ECHO, b"x" * 64, count, SMALL_WINDOW)
        elapsed = time.perf_counter() - start
        await connection.aclose()
    return count / elapsed


async def _cpu(connection: Connection) -> float:
    with await connection.request(CPU, timeout=30) as response:
        return float(SECONDS.unpack(response.body)[0])


async def _pipeline(connection: Connection, kind: int, body: bytes, count: int, window: int) -> int:
    """So many requests, `window` of them under way at a time, without a task for each; the bytes that came."""
    asked = done = size = 0
    finished = trio.Event()
    failures: list[TransportError] = []

    def ask() -> None:
        nonlocal asked
        asked += 1
        connection.request_nowait(kind, body, timeout=60, on_done=take)

    def take(answer: Response | TransportError) -> None:
        nonlocal done, size
        if isinstance(answer, TransportError):
            failures.append(answer)
            finished.set()
            return
        with answer:
            size += len(answer.payload.view())
        done += 1
        if asked < count:
            ask()
        if done == count:
            finished.set()

    for _ in range(min(window, count)):
        ask()
    await finished.wait()
    if failures:
        raise failures[0]
    return size


def _loads(rounds: int, measures: dict[str, Callable[[], Load]]) -> dict[str, Load]:
    """The median of each, taken in turn so that all see the same machine."""
    samples: dict[str, list[Load]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            samples[name].append(measure())
    return {
        name: Load(statistics.median(one.rate for one in loads), statistics.median(one.cpu for one in loads))
        for name, loads in samples.items()
    }


def _figures(rounds: int, measures: dict[str, Callable[[], float]]) -> dict[str, float]:
    samples: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            samples[name].append(measure())
    return {name: statistics.median(values) for name, values in samples.items()}


def run(*, smoke: bool) -> Sequence[Result]:
    total, requests, rounds = (16 << 20, 200, 1) if smoke else (512 << 20, 5_000, 5)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        far = {scheme: stack.enter_context(far_end(scheme, place, total)) for scheme in URLS}
        bare = {scheme: stack.enter_context(bare_end(scheme, place, total)) for scheme in ("tcp", "shm")}
        followed = _loads(
            rounds,
            {
                "tcp": partial(trio.run, follow, far["tcp"], append, place),
                "unix": partial(trio.run, follow, far["unix"], append, place),
                "shm": partial(trio.run, follow, far["shm"], append, place),
                "tcp, 4 MiB at a time": partial(
                    trio.run, follow, far["tcp"], append, place, LARGE_FETCH_BYTES
                ),
                "shm, 1 MiB at a time": partial(trio.run, follow, far["shm"], append, place, FETCH_BYTES),
                **{
                    f"bare {scheme}, {size >> 20} MiB at a time": partial(
                        follow_bare, scheme, address, total, size, place
                    )
                    for scheme, address in bare.items()
                    for size in (FETCH_BYTES, LARGE_FETCH_BYTES)
                },
            },
        )
        count = total // PAYLOAD_BYTES
        ranges, payloads = (
            _loads(
                rounds,
                {name: partial(trio.run, payloads_load, one, kind, count) for name, one in far.items()},
            )
            for kind in (FETCH, BYTES)
        )
        trips = _figures(
            rounds, {name: partial(trio.run, round_trip, one, requests) for name, one in far.items()}
        )
        small = _figures(
            rounds, {name: partial(trio.run, small_requests, one, 5 * requests) for name, one in far.items()}
        )
    return [
        *_rates("follow a log", followed, {"shm": 1.8}),
        *_rates("ranges of 1 MiB, read", ranges, {}),
        *_rates("bytes of 1 MiB", payloads, {}),
        *(against(f"round trip: {name}", trips[name] * 1e6, "us", trips["tcp"] * 1e6) for name in URLS),
        *(against(f"small requests: {name}", small[name], "1/s", small["tcp"]) for name in URLS),
    ]


def _rates(what: str, loads: dict[str, Load], bars: dict[str, float]) -> Iterator[Result]:
    tcp = loads["tcp"]
    for name, load in loads.items():
        yield against(f"{what}: {name}", load.rate / 1e6, "MB/s", tcp.rate / 1e6, bars.get(name))
        yield against("  CPU of both ends", load.cpu, "s/GiB", tcp.cpu)
