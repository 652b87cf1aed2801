"""The make-up of a simulated cluster and the faults that befall it; `Settings.swarm` draws them from a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping

import attrs

from ..core.broker.coordination.transacting import MARKER_TIMEOUT
from ..core.coordination.routing import GROUP_TOPIC, TRANSACTION_TOPIC
from ..core.transactions.records import LAST_EPOCH
from .errors import SimulationError

FAULTS: Mapping[str, str] = {
    "CS": "a process is killed; what it wrote stays",
    "CR": "a machine, or all of them, loses power, and with it any suffix of what was not flushed",
    "NP": "two nodes cannot reach each other, both ways or one way",
    "ML": "messages are lost, doubled, late and out of order",
    "CK": "a node's clock runs fast or slow, or jumps ahead",
    "PZ": "a process stands still and goes on as if nothing had been",
    "DK": "a machine loses power in the middle of a write, which is found torn",
    "MS": "the store is out of reach, forgets a session, shows changes late, or does not know what it did",
    "ST": "a disk is slow, fails, is full, or hangs while the network lives",
    "SD": "a process is asked to stop: it hands over what it leads, then ends",
    "BK": "a folder is put back to an older state, or copied; a log is short; a disk lies about what it flushed",
    "RT": "a disk spoils a batch in the middle of a log, which is found when somebody is sent it, or at a start",
    "MV": "nodes of two minor versions: one knows fields, errors and requests that the other does not",
    "RS": "the metadata store is put back to an older state, and repaired from the folders of all nodes",
    "RD": "the store is put back when a leader that was cut off is deposed, before anybody knows what is committed",
    "FC": "everything stops at once, and the store has forgotten its last commits, which no folder shows",
    "IL": "identity files of a log or of a log directory change, or are lost; stray logs are restored",
    "PS": "all machines lose power, and all disks but one what was not flushed, or everything",
    "FM": "everything stops at once, and the store has forgotten a topic that was made just before",
    "CF": "a node's wall clock is set days ahead or behind",
    "TE": "as a transaction ends, its coordinator or the nodes that await its markers are killed; leaderships move",
}
_DRAWN_APART = {"BK": 0.4, "RT": 0.4, "RS": 0.15, "MV": 0.15, "TE": 0.5, "FC": 0.1}
_DRAWN_APART |= dict.fromkeys(("IL", "PS", "FM", "CF"), 0.05)
"""So that a kind of fault that is added later leaves the others of a seed as they were."""

_LOSING = frozenset({"CR", "DK", "BK", "RT", "IL", "PS"})
"""Faults after which folders do not hold all that they held, so that no repair of a store is to count on them."""
_DEPOSES = 0.6
"""How often a seed that puts its store back, and has none of these, deposes leaders for it as well."""
_LOSES_NOTHING = 0.6
"""How often a seed that puts its store back has none of these: with them the moment for it comes too seldom."""

_FLUSHES = 0.2
"""How often the topics of a seed are `flushed`: power alone then takes nothing that was committed."""
_COORDINATES = 0.12
"""How often nodes coordinate consumer groups as well."""
_TRANSACTS = 0.1
"""How often they coordinate transactions as well."""
_ORDINARY = frozenset({"CS", "NP", "ML", "PZ", "MS", "SD", "TE"})
"""Faults of which members of groups have something to tell; the others befall a part of the seeds."""
_STRANGE = 0.15
_COPIES = 0.3
_CALM = 30.0
_CALM_AFTER_GROUPS = 40.0
"""Sessions of members that are gone end; what was late is waited for, and shared out."""
_STORM_OF_GROUPS = 50.0
_CALM_AFTER_TRANSACTIONS = MARKER_TIMEOUT + 15.0
"""A marker that was lost just before calm is sent again after its timeout; all that waited for it comes then."""
PROFILES = ("", "transactions", "groups")
"""Of runs: as the seed says; or about one thing more than others."""
INTERNAL = (GROUP_TOPIC, TRANSACTION_TOPIC)
"""Topics of the cluster's own: their coordinators alone write to them, and nothing of them is deleted."""

LAG_MAX = 5.0
"""The simulated `replica_lag_time_max`, in seconds of virtual time."""
SESSION = 3.0
"""How long the store keeps the session of a node that is silent."""
STALL_MAX = 2.0
"""After so long a wait for its disk a node no longer renews its session."""


