"""Markup in which everything from outside is escaped: topic names, keys, values and errors are always text.

`markupsafe` escapes whatever is put into a `Markup` by `format`; nothing here joins strings to markup otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from urllib.parse import urlencode

from markupsafe import Markup, escape

Cell = object
"""Markup, or anything that is shown as text."""


def joined(parts: Iterable[object], between: str = "") -> Markup:
    return Markup(between).join(map(escape, parts))


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[Cell]], *, numbers: Iterable[int] = ()
) -> Markup:
    """A table with a caption and column heads; `numbers`: columns that stand right."""
    right = set(numbers)
    head = joined(
        Markup('<th scope="col"{}>{}</th>').format(_side(index, right), name)
        for index, name in enumerate(heads)
    )
    body = joined(
        Markup("<tr>{}</tr>").format(
            joined(
                Markup("<td{}>{}</td>").format(_side(index, right), cell) for index, cell in enumerate(row)
            )
        )
        for row in rows
    )
    if not body:
        body = Markup('<tr><td colspan="{}">None.</td></tr>').format(len(heads))
    return Markup(
        '<div class="scroll"><table><caption>{}</caption><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
    ).format(caption, head, body)


def _side(index: int, right: set[int]) -> Markup:
    return Markup(' class="number"') if index in right else Markup()


def link(text: object, path: str, /, **query: object) -> Markup:
    """A link to one of our pages."""
    address = path + (f"?{urlencode({name: str(value) for name, value in query.items()})}" if query else "")
    return Markup('<a href="{}">{}</a>').format(address, text)


def topic_link(name: str) -> Markup:
    return link(name, "/topic", name=name)


def badge(text: str, kind: str) -> Markup:
    """kind: good, warning, error or quiet. The text says it as well: colours alone say nothing to many."""
    return Markup('<span class="badge {}">{}</span>').format(kind, text)


def whole(text: str) -> Markup:
    """A few words that stand on one line."""
    return Markup('<span class="whole">{}</span>').format(text)


def fact(name: str, value: object) -> Markup:
    return Markup('<div class="fact"><dt>{}</dt><dd>{}</dd></div>').format(name, value)


def facts(*pairs: tuple[str, object]) -> Markup:
    return Markup('<dl class="facts">{}</dl>').format(joined(fact(*pair) for pair in pairs))


def section(title: str, *parts: object) -> Markup:
    return Markup("<section><h2>{}</h2>{}</section>").format(title, joined(parts))


def note(text: object) -> Markup:
    return Markup("<p>{}</p>").format(text)


def ago(at: float, now: float | None = None) -> str:
    """How long ago, roughly."""
    seconds = max(0.0, (time.time() if now is None else now) - at)
    for name, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {name} ago"
    return f"{seconds:.0f} s ago"


def moment(at: float) -> Markup:
    """A time as this machine's clock shows it, with the date to be read by programs and by pointing at it."""
    try:
        when = datetime.fromtimestamp(at)
    except (ValueError, OverflowError, OSError):
        return Markup("<span>{}</span>").format(at)
    text = when.strftime("%H:%M:%S" if abs(time.time() - at) < 86_400 else "%Y-%m-%d %H:%M")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        when.isoformat(timespec="milliseconds"), when.isoformat(" ", timespec="milliseconds"), text
    )


def nodes(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids)) or "none"
