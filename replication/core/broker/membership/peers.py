"""Requests to other nodes outside the fetches: admin requests for the controller, questions about logs.

They share one control connection for each peer, which is dialled for the first request. A request that cannot be
sent, or gets no answer in time, fails once; its owner then reports that to its client, or asks again after a pause.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TYPE_CHECKING

import attrs
from msgspec import structs

from ... import messages as m
from ...control import admin_requests
from ...control.controller import AskReplicas
from ...control.elections import LogInfo
from ...errors import ErrorCode
from ...messages import Kind
from ...types import PartitionId
from .. import effects as fx
from .. import events as ev
from ..fetching.channels import Channel, Channels
from ..producing.payloads import Payload

if TYPE_CHECKING:
    from ..context import Context
    from ..timers import Timer

FORWARD_TIMEOUT = 10.0
"""Seconds for which a forwarded request waits: slightly longer than the controller's own timeout."""


@attrs.define(eq=False, slots=True)
class _Ask:
    """One request; exactly one of its callbacks is called, once. `question` 0: it waits for the connection."""

    kind: Kind
    message: object
    raw: bool
    deadline: float
    answered: Callable[[object], None]
    failed: Callable[[str], None]
    question: int = 0
    timer: Timer | None = None


class Peers:
    """All requests of a node over its control connections."""

    def __init__(self, ctx: Context, channels: Channels) -> None:
        self._ctx = ctx
        self._channels = channels
        self._lines: dict[int, _Line] = {}

    # Admin requests

    def forward(self, event: ev.ForwardArrived) -> None:
        """Forward a request to the controller. Without a reachable one it is refused, and the client asks again."""
        view, request = self._ctx.view, event.message
        node = view.nodes.get(view.controller.node_id) if view.controller is not None else None
        if node is None:
            self._refuse(event, "there is no controller now; retry")
            return
        self._ask(
            node.node_id,
            event.kind,
            structs.replace(request, forwarded=True),
            FORWARD_TIMEOUT,
            answered=lambda body: self._ctx.emit(fx.Reply(event.request, body)),
            failed=lambda reason: self._refuse(
                event, f"the controller, node {node.node_id}, is out of reach: {reason}"
            ),
            # Raw bytes, because a later version may have added fields that this one does not know.
            raw=True,
        )

    def _refuse(self, event: ev.ForwardArrived, text: str) -> None:
        text = self._ctx.explained(text)
        refusal = admin_requests.refusal(event.message, ErrorCode.NOT_CONTROLLER, text)
        self._ctx.emit(fx.Reply(event.request, refusal))

    # Questions about logs

    def tell_logs(self, request: m.GetReplicaLogInfoRequest) -> m.GetReplicaLogInfoResponse:
        """The reports of this node's replicas on their logs; logs that are not open are omitted."""
        told = []
        for named in request.partitions:
            replica = self._ctx.replicas.get(PartitionId(named.topic, named.partition))
            if replica is not None and (info := replica.log_info()) is not None:
                told.append(
                    m.ReplicaLogInfo(
                        topic=named.topic,
                        partition=named.partition,
                        leader_epoch=info.leader_epoch,
                        last_epoch=info.last_epoch,
                        log_end_offset=info.log_end_offset,
                        topic_id=info.topic_id,
                        log_start_offset=info.log_start_offset,
                        epochs=list(info.epochs),
                    )
                )
        return m.GetReplicaLogInfoResponse(
            node_id=self._ctx.node_id, incarnation=self._ctx.incarnation, partitions=told
        )

    def ask_logs(self, event: ev.AskLogs) -> None:
        """Begin a round of questions (KIP-966); `LogsGathered` follows, at the latest at its timeout."""
        _Round(self, self._ctx, event.asked).begin()

    def ask_log_info(
        self,
        node: int,
        partitions: list[PartitionId],
        timeout: float,
        answered: Callable[[object], None],
        failed: Callable[[str], None],
    ) -> None:
        """Ask one node, which may be this one, for a report on its logs."""
        request = m.GetReplicaLogInfoRequest(
            partitions=[m.PartitionName(topic=each.topic, partition=each.partition) for each in partitions]
        )
        if node == self._ctx.node_id:
            answered(self.tell_logs(request))
        else:
            self._ask(node, Kind.GET_REPLICA_LOG_INFO, request, timeout, answered=answered, failed=failed)

    def ask(
        self,
        peer: int,
        kind: Kind,
        message: object,
        timeout: float,
        *,
        answered: Callable[[object], None],
        failed: Callable[[str], None],
    ) -> None:
        """Send a request to a node, with one attempt; exactly one of the callbacks is called, once."""
        self._ask(peer, kind, message, timeout, answered=answered, failed=failed)

    def _ask(
        self,
        peer: int,
        kind: Kind,
        message: object,
        timeout: float,
        *,
        answered: Callable[[object], None],
        failed: Callable[[str], None],
        raw: bool = False,
    ) -> None:
        line = self._lines.get(peer)
        if line is None:
            line = self._lines[peer] = _Line(self._ctx, self._channels, peer)
        line.ask(_Ask(kind, message, raw, self._ctx.now + timeout, answered, failed))


