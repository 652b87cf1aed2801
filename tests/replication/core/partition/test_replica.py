"""A replica between epochs, with its log away, and with requests that wait."""

from __future__ import annotations

import pytest
from msgspec import structs

from insync.replication.core.control.elections import LogInfo
from insync.replication.core.control.records import Versioned
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.types import BatchMeta, EpochEntry

from .alone import PARTITION, STOP, WAKE, Alone
from .test_isr_change import LIVE, A, B, C, Lead, proposals, record


def produce(request: int, *, acks: int = -1, sequence: int = -1, deadline: float = 99.0) -> ev.Produce:
    batch = BatchMeta(-1, 1, -1, 10, 7 if sequence >= 0 else -1, 0, sequence)
    return ev.Produce(request_id=request, acks=acks, batch=batch, deadline=deadline, handle=None)


def replies(effects: list[object]) -> dict[int, tuple[ErrorCode, int]]:
    return {
        effect.request_id: (effect.error, effect.base_offset)
        for effect in effects
        if isinstance(effect, fx.ReplyProduce)
    }


def newer(leader: int = B, epoch: int = 2) -> ev.RecordChanged:
    return ev.RecordChanged(versioned=Versioned(record(leader=leader, epoch=epoch), epoch))


def test_acks_decide_when_a_write_is_answered() -> None:
    lead = Lead()
    assert replies(lead.step(produce(1, acks=0))) == {1: (ErrorCode.NONE, 0)}
    assert replies(lead.step(produce(2, acks=1))) == {}
    assert replies(lead.step(produce(3))) == {}
    assert replies(lead.step(ev.Appended(log_end_offset=1))) == {}, "that one has been answered"
    assert replies(lead.step(ev.Appended(log_end_offset=2))) == {2: (ErrorCode.NONE, 1)}
    lead.step(ev.Appended(log_end_offset=3))
    assert replies(lead.fetch(B, 3)) == {3: (ErrorCode.NONE, 2)}


def test_a_duplicate_waits_for_the_commit_of_what_it_repeats() -> None:
    lead = Lead()
    lead.step(produce(1, sequence=0))
    repeated = lead.step(produce(2, sequence=0))
    assert not [effect for effect in repeated if isinstance(effect, fx.Append)]
    assert replies(repeated) == {}
    lead.step(ev.Appended(log_end_offset=1))
    assert replies(lead.fetch(B, 1)) == {1: (ErrorCode.NONE, 0), 2: (ErrorCode.NONE, 0)}
    assert replies(lead.step(produce(3, sequence=0))) == {3: (ErrorCode.NONE, 0)}
    assert replies(lead.step(produce(4, acks=1, sequence=0))) == {4: (ErrorCode.NONE, 0)}


@pytest.mark.parametrize("acks", [2, -2])
def test_other_acks_are_refused(acks: int) -> None:
    assert replies(Lead().step(produce(1, acks=acks))) == {1: (ErrorCode.INVALID_REQUIRED_ACKS, -1)}


def test_under_the_minimum_isr_only_weaker_writes_are_taken_and_none_is_committed() -> None:
    lead = Lead(isr=(A,))
    assert replies(lead.step(produce(1))) == {1: (ErrorCode.NOT_ENOUGH_REPLICAS, -1)}
    lead.step(produce(2, acks=1))
    assert replies(lead.step(ev.Appended(log_end_offset=1))) == {2: (ErrorCode.NONE, 0)}
    assert lead.high_watermark == 0


def test_what_waits_is_answered_at_its_deadline() -> None:
    lead = Lead()
    lead.step(produce(1, deadline=3.0))
    lead.step(ev.Appended(log_end_offset=1))
    lead.now = 2.9
    assert replies(lead.step(ev.Tick())) == {}
    lead.now = 3.0
    assert replies(lead.step(ev.Tick())) == {1: (ErrorCode.REQUEST_TIMED_OUT, -1)}
    assert replies(lead.fetch(B, 1)) == {}