@attrs.frozen(kw_only=True)
class Topic:
    """One topic of the simulated cluster; the fields are those of topic creation."""

    name: str
    partitions: int = 1
    replication_factor: int = 3
    min_insync_replicas: int = 2
    unclean_leader_election: str = "wait"
    durability: str = "replicated"


@attrs.frozen(kw_only=True)
class Settings:
    """Probabilities are per message, store write, watch or write to disk; rates per second; times in seconds.

    `faults` are labels of `FAULTS`; a probability that belongs to a label counts only if that is among them.
    `moves`: how often leadership is moved by hand, as a planned election does; `deletes`: how often the oldest
    records of a partition are deleted; `changes`: how often topics are set otherwise or grow; `recreations`: how
    often they are deleted and made anew under the same name; `reassignments`: how often an operator moves replicas
    or asks for preferred leaders; 0 for never. `rebalance`: after how many seconds the controller looks whether
    preferred replicas lead; 0 for never. `silence`: after how many seconds without an answer followers take a
    leader for gone; 0: when its session ends. `compactions`: how often a replica is compacted; `requests`: how
    often the controller is asked for something else. `named`: how often a producer that outlives its processes is
    begun anew. `groups`: how many consumer groups there are; with any the nodes coordinate them, and `topics` names
    the internal topic that keeps them. `transactions`: how many transactional ids there are; with any the nodes
    coordinate them, in internal topics of both kinds. `last_epoch`: of each of their producer ids; `expires`: after
    how many seconds without use they are forgotten, 0 for never. `lull_at`, `lull_for`: when nobody begins to write
    for a while, so that a node that comes back has all that there is. `strength`: the part of their usual rate at
    which the faults come that are drawn apart, and leaders stand still at a bad moment.
    """

    nodes: int = 3
    topics: tuple[Topic, ...] = (Topic(name="t"),)
    faults: tuple[str, ...] = tuple(FAULTS)
    storm: float = 30.0
    calm: float = _CALM
    fault_rate: float = 0.5
    moves: float = 0.3
    reassignments: float = 0.1
    changes: float = 0.1
    rebalance: float = 5.0
    silence: float = 0.0
    producers: int = 2
    in_flight: int = 1
    deletes: float = 0.0
    compactions: float = 0.0
    admin_requests: float = 0.0
    recreations: float = 0.0
    named: float = 0.0
    groups: int = 0
    transactions: int = 0
    last_epoch: int = LAST_EPOCH
    expires: float = 0.0
    lull_at: float = 0.0
    lull_for: float = 0.0
    drop: float = 0.05
    double: float = 0.05
    late: float = 0.1
    unclear: float = 0.1
    unseen: float = 0.4
    log_failure: float = 0.002
    slow_disk: float = 0.05
    strength: float = 1.0

    def __attrs_post_init__(self) -> None:
        unknown = [label for label in self.faults if label not in FAULTS]
        if unknown:
            raise SimulationError(f"unknown fault {unknown[0]!r}: the faults are {', '.join(FAULTS)}")
        for topic in self.topics:
            if not 1 <= topic.min_insync_replicas <= topic.replication_factor <= self.nodes:
                raise SimulationError(
                    f"topic {topic.name!r} asks for {topic.replication_factor} replicas and a minimum ISR of "
                    f"{topic.min_insync_replicas} on {self.nodes} nodes: choose minimum <= replicas <= nodes"
                )

    @property
    def coordinates(self) -> bool:
        """Whether nodes coordinate anything."""
        return bool(self.groups or self.transactions)

    @classmethod
    def swarm(
        cls,
        seed: int,
        topics: tuple[Topic, ...] | None = None,
        *,
        profile: str = "",
    ) -> Settings:
        """The settings of a seed: a random part of the faults, each as strong as chance has it.

        A run that has everything hides what needs one thing often (swarm testing, Groce et al. 2012). With
        `topics` the run has these and no others. `profile`: "transactions" hosts them, whatever the seed says, and
        "groups" hosts groups; then nothing else happens to topics than that members read them.

        Raises:
          SimulationError: There is no such profile.
        """
        if profile not in PROFILES:
            raise SimulationError(f"unknown profile {profile!r}: the profiles are {', '.join(PROFILES[1:])}")
        groups = profile == "groups"
        dice = random.Random(f"swarm {seed}")
        nodes = (
            dice.choice((3, 3, 3, 4)) if topics is None else max(3, *(t.replication_factor for t in topics))
        )
        weak = dice.choice((0.02, 0.1, 0.3))
        quiet = random.Random(f"lull {seed}")
        has_lull = topics is None and quiet.random() < 0.15
        drawn = _topics(dice, nodes) if topics is None else topics
        hosted, kept_in = _groups(seed, forced=groups) if topics is None else (0, ())
        names = _transactions(seed, forced=profile == "transactions") if topics is None else 0
        if groups:
            names = _copies(seed)
        if names:
            kept_in = _kept_with_transactions(seed, kept_in)
        made = (*drawn, *kept_in)
        if topics is None and random.Random(f"flushed {seed}").random() < _FLUSHES:
            made = tuple(attrs.evolve(topic, durability="flushed") for topic in made)
        found = cls(
            nodes=nodes,
            topics=made,
            faults=_faults(seed, dice),
            fault_rate=dice.choice((0.2, 0.5, 1.0, 1.5)),
            moves=dice.choice((0.0, 0.1, 0.3, 1.0, 3.0)),
            reassignments=dice.choice((0.0, 0.0, 0.1, 0.3, 1.0)),
            rebalance=dice.choice((0.0, 2.0, 5.0)),
            # By dice of its own, as for the faults that are drawn apart.
            silence=random.Random(f"silent {seed}").choice((0.0, 0.0, 0.0, 0.4, 0.8)),
            producers=dice.choice((1, 2)),
            in_flight=dice.choice((1, 1, 3, 5)),
            drop=dice.choice((0.0, 0.05, weak)),
            double=dice.choice((0.0, 0.1, weak)),
            late=dice.choice((0.05, 0.2, 0.4)),
            unclear=dice.choice((0.05, 0.2, 0.5)),
            unseen=dice.choice((0.1, 0.4, 0.7)),
            log_failure=dice.choice((0.0, 0.002, 0.01)),
            slow_disk=dice.choice((0.0, 0.05, 0.2)),
            deletes=dice.choice((0.0, 0.0, 0.5, 2.0)) if topics is None else 0.0,
            changes=dice.choice((0.0, 0.0, 0.1, 0.5)) if topics is None else 0.0,
            compactions=dice.choice((0.0, 0.0, 0.5, 2.0)) if topics is None else 0.0,
            admin_requests=dice.choice((0.0, 0.0, 1.0)) if topics is None else 0.0,
            recreations=dice.choice((0.0, 0.0, 0.0, 0.05, 0.2)) if topics is None else 0.0,
            named=dice.choice((0.0, 0.3, 1.0)) if topics is None else 0.0,
            groups=hosted,
            lull_at=round(quiet.uniform(3.0, 12.0), 3) if has_lull else 0.0,
            lull_for=quiet.choice((5.0, 10.0, 20.0)) if has_lull else 0.0,
        )
        if names:
            found = _with_transactions(found, seed, names)
        if hosted:
            found = attrs.evolve(found, calm=max(found.calm, _CALM_AFTER_GROUPS))
        return _with_groups(found, seed) if groups else found


