"""The log on disk: appends, reads, recovery, decoding, lookup and reopening, each beside its raw operation."""

from __future__ import annotations

import os
import random
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from insync.storage import Chunk, DiskLog, LogDirectory
from insync.storage.batch import build_batch, decode_columns, records, scan

from .report import Result, against, at_least, at_most, interleaved

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
READ_BYTES = MIB
CODECS: list[Any] = ["none", "gzip", "snappy", "lz4", "zstd"]


def block_of(size: int, value_bytes: int = 1000) -> bytes:
    """One batch of just under `size` bytes."""
    count = (size - 61) // (value_bytes + 10)
    noise = random.Random(1)
    values = [noise.randbytes(value_bytes) for _ in range(count)]
    return build_batch([None] * count, values, timestamps_ms=1_700_000_000_000)


def rate(total: int, work: Callable[[], object]) -> float:
    """Of bytes or whatever `total` counts, a second."""
    start = time.perf_counter()
    work()
    return total / (time.perf_counter() - start)


def core_rate(total: int, work: Callable[[], object]) -> float:
    """The same a second of one core, whatever else the machine does."""
    start = time.process_time()
    work()
    return total / (time.process_time() - start)


@contextmanager
def fresh_log(place: Path) -> Iterator[DiskLog]:
    folder = place / "t-0"
    folder.mkdir()
    log = DiskLog(folder, "t", 0)
    try:
        yield log
    finally:
        log.close(clean=False)
        shutil.rmtree(folder)


def append(place: Path, data: bytes, times: int, *, check: bool) -> float:
    """Appending as a leader does; with `check`, validated first, as a node does with what comes from outside."""
    infos = scan(data)
    step = sum(info.record_count for info in infos)
    with fresh_log(place) as log:

        def work() -> None:
            for at in range(times):
                log.append([Chunk(data, scan(data) if check else infos, at * step, 0)])

        return rate(times * len(data), work)


def write(place: Path, data: bytes, times: int) -> float:
    path = place / "raw"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        return rate(times * len(data), lambda: [os.write(fd, data) for _ in range(times)])
    finally:
        os.close(fd)
        path.unlink()


def appends(place: Path, rounds: int, total: int) -> list[Result]:
    block = block_of(64 * KIB)
    return [
        *append_set(place, rounds, total, "64 KiB batch", block, 0.75),
        *append_set(place, rounds, total, "1 MiB set", block * 16, 0.85),
    ]


def append_set(place: Path, rounds: int, total: int, name: str, data: bytes, bar: float) -> list[Result]:
    times = total // len(data)
    ours, raw, checked = interleaved(
        rounds,
        lambda: append(place, data, times, check=False),
        lambda: write(place, data, times),
        lambda: append(place, data, times, check=True),
    )
    return [
        against(f"append, {name}", ours / 1e6, "MB/s", raw / 1e6, bar),
        against(f"validate and append, {name}", checked / 1e6, "MB/s", raw / 1e6),
    ]


def fill(log: DiskLog, total: int, batch: bytes) -> None:
    """Append the batch until the log holds about `total` bytes, a few MiB at a time."""
    many = max(1, 4 * MIB // len(batch))
    data = batch * many
    infos = scan(data)
    while log.size_bytes + len(data) <= total:
        log.append([Chunk(data, infos, log.log_end_offset, 0)])


@contextmanager
def sink() -> Iterator[socket.socket]:
    """A socket that another process reads as fast as it can."""
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull, "wb") as nowhere:
        reader = subprocess.Popen(["cat"], stdin=theirs, stdout=nowhere)
        theirs.close()
        try:
            yield ours
        finally:
            ours.close()
            reader.wait(30)


def send_ranges(log: DiskLog, out: socket.socket) -> None:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes=READ_BYTES)
        assert result.range is not None
        send(out, result.range.fileno(), result.range.offset, result.size)
        offset = result.next_offset


def send(out: socket.socket, fd: int, position: int, size: int) -> None:
    while size:
        sent = os.sendfile(out.fileno(), fd, position, size)
        position, size = position + sent, size - sent


def send_file(path: Path, out: socket.socket) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        for position in range(0, size, READ_BYTES):
            send(out, fd, position, min(READ_BYTES, size - position))
    finally:
        os.close(fd)


def read_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    buffer = bytearray(4 * MIB)
    while os.readv(fd, [buffer]):
        pass
    os.close(fd)


def recover(folder: Path) -> DiskLog:
    """As after a crash at the worst moment: everything is scanned."""
    for path in (*folder.glob("*.index"), *folder.glob("*.timeindex"), *folder.glob("*.snapshot")):
        path.unlink()
    log = DiskLog(folder, "t", 0)
    log.close(clean=False)
    return log


