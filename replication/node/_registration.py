"""How a node enters the cluster: its incarnation, and what its return means for the partitions that it has.

All of it is one transaction. A process that has replaced another under the same node id may not lead in an epoch
of its predecessor; one that cannot prove that it has every byte its predecessor wrote leaves ISR and ELR as well
(KAFKA-15586, KAFKA-18106). Two proofs are good: a clean stop, or the same log directory under the same boot of the
machine, because a killed process loses no written page. Neither covers a partition whose folder was moved away, or
whose log ends before what its own checkpoint says is committed; nor a log directory that failed while it was
written to (its pages may be gone), unless it merely was full.

Partitions in a log directory that is offline are named in the node's registration; for them alone the node counts
as not alive.
"""

from __future__ import annotations

import enum
import logging
import uuid
from collections.abc import Callable, Collection
from pathlib import Path

import attrs
import trio

from .. import metadata as store_api
from .. import wire
from ..core.control import records as rec
from ..core.control import transitions
from ..core.types import PartitionId
from ..metadata import MetadataStore, Session
from .errors import ClusterMismatchError, DuplicateNodeError
from .logs import Event
from .operations.changes import partition_changed

log = logging.getLogger("insync.node")

POLL_PAUSE = 0.05


def boot_id() -> str:
    """This boot of this machine; unwritten pages do not survive into another."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


async def found_or_join(store: MetadataStore, wanted: str | None) -> str:
    """The id of the store's cluster, founded now if it has none.

    Raises:
      ClusterMismatchError: The store belongs to another cluster than `wanted`.
    """
    while True:
        entry = (await store.get(rec.CLUSTER_KEY)).entry
        if entry is not None:
            found = wire.decode_record(rec.ClusterRecord, entry.value).cluster_id
            if wanted is not None and wanted != found:
                raise ClusterMismatchError(
                    f"the metadata store belongs to cluster {found}, not to {wanted}: "
                    "point the node at the store of its own cluster, or leave cluster_id out"
                )
            return found
        record = rec.ClusterRecord(cluster_id=wanted or uuid.uuid4().hex)
        await store.commit(
            [store_api.Missing(rec.CLUSTER_KEY)],
            [store_api.Put(rec.CLUSTER_KEY, wire.encode_record(record))],
        )


class Remains(enum.Enum):
    """What is left of a partition's log in the directory."""

    ALL = enum.auto()
    """As far as its own checkpoints can tell."""
    PART = enum.auto()
    NOTHING = enum.auto()
    NEVER = enum.auto()
    """Nothing, and nothing has ever been in these directories."""


@attrs.frozen(kw_only=True)
class Evidence:
    """What one log directory, locked by this process, has to say of its former one."""

    directory_id: str
    stopped_clean: int | None
    """The process that the directory's marker of a clean stop vouches for; None without a marker."""


@attrs.frozen(kw_only=True)
class Holdings:
    """What this process has found in its log directories.

    remains: what is left of a partition's log, whatever directory it is in.
    home: the directory id of a partition; None if no directory has it.
    offline: partitions that are, or may be, in a directory that is offline, as of the time of the call.
    """

    directories: tuple[Evidence, ...]
    some_offline: bool
    """Whether a configured directory could not be used at the start."""
    remains: Callable[[PartitionId], Remains]
    home: Callable[[PartitionId], str | None]
    offline: Callable[[], frozenset[PartitionId]]


