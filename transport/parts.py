"""Bytes on their way: those that are sent with a body, and those that came with one."""

from __future__ import annotations

from types import TracebackType
from typing import Literal, Protocol, Self, runtime_checkable

Buffer = bytes | bytearray | memoryview
"""Contiguous bytes."""


@runtime_checkable
class FileRange(Protocol):
    """`length` bytes of an append-only file from `offset` on.

    Its creator keeps the descriptor open while the object lives, and does not change these bytes while a link may
    still send them (a socket refers to the file's pages until the peer has received them).
    """

    @property
    def offset(self) -> int: ...
    @property
    def length(self) -> int: ...
    def fileno(self) -> int: ...


Part = Buffer | FileRange
"""A piece of a payload."""


class Payload(Protocol):
    """Bytes received with a body. Valid until `release()`."""

    @property
    def nbytes(self) -> int: ...
    @property
    def source(self) -> Literal["pooled", "ring", "range"]: ...

    def view(self) -> memoryview:
        """The bytes. Raises ValueError after `release()`.

        A payload of source "range" is read now: RangeTruncated if a file was cut meanwhile, OSError if reading
        fails.
        """

    def copy_to(self, fd: int, offset: int) -> int:
        """Write all bytes to a file at `offset`; returns their number. It blocks."""

    def release(self) -> None:
        """Free the memory. Idempotent."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
