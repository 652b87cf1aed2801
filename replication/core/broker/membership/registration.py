"""A process's place in the cluster: its incarnation, and the effect of its return on its partitions.

Entering is one transaction. A process that replaces another under the same node id may not lead in an epoch of its
predecessor. If it cannot prove that it has every byte of its predecessor, it also leaves ISR and ELR (KAFKA-15586,
KAFKA-18106). Two proofs are valid: a clean stop, or the same log directory under the same boot of the machine,
because a killed process loses no written page. Neither covers a partition whose folder was moved away, or whose log
ends below its own checkpointed high watermark. Neither covers a log directory that failed during a write, because
its pages may be lost, unless it merely was full.

Neither proof holds in an earlier copy of the folder. Therefore each directory and the store keep a common counter:
it is advanced durably in the directory first, then in the store, at every start and every few seconds. A directory
behind the store was restored to an older state and has lost something. A directory ahead of the store shows that
the store was restored to an older state: the node must not act on its content.

The node's registration names the partitions in offline log directories; only for these the node counts as not
alive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import msgspec
from msgspec import structs

from ...control import records as rec
from ...control import transitions
from ...control.internal_topics import STANDARD as INTERNAL_TOPICS
from ...store_transaction import Absent, AtVersion, Compare, Put, SameValue, Seen, Transaction, unchanged
from ...types import NO_EPOCH, PartitionId


class MembershipError(Exception):
    """Root of the errors that keep a process from being a member."""


class NodeIdTakenError(MembershipError):
    """Another process has registered under this node id meanwhile."""


class StorePutBackError(MembershipError):
    """The store is older than the state that this node has seen."""


class Proof(Protocol):
    """A log directory's record of its own age (`insync.storage.FolderProof`)."""

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