def _faults(seed: int, dice: random.Random) -> tuple[str, ...]:
    known = [label for label in FAULTS if label not in _DRAWN_APART and label != "RD"]
    drawn = [label for label in known if dice.random() < 0.55]
    for label, chance in _DRAWN_APART.items():
        if random.Random(f"{label} {seed}").random() < chance:
            drawn.append(label)
    if "RS" in drawn and random.Random(f"whole folders {seed}").random() < _LOSES_NOTHING:
        drawn = [label for label in drawn if label not in _LOSING]
        if random.Random(f"RD {seed}").random() < _DEPOSES:
            drawn.append("RD")
    if "RS" in drawn:  # a copy of the store may be of what it has forgotten
        drawn = [label for label in drawn if label not in ("FC", "FM")]
    return tuple(drawn)


def _topics(dice: random.Random, nodes: int) -> tuple[Topic, ...]:
    names = ("orders", "events")[: dice.choice((1, 1, 2))]
    return tuple(_topic(dice, nodes, name) for name in names)


def _groups(seed: int, *, forced: bool) -> tuple[int, tuple[Topic, ...]]:
    """Consumer groups of a part of the seeds, and the topic that keeps them; by dice of its own."""
    dice = random.Random(f"groups {seed}")
    if dice.random() >= _COORDINATES and not forced:
        return 0, ()
    return dice.choice((1, 2)), (Topic(name=GROUP_TOPIC, partitions=dice.choice((1, 2))),)