class _Line:
    """The requests to one peer, which wait for the connection or for an answer."""

    def __init__(self, ctx: Context, channels: Channels, peer: int) -> None:
        self._ctx = ctx
        self._channel: Channel = channels.channel(peer, "control", self, ctx.settings.replica_fetch_backoff)
        self._waiting: list[_Ask] = []
        self._under_way: dict[int, _Ask] = {}

    def ask(self, ask: _Ask) -> None:
        self._waiting.append(ask)
        # Its time runs while it waits for a connection, too.
        ask.timer = self._ctx.timers.call_at(ask.deadline, lambda: self._late(ask))
        self.ready()

    def ready(self) -> None:
        if self._channel.connection is None:
            if self._waiting:
                self._channel.open()
            return
        waiting, self._waiting = self._waiting, []
        for ask in waiting:
            left = max(0.0, ask.deadline - self._ctx.now)
            ask.question = self._channel.ask(ask.kind, ask.message, left, raw=ask.raw)
            self._under_way[ask.question] = ask

    def answered(self, question: int, message: object, payload: Payload) -> None:
        ask = self._under_way.pop(question)
        self._cancel(ask)
        ask.answered(message)

    def failed(self, reason: str, *, malformed: bool, lost: Collection[int]) -> None:
        """Lost requests fail; unsent ones fail when the connection cannot be made."""
        failed = [self._under_way.pop(question) for question in lost]
        if not lost:
            # There is no connection, and these requests will not cause one.
            failed += self._waiting
            self._waiting = []
        # Remove them before the callbacks run: a callback may send a new request.
        for ask in failed:
            self._cancel(ask)
        for ask in failed:
            ask.failed(reason)

    def _late(self, ask: _Ask) -> None:
        if ask.question:
            del self._under_way[ask.question]
            self._channel.give_up(ask.question)
        else:
            self._waiting.remove(ask)
        ask.timer = None
        ask.failed("no answer in time")

    @staticmethod
    def _cancel(ask: _Ask) -> None:
        if ask.timer is not None:
            ask.timer.cancel()
            ask.timer = None


class _Round:
    """Asks all nodes at once, and again until they answer or `unclean_recovery_timeout` is over."""

    def __init__(self, peers: Peers, ctx: Context, asked: AskReplicas) -> None:
        self._peers = peers
        self._ctx = ctx
        self._asked = asked
        self._told: dict[PartitionId, dict[int, LogInfo]] = {}
        self._timers: dict[Hashable, Timer] = {}
        self._until = ctx.now + ctx.settings.unclean_recovery_timeout
        self._is_over = False

    def begin(self) -> None:
        self._timers["end"] = self._ctx.timers.call_at(self._until, self._finish)
        for node in sorted({node for named in self._asked.partitions.values() for node in named}):
            self._ask(node)
        self._look()

    def _missing(self, node: int) -> list[PartitionId]:
        return [
            partition
            for partition, nodes in self._asked.partitions.items()
            if node in nodes and node not in self._told.get(partition, {})
        ]

    def _ask(self, node: int) -> None:
        missing = self._missing(node)
        if not self._is_over and missing:
            self._peers.ask_log_info(
                node,
                missing,
                self._until - self._ctx.now,
                answered=lambda message: self._answered(node, message),
                failed=lambda reason: self._ask_later(node),
            )

    def _ask_later(self, node: int) -> None:
        """Ask again later: a replica may enter the epoch soon, and an unreachable node may become reachable."""
        if not self._is_over:
            at = self._ctx.now + self._ctx.settings.replica_fetch_backoff
            self._timers[node] = self._ctx.timers.call_at(at, lambda: self._ask(node))

    def _answered(self, node: int, message: object) -> None:
        assert isinstance(message, m.GetReplicaLogInfoResponse)
        for told in message.partitions:
            partition = PartitionId(told.topic, told.partition)
            info = LogInfo(
                incarnation=message.incarnation,
                leader_epoch=told.leader_epoch,
                last_epoch=told.last_epoch,
                log_end_offset=told.log_end_offset,
                topic_id=told.topic_id,
                log_start_offset=told.log_start_offset,
                epochs=tuple(told.epochs),
            )
            # A peer may report anything: only answers to the questions of this round count.
            if node in self._asked.partitions.get(partition, ()) and self._asked.is_answered(partition, info):
                self._told.setdefault(partition, {})[node] = info
        if self._missing(node):
            self._ask_later(node)
        self._look()

    def _look(self) -> None:
        if all(
            set(nodes) <= self._told.get(each, {}).keys() for each, nodes in self._asked.partitions.items()
        ):
            self._finish()

    def _finish(self) -> None:
        if not self._is_over:
            self._is_over = True
            for timer in self._timers.values():
                timer.cancel()
            logs: Mapping[PartitionId, Mapping[int, LogInfo]] = self._told
            self._ctx.emit(fx.LogsGathered(logs))
