"""A node's way into the cluster: `core.broker.membership.registration` decides, this reads and writes."""

from __future__ import annotations

import logging
import secrets
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import attrs
import trio

from ... import metadata as store_api
from ... import wire
from ...core import faces
from ...core import store_transaction as tx
from ...core.control import records as rec
from ...metadata import MetadataStore, Session, SessionExpiredError
from ..errors import ClusterMismatchError, DuplicateNodeError, NodeError, StoreLostError, StorePutBackError
from ..operations.changes import partition_changed
from ..settings import NodeSettings
from . import _store

log = logging.getLogger("insync.node")

POLL_PAUSE = 0.05
_CAUSES = (
    "Likely causes: power was lost under a store that does not sync what it confirms, or whose disk does not; a "
    "backup of the store was restored; the node was pointed at another store"
)
_REMEDY = (
    "if a newer store exists, point the nodes at it; else stop every node of the cluster, then run "
    "`insync store repair --store URL` with the log directories of all of them"
)

WriteProofs = Callable[[Mapping[str, faces.NextProof]], None]
"""Makes what log directories have to remember durable, by directory id; in any thread."""


def put_back(what: str) -> StorePutBackError:
    """The refusal of a store that knows less than this node has seen."""
    return StorePutBackError(
        f"{what}. {_CAUSES}. This node stops, and changes and deletes nothing; {_REMEDY}"
    )


def boot_id() -> str:
    """This boot of this machine; unwritten pages do not survive into another."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


async def found_or_join(store: MetadataStore, wanted: str | None, held: Mapping[Path, str]) -> str:
    """The id of the store's cluster, founded now if it has none.

    held: the clusters that the node's log directories belong to.

    Raises:
      ClusterMismatchError: The store belongs to another cluster than `wanted`.
      StoreLostError: The store knows no cluster, but a log directory belongs to one.
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
        for folder, cluster_id in held.items():
            raise StoreLostError(
                f"the metadata store is empty, but {folder} belongs to cluster {cluster_id}: the node founds "
                "no new cluster over it; give the store of that cluster, or make one from the folders with "
                "`insync store repair`; to begin again without what the folder holds, move the folder away"
            )
        record = rec.ClusterRecord(cluster_id=wanted or uuid.uuid4().hex, secret=secrets.token_hex(32))
        await store.commit(
            [store_api.Missing(rec.CLUSTER_KEY)],
            [store_api.Put(rec.CLUSTER_KEY, wire.encode_record(record))],
        )


