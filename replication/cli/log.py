"""`insync log`: look into the files of a stopped node, check them, and recover them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import attrs
from cyclopts import App, Parameter

from ..core.wording import counted
from .clusters import Json, as_text, print_json, say
from .errors import EXIT_FAILURE, CommandError

if TYPE_CHECKING:
    from rich.progress import Progress

    from ...storage import LogDirectory
    from ...storage.batch import BatchInfo
    from ...storage.inspection import Found

app = App(name="log", help="Look into the files of logs, check and recover them.", help_format="markdown")

_INDEXES = (".index", ".timeindex")
_TABLES = ("leader-epoch-checkpoint", "-offset-checkpoint", "partition.metadata", "meta.properties")


@app.command
def dump(
    path: Path,
    /,
    *,
    records: Annotated[bool, Parameter(show_default=False, help="Show the records too.")] = False,
    json: Json = False,
) -> int:
    """Print what a log's file holds, one line for each batch or entry.

    Damaged batches are shown where they are. Nothing is changed. The status is 1 if something is damaged.

    Example: `insync log dump data/orders-0 --records`

    Parameters
    ----------
    path
        A .log, .index, .timeindex or .snapshot file, a checkpoint, or a partition's folder (all its batches).
    """
    if not path.exists():
        raise CommandError(f"{path} does not exist: name a file of a partition, or its folder")
    show = print_json if json else _print_line
    good = True
    # Lines that go to a terminal, or to a pager on it, are progress enough.
    with progress(_log_bytes(path), "dumping", quiet=not _goes_to_a_file(sys.stdout)) as advance:
        for line in _lines(path, records, advance):
            good = good and not line.get("damaged")
            show(line)
    return 0 if good else EXIT_FAILURE


@app.command
def verify(
    folder: Path,
    /,
    *,
    compacted: Annotated[
        bool, Parameter(show_default=False, help="Allow gaps in the offsets, as compaction leaves them.")
    ] = False,
    json: Json = False,
) -> int:
    """Check every byte of a data folder, or of one partition, and name each defect's place.

    Batches with their checksums, records, offsets and epochs; indexes, snapshots and checkpoints against them.
    Nothing is changed. The status is 1 if there is a defect. While a node runs, what it writes may look torn.

    Example: `insync log verify data`

    Parameters
    ----------
    folder
        A node's data folder, or the folder of one partition.
    """
    from ...storage.verification import verify as check

    _must_be_folder(folder)
    with progress(all_log_bytes(folder), "verifying", quiet=json) as advance:
        found = check(folder, compacted=compacted, on_bytes=advance)
    if json:
        print_json(found)
    else:
        for defect in found.defects:
            say(defect)
        say(
            f"{counted(found.partitions, 'partition')}, {counted(found.segments, 'segment')}, "
            f"{counted(found.batches, 'batch', 'batches')}, {counted(found.records, 'record')}, "
            f"{counted(found.bytes, 'byte')}, {counted(found.index_entries, 'index entry', 'index entries')}: "
            f"{counted(len(found.defects), 'defect')}"
        )
    return EXIT_FAILURE if found.defects else 0


@app.command
def recover(
    folder: Path,
    /,
    *,
    indexes: Annotated[
        bool,
        Parameter(
            show_default=False, help="Also check all indexes, reading all logs, and rebuild wrong ones."
        ),
    ] = False,
    json: Json = False,
) -> int:
    """Do now what a node does at its start after a crash: scan what may be torn, cut it off, rebuild indexes.

    Damage found beyond that is left as it is and named. The status is 1 if there is any. The node must not be
    running.

    Example: `insync log recover data`

    Parameters
    ----------
    folder
        A node's data folder.
    """
    from ...storage import LogDirectory, read_identity

    _must_be_folder(folder)
    cluster_id, node_id, _ = read_identity(folder)
    directory = LogDirectory(folder, cluster_id=cluster_id, node_id=node_id)
    as_left = False
    try:
        with progress(all_log_bytes(folder), "recovering", quiet=json) as advance:
            reports = list(_recovered(directory, indexes, advance))
        as_left = directory.was_clean and not any(each["error"] or each["bytes_cut"] for each in reports)
    finally:
        # The marker of a clean stop proves that nothing was lost: it may stay, but a recovery cannot earn it.
        directory.close(as_left, broker_epoch=directory.previous_broker_epoch)
    for report in reports:
        if json:
            print_json(report)
        else:
            _print_recovered(report)
    return EXIT_FAILURE if any(each["error"] for each in reports) else 0


def _recovered(
    directory: LogDirectory, indexes: bool, advance: Callable[[int], None]
) -> Iterator[dict[str, Any]]:
    from ...storage import StorageError

    for topic, partition in directory.partitions():
        report: dict[str, Any] = {"topic": topic, "partition": partition, "error": ""}
        if indexes:
            _remove_wrong_indexes(directory.path / f"{topic}-{partition}")
        try:
            log = directory.open_log(topic, partition, create=False)
            log.flush()
            report |= attrs.asdict(log.recovery)
            report |= {"log_start_offset": log.log_start_offset, "log_end_offset": log.log_end_offset}
        except StorageError as error:
            report["error"] = str(error)
        advance(_log_bytes(directory.path / f"{topic}-{partition}"))
        yield report
    directory.write_checkpoints({})


def _remove_wrong_indexes(folder: Path) -> None:
    """The next open of the log rebuilds missing indexes of a segment."""
    from ...storage.verification import verify as check

    paths = (Path(defect.path) for defect in check(folder).defects)
    for path in {path for path in paths if path.suffix in _INDEXES}:
        for suffix in _INDEXES:
            path.with_suffix(suffix).unlink(missing_ok=True)


def _print_recovered(report: dict[str, Any]) -> None:
    name = f"{report['topic']}-{report['partition']}"
    if report["error"]:
        say(f"{name}: DAMAGED: {report['error']}")
        return
    held = f"offsets {report['log_start_offset']} to {report['log_end_offset']}"
    if report["clean"]:
        say(f"{name}: clean, {held}")
        return
    cut = (
        f", cut {counted(report['bytes_cut'], 'byte')} ({report['cut_reason']})"
        if report["bytes_cut"]
        else ""
    )
    say(f"{name}: {counted(report['batches_scanned'], 'batch', 'batches')} scanned{cut}, {held}")


# Progress


@contextmanager
def progress(total: int, doing: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar on standard error if that is a terminal; yields the function that advances it."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn(doing), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    shown = console.is_terminal and not quiet
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=not shown,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as progress:
        yield _advancing(progress, total)


def _advancing(progress: Progress, total: int) -> Callable[[int], None]:
    task = progress.add_task("", total=total)

    def advance(size: int) -> None:
        progress.advance(task, size)

    return advance


def _goes_to_a_file(stream: TextIO) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def _log_bytes(path: Path) -> int:
    """Of a file, or of the logs of a partition's folder."""
    files = path.glob("*.log") if path.is_dir() else [path]
    return sum(each.stat().st_size for each in files)


