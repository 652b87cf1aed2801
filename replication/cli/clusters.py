"""The common parts of the commands that talk to a running cluster."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import IO, Annotated, Any

import msgspec
from cyclopts import Parameter

from ..core.wording import printable
from .errors import UsageError, one_line

Servers = Annotated[
    str,
    Parameter(
        name=("--servers", "-s"),
        env_var="INSYNC_SERVERS",
        show_default=False,
        help="URLs of some nodes, comma separated, e.g. tcp://127.0.0.1:9092.",
    ),
]
Flag = Annotated[bool, Parameter(show_default=False)]
Json = Annotated[
    bool, Parameter(show_default=False, help="Print JSON for programs, instead of text for people.")
]


def known(servers: str) -> str:
    """The given servers; raises `UsageError` without any, or if one is not an address."""
    if not servers.strip(" ,"):
        raise UsageError(
            "no servers to ask: give --servers tcp://host:port or set INSYNC_SERVERS "
            "(insync up starts a cluster to try and prints its servers)"
        )
    # Imported here, so that commands without a connection start faster.
    from ..client import InvalidSettingError
    from ..client._settings import bootstrap_urls

    try:
        bootstrap_urls(servers)
    except InvalidSettingError as error:
        raise UsageError(str(error)) from error
    return servers


def moment(option: str, text: str) -> int:
    """A time as milliseconds since 1970: given as such, or in ISO 8601 (local time, if it names no zone)."""
    if text.isdecimal():
        return int(text)
    try:
        found = int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        found = -1
    if found < 0:
        raise UsageError(
            f"{option} {text!r} is not a time; use milliseconds since 1970 or ISO 8601, like 2026-03-01T12:00:00"
        )
    return found


def say(*lines: object, to: IO[str] | None = None, flush: bool = False) -> None:
    """Print each on a line of its own. They may hold names that clients have chosen.

    to: standard output if None.
    """
    for line in lines:
        print(printable(str(line)), file=to, flush=flush)


def print_json(value: Any) -> None:
    """value: may hold attrs classes and structs."""
    say(json.dumps(msgspec.to_builtins(value, enc_hook=str), ensure_ascii=False))


def as_text(name: str, data: bytes | None) -> dict[str, str | None]:
    """Bytes as a field of JSON: text if they are UTF-8, otherwise base64 under `name_base64`."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


class _Complaint(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"insync: {one_line(record.getMessage())}"


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Show clients' warnings on stderr, such as offsets that are not there or writes that do not succeed yet."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_Complaint())
    logger = logging.getLogger("insync.client")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
