"""The deciding functions against slow and obvious second versions of themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from insync.replication.core.control import transitions
from insync.replication.core.control.records import PartitionRecord
from insync.replication.core.control.topics import TopicError, assign, check_name, parse_config
from insync.replication.core.epochs import EpochCache, diverges, truncation_point
from insync.replication.core.partition import isr as rules
from insync.replication.core.partition.isr import Follower
from insync.replication.core.partition.producers import ProducerTable, SequenceVerdict
from insync.replication.core.types import (
    NO_LEADER,
    SEQUENCE_MODULUS,
    BatchMeta,
    EpochEnd,
    EpochEntry,
    TransactionMarker,
)


def given(*strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Hypothesis without a deadline: how long an example takes is the machine's affair."""
    return lambda test: hypothesis.settings(deadline=None)(hypothesis.given(*strategies)(test))


# A log as the epoch of each of its offsets; epochs never go back.
logs = st.lists(st.integers(0, 6), max_size=12).map(sorted)


def cache_of(log: list[int]) -> EpochCache:
    cache = EpochCache()
    for offset, epoch in enumerate(log):
        cache.assign(epoch, offset)
    return cache


@given(logs)
def test_the_cache_has_each_epoch_once_with_its_first_offset(log: list[int]) -> None:
    expected = tuple(EpochEntry(epoch, log.index(epoch)) for epoch in sorted(set(log)))
    assert cache_of(log).entries == expected


@given(logs, st.integers(-1, 8))
def test_the_end_of_an_epoch(log: list[int], epoch: int) -> None:
    found = cache_of(log).end_offset_for(epoch, len(log))
    if epoch < 0 or not log or epoch > log[-1]:
        assert found is None
        return
    end = sum(held <= epoch for held in log)
    greatest = max((held for held in log if held <= epoch), default=epoch)
    assert found == EpochEnd(greatest, end)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_assigned_epochs_and_offsets_both_increase(assigned: list[tuple[int, int]]) -> None:
    cache = EpochCache()
    for epoch, start in assigned:
        cache.assign(epoch, start)
        pairs = list(zip(cache.entries, cache.entries[1:], strict=False))
        assert all(a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in pairs)
        assert cache.latest == epoch


@given(st.data())
def test_two_logs_meet_where_they_part(data: st.DataObject) -> None:
    """A follower that asks and cuts again and again keeps exactly the common prefix, in a bound of rounds.

    Logs match: what has the same epoch at the same offset came from one leader (S3), so each epoch's records in
    two logs differ in number at most; and the leader's epochs of its own are newer than the common part.
    """
    common = data.draw(logs)
    newest = common[-1] if common else 0
    of_leader, of_follower = ([e * 2 for e in range(1, 5)], [e * 2 + 1 for e in range(1, 5)])
    tails = [
        sorted(data.draw(st.lists(st.sampled_from([newest + e for e in own]), max_size=6)))
        for own in (of_leader, of_follower)
    ]
    leader_log, follower_log = common + tails[0], common + tails[1]
    leader = cache_of(leader_log)
    leader_epoch = newest + 20
    leader.assign(leader_epoch, len(leader_log))
    rounds = 0
    while follower_log:
        cache, end = cache_of(follower_log), len(follower_log)
        told = leader.end_offset_for(cache.latest, len(leader_log))
        assert told is not None
        if not diverges(told, cache.latest, end):
            break
        follower_log = follower_log[: truncation_point(cache, end, told)]
        rounds += 1
        assert rounds <= 12
    assert follower_log == common


offsets = st.integers(-1, 20)


