"""Small text files that decide something: the last line is a CRC-32C of the lines before it.

A file of an earlier release, or of Kafka, has no such line. One changed byte in the line's first word makes a line
that no reader of these files knows, so that the file does not pass for an earlier one.
"""

from __future__ import annotations

import re

from ._batch_scan import crc32c

_SEAL = re.compile(rb"crc32c: ([0-9a-f]{8})\n\Z")


def sealed(text: str) -> bytes:
    """The content of a file that says `text`, whole lines."""
    body = text.encode()
    return body + b"crc32c: %08x\n" % crc32c(body)


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
