"""How a process enters the cluster when what became of its attempt is not known."""

from __future__ import annotations

import pytest
from msgspec import structs

from insync.replication.core.broker.membership.registration import (
    Evidence,
    Held,
    Holdings,
    Membership,
    NextProof,
    NodeIdTakenError,
    StorePutBackError,
)
from insync.replication.core.control import records as rec
from insync.replication.core.control.transitions import above
from insync.replication.core.recovery.repair import FoundFolder, plan
from insync.replication.core.store_transaction import Absent, Put, SameValue, Seen, Transaction
from insync.replication.core.types import PartitionId
from insync.replication.simulation.world.store import Store


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
    first = membership.enter({}, ["tcp://a"], 1).transaction
    again = membership.enter(stored(first, rec.node_key(1)), ["tcp://a"], 1)
    record, former = registration(again.transaction).record, registration(first).record
    assert isinstance(record, rec.NodeRecord) and isinstance(former, rec.NodeRecord)
    assert record == structs.replace(former, number=former.number + 1)
    assert again.changes == ()
    assert rec.incarnation_key(1) not in {put.key for put in again.transaction.puts}, "it is the same process"


def test_an_entry_of_another_process_is_not() -> None:
    """Both had read the same store, so that they have the same incarnation in mind."""
    first, second = starting("a"), starting("b")
    entered = first.enter({}, ["tcp://a"], 1).transaction
    with pytest.raises(NodeIdTakenError, match="process 1 registered while this one started"):
        second.enter(stored(entered, rec.node_key(1)), ["tcp://b"], 1)


@pytest.mark.parametrize(
    ("boot", "damaged", "eligible"),
    [("boot", False, (1,)), ("another boot", False, ()), ("boot", True, ())],
)
def test_a_log_that_cannot_be_opened_counts_only_if_it_has_lost_nothing(
    boot: str, damaged: bool, eligible: tuple[int, ...]
) -> None:
    """The next start would take it for whole: its directory vouches from now on for what it has now."""
    first = starting("a")
    entered = stored(first.enter({}, [], 1).transaction, rec.node_key(1))
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
    entry = again.enter(seen, [], 1)
    puts = {put.key: put.record for put in entry.transaction.puts}
    left = puts.get(key, partition)
    assert isinstance(left, rec.PartitionRecord) and left.elr == eligible


@pytest.mark.parametrize(
    ("committed", "restored", "said"),
    [(0, False, ""), (1, False, " without proof of its log"), (0, True, " without proof of its log")],
)
def test_the_change_of_a_partition_says_whether_its_log_is_proved(
    committed: int, restored: bool, said: str
) -> None:
    first = starting("a")
    entered = stored(first.enter({}, [], 1).transaction, rec.node_key(1))
    partition = rec.PartitionRecord(
        topic="t", partition=0, topic_id="t", replicas=(1, 2), isr=(1, 2), leader=1, min_insync_replicas=1
    )
    key = rec.partition_key(partition.id)
    seen = {**entered, key: Seen(key=key, version=1, value=b"", record=partition)}
    folder = "folder of a"
    holdings = Holdings(
        directories=(
            Evidence(directory_id=folder, stopped_clean=None, proof=first.next_proofs([folder], 0)[folder]),
        ),
        some_offline=False,
        held=lambda partition: Held(home=folder, committed=committed, restored=restored),
        offline=frozenset,
    )
    again = Membership(node_id=1, boot_id="boot", process="b", holdings=holdings)
    again.begin(seen, 1)
    (change,) = again.enter(seen, [], 1).changes
    assert change.reason == f"node 1 was started again{said}" and (1 in change.after.isr) == (not said)


@pytest.mark.parametrize(
    ("home", "boot"), [("folder of a", "boot"), ("folder of a", "later"), (None, "boot")]
)
def test_a_log_of_a_later_epoch_than_the_store_knows_raises_it(home: str | None, boot: str) -> None:
    """For any leader: its log has no batch of an epoch that only the follower's log has."""
    first = starting("a")
    entered = stored(first.enter({}, [], 1).transaction, rec.node_key(1))
    partition = rec.PartitionRecord(
        topic="t", partition=0, topic_id="t", replicas=(1, 2), isr=(2,), leader=2, leader_epoch=4
    )
    key = rec.partition_key(partition.id)
    seen = {**entered, key: Seen(key=key, version=1, value=b"", record=partition)}

    def after(last_epoch: int) -> rec.PartitionRecord:
        folder = "folder of a"
        proof = first.next_proofs([folder], 0)[folder]
        holdings = Holdings(
            directories=(Evidence(directory_id=folder, stopped_clean=None, proof=proof),),
            some_offline=False,
            held=lambda partition: Held(home=home, last_epoch=last_epoch),
            offline=frozenset,
        )
        again = Membership(node_id=1, boot_id=boot, process="b", holdings=holdings)
        again.begin(seen, 1)
        entry = again.enter(seen, [], 1)
        if entry.changes:
            assert entry.changes[0].reason.endswith("with a leader epoch that the store has forgotten")
        puts = {put.key: put.record for put in entry.transaction.puts}
        found = puts.get(key, partition)
        assert isinstance(found, rec.PartitionRecord)
        return found

    assert after(4) == partition
    raised = after(9)
    assert raised.leader_epoch == above(9, "b")
    assert (raised.leader, raised.isr) == (2, (2,))


