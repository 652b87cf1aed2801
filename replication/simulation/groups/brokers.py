"""Nodes that replicate one partition of `__consumer_offsets`, and coordinate while they lead it.

The model keeps what matters to a coordinator: a leader that others have left goes on until it learns of it, its
log may end in what nobody else has, and its high watermark stands still from then on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
from msgspec import structs

from ...core.coordination import shard_effects as fx
from ...core.coordination import shard_events as ev
from ...core.coordination.contact import Contact
from ...core.coordination.shard import Shard, ShardSettings
from ...core.errors import ErrorCode
from ...core.groups import records as r
from ...core.groups.settings import GroupSettings
from ...core.groups.shard import GroupCoordinator
from ...core.messages import groups as gm
from .facts import MAX_SIZE
from .world import Process, World

Item = ev.Entry | ev.Marker
SHRINK_AFTER = 2.0
DETECT_AFTER = 1.0
ISOLATION = 1.5
SETTINGS = GroupSettings(
    consumer_session_timeout_ms=10_000,
    consumer_heartbeat_interval_ms=2_000,
    offsets_retention_ms=12_000,
    offsets_retention_check_interval_ms=3_000,
    max_size=MAX_SIZE,
    isolation_timeout_ms=int(ISOLATION * 1000),
)


@attrs.define
class Store:
    """The leader and the ISR, as decided; compare-and-set by the leader epoch."""

    leader: int = 0
    epoch: int = 1
    isr: frozenset[int] = frozenset()


@attrs.define
class _Pending:
    """A request under way. `current`: where its sender stood when it came. `write`: what it has led to."""

    message: Any
    answer: Callable[[Any], None]
    arrived: float
    committed: int
    current: r.CurrentValue | None
    commits_as_classic: bool = False
    """Whether a member of a classic group commits with it: that begins its session again too."""
    write: tuple[int, tuple[tuple[Any, Any], ...]] | None = None

    @property
    def keeps_alive(self) -> bool:
        """Whether its sender's session begins again with it."""
        if isinstance(self.message, gm.ConsumerGroupHeartbeatRequest):
            return self.message.member_epoch >= 0
        kinds = gm.JoinGroupRequest | gm.SyncGroupRequest | gm.HeartbeatRequest
        return self.commits_as_classic or isinstance(self.message, kinds)


