"""When time means something to a replica: a partition that stands still costs no ticks."""

from __future__ import annotations

from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev

from .test_isr_change import A, B, Lead, proposals
from .test_transaction_gate import Gate

LAG = 30.0


def wants(lead: Lead) -> bool:
    """Whether it still wants to be told of time, once it was."""
    lead.step(ev.Tick())
    return lead.replica.wants_tick


def test_a_leader_whose_members_have_everything_wants_no_tick_until_something_happens() -> None:
    lead = Lead()
    lead.append(2)
    assert wants(lead)
    lead.fetch(B, 2)
    assert lead.high_watermark == 2
    assert not wants(lead)
    lead.append(1)
    assert lead.replica.wants_tick and wants(lead)


def test_what_a_tick_would_change_nothing_of_is_not_told_of_it() -> None:
    lead = Lead()
    lead.append(2)
    assert lead.replica.wants_tick and lead.replica.needs_tick()
    lead.fetch(B, 2)
    assert lead.replica.wants_tick and not lead.replica.needs_tick(), "all is committed, everybody has it"
    assert not lead.replica.wants_tick, "and nobody asks again before something happens"
    lead.append(1)
    assert lead.replica.wants_tick and lead.replica.needs_tick()


def test_a_fetch_that_tells_of_a_shorter_log_is_something() -> None:
    lead = Lead()
    lead.append(2)
    lead.fetch(B, 2)
    assert not wants(lead)
    lead.fetch(B, 1)
    assert lead.replica.wants_tick and wants(lead)


def test_a_member_that_never_asks_is_put_out_though_nothing_was_ever_written() -> None:
    lead = Lead()
    assert wants(lead)
    lead.now += 2 * LAG
    (proposal,) = proposals(lead.step(ev.Tick()))
    assert proposal.removing == (B,) and proposal.record.isr == (A,)
    assert wants(lead), "the change is under way"


def test_who_waits_for_the_disk_is_answered_in_time() -> None:
    lead = Lead((A,))
    lead.append(1, report=False)
    assert wants(lead)


def test_a_deletion_that_waits_is_answered_in_time() -> None:
    lead = Lead()
    lead.append(2)
    lead.fetch(B, 2)
    assert not wants(lead)
    lead.step(ev.DeleteRecords(request_id=7, offset=1, deadline=lead.now + 5))
    lead.step(ev.LogStartAdvanced(log_start_offset=1))
    assert wants(lead)
    lead.now += 6
    replies = [each for each in lead.step(ev.Tick()) if isinstance(each, fx.ReplyDeleteRecords)]
    assert [each.request_id for each in replies] == [7]


def test_a_batch_that_waits_for_its_transaction_is_answered_in_time() -> None:
    lead = Gate()
    lead.data(deadline=lead.now + 5)
    lead.step(ev.Tick())
    assert lead.replica.wants_tick