def test_a_store_that_was_put_back_since_the_process_began_is_not_entered() -> None:
    """Waiting for the former process to go takes a while, in which anything may become of the store."""
    membership = starting("a")
    with pytest.raises(StorePutBackError, match="is at revision 3, but was at 4"):
        membership.begin({}, 4)
        membership.enter({}, [], 3)
    pulses = rec.PulseRecord(node_id=1, pulses={"folder of a": 7})
    key = rec.pulse_key(1)
    membership.begin({key: Seen(key=key, version=1, value=b"", record=pulses)}, 4)
    with pytest.raises(
        StorePutBackError, match="counts 0 signs of life of log directory folder of a, but had counted 7"
    ):
        membership.enter({}, [], 9)


def test_a_store_that_does_not_know_the_process_is_told_with_what_it_knows() -> None:
    membership = starting("a")
    entered = stored(membership.enter({}, [], 1).transaction, rec.node_key(1))
    key = rec.incarnation_key(1)
    with pytest.raises(
        StorePutBackError, match="it knows no process of node 1, but process 1 had registered"
    ):
        membership.beat({name: each for name, each in entered.items() if name != key}, [])
    older = rec.IncarnationRecord(node_id=1, incarnation=0, process="before")
    with pytest.raises(StorePutBackError, match="it knows process 0 of node 1, but process 1 had registered"):
        membership.beat(entered | {key: Seen(key=key, version=1, value=b"", record=older)}, [])


def test_a_folder_remembers_the_greatest_leader_epoch_that_it_came_in_with() -> None:
    """A repair of the store begins above it; what is led by the process that writes this is later."""
    seen = {}
    for index, epoch in enumerate((3, 1023)):
        record = rec.PartitionRecord(
            topic="t",
            partition=index,
            topic_id="t",
            replicas=(1,),
            isr=(1,),
            leader=1,
            leader_epoch=epoch,
            min_insync_replicas=1,
        )
        key = rec.partition_key(record.id)
        seen[key] = Seen(key=key, version=1, value=b"", record=record)
    folder = "folder of a"

    def began(found: dict[str, Seen], proof: NextProof | None) -> tuple[int, NextProof]:
        holdings = Holdings(
            directories=(Evidence(directory_id=folder, stopped_clean=None, proof=proof),),
            some_offline=False,
            held=lambda partition: Held(never=True),
            offline=frozenset,
        )
        membership = Membership(node_id=1, boot_id="boot", process="a", holdings=holdings)
        first = membership.begin(found, 7)[folder]
        return first.leader_epoch, membership.next_proofs([folder], 7)[folder]

    known, proof = began(seen, None)
    assert (known, proof.leader_epoch) == (1023, 1023)
    assert began({}, structs.replace(proof, stored=0))[0] == 1023, (
        "the topic is gone, and its epoch is not forgotten"
    )


def test_a_record_of_an_earlier_release_names_no_process() -> None:
    membership = starting("a")
    own = rec.IncarnationRecord(node_id=1, incarnation=membership.incarnation)
    seen = {rec.incarnation_key(1): Seen(key=rec.incarnation_key(1), version=1, value=b"", record=own)}
    with pytest.raises(NodeIdTakenError):
        membership.enter(seen, ["tcp://a"], 1)


def test_a_record_that_cannot_be_read_is_named_and_left_alone() -> None:
    key = rec.partition_key(PartitionId("t", 0))
    seen = {key: Seen(key=key, version=1, value=b"?", record=None, problem="no such field")}
    entry = starting("a").enter(seen, [], 1)
    assert entry.unreadable == ((key, "no such field"),)
    assert key not in {put.key for put in entry.transaction.puts}


