"""The lines of a node's log: what happened by name, with its facts as key=value, or as one JSON object a line.

A node logs by the logger `insync.node`, wherever the program that runs it sends that. `insync node` writes to
standard error, in the form that the setting `log_format` asks for.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

from ..core.wording import printable

_PLAIN = re.compile(r"[^\s\"=]+")


@attrs.frozen
class Event:
    """The message of a log record: an event's name and its facts, in the order in which they are told."""

    name: str
    facts: Mapping[str, object]

    def __str__(self) -> str:
        facts = (f"{key}={_text(value)}" for key, value in self.facts.items())
        return printable(" ".join((f"event={self.name}", *facts)))


def event(name: str, /, **facts: object) -> Event:
    """An event for the log, e.g. `log.info(event("controller_changed", controller=2, why="..."))`."""
    return Event(name, facts)


class TextFormatter(logging.Formatter):
    """Time, level, node and logger, then the message; the time is local, with milliseconds."""

    def __init__(self, node_id: int) -> None:
        super().__init__(
            f"%(asctime)s.%(msecs)03d %(levelname)s node={node_id} %(name)s: %(message)s",
            datefmt="%Y-%m-%dT%H:%M:%S",
        )

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(map(printable, super().formatException(ei).split("\n")))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, node, logger, and an event with its facts, or a message."""

    def __init__(self, node_id: int) -> None:
        super().__init__()
        self._node_id = node_id

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "node": self._node_id,
            "logger": record.name,
        }
        if isinstance(record.msg, Event):
            line |= {"event": record.msg.name, **record.msg.facts}
        else:
            line["message"] = record.getMessage()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return printable(json.dumps(line, ensure_ascii=False, default=str))


def _text(value: object) -> str:
    """Lists as 1,2,3 (`-` for none); what has blanks or quotation marks in it in such marks, as in JSON."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    text = str(value)
    if type(value) is int:
        return text
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
