"""What a follower does with any answer of its leader, against a slow second version of the rules."""

from __future__ import annotations

import attrs
import hypothesis
import pytest
from hypothesis import strategies as st
from msgspec import structs

from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.types import BatchMeta, EpochEnd, EpochEntry

from .alone import PARTITION, WAKE, Alone
from .test_follower import fetched, record

LEADER_EPOCH = 5


@attrs.frozen
class Own:
    """The follower's log: the epoch of each record, what is deleted and what is known to be committed."""

    epochs: tuple[int, ...]
    start: int
    high_watermark: int

    @property
    def end(self) -> int:
        return len(self.epochs)

    @property
    def kept(self) -> range:
        return range(self.start, self.end)

    @property
    def last_epoch(self) -> int:
        return self.epochs[-1] if self.kept else -1

    def replica(self) -> Alone:
        replica = Alone(2, 22)
        first = {self.epochs[offset]: offset for offset in reversed(self.kept)}
        replica.tell(
            ev.Opened(
                log_start_offset=self.start,
                log_end_offset=self.end,
                high_watermark=self.high_watermark,
                epochs=tuple(EpochEntry(epoch, first[epoch]) for epoch in sorted(first)),
                producers=(),
            ),
            0.0,
        )
        (_, _, asked) = replica.tell(ev.RecordChanged(versioned=record(LEADER_EPOCH)), 0.0)
        assert asked == self.question()
        return replica

    def question(self, *, delayed: bool = False, high_watermark: int | None = None) -> fx.FetchNext:
        return fx.FetchNext(
            leader=1,
            leader_epoch=LEADER_EPOCH,
            fetch_offset=self.end,
            last_fetched_epoch=self.last_epoch,
            log_start_offset=self.start,
            high_watermark=self.high_watermark if high_watermark is None else high_watermark,
            topic_id="x",
            delayed=delayed,
        )

    def shared(self, leader_end: EpochEnd) -> int:
        """How much of it the leader may have too: nothing past the end that it names, nothing of a later epoch.

        Of an epoch that we have not, what comes before it stands until the leader is asked about that (KIP-279).
        """
        known = [self.epochs[offset] for offset in self.kept]
        later = [offset for offset in self.kept if self.epochs[offset] > leader_end.epoch]
        own_end = min(later, default=self.end)
        if leader_end.epoch >= 0 and known and leader_end.epoch <= max(known):
            below = max((epoch for epoch in known if epoch <= leader_end.epoch), default=leader_end.epoch)
            if below != leader_end.epoch:
                return own_end
            return min(own_end, leader_end.end_offset)
        return min(self.end, leader_end.end_offset)


@st.composite
def logs(draw: st.DrawFn) -> Own:
    epochs = tuple(sorted(draw(st.lists(st.integers(0, 4), max_size=8))))
    start = draw(st.integers(0, len(epochs)))
    return Own(epochs, start, draw(st.integers(start, len(epochs))))


@st.composite
def batches(draw: st.DrawFn, end: int) -> tuple[BatchMeta, ...]:
    """Mostly such as go on from `end`."""
    found, offset = [], end + draw(st.sampled_from((0, 0, 0, -1, 1)))
    for _ in range(draw(st.integers(0, 3))):
        count, epoch = draw(st.integers(1, 3)), draw(st.sampled_from((3, 4, 4, 5, 5, 6)))
        found.append(BatchMeta(max(0, offset), count, epoch, 10))
        offset = max(0, offset) + count + draw(st.sampled_from((0, 0, 0, 1)))
    return tuple(found)


def goes_on(own: Own, answer: ev.Fetched) -> bool:
    expected, epoch = own.end, own.last_epoch
    for number, batch in enumerate(answer.batches):
        begins_inside = (
            number == 0
            and not own.kept
            and batch.base_offset < expected < batch.base_offset + batch.offset_count
        )
        after_a_gap = answer.may_skip and batch.base_offset > expected
        if not (batch.base_offset == expected or begins_inside or after_a_gap):
            return False
        if batch.leader_epoch < epoch or batch.leader_epoch > LEADER_EPOCH:
            return False
        expected, epoch = batch.base_offset + batch.offset_count, batch.leader_epoch
    return True


def judge(own: Own, answer: ev.Fetched) -> list[object]:
    """What a follower does, by KIP-320, KIP-595, KAFKA-9491, KAFKA-14704."""
    restart = fx.Truncate(partition=PARTITION, offset=answer.log_start_offset, restart=True)
    if answer.error == ErrorCode.FENCED_LEADER_EPOCH:
        return []
    if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE and 0 <= answer.log_end_offset < own.end:
        return cut(own, answer.log_end_offset)
    if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE and answer.log_start_offset > own.end:
        return [restart]
    if answer.error != ErrorCode.NONE:
        return [own.question(delayed=True)]
    if answer.diverging is not None:
        shared = own.shared(answer.diverging)
        return [restart] if 0 < answer.log_start_offset >= shared else cut(own, shared)
    if own.high_watermark < own.end <= answer.log_start_offset:
        return [restart]
    if answer.batches and not goes_on(own, answer):
        return [own.question(delayed=True)]
    if answer.batches:
        first = answer.batches[0].base_offset
        return [
            fx.Append(
                partition=PARTITION,
                handle=None,
                batches=answer.batches,
                base_offset=first,
                leader_epoch=None,
                may_skip=answer.may_skip,
                begins_inside=first < own.end,
            )
        ]
    return learn(own, answer)