def all_log_bytes(folder: Path) -> int:
    """Of a data folder, or of a partition's."""
    return sum(_log_bytes(each) for each in (folder, *folder.iterdir()) if each.is_dir())


def _must_be_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise CommandError(f"{folder} is not a folder: name a node's data folder, such as data/node-1")


# What files hold


def _lines(path: Path, records: bool, advance: Callable[[int], None]) -> Iterator[dict[str, Any]]:
    from ...storage.inspection import base_offset_in, offset_index_entries, read_file, time_index_entries
    from ...storage.verification import segment_files

    if (
        path.suffix in (".log", ".index", ".timeindex")
        and path.is_file()
        and base_offset_in(path.stem) is None
    ):
        raise CommandError(
            f"{path} is not named after an offset in 20 digits, as the files of a log are: rename a copy of it"
        )
    if path.is_dir():
        logs = segment_files(path)
        if not logs:
            raise CommandError(
                f"{path} contains no .log file: name a partition's folder, such as data/orders-0"
            )
        for log in logs:
            yield from _log_lines(log, records, advance)
    elif path.suffix == ".log":
        yield from _log_lines(path, records, advance)
    elif path.suffix == ".index":
        yield from ({"file": path.name, **entry._asdict()} for entry in offset_index_entries(path))
    elif path.suffix == ".timeindex":
        yield from ({"file": path.name, **entry._asdict()} for entry in time_index_entries(path))
    elif path.suffix == ".snapshot":
        yield from _snapshot_lines(path)
    elif path.name.endswith(_TABLES):
        yield from (
            {"file": path.name, "line": line.rstrip()}  # the checksum of a checkpoint is white space
            for line in read_file(path).decode(errors="replace").splitlines()
        )
    else:
        raise CommandError(
            f"{path} is not a file of a log: give a .log, .index, .timeindex, .snapshot or checkpoint"
        )


