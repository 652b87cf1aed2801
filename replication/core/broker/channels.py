"""Connections to other nodes: dialled when a part of the machine needs one, and given up with the peer's process.

A channel is one connection to one peer in one lane, or the wish for one. It dials once at a time, waits longer for
a peer that does not answer (KIP-601), pauses after every failed attempt, and has a node that refuses connections
looked at by the controller. Requests over it are numbered: an answer counts only for the question that it names,
and a question that was given up, or whose connection has ended, is forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from itertools import count
from typing import TYPE_CHECKING, Protocol

from ..control.records import NodeRecord
from ..messages import Kind
from . import effects as fx
from . import events as ev
from .payloads import Payload

if TYPE_CHECKING:
    from .context import Context

CONNECT_TIMEOUT = 2.0
LONGEST_CONNECT_TIMEOUT = 8.0
"""The connect timeout doubles up to this with each attempt that nobody answers, as in KIP-601. On a machine so busy
that a handshake takes longer, a follower that gave up at the same moment each time would never be in sync again.
"""


class Owner(Protocol):
    """Who uses a channel. The channel calls one of these for each question, unless that was given up."""

    def ready(self) -> None:
        """The channel is open, or may be opened again: ask what there is to ask."""

    def answered(self, question: int, message: object, payload: Payload) -> None:
        """The answer to a question."""

    def failed(self, reason: str, *, malformed: bool, lost: Collection[int]) -> None:
        """Some questions get no answer, or (none lost) there is no way to ask any.

        malformed: the peer has answered, and the answer is not one.
        """


class Channel:
    """See the module's text. `connection` is None unless the channel is open."""

    def __init__(self, channels: Channels, peer: int, lane: str, owner: Owner, backoff: float) -> None:
        """`backoff`: seconds between a failed attempt and the next."""
        self.peer = peer
        self.lane = lane
        self.connection: Hashable | None = None
        self.hands_over_files = False
        self._channels = channels
        self._ctx = channels.ctx
        self._owner = owner
        self._backoff = backoff
        self._dial = 0
        self._address: NodeRecord | None = None
        self._patience = CONNECT_TIMEOUT
        self._rests_until = float("-inf")
        self._questions: set[int] = set()

    def open(self) -> None:
        """Dial, unless that is under way or the last attempt failed a moment ago; `ready` or `failed` follows."""
        if self.connection is not None or self._dial:
            return
        ctx = self._ctx
        if ctx.now < self._rests_until:
            self._channels.rest(self, self._rests_until)
            return
        address = self._address = ctx.view.nodes.get(self.peer)
        if address is None:
            self._rest()
            self._owner.failed(f"node {self.peer} is not registered", malformed=False, lost=())
            return
        self._dial = self._channels.dial(self)
        ctx.emit(
            fx.Dial(
                dial=self._dial,
                peer=self.peer,
                lane=self.lane,
                endpoints=address.endpoints,
                timeout=self._patience,
            )
        )

    def ask(self, kind: Kind, message: object, timeout: float, *, raw: bool = False) -> int:
        """Send a request; the number of the question. raw: the answer is wanted as bytes, not decoded."""
        assert self.connection is not None, "a channel is opened before anything is asked over it"
        question = self._channels.question(self)
        self._questions.add(question)
        self._ctx.emit(
            fx.Ask(
                question=question,
                connection=self.connection,
                kind=kind,
                message=message,
                timeout=timeout,
                raw=raw,
            )
        )
        return question

    def give_up(self, question: int) -> None:
        """Nobody waits for the answer any more: the peer is told, and an answer that is on its way is dropped."""
        self._questions.discard(question)
        self._channels.forget(question)
        self._ctx.emit(fx.GiveUp(question=question))

    def close(self, reason: str) -> list[int]:
        """End the connection; the questions that get no answer because of that."""
        if self.connection is None:
            return []
        self._ctx.emit(fx.HangUp(connection=self.connection, reason=reason))
        return self._closed()

    def address_changed(self, record: NodeRecord | None) -> None:
        """The view has another registration of the peer. A connection to another process is of no use."""
        if _process(record) == _process(self._address):
            return
        self._address = record
        was_open, reason = self.connection is not None, f"node {self.peer} has left or was started again"
        lost = self.close(reason)
        self._patience = CONNECT_TIMEOUT
        if was_open:
            self._owner.failed(reason, malformed=False, lost=lost)
        elif self._dial:
            self._channels.forget_dial(self._dial)
            self._dial = 0
            self._owner.ready()

    # What the driver tells, by way of `Channels`

    def connected(self, connection: Hashable, *, hands_over_files: bool) -> None:
        self._dial, self._patience = 0, CONNECT_TIMEOUT
        self.connection, self.hands_over_files = connection, hands_over_files
        self._owner.ready()

    def dial_failed(self, reason: str, *, refused: bool) -> None:
        self._dial = 0
        if refused:
            assert self._address is not None
            # By address: its successor may have registered meanwhile, and has refused nothing.
            why = f"nobody listens at {', '.join(self._address.endpoints)}"
            self._ctx.emit(fx.Suspect(node=self._address, reason=why))
            self._patience = CONNECT_TIMEOUT
        else:
            self._patience = min(LONGEST_CONNECT_TIMEOUT, 2 * self._patience)
        self._rest()
        self._owner.failed(reason, malformed=False, lost=())

    def disconnected(self, reason: str) -> None:
        self._owner.failed(reason, malformed=False, lost=self._closed())

    def answered(self, question: int, message: object, payload: Payload) -> None:
        self._questions.discard(question)
        self._owner.answered(question, message, payload)

    def ask_failed(self, question: int, reason: str, *, malformed: bool) -> None:
        self._questions.discard(question)
        lost = [question]
        if malformed:
            # The peer speaks another language, or its bytes do not arrive as they were sent: nothing that follows
            # on this connection can be believed.
            lost += self.close(reason)
        self._owner.failed(reason, malformed=malformed, lost=lost)

    def rested(self) -> None:
        self._owner.ready()

    def _rest(self) -> None:
        self._rests_until = self._ctx.now + self._backoff

    def _closed(self) -> list[int]:
        self._channels.forget_connection(self.connection)
        self.connection, self.hands_over_files = None, False
        lost = sorted(self._questions)
        for question in lost:
            self._channels.forget(question)
        self._questions.clear()
        # A peer that accepts connections and ends them at once is dialled no more often than one that refuses.
        self._rest()
        return lost


