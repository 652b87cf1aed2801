"""The leases of sessions: fixed slots of a small file beside the database, renewed without its write lock.

Format: slots of 64 bytes, little-endian. Slot 0 is the header: magic, format version, identity of the database,
CRC-32. Slot 1 holds the sequence of the last transaction begun (8 bytes), by which others notice changes without
asking SQLite. Every other slot is one lease: session id, boot id, deadline (ns of CLOCK_MONOTONIC), timeout (ms),
sequence, pid, CRC-32. Lease slots are given out and taken back under the database's write lock; in between only the
owner writes. Any slot that does not hold a valid, unexpired lease of the asked session means: that session is over.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import time
import zlib
from contextlib import suppress
from pathlib import Path

import attrs

from ..errors import StoreCorruptError, StoreUnavailableError, StoreVersionError

SLOT_BYTES = 64
FIRST_SLOT = 2
_MAGIC = b"insyncLS"
_FORMAT = 1
_HEADER = struct.Struct("<8sI16s32x")
_LEASE = struct.Struct("<5QI16x")
_SEQUENCE = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_EMPTY = bytes(SLOT_BYTES)
_READ_ATTEMPTS = 5
_TORN_SECONDS = 0.001


def boot_id() -> int:
    """A number that differs between boots: deadlines of one boot mean nothing in another."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError as error:
        raise StoreUnavailableError(
            f"the SQLite store needs Linux: cannot read the boot id ({error})"
        ) from error
    return int.from_bytes(hashlib.blake2b(text.strip(), digest_size=8).digest(), "little")


def _seal(body: bytes) -> bytes:
    return body + _CRC.pack(zlib.crc32(body))


def _sealed(slot: bytes) -> bool:
    return len(slot) == SLOT_BYTES and _CRC.unpack_from(slot, 60)[0] == zlib.crc32(slot[:60])


@attrs.frozen
class Lease:
    """The contents of one slot."""

    session_id: int
    boot: int
    deadline_ns: int
    timeout_ms: int
    sequence: int

    def pack(self) -> bytes:
        fields = (self.session_id, self.boot, self.deadline_ns, self.timeout_ms, self.sequence, os.getpid())
        return _seal(_LEASE.pack(*fields))

    @classmethod
    def unpack(cls, slot: bytes) -> Lease | None:
        """The lease, or None if the slot is empty, torn or beyond the end of the file."""
        if not _sealed(slot):
            return None
        return cls(*_LEASE.unpack_from(slot)[:5])


class LeaseFile:
    """The open side file. Its methods never wait for other processes."""

    def __init__(self, path: str, boot: int) -> None:
        self.path = path
        self.boot = boot
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailableError(f"cannot open the lease file {path}: {error.strerror}") from error

    def close(self) -> None:
        os.close(self._fd)

    def adopt(self, identity: bytes) -> None:
        """Check the header; make the file anew if it is empty or belonged to another database.

        To be called under the database's write lock.
        """
        header = os.pread(self._fd, SLOT_BYTES, 0)
        if _sealed(header) and header[:8] == _MAGIC:
            _, version, owner = _HEADER.unpack_from(header)
            if version != _FORMAT:
                raise StoreVersionError(
                    f"{self.path} has lease format {version}; this release knows {_FORMAT}"
                )
            if owner == identity:
                return
        elif header.strip(b"\0"):
            raise StoreCorruptError(
                f"{self.path} is not a lease file; move it away, and a new one will be created"
            )
        os.ftruncate(self._fd, 0)
        self.rename(identity)

    def rename(self, identity: bytes) -> None:
        """Belong to the database of this identity from now on; under the database's write lock."""
        os.pwrite(self._fd, _seal(_HEADER.pack(_MAGIC, _FORMAT, identity)), 0)

    def is_linked(self) -> bool:
        """Whether the file still has a name: a lease in a deleted file is seen by nobody."""
        return os.fstat(self._fd).st_nlink > 0

    def check_linked(self) -> None:
        """Raise `StoreUnavailableError` if the file was deleted: sessions opened since lie in another one."""
        if not self.is_linked():
            raise StoreUnavailableError(
                f"{self.path} was deleted under this handle; leave the store and open it again"
            )

    def publish(self, sequence: int) -> None:
        """Say that transaction `sequence` is about to be committed; under the database's write lock."""
        os.pwrite(self._fd, _SEQUENCE.pack(sequence), SLOT_BYTES)

    def published(self) -> int:
        """The last sequence that anybody published (0: none yet)."""
        return int.from_bytes(os.pread(self._fd, _SEQUENCE.size, SLOT_BYTES), "little")

    def raw(self, slot: int) -> bytes:
        return os.pread(self._fd, SLOT_BYTES, slot * SLOT_BYTES)

    def write(self, slot: int, lease: Lease) -> bytes:
        packed = lease.pack()
        os.pwrite(self._fd, packed, slot * SLOT_BYTES)
        return packed

    def clear(self, slot: int) -> None:
        os.pwrite(self._fd, _EMPTY, slot * SLOT_BYTES)

    def deadline(self, session_id: int, slot: int) -> int | None:
        """When the session's lease ends (ns of CLOCK_MONOTONIC); None if it holds no lease of this boot.

        A read may meet a write half-way: a torn slot is read again before it counts as none.
        """
        for _ in range(_READ_ATTEMPTS):
            raw = self.raw(slot)
            lease = Lease.unpack(raw)
            if lease is not None and lease.session_id == session_id and lease.boot == self.boot:
                return lease.deadline_ns
            if lease is not None or raw in (_EMPTY, b""):
                return None
            time.sleep(_TORN_SECONDS)
        return None

    def is_alive(self, session_id: int, slot: int) -> bool:
        """Whether the session's lease holds now."""
        deadline = self.deadline(session_id, slot)
        return deadline is not None and time.monotonic_ns() < deadline


