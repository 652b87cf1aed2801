"""Requests between nodes outside the fetches: one control connection for each peer, every request answered once."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from msgspec import structs

from insync.replication.core import messages as m
from insync.replication.core.broker import effects as fx
from insync.replication.core.broker import events as ev
from insync.replication.core.broker.context import BrokerSettings, Context
from insync.replication.core.broker.machine import Broker
from insync.replication.core.broker.membership.peers import FORWARD_TIMEOUT
from insync.replication.core.control.controller import AskReplicas
from insync.replication.core.control.elections import LogInfo
from insync.replication.core.control.records import ControllerRecord
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode
from insync.replication.core.types import EpochEntry, PartitionId

from ..desk import ME, NoLogs, Payload, node

CONTROLLER = 2
ZERO, ONE = PartitionId("t", 0), PartitionId("t", 1)
BACKOFF, ROUND = 0.05, 2.0
TOPIC = m.DeleteTopicRequest(name="t")


class Node:
    """A broker among peers; `effects` is what the last step came to."""

    def __init__(self) -> None:
        settings = BrokerSettings(replica_fetch_backoff=BACKOFF, unclean_recovery_timeout=ROUND)
        self.broker = Broker(Context(ME, 7, settings, NoLogs()), b"seed")  # type: ignore[abstract]
        self.view = ClusterView(
            nodes={each: node(each) for each in (ME, CONTROLLER, 3)},
            controller=ControllerRecord(node_id=CONTROLLER, incarnation=1, controller_epoch=1),
        )
        self.now = 1.0
        self.effects: list[fx.Effect] = []
        self.tell(ev.ViewRead(self.view))

    def tell(self, event: Any) -> None:
        self.effects = self.broker.step(event, self.now)

    def wait(self, seconds: float) -> None:
        end, self.effects = self.now + seconds, []
        while self.broker.deadline <= end:
            self.now = self.broker.deadline
            self.effects += self.broker.tick(self.now)
        self.now = end

    def all(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.effects if isinstance(each, kind)]

    def one(self, kind: type[Any]) -> Any:
        (found,) = self.all(kind)
        return found

    def forward(self, request: str = "r") -> None:
        self.tell(ev.ForwardArrived(request, m.Kind.DELETE_TOPIC, TOPIC))

    def connect(self) -> None:
        self.tell(ev.Connected(dial=self.one(fx.Dial).dial, connection="c"))

    def refused(self, request: str = "r") -> str:
        """The text of a refusal, which says that the controller could not be asked."""
        reply = self.one(fx.Reply)
        assert (reply.request, reply.response.error) == (request, ErrorCode.NOT_CONTROLLER)
        return str(reply.response.message)


@pytest.fixture
def one() -> Node:
    return Node()


def test_a_request_is_passed_on_and_its_answer_passed_back_as_it_came(one: Node) -> None:
    one.forward()
    assert (one.one(fx.Dial).peer, one.one(fx.Dial).lane) == (CONTROLLER, "control")
    one.connect()
    ask = one.one(fx.Ask)
    assert ask.message == structs.replace(TOPIC, forwarded=True)
    assert ask.raw
    one.tell(ev.Answered(question=ask.question, message=b"as it came", payload=Payload()))
    assert one.one(fx.Reply) == fx.Reply("r", b"as it came")


def test_requests_share_one_connection(one: Node) -> None:
    one.forward("first")
    one.forward("second")
    assert not one.all(fx.Dial), "that is under way"
    one.effects = [fx.Dial(dial=1, peer=CONTROLLER, lane="control", endpoints=(), timeout=1.0)]
    one.connect()
    first, second = one.all(fx.Ask)
    one.forward("third")
    third = one.one(fx.Ask)
    assert first.connection == second.connection == third.connection == "c"
    one.tell(ev.Answered(question=second.question, message=b"2", payload=Payload()))
    assert one.one(fx.Reply).request == "second"
    one.tell(ev.AskFailed(question=first.question, reason="lost"))
    assert "lost" in one.refused("first")
    one.tell(ev.Answered(question=third.question, message=b"3", payload=Payload()))
    assert one.one(fx.Reply).request == "third"


def test_without_a_controller_nobody_is_asked(one: Node) -> None:
    one.tell(ev.ViewRead(attrs.evolve(one.view, controller=None)))
    one.forward()
    assert one.refused() == "there is no controller now; retry"
    one.tell(ev.ViewRead(attrs.evolve(one.view, nodes={ME: node(ME)})))
    one.forward()
    assert one.refused() == "there is no controller now; retry"


def test_a_refusal_has_the_cause_that_the_driver_knows(one: Node) -> None:
    one.tell(ev.ViewRead(attrs.evolve(one.view, controller=None)))
    one.broker.context.explained = lambda refusal: f"the store is away ({refusal})"
    one.forward()
    assert one.refused() == "the store is away (there is no controller now; retry)"


def test_what_could_not_be_sent_fails_with_the_dial_and_the_next_one_pauses(one: Node) -> None:
    one.forward("first")
    one.tell(ev.DialFailed(dial=one.one(fx.Dial).dial, reason="connection refused", refused=True))
    assert one.one(fx.Suspect).node == node(CONTROLLER)
    assert "connection refused" in one.refused("first")
    one.forward("second")
    assert not one.effects, "not at once"
    one.wait(BACKOFF)
    one.connect()
    assert one.all(fx.Ask)


def test_a_lost_connection_fails_what_was_asked_over_it_once(one: Node) -> None:
    one.forward("first")
    one.connect()
    ask = one.one(fx.Ask)
    one.tell(ev.PeerDisconnected(connection="c", reason="reset by peer"))
    assert "reset by peer" in one.refused("first")
    one.tell(ev.Answered(question=ask.question, message=b"late", payload=Payload()))
    assert not one.effects
    one.wait(2 * FORWARD_TIMEOUT)
    assert not one.all(fx.Reply)


def test_time_runs_while_a_request_waits_for_its_connection(one: Node) -> None:
    one.forward("waits")
    one.wait(FORWARD_TIMEOUT - 1)
    assert not one.all(fx.Reply)
    one.wait(2)
    assert "no answer in time" in one.refused("waits")


def test_a_request_that_has_waited_for_its_connection_has_less_time_left(one: Node) -> None:
    one.forward()
    dial = one.one(fx.Dial)
    one.wait(4)
    one.effects = [dial]
    one.connect()
    assert one.one(fx.Ask).timeout == pytest.approx(FORWARD_TIMEOUT - 4)


def test_an_answer_after_its_time_changes_nothing(one: Node) -> None:
    one.forward()
    one.connect()
    ask = one.one(fx.Ask)
    assert ask.timeout == FORWARD_TIMEOUT
    one.wait(FORWARD_TIMEOUT)
    assert one.one(fx.GiveUp).question == ask.question
    assert "no answer in time" in one.refused()
    one.tell(ev.Answered(question=ask.question, message=b"late", payload=Payload()))
    assert not one.effects


def test_a_malformed_answer_costs_the_connection_and_everything_asked_over_it(one: Node) -> None:
    one.forward("first")
    one.connect()
    first = one.one(fx.Ask)
    one.forward("second")
    one.tell(ev.AskFailed(question=first.question, reason="no such field", malformed=True))
    assert one.one(fx.HangUp).connection == "c"
    assert sorted(reply.request for reply in one.all(fx.Reply)) == ["first", "second"]


# Questions about logs


def asked(*nodes: int, partition: PartitionId = ZERO) -> AskReplicas:
    return AskReplicas(
        partitions={partition: nodes}, leader_epochs={partition: 4}, topic_ids={partition: "x"}
    )


def told(
    node_id: int, end: int, *, epoch: int = 4, partition: PartitionId = ZERO
) -> m.GetReplicaLogInfoResponse:
    info = m.ReplicaLogInfo(
        topic=partition.topic,
        partition=partition.partition,
        leader_epoch=epoch,
        last_epoch=3,
        log_end_offset=end,
        topic_id="x",
        log_start_offset=2,
        epochs=[EpochEntry(3, 2)],
    )
    return m.GetReplicaLogInfoResponse(node_id=node_id, incarnation=1, partitions=[info])


def info(end: int) -> LogInfo:
    return LogInfo(
        incarnation=1,
        leader_epoch=4,
        last_epoch=3,
        log_end_offset=end,
        topic_id="x",
        log_start_offset=2,
        epochs=(EpochEntry(3, 2),),
    )


class Told:
    """A replica that has this to tell of its log."""

    def __init__(self, found: LogInfo | None) -> None:
        self.found = found

    def log_info(self) -> LogInfo | None:
        return self.found


def test_a_node_tells_all_that_an_election_goes_by() -> None:
    one = Node()
    one.broker.context.replicas.update({ZERO: Told(info(9)), ONE: Told(None)})  # type: ignore[dict-item]
    names = [m.PartitionName(topic=each.topic, partition=each.partition) for each in (ZERO, ONE)]
    answer = one.broker.peers.tell_logs(m.GetReplicaLogInfoRequest(partitions=names))
    assert answer == structs.replace(told(ME, 9), incarnation=7)


def both_asked(one: Node) -> dict[int, fx.Ask]:
    """A round under way to nodes 2 and 3."""
    one.tell(ev.AskLogs(asked(2, 3)))
    asks = {}
    for dial in one.all(fx.Dial):
        one.tell(ev.Connected(dial=dial.dial, connection=f"to {dial.peer}"))
        asks[dial.peer] = one.one(fx.Ask)
    return asks


def answer(one: Node, ask: fx.Ask, message: m.GetReplicaLogInfoResponse) -> None:
    one.tell(ev.Answered(question=ask.question, message=message, payload=Payload()))


def test_a_round_is_over_when_everybody_has_told(one: Node) -> None:
    asks = both_asked(one)
    answer(one, asks[2], told(2, 10))
    assert not one.all(fx.LogsGathered)
    answer(one, asks[3], told(3, 12))
    assert one.one(fx.LogsGathered).logs == {ZERO: {2: info(10), 3: info(12)}}
    one.wait(2 * ROUND)
    assert not one.all(fx.LogsGathered), "once"


def test_a_round_ends_in_time_with_what_was_told(one: Node) -> None:
    asks = both_asked(one)
    answer(one, asks[3], told(3, 12))
    one.wait(ROUND)
    assert one.one(fx.LogsGathered).logs == {ZERO: {3: info(12)}}


def test_who_has_not_entered_the_epoch_is_asked_again(one: Node) -> None:
    asks = both_asked(one)
    answer(one, asks[3], told(3, 12))
    answer(one, asks[2], told(2, 10, epoch=3))
    assert not one.effects
    one.wait(BACKOFF)
    answer(one, one.one(fx.Ask), told(2, 11))
    assert one.one(fx.LogsGathered).logs == {ZERO: {2: info(11), 3: info(12)}}


def test_who_cannot_be_reached_is_asked_again(one: Node) -> None:
    one.tell(ev.AskLogs(asked(2)))
    one.tell(ev.DialFailed(dial=one.one(fx.Dial).dial, reason="no answer"))
    one.wait(BACKOFF)
    one.connect()
    answer(one, one.one(fx.Ask), told(2, 10))
    assert one.one(fx.LogsGathered).logs == {ZERO: {2: info(10)}}


def test_what_was_not_asked_is_not_believed(one: Node) -> None:
    one.tell(ev.AskLogs(asked(2)))
    one.connect()
    answer(one, one.one(fx.Ask), told(2, 10, partition=ONE))
    assert not one.all(fx.LogsGathered)
    one.wait(ROUND)
    assert one.one(fx.LogsGathered).logs == {}


def test_a_node_asks_itself_without_a_connection(one: Node) -> None:
    one.tell(ev.AskLogs(asked(ME)))
    assert not one.all(fx.Dial)
    one.wait(ROUND)
    assert one.one(fx.LogsGathered).logs == {}, "it has no such replica"


def test_a_round_about_nothing_is_over_at_once(one: Node) -> None:
    one.tell(ev.AskLogs(AskReplicas(partitions={}, leader_epochs={}, topic_ids={})))
    assert one.one(fx.LogsGathered).logs == {}
