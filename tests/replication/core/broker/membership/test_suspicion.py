"""Who is silent to most of those that watch it is replaced; nobody else is."""

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
from insync.replication.core.broker.membership.suspicion import LOOKS, _Watch, watchers
from insync.replication.core.control.records import ControllerRecord, PartitionRecord, Versioned
from insync.replication.core.control.view import ClusterView
from insync.replication.core.types import PartitionId

from ..desk import ME, NoLogs, Payload, node

LEADER, OTHER, THIRD = 2, 3, 4
TIMEOUT = 0.15


def view_of(*nodes: int, controller: int = LEADER) -> ClusterView:
    return ClusterView(
        nodes={each: node(each) for each in nodes},
        controller=ControllerRecord(node_id=controller, incarnation=1, controller_epoch=1),
    )


class Watcher:
    """One broker whose peers answer, but for the silent ones. `asked`: who was asked whether a node is silent."""

    def __init__(self, *others: int, timeout: float = TIMEOUT) -> None:
        self.broker = Broker(
            Context(ME, 7, BrokerSettings(leader_silence_timeout=timeout), NoLogs()),  # type: ignore[abstract]
            b"seed",
        )
        self.view = view_of(ME, *others)
        self.now = 100.0
        self.silent: set[int] = set()
        self.agree: set[int] = set()
        self.answer_after = 0.001
        self.suspects: list[fx.Suspect] = []
        self.wrong: list[fx.SuspicionWrong] = []
        self.probes: list[int] = []
        self.asked: list[int] = []
        self.ticks = 0
        self._later: list[tuple[float, ev.Event]] = []
        self.tell(ev.ViewRead(self.view))

    def tell(self, event: ev.Event) -> None:
        self._obey(self.broker.step(event, self.now))
        self._settle()

    def _settle(self) -> None:
        if self.broker.context.is_unsettled:
            self._obey(self.broker.settle(self.now))

    def _obey(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case fx.Dial():
                    self._later.append((self.now, ev.Connected(dial=effect.dial, connection=effect.peer)))
                case fx.Ask():
                    self._asked(effect)
                case fx.Suspect():
                    self.suspects.append(effect)
                case fx.SuspicionWrong():
                    self.wrong.append(effect)

    def _asked(self, ask: fx.Ask) -> None:
        peer: Any = ask.connection
        message: object
        match ask.message:
            case m.IsSilentRequest(node_id=suspect):
                self.asked.append(peer)
                message = m.IsSilentResponse(silent=peer in self.agree and suspect == LEADER)
            case _:
                self.probes.append(peer)
                message = m.GetReplicaLogInfoResponse(node_id=peer, incarnation=1, partitions=[])
        if peer not in self.silent:
            answer = ev.Answered(question=ask.question, message=message, payload=Payload())
            self._later.append((self.now + self.answer_after, answer))
        else:
            failed = ev.AskFailed(question=ask.question, reason="no answer in time")
            self._later.append((self.now + ask.timeout, failed))

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            due = min([self.broker.deadline, *(at for at, _ in self._later)])
            if due > end:
                break
            self.now = max(self.now, due)
            ready = [each for each in self._later if each[0] <= self.now]
            self._later = [each for each in self._later if each not in ready]
            for _, event in ready:
                self.tell(event)
            if self.broker.deadline <= self.now:
                self.ticks += 1
                self._obey(self.broker.tick(self.now))
                self._settle()
        self.now = end

    def stand_still(self, seconds: float) -> None:
        """This process does nothing, and then finds what has arrived meanwhile after its timers."""
        self.now += seconds
        self._obey(self.broker.tick(self.now))


def _told_ms(suspect: fx.Suspect) -> int:
    return int(suspect.reason.split(" ms, ")[0].rpartition(" ")[2])


def test_a_node_that_answers_is_asked_now_and_then_and_never_suspected() -> None:
    one = Watcher(LEADER, OTHER)
    one.agree = {OTHER}
    one.wait(60.0)
    assert not one.suspects
    # About ten times a second, and nobody but the one that is watched.
    assert 500 <= len(one.probes) <= 700
    assert set(one.probes) == {LEADER}
    # It is looked at when it is asked, and not in between; the lags of replicas are once a second.
    assert one.ticks <= len(one.probes) + 70


def test_who_leads_from_now_on_is_asked_as_soon_as_somebody_looks() -> None:
    """It may have been silent before."""
    one = Watcher(LEADER, OTHER)
    one.wait(5.03)
    one.silent = {OTHER}
    one.tell(ev.ViewRead(attrs.evolve(view_of(ME, LEADER, OTHER, controller=OTHER), revision=1)))
    one.wait(0.11)
    assert OTHER in one.probes


def test_without_a_timeout_nobody_is_watched() -> None:
    one = Watcher(LEADER, OTHER, timeout=0.0)
    one.silent, one.agree = {LEADER}, {OTHER}
    one.wait(60.0)
    assert not one.probes
    assert not one.suspects


def test_who_is_silent_to_most_of_its_watchers_is_gone_before_long() -> None:
    one = Watcher(LEADER, OTHER)
    one.wait(5.0)
    one.silent, one.agree = {LEADER}, {OTHER}
    one.wait(0.35)
    assert one.suspects
    assert one.suspects[0].node == node(LEADER)
    assert "nodes 1, 3 agree" in one.suspects[0].reason
    assert 1000 * TIMEOUT <= _told_ms(one.suspects[0]) <= 350, (
        "since the last answer, not since it is watched"
    )


def test_who_is_silent_to_one_alone_stays() -> None:
    one = Watcher(LEADER, OTHER)
    one.wait(5.0)
    one.silent = {LEADER}
    one.wait(5.0)
    assert one.asked
    assert not one.suspects


def test_who_is_silent_is_asked_again_when_an_answer_should_have_come_and_not_before() -> None:
    one = Watcher(LEADER, OTHER)
    one.wait(5.0)
    one.silent = {LEADER}
    one.probes.clear()
    one.wait(40 * TIMEOUT)
    assert 38 <= len(one.probes) <= 42


def test_a_majority_is_needed_and_no_more() -> None:
    one = Watcher(LEADER, OTHER, THIRD, 5)
    one.wait(5.0)
    one.silent, one.agree = {LEADER}, {OTHER}
    one.wait(2.0)
    assert not one.suspects, "two of four"
    one.agree.add(THIRD)
    one.wait(0.5)
    assert one.suspects, "three of four"


def test_a_process_that_replaces_a_silent_one_is_not_silent() -> None:
    """It may register in its predecessor's place in one transaction: no view is without the node."""
    one = Watcher(LEADER, OTHER)
    one.wait(5.0)
    one.silent = {LEADER}
    one.wait(2.0)
    assert one.broker.suspicion.tell(m.IsSilentRequest(node_id=LEADER, incarnation=1)).silent
    one.agree = {OTHER}
    successor = structs.replace(node(LEADER), incarnation=2)
    one.tell(ev.ViewRead(attrs.evolve(one.view, nodes={**one.view.nodes, LEADER: successor}, revision=1)))
    request = m.IsSilentRequest(node_id=LEADER, incarnation=2)
    assert not one.broker.suspicion.tell(request).silent, "before the next check"
    one.wait(0.9 * TIMEOUT)
    assert not one.suspects and not one.broker.suspicion.tell(request).silent
    one.wait(2 * TIMEOUT)
    assert one.suspects[0].node == successor, "it is as silent as its predecessor"
    assert _told_ms(one.suspects[0]) <= 350, "since it registered"


def test_the_silence_of_a_node_that_never_answered_is_told_since_it_is_watched() -> None:
    one = Watcher(LEADER, OTHER)
    one.silent, one.agree = {LEADER}, {OTHER}
    begin = one.now
    while not one.suspects:
        one.wait(0.001)
    assert 1000 * TIMEOUT <= _told_ms(one.suspects[0]) <= 1000 * (one.now - begin) + 1


def test_two_nodes_alone_suspect_nobody() -> None:
    """Each would take out the other, in turn and for ever, where they cannot reach each other."""
    one = Watcher(LEADER)
    one.wait(5.0)
    one.silent = {LEADER}
    one.wait(5.0)
    assert not one.suspects


def test_who_does_not_answer_agrees_to_nothing() -> None:
    one = Watcher(LEADER, OTHER)
    one.wait(5.0)
    one.silent, one.agree = {LEADER, OTHER}, {OTHER}
    one.wait(5.0)
    assert not one.suspects


def test_an_answer_in_time_ends_the_silence() -> None:
    one = Watcher(LEADER, OTHER)
    one.wait(5.0)
    one.silent, one.agree = {LEADER}, {OTHER}
    one.wait(0.17)
    one.silent = set()
    one.wait(1.0)
    assert not one.suspects


def test_what_was_missed_while_this_process_stood_still_is_no_silence() -> None:
    """It finds all timers due at once, before it reads what has come meanwhile."""
    one = Watcher(LEADER, OTHER)
    one.wait(5.0)
    one.silent, one.agree = {LEADER}, {OTHER}
    one.wait(0.12)
    assert one.probes
    one.stand_still(10.0)
    request = m.IsSilentRequest(node_id=LEADER, incarnation=1)
    assert not one.broker.suspicion.tell(request).silent
    one.silent = set()
    one.wait(5.0)
    assert not one.asked
    assert not one.suspects


def test_what_came_while_this_process_stood_still_for_a_moment_is_read_before_anybody_is_silent() -> None:
    one = Watcher(LEADER, OTHER)
    one.wait(5.0)
    one.silent, one.agree = {LEADER}, {OTHER}
    one.probes.clear()
    while not one.probes:
        one.wait(0.0005)
    one.wait(0.4 * TIMEOUT)
    one.stand_still(0.65 * TIMEOUT)
    assert not one.broker.suspicion.tell(m.IsSilentRequest(node_id=LEADER, incarnation=1)).silent
    one.silent = set()
    one.wait(5.0)
    assert not one.asked


def test_an_agreement_that_waited_for_this_process_is_of_a_moment_that_is_over() -> None:
    """It is read before the timers are looked at, and before what the suspect has sent meanwhile."""
    one = Watcher(LEADER, OTHER)
    one.wait(5.0)
    one.silent, one.agree = {LEADER}, {OTHER}
    while not one.asked:
        one.wait(0.0005)
    one.now += 8.0
    one.wait(0.0)
    assert not one.suspects
    one.wait(0.5)
    assert one.suspects, "it is silent still, and others are asked again"


def test_who_is_slow_has_more_time() -> None:
    one = Watcher(LEADER, OTHER)
    one.answer_after = 0.1
    one.wait(5.0)
    one.silent, one.agree = {LEADER}, {OTHER}
    one.wait(0.4)
    assert not one.suspects
    one.wait(0.4)
    assert one.suspects


def test_who_registers_again_at_once_was_there_and_has_more_time() -> None:
    one = Watcher(LEADER, OTHER)
    one.wait(5.0)
    one.silent, one.agree = {LEADER}, {OTHER}
    one.wait(0.35)
    assert one.suspects
    gone = attrs.evolve(one.view, nodes={each: node(each) for each in (ME, OTHER)}, revision=1)
    one.tell(ev.ViewRead(gone))
    one.wait(0.1)
    one.silent = set()
    one.tell(ev.ViewRead(attrs.evolve(one.view, revision=2)))
    one.wait(0.1)
    assert [each.node for each in one.wrong] == [node(LEADER)]
    one.suspects.clear()
    one.silent = {LEADER}
    one.wait(0.35)
    assert not one.suspects
    one.wait(0.35)
    assert one.suspects


def test_who_comes_back_later_was_away() -> None:
    one = Watcher(LEADER, OTHER)
    one.wait(5.0)
    one.silent, one.agree = {LEADER}, {OTHER}
    one.wait(0.35)
    one.tell(
        ev.ViewRead(attrs.evolve(one.view, nodes={each: node(each) for each in (ME, OTHER)}, revision=1))
    )
    one.wait(1.5)
    one.tell(ev.ViewRead(attrs.evolve(one.view, revision=2)))
    one.wait(0.2)
    assert not one.wrong


@pytest.mark.parametrize(("suspect", "incarnation"), [(OTHER, 1), (LEADER, 2), (LEADER, 0), (99, 1), (ME, 7)])
def test_nobody_agrees_that_a_node_is_silent_which_it_hears_or_does_not_watch(
    suspect: int, incarnation: int
) -> None:
    one = Watcher(LEADER, OTHER)
    one.wait(5.0)
    one.silent = {LEADER}
    one.wait(0.5)
    request = m.IsSilentRequest(node_id=suspect, incarnation=incarnation)
    assert not one.broker.suspicion.tell(request).silent
    assert one.broker.suspicion.tell(m.IsSilentRequest(node_id=LEADER, incarnation=1)).silent


def test_watchers_follow_a_partition_of_the_node_or_it_is_the_controller() -> None:
    def led_by(leader: int, *replicas: int) -> Versioned:
        record = PartitionRecord(
            topic="t", partition=leader, topic_id="t", replicas=replicas, isr=replicas, leader=leader,
            leader_epoch=1, partition_epoch=1, min_insync_replicas=1,
        )  # fmt: skip
        return Versioned(record=record, version=1)

    view = attrs.evolve(
        view_of(1, 2, 3, 4, controller=4),
        partitions={PartitionId("t", 2): led_by(2, 2, 3, 5), PartitionId("t", 3): led_by(3, 3, 1, 2)},
    )
    assert watchers(view, 2) == {3}, "node 5 is not alive"
    assert watchers(view, 3) == {1, 2}
    assert watchers(view, 4) == {1, 2, 3}
    assert watchers(view, 1) == set()


@pytest.mark.parametrize(
    ("is_suspected", "is_there", "periods"),
    [(True, True, 1), (True, False, 1), (False, False, 1), (False, True, 2)],
)
def test_who_may_come_back_is_looked_at_in_each_period(
    is_suspected: bool, is_there: bool, periods: int
) -> None:
    """Whoever has just answered need not be."""
    watcher = Watcher(LEADER)
    suspicion, now = watcher.broker.suspicion, watcher.broker.context.now
    watch = _Watch(since=now, heard=now, incarnation=None, suspected=node(LEADER) if is_suspected else None)
    due = suspicion._next_look_at(watch, node(LEADER) if is_there else None)
    assert due == pytest.approx(now + periods * TIMEOUT / LOOKS)