def test_nothing_is_written_over_a_later_registration() -> None:
    """A node is taken out and registers again while an earlier write of it is on its way. The version of the key
    begins at 1 again; no two registrations have one value, though they may say the same.
    """
    membership = starting("a")
    own, node = rec.incarnation_key(1), rec.node_key(1)
    seen = stored(membership.enter({}, ["tcp://a"], 1).transaction)
    seen[node] = structs.replace(seen[node], session=7)
    later = stored(membership.enter_again({own: seen[own]}, ["tcp://a"]))[node]
    assert (later.version, later.value == seen[node].value) == (1, False)
    for written in (
        membership.say_offline(seen, 7, ["tcp://a"], ()),
        membership.say_leaving(seen, 7, ["tcp://a"]),
        membership.enter_again(seen, ["tcp://a"]),
    ):
        assert written is not None
        assert SameValue(node, seen[node].value) in written.compares
    taken_out = membership.enter_again({own: seen[own]}, ["tcp://a"])
    assert Absent(node) in taken_out.compares


def test_a_count_that_is_late_takes_nothing_back_from_a_store_that_was_repaired() -> None:
    """It was sent before the store was put back. After the repair the keys have come to the same versions again; a
    count below what the folder remembers as stored would shut the node out until the next repair.
    """
    folder = "folder"

    def began(store: Store, process: str, proof: NextProof | None) -> tuple[Membership, NextProof]:
        holdings = Holdings(
            directories=(Evidence(directory_id=folder, stopped_clean=None, proof=proof),),
            some_offline=False,
            held=lambda partition: Held(never=True),
            offline=frozenset,
        )
        membership = Membership(node_id=1, boot_id="boot", process=process, holdings=holdings)
        proofs = membership.begin(store.seen_by(1), 10)
        entry = membership.enter(store.seen_by(1), [], 10).transaction
        took_place(store, entry)
        membership.counted(entry)
        return membership, membership.next_proofs(proofs, 10)[folder]

    def took_place(store: Store, transaction: Transaction) -> None:
        assert all(map(store.holds, transaction.compares))
        for put in transaction.puts:
            if isinstance(put.record, rec.IncarnationRecord | rec.PulseRecord):
                store.put_of_node(put.key, put.record, None)

    store = Store()
    _, proof = began(store, "a", None)
    sender, proof = began(store, "b", proof)
    late = sender.beat(store.seen_by(1), [folder])

    store = Store()
    found = FoundFolder(
        cluster_id="c",
        node_id=1,
        directory_id=folder,
        boot_id="boot",
        stopped_clean=None,
        incarnation=proof.incarnation,
        pulse=proof.pulse,
        revision=proof.revision,
        logs=(),
    )
    for compare, put in plan([found], {}).writes:
        if isinstance(put.record, rec.IncarnationRecord | rec.PulseRecord):
            took_place(store, Transaction(compares=(compare,), puts=(put,)))
    assert not all(map(store.holds, late.compares)), "the process that sent it is gone"
    member, proof = began(store, "c", proof)
    assert not any(map(store.holds, late.compares)), "another process stands there, and has counted further"
    took_place(store, member.beat(store.seen_by(1), [folder]))
    assert store.pulses[1].pulses == {folder: proof.pulse}


@pytest.mark.parametrize(("some_offline", "gone"), [(False, ("folder of a",)), (True, ())])
def test_a_directory_that_is_not_here_any_more_is_named(some_offline: bool, gone: tuple[str, ...]) -> None:
    """One that cannot be used now may be any of those that are missing."""
    seen = stored(starting("a").enter({}, [], 1).transaction)
    again = starting("b")
    again.holdings = structs.replace(again.holdings, some_offline=some_offline)
    again.begin(seen, 1)
    assert again.gone == gone
    assert starting("a").gone == (), "it is new"


def test_a_store_that_has_forgotten_signs_of_life_is_refused_with_the_numbers() -> None:
    """It was written to since it was put back, so that its revision is no lower."""
    first = starting("a")
    entry = first.enter({}, [], 1)
    first.counted(entry.transaction)
    folder = "folder of a"
    proof = first.next_proofs([folder], 7)[folder]
    holdings = structs.replace(
        first.holdings, directories=(Evidence(directory_id=folder, stopped_clean=None, proof=proof),)
    )
    again = Membership(node_id=1, boot_id="boot", process="b", holdings=holdings)
    with pytest.raises(
        StorePutBackError,
        match="counts 0 signs of life of log directory folder of a, but had counted 1; it is at revision 9, and "
        "this node has seen its revision 7",
    ):
        again.begin({}, 9)
    with pytest.raises(StorePutBackError, match=r"counts 0 signs of life .* had counted 1"):
        first.beat(stored(entry.transaction, rec.pulse_key(1)), [folder])