def test_what_waits_is_answered_when_the_epoch_ends() -> None:
    lead = Lead()
    lead.step(produce(1))
    assert replies(lead.step(newer())) == {}
    assert replies(lead.step(produce(2))) == {2: (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)}
    effects = lead.step(ev.Appended(log_end_offset=1))
    assert replies(effects) == {1: (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)}
    assert lead.replica.role == "follower"
    (asked,) = [effect for effect in effects if isinstance(effect, fx.FetchNext)]
    assert (asked.leader, asked.fetch_offset, asked.last_fetched_epoch) == (B, 1, 1)


def test_of_what_waits_nobody_says_that_it_was_never_written_because_its_topic_is_deleted() -> None:
    lead = Lead()
    lead.step(produce(1))
    effects = lead.step(ev.TopicDeleted())
    ((error, _),) = replies(effects).values()
    assert not error.definite
    (refused,) = lead.step(produce(2))
    assert isinstance(refused, fx.ReplyProduce)
    assert (refused.error, refused.message) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "its topic was deleted",
    )
    assert not [effect for effect in effects if isinstance(effect, fx.Retire)]
    assert [type(effect) for effect in lead.step(ev.Appended(log_end_offset=1))] == [fx.Retire]


def test_a_log_that_cannot_be_made_is_an_error_of_the_storage() -> None:
    replica = Alone(A, 11)
    replica.tell(newer(leader=A), 0.0)
    replica.tell(ev.LogFailed(reason="disk full"), 0.0)
    (told,) = replica.tell(produce(1), 0.0)
    assert isinstance(told, fx.ReplyProduce)
    assert (told.error, told.message) == (ErrorCode.KAFKA_STORAGE_ERROR, "disk full")


def test_a_failed_log_answers_all_and_serves_nothing_until_it_is_open() -> None:
    lead = Lead()
    lead.step(produce(1))
    assert replies(lead.step(ev.LogFailed(reason="disk full"))) == {1: (ErrorCode.KAFKA_STORAGE_ERROR, -1)}
    (reply,) = lead.step(produce(2))
    assert isinstance(reply, fx.ReplyProduce)
    assert (reply.error, reply.message) == (ErrorCode.KAFKA_STORAGE_ERROR, "disk full")
    assert lead.step(newer()) == []
    assert lead.replica.role == "closed"


def test_several_epochs_that_pass_unseen_count_as_one_step() -> None:
    lead = Lead()
    lead.step(produce(1))
    lead.step(newer(B, 2))
    lead.step(newer(C, 3))
    lead.step(newer(A, 4))
    lead.step(ev.Appended(log_end_offset=1))
    assert lead.replica.leader is not None
    assert (lead.replica.leader_epoch, lead.replica.leader.epoch_start) == (4, 1)
    assert [entry.epoch for entry in lead.replica.log.epochs.entries] == [1, 4]
    assert {f.log_end_offset for f in lead.replica.leader.followers.values()} == {-1}


def test_the_latest_offset_is_not_told_before_the_earlier_epochs_are_committed() -> None:
    lead = Lead()
    lead.append(3)
    lead.step(newer(B, 2))
    lead.step(newer(A, 3))
    assert lead.replica.leader is not None
    assert lead.replica.leader.latest_offset() == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    lead.fetch(B, 3)
    assert lead.replica.leader.latest_offset() == (ErrorCode.NONE, 3)


def test_a_node_that_has_no_replica_takes_no_role() -> None:
    replica = Alone(9, 1)
    replica.tell(
        ev.Opened(log_start_offset=0, log_end_offset=0, high_watermark=0, epochs=(), producers=()), 0.0
    )
    replica.tell(newer(), 0.0)
    assert (replica.role, replica.leader_epoch) == ("closed", 2)


def test_an_epoch_that_the_leader_does_not_know_is_out_of_its_range() -> None:
    ask = ev.Fetch(replica_id=B, incarnation=12, leader_epoch=1, fetch_offset=0, last_fetched_epoch=7)
    answer = Lead().ask(ask)
    assert answer.error == ErrorCode.OFFSET_OUT_OF_RANGE
    assert answer.diverging is None


