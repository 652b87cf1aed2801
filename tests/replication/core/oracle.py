"""What must be true after every step of a cluster, told from outside: the disks, the store and the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from insync.replication.core import effects as fx
from insync.replication.core.errors import ErrorCode
from insync.replication.core.records import PartitionRecord
from insync.replication.core.types import NO_LEADER

if TYPE_CHECKING:
    from .cluster import Cluster
    from .world import Node, Sent


class Violated(AssertionError):
    """An invariant does not hold; the text begins with its name."""


def require(holds: bool, name: str, detail: object) -> None:
    if not holds:
        raise Violated(f"{name}: {detail}")


class Oracle:
    """Knows what was committed, who led when, and what was promised to whom."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.committed: list[tuple[int, str]] = []
        self.leaders: dict[int, tuple[int, int]] = {}
        self.versions: dict[tuple[int, int], int] = {}
        self.promised: dict[str, int] = {}
        self.refused: set[str] = set()

    def after_step(self, node: Node, *, led: bool) -> None:
        """`led`: whether the replica led when the step began; it may have committed and then stepped down."""
        replica = node.replica
        assert replica is not None
        log = replica.log
        shape = 0 <= log.log_start_offset <= log.high_watermark <= log.log_end_offset <= log.next_offset
        require(shape, "S9", f"node {node.id}: {log}")
        if not log.outstanding:
            require(log.log_end_offset <= node.disk.end, "S9", f"node {node.id} knows more than its disk")
        if replica.versioned is not None:
            known = self.versions.get((node.id, node.incarnation), 0)
            require(replica.versioned.version >= known, "S5", f"node {node.id} went back to {known}")
            self.versions[node.id, node.incarnation] = replica.versioned.version
        if replica.role != "closed" and log.outstanding == 0:
            require(
                list(log.epochs.entries) == node.disk.epochs,
                "S14",
                f"node {node.id}: {log.epochs.entries} on disk {node.disk.epochs}",
            )
        if replica.leader is not None:
            self._led(node)
        if led or replica.leader is not None:
            self._commit(node, log.high_watermark)
        else:
            seen = node.disk.flat[: log.high_watermark]
            require(seen == self.committed[: len(seen)], "S3b", f"node {node.id} shows what is not committed")

    def _led(self, node: Node) -> None:
        assert node.replica is not None
        holder = self.leaders.setdefault(node.replica.leader_epoch, (node.id, node.incarnation))
        require(
            holder == (node.id, node.incarnation),
            "S4",
            f"epoch {node.replica.leader_epoch} led by {holder} and by {(node.id, node.incarnation)}",
        )

    def _commit(self, node: Node, high_watermark: int) -> None:
        """A leader's high watermark makes committed what stands below it, now and for ever."""
        flat = node.disk.flat
        known = min(high_watermark, len(self.committed))
        require(flat[:known] == self.committed[:known], "S1", f"leader {node.id} shows another history")
        if high_watermark > len(self.committed):
            self.committed += flat[len(self.committed) : high_watermark]
            self.quorum()

    def disk_changed(self, node: Node) -> None:
        """S3: where two logs have the same epoch at an offset they are equal up to there."""
        entries = node.disk.epochs
        epochs = [epoch for epoch, _ in node.disk.flat]
        for number, (epoch, start) in enumerate(entries):
            end = entries[number + 1].start_offset if number + 1 < len(entries) else len(epochs)
            right = all(held == epoch for held in epochs[start:end])
            require(right, "S14", f"node {node.id}: {entries} over {epochs}")
        for other in self.cluster.nodes.values():
            if other is node:
                continue
            for offset in range(min(node.disk.end, other.disk.end) - 1, -1, -1):
                if node.disk.flat[offset][0] == other.disk.flat[offset][0]:
                    same = node.disk.flat[: offset + 1] == other.disk.flat[: offset + 1]
                    require(same, "S3", f"nodes {node.id} and {other.id} up to {offset}")
                    break
        self.quorum()

    def quorum(self) -> None:
        """S7 in its strong form: whoever may be elected cleanly has every committed record."""
        versioned = self.cluster.store.partition
        if versioned is None:
            return
        for member in (*versioned.record.isr, *versioned.record.elr):
            node = self.cluster.nodes[member]
            if not node.lost_data:
                held = node.disk.flat[: len(self.committed)]
                require(held == self.committed, "S7", f"node {member} lacks committed records: {versioned}")

    def record_stored(self, before: PartitionRecord | None, record: PartitionRecord) -> None:
        isr, elr, known = set(record.isr), set(record.elr), set(record.last_known_elr)
        require(record.leader in isr or record.leader == NO_LEADER, "S9", record)
        require(not isr & elr and not isr & known and not elr & known, "S9", record)
        require(isr | elr | known <= set(record.replicas), "S9", record)
        require(len(isr) < record.min_isr or not elr, "S9", record)
        if before is not None:
            require(record.partition_epoch == before.partition_epoch + 1, "S5", record)
            moved = record.leader != before.leader
            require(record.leader_epoch == before.leader_epoch + moved, "S5", record)
            if moved and record.leader != NO_LEADER and not record.recovering:
                chosen = self.cluster.nodes[record.leader]
                complete = chosen.disk.flat[: len(self.committed)] == self.committed
                require(complete or chosen.lost_data, "S8", f"node {chosen.id} elected: {record}")
        self.quorum()

    def answered(self, sent: Sent, reply: fx.ReplyProduce) -> None:
        if reply.error != ErrorCode.NONE:
            if reply.error.definite and not sent.again:
                self.refused.add(sent.payload)
            return
        if sent.acks != -1:
            return
        base = reply.base_offset
        here = self.committed[base : base + sent.batch.offset_count]
        held = len(here) == sent.batch.offset_count and all(payload == sent.payload for _, payload in here)
        require(held, "S2", f"{sent.payload} promised at {base}: {here}")
        require(self.promised.setdefault(sent.payload, base) == base, "S12", f"{sent.payload} promised twice")
        copies = sum(
            node.disk.flat[: base + 1] == self.committed[: base + 1] for node in self.cluster.nodes.values()
        )
        if not self.cluster.losses:
            require(copies >= self.cluster.settings.min_isr, "S2", f"{sent.payload} is on {copies} disks")

    def read(self, offset: int, batches: tuple[tuple[int, str], ...]) -> None:
        """S10, S11: a consumer gets committed records only, and always the same."""
        there = tuple(self.committed[offset : offset + len(batches)])
        require(there == batches, "S10", f"read {batches} at {offset}: committed is {there}")

    def at_end(self) -> None:
        for payload, base in self.promised.items():
            places = [at for at, (_, held) in enumerate(self.committed) if held == payload]
            require(bool(places) and places[0] == base, "S1", f"{payload} promised at {base}: {places}")
        for number, sequences in self._sequences().items():
            expected = list(range(len(sequences)))
            require(sequences == expected, "S12", f"producer {number} wrote {sequences}")
        written = {payload for node in self.cluster.nodes.values() for _, payload in node.disk.flat}
        require(not written & self.refused, "S18", f"refused and written: {written & self.refused}")

    def _sequences(self) -> dict[int, list[int]]:
        """What each idempotent producer has in the committed log: its sequence numbers in log order."""
        found: dict[int, list[int]] = {}
        for node in self.cluster.nodes.values():
            if node.disk.end >= len(self.committed):
                for meta, _ in node.disk.batches:
                    if meta.producer_id >= 0 and meta.next_offset <= len(self.committed):
                        sequences = found.setdefault(meta.producer_id, [])
                        sequences += range(meta.base_sequence, meta.base_sequence + meta.offset_count)
                return found
        return found
