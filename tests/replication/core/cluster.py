"""A cluster of the pure machines under a seeded storm: messages late, lost, doubled and out of order, nodes killed,
paused, cut off and started again, a store that conflicts, stalls and does not know; virtual time throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs

from insync.replication.core import controller as ctl
from insync.replication.core import effects as fx
from insync.replication.core import events as ev
from insync.replication.core import records as rec
from insync.replication.core import transitions
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import CreateTopicRequest
from insync.replication.core.replica import Replica, ReplicaSettings
from insync.replication.core.types import CONSUMER, BatchMeta, PartitionId
from insync.replication.core.view import ClusterView

from .model import Snapshot, Store, Stored
from .oracle import Oracle, require
from .world import Node, Sent, Settings, World

PARTITION = PartitionId("t", 0)
LAG_MAX = 5.0
SESSION = 3.0
FETCH_WAIT = 0.5
FETCH_TIMEOUT = 1.5
STORM = 40.0
CALM = 40.0


class Cluster(World):
    """Nodes that host the machines as a real node does; `oracle` looks on after every step."""

    def __init__(self, seed: int, settings: Settings | None = None) -> None:
        super().__init__(seed, settings)
        self.store = Store()
        self.oracle = Oracle(self)
        self.losses = 0
        self.sent: dict[int, Sent] = {}
        self.wishes: dict[int, int] = {}
        self.topic: rec.TopicRecord | None = None
        self.steps = 0

    # The store

    def put_record(self, record: rec.PartitionRecord) -> int:
        before = self.store.partition.record if self.store.partition is not None else None
        version = self.store.put_partition(record)
        self.oracle.record_stored(before, record)
        self.store_changed()
        return version

    def store_changed(self) -> None:
        snapshot = self.store.snapshot()
        for node in self.nodes.values():
            if node.up and not node.store_cut and (self.calm or not self.chance(self.settings.unseen)):
                self.on(node, self.delay(), partial(self._look, node, snapshot))

    def read_store(self, node: Node) -> None:
        def arrive() -> None:
            if node.store_cut:
                self.on(node, 0.5, lambda: self.read_store(node))
            else:
                self.on(node, self.delay(), partial(self._look, node, self.store.snapshot()))

        self.later(self.random.uniform(0.01, 0.1), arrive)

    def _look(self, node: Node, snapshot: Snapshot) -> None:
        if node.replica is None or node.controller is None or snapshot.revision < node.registered:
            return
        if snapshot.revision >= node.seen:
            node.seen = snapshot.revision
            self.step(node, ev.NodesChanged(live=snapshot.live))
        if snapshot.partition is not None:
            self.step(node, ev.RecordChanged(versioned=snapshot.partition))
        self.control(node, ctl.ViewChanged(view=self._view(snapshot)))

    def _view(self, snapshot: Snapshot) -> ClusterView:
        controller = None
        if snapshot.controller is not None:
            node, incarnation, epoch = snapshot.controller
            controller = rec.ControllerRecord(node_id=node, incarnation=incarnation, controller_epoch=epoch)
        versioned = snapshot.partition
        return ClusterView(
            revision=snapshot.revision,
            nodes={
                node: rec.NodeRecord(node_id=node, incarnation=incarnation, endpoints=())
                for node, incarnation in snapshot.live.items()
            },
            topics={self.topic.name: self.topic} if self.topic and versioned else {},
            partitions={PARTITION: versioned} if versioned else {},
            controller=controller,
            controller_epoch=snapshot.controller_epoch,
            controller_epoch_version=snapshot.controller_epoch_version,
        )

    def control(self, node: Node, event: ctl.ControllerEvent) -> None:
        assert node.controller is not None
        for effect in node.controller.step(event):
            match effect:
                case ctl.Commit():
                    self.transact(node, partial(self._commit, node, effect), partial(self._committed, node))
                case ctl.ReadView():
                    self.read_store(node)
                case ctl.ReplyCreateTopic():
                    require(self.wishes.pop(effect.request_id, None) == node.process, "L5", effect)

    def _commit(self, node: Node, commit: ctl.Commit) -> ctl.CommitDone:
        store = self.store
        versions = {
            rec.CONTROLLER_EPOCH_KEY: store.controller_epoch_version,
            rec.CONTROLLER_KEY: 0 if store.controller is None else 1,
            rec.partition_key(PARTITION): 0 if store.partition is None else store.partition.version,
            rec.topic_key("t"): 0 if store.partition is None else 1,
        }
        for key, version in commit.checks.items():
            if versions[key] != version:
                return ctl.CommitDone(outcome="conflict", key=key)
        if any(put.ephemeral for put in commit.puts) and store.live.get(node.id) != node.incarnation:
            return ctl.CommitDone(outcome="conflict", key=rec.CONTROLLER_KEY)
        for put in commit.puts:
            match put.record:
                case rec.PartitionRecord():
                    self.put_record(put.record)
                case rec.TopicRecord():
                    self.topic = put.record
                case rec.ControllerRecord() as held:
                    store.controller = (held.node_id, held.incarnation, held.controller_epoch)
                case rec.EpochRecord() as epoch:
                    store.controller_epoch = epoch.controller_epoch
                    store.controller_epoch_version += 1
        store.revision += 1
        self.store_changed()
        return ctl.CommitDone(outcome="committed", revision=store.revision)

    def _committed(self, node: Node, result: object) -> None:
        done = result if isinstance(result, ctl.CommitDone) else ctl.CommitDone(outcome="unknown")
        self.control(node, done)

    def wish(self) -> None:
        """Ask the controller for the topic, until it is there."""
        if self.store.partition is not None:
            return
        settings = self.settings
        request = CreateTopicRequest(
            name="t",
            partitions=1,
            replication_factor=settings.nodes,
            config={"min_insync_replicas": settings.min_isr},
        )
        ready = [node for node in self.nodes.values() if node.up and node.controller is not None]
        ready.sort(key=lambda node: not (node.controller and node.controller.active))
        if len(self.store.live) == settings.nodes and ready:
            wish = self.new_id()
            self.wishes[wish] = ready[0].process
            self.control(ready[0], ctl.CreateTopic(request_id=wish, request=request, topic_id="x"))
        self.later(2.0, self.wish)

    # Processes

    def start(self, node: Node) -> None:
        node.up, node.paused = True, False
        node.process += 1
        node.held.clear()
        self.on(node, 0.1, partial(self._register, node))

    def _register(self, node: Node) -> None:
        """Raise the incarnation and give up what may not be kept, in one transaction."""
        process = node.process
        incarnation = self.store.incarnations.get(node.id, 0)
        seen = self.store.partition
        change = None
        if seen is not None:
            rule = transitions.forget if node.lost_data else transitions.restarted
            change = rule(seen.record, node.id)

        def write() -> bool:
            checked = change is not None or self.settings.registration_checks_all
            if self.store.incarnations.get(node.id, 0) != incarnation:
                return False
            if checked and seen != self.store.partition:
                return False
            self.store.register(node.id, incarnation + 1)
            node.registered = self.store.revision
            if node.up and node.process == process:
                node.lost_data = False
            if self.store.controller is not None and self.store.controller[0] == node.id:
                self.store.controller = None
            if change is not None:
                self.put_record(change)
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
        node.seen, node.renewed = -1, self.now
        node.jobs.clear()
        node.parked.clear()
        node.worker, node.busy = self.new_id(), False
        settings = ReplicaSettings(replica_lag_time_max=LAG_MAX, isr_retry_backoff=0.5)
        node.replica = Replica(PARTITION, node.id, incarnation, settings)
        node.controller = ctl.Controller(node.id, incarnation)
        self.step(node, node.disk.opened())
        self._every_second(node)

    def _every_second(self, node: Node) -> None:
        if node.replica is not None:
            self.step(node, ev.Tick())
            if not node.store_cut:
                self._renew(node)
                self.read_store(node)
        self.on(node, 1.0, partial(self._every_second, node))

    def _renew(self, node: Node) -> None:
        """Keep the session; after a lost one register anew, as the same process."""
        assert node.controller is not None
        if self.store.live.get(node.id) != node.incarnation:
            self.control(node, ctl.SessionLost())
            if self.store.incarnations[node.id] == node.incarnation:
                self.store.register(node.id, node.incarnation)
                self.store_changed()
        node.renewed = self.now

    def watch_sessions(self) -> None:
        for node in self.nodes.values():
            if node.id in self.store.live and self.now - node.renewed > SESSION:
                self.store.expire(node.id)
                self.store_changed()
        self.later(0.5, self.watch_sessions)

    def kill(self, node: Node, *, lose: bool = False) -> None:
        node.up = False
        node.replica = node.controller = None
        node.jobs.clear()
        node.worker = self.new_id()
        if lose:
            self.losses += 1
            node.lost_data = True
            node.disk.truncate(self.random.randint(0, node.disk.end))
            self.oracle.disk_changed(node)
        node.disk.high_watermark = min(node.disk.high_watermark, node.disk.end)

    def pause(self, node: Node, seconds: float) -> None:
        node.paused = True
        process = node.process

        def resume() -> None:
            if node.up and node.process == process:
                self.resume(node)

        self.later(seconds, resume)

    def resume(self, node: Node) -> None:
        node.paused = False
        held, node.held = node.held, []
        for action in held:
            action()

    # A replica and its log

    def step(self, node: Node, event: ev.Event) -> None:
        if node.replica is None:
            return
        self.steps += 1
        led = node.replica.leader is not None
        effects = node.replica.step(event, self.now)
        self.oracle.after_step(node, led=led)
        if self.chance(0.1):
            node.disk.high_watermark = node.replica.log.high_watermark
        for effect in effects:
            self._perform(node, effect)

    def _perform(self, node: Node, effect: fx.Effect) -> None:
        match effect:
            case fx.Append() | fx.AssignEpoch() | fx.Truncate():
                node.jobs.append(effect)
                self._work(node)
            case fx.ReplyProduce():
                self._answer_produce(effect)
            case fx.ReplyFetch():
                self._answer_fetch(node, effect)
            case fx.Wake():
                self.on(node, 0.0, partial(self._ask_again, node))
            case fx.FetchNext():
                self.on(node, 0.3 if effect.delayed else 0.0, partial(self._fetch, node, effect))
                node.question = self.new_id()
            case fx.StopFetch():
                node.question = self.new_id()
            case fx.ProposeIsr():
                self.transact(node, partial(self._store_isr, effect), partial(self._isr_told, node, effect))
            case fx.ReadRecord():
                self.read_store(node)

    def _work(self, node: Node) -> None:
        if node.busy or not node.jobs:
            return
        node.busy = True
        worker = node.worker
        slow = not self.calm and self.chance(self.settings.slow_disk)

        def do() -> None:
            if node.worker != worker:
                return
            job = node.jobs.popleft()
            if not self.calm and self.chance(self.settings.log_failure):
                self._fail_log(node)
                return
            report = self._do(node, job)
            self.oracle.disk_changed(node)
            self.on(node, self.random.uniform(0.0, 0.02), partial(told, report))

        def told(report: ev.Event) -> None:
            if node.worker == worker:
                node.busy = False
                self.step(node, report)
                self._work(node)

        self.on(node, self.random.uniform(0.5, 3.0) if slow else 0.005, do)

    def _do(self, node: Node, job: fx.Append | fx.AssignEpoch | fx.Truncate) -> ev.Event:
        match job:
            case fx.Append(leader_epoch=None):
                assert isinstance(job.handle, tuple)
                node.disk.append(job.handle)
                return ev.Appended(log_end_offset=node.disk.end)
            case fx.Append():
                payload = str(job.handle)
                require(job.leader_epoch == job.batches[0].leader_epoch, "S4", job)
                node.disk.append(Stored(batch, payload) for batch in job.batches)
                return ev.Appended(log_end_offset=node.disk.end)
            case fx.AssignEpoch():
                node.disk.assign(job.epoch, job.start_offset)
                return ev.EpochAssigned()
            case fx.Truncate():
                node.disk.truncate(0 if job.restart else job.offset)
                node.disk.high_watermark = min(node.disk.high_watermark, node.disk.end)
                return node.disk.truncated()

    def _fail_log(self, node: Node) -> None:
        node.jobs.clear()
        node.worker, node.busy = self.new_id(), False
        self.step(node, ev.LogFailed(reason="as the storm has it"))
        self.on(node, self.random.uniform(0.1, 3.0), lambda: self.step(node, node.disk.opened()))

    # Fetch

    def _fetch(self, node: Node, effect: fx.FetchNext) -> None:
        question = node.question
        target = self.nodes[effect.leader]
        event = ev.Fetch(
            request_id=0,
            replica_id=node.id,
            incarnation=node.incarnation,
            leader_epoch=effect.leader_epoch,
            fetch_offset=effect.fetch_offset,
            last_fetched_epoch=effect.last_fetched_epoch,
            high_watermark=effect.high_watermark,
        )

        def reply(answer: ev.Fetched) -> None:
            self.send(target.id, node, partial(self.step, node, answer))

        def late() -> None:
            if node.question == question:
                self.step(
                    node,
                    ev.FetchFailed(fetch_offset=effect.fetch_offset, leader_epoch=effect.leader_epoch),
                )

        self.send(node.id, target, partial(self._serve, target, event, reply))
        self.on(node, FETCH_TIMEOUT, late)

    def _serve(self, node: Node, event: ev.Fetch, reply: Callable[[ev.Fetched], None]) -> None:
        if node.replica is None:
            return
        event = attrs.evolve(event, request_id=self.new_id())
        node.parked[event.request_id] = (event, reply)
        self.on(node, FETCH_WAIT, partial(self._give_up_waiting, node, event))
        self.step(node, event)

    def _give_up_waiting(self, node: Node, event: ev.Fetch) -> None:
        if event.request_id in node.parked:
            _, reply = node.parked[event.request_id]
            node.parked[-event.request_id] = (event, reply)
            self.step(node, event)
            node.parked.pop(-event.request_id, None)

    def _ask_again(self, node: Node) -> None:
        for event, _ in list(node.parked.values()):
            if event.request_id in node.parked:
                self.step(node, event)

    def _answer_fetch(self, node: Node, effect: fx.ReplyFetch) -> None:
        waited_enough = -effect.request_id in node.parked
        if not effect.news and not waited_enough:
            return
        event, reply = node.parked.pop(effect.request_id)
        batches: tuple[Stored, ...] = ()
        if effect.error == ErrorCode.NONE and effect.diverging is None:
            batches = node.disk.read(event.fetch_offset, effect.limit_offset, self.random.randint(1, 4))
        if event.replica_id == CONSUMER:
            given = [piece for batch in batches for piece in self._pieces(batch, event.fetch_offset)]
            self.oracle.read(event.fetch_offset, tuple(given))
            return
        reply(
            ev.Fetched(
                fetch_offset=event.fetch_offset,
                leader_epoch=event.leader_epoch,
                last_fetched_epoch=event.last_fetched_epoch,
                error=effect.error,
                high_watermark=effect.high_watermark,
                log_start_offset=effect.log_start_offset,
                log_end_offset=effect.log_end_offset,
                diverging=effect.diverging,
                batches=tuple(batch.meta for batch in batches),
                handle=batches,
            )
        )

    @staticmethod
    def _pieces(batch: Stored, start: int) -> list[tuple[int, str]]:
        wanted = batch.meta.next_offset - max(batch.meta.base_offset, start)
        return [(batch.meta.leader_epoch, batch.payload)] * wanted

    def consume(self) -> None:
        node = self.random.choice(list(self.nodes.values()))
        if node.replica is not None and node.up and not node.paused:
            event = ev.Fetch(
                request_id=0,
                replica_id=CONSUMER,
                incarnation=-1,
                leader_epoch=-1,
                fetch_offset=self.random.randint(0, node.replica.log.log_end_offset),
                last_fetched_epoch=-1,
            )
            self._serve(node, event, lambda answer: None)
        self.later(0.5, self.consume)

    # ISR

    def _store_isr(self, proposal: fx.ProposeIsr) -> ev.Event:
        known = self.store.partition
        same = known is not None and known.version == proposal.version
        members = all(self.store.live.get(node) == incarnation for node, incarnation in proposal.joining)
        if same and members:
            version = self.put_record(proposal.record)
            return ev.IsrStored(proposal_id=proposal.proposal_id, version=version)
        if not members and (same or self.chance(0.5)):
            return ev.IsrRefused(proposal_id=proposal.proposal_id)
        return ev.IsrUnclear(proposal_id=proposal.proposal_id)

    def _isr_told(self, node: Node, proposal: fx.ProposeIsr, result: object) -> None:
        event = result if result is not None else ev.IsrUnclear(proposal_id=proposal.proposal_id)
        self.step(node, event)  # type: ignore[arg-type]

    # Produce

    def produce(self, payload: str, acks: int, batch: BatchMeta, *, again: bool) -> Sent | None:
        """Send to a node that holds itself for the leader, or to any."""
        nodes = [node for node in self.nodes.values() if node.up and node.replica is not None]
        leaders = [node for node in nodes if node.replica and node.replica.leader is not None]
        if not nodes:
            return None
        node = self.random.choice(leaders or nodes)
        request = self.new_id()
        sent = Sent(payload, acks, batch, again, node.id, node.process)

        def arrive() -> None:
            if request not in self.sent and node.replica is not None:
                self.sent[request] = sent
                self.step(
                    node,
                    ev.Produce(
                        request_id=request,
                        acks=acks,
                        batch=batch,
                        deadline=self.now + 3.0,
                        handle=payload,
                    ),
                )

        self.send(0, node, arrive)
        return sent

    def _answer_produce(self, effect: fx.ReplyProduce) -> None:
        sent = self.sent[effect.request_id]
        require(sent.reply is None, "L5", f"{sent} answered twice")
        sent.reply = effect
        replica, versioned = self.nodes[sent.node].replica, self.store.partition
        if replica is not None and versioned is not None:
            held = (sent.node, replica.leader_epoch)
            sent.by_the_leader = held == (versioned.record.leader, versioned.record.leader_epoch)
        self.oracle.answered(sent, effect)