class Broker(Process):
    """One node. `items` is its log: None where a compaction has taken a record away."""

    def __init__(self, world: World, number: int, cluster: Cluster) -> None:
        super().__init__(world, f"n{number}")
        self.number = number
        self.cluster = cluster
        self.items: list[Item | None] = []
        self.epochs: list[int] = []
        self.high_watermark = 0
        self.epoch = 0
        self.leads = False
        self.leader = -1
        self.shard = self._new_shard()
        self._contact = Contact()
        self._ends: dict[int, int] = {}
        self._last_fetch: dict[int, float] = {}
        self._asked_after = float("-inf")
        self._requests: dict[int, _Pending] = {}
        self._ids = 0
        self._ticking: float | None = None
        self._fetching = 0
        self.view: Any = None
        self._read_size = world.random.choice((5, 40))
        """The same for each read: a gap that is wider is met whole, again and again."""
        self._gathers = world.chance(0.7)
        self._flushing = False
        self.resigned = -1
        """The leader epoch that this node has given up."""
        self.lateness: list[tuple[float, float]] = []
        """When timers were looked at too late, and by how much: nobody could be heard, so nobody is blamed."""
        self.active_since = 0.0
        """When its shard has begun to serve; all sessions began then."""
        self.waiting: dict[tuple[str, str], tuple[float, int]] = {}
        """When a member's last request came that keeps it alive and was not answered at once, and its number."""

    def _new_shard(self) -> Shard:
        return Shard(lambda: GroupCoordinator(SETTINGS), ShardSettings(isolation=ISOLATION))

    # The role

    def learn(self, leader: int, epoch: int, view: Any) -> None:
        """The store's word on the leader and the view; it may come late."""
        if view is not self.view:
            self.view = view
            self.tell(ev.ViewChanged(view=view))
        if epoch <= self.epoch:
            return
        was_leading = self.leads
        self.epoch, self.leader = epoch, leader
        self.leads = leader == self.number
        self._fetching += 1
        if was_leading:
            self.tell(ev.ShardEnded(leader=leader, leader_epoch=epoch))
        if self.leads:
            self._contact = Contact()
            self._ends = {}
            # Its timers begin now: for how long an earlier leadership stood still is nothing to them.
            self.lateness = []
            self.waiting = {}
            now = self.clock
            self._last_fetch = {node.number: now for node in self.cluster.brokers}
            self.tell(ev.ShardLed(leader_epoch=epoch, log_start=0, epoch_start=len(self.items)))
            self.tell(ev.Advanced(high_watermark=self.high_watermark))
            self.after(0.3, lambda: self._look_after(epoch))
        else:
            self._asked_after = float("-inf")
            self._fetch(self._fetching)

    def restart(self) -> None:
        """The process ends and another begins: its log stays, its shard does not."""
        self.shard = self._new_shard()
        self._requests.clear()
        self.held.clear()
        self.paused = False
        self.epoch, self.leads = 0, False
        self.view = None
        self._ticking = None
        self._flushing = False
        self._fetching += 1

    def _look_after(self, epoch: int) -> None:
        """A leader takes out who does not follow; it must get this past the store."""
        if not self.leads or self.epoch != epoch:
            return
        store = self.cluster.store
        late = {each for each in store.isr if self.clock - self._last_fetch[each] > SHRINK_AFTER}
        late.discard(self.number)
        reachable = not self.cluster.is_isolated(self)
        if late and reachable and store.epoch == epoch:
            store.isr -= late
        self._advance()
        self.after(0.3, lambda: self._look_after(epoch))

    # Replication

    def _fetch(self, session: int) -> None:
        if session != self._fetching or self.leads:
            return
        leader = self.cluster.brokers[self.leader]
        asked_after, epoch = self._asked_after, self.epoch
        epochs = list(self.epochs)
        self.world.send(self, leader, lambda: leader.on_fetch(self, epoch, epochs, asked_after, session))
        self.after(0.5, lambda: self._fetch_again(session, asked_after))

    def _fetch_again(self, session: int, asked_after: float) -> None:
        """The answer was lost."""
        if session == self._fetching and self._asked_after == asked_after:
            self._fetch(session)

    def on_fetch(
        self, follower: Broker, epoch: int, epochs: list[int], asked_after: float, session: int
    ) -> None:
        if not self.leads or self.epoch != epoch:
            return
        same = len(epochs)
        if self.epochs[:same] != epochs:
            pairs = enumerate(zip(epochs, self.epochs, strict=False))
            short = min(len(epochs), len(self.epochs))
            same = next((at for at, (theirs, mine) in pairs if theirs != mine), short)
        if same == len(epochs):
            self._ends[follower.number] = same
            self._last_fetch[follower.number] = self.clock
            store = self.cluster.store
            if store.epoch == epoch and follower.number not in store.isr and same >= self.high_watermark:
                store.isr |= {follower.number}
        self._contact.fetched(follower.number, asked_after)
        self._advance()
        sent, items, sent_epochs = self.clock, self.items[same:], self.epochs[same:]
        high_watermark = self.high_watermark
        self.world.send(
            self,
            follower,
            lambda: follower.on_answer(session, same, items, sent_epochs, high_watermark, sent),
        )

    def on_answer(
        self, session: int, same: int, items: list[Item | None], epochs: list[int], high: int, sent: float
    ) -> None:
        if session != self._fetching or sent <= self._asked_after or same > len(self.items):
            return
        del self.items[same:], self.epochs[same:]
        self.items += items
        self.epochs += epochs
        self.high_watermark = max(min(high, len(self.items)), min(self.high_watermark, len(self.items)))
        self._asked_after = sent
        self.after(self.world.random.uniform(0.01, 0.1), lambda: self._fetch(session))

    def _maximal_isr(self) -> frozenset[int]:
        """The ISR that the store shows to the leader; a replaced leader keeps what it knew, so all nodes."""
        store = self.cluster.store
        if store.epoch == self.epoch:
            return store.isr | {self.number}
        return frozenset(node.number for node in self.cluster.brokers)

    def _advance(self) -> None:
        isr = self._maximal_isr()
        if len(isr) >= self.cluster.min_isr:
            end = min(len(self.items) if each == self.number else self._ends.get(each, 0) for each in isr)
            if end > self.high_watermark:
                self.high_watermark = end
                self.cluster.oracle.committed(self)
                self.tell(ev.Advanced(high_watermark=end))
        self.tell(ev.Contacted(since=self._contact.since(self.number, isr, self.clock)))

    # The shard

    def ask(self, message: Any, deadline: float, leader_epoch: int, answer: Callable[[Any], None]) -> None:
        """A request has arrived."""
        self._ids += 1
        asked = self._ids
        oracle = self.cluster.oracle
        current = self._current(message)
        classic = self._commits_as_classic(message)
        self._requests[asked] = _Pending(message, answer, self.world.now, len(oracle.log), current, classic)
        self.tell(
            ev.Ask(
                request_id=asked,
                message=message,
                deadline=self.clock + deadline,
                leader_epoch=leader_epoch,
                more=self._gathers,
            )
        )
        if asked in self._requests and self._requests[asked].keeps_alive:
            place, number = (message.group, message.member_id), getattr(message, "sequence", -1)
            # A late copy of an earlier one is refused.
            if number < 0 or number > self.waiting.get(place, (0.0, -1))[1]:
                self.waiting[place] = self.world.now, number
        if self.shard.gathered and not self._flushing:
            # Several commits share a batch; what else comes meanwhile finds them gathered.
            self._flushing = True
            self.after(self.world.random.choice((0.0, 0.005, 0.2)), self._flush)

    def asking(self) -> dict[tuple[str, str], float]:
        """Members, and those who are to be members, whose requests wait for their answers, and since when."""
        found: dict[tuple[str, str], float] = {}
        for each in self._requests.values():
            if each.keeps_alive:
                for name in (each.message.member_id, getattr(each.message, "fresh_id", "")):
                    place = each.message.group, name
                    found[place] = max(each.arrived, found.get(place, 0.0))
        return found

    def _current(self, message: Any) -> r.CurrentValue | None:
        machine: Any = self.shard.machine
        state = machine.groups.get(getattr(message, "group", "")) if self.shard.active else None
        return None if state is None else state.currents.get(getattr(message, "member_id", ""))

    def _commits_as_classic(self, message: Any) -> bool:
        machine: Any = self.shard.machine
        if not self.shard.active or not isinstance(message, gm.CommitGroupOffsetsRequest):
            return False
        classic = machine.classics.get(message.group)
        return classic is not None and message.member_id in classic.members

    def _flush(self) -> None:
        self._flushing = False
        self.tell(ev.Flush())

    def tell(self, event: ev.Event) -> None:
        wall = 1_700_000_000_000 + int(self.world.now * 1000)
        served = self.shard.active
        effects = self.shard.step(event, self.clock, wall)
        if self.shard.active and not served:
            self.active_since = self.world.now
        for effect in effects:
            match effect:
                case fx.Write():
                    self._write(effect)
                case fx.Answer(request_id=request_id, reply=reply):
                    request = self._requests.pop(request_id)
                    self.cluster.oracle.answered(self, request, reply)
                    self.cluster.answered(self, request.message, reply)
                    request.answer(reply)
                case fx.ReadLog(leader_epoch=epoch, start=start):
                    delay = self.world.random.uniform(0.001, 0.3 * self._read_size / 40)
                    stop = min(len(self.items), start + self._read_size)
                    # As it is now: what comes late may have been cut off meanwhile.
                    found = tuple([each for each in self.items[start:stop] if each is not None])
                    read = ev.LogRead(leader_epoch=epoch, entries=found, next_offset=max(stop, start + 1))
                    self.after(delay, partial(self._read, read))
                case fx.Resign(leader_epoch=epoch):
                    self.resigned = epoch
                case fx.MarkerApplied(offset=offset):
                    self.cluster.oracle.marker_applied(self, offset)
        self._tick_later()

    def _write(self, write: fx.Write) -> None:
        refused = len(self._maximal_isr()) < self.cluster.min_isr or (
            not self.world.calm and self.world.chance(0.01)
        )
        if refused:
            self.tell(ev.Refused(write_id=write.write_id, error=ErrorCode.NOT_ENOUGH_REPLICAS))
            return
        base = len(self.items)
        self.items += [
            ev.Entry(base + at, key, value, write.producer) for at, (key, value) in enumerate(write.entries)
        ]
        self.epochs += [self.epoch] * len(write.entries)
        oracle, at = self.cluster.oracle, 0
        for asked, count in write.parts:
            entries = write.entries[at : at + count]
            # What follows from a request by itself (an empty group's record, say) is no part of it.
            pending = self._requests.get(asked) if asked is not None else None
            if pending is not None and pending.write is None:
                pending.write = base + at, entries
            message = pending.message if pending is not None else None
            oracle.written(self, base + at, structs.replace(write, entries=entries), message)
            at += count
        self.tell(ev.Accepted(write_id=write.write_id, base_offset=base))
        self._advance()

    def mark(self, producer_id: int, *, committed: bool) -> bool:
        """A transaction's marker, from its coordinator; False: not now."""
        if not self.leads or not self.up or self.paused or self.cluster.store.epoch != self.epoch:
            return False
        marker = ev.Marker(len(self.items), ev.ProducerId(producer_id, 0), committed)
        self.items.append(marker)
        self.epochs.append(self.epoch)
        self.cluster.oracle.marked(self, marker)
        self.tell(ev.MarkerWritten(marker=marker))
        return True

    def _read(self, read: ev.LogRead) -> None:
        """An answer that comes too late is told too: the shard must not believe it."""
        if not self.world.calm and self.world.chance(0.1):
            self.tell(ev.LogReadFailed(leader_epoch=read.leader_epoch))
        else:
            self.tell(read)

    def _tick_later(self) -> None:
        due = self.shard.deadline
        if due is None or (self._ticking is not None and self._ticking <= due):
            return
        self._ticking = due
        self.after(due - self.clock, lambda: self._tick(due))

    def _tick(self, due: float) -> None:
        if self._ticking == due:
            self._ticking = None
            # What lay in the sockets while this process stood still goes first.
            self.world.later(0.0, lambda: self.run(self._tick_now))

    def _tick_now(self) -> None:
        machine = self.shard.machine
        due = machine.deadline if machine is not None and self.shard.active else None
        if due is not None and self.clock > due + 0.01:
            self.lateness.append((self.world.now, self.clock - due))
        self.tell(ev.Tick())

    def compact(self) -> None:
        """Take away records below the high watermark that a later one of their key replaces."""
        seen: set[Any] = set()
        open_: set[int] = set()
        limit = self.high_watermark
        decided: dict[int, bool] = {}
        for offset in range(self.high_watermark):
            item = self.items[offset]
            if isinstance(item, ev.Entry) and item.producer is not None:
                open_.add(item.producer.producer_id)
            elif isinstance(item, ev.Marker):
                open_.discard(item.producer.producer_id)
                decided[item.producer.producer_id] = item.committed
        if open_:
            firsts = [
                at
                for at in range(limit)
                if isinstance(item := self.items[at], ev.Entry)
                and item.producer is not None
                and item.producer.producer_id in open_
            ]
            limit = min(firsts, default=limit)
        for offset in reversed(range(limit)):
            item = self.items[offset]
            if not isinstance(item, ev.Entry) or item.key is None:
                continue
            aborted = item.producer is not None and not decided.get(item.producer.producer_id, False)
            if aborted or item.key in seen:
                if self.world.chance(0.8):
                    self.items[offset] = None
            else:
                seen.add(item.key)


