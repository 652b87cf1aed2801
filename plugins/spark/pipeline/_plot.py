"""The plot of `stats`, as a picture and within a page."""

from __future__ import annotations

import html
import io
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import PipelineError

if TYPE_CHECKING:
    from ._stats import StatsReport

_KEYS = 15
_LEAST_ROWS = 6
_MOST_DOTS = 200
_LEAST_TIME = timedelta(minutes=2)
_EARLIEST, _LATEST = (at.replace(microsecond=0, tzinfo=UTC) for at in (datetime.min, datetime.max))
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
th, td {{ border-bottom: 1px solid #ddd; padding: .2rem .8rem; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; font-family: ui-monospace, monospace; }}
svg {{ max-width: 100%; height: auto; }}
</style></head><body>
<h1>{title}</h1>
<p>{summary}</p>
{svg}
<h2>Keys with the most bytes</h2>
{keys}
<h2>Partitions</h2>
{partitions}
</body></html>
"""


def check_drawing(paths: Iterable[Path]) -> None:
    """Before hours of counting. Raises PipelineError: there is no matplotlib, or a file cannot be written."""
    for path in paths:
        _figure_class()
        folder = path.absolute().parent
        if not folder.is_dir():
            raise PipelineError(f"{path} cannot be written: there is no folder {folder}")
        if path.is_dir():
            raise PipelineError(f"{path} cannot be written: it is a folder; name a file in it")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise PipelineError(f"{path} cannot be written: permission denied")


def write_png(report: StatsReport, path: Path) -> None:
    """Raises PipelineError if matplotlib is not installed, OSError."""
    _figure(report).savefig(path, format="png", dpi=120)


def write_html(report: StatsReport, path: Path) -> None:
    """A page of its own, which loads nothing. Raises PipelineError if matplotlib is not installed, OSError."""
    drawn = io.StringIO()
    _figure(report).savefig(drawn, format="svg")
    svg = drawn.getvalue()
    page = _PAGE.format(
        title=html.escape(report.name),
        summary=html.escape(summary(report)),
        svg=svg[svg.index("<svg") :],
        keys=_table(
            ("key", "records", "bytes"),
            [(each.text, each.records, each.bytes) for each in report.top_keys],
        ),
        partitions=_table(
            ("partition", "offsets", "records", "bytes", "late", "latest by (ms)"),
            [
                (
                    each.partition,
                    f"{each.first_offset} to {each.end_offset}",
                    each.records,
                    each.bytes,
                    each.late,
                    each.max_late_ms,
                )
                for each in report.partitions
            ],
        ),
    )
    path.write_text(page, encoding="utf-8")


def summary(report: StatsReport) -> str:
    """One line."""
    line = (
        f"{report.records:,} records, {report.bytes:,} bytes of keys and values, {report.keys:,} keys; "
        f"{report.late:,} records out of order"
    )
    return f"{line}, by at most {report.max_late_ms:,} ms" if report.late else line


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PipelineError(
            "matplotlib is not installed, and plots need it: pip install 'insync[spark]'"
        ) from error
    return Figure


def _figure(report: StatsReport) -> Any:
    figure = _figure_class()(figsize=(10, 9), layout="constrained")
    rates, late, keys = figure.subplots(3, 1)
    times = [each.at for each in report.minutes]
    dots, crosses = ("o", "x") if len(times) <= _MOST_DOTS else (None, None)
    rates.plot(times, [each.records for each in report.minutes], marker=dots, label="records")
    rates.set_title(report.name)
    rates.set_ylabel("records a minute")
    volume = rates.twinx()
    sizes = [each.bytes for each in report.minutes]
    volume.plot(times, sizes, color="tab:orange", marker=crosses, label="bytes")
    volume.set_ylabel("bytes a minute")
    volume.legend(handles=[*rates.lines, *volume.lines], loc="upper left")
    late.plot(times, [each.late for each in report.minutes], color="tab:red", marker=crosses)
    late.set_ylabel("out of order, a minute")
    shown = report.top_keys[:_KEYS][::-1]
    keys.barh([_short(each.text) for each in shown], [each.bytes for each in shown])
    keys.set_xlabel("bytes of keys and values")
    if report.minutes:
        _scale(report, (rates, late), volume, keys)
    else:
        for axes in (rates, volume, late, keys):
            axes.set_xticks([])
            axes.set_yticks([])
        rates.text(0.5, 0.5, "no records", transform=rates.transAxes, ha="center")
    return figure


def _scale(report: StatsReport, by_time: tuple[Any, ...], volume: Any, keys: Any) -> None:
    """Axes that begin at nothing, name the day and the time's zone, and suit one minute and one key, too."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.ticker import EngFormatter, MaxNLocator

    first, last = report.minutes[0].at, report.minutes[-1].at
    room = max(_LEAST_TIME, (last - first) / 20)
    for axes in by_time:
        axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlim(first - min(room, first - _EARLIEST), last + min(room, _LATEST - last))
        where = AutoDateLocator(tz=UTC)
        axes.xaxis.set_major_locator(where)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(where, tz=UTC))
        axes.set_xlabel("UTC")
    volume.set_ylim(0, max(1.0, volume.get_ylim()[1]))
    volume.yaxis.set_major_formatter(EngFormatter("B"))
    keys.set_xlim(0, max(1.0, keys.get_xlim()[1]))
    keys.xaxis.set_major_formatter(EngFormatter("B"))
    # A few keys are not to be a few walls.
    count = len(report.top_keys[:_KEYS])
    keys.set_ylim(min(-0.6, count - _LEAST_ROWS), count - 0.4)


def _short(text: str) -> str:
    """A key as a label: what cannot be printed is escaped, and a dollar sign would begin a formula."""
    text = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return (text if len(text) <= 30 else f"{text[:14]}…{text[-15:]}").replace("$", r"\$")


def _table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    def line(cells: tuple[object, ...], tag: str) -> str:
        made = "".join(
            f"<{tag}>{html.escape(f'{each:,}' if isinstance(each, int) else str(each))}</{tag}>"
            for each in cells
        )
        return f"<tr>{made}</tr>"

    return f"<table>{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"
