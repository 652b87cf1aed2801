"""Topics as metadata answers tell of them, encoded once for as long as nothing about them changes.

A cluster of 10,000 partitions has an answer of 400 KB, which every client asks for when it starts and when leaders
change; to make it of the records takes 40 ms of the node's processor, to join what is encoded a hundredth of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from insync.replication.core.control.view import ClusterView

from ..protocol import Encoded

MOST_VERSIONS = 4
"""Versions of the API that are kept at a time: clients of one age use one, and a hostile one could ask in all.
While a node is in doubt its topics are encoded otherwise, which counts as another version."""


class EncodedTopics:
    """By version and name, each as an array of one."""

    def __init__(self) -> None:
        self._view = ClusterView()
        self._known: dict[tuple[int, frozenset[int]], dict[str, Encoded]] = {}

    def of(
        self, view: ClusterView, version: int, doubted: frozenset[int] = frozenset()
    ) -> dict[str, Encoded]:
        """The view's topics, as encoded for this version; an added topic counts until it changes.

        doubted: the nodes that are told as leaders of nothing.
        """
        if view is not self._view:
            self._forget(view)
        found = self._known.pop((version, doubted), None)
        if found is None:
            found = {}
            while len(self._known) >= MOST_VERSIONS:
                del self._known[next(iter(self._known))]
        # The one that was used last stands last.
        self._known[version, doubted] = found
        return found

    def _forget(self, view: ClusterView) -> None:
        """Forget topics that may differ from the view before. The set of nodes is told with every partition."""
        before, self._view = self._view, view
        if view.nodes is not before.nodes:
            self._known.clear()
            return
        gone = _different(before.topics, view.topics)
        changed = view.differs_from(before)
        if changed is None:
            changed = frozenset(_different(before.partitions, view.partitions))
        gone |= {each.topic for each in changed}
        for known in self._known.values():
            for name in gone & known.keys():
                del known[name]


K = TypeVar("K")


def _different(before: Mapping[K, object], now: Mapping[K, object]) -> set[K]:
    """Keys that are not in both, or whose values are not the same objects."""
    if before is now:
        return set()
    return {key for key, value in now.items() if before.get(key) is not value} | (before.keys() - now.keys())
