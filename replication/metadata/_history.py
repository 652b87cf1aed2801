"""The keys that changed at each revision, for a while: the source of a store's `changes`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

KEPT_REVISIONS = 1024
KEPT_KEYS = 100_000


class History:
    """The last changes of a store, in order of their revisions, bounded.

    floor: the oldest revision since which it can tell all. It forgets the older half of what it keeps at a time, so
    that a change costs the same on average, however long the history is.
    """

    def __init__(self, floor: int = 0, *, revisions: int = KEPT_REVISIONS, keys: int = KEPT_KEYS) -> None:
        self.floor = floor
        self._most_revisions = revisions
        self._most_keys = keys
        self._revisions: list[int] = []
        self._keys: list[frozenset[str]] = []
        self._size = 0

    def add(self, revision: int, keys: Iterable[str]) -> None:
        """Note a change. Revisions rise; one that comes twice adds to itself."""
        changed = frozenset(keys)
        if self._revisions and self._revisions[-1] == revision:
            changed |= self._keys[-1]
            self._size += len(changed) - len(self._keys[-1])
            self._keys[-1] = changed
        else:
            assert not self._revisions or revision > self._revisions[-1], "the history goes forward"
            self._revisions.append(revision)
            self._keys.append(changed)
            self._size += len(changed)
        if len(self._revisions) > 2 * self._most_revisions or self._size > 2 * self._most_keys:
            self._forget()

    def _forget(self) -> None:
        first = max(0, len(self._revisions) - self._most_revisions)
        size = sum(map(len, self._keys[first:]))
        while size > self._most_keys:
            size -= len(self._keys[first])
            first += 1
        self.floor = self._revisions[first - 1]
        del self._revisions[:first], self._keys[:first]
        self._size = size

    def since(self, revision: int) -> set[str] | None:
        """The keys that changed after `revision`; None if that is further back than the history."""
        if revision < self.floor:
            return None
        return set().union(*self._keys[bisect_right(self._revisions, revision) :])

    def restart(self, floor: int) -> None:
        """Forget everything: of what came before `floor` nothing is known."""
        self.floor = floor
        self._revisions, self._keys, self._size = [], [], 0
