"""Processes as members of the simulated cluster: the core's `Membership`, over a model store and model folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from ...core.broker.membership.registration import (
    Evidence,
    Held,
    Holdings,
    Membership,
    MembershipError,
    NextProof,
)
from ...core.control import controller as ctl
from ...core.control.records import CONTROLLER_KEY, incarnation_key, node_key, pulse_key
from ...core.control.view import Standing
from ...core.partition import events as ev
from ...core.store_transaction import Committed, Outcome, Transaction
from ...core.types import NO_EPOCH, PartitionId
from ..errors import require
from ..settings import SESSION
from .disk import DAMAGED
from .node import Node
from .store import RACKS

if TYPE_CHECKING:
    from .cluster import Cluster

BEGINS = 0.1
"""After so long a new process has looked through its folder, and reads the store."""
DEPARTURE = 6.0
"""The simulated `controlled_shutdown_timeout`."""
AGAIN = 0.3
"""The pause of a process before it tries once more to tell the store something."""


class Members:
    """How processes enter, stay, and leave. Each has one log directory and one session at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._renewed: dict[int, float] = {}
        """When each session was renewed last."""

    # Coming in

    def begin(self, node: Node) -> None:
        """A new process judges its folder and writes down how old that is, then registers."""
        store = self._cluster.store
        self._look_through(node)
        membership = Membership(
            node_id=node.id,
            boot_id=f"boot {node.boot}",
            process=node.process_name,
            rack=f"rack {node.id % RACKS}",
            holdings=self._holdings(node),
        )
        try:
            proofs = membership.begin(store.seen_by(node.id), store.revision)
        except MembershipError as error:
            self._cluster.refuses(node, error)
            return
        require(not node.is_ahead, "S26", f"node {node.id} enters a store that was put back")
        node.membership, node.stopped_clean = membership, None
        if node.folder in proofs:
            self._write_proof(node, proofs[node.folder])
        self._open_session(node)
        self._register(node)

    def _look_through(self, node: Node) -> None:
        """Compare the identity of each log with its topic's, as a node's start does.

        A log of another topic is refused, an unknown one is set aside.
        """
        damaged, refused, unproven = set(node.refused), set[PartitionId](), set[PartitionId]()
        ids = {partition: host.facts.topic_id for partition, host in node.hosts.items()}
        view, oracle = self._cluster.store.reading(), self._cluster.oracle
        for partition, host in list(node.hosts.items()):
            identity = host.disk.identity
            if identity == DAMAGED:
                damaged.add(partition)
            elif identity is not None:
                standing = view.standing_of(identity)
                if standing is Standing.PRESENT:
                    refused.add(partition)
                    continue
                if standing is Standing.DELETED:
                    oracle.kept.deleting_stranger(host, identity)
                else:
                    node.keep_stray(host)
                    unproven.add(partition)
                oracle.retired_by_fault(host)
                del node.hosts[partition]
        node.damaged, node.refused = frozenset(damaged), frozenset(damaged | refused)
        node.offline = node.offline | node.refused
        unproven |= damaged
        unproven |= {each for each, host in node.hosts.items() if host.disk.is_restored or node.proof is None}
        node.unproven = frozenset((each, ids[each]) for each in unproven)

    def _holdings(self, node: Node) -> Holdings:
        def held(partition: PartitionId) -> Held:
            host, known = node.hosts.get(partition), self._cluster.store.partitions.get(partition)
            if host is None or known is None or host.facts.topic_id != known.record.topic_id:
                return Held(never=partition not in node.has_held)
            disk = host.disk
            return Held(
                home=node.folder,
                log_end_offset=disk.end,
                committed=disk.high_watermark,
                last_epoch=max((each.epoch for each in disk.epochs), default=NO_EPOCH),
                restored=disk.is_restored,
            )

        return Holdings(
            directories=(
                Evidence(directory_id=node.folder, stopped_clean=node.stopped_clean, proof=node.proof),
            ),
            some_offline=False,
            held=held,
            offline=lambda: node.offline,
            refused=node.refused,
            damaged=node.damaged,
        )

    def _register(self, node: Node) -> None:
        cluster, membership, process = self._cluster, node.membership, node.process
        store = cluster.store
        assert membership is not None
        if node.session not in store.sessions:
            self._open_session(node)
        seen = store.seen_by(node.id)
        if not membership.replaces_holder(seen):
            cluster.on(node, AGAIN, partial(self._register, node))
            return
        try:
            entry = membership.enter(seen, (), store.revision)
        except MembershipError as error:
            cluster.refuses(node, error)
            return
        session, replaces = node.session, node.id in store.nodes
        replicas = [p for p, known in store.partitions.items() if node.id in known.record.replicas]

        def write() -> bool:
            epochs = {p: store.partitions[p].record.leader_epoch for p in replicas if p in store.partitions}
            outcome = cluster.commit(entry.transaction, session, f"registration {node.id}")
            if not isinstance(outcome, Committed):
                return False
            if node.up and node.process == process:
                node.lost_data = False
            node.registered = outcome.revision
            if replaces:
                # As if the session of the former process had ended now: controllers see it later.
                node.left = cluster.now
            for each in replicas:
                cluster.oracle.quorum(each)
            for each, epoch in epochs.items():
                cluster.oracle.entered(node.id, each, epoch)
            if node.up and node.process == process:
                cluster.oracle.kept.proved(node)
                for host in node.hosts.values():
                    host.disk.is_restored = False
            return True

        def done(result: object) -> None:
            if result is True or store.owner(node_key(node.id)) == session:
                membership.counted(entry.transaction)
                self._write_proof(node, membership.next_proofs([node.folder], node.registered)[node.folder])
                cluster.enter(node, membership.incarnation)
            else:
                self._register(node)

        cluster.transact(node, write, done)

    # Staying

    def renew(self, node: Node) -> None:
        """Keep the session; after a lost one register again, as the same process."""
        cluster, membership = self._cluster, node.membership
        if node.controller is None or membership is None:
            return
        store = cluster.store
        if node.session in store.sessions and store.owner(node_key(node.id)) == node.session:
            self._renewed[node.session] = cluster.now
            self._count(node)
            return
        cluster.control(node, ctl.SessionLost())
        if node.session not in store.sessions:
            self._open_session(node)
        self._renewed[node.session] = cluster.now
        try:
            transaction = membership.enter_again(store.seen(incarnation_key(node.id), node_key(node.id)), ())
        except MembershipError as error:
            cluster.refuses(node, error)
            return
        self._write(node, transaction, lambda outcome: None)

    def _count(self, node: Node) -> None:
        """The folder counts on, durably, and then the store."""
        cluster, membership = self._cluster, node.membership
        assert membership is not None
        if node.checkpoint_since is not None:
            return  # the device hangs
        revision = max(node.seen, node.registered)
        self._write_proof(node, membership.next_proofs([node.folder], revision)[node.folder])
        own = cluster.store.seen(incarnation_key(node.id), pulse_key(node.id))
        try:
            transaction = membership.beat(own, [node.folder])
        except MembershipError as error:
            cluster.refuses(node, error)
            return

        def counted(outcome: object) -> None:
            if isinstance(outcome, Committed):
                membership.counted(transaction)

        self._write(node, transaction, counted)

    def _write_proof(self, node: Node, proof: NextProof) -> None:
        node.proof = proof
        self._cluster.oracle.kept.proof_written(node, proof)

    def _write(self, node: Node, transaction: Transaction, done: Callable[[object], None]) -> None:
        cluster, session = self._cluster, node.session

        def write() -> Outcome:
            return cluster.commit(transaction, session, f"node {node.id}")

        cluster.transact(node, write, done)

    def take_offline(self, node: Node, partitions: Iterable[PartitionId]) -> None:
        """A log directory cannot be used any more; the process says so, and goes on with what is in others."""
        cluster = self._cluster
        node.offline = node.offline | frozenset(partitions)
        for partition in sorted(node.offline):
            host = node.hosts.get(partition)
            if host is not None:
                host.jobs.clear()
                host.worker, host.busy_since = cluster.new_id(), None
                cluster.step(host, ev.LogFailed(reason="the log directory is offline"))
        self.say_offline(node, node.process)

    def say_offline(self, node: Node, process: int) -> None:
        cluster, membership = self._cluster, node.membership
        if membership is None or node.process != process:
            return
        keys = node_key(node.id), incarnation_key(node.id)
        again = partial(cluster.on, node, AGAIN, partial(self.say_offline, node, process))
        try:
            transaction = membership.say_offline(cluster.store.seen(*keys), node.session, (), ())
        except MembershipError as error:
            cluster.refuses(node, error)
            return
        if transaction is None:
            again()
            return
        self._write(node, transaction, lambda outcome: None if isinstance(outcome, Committed) else again())

    # Leaving

    def depart(self, node: Node, ended: Callable[[], None]) -> None:
        """A process is asked to stop: it hands over what it leads, for so long as it may take, then ends."""
        cluster, store = self._cluster, self._cluster.store
        node.departing = True
        until = cluster.now + DEPARTURE

        def tell() -> None:
            assert node.membership is not None
            own = store.seen(node_key(node.id))
            transaction = node.membership.say_leaving(own, node.session, ())
            if transaction is not None:
                self._write(node, transaction, told)
            elif cluster.now < until:
                cluster.on(node, AGAIN, tell)

        def told(outcome: object) -> None:
            if not isinstance(outcome, Committed) and cluster.now < until:
                tell()

        def look() -> None:
            relieved = node.id in store.leaving and store.reading().is_relieved(node.id)
            if (cluster.reaches_store(node) and relieved) or cluster.now >= until:
                for host in node.hosts.values():
                    host.disk.flush()
                    if host.replica is not None:
                        host.disk.high_watermark = min(host.replica.log.high_watermark, host.disk.end)
                node.stopped_clean = node.incarnation
                cluster.note(f"node {node.id} has stopped")
                cluster.kill(node)
                if cluster.reaches_store(node):
                    self.end_session(node)
                ended()
            else:
                cluster.on(node, 0.1, look)

        tell()
        cluster.on(node, 0.1, look)

    # Sessions

    def _open_session(self, node: Node) -> None:
        node.session = self._cluster.store.open_session(node.id)
        self._cluster.versions.session_opened(node)
        self._renewed[node.session] = self._cluster.now

    def watch_sessions(self) -> None:
        """Have the store end those that nobody renews."""
        cluster, store = self._cluster, self._cluster.store
        if store.reachable:
            for session, number in list(store.sessions.items()):
                if cluster.now - self._renewed[session] > SESSION:
                    self._end(session, cluster.nodes[number])
        cluster.later(0.5, self.watch_sessions)

    def stand_still(self, seconds: float) -> None:
        """The store counts no time for so long, as if its machine were suspended."""
        self._renewed = {session: renewed + seconds for session, renewed in self._renewed.items()}

    def end_session(self, node: Node) -> None:
        """That of its registration, whichever process that is of."""
        session = self._cluster.store.owner(node_key(node.id))
        if session is not None:
            self._end(session, node)

    def _end(self, session: int, node: Node) -> None:
        cluster, store = self._cluster, self._cluster.store
        registered = store.owner(node_key(node.id)) == session
        matters = registered or store.owner(CONTROLLER_KEY) == session
        store.end_session(session)
        del self._renewed[session]
        if registered:
            cluster.note(f"the session of node {node.id} ends")
            node.left = cluster.now
        if matters:
            cluster.store_changed()
