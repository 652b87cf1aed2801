"""What a leader answers to a fetch, against a slow second version that looks at every offset of the log."""

from __future__ import annotations

from typing import Any

import attrs
import hypothesis
from hypothesis import strategies as st
from msgspec import structs

from insync.replication.core.control.records import Versioned
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.partition.isr import Follower
from insync.replication.core.types import CONSUMER, NO_EPOCH, BatchMeta, EpochEnd, EpochEntry

from .alone import WAKE, Alone
from .test_isr_change import LIVE, A, B, C, Lead, record


@attrs.frozen
class Log:
    """The leader's log: the epoch of each of its records, what is deleted and what is committed."""

    epochs: tuple[int, ...]
    start: int
    high_watermark: int
    leader_epoch: int

    @property
    def end(self) -> int:
        return len(self.epochs)

    def entries(self) -> tuple[EpochEntry, ...]:
        kept = range(self.start, self.end)
        first = {self.epochs[offset]: offset for offset in reversed(kept)}
        return tuple(EpochEntry(epoch, first[epoch]) for epoch in sorted(first))

    def lead(self, isr: tuple[int, ...] = (A, B, C)) -> Alone:
        """Replica A that leads with this log. With C in the ISR, which never fetches, nothing more is committed."""
        replica = Alone(A, LIVE[A])
        for event in (
            ev.Opened(
                log_start_offset=self.start,
                log_end_offset=self.end,
                high_watermark=self.high_watermark,
                epochs=self.entries(),
                producers=(),
            ),
            ev.NodesChanged(live=LIVE),
            ev.RecordChanged(versioned=Versioned(record(isr=isr, epoch=self.leader_epoch), 1)),
            ev.EpochAssigned(),
        ):
            replica.tell(event, 0.0)
        return replica

    def end_of(self, epoch: int) -> EpochEnd | None:
        """Where an epoch, or the greatest known below it, ends here."""
        known = {*self.epochs[self.start :], self.leader_epoch}
        if epoch > self.leader_epoch:
            return None
        later = [offset for offset in range(self.start, self.end) if self.epochs[offset] > epoch]
        end = min(later, default=self.end)
        return EpochEnd(max((each for each in known if each <= epoch), default=epoch), end)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    epochs = tuple(sorted(draw(st.lists(st.integers(0, 4), max_size=8))))
    start = draw(st.integers(0, len(epochs)))
    committed = draw(st.integers(start, len(epochs)))
    return Log(epochs, start, committed, draw(st.integers(max(epochs, default=0) + 1, 6)))


@st.composite
def fetches(draw: st.DrawFn) -> ev.Fetch:
    return ev.Fetch(
        replica_id=draw(st.sampled_from((B, B, CONSUMER, 9))),
        incarnation=LIVE[B],
        leader_epoch=draw(st.integers(NO_EPOCH, 7)),
        fetch_offset=draw(st.integers(0, 9)),
        last_fetched_epoch=draw(st.integers(NO_EPOCH, 7)),
        high_watermark=draw(st.integers(-1, 9)),
        log_start_offset=draw(st.integers(0, 9)),
        topic_id=draw(st.sampled_from(("", "x", "x", "y"))),
    )


def judge(log: Log, ask: ev.Fetch, known: int) -> tuple[ErrorCode, EpochEnd | None]:
    """The error, or where the reader's log parts from ours, by KIP-516, KIP-320, KIP-903, KIP-101 and KIP-595.

    known: the incarnation of the process of B that has fetched before.
    """
    reader = ask.replica_id == CONSUMER
    if ask.topic_id not in ("", "x"):
        return ErrorCode.INCONSISTENT_TOPIC_ID, None
    if ask.leader_epoch not in (NO_EPOCH, log.leader_epoch):
        older = ask.leader_epoch < log.leader_epoch
        return ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH, None
    if not reader and (ask.leader_epoch == NO_EPOCH or ask.replica_id == 9):
        return ErrorCode.UNKNOWN_LEADER_EPOCH, None
    if not reader and ask.incarnation < known:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, None
    if ask.fetch_offset < log.start:
        return ErrorCode.OFFSET_OUT_OF_RANGE, None
    if ask.last_fetched_epoch == NO_EPOCH:
        return ErrorCode.OFFSET_OUT_OF_RANGE if ask.fetch_offset > log.end else ErrorCode.NONE, None
    if (
        not reader
        and log.start > 0
        and all(ask.last_fetched_epoch < epoch for epoch in (*log.epochs[log.start :], log.leader_epoch))
    ):
        # Where that epoch ended is deleted and forgotten.
        return ErrorCode.NONE, EpochEnd(NO_EPOCH, log.start)
    end = log.end_of(ask.last_fetched_epoch)
    if end is None:
        return ErrorCode.OFFSET_OUT_OF_RANGE, None
    parts = end.epoch < ask.last_fetched_epoch or end.end_offset < ask.fetch_offset
    return ErrorCode.NONE, end if parts else None


def answer_to(replica: Alone, ask: ev.Fetch) -> fx.FetchAnswer:
    return replica.fetch(ask, 0.0)


