"""One whole run: clients at work, one fault after the other, then calm, in which everything must come right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from ..core.types import NO_LEADER, PartitionId
from .clients.admin_requests import AdminTraffic
from .clients.current_reads import CurrentReader
from .clients.named import Tasks
from .clients.plain import Cleaner, Consumer, Deleter, PlainProducer, Producer
from .clients.readers import Reader
from .clients.transaction_readers import CommittedReader
from .errors import Violated, require
from .faults import identities
from .faults.groups import GroupFaults
from .faults.injector import Injector
from .faults.kinds import KINDS
from .faults.schedule import Fault, draw
from .faults.trust import mend_what_nobody_has
from .faults.weather import Mishap
from .oracles.groups.calm import Calm
from .oracles.liveness import check_health, leaderships
from .oracles.recheck import recheck
from .settings import INTERNAL, LAG_MAX, SESSION, Settings
from .world.cluster import Cluster
from .world.members import DEPARTURE
from .world.node import Node
from .world.versions import MIXED

RECHECK_EVERY = 1000
"""Steps between two full rechecks of the state."""
REPEAT_EVERY = 50
"""Seeds of which one is run twice, to see that it is one run."""
CLIENTS_AT = 2.0
LOOKS_EVERY = 2.0
"""Seconds between two looks at all that coordinators of groups hold."""
QUIET = 15.0
GONE_WITHIN = 35.0
"""Seconds until nothing is left of a group without members: its offsets expire."""


@attrs.frozen(kw_only=True)
class Script:
    """Everything that befalls a run: its schedule, and the mishaps of single messages and writes by number."""

    schedule: tuple[Fault, ...]
    mishaps: Mapping[str, Mishap]


@attrs.frozen(kw_only=True)
class Result:
    """The outcome of one run; `violation` is None if everything held. `script` replays it exactly."""

    seed: int
    settings: Settings
    script: Script
    digest: str
    events: int
    violation: Violated | None
    elections: int
    truncations: int
    isr_changes: int
    crashes: int
    cuts: int
    committed_records: int
    acknowledged: int
    unclean_elections: int
    faults: Mapping[str, int]
    trace: Sequence[str]


class Run:
    """A cluster with clients and faults. Use `run`; this is for those who want to look inside."""

    def __init__(
        self,
        seed: int,
        settings: Settings | None = None,
        script: Script | None = None,
        *,
        keep_trace: bool = False,
        recheck_every: int = RECHECK_EVERY,
    ) -> None:
        self.settings = settings if settings is not None else Settings.swarm(seed)
        schedule = draw(seed, self.settings) if script is None else script.schedule
        mishaps = None if script is None else script.mishaps
        self.cluster = Cluster(seed, self.settings, mishaps, keep_trace=keep_trace)
        self.schedule = schedule
        self.injector = Injector(self.cluster, schedule, KINDS)
        self.producers: list[Producer] = []
        self.tasks: list[Tasks] = []
        self.current_readers: list[CurrentReader] = []
        self.group_faults = GroupFaults(self.cluster.groups)
        self._recheck_every = recheck_every
        self._rechecked = self._served = 0
        self._looks_at = 0.0

    def play(self) -> None:
        """The whole run.

        Raises:
          Violated: An invariant did not hold.
        """
        cluster, settings = self.cluster, self.settings
        cluster.begin()
        cluster.later(CLIENTS_AT, self._clients_begin)
        self._until(settings.storm)
        absent = self._heal()
        if settings.groups:
            self._settle_groups()
        if absent is not None:
            self._until(max(cluster.now, settings.storm + settings.calm))
            check_health(cluster, self.producers, without=absent.id)
            cluster.coordinators.check_health(without=absent.id)
            self._return(absent)
        self._until(cluster.now + settings.calm)
        check_health(cluster, self.producers)
        cluster.coordinators.check_health()
        unfinished = [tasks.unfinished for tasks in self.tasks if tasks.unfinished]
        require(not unfinished, "L9", unfinished)
        unread = [reader.unfinished for reader in self.current_readers if reader.unfinished]
        require(not unread, "L15", unread)
        cluster.transactions.check_health()
        self._probe_stillness()
        self._probe_outages()
        self._probe_departure()
        recheck(cluster)

    def _until(self, end: float) -> None:
        """Run on, and look at everything once in a while."""
        cluster = self.cluster
        while cluster.now < end:
            cluster.run_until(min(end, cluster.now + 0.25))
            if cluster.events - self._rechecked >= self._recheck_every:
                self._rechecked = cluster.events
                recheck(cluster)
            if self.settings.coordinates and cluster.now >= self._looks_at:
                self._looks_at = cluster.now + LOOKS_EVERY
                cluster.coordinators.look()

    def _clients_begin(self) -> None:
        """Once the topics are there, each partition has its clients."""
        cluster = self.cluster
        if len(cluster.store.topics) < len(self.settings.topics):
            cluster.later(0.5, self._clients_begin)
            return
        for partition in cluster.store.partitions:
            self._serve(partition)
        cluster.partition_made = self._serve
        if self.settings.admin_requests:
            cluster.later(cluster.random.random(), AdminTraffic(cluster).turn)
        if self.settings.groups:
            cluster.groups.begin()
            self.group_faults.begin()
        cluster.transactions.begin()

    def _serve(self, partition: PartitionId) -> None:
        cluster, number = self.cluster, self._served
        self._served += 1
        if partition.topic in INTERNAL:
            # Its coordinators alone write to it, and nothing of it is deleted.
            cluster.later(cluster.random.random(), Consumer(cluster, partition).turn)
            self._read_current(partition)
            return
        if not self.settings.producers:
            return  # members only count its records
        for index in range(self.settings.producers):
            producer = Producer(cluster, partition, 10 * number + index)
            self.producers.append(producer)
            cluster.later(cluster.random.random(), producer.turn)
        cluster.later(cluster.random.random(), PlainProducer(cluster, partition).turn)
        if self.settings.named:
            tasks = Tasks(cluster, partition, number)
            self.tasks.append(tasks)
            cluster.later(cluster.random.random(), tasks.turn)
        cluster.later(cluster.random.random(), Consumer(cluster, partition).turn)
        cluster.later(cluster.random.random(), Reader(cluster, partition).turn)
        if self.settings.transactions:
            cluster.later(cluster.random.random(), CommittedReader(cluster, partition).turn)
        if cluster.seed % 2:
            self._read_current(partition)
        if self.settings.deletes:
            cluster.later(cluster.random.random(), Deleter(cluster, partition).turn)
        if self.settings.compactions:
            cluster.later(cluster.random.random(), Cleaner(cluster, partition).turn)

    def _read_current(self, partition: PartitionId) -> None:
        cluster, reader = self.cluster, CurrentReader(self.cluster, partition)
        self.current_readers.append(reader)
        cluster.later(cluster.current_reads.dice.random(), reader.turn)

    # Calm

    def _settle_groups(self) -> None:
        """Nothing happens to groups for a while; then their members go."""
        groups, calm = self.cluster.groups, Calm(self.cluster.groups)
        self._until(self.cluster.now + self.settings.calm + self.group_faults.rest)
        calm.check_stable()
        epochs = calm.epochs()
        self._until(self.cluster.now + QUIET)
        calm.check_stable()
        calm.check_quiet(epochs)
        for member in groups.alive:
            member.stop()
        self._until(self.cluster.now + GONE_WITHIN)
        calm.check_gone()

    def _heal(self) -> Node | None:
        """Faults stop; one node may stay away for a while, if the others can do without it."""
        cluster = self.cluster
        cluster.weather.calm = True
        cluster.cuts.clear()
        cluster.traps.late_answers.clear()
        cluster.traps.late_writes.clear()
        cluster.store.reachable = True
        cluster.note("** calm")
        cluster.groups.heal()
        mend_what_nobody_has(cluster)
        identities.mend(cluster)
        absent = cluster.away = self._spared()
        for node in cluster.nodes.values():
            node.store_cuts, node.deaf_until = 0, 0.0
            hangs, node.stalled_until = node.stalled_until > cluster.now, 0.0
            node.set_clock(cluster.now)
            if node.departing:
                cluster.kill(node)
            if node is absent:
                self._leave(node)
            elif not node.up:
                cluster.start(node)
            elif node.offline or hangs:
                cluster.kill(node)
                cluster.start(node)
            elif node.paused:
                cluster.resume(node)
        return absent

    def _spared(self) -> Node | None:
        cluster = self.cluster
        if cluster.seed % 3 or not cluster.store.partitions or cluster.oracle.risky:
            return None
        node = cluster.nodes[1 + cluster.random.randrange(len(cluster.nodes))]
        there = [partition for partition, host in node.hosts.items() if not host.facts.gone]
        records = [cluster.store.partitions[partition].record for partition in there]
        others = all({*record.isr, *record.elr} & set(record.target) - {node.id} for record in records)
        return node if others and records and cluster.store.topics else None

    def _leave(self, node: Node) -> None:
        """It dies, or (if it runs) its log directory is offline, or (if it must write) its disk hangs."""
        cluster = self.cluster
        runs = node.up and not node.paused
        # A topic that is made anew would come into a directory that works.
        settled = node.controller is not None and not self.settings.recreations
        if runs and settled and cluster.random.random() < 0.3:
            cluster.members.take_offline(node, node.hosts)
            cluster.note(f"** the log directory of node {node.id} is offline")
        elif runs and cluster.random.random() < 0.5:
            node.stalled_until = cluster.now + 2 * self.settings.calm
            cluster.note(f"** the disk of node {node.id} hangs")
        elif node.up:
            cluster.kill(node)

    def _return(self, node: Node) -> None:
        self.cluster.away = None
        node.stalled_until = 0.0
        if node.up:
            self.cluster.kill(node)
        self.cluster.start(node)

    def _probe_stillness(self) -> None:
        """L7: with no faults and no load nothing is written."""
        settled = dict(self.cluster.store.partitions)
        self._until(self.cluster.now + 3 * LAG_MAX)
        require(self.cluster.store.partitions == settled, "L7", "a record changes though nothing happens")

    def _probe_outages(self) -> None:
        """L10: a short outage of the store changes no leader; after a long one exactly one controller acts."""
        cluster = self.cluster
        before = leaderships(cluster)
        cluster.stop_store(SESSION / 3)
        self._until(cluster.now + SESSION)
        require(leaderships(cluster) == before, "L10", "leaders change in a short outage of the store")
        cluster.stop_store(2 * SESSION)
        self._until(cluster.now + 4 * SESSION)
        acting = [n.id for n in cluster.nodes.values() if n.controller is not None and n.controller.active]
        require(len(acting) == 1, "L10", f"after an outage of the store {acting} act as controller")
        leaderless = [leader for leader, _ in leaderships(cluster) if leader == NO_LEADER]
        require(not leaderless, "L10", "after an outage of the store a partition has no leader")

    def _probe_departure(self) -> None:
        """L8: a node that is asked to stop is let go at once, and each partition goes to the next in one step."""
        cluster = self.cluster
        if not cluster.store.partitions:
            return
        self._until(cluster.now + 4 * LAG_MAX)
        check_health(cluster, [])
        records = [v.record for v in cluster.store.partitions.values() if len(v.record.replicas) > 1]
        if not records:
            return
        node = cluster.nodes[records[0].leader]
        led: list[int] = []

        def ended() -> None:
            led[:] = [0, *(leader == node.id for leader, _ in leaderships(cluster))]

        cluster.members.depart(node, ended)
        self._until(cluster.now + DEPARTURE - 0.5)
        alone = len(cluster.store.partitions) - len(records)
        require(bool(led), "L8", f"node {node.id} is not let go")
        require(sum(led) <= alone, "L8", f"node {node.id} goes and leads {sum(led)} partitions")
        for before in records:
            record = cluster.store.partitions[before.id].record
            require(record.leader not in (NO_LEADER, node.id), "L8", f"nobody took over: {record}")
            steps = record.leader_epoch - before.leader_epoch
            require(
                steps == (before.leader == node.id), "L8", f"{steps} elections: {record}, before {before}"
            )

    def result(self, violation: Violated | None) -> Result:
        cluster, applied = self.cluster, dict(self.injector.applied)
        if any(key.startswith("m") for key in cluster.weather.happened):
            applied["ML"] = sum(key.startswith("m") for key in cluster.weather.happened)
        if cluster.versions.met:
            applied[MIXED] = cluster.versions.met
        for kind, label in (("s", "MS"), ("w", "MS"), ("d", "ST")):
            count = sum(key.startswith(kind) for key in cluster.weather.happened)
            if count:
                applied[label] = applied.get(label, 0) + count
        return Result(
            seed=cluster.seed,
            settings=self.settings,
            script=Script(schedule=self.schedule, mishaps=dict(cluster.weather.happened)),
            digest=cluster.trace.digest(),
            events=cluster.events,
            violation=violation,
            elections=cluster.elections,
            truncations=cluster.truncations,
            isr_changes=cluster.isr_changes,
            crashes=self.injector.crashes,
            cuts=applied.get("NP", 0),
            committed_records=sum(len(facts.committed) for facts in cluster.oracle.known.values()),
            acknowledged=cluster.requests.acknowledged,
            unclean_elections=cluster.oracle.unclean_elections,
            faults=applied,
            trace=tuple(cluster.trace.lines),
        )


def run(
    seed: int,
    settings: Settings | None = None,
    script: Script | None = None,
    *,
    keep_trace: bool = False,
    recheck_every: int = RECHECK_EVERY,
) -> Result:
    """Run one seed to its end or to the first violation, which the result names; without `settings` as the
    swarm has it. Machines that break down altogether (`AssertionError`, `ValueError`, ...) are violations, too:
    their name is that of the exception.
    """
    return outcome_of(Run(seed, settings, script, keep_trace=keep_trace, recheck_every=recheck_every))


def run_watched(seed: int, settings: Settings | None = None) -> Result:
    """As `run`; every so many seeds the run is made again, and must be the same (S22)."""
    result = run(seed, settings)
    if seed % REPEAT_EVERY == 0 and result.violation is None:
        again = run(seed, settings)
        if again.digest != result.digest:
            differ = Violated("S22", f"seed {seed} is {result.digest} once, and {again.digest} again")
            return attrs.evolve(result, violation=differ)
    return result


def events_played(result: Result) -> int:
    """How many events `run_watched` has played for a result."""
    is_repeated = result.seed % REPEAT_EVERY == 0 and result.violation is None
    return 2 * result.events if is_repeated else result.events


def outcome_of(one: Run) -> Result:
    """Play a run; its result, whatever becomes of it."""
    try:
        one.play()
    except Violated as violation:
        return one.result(violation)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as failure:
        broken = Violated(type(failure).__name__, failure)
        broken.__cause__ = failure
        return one.result(broken)
    return one.result(None)
