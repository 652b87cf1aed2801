"""A layer between the log and the file system that notes what is done, and shows what a crash could leave of it.

A machine that loses power keeps what was fsynced. Of the rest (writes and truncations of files, names made, changed
and removed in folders) it may keep any part. What is written to a mapped file counts from its next fsync on.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import attrs

DATA, NAMES = "data", "names"


@attrs.define(eq=False, slots=True)
class Op:
    """One change of a file's content (`owner`: the file) or of a folder's names (`owner`: the folder)."""

    kind: str
    owner: object
    apply: Callable[[Disk], None]
    synced_at: int | None = None
    """Number of operations that were begun when an fsync had brought it to the device."""


@attrs.define(eq=False, slots=True)
class Disk:
    """Names and contents."""

    names: dict[str, int] = attrs.Factory(dict)
    contents: dict[int, bytearray] = attrs.Factory(dict)

    def write(self, file: int, position: int, data: bytes) -> None:
        content = self.contents.setdefault(file, bytearray())
        content.extend(bytes(max(0, position + len(data) - len(content))))
        content[position : position + len(data)] = data

    def truncate(self, file: int, size: int) -> None:
        content = self.contents.setdefault(file, bytearray())
        del content[size:]
        content.extend(bytes(size - len(content)))

    def replace(self, file: int, content: bytes) -> None:
        self.contents[file] = bytearray(content)

    def link(self, name: str, file: int, old: str | None = None) -> None:
        self.names[name] = file
        if old is not None and self.names.get(old) == file:
            del self.names[old]

    def unlink(self, name: str, file: int) -> None:
        if self.names.get(name) == file:
            del self.names[name]

    def put(self, root: Path) -> None:
        """Make a folder of it."""
        for name, file in self.names.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.contents.get(file, b""))


class Recorder:
    """Patches `os` while it is entered; notes all that happens below `root`."""

    def __init__(self, root: Path, monkeypatch) -> None:
        self.ops: list[Op] = []
        self._root = root
        self._files: dict[int, int] = {}
        self._real = {name: getattr(os, name) for name in ("open", "pwritev", "ftruncate", "fsync")}
        self._real |= {name: getattr(os, name) for name in ("replace", "rename", "unlink")}
        self._start = self._as_it_is()
        self._count = len(self._files)
        monkeypatch.setattr(os, "open", self._open)
        monkeypatch.setattr(os, "pwritev", self._pwritev)
        monkeypatch.setattr(os, "ftruncate", self._ftruncate)
        monkeypatch.setattr(os, "fsync", self._fsync)
        monkeypatch.setattr(os, "replace", self._move)
        monkeypatch.setattr(os, "rename", self._move)
        monkeypatch.setattr(os, "unlink", self._unlink)

    def _as_it_is(self) -> Disk:
        disk = Disk()
        for path in self._root.rglob("*"):
            if path.is_file():
                file = self._files[path.stat().st_ino] = len(self._files)
                disk.link(str(path.relative_to(self._root)), file)
                disk.replace(file, path.read_bytes())
        return disk

    def crash(self, at: int, keep: Callable[[Op], bool]) -> Disk:
        """What is left if power fails after `at` operations, of which the unsynced ones stay that `keep` says."""
        disk = Disk(
            dict(self._start.names), {key: bytearray(data) for key, data in self._start.contents.items()}
        )
        for op in self.ops[:at]:
            if self.is_synced(op, at) or keep(op):
                op.apply(disk)
        return disk

    @staticmethod
    def is_synced(op: Op, at: int) -> bool:
        return op.synced_at is not None and op.synced_at <= at

    def _note(self, kind: str, owner: object, apply: Callable[[Disk], None]) -> None:
        self.ops.append(Op(kind, owner, apply))

    def _name(self, path: object) -> str | None:
        whole = Path(os.fspath(path))  # type: ignore[call-overload]
        return str(whole.relative_to(self._root)) if whole.is_relative_to(self._root) else None

    def _file(self, fd: int) -> int | None:
        return self._files.get(os.fstat(fd).st_ino)

    def _open(self, path, flags: int, mode: int = 0o777, **options) -> int:
        name = self._name(path) if isinstance(path, (str, os.PathLike)) else None
        existed = name is None or os.path.lexists(path)
        fd = self._real["open"](path, flags, mode, **options)
        if name is None or stat.S_ISDIR(os.fstat(fd).st_mode):
            return fd
        if not existed:
            file = self._files[os.fstat(fd).st_ino] = self._count
            self._count += 1
            self._note(NAMES, str(Path(name).parent), lambda disk: disk.link(name, file))
        elif flags & os.O_TRUNC:
            emptied = self._files[os.fstat(fd).st_ino]
            self._note(DATA, emptied, lambda disk: disk.truncate(emptied, 0))
        return fd

    def _pwritev(self, fd: int, buffers, position: int) -> int:
        data = b"".join(bytes(each) for each in buffers)
        written = self._real["pwritev"](fd, buffers, position)
        file = self._file(fd)
        if file is not None:
            self._note(DATA, file, lambda disk: disk.write(file, position, data[:written]))
        return written

    def _ftruncate(self, fd: int, size: int) -> None:
        self._real["ftruncate"](fd, size)
        file = self._file(fd)
        if file is not None:
            self._note(DATA, file, lambda disk: disk.truncate(file, size))

    def _fsync(self, fd: int) -> None:
        self._real["fsync"](fd)
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            name = self._name(path)
            self._synced(NAMES, name)
            return
        file = self._file(fd)
        if file is not None:
            content = path.read_bytes() if path.exists() else None
            if content is not None:
                self._note(DATA, file, lambda disk: disk.replace(file, content))
            self._synced(DATA, file)

    def sync_all(self) -> None:
        """As syncfs does it; mapped files are taken as they are."""
        for path in self._root.rglob("*"):
            if path.is_file() and path.stat().st_ino in self._files:
                file, content = self._files[path.stat().st_ino], path.read_bytes()
                self._note(DATA, file, lambda disk, file=file, content=content: disk.replace(file, content))
        for op in self.ops:
            if op.synced_at is None:
                op.synced_at = len(self.ops)

    def _synced(self, kind: str, owner: object) -> None:
        for op in self.ops:
            if op.kind == kind and op.owner == owner and op.synced_at is None:
                op.synced_at = len(self.ops)

    def _move(self, source, target, **options) -> None:
        old, new = self._name(source), self._name(target)
        file = self._files.get(os.stat(source).st_ino)
        self._real["replace"](source, target, **options)
        if old is not None and new is not None and file is not None:
            self._note(NAMES, str(Path(new).parent), lambda disk: disk.link(new, file, old))

    def _unlink(self, path, **options) -> None:
        name = self._name(path)
        file = self._files.get(os.stat(path).st_ino) if os.path.lexists(path) else None
        self._real["unlink"](path, **options)
        if name is not None and file is not None:
            self._note(NAMES, str(Path(name).parent), lambda disk: disk.unlink(name, file))
