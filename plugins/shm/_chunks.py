"""The traffic of a `shm://` socket: a greeting each way, then chunks. Little endian.

Each chunk has a prefix of 16 bytes: its type, a number and a length. The chunks of type BYTES and RANGES, one after
the other, are the stream: a frame's bytes, or places in files where they are found. FILE brings a descriptor along.
"""

from __future__ import annotations

import struct
from enum import IntEnum

GREETING = struct.Struct("<8sII")
"""Magic, version, and how many of the peer's files this end is ready to hold open."""
MAGIC = b"\x89SHM\r\n\x1a\n"
VERSION = 1

PREFIX = struct.Struct("<B3xIQ")
PLACE = struct.Struct("<I4xQQ")
"""In RANGES, after the prefix: file, offset and length of each range."""
MOST_PLACES = 2048


class Chunk(IntEnum):
    """Types of chunks, and what the number and the length of their prefix are."""

    BYTES = 1
    """`length` bytes of the stream follow."""
    FILE = 2
    """The descriptor that comes with the first byte is called by this number from now on."""
    DROP = 3
    """The file of this number will not be referred to any more."""
    RANGES = 4
    """`number` ranges follow, which together are `length` bytes of the stream."""
