"""Words of messages for people."""

from __future__ import annotations


def counted(count: int, noun: str, nouns: str = "", *, form: str = "d") -> str:
    """A number and what it counts: "1 partition", "3 partitions".

    Args:
      noun: What there is one of.
      nouns: What there are several of; empty: the same with an s.
      form: How the number is written, as `format` takes it; "," groups thousands.
    """
    return f"{count:{form}} {noun if count == 1 else nouns or noun + 's'}"
