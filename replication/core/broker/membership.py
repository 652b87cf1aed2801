"""A process's place in the cluster: its incarnation, what its return means for its partitions, and who has left.

Entering is one transaction. A process that has replaced another under the same node id may not lead in an epoch of
its predecessor; one that cannot prove that it has every byte its predecessor wrote leaves ISR and ELR as well
(KAFKA-15586, KAFKA-18106). Two proofs are good: a clean stop, or the same log directory under the same boot of the
machine, because a killed process loses no written page. Neither covers a partition whose folder was moved away, or
whose log ends before what its own checkpoint says is committed; nor a log directory that failed while it was
written to (its pages may be gone), unless it merely was full.

Neither proof is worth anything in a copy of the folder that was made earlier. So each directory and the store count
together: the directory first, durably, then the store, at every start and every few seconds after. A directory that
is behind the store was put back to an older state: it has lost something. A directory that is ahead of the store
shows that the store was put back: nothing that it says may be acted upon.

Partitions in a log directory that is offline are named in the node's registration; for them alone the node counts
as not alive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import attrs

from ..control import records as rec
from ..control import transitions
from ..control.internal_topics import STANDARD as INTERNAL_TOPICS
from ..transaction import Absent, AtVersion, Compare, Put, SameValue, Seen, Transaction, unchanged
from ..types import PartitionId


class MembershipError(Exception):
    """Root of the reasons for which a process may not be a member."""


class NodeIdTakenError(MembershipError):
    """Another process has registered under this node id since."""


class StorePutBackError(MembershipError):
    """The store is older than what this node has seen of it."""


class Proof(Protocol):
    """What a log directory remembers of its own age (`insync.storage.FolderProof`)."""

    @property
    def incarnation(self) -> int: ...
    @property
    def stored(self) -> int: ...
    @property
    def pulse(self) -> int: ...
    @property
    def revision(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...


@attrs.frozen(kw_only=True)
class NextProof:
    """What a log directory is to remember from now on, before anything else is done."""

    incarnation: int
    stored: int
    pulse: int
    revision: int
    leader_epoch: int


@attrs.frozen(kw_only=True)
class Evidence:
    """What one log directory, locked by this process, has to say of its former one.

    stopped_clean: the process that the directory's marker of a clean stop vouches for; None without a marker.
    proof: None in a new directory, and in one of a release that had none.
    """

    directory_id: str
    stopped_clean: int | None
    proof: Proof | None = None


@attrs.frozen(kw_only=True)
class Held:
    """What there is of a partition's log.

    home: the directory that has it; None if none has.
    committed: the high watermark in the directory's own checkpoint.
    never: no log, and there has never been one in these directories.
    """

    home: str | None = None
    log_end_offset: int = 0
    committed: int = 0
    never: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether all is there, as far as its own checkpoint can tell."""
        return self.home is not None and self.log_end_offset >= self.committed


@attrs.frozen(kw_only=True)
class Holdings:
    """What this process has found in its log directories.

    some_offline: whether a configured directory could not be used at the start.
    offline: partitions that are, or may be, in a directory that is offline, as of the time of the call.
    refused: those of them whose log could not be opened though its directory works; damaged: because it is damaged.
    """

    directories: tuple[Evidence, ...]
    some_offline: bool
    held: Callable[[PartitionId], Held]
    offline: Callable[[], frozenset[PartitionId]]
    refused: frozenset[PartitionId] = frozenset()
    damaged: frozenset[PartitionId] = frozenset()


@attrs.frozen(kw_only=True)
class Change:
    """What the return of a node changes in one partition."""

    before: rec.PartitionRecord
    after: rec.PartitionRecord
    reason: str


@attrs.frozen(kw_only=True)
class Entry:
    """The transaction by which a process becomes a member, and what it says of partitions.

    unreadable: keys of partition records that are left out, with what is wrong with them.
    """

    transaction: Transaction
    changes: tuple[Change, ...]
    unreadable: tuple[tuple[str, str], ...]


@attrs.frozen(kw_only=True)
class Behind:
    """A log directory that was put back to an older state: the pulse that it has, and that it should have."""

    directory_id: str
    incarnation: int
    pulse: int
    expected: int


