"""Compressing the records of a batch, with the bounds and dialects that Kafka's clients need.

The dialects: lz4 is the frame format with independent blocks, the only ones that Kafka's Java client reads
(KIP-57); snappy comes from Java in xerial's frames and from librdkafka without any, and every client reads both;
gzip and zstd (KIP-110) are their plain formats. The codec library is loaded when first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from ..errors import CorruptBatchError, InflatedTooLargeError, UnsupportedCompressionError
from ._columns import Buffer

if TYPE_CHECKING:
    from types import ModuleType

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

MAX_INFLATED_BYTES = 128 << 20
"""How large the records of a compressed batch may become, unless a reader says otherwise."""

_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
_GUESS = 4
_LEAST_ROOM = 1 << 16
_NO_ROOM = "failed to write whole buffer"
"""How the library says that the output is longer than the room for it."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + (1).to_bytes(4) + (1).to_bytes(4)
_XERIAL_BLOCK = 32 << 10
_SNAPPY_MAX_EXPANSION = 22
"""A copy makes at most 64 bytes out of three; a length that says more is false."""


def codec_name(codec: int) -> str:
    """`none`, `gzip`, `snappy`, `lz4`, `zstd`, or `codec-N`."""
    return _NAMES[codec] if codec < len(_NAMES) else f"codec-{codec}"


def codec_number(name: str) -> int:
    """As it stands in a batch's attributes. Raises UnsupportedCompressionError for an unknown name."""
    if name not in _NAMES:
        raise UnsupportedCompressionError(name)
    return _NAMES.index(name)


def compress(codec: int, data: Buffer) -> Buffer:
    """The records of a batch, compressed."""
    return _COMPRESSORS[codec](_library(), data)


def decompress(codec: int, data: memoryview, max_bytes: int, position: int) -> Buffer:
    """The records of the batch at `position`, at most `max_bytes` of them.

    Raises UnsupportedCompressionError for an unknown codec, InflatedTooLargeError over `max_bytes`,
    CorruptBatchError for anything that is not the codec's format.
    """
    if codec not in _DECOMPRESSORS:
        raise UnsupportedCompressionError(codec_name(codec))
    library = _library()
    try:
        return _DECOMPRESSORS[codec](library, data, max_bytes)
    except _TooLong:
        raise InflatedTooLargeError(position, codec_name(codec), max_bytes) from None
    except (library.DecompressionError, _BadFrame) as error:
        reason = f"its records are not valid {codec_name(codec)} data ({error})"
        raise CorruptBatchError(position, reason) from error


class _TooLong(Exception):
    """The output would pass the bound."""


class _BadFrame(Exception):
    """Not xerial's framing."""


def _library() -> ModuleType:
    import cramjam

    return cramjam


def _inflate(into: Callable[[Buffer, Buffer], int], data: Buffer, max_bytes: int) -> Buffer:
    """Decompress into rooms of growing size: these formats need not say how long the output is."""
    room = min(max_bytes, max(_LEAST_ROOM, _GUESS * len(data)))
    while True:
        out = bytearray(room)
        try:
            return memoryview(out)[: into(data, out)]
        except Exception as error:
            if _NO_ROOM not in str(error):
                raise
        if room >= max_bytes:
            raise _TooLong
        room = min(max_bytes, _GUESS * room)


def _compress_snappy(library: Any, data: Buffer) -> Buffer:
    """In xerial's frames, as Java writes it: a header, then blocks with their compressed length before each."""
    parts = [_XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(library.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (len(block).to_bytes(4), block)
    return b"".join(parts)


def _decompress_snappy(library: Any, data: memoryview, max_bytes: int) -> Buffer:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_raw(library, data, max_bytes)
    parts: list[Buffer] = []
    at = len(_XERIAL_HEADER)
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        at += 4
        if size > len(data) - at:
            raise _BadFrame(f"a block of {size} bytes exceeds the batch")
        parts.append(_decompress_raw(library, data[at : at + size], max_bytes))
        max_bytes -= len(parts[-1])
        at += size
    return b"".join(parts)


def _decompress_raw(library: Any, block: memoryview, max_bytes: int) -> Buffer:
    length = library.snappy.decompress_raw_len(block)
    if length > _SNAPPY_MAX_EXPANSION * len(block):
        raise _BadFrame(f"{len(block)} bytes cannot decompress to {length}")
    if length > max_bytes:
        raise _TooLong
    out = bytearray(length)
    return memoryview(out)[: library.snappy.decompress_raw_into(block, out)]


def _compress_lz4(library: Any, data: Buffer) -> Buffer:
    compressor = library.lz4.Compressor(block_linked=False)
    compressor.compress(bytes(data))
    return memoryview(compressor.finish())


_COMPRESSORS: dict[int, Callable[[Any, Buffer], Buffer]] = {
    1: lambda library, data: memoryview(library.gzip.compress(data)),
    2: _compress_snappy,
    3: _compress_lz4,
    4: lambda library, data: memoryview(library.zstd.compress(data)),
}
_DECOMPRESSORS: dict[int, Callable[[Any, memoryview, int], Buffer]] = {
    1: lambda library, data, limit: _inflate(library.gzip.decompress_into, data, limit),
    2: _decompress_snappy,
    3: lambda library, data, limit: _inflate(library.lz4.decompress_into, data, limit),
    4: lambda library, data, limit: _inflate(library.zstd.decompress_into, data, limit),
}
