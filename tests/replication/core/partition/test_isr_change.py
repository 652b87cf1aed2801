"""One ISR change at a time, and what becomes of it when answers are late, lost or about another epoch."""

from __future__ import annotations

import pytest
from msgspec import structs

from insync.replication.core.control.records import PartitionRecord, Versioned
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.partition.replica import ReplicaSettings
from insync.replication.core.types import BatchMeta, EpochEntry

from .alone import PARTITION, Alone

A, B, C = 1, 2, 3
LIVE = {A: 11, B: 12, C: 13}


def record(*, isr: tuple[int, ...] = (A, B), leader: int = A, epoch: int = 1) -> PartitionRecord:
    return PartitionRecord(
        topic="t",
        partition=0,
        topic_id="x",
        replicas=(A, B, C),
        isr=isr,
        leader=leader,
        leader_epoch=epoch,
        min_insync_replicas=2,
    )


class Lead:
    """Replica A leading epoch 1 from version 1 on, with a log that does as it is asked at once."""

    def __init__(self, isr: tuple[int, ...] = (A, B)) -> None:
        self.replica = Alone(A, LIVE[A], ReplicaSettings(replica_lag_time_max=10.0))
        self.now = 0.0
        self.step(ev.Opened(log_start_offset=0, log_end_offset=0, high_watermark=0, epochs=(), producers=()))
        self.step(ev.NodesChanged(live=LIVE))
        self.step(ev.RecordChanged(versioned=Versioned(record(isr=isr), 1)))
        self.step(ev.EpochAssigned())
        assert self.replica.role == "leader"

    def step(self, event: ev.Event) -> list[object]:
        return self.replica.tell(event, self.now)

    def question_answered(self, question: ev.Fetch) -> list[object]:
        """What else a fetch gives rise to; `answer` is what it was answered."""
        self.answer, effects = self.replica.ask(question, self.now)
        return effects

    def ask(self, question: ev.Fetch) -> fx.FetchAnswer:
        return self.replica.ask(question, self.now)[0]

    def append(self, count: int, *, report: bool = True) -> None:
        base = self.replica.log.next_offset
        batch = BatchMeta(0, count, -1, 100)
        self.step(ev.Produce(request_id=base, acks=1, batch=batch, deadline=1e9, handle=None))
        if report:
            self.step(ev.Appended(log_end_offset=base + count))

    def fetch(self, node: int, offset: int, *, incarnation: int | None = None) -> list[object]:
        return self.question_answered(
            ev.Fetch(
                replica_id=node,
                incarnation=LIVE[node] if incarnation is None else incarnation,
                leader_epoch=self.replica.leader_epoch,
                fetch_offset=offset,
                last_fetched_epoch=self.replica.log.epochs.latest if offset else -1,
            )
        )

    @property
    def high_watermark(self) -> int:
        return self.replica.log.high_watermark


def proposals(effects: list[object]) -> list[fx.ProposeIsr]:
    return [effect for effect in effects if isinstance(effect, fx.ProposeIsr)]


def joining(lead: Lead, node: int) -> fx.ProposeIsr:
    """Let `node` reach the end of the log; the proposal that this makes."""
    (proposal,) = proposals(lead.fetch(node, lead.replica.log.log_end_offset))
    assert node in proposal.record.isr and not proposal.removing
    return proposal


def test_a_joining_member_counts_from_its_proposal_on() -> None:
    lead = Lead()
    joining(lead, C)
    lead.step(ev.NodesChanged(live={A: 11, B: 12}))
    lead.append(3)
    lead.fetch(B, 3)
    assert lead.high_watermark == 0
    lead.fetch(C, 3)
    assert lead.high_watermark == 3


def test_a_late_fetch_of_a_process_that_was_replaced_counts_for_nothing() -> None:
    """The log of its successor may be shorter: the power may have failed in between."""
    lead = Lead(isr=(A, B, C))
    lead.append(3)
    lead.fetch(B, 3)
    lead.fetch(C, 2)
    lead.step(ev.NodesChanged(live={**LIVE, C: LIVE[C] + 1}))
    for offset in (2, 3):
        lead.fetch(C, offset)
        assert lead.answer.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert lead.high_watermark == 2
    lead.fetch(C, 3, incarnation=LIVE[C] + 1)
    assert lead.answer.error == ErrorCode.NONE
    assert lead.high_watermark == 3