@hypothesis.settings(max_examples=400, deadline=None)
@hypothesis.given(logs(), fetches(), st.booleans(), st.booleans(), st.integers(-1, 1))
def test_every_fetch_is_answered_by_the_rules(
    log: Log, ask: ev.Fetch, current: bool, again: bool, younger: int
) -> None:
    if current:
        ask = structs.replace(ask, leader_epoch=log.leader_epoch, topic_id="x")
    replica = log.lead()
    if again:
        answer_to(replica, asked_at_the_end(log))
        epoch = log.leader_epoch if current else ask.last_fetched_epoch
        ask = structs.replace(ask, incarnation=LIVE[B] + younger, last_fetched_epoch=epoch)
    before = (log.end, LIVE[B]) if again else (-1, -1)
    answer = answer_to(replica, ask)
    error, diverging = judge(log, ask, before[1])
    assert (answer.error, answer.diverging) == (error, diverging)
    follower = ask.replica_id != CONSUMER
    limit = log.end if follower else log.high_watermark
    assert answer == fx.FetchAnswer(
        error=error,
        news=answer.news,
        fetch_offset=ask.fetch_offset,
        limit_offset=limit,
        high_watermark=log.high_watermark,
        log_start_offset=log.start,
        log_end_offset=log.end,
        leader_epoch=log.leader_epoch,
        leader=A,
        diverging=diverging,
        last_stable_offset=-1 if follower else limit,
    )
    # A follower is told at once what it may do with its log: take records, believe a high watermark, delete.
    can_learn = min(log.high_watermark, ask.fetch_offset)
    told = follower and (ask.high_watermark < can_learn or ask.log_start_offset < log.start)
    assert answer.news == (
        error != ErrorCode.NONE or diverging is not None or ask.fetch_offset < limit or told
    )
    assert replica.leader is not None
    counted = follower and error == ErrorCode.NONE and diverging is None
    known = replica.leader.followers[B]
    after = (ask.fetch_offset, ask.incarnation) if counted else before
    assert (known.log_end_offset, known.incarnation) == after


def asked_at_the_end(log: Log) -> ev.Fetch:
    """What B asks when it has everything."""
    return ev.Fetch(
        replica_id=B,
        incarnation=LIVE[B],
        leader_epoch=log.leader_epoch,
        fetch_offset=log.end,
        last_fetched_epoch=log.leader_epoch,
        high_watermark=log.high_watermark,
        log_start_offset=log.start,
        topic_id="x",
    )


EXCEPTIONS = {
    "replica_id": (C, 9, CONSUMER, A),
    "incarnation": (LIVE[B] - 1, LIVE[B] + 1),
    "leader_epoch": (NO_EPOCH, 1, 7),
    "fetch_offset": (0, 1, 2, 3, 9),
    "last_fetched_epoch": (NO_EPOCH, 0, 7),
    "log_start_offset": (0, 1),
    "high_watermark": (-1, 0, 9),
    "topic_id": ("", "y"),
}


@hypothesis.settings(max_examples=400, deadline=None)
@hypothesis.given(logs(), st.data())
def test_a_member_that_only_follows_is_accounted_as_if_it_were_answered(
    log: Log, data: st.DataObject
) -> None:
    isr = data.draw(st.sampled_from(((A, B), (A, B, C), (A, C))))
    asked = asked_at_the_end(log)
    earlier = structs.replace(asked, fetch_offset=data.draw(st.integers(log.start, log.end)))
    field = data.draw(st.sampled_from((None, *EXCEPTIONS, "fetch_offset")))
    odd: dict[str, Any] = {} if field is None else {field: data.draw(st.sampled_from(EXCEPTIONS[field]))}
    ask = structs.replace(asked, **odd)
    replica, twin = log.lead(isr), log.lead(isr)
    if data.draw(st.sampled_from((True, True, False))):
        assert answer_to(replica, earlier) == answer_to(twin, earlier)
    before = state(replica)
    if not replica.follow(ask, 1.0):
        assert state(replica) == before
        assert ask != asked or B not in isr or before[0][0].incarnation < 0, "it is the usual case"
        return
    started, known = max(ask.log_start_offset, log.start), ask.high_watermark
    assert ask == structs.replace(asked, log_start_offset=started, high_watermark=known), "something is amiss"
    answer, others = twin.ask(ask, 1.0)
    assert replica.taken() == others
    assert (answer.error, answer.diverging, answer.limit_offset) == (ErrorCode.NONE, None, ask.fetch_offset)
    assert answer.news == (ask.high_watermark < answer.high_watermark), "nothing else is news"
    assert state(replica) == state(twin)


def state(replica: Alone) -> tuple[list[Follower], int, object]:
    assert replica.leader is not None
    followers = replica.leader.followers
    return (
        [attrs.evolve(followers[B]), attrs.evolve(followers[C])],
        replica.log.high_watermark,
        replica.leader.change.pending,
    )


def test_a_predecessor_of_the_process_that_fetched_is_refused() -> None:
    lead = Lead()
    lead.append(3)
    lead.fetch(B, 2)
    lead.fetch(B, 3, incarnation=LIVE[B] - 1)
    assert lead.answer.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert lead.high_watermark == 2


def wakes(effects: list[object]) -> bool:
    return WAKE in effects


def test_whoever_waits_hears_of_what_was_written_and_of_what_was_committed() -> None:
    lead = Lead()
    batch = ev.Produce(request_id=1, acks=1, batch=record_batch(3), deadline=9.0, handle=None)
    assert not wakes(lead.step(batch)), "nothing can be read yet"
    assert wakes(lead.step(ev.Appended(log_end_offset=3)))
    assert wakes(lead.fetch(B, 3)), "consumers may read up to 3 now"
    assert not wakes(lead.fetch(B, 3)), "nothing has changed"


def record_batch(count: int) -> BatchMeta:
    return BatchMeta(-1, count, -1, 100)
