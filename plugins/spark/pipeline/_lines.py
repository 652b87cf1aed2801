"""A look through text files before anything is written: it names the first line that is not of the format.

Spark itself names no line. It takes the rest of a file for one value if a quote is not closed, and any line for
JSON.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from ....replication.core.wording import counted
from .errors import InputError

RFC_4180 = {"multiLine": "true", "escape": '"', "mode": "FAILFAST"}
"""For Spark's reader of csv, which by default ends a record at each line's end and escapes by a backslash."""
_DIALECT = {name.lower() for name in (*RFC_4180, "comment", "header", "lineSep", "unescapedQuoteHandling")}
"""Options of Spark's reader; where one is given a file is not of the dialect that is looked for here."""
_SHOWN = 60


def check_lines(uris: Iterable[str], format: Literal["csv", "json"], options: Mapping[str, str]) -> None:
    """Raise InputError for the first line that is no record. Only files of this machine are looked at."""
    given = {name.lower(): value for name, value in options.items()}
    separator, quote = given.get("sep", given.get("delimiter", ",")), given.get("quote", '"')
    if given.keys() & _DIALECT or (format == "csv" and not len(separator) == len(quote) == 1):
        return
    encoding = given.get("encoding", given.get("charset", "utf-8-sig"))
    for uri in uris:
        at = urlsplit(uri)
        if at.scheme == "file":
            path = unquote(at.path)
            # Spark decompresses by the name's ending, as this does.
            with pa.input_stream(path) as raw, io.TextIOWrapper(raw, encoding, newline="") as text:
                if format == "csv":
                    _check_csv(path, text, separator, quote)
                else:
                    _check_json(path, text)


def _check_csv(path: str, text: Iterable[str], separator: str, quote: str) -> None:
    rows = csv.reader(text, delimiter=separator, quotechar=quote, strict=True)
    names: list[str] = []
    line = 1
    with _any_length():
        try:
            for row in rows:
                if row and not names:
                    names = row
                if row and len(row) != len(names):
                    raise _refused(
                        path,
                        line,
                        separator.join(row),
                        f"has {counted(len(row), 'field')}, and the header has {len(names)} "
                        f"({separator.join(names)})",
                        "a field with a line end, a quote or a separator stands in quotes, and a quote in it is "
                        f"doubled (RFC 4180); is {separator!r} the separator (--option sep=...)?",
                    )
                line = rows.line_num + 1
        except csv.Error as error:
            raise _refused(
                path,
                line,
                "",
                f"begins a row that is no csv ({error})",
                "close each quote, and double a quote within quotes (RFC 4180); if a backslash stands before it "
                "instead, give --option 'escape=\\'",
            ) from error


@contextmanager
def _any_length() -> Iterator[None]:
    """The limit of a field is one for all of this process."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _check_json(path: str, text: io.TextIOWrapper) -> None:
    first = ""
    # Spark ends a line where Python does by default.
    text.reconfigure(newline=None)
    for number, line in enumerate(text, 1):
        if line.isspace():
            continue
        first = first or line.lstrip()[0]
        try:
            found = json.loads(line)
            why = "" if isinstance(found, dict) else f"it is a JSON {_kind(found)}"
        except ValueError as error:
            why = str(error)
        if why:
            raise _refused(
                path,
                number,
                line.strip(),
                f"is no JSON object ({why})",
                "the format json is an object in each line: make such lines of an array or of indented JSON, as by "
                f"jq -c '{'.[]' if first == '[' else '.'}' FILE, or load lines as they are with --format lines",
            )


def _kind(found: object) -> str:
    return {list: "array", str: "string", type(None): "null", bool: "boolean"}.get(type(found), "number")


def _refused(path: str, line: int, value: str, what: str, remedy: str) -> InputError:
    shown = value if len(value) <= _SHOWN else value[:_SHOWN] + "..."
    return InputError(
        f"{path}, line {line} {what}{f': {shown!r}' if shown else ''}; nothing was written: {remedy}"
    )