@attrs.define(eq=False)
class Registration:
    """This process's own entries in the store."""

    store: MetadataStore
    membership: faces.Membership
    write_proofs: WriteProofs

    @classmethod
    async def prepare(
        cls,
        store: MetadataStore,
        *,
        settings: NodeSettings,
        holdings: faces.Holdings,
        write_proofs: WriteProofs,
    ) -> Registration:
        """Take the next incarnation in mind and write it down in the folders; `enter` makes it true or fails.

        Raises:
          StorePutBackError: The store is older than what the log directories have seen of it.
        """
        membership = faces.Membership(
            node_id=settings.node_id,
            boot_id=boot_id(),
            process=uuid.uuid4().hex,
            rack=settings.rack,
            holdings=holdings,
            max_partitions=settings.max_partitions_per_node,
        )
        registration = cls(store, membership, write_proofs)
        listing, seen = await registration._read()
        try:
            proofs = membership.begin(seen, listing.revision)
        except faces.MembershipError as error:
            raise registration._refusal(error) from error
        for each in membership.behind:
            log.error(
                "log directory %s was restored to an older state (process %d, count %d; the metadata store has "
                "seen count %d): what it lacks is copied from the leaders, and it leads nothing until then",
                each.directory_id,
                each.incarnation,
                each.pulse,
                each.expected,
            )
        for directory_id in membership.gone:
            log.error(
                "log directory %s, which this node had before, is not here (replaced, emptied, or not configured "
                "any more): what only it held counts as lost, and is copied from the leaders",
                directory_id,
            )
        await trio.to_thread.run_sync(write_proofs, proofs)
        return registration

    @property
    def incarnation(self) -> int:
        return self.membership.incarnation

    async def _read(self) -> tuple[store_api.Listing, dict[str, tx.Seen]]:
        listing = await self.store.list("/")
        own = await _store.get(self.store, rec.pulse_key(self.membership.node_id))
        return listing, {**_store.seen(listing.entries), **own}

    async def enter(self, session: Session, endpoints: list[str], patience: float) -> int:
        """Register for the first time in this process; the store's revision from then on.

        Raises:
          DuplicateNodeError: Another process holds the node id and does not go within `patience` seconds.
        """
        deadline = trio.current_time() + patience
        while True:
            listing, seen = await self._read()
            if not self.membership.replaces_holder(seen):
                if trio.current_time() >= deadline:
                    raise self._duplicate(seen)
                await trio.sleep(POLL_PAUSE)
                continue
            entry = self._entry(seen, endpoints, listing.revision)
            for key, problem in entry.unreadable:
                log.error("the registration does not update %s: %s", key, problem)
            outcome = await self._commit(entry.transaction, session)
            if isinstance(outcome, tx.Committed):
                for each in entry.changes:
                    log.info(partition_changed(each.before, each.after, each.reason))
                self.membership.counted(entry.transaction)
                return outcome.revision
            read = await self.store.get(rec.node_key(self.membership.node_id))
            if read.entry is not None and read.entry.session_id == session.id:
                # An attempt whose outcome was lost has been carried out.
                self.membership.counted(entry.transaction)
                return read.revision

    def _entry(self, seen: Mapping[str, tx.Seen], endpoints: list[str], revision: int) -> faces.Entry:
        try:
            return self.membership.enter(seen, endpoints, revision)
        except faces.StorePutBackError as error:
            raise self._refusal(error) from error
        except faces.NodeIdTakenError as error:
            raise DuplicateNodeError(
                f"node id {self.membership.node_id} was taken by another process while this one started: "
                "stop one of them, or give it another node id"
            ) from error

    async def enter_again(self, session: Session, endpoints: list[str]) -> int:
        """Register after a lost session; the process and its incarnation are still the same.

        Returns the store's revision from then on: what was read before that does not show it.

        Raises:
          DuplicateNodeError: Another process has taken the node id meanwhile.
        """
        while True:
            try:
                transaction = self.membership.enter_again(await self._own(), endpoints)
            except faces.MembershipError as error:
                raise self._refusal(error) from error
            outcome = await self._commit(transaction, session)
            if isinstance(outcome, tx.Committed):
                return outcome.revision

    async def say_offline(self, session: Session, endpoints: list[str], failed: Collection[str]) -> bool:
        """Register what is offline by now; `failed` directories are not proof of anything any more.

        Returns whether that was stored. It is not while we are not registered.
        """
        try:
            transaction = self.membership.say_offline(await self._own(), session.id, endpoints, failed)
        except faces.MembershipError as error:
            raise self._refusal(error) from error
        return transaction is not None and isinstance(await self._commit(transaction, session), tx.Committed)

    async def say_leaving(self, session: Session, endpoints: list[str]) -> bool:
        """Say that the process is about to stop; whether that was stored. It is not while we are not registered."""
        while True:
            transaction = self.membership.say_leaving(await self._own(), session.id, endpoints)
            if transaction is None:
                return False
            if isinstance(await self._commit(transaction, session), tx.Committed):
                return True

    def next_proofs(self, directories: Collection[str], revision: int) -> dict[str, faces.NextProof]:
        """The proofs that working directories are to remember, durably, before `count` is called."""
        return self.membership.next_proofs(directories, revision)

    async def count(self, directories: Collection[str]) -> str:
        """Have the store count what `directories` have written down; why it may not have, empty if it has.

        Raises:
          DuplicateNodeError: Another process has taken the node id meanwhile.
          StorePutBackError: The store has forgotten what it had counted.
          MetadataError: The store cannot be reached.
        """
        try:
            transaction = self.membership.beat(await self._own(), directories)
        except faces.MembershipError as error:
            raise self._refusal(error) from error
        outcome = await _store.commit(self.store, transaction, None)
        match outcome:
            case tx.Committed():
                self.membership.counted(transaction)
                return ""
            case tx.Unclear():
                return outcome.reason
        return "another write came first"

    async def _own(self) -> dict[str, tx.Seen]:
        node_id = self.membership.node_id
        return await _store.get(
            self.store, rec.incarnation_key(node_id), rec.node_key(node_id), rec.pulse_key(node_id)
        )

    async def _commit(self, transaction: tx.Transaction, session: Session) -> tx.Outcome:
        outcome = await _store.commit(self.store, transaction, session)
        if isinstance(outcome, tx.SessionOver):
            raise SessionExpiredError(session.id)
        return outcome

    def _refusal(self, error: faces.MembershipError) -> NodeError:
        if isinstance(error, faces.StorePutBackError):
            return put_back(f"the metadata store is in an older state than this node has seen: {error}")
        return DuplicateNodeError(
            f"node id {self.membership.node_id} was taken by another process while this one ran: {error}; "
            "this one stops"
        )

    def _duplicate(self, seen: Mapping[str, tx.Seen]) -> DuplicateNodeError:
        holder = seen[rec.node_key(self.membership.node_id)].record
        where = ", ".join(holder.endpoints) if isinstance(holder, rec.NodeRecord) else "an unknown address"
        return DuplicateNodeError(
            f"node id {self.membership.node_id} is in use by a living process at {where}: "
            "stop it, or start this node under another node id and with an empty folder"
        )