def test_one_that_asks_the_same_again_may_have_become_eligible() -> None:
    lead = Lead()
    lead.step(ev.NodesChanged(live={A: 11, B: 12}))
    assert not proposals(lead.fetch(C, 0))
    lead.step(ev.NodesChanged(live=LIVE))
    joining(lead, C)


def test_a_member_that_joined_counts_while_a_newer_epoch_waits_for_the_log() -> None:
    lead = Lead()
    proposal = joining(lead, C)
    lead.step(ev.NodesChanged(live={A: 11, B: 12}))
    lead.append(3, report=False)
    lead.append(1, report=False)
    lead.step(ev.Appended(log_end_offset=3))
    newer = record(isr=(A, B, C), leader=C, epoch=2)
    lead.step(ev.RecordChanged(versioned=Versioned(newer, 3)))
    assert lead.replica.stepping
    lead.step(ev.IsrStored(proposal_id=proposal.proposal_id, version=2))
    lead.fetch(B, 3)
    assert lead.high_watermark == 0, "C is in the stored ISR and may lead: it has none of these records"


def test_an_outcome_of_an_earlier_epoch_settles_nothing() -> None:
    lead = Lead()
    stale = joining(lead, C)
    for version, leader, epoch in ((5, B, 2), (6, A, 3)):
        lead.step(ev.RecordChanged(versioned=Versioned(record(leader=leader, epoch=epoch), version)))
    lead.step(ev.EpochAssigned())
    assert lead.replica.leader_epoch == 3
    lead.append(3)
    current = joining(lead, C)
    assert current.proposal_id != stale.proposal_id
    lead.step(ev.IsrRefused(proposal_id=stale.proposal_id))
    lead.step(ev.IsrStored(proposal_id=stale.proposal_id, version=2))
    lead.append(2)
    lead.fetch(B, 5)
    assert lead.high_watermark == 3


def test_a_refusal_after_an_unclear_attempt_is_closed_off_before_the_member_stops_counting() -> None:
    lead = Lead()
    proposal = joining(lead, C)
    unclear = lead.step(ev.IsrUnclear(proposal_id=proposal.proposal_id))
    assert fx.ReadRecord(partition=PARTITION) in unclear
    (again,) = proposals(lead.step(ev.RecordChanged(versioned=Versioned(record(), 1))))
    (fence,) = proposals(lead.step(ev.IsrRefused(proposal_id=again.proposal_id)))
    assert (fence.record.isr, fence.version, fence.joining) == ((A, B), 1, ())
    assert fence.record.partition_epoch == 1
    lead.step(ev.NodesChanged(live={A: 11, B: 12}))
    lead.append(3)
    lead.fetch(B, 3)
    assert lead.high_watermark == 0, "the first attempt may still be stored"
    lead.step(ev.IsrStored(proposal_id=fence.proposal_id, version=2))
    assert lead.high_watermark == 3


def test_a_plain_refusal_ends_the_change() -> None:
    lead = Lead()
    proposal = joining(lead, C)
    assert not proposals(lead.step(ev.IsrRefused(proposal_id=proposal.proposal_id)))
    lead.append(3)
    lead.fetch(B, 3)
    assert lead.replica.leader is not None
    assert lead.replica.leader.change.pending is None


def test_the_proposal_names_the_incarnation_that_fetched() -> None:
    lead = Lead()
    proposal = joining(lead, C)
    assert proposal.joining == ((C, LIVE[C]),)


@pytest.mark.parametrize("live", [{A: 11, B: 12}, {A: 11, B: 12, C: 14}])
def test_a_process_that_is_not_the_living_one_may_not_join(live: dict[int, int]) -> None:
    lead = Lead()
    lead.step(ev.NodesChanged(live=live))
    assert not proposals(lead.fetch(C, 0))


def test_a_removal_counts_only_when_stored() -> None:
    lead = Lead(isr=(A, B, C))
    lead.append(3)
    lead.now = 10.5
    lead.fetch(B, 3)
    (shrink,) = proposals(lead.step(ev.Tick()))
    assert (shrink.record.isr, shrink.removing, shrink.joining) == ((A, B), (C,), ())
    assert lead.high_watermark == 0
    lead.step(ev.IsrStored(proposal_id=shrink.proposal_id, version=2))
    assert lead.high_watermark == 3