@given(
    st.integers(0, 20),
    st.integers(0, 20),
    st.lists(offsets, max_size=4),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_the_high_watermark(current: int, end: int, holders: list[int], isr_size: int, min_isr: int) -> None:
    found = rules.high_watermark(current, end, iter(holders), isr_size, min_isr)
    everyone = [end, *holders]
    moves = isr_size >= min_isr and rules.UNKNOWN_OFFSET not in holders
    assert found == (max(current, sorted(everyone)[0]) if moves else current)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_lag_is_the_time_since_a_follower_had_all_there_was(steps: list[tuple[int, int]]) -> None:
    """Against the whole history: the greatest t at which the leader's log ended at or before what is fetched."""
    follower = Follower(1)
    ends: list[tuple[float, int]] = []
    end = offset = 0
    best = 0.0
    for number, (appended, read) in enumerate(steps, start=1):
        now = float(number)
        end += appended
        offset = min(end, offset + read)
        follower.fetched(offset, end, now)
        ends.append((now, end))
        best = max([best, *(at for at, then in ends[-2:] if offset >= then)])
        assert follower.last_caught_up == best
        assert rules.caught_up(follower, end, now + 3, 3.0) == (offset == end or now - best <= 0)
        out = rules.lagging((1, 9), 9, {1: follower}, end, now + 3, 3.0)
        assert out == (() if rules.caught_up(follower, end, now + 3, 3.0) else (1,))


def test_a_leader_never_removes_itself() -> None:
    assert rules.lagging((1, 2), 1, {2: Follower(2, log_end_offset=5)}, 5, 99.0, 1.0) == ()


@given(offsets, st.integers(0, 20), st.integers(0, 20))
def test_who_joins_has_the_committed_and_the_earlier_epochs(offset: int, committed: int, start: int) -> None:
    follower = Follower(1, log_end_offset=offset)
    assert rules.may_join(follower, committed, start) == (offset >= committed and offset >= start)


@given(st.sets(st.integers(1, 5)), st.none() | st.integers(1, 5))
def test_the_maximal_isr(isr: set[int], joining: int | None) -> None:
    assert rules.maximal_isr(isr, joining) == isr | ({joining} if joining is not None else set())


batches = st.builds(
    lambda epoch, base, count: BatchMeta(0, count, 0, 1, 7, epoch, base % SEQUENCE_MODULUS),
    st.integers(0, 2),
    st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, SEQUENCE_MODULUS - 2, SEQUENCE_MODULUS - 1]),
    st.integers(1, 3),
)


@given(st.lists(batches, max_size=25))
def test_the_window_of_a_producer(asked: list[BatchMeta]) -> None:
    table = ProducerTable()
    written: list[BatchMeta] = []
    for batch in asked:
        verdict, original = table.check(batch)
        assert verdict is _slow_verdict(written, batch)
        if verdict is SequenceVerdict.DUPLICATE:
            assert original is not None
            same = [b for b in written if (b.base_sequence, b.last_sequence) == original[:2]]
            assert original.base_offset in [b.base_offset for b in same]
        if verdict is SequenceVerdict.ACCEPT:
            end = written[-1].next_offset if written else 0
            placed = batch._replace(base_offset=end)
            table.record(placed)
            written.append(placed)


def _slow_verdict(written: list[BatchMeta], batch: BatchMeta) -> SequenceVerdict:
    if not written:
        return SequenceVerdict.ACCEPT
    current = written[-1].producer_epoch
    if batch.producer_epoch < current:
        return SequenceVerdict.FENCED
    kept = [b for b in written if b.producer_epoch == current][-5:]
    follows = (kept[-1].base_sequence + kept[-1].offset_count) % SEQUENCE_MODULUS == batch.base_sequence
    if batch.producer_epoch > current:
        fresh = batch.base_sequence == 0 or follows
        return SequenceVerdict.ACCEPT if fresh else SequenceVerdict.OUT_OF_ORDER
    if any((b.base_sequence, b.offset_count) == (batch.base_sequence, batch.offset_count) for b in kept):
        return SequenceVerdict.DUPLICATE
    return SequenceVerdict.ACCEPT if follows else SequenceVerdict.OUT_OF_ORDER


def test_a_producers_new_epoch_has_no_batches_of_the_last_one() -> None:
    table = ProducerTable()
    for offset, (epoch, sequence) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0)]):
        table.record(BatchMeta(offset, 1, 0, 1, 7, epoch, sequence))
    verdict, _ = table.check(BatchMeta(0, 1, 0, 1, 7, 1, 2))
    assert verdict is SequenceVerdict.OUT_OF_ORDER, "the same sequence was written in another epoch"


def test_what_is_no_batch_of_a_transaction_leaves_what_is_known_of_them() -> None:
    table = ProducerTable()
    table.record(
        BatchMeta(0, 1, 0, 1, 7, 0, -1, True, TransactionMarker(committed=True, coordinator_epoch=4))
    )
    table.record(BatchMeta(1, 1, 0, 1, 7, 0, 0, True))
    table.record(BatchMeta(2, 1, 0, 1, 7, 0, 1))
    entry = table.get(7)
    assert entry is not None
    assert (entry.coordinator_epoch, entry.first_offset) == (4, 1)


def test_a_batch_without_sequences_is_not_one_that_may_be_repeated() -> None:
    table = ProducerTable()
    table.record(BatchMeta(0, 3, 0, 1, 7, 0, -1))
    entry = table.get(7)
    assert entry is not None and entry.batches == ()


nodes = st.sets(st.integers(1, 4))
changes = st.one_of(
    st.tuples(st.just("elect"), nodes),
    st.tuples(st.just("change_isr"), nodes),
    st.tuples(st.just("restarted"), st.integers(1, 4)),
    st.tuples(st.just("forget"), st.integers(1, 4)),
)