class Membership:
    """Decides for one process, from readings of the store; whoever drives it reads, commits and tries again.

    `begin` comes first, then `enter`. `seen` maps keys to what one reading shows of them.
    """

    def __init__(
        self,
        *,
        node_id: int,
        boot_id: str,
        holdings: Holdings,
        process: str,
        rack: str = "",
        max_partitions: int = 20_000,
    ) -> None:
        """`process`: a text that no other process has; the driver draws it."""
        self.node_id = node_id
        self.holdings = holdings
        self.incarnation = 0
        self.leaving = False
        """Set when the process is about to stop, for every later registration to say so."""
        self.behind: tuple[Behind, ...] = ()
        self._boot_id = boot_id
        self._process = process
        self._rack = rack
        self._max_partitions = max_partitions
        self._stored: dict[str, int] = {}
        """The pulse that the store is known to have of each directory."""
        self._registrations = 0
        self._pulse = 0
        self._revision = 0
        """Of the reading that `begin` was given."""
        self._leader_epoch = 0
        """The greatest that the directories or the store knew when this process came in: what it leads is later."""

    # Coming in

    def begin(self, seen: Mapping[str, Seen], revision: int) -> dict[str, NextProof]:
        """Judge the log directories and take the next incarnation in mind; `enter` makes it true or fails.

        Returns by directory id what each has to remember, durably, before `enter` is tried.

        Raises:
          StorePutBackError: A directory has seen a later state of the store.
        """
        former, pulses = self._former(seen), self._pulses(seen)
        self._check_store(revision, pulses)
        self._revision = revision
        self.incarnation = 1 if former is None else former.incarnation + 1
        self.behind = tuple(
            Behind(
                directory_id=each.directory_id,
                incarnation=each.proof.incarnation if each.proof is not None else 0,
                pulse=each.proof.pulse if each.proof is not None else 0,
                expected=pulses[each.directory_id],
            )
            for each in self.holdings.directories
            if _is_behind(each, pulses)
        )
        own = [each.proof for each in self.holdings.directories if each.proof is not None]
        self._pulse = max([*(proof.pulse for proof in own), *pulses.values()], default=0)
        self._leader_epoch = max([_latest_epoch(seen), *(proof.leader_epoch for proof in own)])
        ours = [each.directory_id for each in self.holdings.directories]
        self._stored = {each: pulses.get(each, 0) for each in ours}
        return self.next_proofs(self._to_prove(ours), revision)

    def _to_prove(self, directories: Collection[str]) -> list[str]:
        """Those that may be given the next pulse before the store knows what they lack.

        One that is behind stays so until `enter` has taken place: else a start that fails would make it whole.
        """
        behind = self._ids_behind()
        return [each for each in directories if each not in behind]

    def _check_store(self, revision: int, pulses: Mapping[str, int]) -> None:
        for each in self.holdings.directories:
            proof = each.proof
            if proof is None:
                continue
            if proof.revision > revision:
                raise StorePutBackError(
                    f"it is at revision {revision}, and this node has seen revision {proof.revision} of it"
                )
            if proof.stored > pulses.get(each.directory_id, 0):
                raise StorePutBackError(
                    f"it has counted {pulses.get(each.directory_id, 0)} signs of life of log directory "
                    f"{each.directory_id}, and had counted {proof.stored}"
                )

    def replaces_holder(self, seen: Mapping[str, Seen]) -> bool:
        """Whether nobody is registered under our node id, or only a process that is certainly dead.

        It is dead if it held the lock that we hold on a directory. The lock on an older copy shows nothing.
        """
        if rec.node_key(self.node_id) not in seen:
            return True
        former = self._former(seen)
        ours = {each.directory_id for each in self.holdings.directories} - self._ids_behind()
        return former is not None and any(
            proof.directory_id in ours and proof.incarnation == former.incarnation
            for proof in former.directories
        )

    def enter(self, seen: Mapping[str, Seen], endpoints: Collection[str], revision: int) -> Entry:
        """Register for the first time in this process, by a reading of the store at `revision`.

        Raises:
          NodeIdTakenError: Another process has entered under this node id since `begin`.
          StorePutBackError: The store was put back since `begin`: it has forgotten what it showed then.
        """
        own_key, node_key, pulse_key = self._keys()
        former = self._former(seen)
        if was_put_back(revision, self._revision):
            raise StorePutBackError(f"it is at revision {revision}, and was at {self._revision}")
        self._check_counts(self._pulses(seen))
        if former is not None and former.incarnation >= self.incarnation:
            if (former.incarnation, former.process) == (self.incarnation, self._process):
                # An attempt whose outcome was lost did take place, and somebody has taken the registration out
                # since, as of a process that does not answer yet. We are a member, and register as one.
                return Entry(transaction=self.enter_again(seen, endpoints), changes=(), unreadable=())
            raise NodeIdTakenError(f"process {former.incarnation} entered while this one started")
        ours = {each.directory_id: self._pulse for each in self.holdings.directories}
        pulses = rec.PulseRecord(node_id=self.node_id, pulses={**self._pulses(seen), **ours})
        record = rec.IncarnationRecord(
            node_id=self.node_id,
            incarnation=self.incarnation,
            directories=self._proofs(former),
            process=self._process,
        )
        compares: list[Compare] = [unchanged(key, seen.get(key)) for key in (own_key, node_key, pulse_key)]
        puts = [Put(own_key, record), Put(pulse_key, pulses)]
        changes, unreadable = [], []
        offline = self.holdings.offline()
        whole, same = self._whole_directories(former), self._has_all_directories(former)
        for key, each in seen.items():
            if not key.startswith(rec.PARTITIONS_PREFIX):
                continue
            partition = each.record
            if not isinstance(partition, rec.PartitionRecord):
                unreadable.append((key, each.problem))
                continue
            if self.node_id not in partition.replicas:
                continue
            # Compared also where nothing changes: a leader may be about to store our predecessor as in sync.
            # By value: the version begins at 1 when a topic of the same name is created again.
            compares.append(SameValue(key, each.value))
            if partition.id not in offline:
                changed = self._return_to(partition, whole, same)
            elif self._is_lost(partition.id, whole):
                changed = transitions.forget(partition, self.node_id)
            else:
                # Nothing is known of it; as long as it is offline it neither leads nor is in sync.
                continue
            if changed is not None:
                puts.append(Put(key, changed))
                proved = changed.isr == partition.isr
                why = f"node {self.node_id} was started again" + (
                    "" if proved else " without proof of its log"
                )
                changes.append(Change(before=partition, after=changed, reason=why))
        puts.append(self._registration(endpoints))
        return Entry(
            transaction=Transaction(compares=tuple(compares), puts=tuple(puts)),
            changes=tuple(changes),
            unreadable=tuple(unreadable),
        )

    def _return_to(
        self, partition: rec.PartitionRecord, whole: frozenset[str], same_directories: bool
    ) -> rec.PartitionRecord | None:
        """What our coming back means for one partition."""
        held = self.holdings.held(partition.id)
        if held.is_whole and held.home in whole:
            return transitions.restarted(partition, self.node_id)
        if held.never and same_directories:
            # Assigned, and killed before the folder was made: the empty log is all that there ever was of it here.
            return transitions.restarted(partition, self.node_id)
        return transitions.forget(partition, self.node_id, has_nothing=held.home is None)

    def _is_lost(self, partition: PartitionId, whole: frozenset[str]) -> bool:
        """Whether a log that is offline must not count. A damaged one lacks something. One that could not be opened
        may: its directory vouches from now on for what it holds, so it must have had everything before.
        """
        every = {each.directory_id for each in self.holdings.directories}
        return partition in self.holdings.damaged or (
            partition in self.holdings.refused and not every <= whole
        )

    def _has_all_directories(self, former: rec.IncarnationRecord | None) -> bool:
        """Whether every directory of the former process is here, none of them put back to an older state.

        Then nothing that it wrote can be anywhere else.
        """
        ours = {each.directory_id for each in self.holdings.directories} - self._ids_behind()
        return former is not None and ours >= {proof.directory_id for proof in former.directories} != set()

    def _whole_directories(self, former: rec.IncarnationRecord | None) -> frozenset[str]:
        """The directories that have all that was written to them, as far as can be proved."""
        known = former.directories if former is not None else ()
        behind = self._ids_behind()
        return frozenset(
            proof.directory_id
            for proof in known
            for found in self.holdings.directories
            if found.directory_id == proof.directory_id
            and found.directory_id not in behind
            and (found.stopped_clean == proof.incarnation or self._boot_id == proof.boot_id)
        )

    def _proofs(self, former: rec.IncarnationRecord | None) -> tuple[rec.DirectoryProof, ...]:
        """Our directories from now on; and, as they were, those that may be among the ones we cannot use today."""
        ours = [each.directory_id for each in self.holdings.directories]
        known = former.directories if former is not None and self.holdings.some_offline else ()
        return (
            *(
                rec.DirectoryProof(directory_id=each, incarnation=self.incarnation, boot_id=self._boot_id)
                for each in ours
            ),
            *(proof for proof in known if proof.directory_id not in ours),
        )

    # Staying

    def next_proofs(self, directories: Collection[str], revision: int) -> dict[str, NextProof]:
        """What working directories have to remember, durably, before `beat` is stored."""
        self._pulse += 1
        return {
            each: NextProof(
                incarnation=self.incarnation,
                stored=self._stored.get(each, 0),
                pulse=self._pulse,
                revision=revision,
                leader_epoch=self._leader_epoch,
            )
            for each in directories
        }

    def beat(self, seen: Mapping[str, Seen], directories: Collection[str]) -> Transaction:
        """Let the store count what `directories` have written down.

        Raises:
          NodeIdTakenError: Another process counts for this node id.
          StorePutBackError: The store has forgotten what it had counted.
        """
        own_key, _, pulse_key = self._keys()
        self._check_still_ours(seen)
        known = self._pulses(seen)
        self._check_counts(known)
        record = rec.PulseRecord(
            node_id=self.node_id, pulses={**known, **dict.fromkeys(directories, self._pulse)}
        )
        return Transaction(
            # By value: no session stands behind it. It may be on its way while the store is put back and repaired,
            # and versions come again; what a later process has counted must not be taken back.
            compares=(_same(own_key, seen.get(own_key)), _same(pulse_key, seen.get(pulse_key))),
            puts=(Put(pulse_key, record),),
            session=False,
        )

    def _check_counts(self, known: Mapping[str, int]) -> None:
        if any(known.get(each, 0) < count for each, count in self._stored.items()):
            raise StorePutBackError("it has lost heartbeats that it had counted")

    def counted(self, transaction: Transaction) -> None:
        """A transaction of `enter` or `beat` has taken place: the store has counted what it says."""
        for put in transaction.puts:
            if isinstance(put.record, rec.PulseRecord):
                for directory, pulse in put.record.pulses.items():
                    self._stored[directory] = max(pulse, self._stored.get(directory, 0))

    def enter_again(self, seen: Mapping[str, Seen], endpoints: Collection[str]) -> Transaction:
        """Register after a lost session; the process and its incarnation are still the same.

        Raises:
          NodeIdTakenError: Another process has taken the node id meanwhile.
          StorePutBackError: The store has forgotten this process.
        """
        own_key, node_key, _ = self._keys()
        self._check_still_ours(seen)
        holder = seen.get(node_key)
        return Transaction(
            compares=(AtVersion(own_key, seen[own_key].version), _same(node_key, holder)),
            puts=(self._registration(endpoints),),
        )

    def say_offline(
        self, seen: Mapping[str, Seen], session: object, endpoints: Collection[str], failed: Collection[str]
    ) -> Transaction | None:
        """Register what is offline by now; `failed` directories are not proof of anything any more.

        None while we are not registered in `session`.

        Raises:
          NodeIdTakenError: Another process has taken the node id meanwhile.
          StorePutBackError: The store has forgotten this process.
        """
        own_key, node_key, _ = self._keys()
        holder, own, former = seen.get(node_key), seen.get(own_key), self._former(seen)
        if holder is None or holder.session != session or own is None or former is None:
            return None
        self._check_still_ours(seen)
        proofs = tuple(proof for proof in former.directories if proof.directory_id not in failed)
        puts = [self._registration(endpoints)]
        if proofs != former.directories:
            puts.append(Put(own_key, attrs.evolve(former, directories=proofs)))
        return Transaction(
            compares=(_same(node_key, holder), AtVersion(own_key, own.version)), puts=tuple(puts)
        )

    def say_leaving(
        self, seen: Mapping[str, Seen], session: object, endpoints: Collection[str]
    ) -> Transaction | None:
        """Say that the process is about to stop; None while we are not registered in `session`."""
        self.leaving = True
        _, node_key, _ = self._keys()
        holder = seen.get(node_key)
        if holder is None or holder.session != session:
            return None
        return Transaction(compares=(_same(node_key, holder),), puts=(self._registration(endpoints),))

    def _registration(self, endpoints: Collection[str]) -> Put:
        self._registrations += 1
        record = rec.NodeRecord(
            node_id=self.node_id,
            incarnation=self.incarnation,
            endpoints=tuple(endpoints),
            rack=self._rack,
            offline=self.holdings.offline(),
            max_partitions=self._max_partitions,
            coordinates=tuple(INTERNAL_TOPICS),
            leaving=self.leaving,
            number=self._registrations,
        )
        return Put(rec.node_key(self.node_id), record, ephemeral=True)

    def _check_still_ours(self, seen: Mapping[str, Seen]) -> None:
        former = self._former(seen)
        if former is None or former.incarnation < self.incarnation:
            known = "no process" if former is None else f"process {former.incarnation}"
            raise StorePutBackError(
                f"it knows {known} of node {self.node_id}, where process {self.incarnation} had entered"
            )
        if former.incarnation > self.incarnation:
            raise NodeIdTakenError(f"process {former.incarnation} has entered in its place")

    def _keys(self) -> tuple[str, str, str]:
        """Of our incarnation, our registration and our pulse."""
        return rec.incarnation_key(self.node_id), rec.node_key(self.node_id), rec.pulse_key(self.node_id)

    def _former(self, seen: Mapping[str, Seen]) -> rec.IncarnationRecord | None:
        own = seen.get(rec.incarnation_key(self.node_id))
        return own.record if own is not None and isinstance(own.record, rec.IncarnationRecord) else None

    def _pulses(self, seen: Mapping[str, Seen]) -> Mapping[str, int]:
        own = seen.get(rec.pulse_key(self.node_id))
        return own.record.pulses if own is not None and isinstance(own.record, rec.PulseRecord) else {}

    def _ids_behind(self) -> set[str]:
        return {each.directory_id for each in self.behind}