class Cluster(ABC):
    """The nodes, and whoever decides which of them leads."""

    def __init__(self, world: World, oracle: Any, view: Any) -> None:
        self.world = world
        self.oracle = oracle
        self.view = view
        self.brokers = [Broker(world, number, self) for number in range(3)]
        self.min_isr = world.random.choice((1, 2, 2))
        self.store = Store(isr=frozenset(range(3)))
        self.elections = 0
        self.deaf: set[int] = set()
        """Nodes that the store's news do not reach, though all else does."""
        self.frozen = False
        """Whether the store stands still."""
        self.publish()
        world.later(0.5, self._watch)

    @abstractmethod
    def oracle_end(self, partition: r.TopicPartition) -> int:
        """How many records a partition of a topic has by now."""

    @abstractmethod
    def answered(self, broker: Broker, message: Any, reply: Any) -> None:
        """A node has answered a request."""

    @abstractmethod
    def hears(self, client: Any, message: Any, reply: Any, waited: float) -> bool:
        """A client is to have an answer after so many seconds; whether it gets it."""

    def is_isolated(self, broker: Broker) -> bool:
        others = [each for each in self.brokers if each is not broker]
        return all(frozenset({broker.name, each.name}) in self.world.cuts for each in others)

    def publish(self) -> None:
        """The store's state reaches each node some time later."""
        leader, epoch, view = self.store.leader, self.store.epoch, self.view
        for broker in self.brokers:
            if not self.is_isolated(broker) and broker.number not in self.deaf:
                delay = self.world.random.uniform(0.001, 0.2)
                self.world.later(
                    delay,
                    lambda b=broker: b.run(lambda: b.learn(leader, epoch, view)),  # type: ignore[misc]
                )

    def _watch(self) -> None:
        """A leader whose session in the store has ended is replaced by one of its in-sync replicas."""
        leader = self.brokers[self.store.leader]
        gone = not leader.up or leader.paused or self.is_isolated(leader)
        if self.frozen:
            pass
        elif gone or leader.resigned == self.store.epoch:
            if self.world.chance(0.5):
                self.elect()
        else:
            self.publish()
        self.world.later(DETECT_AFTER, self._watch)

    def elect(self, only: int | None = None) -> None:
        """Somebody else of the in-sync replicas leads; `only`: that one, if it can."""
        able = [
            number
            for number in sorted(self.store.isr)
            if number != self.store.leader and self.brokers[number].up and not self.brokers[number].paused
        ]
        if only is not None:
            able = [number for number in able if number == only]
        if able:
            self.elections += 1
            self.store.leader = self.world.random.choice(able)
            self.store.epoch += 1
            self.publish()

    def coordinator(self) -> Broker:
        return self.brokers[self.store.leader]

    def see(self, view: Any) -> None:
        self.view = view
        self.oracle.saw(view)
        self.publish()
