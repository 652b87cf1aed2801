"""Connections to other nodes: dialled when a part of the machine needs one, and closed when the peer's process
ends.

A channel is one connection to one peer in one lane, open or wanted. It makes one attempt at a time, waits longer
for a peer that does not answer (KIP-601), pauses after every failed attempt, and reports a node that refuses
connections to the controller. Requests are numbered: an answer counts only for the question that it names, and the
channel drops a question that was withdrawn or whose connection has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from itertools import count
from typing import TYPE_CHECKING, Protocol

from ...control.records import NodeRecord
from ...messages import Kind
from .. import effects as fx
from .. import events as ev
from ..producing.payloads import Payload

if TYPE_CHECKING:
    from ..context import Context


CONNECT_TIMEOUT = 2.0
LONGEST_CONNECT_TIMEOUT = 8.0
"""The connect timeout doubles up to this with each unanswered attempt, as in KIP-601. On a very busy machine a
handshake
may take longer than the first timeout, and a follower with a fixed timeout would never be in sync again.
"""


class Owner(Protocol):
    """The user of a channel. The channel calls one of these for each question that was not withdrawn."""

    def ready(self) -> None:
        """The channel is open, or may be opened again: send the pending questions."""

    def answered(self, question: int, message: object, payload: Payload) -> None:
        """The answer to a question."""

    def failed(self, reason: str, *, malformed: bool, lost: Collection[int]) -> None:
        """The lost questions get no answer; without lost ones, no connection can be made now.

        malformed: the peer has sent an invalid answer.
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
        """Dial, unless an attempt is under way or the last one failed a moment ago; `ready` or `failed` follows."""
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
        """Send a request; returns the number of the question. raw: pass the answer as bytes, not decoded."""
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
        """Withdraw a question: notify the peer, and drop an answer that is already in transit."""
        self._questions.discard(question)
        self._channels.forget(question)
        self._ctx.emit(fx.GiveUp(question=question))

    def close(self, reason: str) -> list[int]:
        """End the connection; returns the questions that get no answer because of that."""
        if self.connection is None:
            return []
        self._ctx.emit(fx.HangUp(connection=self.connection, reason=reason))
        return self._closed()

    def address_changed(self, record: NodeRecord | None) -> None:
        """The view has another registration of the peer: drop a connection to its previous process."""
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

    # Reports of the driver, passed on by `Channels`

    def connected(self, connection: Hashable, *, hands_over_files: bool) -> None:
        self._dial, self._patience = 0, CONNECT_TIMEOUT
        self.connection, self.hands_over_files = connection, hands_over_files
        self._owner.ready()

    def dial_failed(self, reason: str, *, refused: bool) -> None:
        self._dial = 0
        if refused:
            assert self._address is not None
            # By address: a successor that has registered meanwhile has refused nothing.
            why = f"no process listens at {', '.join(self._address.endpoints)}"
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
        # A peer that accepts connections and ends them at once gets the same pause as one that refuses.
        self._rest()
        return lost


class Channels:
    """Every channel of a node, by the names in the driver's reports."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._ids = count(1)
        self._all: list[Channel] = []
        self._dials: dict[int, Channel] = {}
        self._connections: dict[Hashable, Channel] = {}
        self._questions: dict[int, Channel] = {}
        self._resting: set[Channel] = set()
        self.heard: dict[int, float] = {}
        """The time of each peer's last answer."""

    def channel(self, peer: int, lane: str, owner: Owner, backoff: float) -> Channel:
        """A new channel for `owner`."""
        made = Channel(self, peer, lane, owner, backoff)
        self._all.append(made)
        return made

    def on_connected(self, event: ev.Connected) -> None:
        channel = self._dials.pop(event.dial, None)
        if channel is None:
            # The attempt went to an address that is no longer current.
            self.ctx.emit(fx.HangUp(connection=event.connection, reason="the connection is not needed"))
            return
        self._connections[event.connection] = channel
        channel.connected(event.connection, hands_over_files=event.hands_over_files)

    def on_dial_failed(self, event: ev.DialFailed) -> None:
        channel = self._dials.pop(event.dial, None)
        if channel is not None:
            channel.dial_failed(event.reason, refused=event.refused)

    def awaits(self, dial: int) -> bool:
        """Whether the outcome of a dial still matters; not if the peer's address has changed since."""
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
        """The view has changed: close channels to processes that are gone or were replaced."""
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
        """Call `ready` at `until`: one timer for each channel, regardless of the number of calls."""
        if channel not in self._resting:
            self._resting.add(channel)
            self.ctx.timers.call_at(until, lambda: self._rested(channel))

    def _rested(self, channel: Channel) -> None:
        self._resting.discard(channel)
        channel.rested()


def _process(record: NodeRecord | None) -> tuple[int, tuple[str, ...]] | None:
    """Process and addresses of a registration; changes of other fields do not end a connection."""
    return None if record is None else (record.incarnation, record.endpoints)