@attrs.frozen(kw_only=True)
class Registration:
    """What this process says of itself in the store."""

    store: MetadataStore
    node_id: int
    incarnation: int
    boot_id: str
    rack: str
    holdings: Holdings
    departure: trio.Event = attrs.field(factory=trio.Event)
    """Set when the process is about to stop, for every later registration to say so."""

    @classmethod
    async def prepare(
        cls,
        store: MetadataStore,
        *,
        node_id: int,
        rack: str,
        holdings: Holdings,
    ) -> Registration:
        """Take the next incarnation in mind; `enter` makes it true or fails."""
        former = await _former(store, node_id)
        return cls(
            store=store,
            node_id=node_id,
            incarnation=1 if former is None else former.incarnation + 1,
            boot_id=boot_id(),
            rack=rack,
            holdings=holdings,
        )

    async def enter(self, session: Session, endpoints: list[str], patience: float) -> int:
        """Register for the first time in this process; the store's revision from then on.

        Raises:
          DuplicateNodeError: Another process holds the node id and does not go within `patience` seconds.
        """
        deadline = trio.current_time() + patience
        while True:
            listing = await self.store.list("/")
            holder = listing.entries.get(rec.node_key(self.node_id))
            if holder is not None and not self._replaces(listing):
                if trio.current_time() >= deadline:
                    raise self._duplicate(holder)
                await trio.sleep(POLL_PAUSE)
                continue
            compares, puts, changes = self._entry(listing, holder)
            puts.append(self._node_put(endpoints))
            outcome = await self.store.commit(compares, puts, session=session)
            if isinstance(outcome, store_api.Committed):
                for change in changes:
                    log.info(change)
                return outcome.revision
            read = await self.store.get(rec.node_key(self.node_id))
            if read.entry is not None and read.entry.session_id == session.id:
                # An attempt whose outcome was lost has been carried out.
                return read.revision
            self._check_not_replaced(await _former(self.store, self.node_id))

    async def enter_again(self, session: Session, endpoints: list[str]) -> int:
        """Register anew after a lost session; the process and its incarnation are still the same.

        Returns the store's revision from then on: what was read before that does not show it.

        Raises:
          DuplicateNodeError: Another process has taken the node id meanwhile.
        """
        while True:
            read = await self.store.get(rec.incarnation_key(self.node_id))
            former = wire.decode_record(rec.IncarnationRecord, read.entry.value) if read.entry else None
            self._check_still_ours(former)
            assert read.entry is not None
            unchanged = store_api.VersionIs(read.entry.key, read.entry.version)
            outcome = await self.store.commit([unchanged], [self._node_put(endpoints)], session=session)
            if isinstance(outcome, store_api.Committed):
                return outcome.revision

    def _entry(
        self, listing: store_api.Listing, holder: store_api.Entry | None
    ) -> tuple[list[store_api.Compare], list[store_api.Operation], list[Event]]:
        """What is to hold and what to write, and the lines of the log for what that changes."""
        key = rec.incarnation_key(self.node_id)
        former_entry = listing.entries.get(key)
        compares: list[store_api.Compare] = [
            _unchanged(key, former_entry),
            _unchanged(rec.node_key(self.node_id), holder),
        ]
        former = _decode_former(former_entry)
        self._check_not_replaced(former)
        record = rec.IncarnationRecord(
            node_id=self.node_id,
            incarnation=self.incarnation,
            directories=self._proofs(former),
        )
        puts: list[store_api.Operation] = [store_api.Put(key, wire.encode_record(record))]
        changes: list[Event] = []
        whole, same_directories = self._whole_directories(former), self._has_all_directories(former)
        offline = self.holdings.offline()
        for partition_key, entry in listing.entries.items():
            if not partition_key.startswith(rec.PARTITIONS_PREFIX):
                continue
            try:
                partition = wire.decode_record(rec.PartitionRecord, entry.value)
            except wire.WireError as error:
                log.error("%s is left out of the registration: %s", partition_key, error)
                continue
            if self.node_id not in partition.replicas:
                continue
            # Compared also where nothing changes: a leader may be about to store our predecessor as in sync.
            # By value: the version begins anew when a topic of the same name is created again.
            compares.append(store_api.ValueIs(partition_key, entry.value))
            if partition.id in offline:
                # Nothing is known of it; as long as it is offline it neither leads nor is in sync.
                continue
            changed = self._change(partition, whole, same_directories)
            if changed is not None:
                puts.append(store_api.Put(partition_key, wire.encode_record(changed)))
                has_all = changed.isr == partition.isr
                why = f"node {self.node_id} was started again" + (
                    "" if has_all else " without proof of its log"
                )
                changes.append(partition_changed(partition, changed, why))
        return compares, puts, changes

    def _change(
        self, partition: rec.PartitionRecord, whole: frozenset[str], same_directories: bool
    ) -> rec.PartitionRecord | None:
        """What our coming back means for one partition."""
        remains = self.holdings.remains(partition.id)
        if remains is Remains.ALL and self.holdings.home(partition.id) in whole:
            return transitions.restarted(partition, self.node_id)
        if remains is Remains.NEVER and same_directories:
            # Assigned, and killed before the folder was made: the empty log is all that there ever was of it here.
            return transitions.restarted(partition, self.node_id)
        nothing = remains in (Remains.NOTHING, Remains.NEVER)
        return transitions.forget(partition, self.node_id, has_nothing=nothing)

    def _has_all_directories(self, former: rec.IncarnationRecord | None) -> bool:
        """Whether every directory of the former process is here, so that nothing of it can be anywhere else."""
        ours = {each.directory_id for each in self.holdings.directories}
        return former is not None and ours >= {proof.directory_id for proof in former.directories} != set()

    def _whole_directories(self, former: rec.IncarnationRecord | None) -> frozenset[str]:
        """The directories that have all that was written to them, as far as can be proved."""
        known = former.directories if former is not None else ()
        return frozenset(
            proof.directory_id
            for proof in known
            for found in self.holdings.directories
            if found.directory_id == proof.directory_id
            and (found.stopped_clean == proof.incarnation or self.boot_id == proof.boot_id)
        )

    def _proofs(self, former: rec.IncarnationRecord | None) -> tuple[rec.DirectoryProof, ...]:
        """Our directories from now on; and, as they were, those that may be among the ones we cannot use today."""
        ours = [each.directory_id for each in self.holdings.directories]
        known = former.directories if former is not None and self.holdings.some_offline else ()
        return (
            *(
                rec.DirectoryProof(directory_id=each, incarnation=self.incarnation, boot_id=self.boot_id)
                for each in ours
            ),
            *(proof for proof in known if proof.directory_id not in ours),
        )

    def _replaces(self, listing: store_api.Listing) -> bool:
        """Whether the registered process is certainly dead: it held the lock that we hold on a directory."""
        former = _decode_former(listing.entries.get(rec.incarnation_key(self.node_id)))
        ours = {each.directory_id for each in self.holdings.directories}
        return former is not None and any(
            proof.directory_id in ours and proof.incarnation == former.incarnation
            for proof in former.directories
        )

    async def tell_offline(self, session: Session, endpoints: list[str], failed: Collection[str]) -> bool:
        """Register what is offline by now; `failed` directories are not proof of anything any more.

        Returns whether that was stored. It is not while we are not registered.
        """
        node_key, own_key = rec.node_key(self.node_id), rec.incarnation_key(self.node_id)
        entries = (await self.store.list("/")).entries
        holder, former_entry = entries.get(node_key), entries.get(own_key)
        former = _decode_former(former_entry)
        if holder is None or holder.session_id != session.id or former is None or former_entry is None:
            return False
        self._check_still_ours(former)
        proofs = tuple(proof for proof in former.directories if proof.directory_id not in failed)
        compares = [
            store_api.VersionIs(node_key, holder.version),
            store_api.VersionIs(own_key, former_entry.version),
        ]
        puts: list[store_api.Operation] = [self._node_put(endpoints)]
        if proofs != former.directories:
            record = attrs.evolve(former, directories=proofs)
            puts.append(store_api.Put(own_key, wire.encode_record(record)))
        outcome = await self.store.commit(compares, puts, session=session)
        return isinstance(outcome, store_api.Committed)

    async def tell_leaving(self, session: Session, endpoints: list[str]) -> bool:
        """Say that the process is about to stop; whether that was stored. It is not while we are not registered."""
        self.departure.set()
        key = rec.node_key(self.node_id)
        while True:
            holder = (await self.store.get(key)).entry
            if holder is None or holder.session_id != session.id:
                return False
            unchanged = store_api.VersionIs(key, holder.version)
            outcome = await self.store.commit([unchanged], [self._node_put(endpoints)], session=session)
            if isinstance(outcome, store_api.Committed):
                return True

    def _node_put(self, endpoints: list[str]) -> store_api.Put:
        record = rec.NodeRecord(
            node_id=self.node_id,
            incarnation=self.incarnation,
            endpoints=tuple(endpoints),
            rack=self.rack,
            offline=self.holdings.offline(),
            leaving=self.departure.is_set(),
        )
        return store_api.Put(rec.node_key(self.node_id), wire.encode_record(record), ephemeral=True)

    def _check_not_replaced(self, former: rec.IncarnationRecord | None) -> None:
        if former is not None and former.incarnation >= self.incarnation:
            raise DuplicateNodeError(
                f"node id {self.node_id} was taken by another process while this one started: "
                "stop one of them, or give it another node id"
            )

    def _check_still_ours(self, former: rec.IncarnationRecord | None) -> None:
        if former is None or former.incarnation != self.incarnation:
            raise DuplicateNodeError(
                f"node id {self.node_id} was taken by another process while this one had lost its session: "
                "this one stops"
            )

    def _duplicate(self, holder: store_api.Entry) -> DuplicateNodeError:
        record = wire.decode_record(rec.NodeRecord, holder.value)
        return DuplicateNodeError(
            f"node id {self.node_id} is in use by a living process at {', '.join(record.endpoints)}: "
            "stop it, or start this node under another node id"
        )


def _unchanged(key: str, entry: store_api.Entry | None) -> store_api.Compare:
    return store_api.Missing(key) if entry is None else store_api.VersionIs(key, entry.version)


def _decode_former(entry: store_api.Entry | None) -> rec.IncarnationRecord | None:
    return None if entry is None else wire.decode_record(rec.IncarnationRecord, entry.value)


async def _former(store: MetadataStore, node_id: int) -> rec.IncarnationRecord | None:
    return _decode_former((await store.get(rec.incarnation_key(node_id))).entry)
