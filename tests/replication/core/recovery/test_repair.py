"""What a store that was put back has to say, by what the folders know."""

from __future__ import annotations

import pytest
from msgspec import structs

from insync.replication.core.control import records as rec
from insync.replication.core.control.internal_topics import STANDARD
from insync.replication.core.control.topics import TopicConfig, parse_config
from insync.replication.core.recovery.repair import LEAP, FoundFolder, FoundLog, Repair, RepairError, plan
from insync.replication.core.store_transaction import Seen
from insync.replication.core.types import NO_LEADER, PartitionId

PARTITION = PartitionId("t", 0)


def folder(
    node: int,
    last_epoch: int,
    end: int,
    *,
    topic: str = "t",
    pulse: int = 0,
    latest_epoch: int = 0,
    leader_epoch: int = 0,
    may_skip: bool = False,
) -> FoundFolder:
    """Of a node that has a log of the partition."""
    log = FoundLog(
        topic=topic,
        partition=0,
        topic_id="t",
        log_start_offset=0,
        log_end_offset=end,
        epochs=((last_epoch, 0), *([(latest_epoch, end)] if latest_epoch > last_epoch else [])),
        may_skip=may_skip,
    )
    return FoundFolder(
        cluster_id="c",
        node_id=node,
        directory_id=f"folder {node}",
        boot_id="boot",
        stopped_clean=None,
        incarnation=1,
        pulse=pulse,
        revision=1,
        leader_epoch=leader_epoch,
        logs=(log,),
    )


def record_of(repair: Repair) -> rec.PartitionRecord:
    (found,) = [put.record for _, put in repair.writes if put.key == rec.partition_key(PARTITION)]
    assert isinstance(found, rec.PartitionRecord)
    return found


def topic_of(repair: Repair, name: str) -> rec.TopicRecord:
    (found,) = [put.record for _, put in repair.writes if put.key == rec.topic_key(name)]
    assert isinstance(found, rec.TopicRecord)
    return found


def test_nothing_of_a_topic_that_the_store_forgot_is_deleted_before_it_is_set_again() -> None:
    """Not by age, as by default after a week: it may have been compacted, or kept for ever."""
    config = topic_of(plan([folder(1, 2, 10), folder(2, 2, 10)], {}), "t").config
    assert (config.retention_ms, config.retention_bytes, config.compacts) == (-1, -1, False)
    assert config.min_insync_replicas == 2


@pytest.mark.parametrize("name", sorted(STANDARD))
def test_an_internal_topic_that_the_store_forgot_is_what_coordinators_rely_on(name: str) -> None:
    """Nobody may set it otherwise, and it keeps what groups and producers were told."""
    found = topic_of(plan([folder(node, 2, 10, topic=name) for node in (1, 2, 3)], {}), name)
    assert found.was_compacted
    assert found.config == parse_config(STANDARD[name].config(3))
    assert (found.config.cleanup_policy, found.config.min_insync_replicas) == ("compact", 2)


def test_gaps_are_known_again_by_the_logs() -> None:
    """Of a topic that is compacted since the store's state, too: else its followers would refuse the gaps."""
    logs = [folder(1, 2, 10), folder(2, 2, 10, may_skip=True)]
    assert topic_of(plan(logs, {}), "t").was_compacted
    assert not topic_of(plan(logs[:1], {}), "t").was_compacted
    record = rec.TopicRecord(
        name="t", topic_id="t", partitions=1, replication_factor=2, config=TopicConfig(min_insync_replicas=1)
    )
    key = rec.topic_key("t")
    after = topic_of(plan(logs, {key: Seen(key=key, record=record, version=1, value=b"")}), "t")
    assert after == structs.replace(record, was_compacted=True)


def test_the_most_complete_log_alone_counts_and_nobody_leads_yet() -> None:
    """By its last epoch first: what a longer log of an older epoch has more was never committed."""
    found = record_of(plan([folder(1, 2, 10), folder(2, 3, 8), folder(3, 3, 7)], {}))
    assert (found.isr, found.elr, found.leader) == ((2,), (), NO_LEADER)
    assert found.replicas[0] == 2


