"""A whole cluster on virtual time: the core's machines, hosted as a node hosts them, over model disks and store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from ..core.broker.context import BrokerSettings
from ..core.broker.timers import NEVER
from ..core.control import controller as ctl
from ..core.control import records as rec
from ..core.control import transitions
from ..core.control.admin_requests import BROKEN, Request
from ..core.partition import effects as fx
from ..core.partition import events as ev
from ..core.partition.replica import ReplicaSettings
from ..core.types import PartitionId
from .errors import require
from .fetches import Fetches
from .hosting import Hosting
from .node import Host, Node
from .oracle import Oracle
from .questions import LogQuestions
from .requests import Requests
from .settings import LAG_MAX, SESSION, STALL_MAX, Settings
from .store import Reading, Store
from .topics import Topics
from .traps import ELECTION, Traps
from .watched import WatchedBroker, WatchedContext
from .weather import Mishap

DEPARTURE = 6.0
"""The simulated `controlled_shutdown_timeout`."""
ADMIN_TIMEOUT = 4.0
"""A host's patience with its controller; shorter than a real one's, so that it runs out now and then."""
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
        self.requests = Requests(self)
        self.fetches = Fetches(self)
        self.topics = Topics(self)
        self.admin_requests: dict[int, int] = {}
        self.partition_made: Callable[[PartitionId], None] = lambda partition: None
        """Told of each partition that comes to be, for it to have clients."""
        self.traps = Traps()

    def hosts_of(self, partition: PartitionId) -> list[Host]:
        return [node.hosts[partition] for node in self.nodes.values() if partition in node.hosts]

    def begin(self) -> None:
        """Start every node, and ask for the topics until they are there."""
        for node in self.nodes.values():
            self.start(node)
        self.later(0.5, self._watch_sessions)
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

    def _drop(self, key: str, writer: str) -> None:
        """A controller deletes what stands under a key."""
        if self.store.quotas.pop(key, None) is not None:
            return
        named = self.store.named(key)
        if isinstance(named, PartitionId):
            self.store.drop_partition(named)
            self.oracle.deleted(named)
            self.note(f"{writer}: {named} is deleted")
        elif named is not None:
            self.store.drop_topic(named)

    def _new_host(self, node: Node, record: rec.PartitionRecord) -> None:
        """A node has heard that it has a replica: an empty log."""
        facts = self.oracle.known[record.id, record.topic_id]
        node.hosts[record.id] = host = Host(node, record.id, f"{node.id}/{facts.name}", facts)
        self._open(host)

    def retire(self, host: Host) -> None:
        """The node deletes a log that it is not to have any more, and may be given the partition anew."""
        node = host.node
        self.note(f"{host.name} is deleted")
        self.fetches.stop(host)
        host.forget(self.new_id())
        assert node.broker is not None
        del node.hosts[host.partition], node.broker.context.replicas[host.partition]
        self.oracle.retired(host)
        if host.partition in node.offline:
            node.offline -= {host.partition}
            self._tell_offline(node, node.process)
        self.read_store(node)

    def store_changed(self) -> None:
        reading = self.store.reading()
        for node in self.nodes.values():
            if not node.up or not self._reaches_store(node):
                continue
            mishap = self.weather.watch()
            delay = self.delay()
            if mishap is None:
                self.on(node, delay, partial(self._look, node, reading))
            elif mishap[0] == "late":
                self.on(node, mishap[1], partial(self._look, node, reading))

    def _reaches_store(self, node: Node) -> bool:
        return not node.store_cuts and self.store.reachable

    def read_store(self, node: Node) -> None:
        def arrive() -> None:
            if self._reaches_store(node):
                self.on(node, self.delay(), partial(self._look, node, self.store.reading()))
            else:
                self.on(node, 0.5, lambda: self.read_store(node))

        self.later(0.01 + 0.09 * self.random.random(), arrive)

    def _look(self, node: Node, reading: Reading) -> None:
        view = reading.view
        if node.controller is None or view.revision < node.registered:
            return
        current = view.revision >= node.seen
        if current:
            node.seen = view.revision
            self._follow_topics(node, reading)
        for partition, host in list(node.hosts.items()):
            replica, versioned = host.replica, view.partitions.get(partition)
            if replica is None or versioned is None or versioned.record.topic_id != host.facts.topic_id:
                continue
            live = reading.live_for(partition)
            if current and replica.live != live:
                self.step(host, ev.NodesChanged(live=live))
            if versioned.version != host.told_version or replica.awaits_record:
                host.told_version = versioned.version
                self.step(host, ev.RecordChanged(versioned=versioned))
        self.control(node, ctl.ViewChanged(view=view))

    def _follow_topics(self, node: Node, reading: Reading) -> None:
        """Give up replicas of topics that are no more, and begin those that the node is given."""
        for partition, host in list(node.hosts.items()):
            topic = reading.view.topics.get(partition.topic)
            if topic is None or topic.topic_id != host.facts.topic_id:
                self.step(host, ev.TopicDeleted())
        for partition, known in reading.view.partitions.items():
            if node.id in known.record.replicas and partition not in node.hosts:
                self._new_host(node, known.record)

    def transact(
        self, node: Node, write: Callable[[], object], done: Callable[[object], None], slow: float = 0.0
    ) -> None:
        """Do `write` in the store; `done` gets its result, so much later, or None if nobody knows."""
        delay = 0.01 + 0.09 * self.random.random()
        mishap = self.weather.write()
        if not self._reaches_store(node):
            self.on(node, 0.6, partial(done, None))
        elif mishap is None or mishap[0] in ("late", "slow"):
            late = mishap[1] if mishap and mishap[0] == "late" else 0.0
            slow += mishap[1] if mishap and mishap[0] == "slow" else 0.0
            process = node.process

            def arrive() -> None:
                result = write() if self.store.reachable else None
                if node.process == process:  # else whoever asked is gone
                    self.on(node, self.delay() + slow, lambda: done(result))

            self.later(delay + late, arrive)
        else:
            if mishap[0] == "landed":
                self.later(mishap[1], lambda: write() if self.store.reachable else None)  # type: ignore[arg-type]
            self.on(node, 0.6, partial(done, None))

    # The controller

    def control(self, node: Node, event: ctl.ControllerEvent) -> None:
        controller = node.controller
        assert controller is not None
        self.events += 1
        effects = controller.step(event)
        self.trace.step(f"{self.now:.6f} {node.id} {type(event).__name__} {len(effects)}")
        for effect in effects:
            match effect:
                case ctl.Commit():
                    write = partial(self._commit, node, node.incarnation, effect)
                    self.transact(node, write, partial(self._committed, node))
                case ctl.AskReplicas():
                    LogQuestions(self, node, effect).begin()
                case ctl.ReadView():
                    self.read_store(node)
                case ctl.Reply():
                    require(self.admin_requests.pop(effect.request_id, None) == node.process, "L5", effect)
                    require(not effect.response.message.startswith(BROKEN), "L5", effect)

    def _commit(self, node: Node, incarnation: int, commit: ctl.Commit) -> ctl.CommitDone:
        store = self.store
        for key, version in commit.checks.items():
            if store.version(key) != version:
                return ctl.CommitDone(outcome="conflict", key=key)
        if any(put.ephemeral for put in commit.puts) and store.live.get(node.id) != incarnation:
            return ctl.CommitDone(outcome="conflict", key=rec.CONTROLLER_KEY)
        writer = node.writer(incarnation)
        for put in commit.puts:
            match put.record:
                case None:
                    self._drop(put.key, writer)
                case rec.QuotaRecord():
                    store.quotas[put.key] = put.record, put.version + 1
                case rec.PartitionRecord():
                    self.put_record(put.record, writer)
                case rec.TopicRecord():
                    store.put_topic(put.record)
                case rec.ControllerRecord():
                    store.controller = put.record
                case rec.EpochRecord() as epoch:
                    elected = any(isinstance(other.record, rec.ControllerRecord) for other in commit.puts)
                    newer = epoch.controller_epoch - store.controller_epoch
                    require(newer == 1 if elected else newer == 0, "S5", epoch)
                    store.controller_epoch = epoch.controller_epoch
                    store.controller_epoch_version += 1
        store.revision += 1
        self.store_changed()
        return ctl.CommitDone(outcome="committed", revision=store.revision)

    def _committed(self, node: Node, result: object) -> None:
        if node.controller is not None:
            done = result if isinstance(result, ctl.CommitDone) else ctl.CommitDone(outcome="unknown")
            self.control(node, done)

    def admin_request(self, request: Request, fresh_id: str = "") -> Node | None:
        """Ask the acting controller for something; the node that was asked, if there was one."""
        for node in self.nodes.values():
            if node.up and not node.paused and node.controller is not None and node.controller.active:
                self._ask(node, request, fresh_id)
                return node
        return None

    def _ask(self, node: Node, request: Request, fresh_id: str) -> None:
        """Every request is answered once, and no later than its time is over."""
        admin_request = self.new_id()
        self.admin_requests[admin_request] = node.process
        self.on(node, ADMIN_TIMEOUT, partial(self._expire, node, admin_request))
        self.control(node, ctl.AdminRequest(request_id=admin_request, request=request, fresh_id=fresh_id))

    def _expire(self, node: Node, admin_request: int) -> None:
        if admin_request in self.admin_requests:
            self.control(node, ctl.AdminRequestExpired(request_id=admin_request))
            require(
                admin_request not in self.admin_requests, "L5", f"request {admin_request} is not answered"
            )

    def _balance(self) -> None:
        for node in self.nodes.values():
            if node.controller is not None:
                self.on(node, 0.0, partial(self.control, node, ctl.RebalanceDue()))
        self.later(self.settings.rebalance, self._balance)

    # Processes

    def start(self, node: Node) -> None:
        """A new process: it looks through its disks, then registers."""
        node.up, node.paused = True, False
        node.process += 1
        node.offline = frozenset()
        node.held.clear()
        for host in node.hosts.values():
            was, flushed = list(host.disk.flat), host.disk.flushed
            host.disk.recover()
            self.oracle.recovered(host, was=was, flushed=flushed)
            self.oracle.disk_changed(host)
        self.note(f"node {node.id} starts")
        self.on(node, 0.1, partial(self._register, node))

    def _register(self, node: Node) -> None:
        """Raise the incarnation and give up what may not be kept, in one transaction."""
        process = node.process
        incarnation = self.store.incarnations.get(node.id, 0)
        seen = {p: v for p, v in self.store.partitions.items() if node.id in v.record.replicas}
        rule = transitions.forget if node.lost_data else transitions.restarted
        changes = [rule(versioned.record, node.id) for versioned in seen.values()]

        def write() -> bool:
            if self.store.incarnations.get(node.id, 0) != incarnation:
                return False
            if any(self.store.partitions.get(p) != versioned for p, versioned in seen.items()):
                return False
            self.store.register(node.id, incarnation + 1)
            node.registered = self.store.revision
            if node.up and node.process == process:
                node.lost_data = False
            for change in changes:
                if change is not None:
                    self.put_record(change, f"registration {node.id}")
            for partition in seen:
                self.oracle.quorum(partition)
            self.store_changed()
            return True

        def done(result: object) -> None:
            if result is True:
                self._enter(node, incarnation + 1)
            else:
                self._register(node)

        self.transact(node, write, done)

    def _enter(self, node: Node, incarnation: int) -> None:
        node.incarnation = incarnation
        node.seen, node.renewed, node.checkpoint_since = -1, self.now, None
        node.controller = ctl.Controller(node.id, incarnation)
        settings = BrokerSettings(
            replica=ReplicaSettings(replica_lag_time_max=LAG_MAX, isr_retry_backoff=0.5),
            # Sessions are few, and any of them gives way: followers lose theirs now and then.
            max_fetch_sessions=len(self.nodes) - 1,
            fetch_session_idle=0.0,
        )
        node.settling, node.armed = False, NEVER
        node.broker = WatchedBroker(
            WatchedContext(self, node, settings), b"%d %d" % (node.id, node.incarnation)
        )
        node.broker.context.timers.on_sooner = partial(self.arm, node)
        self.fetches.process_began(node)
        for host in node.hosts.values():
            self._open(host)
        self._every_second(node)

    def _open(self, host: Host) -> None:
        host.forget(self.new_id())
        assert host.node.broker is not None
        host.replica = host.node.broker.context.new_replica(host.partition)
        self.step(host, host.disk.opened())

    def _every_second(self, node: Node) -> None:
        for host in list(node.hosts.values()):
            if host.replica is not None:
                self.step(host, ev.Tick())
                if self.chance(0.2) and host.busy_since is None:
                    host.disk.flush()
        if node.stalled_until <= self.now:
            node.checkpoint_since = None
        elif node.checkpoint_since is None:
            node.checkpoint_since = self.now
        if self._reaches_store(node):
            self.renew(node)
            self.read_store(node)
        self.on(node, 1.0, partial(self._every_second, node))

    def healthy(self, node: Node) -> bool:
        """Whether a node may keep its session: one whose disk hangs must give way to others."""
        return node.stall(self.now) <= STALL_MAX

    def renew(self, node: Node) -> None:
        """Keep the session; after a lost one register anew, as the same process."""
        if node.controller is None or not self.healthy(node):
            return
        if self.store.live.get(node.id) != node.incarnation:
            self.control(node, ctl.SessionLost())
            if self.store.incarnations[node.id] == node.incarnation:
                self._say(node)
                self.store_changed()
        node.renewed = self.now

    def _watch_sessions(self) -> None:
        if self.store.reachable:
            for node in self.nodes.values():
                if node.id in self.store.live and self.now - node.renewed > SESSION:
                    self.end_session(node)
        self.later(0.5, self._watch_sessions)

    def end_session(self, node: Node) -> None:
        if node.id in self.store.live:
            self.note(f"the session of node {node.id} ends")
            self.store.expire(node.id)
            node.left = self.now
            self.store_changed()

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

        self.later(seconds, back)

    def _say(self, node: Node) -> None:
        """What a process registers of itself, all of it each time."""
        self.store.renew(node.id, node.incarnation, node.offline, leaving=node.departing)

    def depart(self, node: Node, ended: Callable[[], None]) -> None:
        """A process is asked to stop: it hands over what it leads, for so long as it may take, then ends."""
        node.departing = True
        until, incarnation = self.now + DEPARTURE, node.incarnation

        def write() -> bool:
            if self.store.live.get(node.id) != incarnation:
                return False
            self._say(node)
            self.store_changed()
            return True

        def told(result: object) -> None:
            if result is not True and self.now < until:
                self.transact(node, write, told)

        def look() -> None:
            relieved = node.id in self.store.leaving and self.store.reading().view.is_relieved(node.id)
            if (self._reaches_store(node) and relieved) or self.now >= until:
                for host in node.hosts.values():
                    host.disk.flush()
                self.note(f"node {node.id} has stopped")
                self.kill(node)
                if self._reaches_store(node):
                    self.end_session(node)
                ended()
            else:
                self.on(node, 0.1, look)

        self.transact(node, write, told)
        self.on(node, 0.1, look)

    def take_offline(self, node: Node, partitions: Iterable[PartitionId]) -> None:
        """A log directory cannot be used any more; the process says so, and goes on with what is in others."""
        node.offline = node.offline | frozenset(partitions)
        for partition in sorted(node.offline):
            host = node.hosts.get(partition)
            if host is not None:
                host.jobs.clear()
                host.worker, host.busy_since = self.new_id(), None
                self.step(host, ev.LogFailed(reason="the log directory is offline"))
        self._tell_offline(node, node.process)

    def _tell_offline(self, node: Node, process: int) -> None:
        def write() -> bool:
            if self.store.live.get(node.id) != node.incarnation:
                return False
            self._say(node)
            self.store_changed()
            return True

        def told(result: object) -> None:
            if result is not True and node.process == process:
                self.on(node, 0.3, partial(self._tell_offline, node, process))

        self.transact(node, write, told)

    def kill(self, node: Node) -> None:
        """The process is gone; what it wrote stays."""
        node.up = node.departing = False
        node.controller = node.broker = None
        self.fetches.process_ended(node)
        for host in node.hosts.values():
            host.forget(self.new_id())

    def resume(self, node: Node) -> None:
        node.paused = False
        held, node.held = node.held, []
        for action in held:
            if node.up:
                action()

    # For Hosting

    @staticmethod
    def is_same(known: rec.Versioned, proposal: fx.ProposeIsr) -> bool:
        """Whether a record is the one that a proposal was made from: versions of two topics say nothing."""
        return known.version == proposal.version and known.record.topic_id == proposal.record.topic_id

    def store_isr(self, proposal: fx.ProposeIsr) -> ev.Event:
        known = self.store.partitions.get(proposal.record.id)
        same = known is not None and self.is_same(known, proposal)
        staying = self.store.reading().live_for(proposal.record.id)
        members = all(staying.get(node) == incarnation for node, incarnation in proposal.joining)
        if same and members:
            version = self.put_record(proposal.record, f"leader {proposal.record.leader}", proposal.joining)
            self.store_changed()
            return ev.IsrStored(proposal_id=proposal.proposal_id, version=version)
        if not members and (same or self.chance(0.5)):
            return ev.IsrRefused(proposal_id=proposal.proposal_id)
        return ev.IsrUnclear(proposal_id=proposal.proposal_id)
