"""Taking the package to executors: an archive of what is installed here, compiled helpers included.

Python cannot load compiled modules out of a zip on `sys.path`, so the archive goes to `spark.archives`, which
unpacks it into each executor's working folder, and PYTHONPATH of the executors names that folder.
"""

from __future__ import annotations

import importlib
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath

from .errors import SparkError

FOLDER = "insync-lib"
"""The unpacked archive's name in the working folder of an executor."""

DEPENDENCIES = ("attrs", "cffi", "cramjam", "msgspec", "trio")
"""The libraries that nodes and clients import; those of the command line stay here."""

_ROOMS = ("insync.replication", "insync.storage", "insync.transport", "insync.plugins")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_LEFT_OUT = ("__pycache__", ".pyc", ".pyi", ".c", ".h")


def make_archive(target: Path, *, dependencies: bool = True) -> Path:
    """Write the package, and with `dependencies` the libraries that it needs, as a zip for `spark.archives`.

    An executor itself must bring Python of this version on this kind of processor, pyspark and pyarrow.
    Raises SparkError if something that belongs into it is not installed.
    """
    files: dict[str, Path] = dict(_package())
    if dependencies:
        for name in sorted(_closure(DEPENDENCIES)):
            files.update(_distribution(name))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, path in sorted(files.items()):
            archive.write(path, name)
        for name, text in _entry_points():
            archive.writestr(name, text)
    return target


def archive_settings(archive: Path) -> dict[str, str]:
    """The settings of a Spark session by which its executors import from the archive."""
    return {"spark.archives": f"{archive}#{FOLDER}", "spark.executorEnv.PYTHONPATH": FOLDER}


def _package() -> Iterator[tuple[str, Path]]:
    for room in _ROOMS:
        for folder in importlib.import_module(room).__path__:
            inside = PurePosixPath(*room.split("."))
            yield from _tree(Path(folder), inside)


def _tree(folder: Path, inside: PurePosixPath) -> Iterator[tuple[str, Path]]:
    for path, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        for name in names:
            file = Path(path, name)
            if file.suffix not in _LEFT_OUT:
                yield str(inside / file.relative_to(folder).as_posix()), file


def _distribution(name: str) -> Iterator[tuple[str, Path]]:
    found = _find(name)
    for file in found.files or ():
        if file.suffix not in _LEFT_OUT and ".." not in file.parts:
            yield file.as_posix(), Path(str(found.locate_file(file)))


def _closure(names: Iterable[str]) -> set[str]:
    """These distributions and all that they need in turn, by the names that they go by here."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        found.add(name)
        for requirement in _find(name).requires or ():
            needed = _NAME.match(requirement)
            if needed and _installed(needed[0]) and "extra ==" not in requirement:
                waiting.append(needed[0])
    return found


def _installed(name: str) -> bool:
    """A library that only other systems or versions require is not there, and not needed."""
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _find(name: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError as error:
        raise SparkError(f"{name} is not installed here, so it cannot be taken to executors") from error


def _entry_points() -> Iterator[tuple[str, str]]:
    """Transports and stores are found through them, so an executor needs them, too."""
    found = next((each for each in metadata.distributions() if each.name == "insync"), None)
    if found is None:
        raise SparkError("insync is not installed here, but only on the path; pip install it first")
    folder = f"insync-{found.version}.dist-info"
    for name in ("METADATA", "entry_points.txt"):
        yield f"{folder}/{name}", found.read_text(name) or ""
