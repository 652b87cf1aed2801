"""Answers that differ on purpose, by job and title, with the reason."""

from __future__ import annotations

_CLASH = "Kafka's metrics write both signs as one; ours do not"
_USELESS = "a value with which a topic cannot be used, or none that means anything"
_NOT_OURS = "a policy, a codec or a logger that nodes do not have"
_OPERATION = "an unknown operation is the client's mistake, not the server's"
_BARE = "a credential without a salt or a password protects nothing; Kafka takes one and breaks at the other"
_STRICTER = "who says that it is a member has to be one, also when it reads offsets of a classic group"
_NEGATIVE = "no record has such an offset"
_UNKNOWN_GROUP = "the member is told that it is none, so that it joins again"
_SYNC = (
    "the generation says what the type and the protocol are; what a member repeats of them is not compared"
)
_MIXED = "within a transaction a producer writes nothing else"
_FENCED = "whose producer id another has replaced is fenced"
ALLOWED: dict[str, str] = {
    "names of topics: clash_of.names beside clash.of_names": _CLASH,
    "names of topics: clash.of.names beside clash.of_names": _CLASH,
    "topics made: setting: an empty policy": _NOT_OURS,
    "topics made: setting: a codec": _NOT_OURS,
    "topics made: setting: bytes below that": _USELESS,
    "topics made: setting: nine replicas in sync": _USELESS,
    "topics made: setting: a message of no bytes": _USELESS,
    "topics made: setting: a ratio that is none": _USELESS,
    "limits: a rate that is none": _USELESS,
    "replicas moved: a partition twice": "only one of two targets can be meant; Kafka takes the last one",
    "limits: a kind twice, again": "an entity has one user; Kafka takes the last one",
    "records deleted: greatest then": "nodes name the first such record that is still there, Kafka a deleted one",
    "settings changed: no such operation": _OPERATION,
    "settings changed: operation -1": _OPERATION,
    "settings changed: of a broker that is away": (
        "every node sets the limits of all nodes, also of one that is down; Kafka's brokers only their own"
    ),
    "settings told: all resources": _NOT_OURS,
    "settings told: loggers": _NOT_OURS,
    "credentials: no salt": _BARE,
    "credentials: no password": _BARE,
    "classic groups: sync of another protocol": _SYNC,
    "classic groups: sync of another type": _SYNC,
    "classic groups: an offset of -1": _NEGATIVE,
    "classic groups: an offset of -2": _NEGATIVE,
    "classic groups: fetched by a stranger": _STRICTER,
    "classic groups: fetched by an epoch alone": _STRICTER,
    "classic groups: deleted of no topic": "an offset that is not there is as good as deleted",
    "classic groups: 848 beside it": "the group exists, and is one of another protocol",
    "classic groups: coordinators": "a group without a name has no coordinator, as it can have no members",
    "consumer groups: heartbeat: 0 ms to rebalance": "nobody can let go of partitions in no time",
    "consumer groups: heartbeat: an empty rack": "an empty rack is none, as in other requests",
    "consumer groups: heartbeat: an empty pattern": "nodes resolve no patterns: who comes names topics",
    "consumer groups: heartbeat: a stranger with epoch 1": _UNKNOWN_GROUP,
    "consumer groups: heartbeat: a stranger leaves": _UNKNOWN_GROUP,
    "consumer groups: heartbeat: a strange instance leaves": _UNKNOWN_GROUP,
    "consumer groups: commit of a stale epoch": (
        "a commit counts if the partition was given at its epoch or before, as in later releases (KAFKA-19779)"
    ),
    "static consumers: the same comes again": "a member whose first answer was lost asks again; Kafka ends it",
    "transactions of the first version: not transactional": _MIXED,
    "transactions of the first version: not transactional, without a name": _MIXED,
    "transactions of the first version: end: another id, version 1": _FENCED,
    "transactions of the first version: end: another id, version 4": _FENCED,
    "transactions of the second version: committed after that": (
        "a commit after an abort is told as one after the timeout's abort, which its producer may not know of"
    ),
    "transactions with offsets: not added": (
        "the group's coordinator adds its partition to the transaction itself, by either version of the protocol"
    ),
}