def _log_lines(path: Path, records: bool, advance: Callable[[int], None]) -> Iterator[dict[str, Any]]:
    from ...storage.inspection import batches_in

    for found, data in batches_in(path):
        yield _batch_line(path, found)
        if records and not found.reason and found.info is not None:
            yield from _record_lines(found.info, data)
        advance(found.size_bytes)


def _batch_line(path: Path, found: Found) -> dict[str, Any]:
    line: dict[str, Any] = {"file": path.name, "position": found.position, "size_bytes": found.size_bytes}
    if found.reason:
        line["damaged"] = found.reason
    info = found.info
    if info is not None:
        line |= {
            "base_offset": info.base_offset,
            "last_offset": info.next_offset - 1,
            "leader_epoch": info.leader_epoch,
            "record_count": info.record_count,
            "compression": info.compression,
            "is_transactional": info.is_transactional,
            "is_control": info.is_control,
            "base_timestamp": info.base_timestamp,
            "max_timestamp": info.max_timestamp,
            "producer_id": info.producer_id,
            "producer_epoch": info.producer_epoch,
            "base_sequence": info.base_sequence,
        }
    return line


def _record_lines(info: BatchInfo, data: memoryview) -> Iterator[dict[str, Any]]:
    from ...storage import StorageError
    from ...storage.batch import records
    from ...storage.inspection import control_record

    if info.is_control:
        control = control_record(data)
        if control is not None:
            yield control._asdict()
        return
    try:
        for record in records(data):
            line: dict[str, Any] = {"offset": record.offset, "timestamp_ms": record.timestamp_ms}
            line |= {**as_text("key", record.key), **as_text("value", record.value)}
            if record.headers:
                line["headers"] = [
                    {"name": name, **as_text("value", value)} for name, value in record.headers
                ]
            yield line
    except StorageError as error:
        yield {"damaged": str(error)}


def _snapshot_lines(path: Path) -> Iterator[dict[str, Any]]:
    from ...storage.inspection import producers_in

    producers = producers_in(path)
    if producers is None:
        yield {"file": path.name, "damaged": "its CRC-32C, version or size is wrong"}
    for producer in producers or ():
        for batch in producer.batches:
            yield {
                "file": path.name,
                "producer_id": producer.producer_id,
                "producer_epoch": producer.producer_epoch,
                **batch._asdict(),
                "timestamp_ms": producer.timestamp_ms,
            }


def _print_line(line: dict[str, Any]) -> None:
    """`name=value` words for people, records indented below their batch; what a record holds is quoted."""
    file = line.get("file")
    words = [] if file is None else [file]
    for name, value in line.items():
        if name != "file" and value is not False:
            words.append(f"{name}={value if file is not None else _quoted(value)}")
    say(f"{'    ' if file is None else ''}{' '.join(words)}")


def _quoted(value: Any) -> str:
    """Without what would end the line or move the terminal's cursor."""
    return str(value) if isinstance(value, int) else repr(value)