class Channels:
    """Every channel of a node, by what the driver's reports name."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._ids = count(1)
        self._all: list[Channel] = []
        self._dials: dict[int, Channel] = {}
        self._connections: dict[Hashable, Channel] = {}
        self._questions: dict[int, Channel] = {}
        self._resting: set[Channel] = set()
        self.heard: dict[int, float] = {}
        """When each peer has answered something for the last time."""

    def channel(self, peer: int, lane: str, owner: Owner, backoff: float) -> Channel:
        """A channel of its own for `owner`."""
        made = Channel(self, peer, lane, owner, backoff)
        self._all.append(made)
        return made

    def on_connected(self, event: ev.Connected) -> None:
        channel = self._dials.pop(event.dial, None)
        if channel is None:
            # Dialled at an address that nobody is interested in any more.
            self.ctx.emit(fx.HangUp(connection=event.connection, reason="the connection is not needed"))
            return
        self._connections[event.connection] = channel
        channel.connected(event.connection, hands_over_files=event.hands_over_files)

    def on_dial_failed(self, event: ev.DialFailed) -> None:
        channel = self._dials.pop(event.dial, None)
        if channel is not None:
            channel.dial_failed(event.reason, refused=event.refused)

    def awaits(self, dial: int) -> bool:
        """Whether the outcome of a dial matters; not if the peer's address has changed since."""
        return dial in self._dials

    def on_disconnected(self, event: ev.PeerDisconnected) -> None:
        channel = self._connections.get(event.connection)
        if channel is not None:
            channel.disconnected(event.reason)

    def on_answered(self, event: ev.Answered) -> None:
        channel = self._questions.pop(event.question, None)
        if channel is not None:
            self.heard[channel.peer] = self.ctx.now
            channel.answered(event.question, event.message, event.payload)

    def on_ask_failed(self, event: ev.AskFailed) -> None:
        channel = self._questions.pop(event.question, None)
        if channel is not None:
            channel.ask_failed(event.question, event.reason, malformed=event.malformed)

    def nodes_changed(self) -> None:
        """The view was changed: channels to processes that are gone, or were replaced, end."""
        nodes = self.ctx.view.nodes
        for channel in self._all:
            channel.address_changed(nodes.get(channel.peer))

    # For channels

    def dial(self, channel: Channel) -> int:
        dial = next(self._ids)
        self._dials[dial] = channel
        return dial

    def question(self, channel: Channel) -> int:
        question = next(self._ids)
        self._questions[question] = channel
        return question

    def forget(self, question: int) -> None:
        self._questions.pop(question, None)

    def forget_dial(self, dial: int) -> None:
        self._dials.pop(dial, None)

    def forget_connection(self, connection: Hashable) -> None:
        self._connections.pop(connection, None)

    def rest(self, channel: Channel, until: float) -> None:
        """Have `ready` called at `until`: one timer for each channel, however often it is asked to dial."""
        if channel not in self._resting:
            self._resting.add(channel)
            self.ctx.timers.call_at(until, lambda: self._rested(channel))

    def _rested(self, channel: Channel) -> None:
        self._resting.discard(channel)
        channel.rested()


def _process(record: NodeRecord | None) -> tuple[int, tuple[str, ...]] | None:
    """Which process listens where; all else that a registration says is no reason to end a connection."""
    return None if record is None else (record.incarnation, record.endpoints)