@given(
    st.integers(1, 4),
    st.integers(-1, 5),
    st.lists(changes, max_size=20),
)
def test_no_chain_of_changes_breaks_the_shape_of_the_record(
    min_isr: int, unclean: int, chain: list[tuple[str, set[int] | int]]
) -> None:
    record = transitions.create(
        topic="t", partition=0, topic_id="x", replicas=(3, 1, 4, 2), live={1, 2, 3, 4}, min_insync=min_isr
    )
    assert (record.leader, record.isr) == (3, (3, 1, 4, 2))
    for kind, given_nodes in chain:
        after = _apply(record, kind, given_nodes, unclean)
        if after is not None:
            _check_change(record, after)
            record = after


def _apply(record: PartitionRecord, kind: str, given_nodes: object, unclean: int) -> PartitionRecord | None:
    match kind:
        case "elect":
            assert isinstance(given_nodes, set)
            after = transitions.elect(record, given_nodes, unclean)
            settled = after or record
            assert set(settled.isr) <= given_nodes
            assert transitions.elect(settled, given_nodes, unclean) is None, "one look is enough"
            clean = {*record.isr, *record.elr} & given_nodes
            if clean:
                assert settled.leader in clean
                assert not settled.recovering or record.recovering
            elif unclean in given_nodes & set(record.replicas):
                assert (settled.leader, settled.isr) == (unclean, (unclean,))
            else:
                assert settled.leader == NO_LEADER
            return after
        case "change_isr":
            assert isinstance(given_nodes, set)
            if record.leader == NO_LEADER:
                return None
            return transitions.change_isr(record, given_nodes | {record.leader})
        case "restarted":
            assert isinstance(given_nodes, int)
            after = transitions.restarted(record, given_nodes)
            assert (after is None) == (record.leader != given_nodes)
            assert after is None or (after.leader, after.isr) == (NO_LEADER, record.isr)
            return after
        case _:
            assert isinstance(given_nodes, int)
            after = transitions.forget(record, given_nodes)
            settled = after or record
            assert given_nodes not in (*settled.isr, *settled.elr, settled.leader)
            return after


def _check_change(before: PartitionRecord, record: PartitionRecord) -> None:
    isr, elr, known = set(record.isr), set(record.elr), set(record.last_known_elr)
    assert record.leader == NO_LEADER or record.leader in isr
    assert isr | elr | known <= set(record.replicas)
    assert len(isr) + len(elr) + len(known) == len(isr | elr | known)
    assert not (elr or known) or len(isr) < record.min_isr
    assert record.partition_epoch == before.partition_epoch + 1
    if record.unclean_epoch == before.unclean_epoch:
        assert record.leader_epoch - before.leader_epoch == (record.leader != before.leader)
    else:
        assert record.leader_epoch == record.unclean_epoch == transitions.above(before.leader_epoch, "")
    if not (record.recovering and not before.recovering):
        # Nobody becomes eligible but by having been in the ISR.
        assert elr <= {*before.isr, *before.elr}


@given(st.sets(st.integers(0, 30), min_size=1, max_size=7), st.integers(1, 24), st.data())
def test_replicas_are_distinct_and_leaders_go_round(
    live: set[int], partitions: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(live)))
    start = data.draw(st.integers(0, 50))
    assignment = assign(dict.fromkeys(live, ""), partitions, factor, start)
    assert len(assignment) == partitions
    assert all(len(set(replicas)) == factor and set(replicas) <= live for replicas in assignment)
    leads = [sum(replicas[0] == node for replicas in assignment) for node in live]
    assert max(leads) - min(leads) <= 1
    if partitions % (len(live) * max(1, len(live) - 1)) == 0:
        held = [sum(node in replicas for replicas in assignment) for node in live]
        assert max(held) == min(held)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ä", "x" * 250, "a b", "a\n"])
def test_illegal_topic_names(name: str) -> None:
    with pytest.raises(TopicError):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "..."])
def test_legal_topic_names(name: str) -> None:
    check_name(name)


def test_topic_settings_come_as_numbers_or_text() -> None:
    config = parse_config({"min_insync_replicas": "3", "unclean_leader_election": "any"})
    assert (config.min_insync_replicas, config.unclean_leader_election) == (3, "any")


@pytest.mark.parametrize(
    "given_config",
    [
        {"colour": 1},
        {"min_insync_replicas": 0},
        {"min_insync_replicas": "two"},
        {"segment_bytes": 5},
        {"unclean_leader_election": "sometimes"},
    ],
)
def test_impossible_topic_settings(given_config: dict[str, int | str]) -> None:
    with pytest.raises(TopicError, match=next(iter(given_config))):
        parse_config(given_config)


@pytest.mark.parametrize(
    ("policy", "compacts"), [("delete", False), ("compact", True), ("delete,compact", True)]
)
def test_what_a_cleanup_policy_says(policy: str, compacts: bool) -> None:
    assert parse_config({"cleanup_policy": policy}).compacts is compacts
