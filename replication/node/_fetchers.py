"""The follower's side of a node: one fetch outstanding on each leader's node.

A fetch is about every partition that wants one from that leader; in a session it names only those whose question is
new. If another comes to want one while a fetch is parked at the leader, the parked one is given up and the next one
tells of it: nothing waits behind an idle partition.

An answer is taken where it is read from the connection, and the next fetch goes out when the node settles: a task
in between would cost each of them a switch. A task for each leader only connects, and deals with failures.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from ...storage import CorruptBatchError
from ...storage.batch import BatchInfo, scan
from ...transport import (
    Connection,
    ConnectRefusedError,
    Identity,
    RequestHandle,
    Response,
    Security,
    TransportError,
    connect_nearest,
)
from .. import wire
from ..core import messages as m
from ..core.broker.fetch_session import FollowerSession
from ..core.control.records import NodeRecord
from ..core.errors import ErrorCode
from ..core.partition import effects as fx
from ..core.partition import events as ev
from ..core.types import PartitionId
from ._payloads import SharedPayload
from ._replica_host import Batches, to_meta
from ._throttle import Throttle
from ._timers import Timer

if TYPE_CHECKING:
    from ._replicas import Replicas
    from .settings import NodeSettings

log = logging.getLogger("insync.node")

CONNECT_TIMEOUT = 2.0
LONGEST_CONNECT_TIMEOUT = 8.0
"""Up to which the former doubles with each attempt that nobody answers, as in KIP-601: on a machine so busy that a
handshake takes longer, a follower that gave up at the same moment each time would never be in sync again.
"""
SETTLE_TIMEOUT = 0.02
"""How long a fetch waits for the appends of the one before it, so that their partitions are in it too."""

HANDED_OVER = 4
"""How many times as much is asked for at a time where files are handed over: neither the wire nor the leader's
memory carries it, and a round trip costs more than reading a further MiB. One answer's bound holds all the same.
"""


class Fetchers:
    """The fetch tasks of a node, one for each node that it follows."""

    def __init__(self, node: Replicas, settings: NodeSettings, nursery: trio.Nursery) -> None:
        self.node = node
        self.settings = settings
        self.nursery = nursery
        self.identity = Identity()
        self.security = Security()
        self.throttle = Throttle(settings.follower_replication_throttled_rate)
        self._by_leader: dict[int, LeaderFetcher] = {}
        self._assigned: dict[PartitionId, LeaderFetcher] = {}
        self._changed: dict[LeaderFetcher, None] = {}

    def want(self, partition: PartitionId, effect: fx.FetchNext) -> None:
        """A core asks for what comes next; after a failure only when the pause is over."""
        fetcher = self._assign(partition, effect.leader)
        pause = self.settings.replica_fetch_backoff_ms / 1000 if effect.delayed else 0.0
        if self.is_throttled(partition):
            pause = max(pause, self.throttle.pause)
        if pause:
            fetcher.rest(partition)
            fetcher.resting[partition] = self.node.timers.call_after(
                pause, lambda: fetcher.want(partition, effect)
            )
        else:
            fetcher.want(partition, effect)

    def changed(self, fetcher: LeaderFetcher) -> None:
        """It may have something to ask, or to take back, when all else that happens now has happened."""
        self._changed[fetcher] = None

    @property
    def has_changed(self) -> bool:
        """Whether `settle` has anything to do."""
        return bool(self._changed)

    def settle(self) -> None:
        """Ask what there is to ask."""
        while self._changed:
            self._changed.popitem()[0].look()

    def is_throttled(self, partition: PartitionId) -> bool:
        """Whether a reassignment adds this node, which has not caught up yet."""
        versioned = self.node.view.partitions.get(partition)
        me = self.settings.node_id
        return versioned is not None and me in versioned.record.adding and me not in versioned.record.isr

    def fetch_size(self, partition: PartitionId, *, handed_over: bool = False) -> int:
        """How many bytes of a partition to ask for at a time; of a throttled one a second's worth at most."""
        size = self.settings.replica_fetch_max_bytes * (HANDED_OVER if handed_over else 1)
        return min(size, self.throttle.rate) if self.is_throttled(partition) else size

    def stop(self, partition: PartitionId) -> None:
        """The outstanding question of a core is void."""
        fetcher = self._assigned.pop(partition, None)
        if fetcher is not None:
            fetcher.drop(partition)

    def nodes_changed(self, nodes: dict[int, NodeRecord]) -> None:
        """Fetchers of processes that are gone, or were replaced, let go of their connections."""
        for node_id, fetcher in self._by_leader.items():
            fetcher.address_changed(nodes.get(node_id))

    def _assign(self, partition: PartitionId, leader: int) -> LeaderFetcher:
        fetcher = self._by_leader.get(leader)
        if fetcher is None:
            fetcher = self._by_leader[leader] = LeaderFetcher(self, leader)
            self.nursery.start_soon(fetcher.run, name=f"fetch from node {leader}")
        former = self._assigned.get(partition)
        if former is not None and former is not fetcher:
            former.drop(partition)
        self._assigned[partition] = fetcher
        return fetcher