def _same(key: str, known: Seen | None) -> Compare:
    """What stands there is what was read, or there is nothing still. By value, because an earlier write may be on
    its way when a version comes again: what is registered after we have been taken out begins at version 1, and a
    store that was put back goes on from older versions.
    """
    return Absent(key) if known is None else SameValue(key, known.value)


def _is_behind(found: Evidence, pulses: Mapping[str, int]) -> bool:
    expected = pulses.get(found.directory_id, 0)
    return expected > (found.proof.pulse if found.proof is not None else 0)


def _latest_epoch(seen: Mapping[str, Seen]) -> int:
    """The greatest leader epoch of any partition."""
    records = [each.record for each in seen.values()]
    return max((each.leader_epoch for each in records if isinstance(each, rec.PartitionRecord)), default=0)


def was_put_back(revision: int, known: int) -> bool:
    """Whether a reading of the store that began after revision `known` was read shows an older state: readings are
    linearizable.
    """
    return revision < known


def evict(seen: Mapping[str, Seen], node: rec.NodeRecord) -> Transaction | None:
    """Take out the registration of this very process, and its office if it is the controller; None if it is gone.

    A process that lives after all registers again: failover is fenced, so it costs an election and nothing else.
    """
    compares: list[Compare] = []
    puts: list[Put] = []
    for key in (rec.node_key(node.node_id), rec.CONTROLLER_KEY):
        each = seen.get(key)
        holder = each.record if each is not None else None
        if not isinstance(holder, rec.HolderRecord) or each is None:
            continue
        if (holder.node_id, holder.incarnation) == (node.node_id, node.incarnation):
            compares.append(SameValue(key, each.value))
            puts.append(Put(key, None))
    return Transaction(compares=tuple(compares), puts=tuple(puts)) if puts else None
