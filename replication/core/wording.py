"""Words of messages for people."""

from __future__ import annotations

import json
from collections.abc import Sequence


def counted(count: int, noun: str, nouns: str = "", *, form: str = "d") -> str:
    """A number and what it counts: "1 partition", "3 partitions".

    Args:
      noun: What there is one of.
      nouns: What there are several of; empty: the same with an s.
      form: How the number is written, as `format` takes it; "," groups thousands.
    """
    return f"{count:{form}} {noun if count == 1 else nouns or noun + 's'}"


def first_of(parts: Sequence[object], shown: int, *, form: str = "d") -> str:
    """The first `shown` of them: "a, b and 3 more". form: as for `counted`."""
    return ", ".join(map(str, parts[:shown])) + and_more(len(parts), shown, form=form)


def and_more(count: int, shown: int, *, form: str = "d") -> str:
    """The end of a list that has `count` parts and shows some of them; empty if it shows all."""
    return f" and {count - shown:{form}} more" if count > shown else ""


def printable(text: str) -> str:
    """One line that moves no cursor, changes no colour and reads in one direction.

    Characters that are not printable become escapes of JSON, such as `\\u001b`, so JSON stays the same JSON.
    """
    return text if text.isprintable() else "".join(map(_printable, text))


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]