class SeenLease:
    """A lease that another process holds and renews."""

    def __init__(self, file: LeaseFile, session_id: int, slot: int) -> None:
        self.session_id = session_id
        self._slot = slot
        self._file = file

    def is_alive(self) -> bool:
        return self._file.is_alive(self.session_id, self._slot)


class HeldLease:
    """A lease of this process. Once lost, it is never renewed again: others may have acted on its end.

    Making one writes it, so that must be done under the database's write lock. The event loop renews it, the
    worker thread asks whether it is alive.
    """

    def __init__(self, file: LeaseFile, slot: int, session_id: int, timeout_ms: int) -> None:
        self.session_id = session_id
        self.timeout_ms = timeout_ms
        self.slot = slot
        self._file = file
        self._lock = threading.Lock()
        self._over = False
        self._lease = Lease(session_id, file.boot, self._deadline_from_now(), timeout_ms, 1)
        self._written = file.write(slot, self._lease)

    @classmethod
    def taken_over(cls, file: LeaseFile, slot: int, written: bytes) -> HeldLease:
        """The lease that another process wrote for this one and does not renew."""
        lease = Lease.unpack(written)
        assert lease is not None
        held = cls.__new__(cls)
        held.session_id, held.timeout_ms, held.slot = lease.session_id, lease.timeout_ms, slot
        held._file, held._lock, held._over = file, threading.Lock(), False
        held._lease, held._written = lease, written
        return held

    @property
    def written(self) -> bytes:
        """The slot as this lease was last written."""
        return self._written

    @property
    def deadline_ns(self) -> int:
        return self._lease.deadline_ns

    def _deadline_from_now(self) -> int:
        return time.monotonic_ns() + self.timeout_ms * 1_000_000

    def is_alive(self) -> bool:
        """Whether the lease still holds, by our clock and in the file that others read; False is for ever."""
        with self._lock:
            return self._check()

    def _check(self) -> bool:
        self._over = self._over or not (
            time.monotonic_ns() < self._lease.deadline_ns
            and self._file.is_linked()
            and self._file.raw(self.slot) == self._written
        )
        return not self._over

    def renew(self) -> bool:
        """Extend the lease from now; False if it is lost, or if the file fails and we must assume so."""
        try:
            return self._renew()
        except OSError:
            self._over = True
            return False

    def _renew(self) -> bool:
        with self._lock:
            if not self._check():
                return False
            deadline = self._lease.deadline_ns
            self._lease = attrs.evolve(
                self._lease, deadline_ns=self._deadline_from_now(), sequence=self._lease.sequence + 1
            )
            self._written = self._file.write(self.slot, self._lease)
            if time.monotonic_ns() >= deadline:
                # Stopped between the look and the write: others may have seen the lease end, so it has ended.
                self._give_up()
            return not self._over

    def drop(self) -> None:
        """Give the lease up: every reader sees the session as over at once."""
        with self._lock, suppress(OSError):
            self._give_up()

    def _give_up(self) -> None:
        try:
            if self._check():
                self._file.clear(self.slot)
        finally:
            self._over = True
