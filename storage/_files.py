"""Writing files so that a crash leaves the old or the new content, never a mixture."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ._native import ffi, lib
from ._opening import NO_DESCRIPTOR, NoFileError, kind_of, no_file, open_file, patiently, read_file
from .batch._columns import Buffer
from .errors import (
    MisplacedError,
    StorageBrokenError,
    StorageError,
    StorageFullError,
    TooManyOpenFilesError,
)
from .folder._sealed import sealed_table, unsealed_table

_COPIED_AT_ONCE = 64 << 20
_IOV_MAX = os.sysconf("SC_IOV_MAX")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_BASE_OFFSET = re.compile(r"[0-9]{20}")
_PAST_ALL_OFFSETS = 1 << 63

PartitionKey = tuple[str, int]


def base_offset_in(stem: str) -> int | None:
    """The offset that a segment's files are named after; None for a file of somebody else, which no log reads."""
    if not _BASE_OFFSET.fullmatch(stem) or int(stem) >= _PAST_ALL_OFFSETS:
        return None
    return int(stem)


def write_all(fd: int, buffers: Sequence[Buffer], position: int) -> None:
    """Write the buffers one after the other from `position` on, gathered; raises OSError as the device does."""
    left = buffers
    while left:
        some = left[:_IOV_MAX]
        written = os.pwritev(fd, some, position)
        position += written
        if written == sum(map(len, some)):
            left = left[_IOV_MAX:]
        elif written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        else:
            left = _rest(left, written)


def _rest(buffers: Sequence[Buffer], written: int) -> Sequence[Buffer]:
    """The rest of the buffers after this number of written bytes."""
    first = 0
    while written >= len(buffers[first]):
        written -= len(buffers[first])
        first += 1
    return [memoryview(buffers[first])[written:], *buffers[first + 1 :]]


def storage_error(error: OSError, doing: str) -> StorageError:
    """The message for a failed system call."""
    if isinstance(error, NoFileError):
        return MisplacedError(f"{doing}: {error.strerror}; move it away, then restart the node")
    reason = os.strerror(error.errno) if error.errno is not None else str(error)
    if error.errno in _FULL:
        return StorageFullError(
            f"{doing}: {reason}; free some space or move the data folder to a larger device"
        )
    if error.errno in NO_DESCRIPTOR:
        return TooManyOpenFilesError(
            f"{doing}: {reason}; allow the process more of them (ulimit -n, LimitNOFILE=), or give it fewer "
            "partitions and connections"
        )
    return StorageBrokenError(f"{doing}: {reason}; check the device, then restart the node")


def log_error(error: OSError, doing: str) -> StorageError:
    """The same for a log that is open: a file of it that is gone says nothing of the others in the directory."""
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return MisplacedError(
            f"{doing}: {error.filename} is gone; put it back, or move the partition's folder aside, then restart "
            f"the node: the replica is copied again from its leader"
        )
    return storage_error(error, doing)


def fsync_folder(folder: Path) -> None:
    """Make names made or removed in a folder durable."""
    fd = patiently(os.open, folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_names_above(folder: Path) -> None:
    """Make the names durable by which a folder is found, up to the root of its file system: it, or folders above
    it, may have just been made.
    """
    device = folder.stat().st_dev
    for above in folder.resolve().parents:
        if above.stat().st_dev != device:
            break
        with suppress(PermissionError):  # somebody else made it
            fsync_folder(above)


def fsync_file(path: Path) -> None:
    """Sync a file to the device, regardless of who wrote it."""
    fd = open_file(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def copy_file(source: Path, target: Path) -> None:
    """Copy into a new file, sharing blocks where the file system can. Not durable yet. Raises OSError."""
    with (
        open(open_file(source, os.O_RDONLY), "rb") as read,
        open(open_file(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as written,
    ):
        left = os.fstat(read.fileno()).st_size
        while left:
            try:
                count = os.copy_file_range(read.fileno(), written.fileno(), min(left, _COPIED_AT_ONCE))
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
                    raise
                # Not between these file systems: the positions of both files stand where the last call left them.
                count = written.write(read.read(min(left, _COPIED_AT_ONCE)))
                written.flush()
            if not count:
                raise OSError(errno.EIO, f"{source} has become shorter while it was copied")
            left -= count


def sync_filesystem(fd: int) -> None:
    """Bring all that was written to the file system of `fd` to the device, at one go.

    Raises OSError also for what failed earlier, since `fd` was opened; ENOSYS where there is no such call.
    """
    if lib.isr_sync_filesystem(fd) != 0:
        raise OSError(ffi.errno, os.strerror(ffi.errno))


def replace_file(path: Path, content: bytes, *, sync: bool = True, sync_name: bool = True) -> None:
    """Give a small file new content: written aside, fsynced, renamed over the old, the folder fsynced.

    Without `sync` nothing is waited for, and after a crash of the machine the content may be anything. Without
    `sync_name` the caller fsyncs the folder; before that a crash may leave the old content.
    """
    aside = path.with_name(path.name + ".tmp")
    fd = _open_anew(aside)
    try:
        write_all(fd, [content], 0)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    try:
        os.replace(aside, path)
    except IsADirectoryError:
        raise no_file(path, kind_of(path)) from None
    if sync and sync_name:
        fsync_folder(path.parent)


def _open_anew(path: Path) -> int:
    """A file that is only this call's. Something of that name that is no file goes: nobody else writes there.

    Raises NoFileError for a folder, OSError.
    """
    try:
        return open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
    except NoFileError:
        if path.is_dir() and not path.is_symlink():
            raise
        path.unlink()
        return open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)


def write_checkpoint(path: Path, offsets: Mapping[PartitionKey, int]) -> None:
    """Write one; see `write_checkpoints`."""
    write_checkpoints(path.parent, {path.name: offsets})


def write_checkpoints(folder: Path, checkpoints: Mapping[str, Mapping[PartitionKey, int]]) -> None:
    """Kafka's offset checkpoints, by file name: version 0, count, then `topic partition offset` lines.

    The folder is fsynced once, after all of them.
    """
    for name, offsets in checkpoints.items():
        lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in sorted(offsets.items())]
        replace_file(folder / name, table(lines), sync_name=False)
    fsync_folder(folder)


def table(lines: Sequence[str]) -> bytes:
    """The content of a checkpoint file with these rows."""
    return sealed_table(f"0\n{len(lines)}\n{''.join(lines)}")


def read_checkpoint(path: Path) -> dict[PartitionKey, int]:
    """Read what `write_checkpoint` wrote. A missing or damaged file gives nothing: all of it can be found again."""
    rows = read_table(path) or []
    try:
        return {(topic, int(partition)): int(offset) for topic, partition, offset in rows}
    except ValueError:
        return {}


def is_checkpoint(path: Path) -> bool:
    """Whether `read_checkpoint` accepts the file, so that missing entries were never written."""
    rows = read_table(path)
    return rows is not None and all(
        len(row) == 3 and row[1].isdecimal() and row[2].isdecimal() for row in rows
    )


def read_table(path: Path) -> list[list[str]] | None:
    """The rows of a checkpoint file, split at blanks; None if it is missing or damaged."""
    try:
        text = unsealed_table(read_file(path))
        version, count, *lines = (text or "").splitlines()
        rows = [line.split(" ") for line in lines]
        return rows if version == "0" and int(count) == len(rows) else None
    except (FileNotFoundError, ValueError):
        return None
