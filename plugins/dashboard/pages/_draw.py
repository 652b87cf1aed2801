"""Charts as SVG: a page needs no script for them, and each has its facts as text for screen readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from .._changes import Span
from ._markup import joined, moment

WIDTH, HEIGHT = 720, 120
_LEFT, _TOP, _BOTTOM = 66, 8, 20
_BAR = 16
_COLOURS = 6
_WINDOWS = (60.0, 120.0, 300.0, 600.0, 900.0)
"""Seconds that a chart can be of."""


def window(known: Iterable[float], now: float) -> tuple[float, str]:
    """When a chart begins that is not mostly empty, and how long it is, in words.

    known: since when what it draws is known, in seconds since 1970.
    """
    age = now - min(known, default=now)
    seconds = next((each for each in _WINDOWS if each >= age), _WINDOWS[-1])
    return now - seconds, "the last minute" if seconds == 60 else f"the last {seconds / 60:.0f} minutes"


def charts(drawn: Iterable[Markup]) -> Markup:
    """Side by side, where there is room."""
    return Markup('<div class="charts">{}</div>').format(joined(drawn))


def lines(
    title: str, series: Mapping[str, Iterable[tuple[float, float]]], start: float, end: float
) -> Markup:
    """Lines over time, each with its name; `start` and `end` in seconds since 1970. Values are not below 0."""
    drawn = {name: [pair for pair in pairs if start <= pair[0] <= end] for name, pairs in series.items()}
    top = max((value for pairs in drawn.values() for _, value in pairs), default=0.0) or 1.0

    def place(at: float, value: float) -> str:
        x = _LEFT + (WIDTH - _LEFT) * (at - start) / max(1e-9, end - start)
        return f"{x:.1f},{_TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - max(0.0, value) / top):.1f}"

    paths = joined(
        Markup('<polyline class="line c{}" points="{}"><title>{}</title></polyline>').format(
            index % _COLOURS, " ".join(place(*pair) for pair in pairs), name
        )
        for index, (name, pairs) in enumerate(drawn.items())
    )
    legend = joined(
        Markup('<li><span class="key c{}"></span>{}: {}</li>').format(
            index % _COLOURS, name, f"{pairs[-1][1]:,.0f}" if pairs else "nothing yet"
        )
        for index, (name, pairs) in enumerate(drawn.items())
    )
    said = (
        "; ".join(f"{name} {pairs[-1][1]:,.0f} now" for name, pairs in drawn.items() if pairs)
        or "no values yet"
    )
    return Markup(
        '<figure><figcaption>{}</figcaption><svg role="img" aria-label="{}" viewBox="0 0 {} {}">'
        '<text x="{}" y="{}" class="scale">{}</text><text x="{}" y="{}" class="scale">0</text>'
        '<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>'
        '<text x="{}" y="{}" class="scale">{}</text><text x="{}" y="{}" class="scale end">{}</text>'
        '{}</svg><ul class="legend">{}</ul></figure>'
    ).format(
        title, f"{title}: {said}", WIDTH, HEIGHT,
        2, _TOP + 8, f"{top:,.0f}", 2, HEIGHT - _BOTTOM,
        _LEFT, WIDTH, HEIGHT - _BOTTOM, HEIGHT - _BOTTOM,
        _LEFT, HEIGHT - 3, _time(start), WIDTH, HEIGHT - 3, _time(end), paths, legend,
    )  # fmt: skip


def spans(title: str, found: Sequence[Span], start: float, end: float) -> Markup:
    """The replicas of one partition over time: who led, who was in sync, who was out and why."""
    rows = sorted({span.node for span in found})
    height = _TOP + len(rows) * (_BAR + 4) + _BOTTOM

    def x(at: float) -> float:
        return _LEFT + (WIDTH - _LEFT) * (at - start) / max(1e-9, end - start)

    bars = joined(
        Markup('<rect class="span {}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>').format(
            span.state,
            f"{x(max(start, span.start)):.1f}",
            _TOP + rows.index(span.node) * (_BAR + 4),
            f"{max(1.0, x(span.end) - x(max(start, span.start))):.1f}",
            _BAR,
            f"node {span.node} {_STATES[span.state]}" + (f": {span.why}" if span.why else ""),
        )
        for span in found
        if span.end >= start
    )
    names = joined(
        Markup('<text x="2" y="{}" class="scale">node {}</text>').format(
            _TOP + index * (_BAR + 4) + _BAR - 4, node
        )
        for index, node in enumerate(rows)
    )
    said = "; ".join(f"node {span.node} {_STATES[span.state]}" for span in found if span.end >= end)
    return Markup(
        '<figure><figcaption>{}</figcaption><svg role="img" aria-label="{}" viewBox="0 0 {} {}">{}{}'
        '<text x="{}" y="{}" class="scale">{}</text><text x="{}" y="{}" class="scale end">{}</text></svg></figure>'
    ).format(
        title, f"{title}. Now: {said}", WIDTH, height, names, bars,
        _LEFT, height - 4, _time(start), WIDTH, height - 4, _time(end),
    )  # fmt: skip


_STATES = {"leads": "leads", "in": "is in sync", "out": "is out of sync"}


def _time(at: float) -> str:
    return moment(at).striptags()
