"""Machines that lose their power: only what their devices hold is there when they start again."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

from tests.devices import CannotMountError, ext4_image

DEVICE_BYTES = 1 << 30
_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN: nothing is written to the device any more."""
_NO_LOG_FLUSH = (2).to_bytes(4, "little")
"""EXT4_GOING_FLAGS_NOLOGFLUSH: nor is what the journal has only in memory."""
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_END_SECONDS = 30.0
_BOOT = f"""
set -e
mount --bind "$1" {_BOOT_ID}
shift
while [ $# -gt 0 ]; do mount -o loop "$1" "$2"; shift 2; done
echo up
cat
ours=$(readlink /proc/$$/ns/mnt)
for each in /proc/[0-9]*; do
    [ $each = /proc/$$ ] || [ "$(readlink $each/ns/mnt)" != "$ours" ] || kill -KILL "$(basename $each)" || :
done
"""
"""Runs in a mount namespace of its own: the devices are let go with the last process in it. When the process that
runs the test is gone, the machine ends as well.
"""


@attrs.define(eq=False)
class Machine:
    """Processes that share devices, a boot and its end. Use `machine`.

    The devices are mounted at `places`, for these processes only. Others look at them through `inside`.
    """

    folder: Path
    """Of the images, on the device of who runs the test."""
    places: Sequence[Path]
    init: subprocess.Popen[bytes] | None = None
    """Of this boot; the machine ends when its standard input does."""
    _namespace: int = -1
    """A descriptor of that of this boot's mounts: while it is open, no other namespace has its number."""

    def boot(self) -> None:
        """Mount what the devices hold, under a boot id that has never been. Raises CannotMountError."""
        boot_id = self.folder / "boot_id"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        devices = [str(path) for place in self.places for path in (self._image(place), place)]
        self.init = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", _BOOT, "boot", str(boot_id), *devices],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.init.stdout is not None and self.init.stderr is not None
        if not self.init.stdout.readline():
            raise CannotMountError(self.init.stderr.read().decode().strip())
        self._namespace = os.open(f"/proc/{self.init.pid}/ns/mnt", os.O_RDONLY)

    @property
    def command(self) -> list[str]:
        """Stands before the command line of a process of this machine, and keeps its process id."""
        assert self.init is not None
        return ["nsenter", f"--target={self.init.pid}", "--mount", f"--wd={os.getcwd()}", "--"]

    def inside(self, path: Path) -> Path:
        """The way for others to a path of this machine, valid for this boot."""
        assert self.init is not None
        return Path(f"/proc/{self.init.pid}/root{path}")

    def sync(self, place: Path) -> None:
        """All that was written to one device is on it."""
        subprocess.run(["sync", "--file-system", str(self.inside(place))], check=True)

    def cut(self) -> None:
        """Take the power away from everything at once: no process lives, no device gets another byte."""
        for each in self._processes():
            _send(each, signal.SIGSTOP)
        for place in self.places:
            descriptor = os.open(self.inside(place), os.O_RDONLY)
            try:
                fcntl.ioctl(descriptor, _SHUTDOWN, _NO_LOG_FLUSH)
            finally:
                os.close(descriptor)
        self.end()

    def end(self) -> None:
        """Kill every process; the devices are let go."""
        while processes := self._processes():
            for each in processes:
                _send(each, signal.SIGKILL)
            _wait_for(processes)
        if self.init is not None:
            self.init.wait()
            for stream in (self.init.stdin, self.init.stdout, self.init.stderr):
                assert stream is not None
                stream.close()
        if self._namespace >= 0:
            os.close(self._namespace)
            self._namespace = -1
        deadline = time.monotonic() + _END_SECONDS
        while any(_is_attached(self._image(place)) for place in self.places):
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"a device of {self.folder} is still in use {_END_SECONDS} s after the end"
                )
            time.sleep(0.005)

    def _image(self, place: Path) -> Path:
        return self.folder / f"{place.name}.image"

    def _processes(self) -> list[int]:
        """Those in the mount namespace of this boot."""
        if self._namespace < 0:
            return []
        ours = os.fstat(self._namespace).st_ino
        pids = (int(each) for each in os.listdir("/proc") if each.isdigit())
        return [pid for pid in pids if _namespace(pid) == ours]


@contextmanager
def machine(folder: Path, *names: str, size: int = DEVICE_BYTES) -> Iterator[Machine]:
    """A machine that has booted, with a new device for each of `names`, mounted at `folder / name`.

    Raises CannotMountError.
    """
    if os.geteuid() != 0:
        raise CannotMountError("only root mounts devices")
    places = [folder / name for name in names]
    for place in places:
        place.mkdir(parents=True)
        ext4_image(folder / f"{place.name}.image", size)
    found = Machine(folder, places)
    try:
        found.boot()
        yield found
    finally:
        found.end()


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait_for(processes: Sequence[int]) -> None:
    """Until each has ended, also those that are not our children; a child's status is left to who started it."""
    deadline = time.monotonic() + _END_SECONDS
    for pid in processes:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise RuntimeError(f"process {pid} lives on {_END_SECONDS} s after SIGKILL")
        finally:
            os.close(descriptor)


def _namespace(pid: int) -> int:
    """The number of that of mounts; 0 for a process that has ended."""
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino
    except OSError:
        return 0


def _is_attached(image: Path) -> bool:
    """Whether a loop device still serves the image."""
    done = subprocess.run(
        ["losetup", "--noheadings", "--associated", str(image)], capture_output=True, check=True
    )
    return bool(done.stdout.strip())