class NextProof(msgspec.Struct, frozen=True, kw_only=True):
    """The proof that a log directory has to store before anything else is done."""

    incarnation: int
    stored: int
    pulse: int
    revision: int
    leader_epoch: int


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence in a log directory, locked by this process, about the previous process.

    stopped_clean: the process named in the directory's marker of a clean stop; None without a marker.
    proof: None in a new directory, and in one of a release without proofs.
    """

    directory_id: str
    stopped_clean: int | None
    proof: Proof | None = None


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a partition's log.

    home: the directory that has it; None without one.
    committed: the high watermark in the directory's own checkpoint.
    last_epoch: the greatest leader epoch that the log knows.
    never: there is no log, and these directories never had one.
    restored: an operator has put the log back since the last registration, so it may lack records that a later log
      in its place had.
    """

    home: str | None = None
    log_end_offset: int = 0
    committed: int = 0
    last_epoch: int = NO_EPOCH
    never: bool = False
    restored: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the log is complete by its own checkpoint."""
        return self.home is not None and not self.restored and self.log_end_offset >= self.committed


class Holdings(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of this process's log directories.

    some_offline: whether a configured directory was unusable at the start.
    offline: partitions that are, or may be, in an offline directory at the time of the call.
    refused: those of them whose log could not be opened although its directory works; damaged: those whose log is
    damaged.
    """

    directories: tuple[Evidence, ...]
    some_offline: bool
    held: Callable[[PartitionId], Held]
    offline: Callable[[], frozenset[PartitionId]]
    refused: frozenset[PartitionId] = frozenset()
    damaged: frozenset[PartitionId] = frozenset()


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a node's return on one partition."""

    before: rec.PartitionRecord
    after: rec.PartitionRecord
    reason: str


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The transaction by which a process becomes a member, with its changes of partitions.

    unreadable: keys of unreadable partition records, which the transaction omits, with their problems.
    """

    transaction: Transaction
    changes: tuple[Change, ...]
    unreadable: tuple[tuple[str, str], ...]


class Behind(msgspec.Struct, frozen=True, kw_only=True):
    """A log directory restored to an older state: its counter, and the counter that it should have."""

    directory_id: str
    incarnation: int
    pulse: int
    expected: int


class Membership:
    """Decides for one process from readings of the store; the driver reads, commits and retries.

    `begin` comes first, then `enter`. `seen` maps keys to the entries of one reading.
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
        """`process`: a unique random text from the driver."""
        self.node_id = node_id
        self.holdings = holdings
        self.incarnation = 0
        self.leaving = False
        """Set when the process is about to stop; every later registration contains it."""
        self.behind: tuple[Behind, ...] = ()
        self.gone: tuple[str, ...] = ()
        """The directories of the previous process that are certainly not here, by id."""
        self._boot_id = boot_id
        self._process = process
        self._rack = rack
        self._max_partitions = max_partitions
        self._stored: dict[str, int] = {}
        """The last known counter of each directory in the store."""
        self._registrations = 0
        self._pulse = 0
        self._revision = 0
        """The revision of the reading of `begin`."""
        self._leader_epoch = 0
        """The greatest leader epoch in directories or store at the start: this process leads only in later ones."""

    # Coming in

    def begin(self, seen: Mapping[str, Seen], revision: int) -> dict[str, NextProof]:
        """Judge the log directories and choose the next incarnation, which takes effect by `enter`.

        Returns, by directory id, the proof that each directory has to store durably before `enter`.

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
        if former is not None and not self.holdings.some_offline:
            known = [each.directory_id for each in former.directories]
            self.gone = tuple(each for each in known if each not in ours)
        self._stored = {each: pulses.get(each, 0) for each in ours}
        return self.next_proofs(self._to_prove(ours), revision)

    def _to_prove(self, directories: Collection[str]) -> list[str]:
        """The directories that may store the next counter before `enter`.

        A directory that is behind must stay so until then: otherwise a failed start would make it look complete.
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
                    f"it is at revision {revision}, but this node has seen its revision {proof.revision}"
                )
            if (problem := _forgotten({each.directory_id: proof.stored}, pulses)) is not None:
                raise StorePutBackError(
                    f"{problem}; it is at revision {revision}, and this node has seen its revision {proof.revision}"
                )

    def replaces_holder(self, seen: Mapping[str, Seen]) -> bool:
        """Whether our node id is free, or registered only by a process that is certainly dead.

        It is dead if it held the lock that we now hold on a directory. The lock on an older copy proves nothing.
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
          StorePutBackError: The store was restored since `begin` and has lost what it showed then.
        """
        own_key, node_key, pulse_key = self._keys()
        former = self._former(seen)
        if was_put_back(revision, self._revision):
            raise StorePutBackError(f"it is at revision {revision}, but was at {self._revision}")
        self._check_counts(self._pulses(seen))
        if former is not None and former.incarnation >= self.incarnation:
            if (former.incarnation, former.process) == (self.incarnation, self._process):
                # An attempt whose outcome was lost did take place, and somebody has taken the registration out
                # since, as of a process that does not answer yet. We are a member, and register as one.
                return Entry(transaction=self.enter_again(seen, endpoints), changes=(), unreadable=())
            raise NodeIdTakenError(f"process {former.incarnation} registered while this one started")
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
                why = f"node {self.node_id} was started again"
                if changed.isr != partition.isr:
                    why += " without proof of its log"
                if changed.leader_epoch > partition.leader_epoch + 1:
                    why += ", with a leader epoch that the store has forgotten"
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
        """The effect of our return on one partition."""
        held = self.holdings.held(partition.id)
        if held.is_whole and held.home in whole:
            return transitions.restarted(
                partition, self.node_id, last_epoch=held.last_epoch, process=self._process
            )
        if held.never and same_directories:
            # Assigned, and killed before the folder was made: the empty log is all that there ever was of it here.
            return transitions.restarted(partition, self.node_id)
        return transitions.forget(
            partition,
            self.node_id,
            has_nothing=held.home is None,
            last_epoch=held.last_epoch,
            process=self._process,
        )

    def _is_lost(self, partition: PartitionId, whole: frozenset[str]) -> bool:
        """Whether an offline log must count as lost. A damaged one lacks something. One that could not be opened
        may lack something, too: from now on its directory vouches for it, so it must have been complete before.
        """
        every = {each.directory_id for each in self.holdings.directories}
        return partition in self.holdings.damaged or (
            partition in self.holdings.refused and not every <= whole
        )

    def _has_all_directories(self, former: rec.IncarnationRecord | None) -> bool:
        """Whether all directories of the previous process are here, and none was restored to an older state.

        Then nothing that it wrote can be anywhere else.
        """
        ours = {each.directory_id for each in self.holdings.directories} - self._ids_behind()
        return former is not None and ours >= {proof.directory_id for proof in former.directories} != set()

    def _whole_directories(self, former: rec.IncarnationRecord | None) -> frozenset[str]:
        """The directories that provably have everything that was written to them."""
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
        """The proofs of our directories, and the unchanged ones of directories that may be unusable now."""
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
        """The proofs that working directories have to store durably before `beat` is stored."""
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
        """The transaction that advances the store's counters to those that `directories` have stored.

        Raises:
          NodeIdTakenError: Another process advances the counters of this node id.
          StorePutBackError: The store has lost counters that it had.
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
        if (problem := _forgotten(self._stored, known)) is not None:
            raise StorePutBackError(problem)

    def counted(self, transaction: Transaction) -> None:
        """A transaction of `enter` or `beat` is stored: remember its counters."""
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
            puts.append(Put(own_key, structs.replace(former, directories=proofs)))
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
                f"it knows {known} of node {self.node_id}, but process {self.incarnation} had registered"
            )
        if former.incarnation > self.incarnation:
            raise NodeIdTakenError(f"process {former.incarnation} has registered in its place")

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
    """The value there is the one that was read, or still none. By value, because an earlier write may be on
    its way when a version comes again: what is registered after we have been taken out begins at version 1, and a
    store that was put back goes on from older versions.
    """
    return Absent(key) if known is None else SameValue(key, known.value)


def _forgotten(counted: Mapping[str, int], known: Mapping[str, int]) -> str | None:
    """The first of the counters that the store had, and has no longer."""
    for directory, count in counted.items():
        if known.get(directory, 0) < count:
            return (
                f"it counts {known.get(directory, 0)} signs of life of log directory {directory}, but had counted "
                f"{count}"
            )
    return None


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