class LeaderFetcher:
    """Fetches from one node; each assigned partition wants, is asked for, appends, or rests after a failure."""

    def __init__(self, owner: Fetchers, leader: int) -> None:
        self.leader = leader
        self.resting: dict[PartitionId, Timer] = {}
        self._owner = owner
        self._node = owner.node
        self._session: FollowerSession[PartitionId, fx.FetchNext] = FollowerSession()
        self._appending: set[PartitionId] = set()
        self._news = trio.Event()
        """For the task: there may be something to do."""
        self._failure: Exception | None = None
        """What the task is to deal with before anything is asked again."""
        self._is_asking = False
        self._handle: RequestHandle | None = None
        self._has_more = False
        """Somebody has come to want something since the last fetch was sent."""
        self._patience = 0.0
        self._settling: Timer | None = None
        self._connection: Connection | None = None
        self._address: NodeRecord | None = None
        self._failing = False
        self._patience_to_connect = CONNECT_TIMEOUT

    def want(self, partition: PartitionId, effect: fx.FetchNext) -> None:
        self.rest(partition)
        self._session.ask(partition, effect)
        if self._is_asking and not self._has_more:
            self._patience = self._node.now() + SETTLE_TIMEOUT
        self._has_more = True
        self._owner.changed(self)

    def rest(self, partition: PartitionId) -> None:
        """The partition neither appends nor waits for its pause any more."""
        self._appending.discard(partition)
        timer = self.resting.pop(partition, None)
        if timer is not None:
            timer.cancel()

    def drop(self, partition: PartitionId) -> None:
        self.rest(partition)
        self._session.withdraw(partition)
        self._owner.changed(self)

    def address_changed(self, record: NodeRecord | None) -> None:
        if _process(record) != _process(self._address):
            self._address = record
            if self._connection is not None:
                self._connection.abort(f"node {self.leader} has left or was started again")

    def look(self) -> None:
        """Ask, if there is something new to ask and no append to wait for."""
        if not self._session.open:
            self._give_up()
        elif self._failure is None and (self._has_more or not self._is_asking):
            if self._appending and self._node.now() < self._patience:
                self._look_later()
            elif self._is_connected():
                self._give_up()
                self._ask()
            else:
                self._news.set()

    def _look_later(self) -> None:
        """One timer for all that is waited for: it may find that nothing is any more."""
        if self._settling is None:
            self._settling = self._node.timers.call_at(self._patience, self._settled)

    def _settled(self) -> None:
        self._settling = None
        self._owner.changed(self)

    def _give_up(self) -> None:
        """The fetch that is parked at the leader, if any, for the next one to tell of whatever is new."""
        if self._is_asking:
            self._is_asking = False
            assert self._handle is not None
            self._handle.cancel()

    def _is_connected(self) -> bool:
        return self._connection is not None and not self._connection.closed.is_set()

    def _ask(self) -> None:
        assert self._connection is not None
        self._is_asking, self._has_more = True, False
        self._handle = self._connection.request_nowait(
            m.Kind.FETCH,
            wire.encode(self._request()),
            timeout=self._owner.settings.replica_socket_timeout_ms / 1000,
            on_done=self._answered,
        )

    def _answered(self, outcome: Response | TransportError) -> None:
        """Called by the connection; what goes wrong is the task's to tell, or to end the node with."""
        self._is_asking = False
        try:
            if isinstance(outcome, TransportError):
                raise outcome
            self._failing = False
            payload = SharedPayload(outcome.payload)
            try:
                self._take(outcome.body, payload)
            finally:
                payload.release()
            if self._appending:
                self._patience = self._node.now() + SETTLE_TIMEOUT
        except Exception as error:  # noqa: BLE001 - raised by the task
            self._failure = error
            self._news.set()
            return
        self._owner.changed(self)
        self._node.settle()

    async def run(self) -> None:
        """Connect when somebody wants something and there is no connection; deal with failures."""
        while True:
            while self._failure is None and (not self._session.open or self._is_connected()):
                self._news = trio.Event()
                await self._news.wait()
            failure, self._failure = self._failure, None
            try:
                if failure is not None:
                    raise failure
                await self._connected()
            except (TransportError, OSError, UnicodeError) as error:
                # A host name that no encoding can express is an address as wrong as any.
                self._failed(f"cannot be fetched from: {error}")
            except (wire.WireError, CorruptBatchError) as error:
                if self._connection is not None:
                    self._connection.abort(str(error))
                self._failed(f"sent what cannot be read, its connection is dropped: {error}")
            self._owner.changed(self)
            self._node.settle()

    def _failed(self, reason: str) -> None:
        if not self._failing:
            log.warning("node %d %s", self.leader, reason)
        self._failing = True
        failed, self._session = self._session.open, FollowerSession()
        for partition, effect in failed.items():
            self._node.hosts[partition].step(
                ev.FetchFailed(fetch_offset=effect.fetch_offset, leader_epoch=effect.leader_epoch)
            )

    async def _connected(self) -> None:
        if self._is_connected():
            return
        address = self._address = self._node.view.nodes.get(self.leader)
        if address is None:
            raise ConnectionError(f"node {self.leader} is not registered")
        self._session.end()
        self._connection = await self._connect(address)

    async def _connect(self, address: NodeRecord) -> Connection:
        try:
            connection = await self._dial(address.endpoints)
        except ConnectRefusedError:
            # Its successor may have registered meanwhile, and has refused nothing.
            self._node.store.suspect(address)
            self._patience_to_connect = CONNECT_TIMEOUT
            raise
        except TransportError:
            self._patience_to_connect = min(LONGEST_CONNECT_TIMEOUT, 2 * self._patience_to_connect)
            raise
        self._patience_to_connect = CONNECT_TIMEOUT
        return connection

    async def _dial(self, endpoints: Sequence[str]) -> Connection:
        return await connect_nearest(
            endpoints,
            identity=self._owner.identity,
            security=self._owner.security,
            expect_node=self.leader,
            lane="data",
            nursery=self._owner.nursery,
            timeout=self._patience_to_connect,
        )

    def _request(self) -> m.FetchRequest:
        handed_over = self._connection is not None and self._connection.hands_over_files
        settings, told = self._owner.settings, self._session.request()
        return m.FetchRequest(
            replica_id=settings.node_id,
            incarnation=self._owner.identity.incarnation,
            max_wait_ms=settings.replica_fetch_wait_max_ms,
            min_bytes=1,
            max_bytes=settings.replica_fetch_response_max_bytes,
            partitions=[
                m.FetchPartition(
                    topic=partition.topic,
                    partition=partition.partition,
                    fetch_offset=want.fetch_offset,
                    max_bytes=self._owner.fetch_size(partition, handed_over=handed_over),
                    leader_epoch=want.leader_epoch,
                    last_fetched_epoch=want.last_fetched_epoch,
                    high_watermark=want.high_watermark,
                    log_start_offset=want.log_start_offset,
                    topic_id=want.topic_id,
                )
                for partition, want in told.questions.items()
            ],
            session_id=told.session_id,
            session_epoch=told.session_epoch,
            forgotten=[
                m.PartitionName(topic=each.topic, partition=each.partition) for each in told.withdrawn
            ],
        )

    def _take(self, body: bytes, payload: SharedPayload) -> None:
        """Tell every core that is answered; the questions of the others stay open at the leader.

        The payload is kept until the last append of its batches is done.
        """
        answer: m.FetchResponse = wire.decode_response(m.Kind.FETCH, body)
        if answer.error != ErrorCode.NONE:
            self._session.end()
            return
        contents = self._split(answer, payload)
        asked = self._session.answered(answer.session_id, contents)
        for partition, (result, infos, start) in contents.items():
            want = asked.get(partition)
            if want is None:
                continue
            self._node.counters.replication_bytes_in += result.size
            host, data = self._node.hosts[partition], payload.slice(start, result.size)
            if self._owner.is_throttled(partition):
                self._owner.throttle.took(result.size)
            batches = Batches(data, infos, payload.release)
            may_skip = self._node.is_compacted(partition.topic)
            host.step(_fetched(want, result, infos, batches, may_skip=may_skip))
            if batches.taken:
                self._appending.add(partition)
            else:
                batches.release()

    def _split(
        self, answer: m.FetchResponse, payload: SharedPayload
    ) -> dict[PartitionId, tuple[m.FetchResult, list[BatchInfo], int]]:
        """Check the whole answer before any core hears of it: what it says, its batches, and where they stand."""
        position = 0
        found = {}
        for result in answer.partitions:
            if result.size < 0 or position + result.size > len(payload.view):
                raise wire.WireError("a fetch answer's payload is shorter than its sizes say")
            infos = scan(payload.view[position : position + result.size])
            found[PartitionId(result.topic, result.partition)] = result, infos, position
            position += result.size
        return found


def _process(record: NodeRecord | None) -> tuple[int, tuple[str, ...]] | None:
    """Which process listens where; all else that a registration says is no reason to end a connection."""
    return None if record is None else (record.incarnation, record.endpoints)


def _fetched(
    want: fx.FetchNext,
    result: m.FetchResult,
    infos: list[BatchInfo],
    handle: Batches,
    *,
    may_skip: bool,
) -> ev.Fetched:
    try:
        error = ErrorCode(result.error)
    except ValueError:
        error = ErrorCode.UNKNOWN_SERVER_ERROR
    return ev.Fetched(
        fetch_offset=want.fetch_offset,
        leader_epoch=want.leader_epoch,
        last_fetched_epoch=want.last_fetched_epoch,
        error=error,
        high_watermark=result.high_watermark,
        log_start_offset=result.log_start_offset,
        log_end_offset=result.log_end_offset,
        diverging=result.diverging,
        batches=tuple(map(to_meta, infos)),
        handle=handle,
        may_skip=may_skip,
    )