def test_its_epoch_is_above_all_that_may_have_been_in_use() -> None:
    """A later epoch than that of any record is known to who had entered it; others may have left no trace."""
    found = record_of(plan([folder(1, 2, 10, latest_epoch=5), folder(2, 2, 10)], {}))
    assert found.leader_epoch == found.unclean_epoch == 5 + LEAP


def test_a_second_repair_of_the_same_store_does_not_give_out_the_epochs_of_the_first() -> None:
    """Its leader had written nothing when the store was put back once more: one folder knows that it came in."""
    first = record_of(plan([folder(1, 2, 10, pulse=4), folder(2, 2, 10, pulse=7)], {}))
    entered = first.leader_epoch
    again = record_of(plan([folder(1, 2, 10, pulse=6, leader_epoch=entered), folder(2, 2, 10, pulse=7)], {}))
    assert again.leader_epoch > first.leader_epoch + LEAP


def test_folders_are_named_once() -> None:
    with pytest.raises(RepairError, match="given twice"):
        plan([folder(1, 2, 10), folder(1, 2, 10)], {})


def test_logs_of_two_topics_of_one_name_are_refused_with_their_ids() -> None:
    other = structs.replace(folder(2, 2, 10).logs[0], topic_id="u")
    with pytest.raises(
        RepairError, match=r"two topics named t \(ids t, u\): move the folders of the deleted"
    ):
        plan([folder(1, 2, 10), structs.replace(folder(2, 2, 10), logs=(other,))], {})


@pytest.mark.parametrize("deleted", ["t", "another"])
def test_a_topic_that_the_store_knows_to_be_deleted_does_not_come_back(deleted: str) -> None:
    """The nodes would delete its logs at once; one of them was down when the topic was deleted."""
    key = rec.deleted_key(deleted)
    record = rec.DeletedTopicRecord(name="t", topic_id=deleted, number=1)
    seen = {key: Seen(key=key, record=record, version=1, value=b"")}
    assert plan([folder(1, 2, 10)], seen).topics_found == (() if deleted == "t" else ("t",))


def test_no_producer_id_is_given_out_again() -> None:
    held = structs.replace(folder(2, 2, 10).logs[0], next_producer_id=41)
    folders = [folder(1, 2, 10), structs.replace(folder(2, 2, 10), logs=(held,))]
    known = rec.ProducerIdsRecord(next_producer_id=40)
    seen = {rec.PRODUCER_IDS_KEY: Seen(key=rec.PRODUCER_IDS_KEY, record=known, version=1, value=b"")}
    puts = {put.key: put.record for _, put in plan(folders, seen).writes}
    assert puts[rec.PRODUCER_IDS_KEY] == rec.ProducerIdsRecord(next_producer_id=41)
    enough = rec.ProducerIdsRecord(next_producer_id=41)
    seen = {rec.PRODUCER_IDS_KEY: Seen(key=rec.PRODUCER_IDS_KEY, record=enough, version=1, value=b"")}
    assert rec.PRODUCER_IDS_KEY not in {put.key for _, put in plan(folders, seen).writes}


def known(node: int, end: int, *epochs: tuple[int, int], high_watermark: int = 0) -> FoundFolder:
    """A folder whose log has these epochs, each from an offset on."""
    found = folder(node, epochs[-1][0], end)
    (log,) = found.logs
    return structs.replace(found, logs=(structs.replace(log, epochs=epochs, high_watermark=high_watermark),))


def test_a_later_epoch_that_nobody_copied_does_not_hide_what_is_committed() -> None:
    """Node 2 led in epoch 1 and was replaced; those that led after it have written nothing since."""
    folders = [known(1, 3, (0, 0), high_watermark=2), known(2, 5, (1, 0)), known(3, 2, (0, 0))]
    assert record_of(plan(folders, {})).isr == (1,)


