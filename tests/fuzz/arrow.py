"""The C between record batches and columns of Arrow, which Spark's source and sink run on, under the fuzzer."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ._fuzzing import Target
from .storage import batch_seeds

_BATCH = ("isr_batch.c", "isr_crc32c.c", "isr_arrow.c")


_WILD = 4


def _batches() -> Iterator[bytes]:
    """Those of the decoder, and again with a place that is any other, near the data's end or far from it."""
    noise = random.Random(1)
    for data in batch_seeds():
        yield data
        options = bytearray(data[:16])
        options[0] |= _WILD
        options[8:16] = noise.randrange(300).to_bytes(4) + noise.choice((1, 50, 4000, 1 << 31)).to_bytes(4)
        yield bytes(options) + data[16:]


def _columns() -> Iterator[bytes]:
    """Options, then lengths and bytes of the columns; of every mixture of the flags."""
    noise = random.Random(2)
    for flags in (0, 4, 8, 16, 24, 36, 64, 80, 84):
        for size in (0, 200, 3000):
            options = bytes([flags, noise.randrange(256)]) + noise.randrange(100, 9000).to_bytes(2)
            small = b"".join(noise.randrange(1, 60).to_bytes(4) for _ in range(3))
            yield options + small + noise.randbytes(size)


TARGETS = (
    Target("arrow_read", _BATCH, _batches),
    Target("arrow_write", _BATCH, _columns),
)
