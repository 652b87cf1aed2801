"""Ranges of a log that wait in a TCP socket, by reference, while the log changes under them.

The reader gets the bytes that were there when the range was read, or something that it can tell is wrong: too
little, or a batch whose CRC does not match. It never accepts other bytes. Sockets, processes and files are real.
"""

from __future__ import annotations

import fcntl
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from insync.storage.batch import scan_prefix

from .range_server import numbered

BATCHES = 400
"""16 MB: more than the sockets take, so that a part waits in them and the rest in the sender."""
SIZE = len(numbered(0))


@attrs.define(eq=False)
class Sender:
    process: subprocess.Popen[str]
    reader: socket.socket

    def do(self, command: str, *numbers: int) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command} {' '.join(map(str, numbers))}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def receive(self, size: int) -> bytes:
        """So many bytes, or fewer if the sender has given up or is gone."""
        parts = []
        try:
            while size and (part := self.reader.recv(min(size, 1 << 20))):
                parts.append(part)
                size -= len(part)
        except ConnectionResetError:
            pass
        return b"".join(parts)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _waiting(reader: socket.socket) -> int:
    """How many bytes lie in the reader's socket."""
    return int.from_bytes(fcntl.ioctl(reader, termios.FIONREAD, bytes(4)), sys.byteorder)


@contextmanager
def sender(folder: Path, *options: str) -> Iterator[Sender]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.storage.segment.range_server", str(folder), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        reader = socket.create_connection(("127.0.0.1", int(process.stdout.readline())), 60)
        with reader:
            yield Sender(process, reader)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def placed(serial: int, offset: int, epoch: int) -> bytes:
    """A batch as it stands in the log."""
    data = numbered(serial)
    return offset.to_bytes(8) + data[8:12] + epoch.to_bytes(4) + data[16:]


ORIGINAL = b"".join(placed(serial, 2 * serial, 0) for serial in range(BATCHES))


def accepted(received: bytes) -> bytes:
    """What a reader takes of it: whole batches with the right CRC, up to the first that is not."""
    _, end, _ = scan_prefix(received)
    return received[:end]


def check(received: bytes) -> None:
    taken = accepted(received)
    assert taken == ORIGINAL[: len(taken)]


def begin(link: Sender) -> int:
    """Have the first segment half sent, stuck; its size."""
    assert link.do("fill", 0, BATCHES, 0) == 2 * BATCHES
    sent = link.do("send", 0, 1 << 30)
    assert 7 << 20 < sent <= 8 << 20
    deadline = time.monotonic() + 60
    while _waiting(link.reader) <= 2 * SIZE:  # on a busy machine they come later than the sender's answer
        assert time.monotonic() < deadline
    assert _waiting(link.reader) < sent
    return sent


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0, 3, 60])
def test_truncation_and_other_batches_in_the_same_place(tmp_path: Path, keep: int) -> None:
    with sender(tmp_path) as link:
        sent = begin(link)
        queued = _waiting(link.reader)
        assert link.do("truncate", 2 * keep) == 2 * keep
        link.do("fill", 5000, BATCHES, 1)
        received = link.receive(sent)
        check(received)
        if keep:
            assert len(received) < sent, "the sender notices and gives up"
        else:
            assert received == ORIGINAL[:sent], "a segment that goes as a whole is left as it was"
        assert len(accepted(received)) > min(keep * SIZE, queued) - SIZE, (
            "what had come and was not cut is good"
        )


def test_a_cut_inside_what_has_come_but_is_not_read(tmp_path: Path) -> None:
    """The socket refers to the file's memory, of which the page with the cut is cleared behind it."""
    with sender(tmp_path) as link:
        begin(link)
        queued = _waiting(link.reader)
        assert queued > 2 * SIZE
        assert link.do("truncate", 2) == 2
        link.do("fill", 5000, 10, 1)
        received = link.receive(queued)
        assert len(received) == queued
        check(received)
        assert accepted(received).startswith(ORIGINAL[:SIZE])


def test_deletion_leaves_ranges_alone(tmp_path: Path) -> None:
    with sender(tmp_path) as link:
        begin(link)
        assert link.do("maintain") >= 1
        assert not (tmp_path / "t-0" / f"{0:020d}.log").exists()
        link.do("fill", 5000, BATCHES, 1)
        whole = (8 << 20) // SIZE * SIZE
        assert link.receive(whole) == ORIGINAL[:whole]


def test_compaction_leaves_ranges_alone(tmp_path: Path) -> None:
    with sender(tmp_path, "compact") as link:
        begin(link)
        first = tmp_path / "t-0" / f"{0:020d}.log"
        before = first.stat().st_size
        assert link.do("maintain") > 8_000_000
        assert first.stat().st_size < before / 10
        link.do("fill", 5000, BATCHES, 1)
        whole = (8 << 20) // SIZE * SIZE
        assert link.receive(whole) == ORIGINAL[:whole]


@pytest.mark.slow
@pytest.mark.parametrize("change", ["truncate", "delete", "compact"])
def test_a_killed_sender_and_its_successor(tmp_path: Path, change: str) -> None:
    """What the dead process had queued still arrives, while its successor changes the files."""
    options = ("compact",) if change == "compact" else ()
    with sender(tmp_path, *options) as link:
        begin(link)
        queued = _waiting(link.reader)
        link.kill()
        with sender(tmp_path, *options) as successor:
            if change == "truncate":
                assert successor.do("truncate", 30) == 30
            else:
                assert successor.do("maintain") >= 1
            successor.do("fill", 5000, BATCHES, 1)
            received = link.receive(1 << 30)
        assert len(received) >= queued
        if change == "truncate":
            check(received)
            assert len(accepted(received)) >= 15 * SIZE
        else:
            assert received == ORIGINAL[: len(received)]
