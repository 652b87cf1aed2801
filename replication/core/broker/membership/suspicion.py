"""Detects silent leaders and controllers, so that they are replaced before their sessions end.

A session in the metadata store lasts a second or more, because its single observer may itself be at fault. The
followers of a leader notice its silence sooner: each node watches the leaders that it follows, and the controller.
Every answer is a sign of life. After a while without one, the watcher sends an empty question over the control
connection, which is separate from that of the fetches. A node that leaves it open for too long is silent to its
watcher, which then asks all other watchers of that node. If most of them, and at least two, find it silent as well,
its registration is removed from the store, as if its session had ended. Failover is fenced, so a wrong suspicion
costs only an election.

Three rules keep wrong suspicions rare. A late check counts for nothing, because the watcher itself was paused. A
node gets a multiple of the time that its slowest recent answer took. A node that registers again at once was
evidently alive, which makes its watchers more patient.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from ... import messages as m
from ...control.records import NodeRecord
from ...control.view import ClusterView
from ...messages import Kind
from .. import effects as fx

if TYPE_CHECKING:
    from ..context import Context
    from ..fetching.channels import Channels
    from ..fetching.following import Following
    from .peers import Peers

LOOKS = 3
"""Number of periods in the time for which a question may stay open. A node that leaves one open is checked each."""
ASKED_AFTER = 2
"""Number of periods without an answer after which the node is asked; also those before an answer is missed."""
SLOWNESS = 4.0
"""A question may stay open for this multiple of the slowest recent answer."""
FORGETS = 0.995
"""Decay of the slowest answer with each new one: it halves in about 140 answers."""
LONGEST = 10
"""A question is dropped after this multiple of `leader_silence_timeout`, which also bounds the patience."""
AT_LEAST = 2
"""Number of watchers that must agree: one alone cannot distinguish its own fault from another's."""


@attrs.define(eq=False, slots=True)
class _Watch:
    """The state of one watched node. `asked`: the time of its oldest open question."""

    since: float
    """When the watch of this process began."""
    heard: float
    """The time of its last answer; before the first one, a time that makes the first question due."""
    incarnation: int | None
    """The process that is watched; None while the node is not registered."""
    asked: float | None = None
    last_asked: float = 0.0
    is_silent: bool = False
    slowest: float = 0.0
    doubts: int = 0
    """Number of other watchers whose opinion is outstanding; 0: no round is running."""
    suspected: NodeRecord | None = None
    """The registration that we had removed, until the node is back or its time to return is over."""
    is_out: bool = False
    returns_until: float = 0.0


class Suspicion:
    """Watches nodes with `leader_silence_timeout` seconds; 0: only sessions in the store end a membership."""

    def __init__(self, ctx: Context, channels: Channels, following: Following, peers: Peers) -> None:
        self._ctx = ctx
        self._heard = channels.heard
        self._following = following
        self._peers = peers
        self._timeout = ctx.settings.leader_silence_timeout
        self._period = self._timeout / LOOKS
        self._watches: dict[int, _Watch] = {}
        self._due = 0.0
        if self._timeout:
            ctx.timers.call_at(0.0, self._begin)

    def _begin(self) -> None:
        # The first call provides the clock reading.
        self._due = self._ctx.now
        self._look()

    # Looking

    def _look(self) -> None:
        ctx = self._ctx
        is_late = ctx.now - self._due > self._period
        watched = self._watched()
        # Nobody looked at a new one before: it is asked at once, unless it has answered something else lately.
        unheard = ctx.now - ASKED_AFTER * self._period
        self._watches = {
            peer: self._watches.get(peer) or _Watch(since=ctx.now, heard=unheard, incarnation=None)
            for peer in watched
        }
        due = ctx.now + ASKED_AFTER * self._period
        for peer, watch in self._watches.items():
            node = ctx.view.nodes.get(peer)
            if watch.suspected is not None:
                self._look_whether_it_is_back(peer, watch, node)
            if node is None or self._is_replaced(watch, node):
                # A process that registers is alive: the silence of its predecessor is not its own.
                watch.since = watch.heard = ctx.now
                watch.asked, watch.is_silent = None, False
            watch.incarnation = None if node is None else node.incarnation
            if node is not None:
                self._look_at(peer, watch, node, is_late=is_late)
            due = min(due, self._next_look_at(watch, node))
        self._due = due
        ctx.timers.call_at(due, self._look)

    def _is_replaced(self, watch: _Watch, node: NodeRecord) -> bool:
        """Whether a later process is registered in place of the one that is watched."""
        return watch.incarnation not in (None, node.incarnation)

    def _next_look_at(self, watch: _Watch, node: NodeRecord | None) -> float:
        """When there may be something to do about a node; most answers come long before anybody misses them."""
        if node is None or watch.suspected is not None:
            return self._ctx.now + self._period
        since = watch.heard if watch.asked is None else watch.asked
        return max(since + ASKED_AFTER * self._period, self._ctx.now + self._period)

    def _watched(self) -> set[int]:
        view = self._ctx.view
        watched = self._following.followed()
        if view.controller is not None:
            watched.add(view.controller.node_id)
        # Watch a removed node for as long as its return would show that it had been alive.
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
            # Half a check early: an answer arrives a moment after the check that asked for it.
            if ctx.now - heard >= (ASKED_AFTER - 0.5) * self._period:
                watch.asked = ctx.now
                self._ask(peer, watch)
            return
        if is_late:
            # This process was paused: it has not read yet what has arrived meanwhile.
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
        """Send an empty question, which nodes of every version answer."""
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
        """Ask all watchers of the node. This is one round, in which each answers once or not at all."""
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
                # The node may have answered since: then the majority is void.
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
        """Whether an answer to a question of that time is still valid.

        A late answer has waited for this process, which was paused. Signs of life of the suspect may wait to be
        read as well.
        """
        return self._ctx.now - asked <= self._timeout

    def tell(self, request: m.IsSilentRequest) -> m.IsSilentResponse:
        """Whether exactly that process is silent to this node."""
        node = self._ctx.view.nodes.get(request.node_id)
        agrees = node is not None and node.incarnation == request.incarnation and self._is_silent(node)
        return m.IsSilentResponse(silent=agrees)

    def _is_silent(self, node: NodeRecord) -> bool:
        watch = self._watches.get(node.node_id)
        if watch is None or not watch.is_silent or watch.asked is None:
            return False
        if self._is_replaced(watch, node):
            return False
        return self._heard.get(node.node_id, watch.heard) <= watch.asked

    def _suspect(self, watch: _Watch, node: NodeRecord, agreeing: list[int]) -> None:
        assert watch.asked is not None
        ctx = self._ctx
        heard = self._heard.get(node.node_id, watch.since)
        silent = round(1000 * (ctx.now - max(heard, watch.since)))
        reason = f"it has not answered for {silent} ms, as nodes {', '.join(map(str, agreeing))} agree"
        watch.suspected, watch.is_out = node, False
        watch.returns_until = ctx.now + ctx.settings.suspicion_is_wrong_within
        ctx.emit(fx.Suspect(node=node, reason=reason, silent_to=tuple(agreeing)))

    def _look_whether_it_is_back(self, peer: int, watch: _Watch, node: NodeRecord | None) -> None:
        """A process that registers again at once was alive all the time, and at most slow."""
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
    """The number of watchers that have to agree."""
    return max(AT_LEAST, count // 2 + 1)


def _nothing(reason: str) -> None:
    """Ignore a failed question: it counts as unanswered."""


def watchers(view: ClusterView, peer: int) -> set[int]:
    """The living watchers of a node: the followers of its partitions; all nodes, if it is the controller."""
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
