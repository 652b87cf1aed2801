"""A claim to be a node is judged by what the metadata store knows of that node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import attrs
import trio

from ....transport import PeerIdentity, Security
from ....transport.registry import resolve
from ...core.control.view import ClusterView
from ...metadata.remote_store.serving import unproven

log = logging.getLogger("insync.node")

PATIENCE = 2.0
"""Seconds in which the news of a registration must have come here: the node itself may have read it before us."""
_LOOK_AGAIN = 0.02


@attrs.frozen
class Claims:
    """See `insync.transport.Claims`. `view` gives what this node knows of the cluster at that moment.

    An incarnation that nobody has registered must shut nobody out, and one that has been replaced must not come
    back: who connects as a node is let in if the store has it registered like that. `demands_proof`: and only if it
    has proved to be a node, for others than nodes have rules here.
    """

    view: Callable[[], ClusterView]
    demands_proof: bool = False

    async def __call__(self, peer: PeerIdentity) -> str | None:
        if self.demands_proof and not peer.is_proven:
            return unproven(peer)
        deadline = trio.current_time() + PATIENCE
        while True:
            registered = self._registered(peer.node_id)
            if registered == peer.incarnation:
                return None
            if registered > peer.incarnation or trio.current_time() >= deadline:
                known = f"registered in incarnation {registered}" if registered >= 0 else "not registered"
                return f"node {peer.node_id} is {known}, and this claims {peer.incarnation}"
            await trio.sleep(_LOOK_AGAIN)

    def _registered(self, node_id: int) -> int:
        record = self.view().nodes.get(node_id)
        return record.incarnation if record is not None else -1


def warn_where_no_node_is_let_in(
    rules: Iterable[object], endpoints: Iterable[str], security: Security
) -> None:
    """Say at the start where other nodes will be refused: there are rules, and nodes have no proof to give."""
    if not tuple(rules) or security.node_secret is not None:
        return
    shut = [url for url in endpoints if not _shows_who_comes(url)]
    if shut:
        log.warning(
            "clients have rules (allow), but nodes cannot prove their identity at %s, so other nodes are "
            "refused there: give all nodes the same node_secret_file, or certificates (tls://). A single node needs"
            " neither",
            ", ".join(shut),
        )


def _shows_who_comes(url: str) -> bool:
    caps = resolve(url)[0].caps
    return caps.authenticated or caps.same_host_only or caps.one_process
