"""Nodes of two minor versions side by side, as while a cluster is upgraded, or taken back, node after node.

All of them run this code. The later version is told apart by what an earlier one does not know: a field in every
record that it writes, which an earlier one skips, and leaves out of what it writes in turn; numbers of errors; a
request. A process is of one version, the next of its node perhaps of the other; a cluster may stay mixed.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from msgspec import structs

from ...core import messages as m
from ...core.errors import ErrorCode
from ...core.store_transaction import Transaction
from .node import Node

if TYPE_CHECKING:
    from .cluster import Cluster
    from .network import Question

MIXED = "MV"
"""The label, among the faults of a run, of one with two versions."""
LATER = 0.5
"""How often a process is of the later version."""
UNKNOWN = 0.5
"""How often an error is one that the later version has a number of its own for."""
LATER_ERROR = 30_000
"""The addend to that number: no version that is known has the sum."""
VALUES = 3
"""Different values of the field that the later version writes."""
_LATER_REQUEST = m.IsSilentRequest
"""One that a cluster does without: what it must have answered no version may add."""


class Versions:
    """The versions of processes, and what one makes of the other."""

    def __init__(self, cluster: Cluster) -> None:
        self.met = 0
        """How often one version met something of the other."""
        self._cluster = cluster
        self._is_mixed = MIXED in cluster.settings.faults
        # Of its own, so that runs of one version are what they were.
        self._dice = random.Random(f"versions {cluster.seed}")
        self._later: set[int] = set()
        self._later_sessions: set[int] = set()

    def process_begins(self, node: Node) -> None:
        """Its version is drawn."""
        self._later.discard(node.id)
        if self._is_mixed and self._dice.random() < LATER:
            self._later.add(node.id)
            self._cluster.note(f"node {node.id} is of the later version")

    def is_later(self, node: Node) -> bool:
        """Whether its process is of the later version."""
        return node.id in self._later

    def session_opened(self, node: Node) -> None:
        """Writes with this session are of the version that its process is of."""
        if self.is_later(node):
            self._later_sessions.add(node.session)

    def written(self, transaction: Transaction, session: int) -> None:
        """Give each record that the later version writes its field; one of the earlier version's has none."""
        if not self._is_mixed:
            return
        unknown = self._cluster.store.unknown
        for put in transaction.puts:
            former = unknown.pop(put.key, None)
            if put.record is not None and session in self._later_sessions:
                unknown[put.key] = self._dice.randrange(VALUES)
            elif former is not None:
                self.met += 1

    def answer(self, node: Node, asker: Node, response: m.FetchResponse) -> m.FetchResponse:
        """A node's answer to one of the other version: errors may be some that the asker does not know."""
        if not self.is_later(node) or self.is_later(asker):
            return response
        return structs.replace(
            response,
            error=self._error(response.error),
            partitions=[structs.replace(each, error=self._error(each.error)) for each in response.partitions],
        )

    def _error(self, error: int) -> int:
        if error == ErrorCode.NONE or self._dice.random() >= UNKNOWN:
            return error
        self.met += 1
        return LATER_ERROR + error

    def is_unknown(self, question: Question) -> bool:
        """Whether a node is asked for what its version does not know."""
        asker, asked = question.link.dialler, question.link.peer
        if not isinstance(question.asked.message, _LATER_REQUEST):
            return False
        is_unknown = self.is_later(asker) and not self.is_later(asked)
        self.met += is_unknown
        return is_unknown
