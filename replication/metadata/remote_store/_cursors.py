"""The unsent pages of a served store's answers that are larger than a frame."""

from __future__ import annotations

import attrs

from ....transport import Connection, Limits
from ..errors import StoreUnavailableError
from . import _messages as m

_MOST_CURSORS = 8
"""Of one connection. Beyond that the oldest is forgotten: its reader has given up, or reads too much at a time."""

PAGE_BYTES = Limits().max_body_bytes // 2
"""Pages stay well below a frame, whatever an entry's numbers take."""
_MOST_UNSENT = 8 << 20
"""Bytes that may wait for a connection to take them before it is told any more entries."""


@attrs.define(eq=False)
class _Reader:
    """The cursors of one connection: the pages to come, by the number under which they are asked for."""

    last: int = 0
    pages: dict[int, list[m.Found]] = attrs.field(factory=dict)


class Cursors:
    """Snapshots that are being read page by page. They end with their connection."""

    def __init__(self) -> None:
        self._readers: dict[Connection, _Reader] = {}

    def first_page(self, connection: Connection, found: m.Found) -> bytes:
        return self._send(connection, found.pages(PAGE_BYTES)[::-1])

    def next_page(self, connection: Connection, cursor: int) -> bytes:
        """Raises `StoreUnavailableError`: the reader begins again."""
        reader = self._readers.get(connection)
        pages = reader.pages.pop(cursor, None) if reader is not None else None
        if pages is None:
            raise StoreUnavailableError(
                f"the cursor {cursor} is not open any more; read again from the start"
            )
        return self._send(connection, pages)

    def _send(self, connection: Connection, pages: list[m.Found]) -> bytes:
        """The last of `pages`; the others wait, unless the reader has left meanwhile."""
        check_reads(connection)
        page = pages.pop()
        if pages and not connection.closed.is_set():
            reader = self._readers.setdefault(connection, _Reader())
            reader.last += 1
            page.more = reader.last
            reader.pages[page.more] = pages
            if len(reader.pages) > _MOST_CURSORS:
                del reader.pages[min(reader.pages)]
        return m.encode(page)

    def forget(self, connection: Connection) -> None:
        self._readers.pop(connection, None)


def check_reads(connection: Connection) -> None:
    """Raise `StoreUnavailableError` if somebody asks and does not take the answers: they would fill the memory."""
    if connection.unsent > _MOST_UNSENT:
        raise StoreUnavailableError(
            f"{connection.unsent} bytes of earlier answers are still unread, above {_MOST_UNSENT}: take them first"
        )