def test_why_a_caught_up_replica_is_out_while_another_change_is_stored() -> None:
    lead = Lead()
    assert lead.replica.leader is not None
    lead.fetch(C, 0)
    assert "being stored" in lead.replica.leader.why_out(C)
    lead.step(ev.IsrRefused(proposal_id=1))
    assert "catching up" in lead.replica.leader.why_out(C)


def test_no_role_is_taken_before_the_log_is_open() -> None:
    replica = Alone(A, 11)
    (early,) = replica.tell(produce(1), 0.0)
    assert isinstance(early, fx.ReplyProduce)
    assert (early.error, early.message) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, "the log is not open yet")
    assert (early.leader, early.leader_epoch) == (-1, -1)
    assert replica.tell(newer(leader=A), 0.0) == []
    assert (replica.role, replica.log_info()) == ("closed", None)
    ask = ev.Fetch(replica_id=B, incarnation=12, leader_epoch=2, fetch_offset=0, last_fetched_epoch=-1)
    refused, effects = replica.ask(ask, 0.0)
    assert effects == []
    # Clients that are told of an error of the storage complain; this one passes.
    assert (refused.error, refused.leader, refused.leader_epoch) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, A, 2)
    replica.tell(
        ev.Opened(log_start_offset=0, log_end_offset=0, high_watermark=0, epochs=(), producers=()), 0.0
    )
    assert (replica.role, replica.leader_epoch) == ("leader", 2)


@pytest.mark.parametrize("end", [0, 3])
def test_a_follower_that_keeps_up_and_cannot_be_proposed_yet_is_waited_for(end: int) -> None:
    """It is about to join: what is committed without it would keep it out again (KIP-497)."""
    lead = Lead()
    if end:
        lead.append(end)
    lead.step(ev.NodesChanged(live={A: 11, B: 12}))
    lead.fetch(B, end)
    lead.step(ev.NodesChanged(live={A: 11, B: 12, C: 13}))
    proposal_of_c = lead.fetch(C, end)
    assert [e for e in proposal_of_c if isinstance(e, fx.ProposeIsr)]
    lead.step(ev.IsrRefused(proposal_id=1))
    before = lead.high_watermark
    lead.append(2)
    lead.fetch(B, end + 2)
    assert lead.high_watermark == before, "C had everything a moment ago"
    lead.now = 10.0
    lead.step(ev.Tick())
    assert lead.high_watermark == before
    lead.now = 10.1
    lead.step(ev.Tick())
    assert lead.high_watermark == end + 2, "C has been away for longer than its lag time"


def test_why_a_replica_is_out() -> None:
    lead = Lead()
    lead.append(5)
    lead.fetch(B, 5)
    leader = lead.replica.leader
    assert leader is not None
    assert (leader.why_out(A), leader.why_out(B)) == ("", "")
    assert leader.why_out(9) == "it is being added"
    assert "has not fetched in this leader epoch" in leader.why_out(C)
    lead.fetch(C, 4)
    assert leader.why_out(C) == "it is at offset 4 and may join from 5 on"
    lead.step(ev.NodesChanged(live={A: 11, B: 12}))
    assert "not alive" in leader.why_out(C)
    lead.step(ev.NodesChanged(live={A: 11, B: 12, C: 12}))
    assert "another process than the one that fetches" in leader.why_out(C)
    lead.step(ev.NodesChanged(live=LIVE))
    lead.step(ev.DeleteRecords(request_id=1, offset=2, deadline=9.0))
    lead.step(ev.LogStartAdvanced(log_start_offset=2))
    lead.fetch(C, 5)
    assert leader.why_out(C) == "it still has deleted records below offset 2"


