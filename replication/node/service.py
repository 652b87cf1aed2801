"""A gateway's calls to the node that it runs in: requests in another protocol's clothes, answered in-process.

A gateway serves a foreign protocol (`insync.replication.node.gateways`). It speaks for its clients by calling the
node, with the same messages that insync's own clients send (`insync.replication.core.messages`), and nothing is
encoded on the way. All of it belongs to the node's trio thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ...transport import Part, Payload, PeerIdentity, ReceiveBudget
from ..core.control.view import ClusterView
from ..core.scram import ScramCredential
from .errors import NodeError
from .requests.authorisation import Operation


class Caller(ABC):
    """One client connection of a gateway, or a part of one that has fetch sessions of its own.

    `peer`: who the client has proved to be (`node_id` -1); rules and quotas go by its name.
    """

    peer: PeerIdentity

    @abstractmethod
    def abort(self, reason: str) -> None:
        """End the connection at once: ranges of it that are not sent yet must not be sent any more."""


class Answer(NamedTuple):
    """`parts`: what follows the message, for a fetch the range of each result that has a size, in their order.

    The ranges stay valid until `Caller.abort` is called, or the client is `gone`.
    """

    message: object
    parts: Sequence[Part] = ()


class ServiceError(NodeError):
    """A request that is answered by an error as a whole. `code`: an `ErrorCode`."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class NotAllowedError(ServiceError):
    """No rule of the node lets the client do this."""


class Metric(NamedTuple):
    """Values of one metric by their labels, for Prometheus. kind: `gauge` or `counter` (the name has no `_total`).

    The name begins with `insync_` and the scheme, such as `insync_kafka_requests`.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]


Done = Callable[[Answer | ServiceError], None]


class Ticket(Protocol):
    """A call under way."""

    def cancel(self) -> None:
        """Nobody waits any more: `done` is not called from now on. Produced records stay. Idempotent."""


class NodeService(Protocol):
    """The node, as a gateway sees it.

    `view`: the cluster as the node last read it; another object whenever anything has changed. `budget`: for the
    bytes of requests that are held in memory, shared with the node's own transports.
    """

    node_id: int
    cluster_id: str
    budget: ReceiveBudget

    @property
    def view(self) -> ClusterView: ...

    async def ready(self) -> None:
        """Return when the node is registered and knows the cluster: before that nothing is to be served."""

    def call(self, caller: Caller, message: object, done: Done, *, payload: Payload | None = None) -> Ticket:
        """Start a request; `done` is called once, perhaps before this returns, and is to raise nothing.

        Requests start in the order of their calls. message: a request of `insync.replication.core.messages`.
        payload: the batches of a produce request; the node releases it.

        Raises:
          TypeError: The message is not a request.
        """

    async def ask(self, caller: Caller, message: object, *, payload: Payload | None = None) -> Answer:
        """`call`, and wait for the answer; cancelling it cancels the call.

        Raises:
          ServiceError: The request is answered by an error.
        """

    async def confirm_view(self) -> ClusterView:
        """A view that is no older than this call: what it does not show does not exist.

        Calls that come together share one reading of the store.

        Raises:
          MetadataError: The store cannot be read.
        """

    def watch_view(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` whenever `view` is another one, until the function that this returns is called."""

    def doubted(self) -> frozenset[int]:
        """Leaders by `view` that have failed to answer this node for less than half a second.

        The next view says whether they are gone. A client that looks for another leader is told meanwhile that
        there is none: it asks again soon, and need not try the one that it has just lost.
        """

    def allowed(self, peer: PeerIdentity) -> Collection[Operation]:
        """The operations that the rules of the node let a client do."""

    def tell_metrics(self, read: Callable[[], Iterable[Metric]]) -> Callable[[], None]:
        """Call `read` whenever the node's metrics are asked for, until the function that this returns is called.

        Values of one metric from several listeners are told together: give each a label of its own.
        """

    async def verify_user(self, name: str, password: str) -> bool:
        """Whether this is the password of a user of the cluster (`insync user`); hashed in a thread.

        A user that does not exist takes as long as a wrong password. The caller's `peer` has that name and the
        method `sasl` from then on, so that rules and quotas hold for it.

        Raises:
          ServiceError: A thousand logins wait already.
        """

    async def credential(self, name: str, mechanism: str) -> ScramCredential:
        """The credential kept of a user's password, for a proof by `SCRAM-SHA-256` or `SCRAM-SHA-512` (RFC 5802).

        For a user that does not exist, or has none for this mechanism, it is made up, and no proof fits it: go on
        as with any other, so that nobody learns who exists. `insync.replication.core.scram` checks proofs.
        """

    def gone(self, caller: Caller) -> None:
        """The client has disconnected and nothing of it is in flight: its calls and its fetch sessions end."""
