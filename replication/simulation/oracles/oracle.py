"""The rules that a cluster must keep, judged from outside: by the disks, the store and the answers.

The names are those of the page on the protocol. Every check is made as soon as what it is about may have changed,
and of nothing else; `recheck` makes all of them anew from scratch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...core.control.controller import AskReplicas, Commit
from ...core.control.elections import ANY, MOST_COMPLETE, WAIT, LogInfo
from ...core.control.records import PartitionRecord
from ...core.partition import effects as fx
from ...core.partition import events as ev
from ...core.types import NO_LEADER, PartitionId
from ..errors import require
from ..settings import LAG_MAX
from ..world.disk import GONE, Disk, Stored, key_of
from ..world.node import Host, Node
from . import chain
from .facts import PartitionFacts
from .kept import Kept
from .laggards import Laggards

if TYPE_CHECKING:
    from ..driver.requests import Sent
    from ..world.cluster import Cluster

_LYING = frozenset({"BK", "RT", "RS", "RD", "FC", "FM"})
"""Faults that take from a device what it had, or from the store what it had confirmed."""
_CHANGES_RECORD = frozenset((ev.RecordChanged, ev.IsrStored))
_CHANGES_LOG = frozenset((ev.Appended, ev.EpochAssigned, ev.Truncated, ev.Opened, ev.LogStartAdvanced))


class Before(NamedTuple):
    """A replica before a step. `state`: what an event of another leader epoch must not change, if it is of one."""

    led: bool
    next_offset: int
    state: tuple[object, ...] | None


class Oracle:
    """Knows what was committed, who led when, and what was promised to whom."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.partitions: dict[PartitionId, PartitionFacts] = {}
        """Of those that there are. `known`: also of those whose topic was deleted, by its id."""
        self.known: dict[tuple[PartitionId, str], PartitionFacts] = {}
        self.risky: set[int] = set()
        """Nodes that lost what they had not flushed, and do not yet hold again what was committed."""
        self.unclean_elections = 0
        self.asked_unclean: set[PartitionId] = set()
        """Somebody has asked for an unclean election, should nobody lead when it comes to it."""
        self._versions: dict[tuple[str, int], int] = {}
        self._starts: dict[tuple[str, int], int] = {}
        self._cuts: dict[tuple[str, int, int], int] = {}
        self._since: dict[tuple[str, int, int], float] = {}
        """The clock of each leader when its epoch began."""
        self._proposals: set[tuple[str, int, int]] = set()
        self._told: dict[tuple[str, PartitionId], dict[int, LogInfo]] = {}
        """The reports that each controller has heard, by its name as a writer."""
        self._elected_by: dict[tuple[str, PartitionId], dict[int, LogInfo]] = {}
        """The same when it elected: the store takes that later, and more may be told by then (seed 7120900)."""
        self._asked: dict[tuple[str, PartitionId], tuple[str, int, set[int]]] = {}
        """Each controller's questions about a partition: its topic id, the latest leader epoch, the nodes."""
        self._at_end: dict[tuple[str, int, int, int], float] = {}
        self._laggards = Laggards()
        self.kept = Kept(cluster)

    # Around every step of a replica

    def before(self, host: Host, event: ev.Event | ev.Fetch, asked_in: int | None) -> Before:
        """Whether the replica leads, and, if the event is of another leader epoch, its state."""
        replica = host.replica
        assert replica is not None
        led = replica.leader is not None
        if asked_in is None:
            if isinstance(event, ev.Fetch):
                asked_in = event.leader_epoch if event.replica_id >= 0 else None
            elif isinstance(event, ev.Fetched):
                asked_in = event.leader_epoch
        stale = asked_in is not None and asked_in != replica.leader_epoch
        return Before(led, replica.log.next_offset, self._state(host) if stale else None)

    def ticked(self, host: Host) -> None:
        """The broker of a replica has told those that want to know that time has passed."""
        self._laggards.ticked(host)

    def after(self, host: Host, event: ev.Event | ev.Fetch, before: Before, *, counts: bool = False) -> None:
        """`counts`: a fetch was neither refused, nor does its sender's log part from this one."""
        replica = host.replica
        assert replica is not None
        led, state = before.led, before.state
        log, disk = replica.log, host.disk
        shape = 0 <= log.log_start_offset <= log.high_watermark <= log.log_end_offset <= log.next_offset
        kind = type(event)
        if kind is ev.Opened and not replica.failure:
            found, held = (log.log_start_offset, log.log_end_offset), (disk.start, disk.end)
            require(found == held, "S15", "{} goes by a log of {}, on disk {}", host.name, found, held)
        # A closed log may have done what its replica will never hear of.
        told_all = not log.outstanding and replica.role != "closed"
        if not shape or (told_all and log.log_end_offset > disk.end):
            require(False, "S9", f"{host.name}: {log}, on disk {disk.end}")
        if state is not None:
            require(state == self._state(host), "S13", "{} heeds {}", host.name, event)
        if kind in _CHANGES_RECORD:
            self._version_known(host)
        self._start_known(host, event)
        if kind in _CHANGES_LOG and told_all and log.log_start_offset == disk.start:
            cached = list(log.epochs.entries)
            require(cached == disk.epochs, "S14", "{}: {}, on disk {}", host.name, cached, disk.epochs)
        leads = replica.leader is not None
        facts = host.facts
        if leads:
            self._led(host, facts)
            if counts and isinstance(event, ev.Fetch) and event.replica_id >= 0:
                self._note_lag(host, event)
            elif isinstance(event, ev.Produce):
                self._gate(host, event, before)
            self._laggards.after(host, event)
        if facts.unclean or disk.agreed >= log.high_watermark <= len(facts.committed):
            return
        if not led and not leads:
            seen = min(log.high_watermark, disk.end)
            require(facts.agreed(disk) >= seen, "S3b", "{} shows records that are not committed", host.name)
        elif log.high_watermark > len(facts.committed):
            facts.commit(host, log.high_watermark)
            self.quorum(host.partition)
        else:
            require(
                facts.agreed(disk) >= log.high_watermark, "S1", "leader {} shows another history", host.name
            )

    @staticmethod
    def _state(host: Host) -> tuple[object, ...]:
        """The state that no message of another leader epoch may change."""
        replica = host.replica
        assert replica is not None
        leader, log = replica.leader, replica.log
        pending = leader.change.pending if leader is not None else None
        followers = leader.followers.values() if leader is not None else ()
        return (
            log.log_end_offset,
            log.next_offset,
            log.high_watermark,
            log.outstanding,
            replica.versioned,
            pending.proposal if pending is not None else None,
            tuple((f.node_id, f.log_end_offset, f.incarnation) for f in followers),
        )

    def _version_known(self, host: Host) -> None:
        replica = host.replica
        assert replica is not None
        if replica.versioned is not None:
            key = host.name, host.node.process
            known, version = self._versions.get(key, 0), replica.versioned.version
            require(version >= known, "S5", "{} went back from version {} to {}", host.name, known, version)
            self._versions[key] = version

    def _start_known(self, host: Host, event: ev.Event | ev.Fetch) -> None:
        """S16: a log start goes back only with a truncation, which nothing committed ever sees."""
        assert host.replica is not None
        key, start = (host.name, host.node.process), host.replica.log.log_start_offset
        known = self._starts.get(key, 0)
        if start != known:
            cut = isinstance(event, ev.Truncated) or host.facts.unclean
            require(start > known or cut, "S16", "{} began at {}, now at {}", host.name, known, start)
            self._starts[key] = start

    def _led(self, host: Host, facts: PartitionFacts) -> None:
        assert host.replica is not None
        epoch, me = host.replica.leader_epoch, (host.node.id, host.node.process)
        holder = facts.leaders.setdefault(epoch, me)
        self._since.setdefault((host.name, host.node.process, epoch), host.replica.now)
        require(holder == me, "S4", "epoch {} of {} led by {} and by {}", epoch, facts.name, holder, me)

    def proposed(self, host: Host, proposal: fx.ProposeIsr) -> None:
        """S16: whoever is to join has let go of what is deleted, as the proposal may be stored at once.

        L7: nobody is put out who has the end of the log, or had it less than the lag ago.
        """
        replica = host.replica
        assert replica is not None
        stored, facts = self._cluster.store.partitions.get(host.partition), host.facts
        known = not self._cluster.store.is_put_back
        if known and stored is not None and stored.version == proposal.version and not facts.unclean:
            present = self._cluster.store.incarnations
            for member, incarnation in proposal.joining:
                if self._cluster.nodes[member].lost_data or incarnation != present[member]:
                    continue  # it is another process by now, which the store will not take for this one
                start = self.disk_of(member, host.partition).start
                require(start >= facts.deleted, "S16", "node {}, to join, begins at {}", member, start)
        key = host.name, host.node.process, proposal.proposal_id
        again = key in self._proposals
        self._proposals.add(key)
        if again or replica.leader is None or replica.versioned is None or proposal.joining:
            return
        for member in set(replica.versioned.record.isr) - set(proposal.record.isr):
            follower = replica.leader.followers[member]
            at_end = follower.log_end_offset == replica.log.log_end_offset
            seen = self._at_end.get((host.name, host.node.process, replica.leader_epoch, member))
            since = self._since[host.name, host.node.process, replica.leader_epoch]
            lag = replica.now - max(since, seen if seen is not None else since)
            require(not at_end and lag > LAG_MAX, "L7", "{} puts out {} after {:g} s", host.name, member, lag)

    def _note_lag(self, host: Host, event: ev.Fetch) -> None:
        """When a member had all that its leader has, told without the leader's own bookkeeping."""
        replica = host.replica
        assert replica is not None
        self._laggards.fetched(host, event.replica_id, event.fetch_offset)
        if event.fetch_offset >= replica.log.log_end_offset:
            self._at_end[host.name, host.node.process, replica.leader_epoch, event.replica_id] = replica.now

    def _gate(self, host: Host, event: ev.Produce, before: Before) -> None:
        """S24: acks=all is taken only with as many members in the store's own ISR as the minimum says."""
        replica = host.replica
        assert replica is not None
        if (
            event.acks == -1
            and replica.log.next_offset != before.next_offset
            and replica.versioned is not None
        ):
            record = replica.versioned.record
            enough = len(record.isr) >= record.min_isr
            require(enough, "S24", f"{host.name} takes acks=all with an ISR of {list(record.isr)}")

    # The disks

    def appending(self, host: Host, batches: tuple[Stored, ...], *, leading: int | None = None) -> None:
        """Before batches are written: in order, of epochs that do not go back, by who leads if it leads."""
        facts, disk = host.facts, host.disk
        if leading is not None:
            holder = facts.leaders.get(leading)
            me = host.node.id, host.node.process
            require(holder == me, "S4", "{} writes in epoch {}, which {} leads", host.name, leading, holder)
        for batch in batches:
            meta, start = batch.meta, disk.start
            inside = not disk.batches and meta.base_offset < start == disk.end < meta.next_offset
            goes_on = meta.base_offset == disk.end or inside
            require(goes_on, "S5", "{}: {} after {}", host.name, batch.meta, disk.end)
            last = disk.batches[-1].meta.leader_epoch if disk.batches else -1
            require(meta.leader_epoch >= last, "S5", "{}: {} after epoch {}", host.name, meta, last)
            facts.line(host, batch)
            require(batch.payload not in facts.refused, "S18", "{} was refused and is written", batch.payload)
            facts.written.add(batch.payload)
            if leading is not None and disk.forgot and meta.producer_id >= 0:
                facts.blind.add((meta.base_offset, meta.leader_epoch))
            disk.append((batch,))

    def disk_changed(self, host: Host) -> None:
        """S14 for the end of the log, S7 for all that may be elected."""
        disk = host.disk
        for epoch, start in disk.epochs[-2:]:
            if start < disk.end:
                first = start <= disk.start or disk.flat[start - 1][0] < epoch
                require(first and disk.flat[start][0] == epoch, "S14", "{}: {}", host.name, disk.epochs)
        if disk.end > disk.start and not any(entry.epoch == disk.flat[-1][0] for entry in disk.epochs[-2:]):
            require(False, "S14", f"{host.name}: {disk.epochs} without epoch {disk.flat[-1][0]}")
        self.quorum(host.partition)

    def deleting(self, host: Host, offset: int) -> None:
        """S16: nothing above the high watermark is deleted, and nothing but what was committed."""
        replica, facts = host.replica, host.facts
        assert replica is not None
        seen = replica.log.high_watermark
        require(offset <= seen, "S16", f"{host.name} deletes up to {offset}, its high watermark is {seen}")
        if not facts.unclean:
            held = facts.agreed(host.disk)
            require(offset <= held, "S16", f"{host.name} deletes up to {offset}, committed there is {held}")

    def deletion_promised(self, host: Host, offset: int) -> None:
        """S16: whoever may lead next has let go of it, too."""
        host.facts.deleted = max(host.facts.deleted, offset)
        self.let_go(host.partition)

    def disk_of(self, node: int, partition: PartitionId) -> Disk:
        """A node's log of an existing partition; an empty one, if the node has not even heard of it."""
        host = self._cluster.nodes[node].hosts.get(partition)
        there = host is not None and host.facts is self.partitions[partition]
        return host.disk if host is not None and there else Disk()

    def let_go(self, partition: PartitionId) -> None:
        """S16: nobody who may be elected cleanly holds what somebody was told is deleted."""
        if self._cluster.store.is_put_back:
            return
        versioned = self._cluster.store.partitions.get(partition)
        facts = self.partitions.get(partition)
        if versioned is None or facts is None or facts.unclean or not facts.deleted:
            return
        for member in (*versioned.record.isr, *versioned.record.elr):
            if self._cluster.nodes[member].lost_data:
                continue
            start = self.disk_of(member, partition).start
            require(start >= facts.deleted, "S16", f"node {member} begins at {start}, not {facts.deleted}")

    def is_held_by_another(self, host: Host) -> bool:
        """Whether another replica that may be elected cleanly has as much of what was committed.

        One that stood still and goes on by what its former leader told it cuts more than it would by now.
        """
        versioned, facts = self._cluster.store.partitions.get(host.partition), host.facts
        if versioned is None or facts.gone:
            return False
        others = {*versioned.record.isr, *versioned.record.elr} - {host.node.id}
        held = facts.agreed(host.disk)
        return any(facts.agreed(self.disk_of(each, host.partition)) >= held for each in others)

    def cleaned(self, host: Host, emptied: Sequence[Stored]) -> None:
        """S19: nothing is compacted away but for a later batch of its key that is committed, too."""
        facts = host.facts
        if facts.unclean:
            return
        for batch in emptied:
            last = facts.last_of_key.get(key_of(batch.payload), -1)
            require(
                batch.meta.base_offset < last,
                "S19",
                f"{host.name} compacts {batch}, the last committed of its key is at {last}",
            )

    def truncating(self, host: Host) -> None:
        """L6: within one leader epoch each cut drops an epoch, so there are no more cuts than epochs."""
        assert host.replica is not None
        key = host.name, host.node.process, host.replica.leader_epoch
        rounds = self._cuts[key] = self._cuts.get(key, 0) + 1
        require(rounds <= len(host.disk.epochs) + 3, "L6", "{} cuts for the {}th time", host.name, rounds)

    def recovered(self, host: Host, *, was: list[tuple[int, str]], flushed: int) -> None:
        """S15: what is found after a stop is what was written, whole, and all of it that was flushed."""
        disk = host.disk
        start = disk.start
        require(disk.flat[start:] == was[start : disk.end], "S15", f"{host.name} has what it never wrote")
        require(disk.end >= flushed, "S15", f"{host.name} ends at {disk.end}, flushed to {flushed}")
        require(disk.torn is None, "S15", f"{host.name} has a torn batch at {disk.torn}")

    def given_up(self, host: Host) -> None:
        """L14: no damaged log is closed unless its node knows of another replica that may lead and lives."""
        assert host.node.broker is not None
        view = host.node.broker.context.view
        versioned = view.partitions.get(host.partition)
        others: set[int] = set()
        if versioned is not None and versioned.record.topic_id == host.facts.topic_id:
            others = {*versioned.record.isr, *versioned.record.elr} - {host.node.id}
        alive = others & set(view.live_for(host.partition))
        require(bool(alive), "L14", f"{host.name} is given up, and nobody else may lead: {versioned}")

    def retired(self, host: Host) -> None:
        """S17: no log is deleted of a node that is to have one, as long as what it holds may be needed."""
        if not host.facts.gone:
            store = self._cluster.store
            # The node goes by its last reading, which was right before the store was put back (seed 7122968).
            known = host.node.shown if store.is_put_back else store
            record = known.partitions[host.partition].record
            counted = host.node.id in (*record.isr, *record.elr)
            require(not counted, "S17", f"{host.name} is deleted, and counts as having everything: {record}")
        self._starts.pop((host.name, host.node.process), None)

    def retired_by_fault(self, host: Host) -> None:
        """A log is gone that nobody was to delete."""
        self._starts.pop((host.name, host.node.process), None)

    def forgotten(self) -> dict[PartitionId, PartitionFacts]:
        """Partitions that the store has no record of any more, though nobody has deleted them."""
        there = self._cluster.store.partitions
        missing = {each: facts for each, facts in self.partitions.items() if each not in there}
        for partition, facts in missing.items():
            facts.gone = True
            del self.partitions[partition]
        return missing

    def repaired(self) -> None:
        """S7, S5: an operator has written anew what the store says, where nobody leads."""
        store = self._cluster.store
        for partition, facts in self.forgotten().items():
            # It was made after the copy, and no node had come to write anything of it.
            require(not facts.committed, "S7", f"{facts.name} is forgotten, committed: {facts.committed}")
            del self.known[partition, facts.topic_id]
        for partition, versioned in store.partitions.items():
            facts, record = self.partitions[partition], versioned.record
            chain.check_shape(record)
            later = record.leader_epoch > max(facts.leaders, default=-1)
            require(
                later and record.leader == NO_LEADER, "S5", f"{record} was repaired, led: {facts.leaders}"
            )
            facts.min_isr = min(facts.min_isr, record.min_isr)
            self.quorum(partition)

    def quorum(self, partition: PartitionId) -> None:
        """S7 in its strong form: whoever may be elected cleanly has every committed record."""
        if self._cluster.store.is_put_back:
            return
        versioned, facts = self._cluster.store.partitions.get(partition), self.partitions.get(partition)
        if versioned is None or facts is None or facts.unclean:
            return
        committed = len(facts.committed)
        for member in (*versioned.record.isr, *versioned.record.elr):
            node = self._cluster.nodes[member]
            disk = self.disk_of(member, partition)
            if disk.agreed < committed and not node.lost_data:
                held = facts.agreed(disk)
                require(
                    held == committed, "S7", "node {} has {} of {}: {}", member, held, committed, versioned
                )

    # The store

    def record_stored(
        self,
        before: PartitionRecord | None,
        record: PartitionRecord,
        writer: str,
        joining: tuple[tuple[int, int], ...],
    ) -> None:
        store = self._cluster.store
        if store.is_put_back:
            return  # what is written to it before its nodes notice is written over by the repair
        chain.check_shape(record)
        if writer.startswith("controller"):
            right = record.controller_epoch == store.controller_epoch
            require(
                right,
                "S13",
                "{} of epoch {} wrote in {}",
                writer,
                record.controller_epoch,
                store.controller_epoch,
            )
        if before is None:
            self._made(record)
            return
        chain.check_step(before, record, writer)
        facts = self.partitions[record.id]
        facts.min_isr = min(facts.min_isr, record.min_isr)
        incarnations = dict(joining)
        for member in set(record.isr) - set(before.isr) if writer.startswith("leader") else ():
            named = incarnations.get(member)
            require(member in store.live, "S9", f"{writer} adds {member}, which is fenced: {record}")
            require(member not in store.leaving, "S9", f"{writer} adds {member}, which is leaving: {record}")
            require(named == store.incarnations[member], "S9", f"{writer} adds {member} as {named}: {record}")
        if chain.is_unclean(before, record):
            self._unclean(before, record, writer)
        elif record.leader not in (before.leader, NO_LEADER):
            self._elected(record)
        self.quorum(record.id)
        self.let_go(record.id)

    def _made(self, record: PartitionRecord) -> None:
        """S6: a partition comes with its topic, and the id of a topic is never used again."""
        topic, key = self._cluster.store.topics.get(record.topic), (record.id, record.topic_id)
        with_topic = topic is not None and topic.topic_id == record.topic_id
        require(with_topic and key not in self.known, "S6", f"{record} is made, its topic is {topic}")
        name = str(record.id) if record.topic_id == record.topic else f"{record.id} of {record.topic_id}"
        facts = PartitionFacts(name, record.topic_id, record.min_isr)
        facts.flushes = topic is not None and topic.config.durability == "flushed"
        self.partitions[record.id] = self.known[key] = facts
        self._cluster.transactions.watch(record.id, facts)

    def deleted(self, partition: PartitionId) -> None:
        """S1: no topic goes but on somebody's request."""
        facts = self.partitions.pop(partition)
        admin_requested = self._cluster.topics.may_go(partition.topic, facts.topic_id)
        require(admin_requested, "S1", f"nobody has asked to delete {facts.name}")
        facts.gone = True

    def _elected(self, record: PartitionRecord) -> None:
        facts, chosen = self.partitions[record.id], self._cluster.nodes[record.leader]
        if not facts.unclean and not chosen.lost_data:
            held = facts.agreed(self.disk_of(chosen.id, record.id))
            require(held == len(facts.committed), "S8", f"node {chosen.id} elected with {held}: {record}")

    def telling(self, host: Host, info: LogInfo) -> None:
        """S21: what a replica reports of its log agrees with its disk."""
        disk, last = host.disk, -1
        if disk.end > disk.start:
            last = disk.flat[-1][0]
        elif info.log_start_offset < disk.start:
            # Retention has deleted all, and tells the replica in a moment (seed 7122844).
            last = info.last_epoch
        own = info.completeness == (last, disk.end) and info.topic_id == host.facts.topic_id
        require(own, "S21", "{} reports {}; its log holds {}", host.name, info, (last, disk.end))

    def told(self, controller: str, logs: Mapping[PartitionId, Mapping[int, LogInfo]]) -> None:
        """A controller has heard what replicas say of their logs."""
        for partition, infos in logs.items():
            self._told.setdefault((controller, partition), {}).update(infos)

    def asking(self, controller: str, asked: AskReplicas) -> None:
        """A controller asks replicas what their logs hold."""
        for partition, nodes in asked.partitions.items():
            of = asked.topic_ids[partition], asked.leader_epochs[partition]
            topic_id, epoch, known = self._asked.get((controller, partition), ("", -1, set()))
            everybody = {*known, *nodes} if (topic_id, epoch) == of else {*nodes}
            self._asked[controller, partition] = *of, everybody

    def deciding(self, node: Node, commit: Commit) -> None:
        """S21: an election by the logs knows every log that lives; on request it may go on without a silent one."""
        for put in commit.puts:
            record = put.record
            if not isinstance(record, PartitionRecord) or record.leader_epoch != record.unclean_epoch:
                continue
            before, topic = node.shown.partitions[record.id].record, node.shown.topics[record.topic]
            if record.leader_epoch == before.leader_epoch:
                continue
            writer = node.writer(node.incarnation)
            told = self._elected_by[writer, record.id] = self._infos(writer, before)
            if topic.config.unclean_leader_election == ANY:
                continue
            topic_id, epoch, asked = self._asked.get((writer, record.id), ("", -1, ()))
            current = (topic_id, epoch) == (before.topic_id, before.leader_epoch)
            living = set(node.shown.live_for(record.id, leaving=True)) & set(before.replicas)
            # A node may answer an earlier question when it knows of this epoch: then no question is needed.
            waits = topic.config.unclean_leader_election == WAIT and record.id not in self.asked_unclean
            asked = set(asked) if current else set()
            # Silence is no evidence: with `wait` those that live must tell, and the others must have been asked.
            expected, may_be_silent = (set(before.replicas), asked - living) if waits else (living, asked)
            unseen = expected - may_be_silent - told.keys()
            require(not unseen, "S21", f"{record} though {unseen} did not tell of their logs, after {before}")

    def _infos(self, writer: str, before: PartitionRecord) -> dict[int, LogInfo]:
        """The logs of this epoch, as a controller has heard of them."""
        return {
            node: info
            for node, info in self._told.get((writer, before.id), {}).items()
            if info.leader_epoch == before.leader_epoch and info.topic_id == before.topic_id
        }

    def _unclean(self, before: PartitionRecord, record: PartitionRecord, writer: str) -> None:
        """S21: only by policy, or because all that were last known to be eligible are back: the best of all."""
        policy = self._cluster.store.topics[record.topic].config.unclean_leader_election
        last_known, facts = set(before.last_known_elr), self.partitions[record.id]
        resort = bool(last_known) and all(self._cluster.was_live(node) for node in last_known)
        asked = record.id in self.asked_unclean
        allowed = policy != WAIT or resort or asked
        require(allowed, "S21", f"nobody asked for an unclean election: {record}, after {before}")
        used = record.leader_epoch in facts.leaders
        require(not used, "S5", f"{record} begins an epoch that has been used: {facts.leaders}")
        infos = self._elected_by[writer, record.id]
        above = all(info.last_epoch < record.leader_epoch for info in infos.values())
        require(above, "S5", f"{record} begins an epoch below that of a log: {infos}")
        if policy != ANY and (policy == MOST_COMPLETE or asked or last_known <= infos.keys()):
            self._has_most(record, infos, last_known)
        elif policy == WAIT:
            require(False, "S21", f"{last_known} have not all told: {infos}, {before}")
        members = {*before.elr, *before.last_known_elr}
        # Without the log of any member, nothing tells whose late epochs nobody followed.
        knows = not members or not members.isdisjoint(infos)
        if policy != ANY and not facts.unclean and knows:
            self._gives_up_least(record, facts, infos)
        self.unclean_elections += 1
        if policy != ANY and not facts.unclean and self._has_survivor(facts, record, infos):
            held, committed = facts.agreed(self.disk_of(record.leader, record.id)), len(facts.committed)
            spared = facts.spared
            require(held == committed, "S40", "node {} has all {}, elected: {}", spared, committed, record)
        elif (
            facts.flushes
            and not facts.wiped
            and policy == WAIT
            and not asked
            and _LYING.isdisjoint(self._cluster.settings.faults)
        ):
            # The device of each member of the ISR had all that was committed, so this election loses nothing of it.
            held, committed = facts.agreed(self.disk_of(record.leader, record.id)), len(facts.committed)
            require(
                held == committed, "S38", "{} of {} flushed offsets are left: {}", held, committed, record
            )
        else:
            facts.unclean = True

    def _has_survivor(
        self, facts: PartitionFacts, record: PartitionRecord, infos: Mapping[int, LogInfo]
    ) -> bool:
        """Whether a device that has kept everything still has it, and its node has told of the log."""
        info = infos.get(facts.spared)
        usable = self._cluster.store.reading().live_for(record.id, leaving=True)
        if self._cluster.nodes[record.leader].lost_data:
            return False  # since it told; its next process says so
        if info is None or usable.get(facts.spared) != info.incarnation:
            return False
        disk = self.disk_of(facts.spared, record.id)
        return disk.end > disk.start and facts.agreed(disk) == len(facts.committed)

    def _gives_up_least(
        self, record: PartitionRecord, facts: PartitionFacts, infos: Mapping[int, LogInfo]
    ) -> None:
        """No replica that has told of its log, and can lead, holds a committed record that the new leader lacks."""
        chosen = self._cluster.nodes[record.leader]
        usable = self._cluster.store.reading().live_for(record.id, leaving=True)
        if chosen.lost_data or facts.outgrown:
            return  # of lost data its next process tells
        held = facts.agreed(self.disk_of(chosen.id, record.id))
        for node, info in infos.items():
            disk = self.disk_of(node, record.id)
            # A log whose records are all deleted knows no epoch, and has none that could be lost.
            if usable.get(node) == info.incarnation and disk.start < disk.end:
                more = facts.agreed(disk)
                require(
                    more <= held,
                    "S21",
                    "node {} has {} committed records of {}: {}",
                    node,
                    more,
                    held,
                    record,
                )

    def entered(self, node: int, partition: PartitionId, before: int) -> None:
        """S5: a process whose log has a later leader epoch than the store had (`before`) has it raised above."""
        versioned, facts = self._cluster.store.partitions.get(partition), self.partitions.get(partition)
        host = self._cluster.nodes[node].hosts.get(partition)
        if versioned is None or host is None or host.facts is not facts or partition in host.node.offline:
            return
        disk, epoch = host.disk, versioned.record.leader_epoch
        last = disk.flat[-1][0] if disk.end > disk.start else -1
        require(
            last <= before or epoch > last,
            "S5",
            "{}: {} is behind epoch {}",
            host.name,
            versioned.record,
            last,
        )

    def _has_most(self, record: PartitionRecord, infos: Mapping[int, LogInfo], last_known: set[int]) -> None:
        """The new leader has told of its log in this life. No replica that was last known to be eligible has more;
        if none of these has told, no other replica has.
        """
        live, chosen = self._cluster.store.live, infos.get(record.leader)
        usable = self._cluster.store.reading().live_for(record.id, leaving=True)
        compared = last_known & infos.keys() or infos.keys()
        best = max(
            (
                infos[node].completeness
                for node in compared
                # Who was away until a moment ago may still be so for the controller.
                if usable.get(node) == infos[node].incarnation and not self._cluster.left_unseen(node)
            ),
            default=(-1, -1),
        )
        most = chosen is not None and chosen.completeness >= best
        require(most, "S21", f"of {infos}, alive {live}, the most complete was to lead: {record}")
        known = chosen is not None and live.get(record.leader) == chosen.incarnation
        seen = known or self._cluster.left_unseen(record.leader)
        require(seen, "S21", f"{chosen} was told by an earlier process of the leader: {record}, alive {live}")

    # Clients

    def promised(self, sent: Sent, base: int) -> None:
        """S2, S12: an acks=all answer without an error."""
        facts = sent.facts
        if facts is None or facts.unclean:
            return
        count = sent.batch.offset_count
        here = facts.committed[base : base + count]
        held = len(here) == count and all(payload == sent.payload for _, payload in here)
        require(held, "S2", "{}: {} promised at {}: {}", facts.name, sent.payload, base, here)
        facts.acknowledged = max(facts.acknowledged, base + count)
        known = facts.promised.setdefault(sent.payload, base)
        again = known == base or facts.forgot
        require(again, "S12", "{}: {} promised at {} and at {}", facts.name, sent.payload, known, base)
        if facts.gone or self._cluster.store.is_put_back:
            return
        copies = sum(
            facts.agreed(host.disk) >= base + count or host.node.id in self.risky
            for host in self._cluster.hosts_of(sent.partition, facts)
        )
        # A folder that was put back has lost replicas that came after it was copied.
        replicas = self._cluster.store.partitions[sent.partition].record.replicas
        there = {host.node.id for host in self._cluster.hosts_of(sent.partition)}
        copies += sum(node in self.risky and node not in there for node in replicas)
        require(copies >= facts.min_isr, "S2", "{}: {} is on {} disks", facts.name, sent.payload, copies)

    def written(self, host: Host, sent: Sent, base: int) -> None:
        """S2: an answer to acks=1 without an error: the leader's log has the batch."""
        facts = host.facts
        if facts.unclean:
            return
        here = host.disk.flat[base : base + sent.batch.offset_count]
        held = len(here) == sent.batch.offset_count
        held = held and all(payload in (sent.payload, GONE[1]) for _, payload in here)
        require(held, "S2", "{}: {} is told to be at {}: {}", host.name, sent.payload, base, here)

    def refused(self, sent: Sent) -> None:
        """S18: an answer that says that the batch is certainly in no log."""
        facts = sent.facts
        if facts is None:
            return
        require(sent.payload not in facts.written, "S18", "{} is written and was refused", sent.payload)
        facts.refused.add(sent.payload)

    def read(self, host: Host, offset: int, batches: Sequence[Stored]) -> None:
        """S10, S11, S16: a consumer gets committed records only, always the same, and from who leads by the
        store's record none that it was told are deleted.
        """
        facts = host.facts
        gone = not facts.unclean and batches and offset < facts.deleted and self.is_current(host)
        require(not gone, "S16", "{}: read from {}, deleted up to {}", facts.name, offset, facts.deleted)
        for meta, payload, _ in batches:
            right = [(meta.leader_epoch, payload)] * meta.offset_count
            there = facts.committed[meta.base_offset : meta.next_offset]
            require(
                facts.unclean or there == right,
                "S10",
                "{}: read {}, committed is {}",
                facts.name,
                meta,
                there,
            )

    def latest(self, host: Host, offset: int) -> None:
        """S11, S20: the end that a current leader reports never lies before an end reported earlier, nor before an
        acknowledged record.
        """
        facts = host.facts
        if self.is_current(host) and not facts.unclean:
            require(
                offset >= facts.latest, "S11", "{}: latest is {}, and was {}", host.name, offset, facts.latest
            )
            done = facts.acknowledged
            require(offset >= done, "S20", "{}: latest is {}, acknowledged up to {}", host.name, offset, done)
        facts.latest = max(facts.latest, offset)

    def is_current(self, host: Host) -> bool:
        """Whether a leader leads by the store's record, too."""
        if host.facts.gone or host.replica is None or self._cluster.store.is_put_back:
            return False
        record = self._cluster.store.partitions[host.partition].record
        return (record.leader, record.leader_epoch) == (host.node.id, host.replica.leader_epoch)