def test_an_unclear_change_is_asked_about_again_until_the_record_tells() -> None:
    lead = Lead(isr=(A, B, C))
    lead.append(1)
    lead.now = 10.5
    lead.fetch(B, 1)
    (shrink,) = proposals(lead.step(ev.Tick()))
    lead.step(ev.IsrUnclear(proposal_id=shrink.proposal_id))
    lead.now += 1.0
    assert fx.ReadRecord(partition=PARTITION) in lead.step(ev.Tick())
    lead.step(ev.RecordChanged(versioned=Versioned(shrink.record, 2)))
    assert lead.high_watermark == 1
    assert lead.replica.leader is not None
    assert lead.replica.leader.change.pending is None


def test_a_member_that_was_started_again_has_its_lag_time_to_come_back() -> None:
    lead = Lead(isr=(A, B, C))
    lead.append(2)
    lead.fetch(B, 2)
    lead.fetch(C, 2)
    lead.append(1)
    lead.fetch(B, 3)
    lead.now = 1.0
    lead.step(ev.NodesChanged(live={**LIVE, C: 14}))
    assert not proposals(lead.step(ev.Tick()))
    assert lead.high_watermark == 2, "its successor has not shown what it has"
    lead.fetch(C, 3, incarnation=14)
    assert lead.high_watermark == 3


def test_a_log_that_comes_back_shorter_than_it_was_shown_stays_closed() -> None:
    lead = Lead()
    lead.append(3)
    lead.step(ev.LogFailed(reason="disk full"))
    opened = ev.Opened(
        log_start_offset=0,
        log_end_offset=2,
        high_watermark=0,
        epochs=(EpochEntry(1, 0),),
        producers=(),
    )
    lead.step(opened)
    assert lead.replica.role == "closed"
    assert "3" in lead.replica.failure
    assert lead.fetch(B, 2) == []
    assert lead.answer.error == ErrorCode.KAFKA_STORAGE_ERROR
    lead.step(structs.replace(opened, log_end_offset=3))
    assert lead.replica.role == "leader"


def test_the_hint_names_the_leader_that_is_about_to_be() -> None:
    lead = Lead()
    lead.append(1, report=False)
    lead.step(ev.RecordChanged(versioned=Versioned(record(leader=B, epoch=2), 2)))
    (reply,) = lead.step(
        ev.Produce(request_id=77, acks=-1, batch=BatchMeta(0, 1, -1, 9), deadline=1e9, handle=None)
    )
    assert isinstance(reply, fx.ReplyProduce)
    assert (reply.error, reply.leader, reply.leader_epoch) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, B, 2)


def test_a_log_opened_again_in_its_epoch_lets_nobody_join_short_of_what_was_committed() -> None:
    lead = Lead()
    lead.append(3)
    lead.fetch(B, 3)
    assert lead.high_watermark == 3
    lead.append(2)
    lead.step(ev.LogFailed(reason="an I/O error"))
    lead.step(
        ev.Opened(
            log_start_offset=0,
            log_end_offset=5,
            high_watermark=0,
            epochs=(EpochEntry(1, 0),),
            producers=(),
        )
    )
    lead.step(ev.EpochAssigned())
    assert lead.replica.role == "leader"
    assert lead.high_watermark == 3
    assert lead.replica.leader is not None
    assert lead.replica.leader.epoch_start == 5
    assert not proposals(lead.fetch(C, 2))
    assert not proposals(lead.fetch(C, 3))
    assert proposals(lead.fetch(C, 5))


def test_a_joining_member_counts_while_nobody_knows_whether_it_has_joined() -> None:
    lead = Lead()
    proposal = joining(lead, C)
    lead.step(ev.NodesChanged(live={A: 11, B: 12}))
    lead.step(ev.IsrUnclear(proposal_id=proposal.proposal_id))
    lead.append(3)
    lead.fetch(B, 3)
    assert lead.high_watermark == 0


def test_a_fetch_of_an_earlier_epoch_counts_for_nothing() -> None:
    lead = Lead()
    lead.append(3)
    for version, leader, epoch in ((5, B, 2), (6, A, 3)):
        lead.step(ev.RecordChanged(versioned=Versioned(record(leader=leader, epoch=epoch), version)))
    lead.step(ev.EpochAssigned())
    old = ev.Fetch(
        replica_id=B,
        incarnation=LIVE[B],
        leader_epoch=1,
        fetch_offset=3,
        last_fetched_epoch=1,
    )
    assert lead.question_answered(old) == []
    assert lead.answer.error == ErrorCode.FENCED_LEADER_EPOCH
    assert lead.ask(structs.replace(old, leader_epoch=4)).error == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert lead.high_watermark == 0


