"""Records that try the corners of the format, in every codec."""

from __future__ import annotations

import struct
from typing import Any

from insync.storage.batch import Record, build_batch

CODECS: list[Any] = ["none", "gzip", "snappy", "lz4", "zstd"]
COUNT = 2000
START = 1_700_000_000_000

KEYS = [None if n % 3 == 0 else b"" if n % 3 == 1 else b"key-%d" % n for n in range(COUNT)]
VALUES = [None if n % 5 == 0 else b"value " * (n % 60) + b"%d" % n for n in range(COUNT)]
HEADERS = [[("größe", b"\x01\x02"), ("nil", None), ("", b"")] if n % 7 == 0 else [] for n in range(COUNT)]
TIMES = [START + n * 3 - (n % 2) * 500 for n in range(COUNT)]


def stamped(batch: bytes, base_offset: int, leader_epoch: int) -> bytes:
    """As a leader would do it."""
    out = bytearray(batch)
    struct.pack_into(">q", out, 0, base_offset)
    struct.pack_into(">i", out, 12, leader_epoch)
    return bytes(out)


def ours(**options: Any) -> list[bytes]:
    """A batch in each codec, one after the other in offsets."""
    return [
        stamped(
            build_batch(KEYS, VALUES, timestamps_ms=TIMES, headers=HEADERS, compression=codec, **options),
            COUNT * at,
            4,
        )
        for at, codec in enumerate(CODECS)
    ]


def expected() -> list[Record]:
    """What is in them."""
    headers = [tuple(each) for each in HEADERS]
    rows = list(zip(TIMES, KEYS, VALUES, headers, strict=True))
    return [Record(at, *rows[at % COUNT]) for at in range(COUNT * len(CODECS))]
