"""Whether the nodes that this one depends on still answer: what is silent is replaced before its session ends.

A session in the metadata store ends after a second or more, because a single observer may be the one at fault. The
nodes that follow a leader notice sooner: each watches the leaders that it follows, and the controller. Every answer
is a sign of life. Where none has come for a while, a question of no content goes out over the control connection,
which is another one than that of the fetches. A node that leaves it open for too long is silent to its watcher. It
asks all others that watch the same node, then. If most of them, and at least two, find it silent as well, its
registration is taken out of the store, as if its session had ended. Failover is fenced, so a suspicion that turns
out to be wrong costs an election and nothing else.

What keeps wrong suspicions rare: a look that comes late counts for nothing, because the watcher itself stood still;
a node has a multiple of the time that its slowest recent answer took; and one that registers again at once has
shown that it was there, which makes its watchers more patient.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from .. import messages as m
from ..control.records import NodeRecord
from ..control.view import ClusterView
from ..messages import Kind
from . import effects as fx

if TYPE_CHECKING:
    from .channels import Channels
    from .context import Context
    from .following import Following
    from .peers import Peers

LOOKS = 3
"""How often a node is looked at while a question to it may stay open."""
ASKED_AFTER = 2
"""After how many looks without any answer it is asked."""
SLOWNESS = 4.0
"""How many times as long as the slowest recent answer a question may stay open."""
FORGETS = 0.995
"""What an answer leaves of the slowest one before it: half is forgotten after some 140 answers."""
LONGEST = 10
"""A question is given up after so many times `leader_silence_timeout`. No patience exceeds it either."""
AT_LEAST = 2
"""How many nodes have to agree: one alone cannot tell its own fault from another's."""


@attrs.define(eq=False, slots=True)
class _Watch:
    """What is known of one node. `asked`: when the first of the questions went out that it has left open."""

    heard: float
    asked: float | None = None
    last_asked: float = 0.0
    is_silent: bool = False
    slowest: float = 0.0
    doubts: int = 0
    """How many of the others have not said yet whether it is silent to them; 0: they are not being asked."""
    suspected: NodeRecord | None = None
    """The registration that we had taken out, until the node is back or its time to be back is over."""
    is_out: bool = False
    returns_until: float = 0.0