def test_nobody_joins_who_would_be_put_out_at_the_next_tick() -> None:
    lead = Lead()
    lead.append(4)
    assert not proposals(lead.fetch(C, 0)), "at the high watermark, and behind a burst that it has never read"
    lead.append(1)
    assert proposals(lead.fetch(C, 4)), "it has all that there was when it last asked"


def test_a_member_that_joined_by_a_proposal_of_an_earlier_role_has_time_to_catch_up() -> None:
    lead = Lead()
    proposal = joining(lead, C)
    lead.step(ev.LogFailed(reason="a disk refused"))
    lead.now = 3.0
    lead.step(ev.Opened(log_start_offset=0, log_end_offset=0, high_watermark=0, epochs=(), producers=()))
    lead.step(ev.EpochAssigned())
    lead.append(1)
    lead.step(ev.RecordChanged(versioned=Versioned(proposal.record, 2)))
    lead.now = 12.9
    assert not [p for p in proposals(lead.step(ev.Tick())) if C not in p.record.isr]
    lead.now = 13.1
    assert [p for p in proposals(lead.step(ev.Tick())) if C not in p.record.isr]


def test_who_had_everything_when_the_next_batch_came_has_all_the_time_to_catch_up() -> None:
    """In a fetch session an idle follower says nothing for long; it must not be put out for that."""
    lead = Lead(isr=(A, B))
    lead.append(3)
    lead.fetch(B, 3)
    lead.now = 500.0
    lead.append(1)
    lead.now = 509.0
    assert proposals(lead.step(ev.Tick())) == []
    lead.now = 511.0
    (proposal,) = proposals(lead.step(ev.Tick()))
    assert proposal.record.isr == (A,)


def reopened(lead: Lead, end: int = 0) -> list[object]:
    """The log fails and is opened again within the epoch: another role leads it."""
    lead.step(ev.LogFailed(reason="a disk refused"))
    epochs = (EpochEntry(1, 0),) if end else ()
    effects = lead.step(
        ev.Opened(log_start_offset=0, log_end_offset=end, high_watermark=0, epochs=epochs, producers=())
    )
    lead.step(ev.EpochAssigned())
    assert lead.replica.role == "leader"
    return effects


def test_who_is_about_to_join_counts_though_the_log_was_opened_again_meanwhile() -> None:
    lead = Lead()
    proposal = joining(lead, C)
    assert [effect for effect in reopened(lead) if isinstance(effect, fx.ReadRecord)], "what became of it?"
    lead.append(3)
    lead.fetch(B, 3)
    assert lead.high_watermark == 0, "C may be in the stored ISR by now, and has none of these records"
    lead.step(ev.IsrStored(proposal_id=proposal.proposal_id, version=2))
    assert lead.high_watermark == 0
    assert not proposals(lead.step(ev.Tick())), "it has just joined, and as long to catch up as any other"
    lead.fetch(C, 3)
    assert lead.high_watermark == 3


def test_what_an_earlier_role_proposed_is_sent_again_and_closed_off_when_refused() -> None:
    lead = Lead()
    proposal = joining(lead, C)
    reopened(lead)
    same = Versioned(record(), 1)
    (again,) = proposals(lead.step(ev.RecordChanged(versioned=same)))
    assert again == proposal
    (fence,) = proposals(lead.step(ev.IsrRefused(proposal_id=proposal.proposal_id)))
    assert set(fence.record.isr) == {A, B}, "the first attempt may still be on its way"
    lead.append(3)
    lead.fetch(B, 3)
    assert lead.high_watermark == 0
    lead.step(ev.IsrStored(proposal_id=fence.proposal_id, version=2))
    assert lead.high_watermark == 3


def test_what_an_earlier_role_proposed_is_settled_by_a_newer_record_and_by_a_newer_epoch() -> None:
    lead = Lead()
    proposal = joining(lead, C)
    lead.step(ev.LogFailed(reason="a disk refused"))
    lead.step(ev.RecordChanged(versioned=Versioned(structs.replace(record(), partition_epoch=9), 2)))
    reopened(lead)
    lead.append(3)
    lead.fetch(B, 3)
    assert lead.high_watermark == 3, "over a newer record the proposal cannot be stored any more"

    lead = Lead()
    proposal = joining(lead, C)
    lead.step(ev.LogFailed(reason="a disk refused"))
    lead.step(ev.RecordChanged(versioned=Versioned(record(epoch=3), 1 + proposal.version)))
    reopened(lead)
    lead.append(3)
    lead.fetch(B, 3)
    assert lead.high_watermark == 3