def one_segment(place: Path, rounds: int, total: int) -> list[Result]:
    """Reading, recovering and looking up within one full segment."""
    with fresh_log(place) as log:
        fill(log, total, block_of(16 * KIB))
        path = log.folder / f"{0:020d}.log"
        size = path.stat().st_size
        with sink() as out:
            ranges, raw = interleaved(
                rounds,
                lambda: rate(size, lambda: send_ranges(log, out)),
                lambda: rate(size, lambda: send_file(path, out)),
            )
        wanted = random.Random(2).choices(range(log.log_end_offset), k=2000)
        lookup, pread = interleaved(
            rounds,
            lambda: 1e6 / core_rate(len(wanted), lambda: [log.read(each, max_bytes=1) for each in wanted]),
            lambda: 1e6 / rate(len(wanted), lambda: read_anywhere(path, size, len(wanted))),
        )
        log.flush()
        scanned, read = interleaved(
            rounds,
            lambda: rate(size, lambda: recover(log.folder)),
            lambda: rate(size, lambda: read_file(path)),
        )
    return [
        against("range read by sendfile", ranges / 1e6, "MB/s", raw / 1e6, 0.9),
        against("recovery scan", scanned / 1e6, "MB/s", read / 1e6, 0.6),
        at_most("lookup by offset", lookup, "us", 10),
        Result(name="  one pread of 4 KiB in the same file", value=round(pread, 3), unit="us"),
    ]


def read_anywhere(path: Path, size: int, times: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    for position in random.Random(3).choices(range(size - 4096), k=times):
        os.pread(fd, 4096, position)
    os.close(fd)


def decoding(rounds: int, count: int) -> list[Result]:
    """Records of 100 bytes on disk, as a producer's default batches hold them."""
    batch = block_of(16 * KIB, 90)
    data = batch * (count // scan(batch)[0].record_count)
    total = sum(info.record_count for info in scan(data))
    columns, rows, copied = interleaved(
        rounds,
        lambda: core_rate(total, lambda: decode_columns(data)),
        lambda: core_rate(total, lambda: exhaust(records(data))),
        lambda: core_rate(len(data), lambda: bytes(bytearray(data))),
    )
    return [
        at_least("decode to columns", columns, "records/s", 8e6),
        at_least("decode to Python records", rows, "records/s", 8e5),
        against(
            "columns, in bytes, beside two copies", columns * len(data) / total / 1e6, "MB/s", copied / 1e6
        ),
    ]


def repeat(times: int, work: Callable[[], object]) -> None:
    for _ in range(times):
        work()


def exhaust(found: Iterator[object]) -> None:
    for _ in found:
        pass


def codecs(rounds: int) -> list[Result]:
    """A batch of 64 KiB of text-like records, built and read in every codec, beside the uncompressed one."""
    values: list[bytes | None] = [
        b'{"id": %d, "name": "customer %d", "paid": true}' % (n, n % 91) for n in range(1300)
    ]
    keys: list[bytes | None] = [None] * len(values)
    decode_columns(build_batch(keys, values, timestamps_ms=0, compression="gzip"))  # loads the library
    built: dict[str, list[float]] = {}
    read: dict[str, list[float]] = {}
    for _ in range(rounds):
        for codec in CODECS:
            build = partial(build_batch, keys, values, timestamps_ms=0, compression=codec)
            built.setdefault(codec, []).append(core_rate(10 * len(values), partial(repeat, 10, build)))
            decode = partial(decode_columns, build())
            read.setdefault(codec, []).append(core_rate(10 * len(values), partial(repeat, 10, decode)))
    plain = {name: statistics.median(each["none"]) for name, each in (("build", built), ("decode", read))}
    return [
        against(f"{name} with {codec}", statistics.median(figures[codec]), "records/s", plain[name])
        for name, figures in (("build", built), ("decode", read))
        for codec in list(figures)[1:]
    ]


def reopening(place: Path, rounds: int, partitions: int) -> list[Result]:
    folder = place / "data"
    data = block_of(4 * KIB)
    directory = LogDirectory(folder, cluster_id="c", node_id=1)
    for partition in range(partitions):
        log = directory.open_log("t", partition, create=True)
        log.append([Chunk(data, scan(data), 0, 0)])
    directory.close()

    def reopen() -> float:
        start = time.perf_counter()
        directory = LogDirectory(folder, cluster_id="c", node_id=1)
        for partition in range(partitions):
            directory.open_log("t", partition, create=False)
        taken = time.perf_counter() - start
        directory.close()
        return taken

    def listing() -> float:
        start = time.perf_counter()
        for entry in os.scandir(folder):
            if entry.is_dir():
                for file in os.scandir(entry.path):
                    Path(file.path).read_bytes()
        return time.perf_counter() - start

    opened, listed = interleaved(rounds, reopen, listing)
    return [
        at_most(f"reopen {partitions} partitions", opened, "s", 2),
        Result(name="  reading all of their files", value=round(listed, 3), unit="s"),
    ]


def run(*, smoke: bool) -> Sequence[Result]:
    rounds = 1 if smoke else 5
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        return [
            *appends(place, rounds, (8 if smoke else 256) * MIB),
            *one_segment(place, rounds, 16 * MIB if smoke else GIB - MIB),
            *decoding(rounds, 20_000 if smoke else 500_000),
            *codecs(rounds),
            *reopening(place, rounds, 50 if smoke else 1000),
        ]
