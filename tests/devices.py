"""File systems of their own and of a fixed size, for tests of what a device does to a node. They need root."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal


class CannotMountError(Exception):
    """This machine, or this user, mounts no file system."""


def ext4_image(path: Path, size: int) -> None:
    """A file with an empty ext4 file system, which takes space only as it fills. Raises CannotMountError."""
    if shutil.which("mkfs.ext4") is None:
        raise CannotMountError("no mkfs.ext4")
    with path.open("wb") as file:
        file.truncate(size)
    # Nothing is left to be initialised in the background.
    lazy = "lazy_itable_init=0,lazy_journal_init=0"
    _run("mkfs.ext4", "-q", "-F", "-E", lazy, str(path))


@contextmanager
def mounted(place: Path, kind: Literal["ext4", "tmpfs"], size: int) -> Iterator[None]:
    """A file system at `place`, which is made; the image of an ext4 lies beside it. Raises CannotMountError."""
    place.mkdir(parents=True, exist_ok=True)
    if kind == "tmpfs":
        _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place))
    else:
        image = place.with_suffix(".image")
        ext4_image(image, size)
        _run("mount", "-o", "loop", str(image), str(place))
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotMountError(f"{' '.join(command)}: {done.stderr.strip()}")
