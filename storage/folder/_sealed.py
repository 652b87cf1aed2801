"""Small text files that decide something: each ends with a CRC-32C of what stands before.

In our own files that is the last line, in properties a comment. Kafka's readers of checkpoints refuse a line of
another form, but pass over white space at the end of one: there the last row ends with 32 blanks (0) and tabs (1).

A file of an earlier release, or of Kafka, has no checksum. One changed byte does not make such a file of one that
has: what is left of the checksum is nothing that a reader of these files knows.
"""

from __future__ import annotations

import re

from ..batch._scan import crc32c

_SEAL = re.compile(rb"#?crc32c: ([0-9a-f]{8})\n\Z")
_BITS = 32
_TABLE_SEAL = re.compile(rb"([ \t]{%d})\n\Z" % _BITS)
_LOOSE = re.compile(rb"\t|  | \n|[^\n]\Z")
"""White space that no row has, or a last row that is cut short."""


def sealed(text: str, comment: str = "") -> bytes:
    """The content of a file that says `text`, whole lines; `comment` begins a line that its readers pass over."""
    body = text.encode()
    return body + f"{comment}crc32c: {crc32c(body):08x}\n".encode()


def unsealed(content: bytes) -> str | None:
    """The lines before the checksum, or the whole content of a file without one; None if they are damaged."""
    seal = _SEAL.search(content)
    body = content[: seal.start()] if seal else content
    if seal and int(seal[1], 16) != crc32c(body):
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def sealed_table(text: str) -> bytes:
    """The content of a checkpoint that says `text`, whole lines; without a row there is nothing to protect."""
    body = text.encode()
    if text.count("\n") <= 2:
        return body
    bits = f"{crc32c(body):0{_BITS}b}".translate({ord("0"): " ", ord("1"): "\t"})
    return body[:-1] + bits.encode() + b"\n"


def unsealed_table(content: bytes) -> str | None:
    """The text of a checkpoint, with or without a checksum; None if it is damaged."""
    seal = _TABLE_SEAL.search(content)
    body = content[: seal.start()] + b"\n" if seal else content
    if seal and int(seal[1].translate(bytes.maketrans(b" \t", b"01")), 2) != crc32c(body):
        return None
    try:
        return None if _LOOSE.search(body) else body.decode()
    except UnicodeDecodeError:
        return None
