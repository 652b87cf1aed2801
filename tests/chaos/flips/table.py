"""The faults of `flips`: one file of a cluster that does not run is changed, cut short, removed or exchanged."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Literal

import attrs

from .cluster import NODES, STORE, Ending

DAMAGED = 1
"""The node whose folder is damaged; it starts first."""
_LARGE = ".log"
_UNREAD = (".deleted", ".tmp")
"""Files that the next start removes or overwrites, whatever they contain."""
_LOCK = ".lock"
"""Its content is for people."""
PAGE_BYTES = 4096
PAGES = 2
BEYOND = 1000
"""Bytes of the store's file behind its first pages of which one is changed in each fault."""

_OWNED = ("partition.metadata", "meta.properties", "insync.proof", ".partitions-created")
"""Files that say whose they are, or name what is beside them."""
_HELD = re.compile(rb"^\+ (\S+) ([0-9]+)\n", re.MULTILINE)
_BUILT_AGAIN = (".index", ".timeindex")
"""Files without a checksum: a node looks at some of their entries, and builds them again from the log."""

Kind = Literal["flip", "cut", "removed", "replaced"]


@attrs.frozen
class Fault:
    """One file is no longer what was written.

    ending: of the nodes before it. path: relative to the folder of the cluster.
    at: the changed byte, or the length that is left. mask: the changed bits. source: the file in its place.
    hidden: nodes do not read the file, or it still says what it said.
    """

    ending: Ending
    path: str
    kind: Kind
    at: int = 0
    mask: int = 0
    source: str = ""
    hidden: bool = False

    def __str__(self) -> str:
        what = {
            "flip": f"byte {self.at} changed by {self.mask:#04x}",
            "cut": f"cut to {self.at} bytes",
            "removed": "removed",
            "replaced": f"replaced by {self.source}",
        }
        return f"{self.ending}: {self.path}: {what[self.kind]}"

    @property
    def of_store(self) -> bool:
        return self.path.startswith(STORE)

    @property
    def shows(self) -> bool:
        """Whether the file itself, which the node reads, says that it is not as it was written."""
        path = Path(self.path)
        if self.of_store or self.kind == "removed" or self.hidden:
            return False
        if self.kind == "replaced":
            return path.name in _OWNED
        return path.suffix not in _BUILT_AGAIN

    def apply(self, root: Path) -> None:
        if self.kind == "removed":
            (root / self.path).unlink()
        else:
            (root / self.path).write_bytes(self.content(root))

    def content(self, root: Path) -> bytes:
        """The bytes of the file with the fault."""
        if self.kind == "replaced":
            return (root / self.source).read_bytes()
        found = bytearray((root / self.path).read_bytes())
        if self.kind == "flip":
            found[self.at] ^= self.mask
        else:
            del found[self.at :]
        return bytes(found)


def small_files(root: Path) -> list[str]:
    """All files of the damaged node but those of its records, and the leases of the store's sessions."""
    folder = root / f"node-{DAMAGED}"
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != _LOCK)
    found = [str(each.relative_to(root)) for each in paths if each.suffix not in (_LARGE, *_UNREAD)]
    return [*sorted(found), f"{STORE}-leases"]


def faults(root: Path, ending: Ending, seed: int) -> list[Fault]:
    """The whole table for a template. seed: of the bits that are changed, and of the store's bytes."""
    small = [
        attrs.evolve(fault, hidden=_is_hidden(root, fault)) for fault in _of_small_files(root, ending, seed)
    ]
    return [*small, *_of_store(root, ending, seed)]


def _is_hidden(root: Path, fault: Fault) -> bool:
    path = root / fault.path
    if path.parent.name.endswith("-stray") and path.name != "stray.json":
        return True
    if path.suffix == ".snapshot":
        # Of several the latest counts; after a crash, the latest one below what is scanned.
        return fault.ending == "killed" or path != max(path.parent.glob("*.snapshot"))
    if fault.kind not in ("flip", "cut"):
        return False
    before, content = path.read_bytes(), fault.content(root)
    if path.name == ".partitions-created":
        lacks = {*_HELD.findall(before)} - {*_HELD.findall(content)}
        # Only a folder shows that its line is gone.
        return not any(
            (path.parent / f"{topic.decode()}-{number.decode()}").is_dir() for topic, number in lacks
        )
    if path.name == "partition.metadata" and content == b"".join(before.splitlines(keepends=True)[:2]):
        # Kafka's has two lines.
        return True
    # Without its checksum, in the last line, it is a file of Kafka's or of an earlier version.
    *lines, seal = before.splitlines(keepends=True)
    return b"crc32c: " in seal and content.startswith(b"".join(lines).rstrip())


def _of_small_files(root: Path, ending: Ending, seed: int) -> Iterator[Fault]:
    for path in small_files(root):
        content = (root / path).read_bytes()
        yield from _flips(ending, path, range(len(content)), random.Random(f"{seed} {path}"))
        # Behind each line, and in it.
        ends = [*accumulate(map(len, content.splitlines(keepends=True)))]
        cuts = {0, 1, len(content) // 2, len(content) - 1, *ends, *(end - 1 for end in ends)}
        yield from (Fault(ending, path, "cut", at) for at in sorted(cuts) if 0 <= at < len(content))
        yield Fault(ending, path, "removed")
        others = {_of_another_node(path), *_of_other_partitions(root, path)}
        for source in sorted(others):
            if (root / source).is_file() and (root / source).read_bytes() != content:
                yield Fault(ending, path, "replaced", source=source)


def _of_store(root: Path, ending: Ending, seed: int) -> Iterator[Fault]:
    chosen, size = random.Random(f"{seed} {STORE}"), (root / STORE).stat().st_size
    first = min(size, PAGES * PAGE_BYTES)
    beyond = range(first, size)
    places = [*range(first), *sorted(chosen.sample(beyond, min(BEYOND, len(beyond))))]
    yield from _flips(ending, STORE, places, chosen)


def _flips(ending: Ending, path: str, places: Iterable[int], chosen: random.Random) -> Iterator[Fault]:
    return (Fault(ending, path, "flip", at, 1 << chosen.randrange(8)) for at in places)


def _of_another_node(path: str) -> str:
    return path.replace(f"node-{DAMAGED}", f"node-{NODES[-1]}", 1)


def _of_other_partitions(root: Path, path: str) -> Iterator[str]:
    """Files of that name, or at least of that ending, in the folders of other partitions of this node."""
    own = Path(path)
    if len(own.parts) > 2:
        folder = root / own.parts[0]
        same = [*folder.glob(f"*/{own.name}")] or [*folder.glob(f"*/*{own.suffix}")]
        yield from (str(each.relative_to(root)) for each in same if each != root / path)
