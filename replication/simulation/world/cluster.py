"""A whole cluster on virtual time: the core's machines, hosted as a node hosts them, over model disks and store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from msgspec import structs

from ...core.broker.context import BrokerSettings
from ...core.broker.effects import WriteIsrs
from ...core.broker.events import AskLogs, LogDeleted, LogFound, ViewRead
from ...core.broker.membership import registration as membership
from ...core.broker.membership.clocks import WallClocks
from ...core.broker.membership.damage import step_back
from ...core.broker.membership.registration import MembershipError, NodeIdTakenError, StorePutBackError
from ...core.broker.membership.stalls import StallWatch
from ...core.broker.timers import NEVER
from ...core.control import controller as ctl
from ...core.control import records as rec
from ...core.control.admin_requests import BROKEN, Request
from ...core.control.internal_topics import STANDARD
from ...core.control.view import ClusterView
from ...core.partition import events as ev
from ...core.partition.replica import ReplicaSettings
from ...core.store_transaction import Committed, Conflict, Outcome, Put, Seen, SessionOver, Transaction
from ...core.types import PartitionId
from ..clients.current_reads import CurrentReads
from ..clients.groups import Groups
from ..driver.coordinators import SETTINGS as GROUPS
from ..driver.coordinators import Coordinators, internal_topics
from ..driver.fetches import BATCH_SIZE, FETCH_WAIT, LARGEST, Fetches
from ..driver.hosting import Hosting
from ..driver.requests import Requests
from ..driver.transactions import Transactions, coordinator_settings
from ..errors import require
from ..faults.pauses import FETCH_BACKOFF, Pauses
from ..faults.traps import ELECTION, Traps
from ..faults.weather import Mishap
from ..oracles.facts import PartitionFacts
from ..oracles.oracle import Oracle
from ..oracles.watched import WatchedBroker, WatchedContext
from ..settings import LAG_MAX, STALL_MAX, Settings
from .members import BEGINS, Members
from .network import Network
from .node import CLOCKS_APART, Host, Node
from .store import Store, after
from .topics import Topics
from .versions import Versions

ADMIN_TIMEOUT = 4.0
"""A host's patience with its controller; shorter than a real one's, so that it runs out now and then."""
RECOVERY_TIMEOUT = 2.0
"""The simulated `unclean_recovery_timeout`."""
FETCH_TIMEOUT = 1.5
"""The simulated `replica_socket_timeout`."""
NOBODY_JOINS: Mapping[str, tuple[tuple[int, int], ...]] = {}
UNSEEN = 10.0
"""After so long a controller has either seen what the store holds or is none any more."""


class Cluster(Hosting):
    """Nodes, store and oracle. `start` begins; the clients and the faults come from elsewhere."""

    def __init__(
        self,
        seed: int,
        settings: Settings,
        script: Mapping[str, Mishap] | None = None,
        *,
        keep_trace: bool = False,
    ) -> None:
        super().__init__(seed, settings, script, keep_trace=keep_trace)
        self.nodes = {number: Node(number) for number in range(1, settings.nodes + 1)}
        self.store = Store()
        self.oracle = Oracle(self)
        self.events = 0
        self.elections = self.isr_changes = self.truncations = 0
        self.versions = Versions(self)
        self.requests = Requests(self)
        self.current_reads = CurrentReads(self)
        self.coordinators = Coordinators(self)
        self.transactions = Transactions(self)
        self.groups = Groups(self)
        self.fetches = Fetches(self)
        self.network = Network(self)
        self.pauses = Pauses(self)
        self.topics = Topics(self)
        self.members = Members(self)
        self.admin_requests: dict[int, int] = {}
        self.partition_made: Callable[[PartitionId], None] = lambda partition: None
        """Told of each partition that comes to be, for it to have clients."""
        self.traps = Traps()
        self.away: Node | None = None
        """The node that calm begins without: nobody starts it before it is to return."""

    def hosts_of(self, partition: PartitionId, facts: PartitionFacts | None = None) -> list[Host]:
        """facts: of the topic whose logs are meant, where the partition may have had others."""
        there = (node.hosts[partition] for node in self.nodes.values() if partition in node.hosts)
        return [host for host in there if facts is None or host.facts is facts]

    def lacks_logs(self, node: Node) -> bool:
        """Whether a log of a node was set aside, and is not here again."""
        records = (
            self.store.partitions[each].record for each in node.has_held & self.store.partitions.keys()
        )
        return any(node.id in record.replicas and record.id not in node.hosts for record in records)

    def leaders_of(self, partition: PartitionId | None) -> list[Host]:
        """Nodes that run and believe that they lead, of which one at most does; of no partition nobody."""
        return [
            host
            for host in (self.hosts_of(partition) if partition is not None else ())
            if host.node.up and host.replica is not None and host.replica.leader is not None
        ]

    def begin(self) -> None:
        """Start every node, and ask for the topics until they are there."""
        for node in self.nodes.values():
            self.start(node)
        self.later(0.5, self.members.watch_sessions)
        self.topics.begin()
        if self.settings.rebalance:
            self.later(self.settings.rebalance, self._balance)

    # The store

    def put_record(
        self, record: rec.PartitionRecord, writer: str, joining: tuple[tuple[int, int], ...] = ()
    ) -> int:
        known = self.store.partitions.get(record.id)
        before = known.record if known is not None else None
        version = self.store.put_partition(record)
        if before is None:
            self.oracle.record_stored(None, record, writer, joining)
            if self.trace.keep:
                self.note(
                    f"{writer}: {record.id} is made, topic id {record.topic_id}, {list(record.replicas)}"
                )
            self.partition_made(record.id)
            return version
        if record.leader != before.leader:
            self.elections += 1
            self.traps.spring(ELECTION, (*record.isr, *record.elr), record.id)
        elif record.isr != before.isr:
            self.isr_changes += 1
        if self.trace.keep:
            self.note(
                f"{writer}: {record.id} v{version} leader {record.leader} epoch {record.leader_epoch} "
                f"isr {list(record.isr)} elr {list(record.elr)}"
            )
        self.oracle.record_stored(before, record, writer, joining)
        return version

    def elect(self, record: rec.PartitionRecord, leader: int) -> None:
        """A planned election."""
        moved = structs.replace(
            record,
            leader=leader,
            leader_epoch=record.leader_epoch + 1,
            partition_epoch=record.partition_epoch + 1,
        )
        self.put_record(moved, "mover")
        self.store_changed()

    def commit(
        self,
        transaction: Transaction,
        session: int,
        writer: str,
        joining: Mapping[str, tuple[tuple[int, int], ...]] = NOBODY_JOINS,
    ) -> Outcome:
        """A transaction reaches the store. `joining`: for the oracle, whom an ISR change adds, by key."""
        store = self.store
        if transaction.session and session not in store.sessions:
            return SessionOver()
        for compare in transaction.compares:
            if not store.holds(compare):
                return Conflict(compare.key)
        elected = any(isinstance(put.record, rec.ControllerRecord) for put in transaction.puts)
        versions: dict[str, int] = {}
        for put in transaction.puts:
            match put.record:
                case None:
                    self._drop(put.key, writer)
                case rec.PartitionRecord():
                    versions[put.key] = self.put_record(put.record, writer, joining.get(put.key, ()))
                case rec.NodeRecord() | rec.IncarnationRecord() | rec.PulseRecord():
                    self._put_of_node(put, session)
                case rec.DeletedTopicRecord():
                    store.put_deleted(put.record)
                case rec.QuotaRecord():
                    store.put_quota(put.key, put.record)
                case rec.UserRecord():
                    store.put_user(put.record)
                case rec.TopicRecord():
                    store.put_topic(put.record)
                case rec.ControllerRecord():
                    store.put_controller(put.record, session)
                case rec.EpochRecord() as epoch:
                    newer = epoch.controller_epoch - store.controller_epoch
                    require(newer == 1 if elected else newer == 0, "S5", epoch)
                    store.put_controller_epoch(epoch)
        self.versions.written(transaction, session)
        store.revision += 1
        if not all(isinstance(put.record, rec.PulseRecord) for put in transaction.puts):
            self.store_changed()
        return Committed(store.revision, versions)

    def _put_of_node(self, put: Put, session: int) -> None:
        """S23: the store never takes an earlier process of a node for the present one."""
        record = put.record
        assert isinstance(record, (rec.NodeRecord, rec.IncarnationRecord, rec.PulseRecord))
        present = self.store.processes.get(record.node_id)
        known = present.incarnation if present is not None else 0
        if isinstance(record, rec.NodeRecord):
            require(record.incarnation == known, "S23", "{} is registered, the process is {}", record, known)
        elif isinstance(record, rec.IncarnationRecord):
            require(record.incarnation >= known, "S23", "{} comes after process {}", record, known)
        self.store.put_of_node(put.key, record, session)

    def _drop(self, key: str, writer: str) -> None:
        """Delete the record under a key."""
        if key.startswith(rec.PARTITIONS_PREFIX):
            found = self.store.get(key)
            assert found is not None and isinstance(found.record, rec.PartitionRecord)
            self.store.drop(key)
            self.oracle.deleted(found.record.id)
            self.note(f"{writer}: {found.record.id} is deleted")
        else:
            self.store.drop(key)

    def new_host(self, node: Node, partition: PartitionId, topic_id: str) -> Host:
        """A node has heard that it has a replica: an empty log."""
        facts = self.oracle.known[partition, topic_id]
        node.hosts[partition] = host = Host(node, partition, f"{node.id}/{facts.name}", facts)
        host.worker = self.new_id()
        return host

    def retire(self, host: Host) -> None:
        """The node deletes a log that it is not to have any more, and may be given the partition anew."""
        node = host.node
        self.note(f"{host.name} is deleted")
        host.forget(self.new_id())
        del node.hosts[host.partition]
        self.oracle.retired(host)
        if host.partition in node.offline:
            node.offline -= {host.partition}
            self.members.say_offline(node, node.process)
        self.on(node, 0.1 * self.random.random(), partial(self.tell, node, LogDeleted(host.partition)))

    def store_changed(self) -> None:
        view = self.store.reading()
        for node in self.nodes.values():
            if not node.up or not self.reaches_store(node):
                continue
            mishap = self.weather.watch()
            delay = self.delay()
            if mishap is None:
                self.on(node, delay, partial(self._look, node, view))
            elif mishap[0] == "late":
                self.on(node, mishap[1], partial(self._look, node, view))

    def reaches_store(self, node: Node) -> bool:
        return not node.store_cuts and self.store.reachable

    def read_store(self, node: Node) -> None:
        known = node.shown.revision

        def arrive() -> None:
            if self.reaches_store(node):
                if membership.was_put_back(self.store.revision, known):
                    error = StorePutBackError(f"revision {self.store.revision} after {known}")
                    self.on(node, self.delay(), partial(self.refuses, node, error))
                    return
                self.on(node, self.delay(), partial(self._look, node, self.store.reading()))
            else:
                self.on(node, 0.5, lambda: self.read_store(node))

        self.later(0.01 + 0.09 * self.random.random(), arrive)

    def _look(self, node: Node, view: ClusterView) -> None:
        if node.controller is None or node.broker is None or node.deaf_until > self.now:
            return
        if not node.broker.assignments.may_read(view.revision):
            return
        if view.revision >= node.shown.revision:
            view = node.shown = after(node.shown, view)
        node.seen = max(node.seen, view.revision)
        self.tell(node, ViewRead(view))
        self.control(node, ctl.ViewChanged(view=view))

    def transact(
        self,
        node: Node,
        write: Callable[[], object],
        done: Callable[[object], None],
        slow: float = 0.0,
        late: float = 0.0,
    ) -> None:
        """Do `write` in the store, `late` on its way; `done` gets its result, `slow` later, or None if unknown."""
        delay = 0.01 + 0.09 * self.random.random() + late
        mishap = self.weather.write()
        if not self.reaches_store(node):
            self.on(node, 0.6, partial(done, None))
        elif mishap is None or mishap[0] in ("late", "slow"):
            delay += mishap[1] if mishap and mishap[0] == "late" else 0.0
            slow += mishap[1] if mishap and mishap[0] == "slow" else 0.0
            process = node.process

            def arrive() -> None:
                result = write() if self.store.reachable else None
                if node.process == process:  # else whoever asked is gone
                    self.on(node, self.delay() + slow, lambda: done(result))

            self.later(delay, arrive)
        else:
            if mishap[0] == "landed":
                self.later(mishap[1], lambda: write() if self.store.reachable else None)  # type: ignore[arg-type]
            self.on(node, 0.6, partial(done, None))

    # The controller

    def control(self, node: Node, event: ctl.ControllerEvent) -> None:
        controller = node.controller
        if controller is None:
            return  # of a process that stood still: what it found before this has ended its role
        self.events += 1
        effects = controller.step(event)
        self.trace.step(f"{self.now:.6f} {node.id} {type(event).__name__} {len(effects)}")
        for effect in effects:
            match effect:
                case ctl.Commit():
                    self.oracle.deciding(node, effect)
                    write = partial(self._commit, node, node.incarnation, node.session, effect)
                    self.transact(node, write, partial(self._committed, node))
                case ctl.AskReplicas():
                    self.oracle.asking(node.writer(node.incarnation), effect)
                    self.tell(node, AskLogs(effect))
                case ctl.ReadView():
                    self.read_store(node)
                case ctl.Reply():
                    require(self.admin_requests.pop(effect.request_id, None) == node.process, "L5", effect)
                    require(not effect.response.message.startswith(BROKEN), "L5", effect)

    def _commit(self, node: Node, incarnation: int, session: int, commit: ctl.Commit) -> ctl.CommitDone:
        outcome = self.commit(commit.transaction, session, node.writer(incarnation))
        match outcome:
            case Committed():
                return ctl.CommitDone(outcome="committed", revision=outcome.revision)
            case Conflict():
                return ctl.CommitDone(outcome="conflict", key=outcome.key)
        return ctl.CommitDone(outcome="unknown")

    def _committed(self, node: Node, result: object) -> None:
        if node.controller is not None:
            done = result if isinstance(result, ctl.CommitDone) else ctl.CommitDone(outcome="unknown")
            self.control(node, done)

    def admin_request(self, request: Request, fresh_id: str = "") -> Node | None:
        """Ask the acting controller for something; the node that was asked, if there was one."""
        if self.store.is_put_back:
            return None  # whoever is asked looks at the store first
        for node in self.nodes.values():
            if node.up and not node.paused and node.controller is not None and node.controller.active:
                self._ask(node, request, fresh_id)
                return node
        return None

    def _ask(self, node: Node, request: Request, fresh_id: str) -> None:
        """Every request is answered once, and no later than its time is over."""
        admin_request = self.new_id()
        self.admin_requests[admin_request] = node.process
        if self.settings.coordinates:
            # Coordinators write topic ids down, by their digits.
            fresh_id = fresh_id.encode().hex()[-32:].zfill(32)
        self.on(node, ADMIN_TIMEOUT, partial(self._expire, node, admin_request))
        self.control(node, ctl.AdminRequest(request_id=admin_request, request=request, fresh_id=fresh_id))

    def _expire(self, node: Node, admin_request: int) -> None:
        if admin_request in self.admin_requests:
            self.control(node, ctl.AdminRequestExpired(request_id=admin_request))
            require(
                admin_request not in self.admin_requests, "L5", "request {} is not answered", admin_request
            )

    def _balance(self) -> None:
        for node in self.nodes.values():
            if node.controller is not None:
                self.on(node, 0.0, partial(self.control, node, ctl.RebalanceDue()))
        self.later(self.settings.rebalance, self._balance)

    # Processes

    def start(self, node: Node) -> None:
        """A new process: it looks through its disks, then registers."""
        if self.store.is_put_back and not node.is_ahead:
            return  # it could not know, so nobody starts it
        node.up, node.paused = True, False
        node.process += 1
        self.versions.process_begins(node)
        node.held.clear()
        # What its start finds to be damaged it does not use, nor change.
        node.offline = node.refused = node.damaged = frozenset(
            p for p, host in node.hosts.items() if host.disk.is_found_rotten
        )
        for host in node.hosts.values():
            was, flushed = list(host.disk.flat), host.disk.flushed
            host.disk.recover()
            if host.facts.flushes:
                host.disk.flush()
            self.oracle.recovered(host, was=was, flushed=flushed)
            self.oracle.disk_changed(host)
        self.note(f"node {node.id} starts")
        self.on(node, BEGINS, partial(self.members.begin, node))

    def enter(self, node: Node, incarnation: int) -> None:
        """A process is registered: it serves from now on."""
        node.incarnation = incarnation
        node.seen, node.checkpoint_since, node.shown = -1, None, ClusterView()
        node.stalls = StallWatch(STALL_MAX)
        node.clocks, node.heard = WallClocks(node.wall_ahead, CLOCKS_APART), {}
        internal = internal_topics(self.settings.topics) if self.settings.coordinates else STANDARD
        node.controller = ctl.Controller(node.id, incarnation, internal=internal, process=node.process_name)
        settings = BrokerSettings(
            replica=ReplicaSettings(replica_lag_time_max=LAG_MAX, isr_retry_backoff=0.5),
            ticks_per_lag_time=round(LAG_MAX),
            # Sessions are few, and any of them gives way: followers lose theirs now and then.
            max_fetch_sessions=len(self.nodes) - 1,
            fetch_session_idle=0.0,
            replica_fetch_backoff=FETCH_BACKOFF,
            replica_fetch_wait_max=FETCH_WAIT,
            replica_fetch_max_bytes=LARGEST * BATCH_SIZE,
            replica_fetch_response_max_bytes=100 * BATCH_SIZE,
            replica_socket_timeout=FETCH_TIMEOUT,
            unclean_recovery_timeout=RECOVERY_TIMEOUT,
            groups=GROUPS,
            transactions=coordinator_settings(self.settings),
            leader_silence_timeout=self.settings.silence,
            # With transactions the nodes differ: one learns of several leaderships in one turn.
            told_at_a_time=100 if self.settings.transactions and node.id % 2 == 0 else 2,
            # Of some nodes every fetch is told in portions and confirmed at once; those of the others are parked.
            questions_at_a_time=2 if node.id % 2 else 1000,
            results_at_a_time=1 if node.id % 2 else 500,
        )
        node.settling, node.armed = False, NEVER
        node.broker = WatchedBroker(
            WatchedContext(self, node, settings), b"%d %d" % (node.id, node.incarnation)
        )
        node.broker.context.registered = node.registered
        node.broker.context.timers.on_sooner = partial(self.arm, node)
        self.arm(node)
        self.fetches.process_began(node)
        self.network.process_began(node)
        for host in node.hosts.values():
            host.forget(self.new_id())
            partition = host.partition
            refused = ev.LogFailed(reason="the log cannot be opened")
            found = refused if partition in node.refused else host.disk.opened()
            self.tell(node, LogFound(partition, host.facts.topic_id, found, partition in node.damaged))
        self._every_second(node)

    def _every_second(self, node: Node) -> None:
        for host in list(node.hosts.values()):
            if host.replica is not None and self.chance(0.2) and host.busy_since is None:
                host.disk.flush()
        if node.stalled_until <= self.now:
            node.checkpoint_since = None
        elif node.checkpoint_since is None:
            node.checkpoint_since = self.now
        if node.stalls.look(node.signs_of_life, 1.0):
            self.give_up_device(node)
            return
        self._hear_clocks(node)
        if self.reaches_store(node):
            self.members.renew(node)
            self.read_store(node)
        self.on(node, 1.0, partial(self._every_second, node))

    def _hear_clocks(self, node: Node) -> None:
        """Each node hears of the wall clocks of those that reach it."""
        for other in self.nodes.values():
            runs = other is not node and other.broker is not None and not other.paused
            if runs and (other.id, node.id) not in self.cuts:
                node.heard[other.id] = other.wall_ahead
                node.clocks.heard(other.id, other.wall_ahead)
        self.believes_clock(node)

    def give_up_device(self, node: Node) -> None:
        """Its only log directory does not get done with its work: the process stops, and comes when it does."""
        self.note(f"node {node.id} stops: its disk hangs")
        self.kill(node)
        if self.reaches_store(node):
            self.members.end_session(node)

        process = node.process

        def start_again() -> None:
            if node.up or node.process != process or node is self.away:
                return
            if node.stalled_until > self.now:
                self.later(node.stalled_until - self.now + 0.3, start_again)
            else:
                self.start(node)

        start_again()

    def was_live(self, node: int) -> bool:
        """Whether the store shows a node as alive, or did so until a moment ago: controllers see it later."""
        return node in self.store.live or self.left_unseen(node)

    def left_unseen(self, node: int) -> bool:
        """Whether a session of a node has ended so lately that controllers may not have seen it."""
        return self.now - self.nodes[node].left < UNSEEN

    def stop_store(self, seconds: float) -> None:
        """Nobody reaches the store for so long; sessions that ran out meanwhile end when it is back."""
        self.store.reachable = False

        def back() -> None:
            self.store.reachable = True
            for node in self.nodes.values():
                node.found_store_at = self.now

        self.later(seconds, back)

    def refuses(self, node: Node, error: MembershipError) -> None:
        """A process ends because of what it has found in the store. S23: it gives way to another one alone."""
        self.note(f"node {node.id} stops: {type(error).__name__}: {error}")
        if isinstance(error, NodeIdTakenError):
            known = self.store.processes.get(node.id)
            gives_way = known is not None and known.process != node.process_name
            require(gives_way, "S23", "node {} gives way to its own entry {}: {}", node.id, known, error)
        self.kill(node)
        if self.calm and isinstance(error, NodeIdTakenError):
            # What the process before it had asked of the store was written late. Its operator starts it again.
            self.restart(node)

    def restart(self, node: Node) -> None:
        """Its operator starts it again, in a moment."""
        self.kill(node)
        process = node.process

        def start_again() -> None:
            if not node.up and node.process == process and node is not self.away:
                self.start(node)

        self.later(1.0, start_again)

    def kill(self, node: Node) -> None:
        """The process is gone; what it wrote stays."""
        node.up = node.departing = False
        node.controller = node.broker = None
        self.network.process_ended(node)
        for host in node.hosts.values():
            host.forget(self.new_id())

    def pause(self, node: Node, seconds: float) -> bool:
        """Its process stands still for so long; whether it was running."""
        if not node.up or node.paused:
            return False
        node.paused = True
        process = node.process

        def resume() -> None:
            if node.up and node.paused and node.process == process:
                self.resume(node)

        self.later(seconds, resume)
        return True

    def resume(self, node: Node) -> None:
        node.paused, node.resumed_at = False, self.now
        held, node.held = node.held, []
        process = node.process
        for action in held:
            if node.up and node.process == process:  # one of them may be its end, and another has begun
                action()

    # For Hosting

    def give_up_log(self, node: Node, partition: PartitionId) -> None:
        self.oracle.given_up(node.hosts[partition])
        self.members.take_offline(node, [partition])

    def store_step_back(self, node: Node, partition: PartitionId) -> Outcome | None:
        transaction = step_back(self.store.seen(rec.partition_key(partition)), node.id, partition)
        return self.commit(transaction, node.session, f"registration {node.id}") if transaction else None

    def read_keys(self, keys: tuple[str, ...]) -> Mapping[str, Seen]:
        """The records under these keys in the store now."""
        return self.store.seen(*keys)

    def write_isrs(self, effect: WriteIsrs, session: int) -> Outcome:
        """ISR changes reach the store."""
        joining = {rec.partition_key(each.record.id): each.joining for each in effect.proposals}
        return self.commit(
            effect.transaction, session, f"leader {effect.proposals[0].record.leader}", joining
        )
