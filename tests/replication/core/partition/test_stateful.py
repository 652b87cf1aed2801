"""A leader and two followers driven in any order of events, with answers lost, doubled and late.

The model is three lists of (epoch, number): what each log holds by the effects that were carried out. Whatever
hypothesis chooses, what a leader called committed stays, logs agree where they must, and nothing is promised in
vain.
"""

from __future__ import annotations

from collections import deque

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from insync.replication.core.control.records import PartitionRecord, Versioned
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.partition.replica import ReplicaSettings
from insync.replication.core.types import BatchMeta, EpochEntry

from .alone import STOP, Alone

NODES = (1, 2, 3)
LIVE = {node: 10 + node for node in NODES}
nodes = st.sampled_from(NODES)
Record = tuple[int, int]
Job = fx.Append | fx.AssignEpoch | fx.Truncate


class Replicas(RuleBasedStateMachine):
    """The store's record is `self.record`; its leaders are those that a clean election may choose."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.numbers = 0
        self.record = PartitionRecord(
            topic="t", partition=0, topic_id="x", replicas=NODES, isr=NODES, leader=1, min_insync_replicas=2
        )
        self.version = 1
        self.logs: dict[int, list[Record]] = {node: [] for node in NODES}
        self.epochs: dict[int, list[EpochEntry]] = {node: [] for node in NODES}
        self.jobs: dict[int, deque[Job]] = {node: deque() for node in NODES}
        self.questions: dict[int, fx.FetchNext] = {}
        self.answers: list[tuple[int, ev.Fetched]] = []
        self.proposals: list[tuple[int, fx.ProposeIsr]] = []
        self.outcomes: list[tuple[int, ev.Event]] = []
        self.sent: dict[int, int] = {}
        self.committed: list[Record] = []
        self.replicas = {
            node: Alone(node, LIVE[node], ReplicaSettings(replica_lag_time_max=8.0)) for node in NODES
        }

    @initialize()
    def open_all(self) -> None:
        for node in NODES:
            empty = ev.Opened(log_start_offset=0, log_end_offset=0, high_watermark=0, epochs=(), producers=())
            self.step(node, empty)
            self.step(node, ev.NodesChanged(live=LIVE))
            self.show(node)

    def step(self, node: int, event: ev.Event) -> None:
        self.obey(node, self.replicas[node].tell(event, self.now))

    def obey(self, node: int, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case fx.Append() | fx.AssignEpoch() | fx.Truncate():
                    self.jobs[node].append(effect)
                case fx.FetchNext():
                    self.questions[node] = effect
                case _ if effect == STOP:
                    self.questions.pop(node, None)
                    self.answers = [entry for entry in self.answers if entry[0] != node]
                case fx.ProposeIsr():
                    self.proposals.append((node, effect))
                case fx.ReplyProduce():
                    self.promised(effect)

    def promised(self, reply: fx.ReplyProduce) -> None:
        number = self.sent.pop(reply.request_id)
        if reply.error == ErrorCode.NONE:
            held = sum((log[reply.base_offset :] or [(0, -1)])[0][1] == number for log in self.logs.values())
            assert held >= 2, f"{number} was promised and is in {held} logs"

    # The clients and the clock

    @rule(node=nodes)
    def produce(self, node: int) -> None:
        self.numbers += 1
        self.sent[self.numbers] = self.numbers
        batch = BatchMeta(-1, 1, -1, 10)
        event = ev.Produce(
            request_id=self.numbers, acks=-1, batch=batch, deadline=self.now + 5.0, handle=self.numbers
        )
        self.step(node, event)

    @rule(seconds=st.sampled_from((0.5, 3.0, 9.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for node in NODES:
            self.step(node, ev.Tick())

    # The disks

    @rule(node=nodes)
    def work(self, node: int) -> None:
        if not self.jobs[node]:
            return
        log, job = self.logs[node], self.jobs[node].popleft()
        match job:
            case fx.Append(leader_epoch=None):
                assert isinstance(job.handle, tuple)
                assert job.base_offset == len(log)
                for record in job.handle:
                    self.write(node, record)
                self.step(node, ev.Appended(log_end_offset=len(log)))
            case fx.Append():
                assert job.base_offset == len(log)
                assert isinstance(job.handle, int)
                self.write(node, (job.batches[0].leader_epoch, job.handle))
                self.step(node, ev.Appended(log_end_offset=len(log)))
            case fx.AssignEpoch():
                self.assign(node, job.epoch, job.start_offset)
                self.step(node, ev.EpochAssigned())
            case fx.Truncate():
                del log[job.offset :]
                self.epochs[node] = [entry for entry in self.epochs[node] if entry.start_offset < len(log)]
                found = ev.Truncated(
                    log_start_offset=0,
                    log_end_offset=len(log),
                    epochs=tuple(self.epochs[node]),
                    producers=(),
                )
                self.step(node, found)

    def write(self, node: int, record: Record) -> None:
        self.assign(node, record[0], len(self.logs[node]))
        self.logs[node].append(record)

    def assign(self, node: int, epoch: int, start: int) -> None:
        known = self.epochs[node]
        if not any(entry.epoch == epoch for entry in known):
            self.epochs[node] = [*(e for e in known if e.start_offset < start), EpochEntry(epoch, start)]

    # The network

    @rule(node=nodes, limit=st.integers(1, 3), lost=st.booleans())
    def ask(self, node: int, limit: int, lost: bool) -> None:
        """The outstanding question of a follower reaches its leader, which may answer; the answer may be lost."""
        question = self.questions.get(node)
        if question is None:
            return
        fetch = ev.Fetch(
            replica_id=node,
            incarnation=LIVE[node],
            leader_epoch=question.leader_epoch,
            fetch_offset=question.fetch_offset,
            last_fetched_epoch=question.last_fetched_epoch,
            high_watermark=question.high_watermark,
        )
        reply, effects = self.replicas[question.leader].ask(fetch, self.now)
        self.obey(question.leader, effects)
        log, batches, handle = self.logs[question.leader], [], []
        if reply.error == ErrorCode.NONE and reply.diverging is None:
            for offset in range(question.fetch_offset, min(reply.limit_offset, len(log)))[:limit]:
                batches.append(BatchMeta(offset, 1, log[offset][0], 10))
                handle.append(log[offset])
        answer = ev.Fetched(
            fetch_offset=question.fetch_offset,
            leader_epoch=question.leader_epoch,
            last_fetched_epoch=question.last_fetched_epoch,
            error=reply.error,
            high_watermark=reply.high_watermark,
            log_start_offset=reply.log_start_offset,
            log_end_offset=reply.log_end_offset,
            diverging=reply.diverging,
            batches=tuple(batches),
            handle=tuple(handle),
        )
        if not lost:
            self.answers.append((node, answer))

    @rule(node=nodes, times=st.integers(1, 3))
    def replicate(self, node: int, times: int) -> None:
        """What happens most of the time: disks work, a question is asked and answered at once."""
        for _ in range(times):
            for worker in NODES:
                while self.jobs[worker]:
                    self.work(worker)
            known = len(self.answers)
            self.ask(node, 3, False)
            if len(self.answers) > known:
                self.step(*self.answers.pop())

    @rule(data=st.data(), again=st.booleans())
    @precondition(lambda self: self.answers)
    def answer(self, data: st.DataObject, again: bool) -> None:
        """Any answer arrives, in any order; it may arrive once more."""
        index = data.draw(st.integers(0, len(self.answers) - 1))
        node, event = self.answers[index] if again else self.answers.pop(index)
        self.step(node, event)

    # The store

    @rule(data=st.data(), told=st.booleans())
    @precondition(lambda self: self.proposals)
    def store(self, data: st.DataObject, told: bool) -> None:
        """A proposal arrives at the store, in any order; nobody may learn what became of it."""
        node, proposal = self.proposals.pop(data.draw(st.integers(0, len(self.proposals) - 1)))
        event: ev.Event = ev.IsrUnclear(proposal_id=proposal.proposal_id)
        if proposal.version == self.version:
            self.version += 1
            self.record = proposal.record
            if told:
                event = ev.IsrStored(proposal_id=proposal.proposal_id, version=self.version)
        self.outcomes.append((node, event))

    @rule(data=st.data())
    @precondition(lambda self: self.outcomes)
    def learn(self, data: st.DataObject) -> None:
        node, event = self.outcomes.pop(data.draw(st.integers(0, len(self.outcomes) - 1)))
        self.step(node, event)

    @rule(node=nodes)
    def elect(self, node: int) -> None:
        """A planned election: any member may lead."""
        record = self.record
        if node in record.isr and node != record.leader:
            self.version += 1
            self.record = PartitionRecord(
                topic="t",
                partition=0,
                topic_id="x",
                replicas=NODES,
                isr=record.isr,
                elr=record.elr,
                leader=node,
                leader_epoch=record.leader_epoch + 1,
                partition_epoch=record.partition_epoch + 1,
                min_insync_replicas=2,
            )

    @rule(node=nodes, seen_by=st.sets(nodes, min_size=1))
    def move(self, node: int, seen_by: set[int]) -> None:
        """A leadership moves, and some see it."""
        self.elect(node)
        for one in sorted(seen_by):
            self.show(one)

    @rule(node=nodes)
    def show(self, node: int) -> None:
        """A node sees the record as it is now, having seen none or any of those before."""
        self.step(node, ev.RecordChanged(versioned=Versioned(self.record, self.version)))

    # What must hold

    @invariant()
    def what_is_committed_stays(self) -> None:
        for node, replica in self.replicas.items():
            log, high_watermark = self.logs[node], replica.log.high_watermark
            if replica.leader is not None and high_watermark > len(self.committed):
                assert log[: len(self.committed)] == self.committed, f"node {node} leads another history"
                self.committed = log[:high_watermark]
        for node, replica in self.replicas.items():
            log, high_watermark = self.logs[node], replica.log.high_watermark
            shown = min(high_watermark, len(log))
            assert log[:shown] == self.committed[:shown], f"node {node} shows what is not committed"
        for member in (*self.record.isr, *self.record.elr):
            held = self.logs[member][: len(self.committed)]
            assert held == self.committed, f"node {member} may be elected and has {held} of {self.committed}"

    @invariant()
    def logs_match(self) -> None:
        for one in NODES:
            for other in range(one + 1, len(NODES) + 1):
                left, right = self.logs[one], self.logs[other]
                for offset in range(min(len(left), len(right)) - 1, -1, -1):
                    if left[offset][0] == right[offset][0]:
                        assert left[: offset + 1] == right[: offset + 1]
                        break

    @invariant()
    def offsets_are_in_order(self) -> None:
        for node, replica in self.replicas.items():
            log = replica.log
            assert 0 <= log.high_watermark <= log.log_end_offset <= len(
                self.logs[node]
            ) <= log.next_offset or (any(isinstance(job, fx.Truncate) for job in self.jobs[node]))


Replicas.TestCase.settings = hypothesis.settings(deadline=None, max_examples=60, stateful_step_count=80)
test_replicas = Replicas.TestCase