def _transactions(seed: int, *, forced: bool) -> int:
    """Transactional ids of a part of the seeds; by dice of its own."""
    dice = random.Random(f"transactions {seed}")
    is_drawn = dice.random() < _TRANSACTS
    return dice.choice((3, 4, 6)) if is_drawn or forced else 0


def _copies(seed: int) -> int:
    """Transactional ids of a part of the seeds about groups, in which members commit in transactions as well."""
    return 1 if random.Random(f"copies {seed}").random() < _COPIES else 0


def _with_transactions(drawn: Settings, seed: int, names: int) -> Settings:
    """A transaction takes a dozen answers in a row: in a storm as strong as others hardly any gets to its end."""
    dice = random.Random(f"with transactions {seed}")
    strength = dice.choice((0.02, 0.1, 0.3))
    return attrs.evolve(
        drawn,
        transactions=names,
        strength=strength,
        fault_rate=strength * drawn.fault_rate,
        drop=strength * drawn.drop,
        late=strength * drawn.late,
        unclear=strength * drawn.unclear,
        log_failure=strength * drawn.log_failure,
        slow_disk=strength * drawn.slow_disk,
        recreations=dice.choice((0.0, 0.05, 0.2, 0.5)),
        last_epoch=dice.choice((LAST_EPOCH, 1, 1, 2, 4)),
        expires=dice.choice((0.0, 0.0, 6.0)),
        calm=_CALM_AFTER_TRANSACTIONS,
    )


def _with_groups(drawn: Settings, seed: int) -> Settings:
    """Members share out what their topics have; nobody writes there, so that all that happens is about groups."""
    dice = random.Random(f"with groups {seed}")
    strength = dice.choice((0.02, 0.1, 0.3))
    names = ("orders", "events")
    kept_in = tuple(each for each in drawn.topics if each.name in INTERNAL)
    topics = tuple(
        Topic(name=name, partitions=dice.randint(1, 5), replication_factor=1, min_insync_replicas=1)
        for name in names
    )
    is_strange = dice.random() < _STRANGE
    return attrs.evolve(
        drawn,
        topics=(*topics, *kept_in),
        faults=tuple(each for each in drawn.faults if is_strange or each in _ORDINARY),
        storm=_STORM_OF_GROUPS,
        strength=strength,
        # A transaction takes a dozen answers in a row.
        fault_rate=dice.choice((0.1, 0.2, 0.4)) if not drawn.transactions else 0.05,
        moves=dice.choice((0.1, 0.3, 1.0)) if not drawn.transactions else 0.05,
        expires=0.0,
        producers=0,
        named=0.0,
        deletes=0.0,
        compactions=0.0,
        admin_requests=0.0,
        reassignments=dice.choice((0.0, 0.0, 0.1)),
        changes=dice.choice((0.0, 0.1, 0.2)),
        recreations=dice.choice((0.0, 0.0, 0.05, 0.1)),
        drop=strength * drawn.drop,
        late=strength * drawn.late,
        unclear=strength * drawn.unclear,
        log_failure=strength * drawn.log_failure,
        slow_disk=strength * drawn.slow_disk,
        lull_for=0.0,
    )


def _kept_with_transactions(seed: int, kept_in: tuple[Topic, ...]) -> tuple[Topic, ...]:
    """Their topic, and that of groups, whose offsets they commit."""
    dice = random.Random(f"kept in {seed}")
    names = {each.name for each in kept_in}
    return (
        *kept_in,
        *(Topic(name=each, partitions=dice.choice((1, 2))) for each in INTERNAL if each not in names),
    )


def _topic(dice: random.Random, nodes: int, name: str) -> Topic:
    factor = dice.choice((2, 3, 3, nodes))
    return Topic(
        name=name,
        partitions=dice.choice((1, 2)),
        replication_factor=factor,
        min_insync_replicas=min(factor, dice.choice((1, 2, 2, 2, 2, 3))),
        unclean_leader_election=_policy(dice.random()),
    )


def _policy(chance: float) -> str:
    if chance < 0.06:
        return "any"
    return "most_complete" if chance < 0.12 else "wait"
