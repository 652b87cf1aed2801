"""Whatever leaders and connections do: one fetch at a time, and in the end each leader knows every question."""

from __future__ import annotations

import attrs
import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from insync.replication.core import messages as m
from insync.replication.core.broker import effects as fx
from insync.replication.core.broker import events as ev
from insync.replication.core.broker.fetching.fetch_session import LeaderSession, SessionRequest
from insync.replication.core.errors import ErrorCode
from insync.replication.core.types import PartitionId

from ..desk import ME, SETTINGS, Desk, Info, Payload, led_by, node, result

LEADERS = (2, 3)
PARTITIONS = [PartitionId("t", number) for number in range(4)]
BACKOFF = SETTINGS.replica_fetch_backoff

partitions = st.sampled_from(PARTITIONS)
leaders = st.sampled_from((*LEADERS, ME))


@attrs.define(eq=False)
class Peer:
    """A leader's node as the other end sees it: its connection, the session there, and the fetch that is parked."""

    dial: fx.Dial | None = None
    connection: str = ""
    session: LeaderSession[PartitionId, m.FetchPartition] | None = None
    parked: fx.Ask | None = None
    rests_until: float = float("-inf")


class Cluster(RuleBasedStateMachine):
    """A node that follows, and everything around it."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(*LEADERS)
        self.peers = {leader: Peer() for leader in LEADERS}
        self.epochs = dict.fromkeys(PARTITIONS, 0)
        self.old: list[fx.Ask] = []
        self.numbers = 0

    def fresh(self) -> int:
        self.numbers += 1
        return self.numbers

    # The other end

    def note(self) -> None:
        """Take in what the node has just asked for."""
        for effect in self.desk.effects:
            match effect:
                case fx.Dial():
                    peer = self.peers[effect.peer]
                    assert peer.dial is None and not peer.connection, "one connection at a time"
                    assert self.desk.ctx.now >= peer.rests_until - 1e-9, (
                        "a failed attempt is followed by a pause"
                    )
                    peer.dial = effect
                case fx.GiveUp():
                    peer = next(
                        each
                        for each in self.peers.values()
                        if each.parked is not None and each.parked.question == effect.question
                    )
                    assert peer.parked is not None
                    self.old.append(peer.parked)
                    peer.parked = None
                case fx.HangUp():
                    for peer in self.peers.values():
                        if peer.connection == effect.connection:
                            self.lost(peer)
                case fx.Ask():
                    self.asked(effect)

    def asked(self, ask: fx.Ask) -> None:
        (peer,) = [each for each in self.peers.values() if each.connection == ask.connection]
        assert peer.parked is None, "one fetch is under way"
        request = ask.message
        assert isinstance(request, m.FetchRequest)
        questions = {PartitionId(each.topic, each.partition): each for each in request.partitions}
        peer.parked = ask
        if request.session_epoch == 0:
            peer.session = LeaderSession(self.fresh())
            peer.session.begin(questions)
            return
        withdrawn = tuple(PartitionId(each.topic, each.partition) for each in request.forgotten)
        told = SessionRequest(request.session_id, request.session_epoch, questions, withdrawn)
        session = peer.session
        if session is None or session.id != request.session_id or session.accept(told) is None:
            peer.parked = peer.session = None
            over = m.FetchResponse(partitions=[], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            self.desk.tell(ev.Answered(question=ask.question, message=over, payload=Payload()))
            self.note()

    def lost(self, peer: Peer) -> None:
        if peer.parked is not None:
            self.old.append(peer.parked)
        peer.connection, peer.session, peer.parked = "", None, None
        peer.rests_until = self.desk.ctx.now + BACKOFF

    # What happens

    @rule(partition=partitions, leader=leaders)
    def elect(self, partition: PartitionId, leader: int) -> None:
        self.epochs[partition] += 1
        epoch = self.epochs[partition]
        if partition not in self.desk.ctx.replicas:
            self.desk.follow(leader, partition)
            epoch = self.epochs[partition] = 1
        else:
            self.desk.record(led_by(leader, partition, epoch=epoch, version=epoch))
        self.note()

    @rule(leader=st.sampled_from(LEADERS), how=st.sampled_from(("connected", "refused", "silent")))
    def dialled(self, leader: int, how: str) -> None:
        peer = self.peers[leader]
        if peer.dial is None:
            return
        dial, peer.dial = peer.dial, None
        if how == "connected":
            peer.connection = f"c{self.fresh()}"
            self.desk.tell(ev.Connected(dial=dial.dial, connection=peer.connection))
        else:
            peer.rests_until = self.desk.ctx.now + BACKOFF
            self.desk.tell(ev.DialFailed(dial=dial.dial, reason=how, refused=how == "refused"))
        self.note()

    @rule(leader=st.sampled_from(LEADERS))
    def disconnect(self, leader: int) -> None:
        peer = self.peers[leader]
        if peer.connection:
            connection = peer.connection
            self.lost(peer)
            self.desk.tell(ev.PeerDisconnected(connection=connection, reason="reset by peer"))
            self.note()

    @rule(leader=st.sampled_from(LEADERS), malformed=st.booleans())
    def lose_answer(self, leader: int, malformed: bool) -> None:
        peer = self.peers[leader]
        if peer.parked is not None:
            ask, peer.parked = peer.parked, None
            self.desk.tell(ev.AskFailed(question=ask.question, reason="lost", malformed=malformed))
            self.note()

    @rule(leader=st.sampled_from(LEADERS), dice=st.data())
    def answer(self, leader: int, dice: st.DataObject) -> None:
        peer = self.peers[leader]
        if peer.parked is None or peer.session is None:
            return
        ask, peer.parked = peer.parked, None
        named = (
            dice.draw(st.lists(st.sampled_from(list(peer.session.open)), unique=True))
            if peer.session.open
            else []
        )
        payload, results = Payload(), []
        for partition in named:
            what = dice.draw(st.sampled_from(("data", "damaged", "nothing", "error")))
            position = payload.size
            if what in ("data", "damaged"):
                payload.size += 10
                question = peer.session.open[partition]
                info = Info(base_offset=question.fetch_offset, leader_epoch=question.leader_epoch)
                payload.parts[position] = [info] if what == "data" else "damaged"
            results.append(
                result(
                    partition,
                    size=payload.size - position,
                    error=ErrorCode.NOT_LEADER_OR_FOLLOWER if what == "error" else ErrorCode.NONE,
                )
            )
        peer.session.answer(named)
        self.desk.answer(ask, *results, payload=payload, session_id=peer.session.id)
        self.note()

    @precondition(lambda self: self.old)
    @rule()
    def answer_late(self) -> None:
        """What was given up, or asked over a connection that has ended, changes nothing any more."""
        before = self.desk.following.asked
        late = self.desk.answer(
            self.old.pop(),
            *[result(partition, size=10) for partition in PARTITIONS],
            payload=Payload(40, {10 * n: [Info(base_offset=0)] for n in range(4)}),
        )
        assert not late
        assert self.desk.following.asked == before

    @precondition(lambda self: self.desk.jobs)
    @rule()
    def written(self) -> None:
        self.desk.written(self.desk.jobs[0].partition)
        self.note()

    @rule(leader=st.sampled_from(LEADERS))
    def start_again(self, leader: int) -> None:
        nodes = dict(self.desk.ctx.view.nodes)
        nodes[leader] = node(leader, self.fresh() + 1, self.fresh())
        peer = self.peers[leader]
        peer.dial = None
        self.desk.nodes(*nodes.values())
        self.note()

    @rule(seconds=st.sampled_from((0.001, 0.02, BACKOFF, 1.0)))
    def wait(self, seconds: float) -> None:
        end = self.desk.ctx.now + seconds
        while self.desk.ctx.timers.deadline <= end:
            self.desk.wait(max(0.0, self.desk.ctx.timers.deadline - self.desk.ctx.now))
            self.note()
        self.desk.wait(end - self.desk.ctx.now)

    @invariant()
    def a_question_is_open_at_the_leader_that_it_is_for(self) -> None:
        leads = {
            partition: replica.versioned.record.leader
            for partition, replica in self.desk.ctx.replicas.items()
            if replica.versioned is not None
        }
        for partition, leader in self.desk.following.asked.items():
            assert leads[partition] == leader

    def teardown(self) -> None:
        """Everything works again, and nobody has anything to say: soon every leader has every question."""
        for _ in range(10):
            for leader in LEADERS:
                self.dialled(leader, "connected")
            while self.desk.jobs:
                self.written()
            self.wait(1.0)
        followed = {
            partition: replica.versioned.record.leader
            for partition, replica in self.desk.ctx.replicas.items()
            if replica.versioned is not None and replica.versioned.record.leader != ME
        }
        assert self.desk.following.asked == followed
        for leader, peer in self.peers.items():
            expected = {partition for partition, leads in followed.items() if leads == leader}
            known = set(peer.session.open) if peer.session is not None and peer.parked is not None else set()
            assert expected <= known
            # What was withdrawn while the fetch is parked there is told with the next one.
            session = self.desk.following._leaders[leader].session if known > expected else None
            assert session is None or known - expected <= {
                partition for partition, asked in session._untold.items() if asked is None
            }


TestFollowing = Cluster.TestCase
TestFollowing.settings = hypothesis.settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
