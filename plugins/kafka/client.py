"""One client of a gateway, as handlers see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from insync.replication.core.control.view import ClusterView
from insync.replication.node.requests.authorisation import Operation
from insync.replication.node.service import Caller, NodeService
from insync.transport import PeerIdentity

from .core.directory import Directory
from .login import Login

if TYPE_CHECKING:
    from .core.sessions import Sessions

NOT_ALLOWED = (
    "this client may not administer: it needs a rule with admin in `allow` of the nodes, or of the user"
)


@attrs.frozen(kw_only=True)
class Options:
    """Settings in a listener's URL, beside the address."""

    auto_create_topics: bool = True
    num_partitions: int = 1
    default_replication_factor: int = 0
    """0: as many as there are nodes, three at most."""


class Client(Caller):
    """`client_id`: what it called itself last; `kept`: its fetch sessions; `close`: end it when all is answered."""

    def __init__(
        self,
        peer: PeerIdentity,
        service: NodeService,
        directory: Directory,
        options: Options,
        sessions: Sessions,
        *,
        host: str,
        abort: Callable[[str], None],
        close: Callable[[str], None],
        login: Login,
    ) -> None:
        self.peer = peer
        self.service = service
        self.directory = directory
        self.options = options
        self.sessions = sessions
        self.host = host
        self.client_id = ""
        self.close = close
        self.login = login
        self._abort = abort

    def abort(self, reason: str) -> None:
        """See `Caller.abort`."""
        self._abort(reason)

    def has_ended(self) -> None:
        """Its connection is gone, and is not held: what comes back only when cycles are collected may stay for ever
        on a node that is idle.
        """
        self._abort = self.close = _nobody

    @property
    def view(self) -> ClusterView:
        """The cluster as the node knows it now."""
        return self.service.view

    def may(self, operation: Operation) -> bool:
        """Whether the rules of the node let it."""
        return operation in self.service.allowed(self.peer)

    def may_see_topics(self) -> bool:
        """Whether it may ask what topics there are and where they end; any right is enough, as in Kafka."""
        return any(map(self.may, (Operation.PRODUCE, Operation.CONSUME, Operation.ADMIN)))


def _nobody(reason: str) -> None:
    """`abort` and `close` of a client whose connection has ended."""
