"""How a node enters the cluster: its incarnation, and what its return means for the partitions that it has.

All of it is one transaction. A process that has replaced another under the same node id may not lead in an epoch
of its predecessor; one that cannot prove that it has every byte its predecessor wrote leaves ISR and ELR as well
(KAFKA-15586, KAFKA-18106). Two proofs are good: a clean stop, or the same log directory under the same boot of the
machine, because a killed process loses no written page. Neither covers a partition whose folder was moved away, or
whose log ends before what its own checkpoint says is committed.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from .. import metadata as store_api
from .. import wire
from ..core import records as rec
from ..core import transitions
from ..core.types import PartitionId
from ..metadata import MetadataStore, Session
from .errors import ClusterMismatchError, DuplicateNodeError

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


@attrs.frozen(kw_only=True)
class Registration:
    """What this process says of itself in the store."""

    store: MetadataStore
    node_id: int
    incarnation: int
    boot_id: str
    directory_id: str
    stopped_clean: int | None
    """The process that the directory's marker of a clean stop vouches for; None without a marker."""
    rack: str
    remains: Callable[[PartitionId], Remains]

    @classmethod
    async def prepare(
        cls,
        store: MetadataStore,
        *,
        node_id: int,
        directory_id: str,
        stopped_clean: int | None,
        rack: str,
        remains: Callable[[PartitionId], Remains],
    ) -> Registration:
        """Take the next incarnation in mind; `enter` makes it true or fails."""
        former = await _former(store, node_id)
        return cls(
            store=store,
            node_id=node_id,
            incarnation=1 if former is None else former.incarnation + 1,
            boot_id=boot_id(),
            directory_id=directory_id,
            stopped_clean=stopped_clean,
            rack=rack,
            remains=remains,
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
            compares, puts = self._entry(listing, holder)
            puts.append(self._node_put(endpoints))
            outcome = await self.store.commit(compares, puts, session=session)
            if isinstance(outcome, store_api.Committed):
                return outcome.revision
            read = await self.store.get(rec.node_key(self.node_id))
            if read.entry is not None and read.entry.session_id == session.id:
                # An attempt whose outcome was lost has been carried out.
                return read.revision
            self._check_not_replaced(await _former(self.store, self.node_id))

    async def enter_again(self, session: Session, endpoints: list[str]) -> None:
        """Register anew after a lost session; the process and its incarnation are still the same.

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
                return

    def _entry(
        self, listing: store_api.Listing, holder: store_api.Entry | None
    ) -> tuple[list[store_api.Compare], list[store_api.Operation]]:
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
            boot_id=self.boot_id,
            directory_id=self.directory_id,
        )
        puts: list[store_api.Operation] = [store_api.Put(key, wire.encode_record(record))]
        intact = former is not None and self._has_all_of(former)
        for partition_key, entry in listing.entries.items():
            if not partition_key.startswith(rec.PARTITIONS_PREFIX):
                continue
            partition = wire.decode_record(rec.PartitionRecord, entry.value)
            if self.node_id not in partition.replicas:
                continue
            # Compared also where nothing changes: a leader may be about to store our predecessor as in sync.
            compares.append(store_api.VersionIs(partition_key, entry.version))
            changed = self._change(partition, intact)
            if changed is not None:
                puts.append(store_api.Put(partition_key, wire.encode_record(changed)))
        return compares, puts

    def _change(self, partition: rec.PartitionRecord, intact: bool) -> rec.PartitionRecord | None:
        """What our coming back means for one partition."""
        remains = self.remains(partition.id)
        if intact and remains is Remains.ALL:
            return transitions.restarted(partition, self.node_id)
        return transitions.forget(partition, self.node_id, has_nothing=remains is Remains.NOTHING)

    def _has_all_of(self, former: rec.IncarnationRecord) -> bool:
        same_boot = self.boot_id == former.boot_id
        clean = self.stopped_clean == former.incarnation
        return self.directory_id == former.directory_id and (clean or same_boot)

    def _replaces(self, listing: store_api.Listing) -> bool:
        """Whether the registered process is certainly dead: it held the lock that we hold on its directory."""
        former = _decode_former(listing.entries.get(rec.incarnation_key(self.node_id)))
        return former is not None and former.directory_id == self.directory_id

    def _node_put(self, endpoints: list[str]) -> store_api.Put:
        record = rec.NodeRecord(
            node_id=self.node_id, incarnation=self.incarnation, endpoints=tuple(endpoints), rack=self.rack
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
