"""Kit, group C: file ranges and received payloads."""

from __future__ import annotations

import gc
import os
import random
import tempfile

import trio
import trio.testing

from ..abc import Link, Part
from ..errors import EndOfLink, LinkBroken, RangeTruncated
from ..patience import PATIENCE
from ._frame import Env, FileSlice, Needs, case, file_of, message, pair, receive, served_stream

CONTENT = random.Random(7).randbytes(3 << 20)


async def _sent(one: Link, other: Link, parts: list[Part]) -> bytes:
    """The bytes that arrive of these parts."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.send, message(b"", parts), parts)
        return (await receive(other))[1]


@case("C")
async def ranges_among_bytes(env: Env) -> None:
    """A range, and bytes + range + bytes, short and long."""
    with file_of(CONTENT) as fd:
        async with pair(env) as (one, other):
            for length in (1, 100, 16383, 16384, 65536, 1 << 20, 3 << 20):
                part = FileSlice(fd, 0, length)
                assert await _sent(one, other, [part]) == CONTENT[:length]
                assert await _sent(one, other, [b"<", part, b">"]) == b"<" + CONTENT[:length] + b">"


@case("C")
async def ranges_anywhere(env: Env) -> None:
    """Unaligned, empty, the last byte of the file, and 40 at random in one frame: the same bytes as read."""
    draw = random.Random(11)
    with file_of(CONTENT) as fd:
        async with pair(env) as (one, other):
            size = len(CONTENT)
            chosen = [(12345, 70001), (5, 0), (size - 1, 1), (size - 20000, 20000)]
            chosen += [(start := draw.randrange(size), draw.randrange(size - start) // 8) for _ in range(40)]
            parts: list[Part] = [FileSlice(fd, offset, length) for offset, length in chosen]
            expected = b"".join(CONTENT[offset : offset + length] for offset, length in chosen)
            assert await _sent(one, other, parts) == expected


@case("C")
async def the_file_may_grow_and_be_unlinked(env: Env) -> None:
    """While a range is sent, appends and the loss of its name change nothing."""
    with tempfile.TemporaryDirectory() as folder, file_of(CONTENT, folder) as fd:
        (name,) = os.listdir(folder)
        part = FileSlice(fd, 0, len(CONTENT))
        async with pair(env) as (one, other), trio.open_nursery() as nursery:
            nursery.start_soon(one.send, message(b"", [part]), [part])
            await trio.testing.wait_all_tasks_blocked()
            os.unlink(os.path.join(folder, name))
            os.write(fd, b"more" * 10000)
            assert (await receive(other))[1] == CONTENT


@case("C")
async def the_owner_may_close_after_send(env: Env) -> None:
    """Once send has returned, the descriptor is not needed any more."""
    fd = os.memfd_create("kit")
    os.write(fd, CONTENT[: 64 << 10])
    part = FileSlice(fd, 0, 64 << 10)
    async with pair(env) as (one, other), trio.open_nursery() as nursery:

        async def send() -> None:
            await one.send(message(b"", [part]), [part])
            os.close(fd)

        nursery.start_soon(send)
        assert (await receive(other))[1] == CONTENT[: 64 << 10]


@case("C")
async def a_range_beyond_the_end_breaks_the_link(env: Env) -> None:
    """RangeTruncated for the sender, soon; the peer gets no frame. Also for a short range."""
    for length in (100, 200_000):
        with file_of(b"x" * (length - 10)) as fd:
            part = FileSlice(fd, 0, length)
            async with pair(env) as (one, other), trio.open_nursery() as nursery:
                nursery.start_soon(_expect_no_frame, other)
                with trio.fail_after(2 * PATIENCE):
                    try:
                        await one.send(message(b"", [part]), [part])
                    except RangeTruncated as error:
                        one.abort()
                        assert "range" in str(error)
                    else:
                        raise AssertionError("a range beyond the end of its file was sent")


async def _expect_no_frame(link: Link) -> None:
    try:
        await receive(link)
    except (LinkBroken, EndOfLink):
        return
    raise AssertionError("a frame arrived that was never completed")


@case("C")
async def what_is_no_file_is_copied_or_refused(env: Env) -> None:
    """A range of a special file (here /proc's) arrives, or is refused; nothing hangs."""
    fd = os.open("/proc/self/maps", os.O_RDONLY)
    try:
        part = FileSlice(fd, 0, 17000)
        async with pair(env) as (one, other):
            try:
                assert len(await _sent(one, other, [part])) == part.length
            except* (RangeTruncated, LinkBroken, EndOfLink):
                one.abort()
    finally:
        os.close(fd)


@case("C")
async def copying_a_payload_equals_its_view(env: Env) -> None:
    """copy_to writes what view shows, at the offset."""
    async with pair(env) as (one, other), trio.open_nursery() as nursery:
        for size in (10, 100_000):
            data = CONTENT[:size]
            nursery.start_soon(one.send, message(b"", [data]), [data])
            _, payload = await other.recv()
            with file_of(b"") as fd, payload:
                assert payload.nbytes == size and payload.view() == data
                assert payload.copy_to(fd, 5) == size
                assert os.pread(fd, size + 10, 5) == data


@case("C")
async def a_payload_is_released_once(env: Env) -> None:
    """Twice is no harm; its view is refused afterwards; what a holder kept is not overwritten by later frames."""
    first, second = CONTENT[:200_000], CONTENT[200_000:400_000]
    async with pair(env) as (one, other), trio.open_nursery() as nursery:
        nursery.start_soon(one.send, message(b"", [first]), [first])
        _, payload = await other.recv()
        kept = payload.view()[1:]
        payload.release()
        payload.release()
        try:
            payload.view()
        except ValueError:
            pass
        else:
            raise AssertionError("a released payload shows its bytes")
        for _ in range(4):
            assert await _sent(one, other, [second]) == second
        assert kept == first[1:]


@case("C", Needs.STREAM)
async def a_large_range_needs_little_memory(env: Env) -> None:
    """64 MiB of a file to a reader that takes small pieces: there are never 24 MiB of it in memory."""
    size = 64 << 20
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        part = FileSlice(file.fileno(), 0, size)
        async with served_stream(env) as (link, stream), trio.open_nursery() as nursery:
            gc.collect()
            before = most = _resident()
            nursery.start_soon(link.send, message(b"", [part]), [part])
            buffer, left = memoryview(bytearray(128 << 10)), size
            while left > 0:
                left -= await stream.receive_into(buffer)
                most = max(most, _resident())
    assert most - before < 24 << 20, f"{(most - before) >> 20} MiB of memory for a range"


def _resident() -> int:
    """Bytes of memory that this process has, shared ones apart."""
    with open("/proc/self/statm") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * os.sysconf("SC_PAGESIZE")


@case("C")
async def many_files_leave_no_descriptor(env: Env) -> None:
    """200 files, one range each."""
    async with pair(env) as (one, other):
        for number in range(200):
            with file_of(b"%d" % number * 10000) as fd:
                part = FileSlice(fd, 0, 10000)
                assert await _sent(one, other, [part]) == (b"%d" % number * 10000)[:10000]