def test_what_was_committed_before_an_unclean_election_does_not_count_against_what_was_after() -> None:
    folders = [known(1, 100, (3, 0), high_watermark=100), known(2, 80, (3, 0), (4, 50), high_watermark=80)]
    assert record_of(plan(folders, {})).isr == (2,)


def test_of_those_that_have_what_is_committed_the_most_complete_leads() -> None:
    folders = [known(1, 5, (0, 0), high_watermark=4), known(2, 6, (0, 0), (1, 5)), known(3, 9, (1, 0))]
    assert record_of(plan(folders, {})).isr == (2,)


def test_a_checkpoint_beyond_the_end_of_its_log_tells_of_what_is_there() -> None:
    folders = [known(1, 3, (0, 0), high_watermark=7), known(2, 5, (0, 0), (1, 4))]
    assert record_of(plan(folders, {})).isr == (2,)


def test_a_log_of_which_everything_is_deleted_is_as_complete_as_it_was() -> None:
    """Nothing but what is committed is deleted: what another log knows to be committed is not missing there."""
    emptied = known(2, 117, (0, 117), high_watermark=117)
    (log,) = emptied.logs
    emptied = structs.replace(emptied, logs=(structs.replace(log, log_start_offset=117),))
    assert record_of(plan([known(1, 81, (0, 0), high_watermark=81), emptied], {})).isr == (2,)
    later = structs.replace(log, log_start_offset=117, epochs=((3, 117),))
    assert record_of(
        plan([known(1, 81, (0, 0), high_watermark=81), structs.replace(emptied, logs=(later,))], {})
    ).isr == (2,)


@pytest.mark.parametrize("policy", ["wait", "most_complete"])
def test_a_log_of_which_everything_is_deleted_counts_without_an_epoch(policy: str) -> None:
    """After a start such a log has none. A log that ends below lacks what was committed; if its records may have
    been written after an unclean election, it is not judged by that.
    """
    emptied = known(2, 50, (0, 50), high_watermark=50)
    (log,) = emptied.logs
    emptied = structs.replace(emptied, logs=(structs.replace(log, log_start_offset=50, epochs=()),))
    behind = known(1, 24, (0, 0), high_watermark=3)
    topic = rec.TopicRecord(
        name=log.topic,
        topic_id=log.topic_id,
        partitions=1,
        replication_factor=2,
        config=TopicConfig(unclean_leader_election=policy),
    )
    key = rec.topic_key(log.topic)
    seen = {key: Seen(key=key, record=topic, version=1, value=b"")}
    assert record_of(plan([behind, emptied], seen)).isr == ((2,) if policy == "wait" else (1,))


def deleting(node: int, start: int, end: int, *epochs: tuple[int, int]) -> FoundFolder:
    """A folder whose log begins at an offset, because what was below it is deleted."""
    found = folder(node, 0, end)
    (log,) = found.logs
    log = structs.replace(log, log_start_offset=start, epochs=epochs, high_watermark=start)
    return structs.replace(found, logs=(log,))


def stored(unclean_epoch: int = -1) -> dict[str, Seen]:
    """What a store says of the partition and of its topic."""
    records: dict[str, object] = {
        rec.topic_key("t"): rec.TopicRecord(
            name="t", topic_id="t", partitions=1, replication_factor=3, config=TopicConfig()
        ),
        rec.partition_key(PARTITION): rec.PartitionRecord(
            topic="t",
            partition=0,
            topic_id="t",
            replicas=(1, 2, 3),
            isr=(1, 2, 3),
            leader=1,
            leader_epoch=max(unclean_epoch, 0),
            unclean_epoch=unclean_epoch,
        ),
    }
    return {key: Seen(key=key, record=each, version=1, value=b"") for key, each in records.items()}