class Suspicion:
    """Watches for `leader_silence_timeout` seconds at a time; 0: only sessions in the store tell who is gone."""

    def __init__(self, ctx: Context, channels: Channels, following: Following, peers: Peers) -> None:
        self._ctx = ctx
        self._heard = channels.heard
        self._following = following
        self._peers = peers
        self._timeout = ctx.settings.leader_silence_timeout
        self._watches: dict[int, _Watch] = {}
        self._due = 0.0
        if self._timeout:
            ctx.timers.call_at(0.0, self._begin)

    @property
    def _period(self) -> float:
        return self._timeout / LOOKS

    def _begin(self) -> None:
        # The first call gives the clock.
        self._due = self._ctx.now
        self._look()

    # Looking

    def _look(self) -> None:
        ctx = self._ctx
        is_late = ctx.now - self._due > self._period
        watched = self._watched()
        self._watches = {peer: self._watches.get(peer) or _Watch(heard=ctx.now) for peer in watched}
        for peer, watch in self._watches.items():
            node = ctx.view.nodes.get(peer)
            if watch.suspected is not None:
                self._look_whether_it_is_back(peer, watch, node)
            if node is not None:
                self._look_at(peer, watch, node, is_late=is_late)
            else:
                watch.heard, watch.asked, watch.is_silent = ctx.now, None, False
        self._due = ctx.now + self._period
        ctx.timers.call_at(self._due, self._look)

    def _watched(self) -> set[int]:
        view = self._ctx.view
        watched = self._following.followed()
        if view.controller is not None:
            watched.add(view.controller.node_id)
        # One that is out is watched for as long as its return would show that it had been there.
        watched |= {peer for peer, watch in self._watches.items() if watch.suspected is not None}
        watched.discard(self._ctx.node_id)
        return watched

    def _look_at(self, peer: int, watch: _Watch, node: NodeRecord, *, is_late: bool) -> None:
        ctx = self._ctx
        heard = max(watch.heard, self._heard.get(peer, watch.heard))
        if watch.asked is not None and heard > watch.asked:
            watch.asked, watch.is_silent = None, False
        watch.heard = heard
        if watch.asked is None:
            # Half a look early: an answer comes a moment after the look that has asked for it.
            if ctx.now - heard >= (ASKED_AFTER - 0.5) * self._period:
                watch.asked = ctx.now
                self._ask(peer, watch)
            return
        if is_late:
            # We stood still: what has arrived meanwhile has not been read yet.
            watch.asked = ctx.now
        if ctx.now - watch.last_asked >= self._timeout - self._period / 2:
            # The question, or its answer, may have been lost with a connection.
            self._ask(peer, watch)
        watch.is_silent = ctx.now - watch.asked >= self._patience(watch)
        if watch.is_silent and not watch.doubts:
            self._ask_others(peer, watch, node)

    def _patience(self, watch: _Watch) -> float:
        return min(max(self._timeout, SLOWNESS * watch.slowest), LONGEST * self._timeout)

    def _ask(self, peer: int, watch: _Watch) -> None:
        """A question of no content, which nodes of every version answer."""
        asked = watch.last_asked = self._ctx.now

        def answered(message: object) -> None:
            watch.slowest = max(self._ctx.now - asked, FORGETS * watch.slowest)

        self._peers.ask(
            peer,
            Kind.GET_REPLICA_LOG_INFO,
            m.GetReplicaLogInfoRequest(partitions=[]),
            LONGEST * self._timeout,
            answered=answered,
            failed=_nothing,
        )

    # Agreeing

    def _ask_others(self, peer: int, watch: _Watch, node: NodeRecord) -> None:
        """Ask all that watch the same node; this is one round, in which each answers once or not at all."""
        ctx = self._ctx
        others = watchers(ctx.view, peer) - {ctx.node_id}
        needed = majority(len(others) + 1) - 1
        if needed > len(others):
            return
        watch.doubts = len(others)
        agreeing: set[int] = set()
        asked = ctx.now

        def answered(other: int, message: object) -> None:
            assert isinstance(message, m.IsSilentResponse)
            watch.doubts -= 1
            if message.silent and self._is_current(asked):
                agreeing.add(other)
                # It may have answered since: then the majority is of no use.
                if len(agreeing) == needed and self._is_silent(node):
                    self._suspect(watch, node, sorted(agreeing | {ctx.node_id}))

        def failed(reason: str) -> None:
            watch.doubts -= 1

        for other in sorted(others):
            self._peers.ask(
                other,
                Kind.IS_SILENT,
                m.IsSilentRequest(node_id=peer, incarnation=node.incarnation),
                self._timeout,
                answered=partial(answered, other),
                failed=failed,
            )

    def _is_current(self, asked: float) -> bool:
        """Whether an answer to a question of that time says how it is now.

        One that comes later than it may has waited for this process, which stood still: what the suspect has sent
        since waits to be read as well.
        """
        return self._ctx.now - asked <= self._timeout

    def tell(self, request: m.IsSilentRequest) -> m.IsSilentResponse:
        """Whether that very process is silent to this node."""
        node = self._ctx.view.nodes.get(request.node_id)
        agrees = node is not None and node.incarnation == request.incarnation and self._is_silent(node)
        return m.IsSilentResponse(silent=agrees)

    def _is_silent(self, node: NodeRecord) -> bool:
        watch = self._watches.get(node.node_id)
        if watch is None or not watch.is_silent or watch.asked is None:
            return False
        return self._heard.get(node.node_id, watch.heard) <= watch.asked

    def _suspect(self, watch: _Watch, node: NodeRecord, agreeing: list[int]) -> None:
        assert watch.asked is not None
        ctx = self._ctx
        silent = round(1000 * (ctx.now - watch.heard))
        reason = f"it has not answered for {silent} ms, as nodes {', '.join(map(str, agreeing))} agree"
        watch.suspected, watch.is_out = node, False
        watch.returns_until = ctx.now + ctx.settings.suspicion_is_wrong_within
        ctx.emit(fx.Suspect(node=node, reason=reason, silent_to=tuple(agreeing)))

    def _look_whether_it_is_back(self, peer: int, watch: _Watch, node: NodeRecord | None) -> None:
        """A process that registers again at once was there all the time, and slow at most."""
        assert watch.suspected is not None
        if node is None:
            watch.is_out = True
        elif watch.is_out and node.incarnation == watch.suspected.incarnation:
            watch.suspected = None
            watch.slowest = max(2 * watch.slowest, self._timeout / SLOWNESS * 2)
            self._ctx.emit(fx.SuspicionWrong(node=node))
        if self._ctx.now >= watch.returns_until:
            watch.suspected = None


def majority(count: int) -> int:
    """How many of so many watchers have to agree."""
    return max(AT_LEAST, count // 2 + 1)


def _nothing(reason: str) -> None:
    """A question that has failed was left open as far as anybody can tell."""


def watchers(view: ClusterView, peer: int) -> set[int]:
    """The living nodes that watch a node: those that follow a partition of it; all, if it is the controller."""
    if view.controller is not None and view.controller.node_id == peer:
        found = set(view.nodes)
    else:
        found = {
            node
            for versioned in view.partitions.values()
            if versioned.record.leader == peer
            for node in versioned.record.replicas
            if node in view.nodes
        }
    return found - {peer}
