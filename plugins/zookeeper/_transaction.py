"""One transaction as one multi-operation of ZooKeeper: made from what was just read, void if that has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import RolledBackError, RuntimeInconsistency, ZookeeperError
from kazoo.protocol.states import ZnodeStat

from insync.replication.metadata import Committed, Compare, Delete, Exists, Missing, Operation, Put

from ._layout import Layout, Mark, Node, encode


@attrs.frozen
class Reading:
    """The basis of a transaction's decision. revision: of the store; created: version of the node of that name."""

    revision: int
    mark: Mark
    created: int
    nodes: Mapping[str, Node]


@attrs.define
class Multi:
    """The operations for ZooKeeper, and the versions that they will lead to."""

    layout: Layout
    reading: Reading
    session_id: int | None
    versions: dict[str, int] = attrs.field(factory=dict)
    creates: bool = False
    changes: bool = False

    def build(
        self, client: KazooClient, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TransactionRequest:
        request: TransactionRequest = client.transaction()
        request.check(self.layout.created, self.reading.created)
        for compare in compares:
            self._check(request, compare)
        for operation in operations:
            if isinstance(operation, Delete):
                self._delete(request, operation)
            else:
                self._put(request, operation)
        if self.creates:
            request.set_data(self.layout.created, b"")
        if self.changes:
            request.set_data(self.layout.revision, b"")
        return request

    def _check(self, request: TransactionRequest, compare: Compare) -> None:
        """The check that the compare, true when read, still is. A missing key's is the check of `created`."""
        if isinstance(compare, Missing):
            return
        any_version = isinstance(compare, Exists)
        version = -1 if any_version else self.reading.nodes[compare.key].znode_version
        request.check(self.layout.path(compare.key), version)

    def _delete(self, request: TransactionRequest, operation: Delete) -> None:
        if operation.key in self.reading.nodes:
            self.changes = True
            request.delete(self.layout.path(operation.key))

    def _put(self, request: TransactionRequest, operation: Put) -> None:
        self.changes = True
        path = self.layout.path(operation.key)
        node = self.reading.nodes.get(operation.key)
        owner = self.session_id if operation.ephemeral else None
        if node is not None and node.entry.session_id == owner:
            request.set_data(path, encode(operation.value, node.base))
            return
        base = 0
        if node is not None:
            # Ephemeral nodes cannot change hands: another node takes the key over and counts on.
            base = node.entry.version
            request.delete(path, node.znode_version)
        self.creates = True
        self.versions[operation.key] = base + 1
        request.create(path, encode(operation.value, base), ephemeral=operation.ephemeral)

    def committed(self, operations: Sequence[Operation], results: Sequence[object]) -> Committed:
        """The outcome, from ZooKeeper's results in order."""
        stats = [result for result in results if isinstance(result, ZnodeStat)]
        revision = stats[-1].mzxid + self.reading.mark.offset if self.changes else self.reading.revision
        at = iter(stats)
        for operation in operations:
            if isinstance(operation, Put) and operation.key not in self.versions:
                self.versions[operation.key] = self.reading.nodes[operation.key].base + next(at).version + 1
        return Committed(revision, self.versions)


def failure(results: Sequence[object]) -> ZookeeperError | None:
    """The error of the operation for which ZooKeeper refused the whole, None if it did not."""
    errors = [result for result in results if isinstance(result, ZookeeperError)]
    named = [error for error in errors if not isinstance(error, RolledBackError | RuntimeInconsistency)]
    return (named or errors or [None])[0]