def test_an_answer_that_comes_when_the_replica_follows_no_more_is_nobodys() -> None:
    late = ev.Fetched(
        fetch_offset=0,
        leader_epoch=2,
        error=ErrorCode.NONE,
        high_watermark=1,
        log_start_offset=0,
        log_end_offset=1,
        batches=(BatchMeta(0, 1, 2, 10),),
    )
    failed = ev.FetchFailed(fetch_offset=0, leader_epoch=2)
    lead = Lead()
    lead.step(newer(B, 2))
    assert lead.replica.role == "follower"
    lead.step(newer(A, 3))
    assert [lead.step(event) for event in (late, failed)] == [[], []]
    lead.step(ev.EpochAssigned())
    assert lead.replica.role == "leader"
    assert [lead.step(event) for event in (late, failed)] == [[], []]
    lead.step(ev.LogFailed(reason="gone"))
    assert [lead.step(event) for event in (late, failed)] == [[], []]


def test_a_follower_takes_nothing_while_a_newer_epoch_waits_for_its_log() -> None:
    lead = Lead()
    lead.step(newer(B, 2))
    answer = ev.Fetched(
        fetch_offset=0,
        leader_epoch=2,
        error=ErrorCode.NONE,
        high_watermark=1,
        log_start_offset=0,
        log_end_offset=2,
        batches=(BatchMeta(0, 1, 2, 10),),
    )
    assert [type(effect) for effect in lead.step(answer)] == [fx.Append]
    lead.step(newer(C, 3))
    assert lead.replica.stepping
    assert lead.step(ev.FetchFailed(fetch_offset=0, leader_epoch=2)) == []
    effects = lead.step(ev.Appended(log_end_offset=1))
    asked = [(e.leader, e.leader_epoch, e.fetch_offset) for e in effects if isinstance(e, fx.FetchNext)]
    assert asked == [(C, 3, 1)], "nothing is asked of the former leader any more"


def test_whoever_needs_no_other_commits_what_it_has_written() -> None:
    lead = Lead()
    alone = structs.replace(record(isr=(A,), epoch=2), min_insync_replicas=1)
    lead.step(ev.RecordChanged(versioned=Versioned(alone, 2)))
    lead.step(ev.EpochAssigned())
    assert replies(lead.step(produce(1))) == {}
    assert replies(lead.step(ev.Appended(log_end_offset=1))) == {1: (ErrorCode.NONE, 0)}
    assert lead.high_watermark == 1


def test_only_a_leader_that_changes_the_isr_waits_for_a_record() -> None:
    lead = Lead()
    assert not lead.replica.awaits_record
    lead.fetch(C, 0)
    assert lead.replica.awaits_record
    lead.step(ev.IsrRefused(proposal_id=1))
    assert not lead.replica.awaits_record
    lead.step(newer(B, 2))
    assert not lead.replica.awaits_record
    lead.step(ev.LogFailed(reason="gone"))
    assert not lead.replica.awaits_record


@pytest.mark.parametrize("leader", [A, B])
def test_what_retention_has_deleted_is_gone_whoever_leads(leader: int) -> None:
    lead = Lead()
    lead.append(4)
    lead.fetch(B, 4)
    lead.step(newer(leader, 2))
    if leader == A:
        lead.step(ev.EpochAssigned())
    raised = lead.step(ev.LogStartRaised(log_start_offset=3))
    assert lead.replica.log.log_start_offset == 3
    assert (WAKE in raised) == (leader == A), "followers are to hear of it"
    assert lead.step(ev.LogStartRaised(log_start_offset=2)) == [], "that is known"
    assert lead.replica.log.log_start_offset == 3


def fetch_error(lead: Lead) -> ErrorCode:
    ask = ev.Fetch(replica_id=B, incarnation=12, leader_epoch=1, fetch_offset=0, last_fetched_epoch=-1)
    return lead.ask(ask).error


def test_a_replica_of_a_deleted_topic_answers_all_and_goes_when_its_log_is_done() -> None:
    lead = Lead()
    lead.step(produce(1))
    effects = lead.step(ev.TopicDeleted())
    assert replies(effects) == {1: (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)}, "it may be written"
    assert not [e for e in effects if isinstance(e, fx.Retire)], "it is being written yet"
    (refused,) = lead.step(produce(2))
    assert isinstance(refused, fx.ReplyProduce)
    assert (refused.error, refused.message) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "its topic was deleted",
    )
    assert fetch_error(lead) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert lead.step(newer(B, 2)) == []
    assert lead.step(ev.Appended(log_end_offset=1)) == [fx.Retire(leader_epoch=1)]
    again = ev.Opened(log_start_offset=0, log_end_offset=1, high_watermark=0, epochs=(), producers=())
    assert [lead.step(event) for event in (again, ev.Tick(), ev.TopicDeleted())] == [[], [], [WAKE]]
    assert (lead.replica.role, lead.replica.log_info()) == ("closed", None)