@pytest.mark.parametrize("unclean_epoch", [-1, 7])
@pytest.mark.parametrize("start", [9, 12])
def test_of_logs_that_are_the_same_the_one_that_has_deleted_more_leads(
    start: int, unclean_epoch: int
) -> None:
    """The others would bring back what a client was told is deleted."""
    folders = [deleting(1, 8, 12, (2, 8)), deleting(2, start, 12, (2, start)), deleting(3, 8, 12, (2, 8))]
    assert record_of(plan(folders, stored(unclean_epoch))).isr == (2,)


@pytest.mark.parametrize("unclean_epoch", [-1, 3])
def test_an_emptied_log_without_an_epoch_leads_before_those_that_end_where_it_does(
    unclean_epoch: int,
) -> None:
    """Nothing that is committed can be missing from it. A repair before this one, after which nobody has written,
    changes nothing (seed 6099310).
    """
    folders = [deleting(1, 8, 12, (2, 8)), deleting(2, 12, 12), deleting(3, 7, 12, (1, 7))]
    assert record_of(plan(folders, stored(unclean_epoch))).isr == (2,)


@pytest.mark.parametrize(("unclean_epoch", "right"), [(-1, 2), (3, 2), (2, 1)])
def test_a_log_that_ends_below_what_an_emptied_one_has_deleted_leads_only_if_it_may_have_begun_again(
    unclean_epoch: int, right: int
) -> None:
    folders = [deleting(1, 8, 11, (2, 8)), deleting(2, 12, 12)]
    assert record_of(plan(folders, stored(unclean_epoch))).isr == (right,)


def test_an_emptied_log_does_not_count_where_something_was_written_since_an_unclean_election() -> None:
    """What is deleted in it may be other records, and those of the log that ends there may be acknowledged."""
    folders = [deleting(1, 8, 12, (2, 8), (7, 11)), deleting(2, 12, 12)]
    assert record_of(plan(folders, stored(unclean_epoch=7))).isr == (1,)
    assert record_of(plan(folders, stored(unclean_epoch=8))).isr == (2,)


def test_a_record_more_counts_more_than_a_deletion() -> None:
    """It may be committed, and a record that is lost is worse than one that is shown again."""
    for emptied in (deleting(2, 12, 12), deleting(2, 12, 12, (2, 12)), deleting(2, 11, 12, (2, 11))):
        assert record_of(plan([deleting(1, 8, 13, (2, 8)), emptied], stored())).isr == (1,)


def test_records_above_what_one_log_has_deleted_are_kept() -> None:
    """The first epoch that a log knows need not be that of what it has deleted: the others agree, and have more."""
    folders = [
        deleting(1, 13, 15, (11, 13)),
        deleting(2, 0, 27, (0, 0), (11, 13)),
        deleting(3, 0, 27, (0, 0), (11, 13)),
    ]
    assert record_of(plan(folders, stored())).isr == (2,)


def test_a_log_that_knows_no_epoch_takes_no_longer_log_out_of_the_count() -> None:
    folders = [deleting(1, 1, 1), deleting(2, 0, 14, (0, 0)), deleting(3, 0, 14, (0, 0))]
    assert record_of(plan(folders, stored())).isr == (2,)


@pytest.mark.parametrize("end", [11, 15])
def test_a_log_with_other_records_than_those_that_were_deleted_does_not_lead(end: int) -> None:
    """Its records of a later epoch replaced nothing: those of the older one were committed, then deleted."""
    folders = [deleting(1, 0, end, (3, 0), (5, 10)), deleting(2, 12, 13, (4, 12))]
    assert record_of(plan(folders, stored())).isr == (2,)
    emptied = [deleting(1, 0, end, (3, 0), (5, 10)), deleting(2, 12, 12, (4, 12))]
    assert record_of(plan(emptied, stored())).isr == (2,)


def test_what_was_deleted_before_an_unclean_election_does_not_count_against_what_is_committed_since() -> None:
    since = known(1, 20, (3, 0), (6, 5), high_watermark=8)
    assert record_of(plan([since, deleting(2, 12, 13, (4, 12))], stored(unclean_epoch=6))).isr == (1,)