def cut(own: Own, offset: int) -> list[object]:
    """No unclean election has taken place: what is committed stays."""
    if offset >= own.high_watermark:
        return [fx.Truncate(partition=PARTITION, offset=offset)]
    refused = fx.CutRefused(
        partition=PARTITION,
        leader=1,
        leader_epoch=LEADER_EPOCH,
        offset=offset,
        high_watermark=own.high_watermark,
    )
    return [refused, own.question(delayed=True)]


def learn(own: Own, answer: ev.Fetched) -> list[object]:
    known = max(own.high_watermark, min(answer.high_watermark, own.end))
    effects: list[object] = [WAKE] if known > own.high_watermark else []
    start = min(answer.log_start_offset, known)
    if start > own.start:
        return [*effects, fx.AdvanceLogStart(partition=PARTITION, offset=start)]
    return [*effects, own.question(high_watermark=known)]


ERRORS = st.sampled_from(
    (
        ErrorCode.NONE,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)
OFFSETS = st.integers(-1, 10)


@hypothesis.settings(max_examples=400, deadline=None)
@hypothesis.given(logs(), st.data())
def test_every_answer_is_taken_by_the_rules(own: Own, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(("records", "nothing", "error", "range", "divergence")))
    end = st.builds(EpochEnd, st.integers(-1, LEADER_EPOCH), st.integers(0, 9))
    errors = {"error": data.draw(ERRORS), "range": ErrorCode.OFFSET_OUT_OF_RANGE}
    answer = structs.replace(
        fetched(
            own.end,
            last_fetched_epoch=data.draw(st.sampled_from((None, own.last_epoch))),
            error=errors.get(kind, ErrorCode.NONE),
            high_watermark=data.draw(OFFSETS),
            log_start_offset=data.draw(OFFSETS),
            log_end_offset=data.draw(OFFSETS),
            diverging=data.draw(end) if kind == "divergence" else None,
            batches=data.draw(batches(own.end)) if kind == "records" else (),
            leader_epoch=LEADER_EPOCH,
        ),
        may_skip=data.draw(st.booleans()),
    )
    replica = own.replica()
    effects = replica.tell(answer, 0.0)
    assert effects == judge(own, answer)
    asked = any(isinstance(effect, fx.FetchNext) for effect in effects)
    again = replica.tell(answer, 0.0)
    assert asked or again == [], "one question is answered once"


@hypothesis.given(logs(), OFFSETS, OFFSETS, st.integers(1, 3))
def test_what_came_with_records_is_learnt_when_they_are_written(
    own: Own, high_watermark: int, leader_start: int, count: int
) -> None:
    answer = fetched(
        own.end,
        high_watermark=high_watermark,
        log_start_offset=leader_start,
        batches=(BatchMeta(own.end, count, LEADER_EPOCH, 10),),
        leader_epoch=LEADER_EPOCH,
    )
    hypothesis.assume(
        judge(own, answer) != [fx.Truncate(partition=PARTITION, offset=leader_start, restart=True)]
    )
    replica = own.replica()
    replica.tell(answer, 0.0)
    assert replica.log.high_watermark == own.high_watermark, "nothing is believed of what is not written"
    grown = Own((*own.epochs, *[LEADER_EPOCH] * count), own.start, own.high_watermark)
    assert replica.tell(ev.Appended(log_end_offset=grown.end), 0.0) == learn(grown, answer)


def test_a_question_that_failed_is_asked_again_after_a_pause() -> None:
    own = Own((1, 1), 0, 1)
    replica = own.replica()
    failed = ev.FetchFailed(fetch_offset=2, leader_epoch=LEADER_EPOCH)
    assert replica.tell(structs.replace(failed, fetch_offset=1), 0.0) == []
    assert replica.tell(structs.replace(failed, leader_epoch=4), 0.0) == []
    assert replica.tell(failed, 0.0) == [own.question(delayed=True)]


def test_what_the_leader_has_deleted_is_deleted_before_the_next_question() -> None:
    own = Own((1, 1, 1), 0, 2)
    replica = own.replica()
    answer = fetched(3, high_watermark=2, log_start_offset=2, leader_epoch=LEADER_EPOCH)
    assert replica.tell(answer, 0.0) == [fx.AdvanceLogStart(partition=PARTITION, offset=2)]
    assert replica.log.outstanding == 1
    (asked,) = replica.tell(ev.LogStartAdvanced(log_start_offset=2), 0.0)
    assert isinstance(asked, fx.FetchNext)
    assert (asked.log_start_offset, asked.fetch_offset, asked.last_fetched_epoch) == (2, 3, 1)


@pytest.mark.parametrize(
    ("leader_start", "cut"),
    [
        (0, fx.Truncate(partition=PARTITION, offset=0)),
        (1, fx.Truncate(partition=PARTITION, offset=1, restart=True)),
        (2, fx.Truncate(partition=PARTITION, offset=2, restart=True)),
    ],
)
def test_nothing_is_kept_that_ends_before_what_the_leader_still_has(
    leader_start: int, cut: fx.Truncate
) -> None:
    own = Own((3, 3), 0, 0)
    parted = fetched(2, log_start_offset=leader_start, diverging=EpochEnd(2, 0), leader_epoch=LEADER_EPOCH)
    assert own.replica().tell(parted, 0.0) == [cut]