def test_what_a_log_holds_is_told_in_the_epoch_that_was_entered() -> None:
    lead = Lead()
    lead.append(2)
    told = LogInfo(
        incarnation=LIVE[A],
        leader_epoch=1,
        last_epoch=1,
        log_end_offset=2,
        topic_id="x",
        epochs=(EpochEntry(1, 0),),
    )
    assert lead.replica.log_info() == told
    lead.append(1, report=False)
    lead.step(newer(-1, 2))
    assert lead.replica.log_info() is None, "what is being written may count or not"
    lead.step(ev.Appended(log_end_offset=3))
    assert lead.replica.log_info() == structs.replace(told, leader_epoch=2, log_end_offset=3)


@pytest.mark.parametrize(
    ("epoch", "sequence", "error"),
    [(1, 2, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), (0, 0, ErrorCode.INVALID_PRODUCER_EPOCH)],
)
def test_a_batch_that_a_producer_may_not_write_is_refused(
    epoch: int, sequence: int, error: ErrorCode
) -> None:
    lead = Lead()
    for number, (of, base) in enumerate([(1, 0), (epoch, sequence)]):
        batch = BatchMeta(-1, 1, -1, 10, 7, of, base)
        effects = lead.step(ev.Produce(request_id=number, acks=1, batch=batch, deadline=9.0, handle=None))
    assert replies(effects) == {1: (error, -1)}
    assert not [e for e in effects if isinstance(e, fx.Append)]


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH), (1, None), (-1, None)],
)
def test_a_write_may_name_the_epoch_that_it_is_for(epoch: int, error: ErrorCode | None) -> None:
    effects = Lead().step(structs.replace(produce(1), leader_epoch=epoch))
    assert replies(effects) == ({} if error is None else {1: (error, -1)})
    for effect in effects:
        if isinstance(effect, fx.ReplyProduce):
            assert (effect.leader, effect.leader_epoch) == (A, 1), "whom to ask instead"


def test_a_record_of_an_epoch_that_is_known_is_taken_though_the_log_is_away() -> None:
    lead = Lead()
    lead.step(ev.LogFailed(reason="gone"))
    grown = record(isr=(A, B, C))
    assert lead.step(ev.RecordChanged(versioned=Versioned(grown, 2))) == []
    lead.step(ev.Opened(log_start_offset=0, log_end_offset=0, high_watermark=0, epochs=(), producers=()))
    assert lead.replica.leader is not None
    assert lead.replica.leader.record.isr == (A, B, C)


def test_a_move_adds_replicas_within_an_epoch() -> None:
    lead = Lead()
    assert lead.replica.leader is not None
    moving = structs.replace(record(), replicas=(A, B, C, 4), adding=(4,))
    lead.step(ev.RecordChanged(versioned=Versioned(moving, 2)))
    assert lead.replica.leader.why_out(4) == "its node is not alive, or its log directory there is offline"
    lead.step(ev.NodesChanged(live={**LIVE, 4: 14}))
    ask = ev.Fetch(replica_id=4, incarnation=14, leader_epoch=1, fetch_offset=0, last_fetched_epoch=-1)
    (proposal,) = [e for e in lead.question_answered(ask) if isinstance(e, fx.ProposeIsr)]
    assert proposal.joining == ((4, 14),)


def test_a_process_that_replaces_another_proves_its_own_log() -> None:
    lead = Lead()
    lead.append(3)
    lead.fetch(B, 3)
    lead.append(1)
    lead.fetch(B, 1, incarnation=LIVE[B] + 1)
    assert lead.replica.leader is not None
    assert lead.replica.leader.followers[B].log_end_offset == 1
    assert lead.replica.leader.followers[B].leader_end_at_last_fetch == 4


