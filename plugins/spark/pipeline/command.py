"""`insync pipeline`: the jobs as commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter, validators

from ....replication.cli.clusters import Json, Servers, known, print_json, say
from ....replication.cli.errors import EXIT_FAILURE, UsageError
from ....replication.core.wording import counted
from .errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ._audit import AuditReport
    from ._inputs import Input
    from ._jobs import Progress

app = App(name="pipeline", help="Heavy jobs over logs, on Spark: load, export, audit, dedupe, stats.")

Master = Annotated[
    str,
    Parameter(env_var="INSYNC_SPARK_MASTER", help="Where Spark runs: local[*], or spark://host:7077."),
]
DataDir = Annotated[
    Path | None,
    Parameter(show_default=False, help="Read this data folder of a node, instead of asking the nodes."),
]
Positive = validators.Number(gte=1)


@app.command
def audit(
    *folders: Path,
    topic: tuple[str, ...] = (),
    up_to: Literal["high-watermark", "end"] = "high-watermark",
    compacted: bool = False,
    master: Master = "local[*]",
    json: Json = False,
) -> int:
    """Check all segment files of nodes' data folders, and compare replicas.

    Checksums, order and leader epochs of every batch; the first offset of each partition at which replicas differ.
    Nothing is changed. The status is 1 if anything is wrong.

    Example: `insync pipeline audit data/node-1 data/node-2 data/node-3`

    Parameters
    ----------
    folders
        Data folders of the nodes of one cluster.
    topic
        Only this topic; may be given more than once.
    up_to
        Compare what is committed, or to the end of the logs.
    compacted
        Allow gaps in the offsets also where no checkpoint tells of compaction, as Kafka's leaves them.
    """
    _ready()
    from . import _audit
    from ._folders import list_replicas

    list_replicas(folders, topic)
    with _spark(master) as spark, _progress(quiet=json) as progress:
        report = _audit.audit(
            spark, folders, topics=topic, up_to=up_to, compacted=compacted, progress=progress
        )
    if json:
        print_json(report.as_dict())
    else:
        _print_audit(report)
    return 0 if report.ok else EXIT_FAILURE


def _print_audit(report: AuditReport) -> None:
    for found in (*report.defects, *report.differences, *(f"note: {note}" for note in report.notes)):
        say(found)
    if report.defect_count > len(report.defects):
        say(f"... {report.defect_count} defects in all")
    say(
        f"{counted(report.partitions, 'partition')}, {counted(report.replicas, 'replica')}, "
        f"{counted(report.segments, 'segment')}, "
        f"{counted(report.batches, 'batch', 'batches')}, {counted(report.records, 'record')}, "
        f"{counted(report.bytes, 'byte')} at "
        f"{report.mb_per_s:.0f} MB/s; {counted(report.offsets_compared, 'offset')} compared: "
        f"{counted(report.defect_count, 'defect')}, {counted(len(report.differences), 'difference')}"
    )


@app.command
def load(
    topic: str,
    /,
    *files: Path,
    format: Literal["lines", "csv", "json", "parquet"] = "lines",
    key: str | None = None,
    value: tuple[str, ...] = (),
    option: tuple[str, ...] = (),
    servers: Servers = "",
    master: Master = "local[*]",
    json: Json = False,
) -> int:
    """Write the lines or rows of files to a topic, one record each.

    Ends when every record is acknowledged by all in-sync replicas; says how many that were.

    Example: `insync pipeline load orders orders.csv --format csv --key customer`

    Parameters
    ----------
    topic
        An existing topic.
    files
        Files, or folders of them.
    format
        Text whose lines are the records; csv with a header line; an object in each line; Parquet.
    key
        The column, or the field of each line's object, whose value becomes the key.
    value
        The columns that become the value: one as it is, several as a JSON object; by default all.
    option
        name=value for Spark's reader, such as sep=;
    """
    if not files:
        raise UsageError("no files to load: name them after the topic")
    _ready()
    from . import _load

    options = dict(_option(each) for each in option)
    where = known(servers)
    _load.ready(files, where, topic, format=format, value=value)
    with _spark(master) as spark, _progress(quiet=json) as progress:
        report = _load.load(
            spark,
            files,
            where,
            topic,
            format=format,
            key=key,
            value=value,
            options=options,
            progress=progress,
        )
    if json:
        print_json(report.as_dict())
    else:
        say(f"{counted(report.records, 'record')}, {counted(report.bytes, 'byte')} written to {topic}")
    return 0


def _option(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise UsageError(f"--option {text}: give name=value")
    return name, value


@app.command
def export(
    topic: str,
    target: Path,
    /,
    *,
    data_dir: DataDir = None,
    by: Literal["date", "keys"] = "date",
    key_ranges: Annotated[int, Parameter(validator=Positive)] = 16,
    allow_data_loss: bool = False,
    servers: Servers = "",
    master: Master = "local[*]",
    json: Json = False,
) -> int:
    """Write what is new in a topic to Parquet files.

    Only what is committed, from where the last run ended; each record once, also if a run is killed.

    Example: `insync pipeline export orders lake/orders --data-dir data/node-1`

    Parameters
    ----------
    topic
        An existing topic.
    target
        A folder; what it remembers of the export is in its _insync.
    by
        One folder for each day of the records' timestamps, or for each range of keys.
    key_ranges
        How many.
    allow_data_loss
        Go on if records were deleted before they could be exported.
    """
    _ready()
    from . import _export

    source = _input(topic, data_dir, servers)
    _export.check_target(source, target, by)
    with _spark(master) as spark, _progress(quiet=json) as progress:
        report = _export.export(
            spark,
            source,
            target,
            by=by,
            key_ranges=key_ranges,
            fail_on_data_loss=not allow_data_loss,
            progress=progress,
        )
    if json:
        print_json(report.as_dict())
    else:
        lost = (
            f"; {counted(report.lost, 'offset')} {'was' if report.lost == 1 else 'were'} deleted before"
            if report.lost
            else ""
        )
        say(f"{counted(report.rows, 'record')} in {counted(report.files, 'file')} written to {target}{lost}")
    return 0


@app.command
def dedupe(
    topic: str,
    /,
    *,
    by: str = "sequence",
    data_dir: DataDir = None,
    to_topic: str | None = None,
    to_parquet: Path | None = None,
    servers: Servers = "",
    master: Master = "local[*]",
    json: Json = False,
) -> int:
    """Find records that are in a topic more than once; write the others elsewhere.

    Example: `insync pipeline dedupe orders --by json:order_id --to-topic orders-once`

    Parameters
    ----------
    topic
        An existing topic.
    by
        What tells records apart: sequence (the idempotent producer's; needs --data-dir), key, value, header:NAME,
        json:FIELD.
    to_topic
        Write the first record of each identity to this topic; those without an identity, too.
    to_parquet
        Write them to this new folder.
    """
    _ready()
    from . import _dedupe

    source = _input(topic, data_dir, servers)
    _dedupe.ready(source, by, to_topic, servers or None, to_parquet)
    with _spark(master) as spark, _progress(quiet=json) as progress:
        report = _dedupe.dedupe(
            spark,
            source,
            by=by,
            to_topic=to_topic,
            to_servers=servers or None,
            to_parquet=to_parquet,
            progress=progress,
        )
    if json:
        print_json(report.as_dict())
        return 0
    for each in report.examples:
        say(
            f"{topic}-{each.partition}, offset {each.offset}: first at {each.first_offset} of partition "
            f"{each.first_partition}"
        )
    before = ", by an earlier run" if report.written_before else ""
    written = f"; written to {report.written_to}{before}" if report.written_to else ""
    say(
        f"{counted(report.records, 'record')}, {report.unidentified} of them without {by}: "
        f"{counted(report.duplicates, 'duplicate')}, {report.kept} kept{written}"
    )
    return 0


@app.command
def stats(
    topic: str,
    /,
    *,
    data_dir: DataDir = None,
    top: Annotated[int, Parameter(validator=Positive)] = 20,
    plot: Path | None = None,
    html: Path | None = None,
    servers: Servers = "",
    master: Master = "local[*]",
    json: Json = False,
) -> int:
    """Count records and bytes by key and by minute, and records that are out of order.

    Example: `insync pipeline stats orders --html orders.html`

    Parameters
    ----------
    topic
        An existing topic.
    top
        List so many of the keys with the most bytes.
    plot
        Draw a picture (PNG) to this file.
    html
        Write a page with all figures to this file.
    """
    _ready()
    from . import _stats
    from ._plot import check_drawing, summary

    check_drawing([each for each in (plot, html) if each is not None])
    source = _input(topic, data_dir, servers)
    with _spark(master) as spark, _progress(quiet=json) as progress:
        report = _stats.stats(spark, source, top=top, plot=plot, html=html, progress=progress)
    if json:
        print_json(report.as_dict())
        return 0
    for each in report.top_keys:
        say(f"{each.text}: {counted(each.records, 'record')}, {counted(each.bytes, 'byte')}")
    say(f"{report.name}: {summary(report)}")
    return 0


# What they have in common


def _ready() -> None:
    """Before anything that imports what may not be installed."""
    from .. import check_java, check_pyspark

    check_pyspark()
    check_java()


def _input(topic: str, data_dir: Path | None, servers: str) -> Input:
    """Asked once before Spark starts, which takes seconds, so that what cannot be is told at once."""
    from ._inputs import FolderInput, TopicInput

    source: Input = FolderInput(data_dir, topic) if data_dir else TopicInput(known(servers), topic)
    source.spans()
    return source


@contextmanager
def _spark(master: str) -> Iterator[SparkSession]:
    """A session whose own chatter is not shown; what fails in it becomes one line. One that runs already stays."""
    from pyspark.sql import SparkSession

    from .. import session

    ours = SparkSession.getActiveSession() is None
    with _silent():
        spark = session(
            master,
            app_name="insync pipeline",
            config={"spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF"},
        )
    try:
        yield spark
    except Exception as error:
        raise _as_ours(error) from error
    finally:
        if ours:
            with _silent():
                spark.stop()


@contextmanager
def _silent() -> Iterator[None]:
    """Messages of the JVM's start and stop go to standard error past Python; keep them from there."""
    if os.environ.get("INSYNC_TRACEBACK") == "1":
        yield
        return
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _as_ours(error: Exception) -> Exception:
    """An error of ours that Spark has wrapped in a report of its own, as what it was."""
    from pyspark.errors import PySparkException

    text = str(error)
    if not isinstance(error, PySparkException) and "Traceback (most recent call last)" not in text:
        return error
    lines = [line for line in text.splitlines() if line.startswith("insync.")]
    if lines:
        return PipelineError(lines[-1].partition(": ")[2] or lines[-1])
    said = _raised(text) or next(iter(text.strip().splitlines()), "")
    return PipelineError(f"Spark failed: {said}") if said else error


def _raised(text: str) -> str | None:
    """The error that the last traceback of Python in a report of Spark ends with."""
    _, found, traceback = text.rpartition("Traceback (most recent call last):")
    lines = (line for line in traceback.splitlines() if line and not line[0].isspace())
    return next(lines, None) if found else None


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Progress]:
    """A bar on standard error if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = console.is_terminal and not quiet
    with Bars(
        *columns,
        console=console,
        transient=True,
        disable=not shown,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bars:
        yield _telling(bars)


def _telling(bars: Any) -> Callable[[str, int, int], None]:
    tasks: dict[str, Any] = {}

    def tell(doing: str, done: int, total: int) -> None:
        if doing not in tasks:
            tasks[doing] = bars.add_task(doing, total=total or None)
        bars.update(tasks[doing], completed=done, total=total or None)

    return tell
