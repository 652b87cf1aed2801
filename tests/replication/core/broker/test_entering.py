"""How a process enters the cluster when what became of its attempt is not known."""

from __future__ import annotations

import pytest

from insync.replication.core.broker.membership import Evidence, Held, Holdings, Membership, NodeIdTakenError
from insync.replication.core.control import records as rec
from insync.replication.core.transaction import Put, Seen, Transaction
from insync.replication.core.types import PartitionId


def starting(process: str) -> Membership:
    """A process of node 1 with a folder of its own, which has read an empty store."""
    holdings = Holdings(
        directories=(Evidence(directory_id=f"folder of {process}", stopped_clean=None),),
        some_offline=False,
        held=lambda partition: Held(never=True),
        offline=frozenset,
    )
    membership = Membership(node_id=1, boot_id="boot", process=process, holdings=holdings)
    membership.begin({}, 0)
    return membership


def stored(transaction: Transaction, *without: str) -> dict[str, Seen]:
    """What a store shows in which this has taken place, and from which some keys have been taken since."""
    return {
        put.key: Seen(key=put.key, version=1, value=repr(put.record).encode(), record=put.record)
        for put in transaction.puts
        if put.key not in without
    }


def registration(transaction: Transaction) -> Put:
    (found,) = [put for put in transaction.puts if put.key == rec.node_key(1)]
    return found


def test_an_entry_that_took_place_unnoticed_is_our_own() -> None:
    """Its answer was lost, and another node has taken out the registration: nobody listened there yet."""
    membership = starting("a")
    first = membership.enter({}, ["tcp://a"]).transaction
    again = membership.enter(stored(first, rec.node_key(1)), ["tcp://a"])
    assert registration(again.transaction) == registration(first)
    assert again.changes == ()
    assert rec.incarnation_key(1) not in {put.key for put in again.transaction.puts}, "it is the same process"


def test_an_entry_of_another_process_is_not() -> None:
    """Both had read the same store, so that they have the same incarnation in mind."""
    first, second = starting("a"), starting("b")
    entered = first.enter({}, ["tcp://a"]).transaction
    with pytest.raises(NodeIdTakenError, match="process 1 entered while this one started"):
        second.enter(stored(entered, rec.node_key(1)), ["tcp://b"])


@pytest.mark.parametrize(
    ("boot", "damaged", "eligible"),
    [("boot", False, (1,)), ("another boot", False, ()), ("boot", True, ())],
)
def test_a_log_that_cannot_be_opened_counts_only_if_it_has_lost_nothing(
    boot: str, damaged: bool, eligible: tuple[int, ...]
) -> None:
    """The next start would take it for whole: its directory vouches from now on for what it has now."""
    first = starting("a")
    entered = stored(first.enter({}, []).transaction, rec.node_key(1))
    partition = rec.PartitionRecord(
        topic="t",
        partition=0,
        topic_id="t",
        replicas=(1, 2),
        isr=(2,),
        elr=(1,),
        leader=2,
        min_insync_replicas=2,
    )
    key = rec.partition_key(partition.id)
    seen = {**entered, key: Seen(key=key, version=1, value=b"", record=partition)}
    folder = "folder of a"
    proof = first.next_proofs([folder], 0)[folder]
    holdings = Holdings(
        directories=(Evidence(directory_id=folder, stopped_clean=None, proof=proof),),
        some_offline=False,
        held=lambda partition: Held(),
        offline=lambda: frozenset([partition.id]),
        refused=frozenset([partition.id]),
        damaged=frozenset([partition.id] if damaged else []),
    )
    again = Membership(node_id=1, boot_id=boot, process="b", holdings=holdings)
    again.begin(seen, 1)
    puts = {put.key: put.record for put in again.enter(seen, []).transaction.puts}
    left = puts.get(key, partition)
    assert isinstance(left, rec.PartitionRecord) and left.elr == eligible


def test_a_record_of_an_earlier_release_names_no_process() -> None:
    membership = starting("a")
    own = rec.IncarnationRecord(node_id=1, incarnation=membership.incarnation)
    seen = {rec.incarnation_key(1): Seen(key=rec.incarnation_key(1), version=1, value=b"", record=own)}
    with pytest.raises(NodeIdTakenError):
        membership.enter(seen, ["tcp://a"])


def test_a_record_that_cannot_be_read_is_named_and_left_alone() -> None:
    key = rec.partition_key(PartitionId("t", 0))
    seen = {key: Seen(key=key, version=1, value=b"?", record=None, problem="no such field")}
    entry = starting("a").enter(seen, [])
    assert entry.unreadable == ((key, "no such field"),)
    assert key not in {put.key for put in entry.transaction.puts}