def test_who_takes_a_role_says_so_and_what_it_does_first() -> None:
    replica = Alone(A, LIVE[A])
    replica.tell(
        ev.Opened(log_start_offset=0, log_end_offset=3, high_watermark=0, epochs=(), producers=()), 0.0
    )
    leaderless = replica.tell(newer(-1, 2), 0.0)
    assert leaderless == [
        WAKE,
        fx.RoleChanged(
            partition=PARTITION, role="follower", leader=-1, leader_epoch=2, reason="no replica may lead"
        ),
    ], "there is nobody to ask"
    leading = replica.tell(newer(A, 3), 0.0)
    assert leading == [
        STOP,
        WAKE,
        fx.AssignEpoch(partition=PARTITION, epoch=3, start_offset=3),
        fx.RoleChanged(
            partition=PARTITION, role="leader", leader=A, leader_epoch=3, reason="elected at offset 3"
        ),
    ]
    following = replica.tell(newer(B, 4), 0.0)
    assert following == [], "the log has not noted the epoch yet"
    following = replica.tell(ev.EpochAssigned(), 0.0)
    assert [following[0], *map(type, following[1:])] == [WAKE, fx.RoleChanged, fx.FetchNext]
    assert following[1] == fx.RoleChanged(
        partition=PARTITION, role="follower", leader=B, leader_epoch=4, reason="as the partition record says"
    )


def test_five_batches_of_a_producer_may_be_repeated_and_no_more() -> None:
    lead = Lead()
    for number in range(6):
        assert replies(lead.step(produce(number, acks=0, sequence=number))) == {
            number: (ErrorCode.NONE, number)
        }
    for number in range(1, 6):
        repeated = lead.step(produce(10 + number, acks=0, sequence=number))
        assert replies(repeated) == {10 + number: (ErrorCode.NONE, number)}
        assert not [e for e in repeated if isinstance(e, fx.Append)]
    oldest = lead.step(produce(20, acks=0, sequence=0))
    assert replies(oldest) == {20: (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)}


def test_what_a_process_had_says_nothing_about_when_its_successor_has_caught_up() -> None:
    lead = Lead()
    lead.append(3)
    lead.now = 4.0
    lead.fetch(C, 2)
    lead.now = 5.0
    lead.append(2)
    lead.now = 8.0
    lead.fetch(C, 3, incarnation=14)
    lead.step(ev.NodesChanged(live={**LIVE, C: 14}))
    assert proposals(lead.fetch(C, 3, incarnation=14)) == [], "it has never had all that there was"
    assert len(proposals(lead.fetch(C, 5, incarnation=14))) == 1


def test_a_replica_of_a_deleted_topic_waits_for_no_log_that_has_failed() -> None:
    lead = Lead()
    lead.step(produce(1))
    lead.step(ev.LogFailed(reason="disk full"))
    assert fx.Retire(leader_epoch=1) in lead.step(ev.TopicDeleted())


@pytest.mark.parametrize("leader", [A, B])
def test_an_older_record_in_which_a_node_has_no_replica_costs_it_nothing(leader: int) -> None:
    """It was taken out and is to have the partition again, and the first record arrives last (KAFKA-9539)."""
    replica = Alone(A, LIVE[A])
    opened = ev.Opened(log_start_offset=0, log_end_offset=0, high_watermark=0, epochs=(), producers=())
    assigned = (ev.EpochAssigned(),) if leader == A else ()
    for event in (newer(leader=leader, epoch=3), opened, *assigned):
        replica.tell(event, 0.0)
    role = replica.role
    taken_out = ev.RecordChanged(
        versioned=Versioned(structs.replace(record(leader=B, epoch=2), replicas=(B, C), isr=(B, C)), 2)
    )
    assert replica.tell(taken_out, 0.0) == []
    assert (replica.role, replica.leader_epoch) == (role, 3)
