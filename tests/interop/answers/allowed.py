"""Answers that differ on purpose, by job and title, with the reason and what ours is."""

from __future__ import annotations

from typing import Any, NamedTuple


class Allowed(NamedTuple):
    """`ours`: our answer as plain values. Any other is a difference that nobody has allowed.

    `always`: false where Kafka gives our answer in some runs.
    """

    why: str
    ours: Any
    always: bool = True


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
ALLOWED: dict[str, Allowed] = {
    "names of topics: clash_of.names beside clash.of_names": Allowed(_CLASH, [["clash_of.names", 0]]),
    "names of topics: clash.of.names beside clash.of_names": Allowed(_CLASH, [["clash.of.names", 0]]),
    "topics made: setting: an empty policy": Allowed(_NOT_OURS, [["set", 40]]),
    "topics made: setting: a codec": Allowed(_NOT_OURS, [["set", 40]]),
    "topics made: setting: bytes below that": Allowed(_USELESS, [["set", 40]]),
    "topics made: setting: nine replicas in sync": Allowed(_USELESS, [["set", 40]]),
    "topics made: setting: a message of no bytes": Allowed(_USELESS, [["set", 40]]),
    "topics made: setting: a ratio that is none": Allowed(_USELESS, [["set", 40]]),
    "limits: a rate that is none": Allowed(
        _USELESS, {"entries": [{"error_code": 42, "entity": [{"entity_type": "user", "entity_name": "u"}]}]}
    ),
    "replicas moved: a partition twice": Allowed(
        "only one of two targets can be meant; Kafka takes the last one",
        {
            "allow_replication_factor_change": True,
            "error_code": 0,
            "responses": [
                {
                    "name": "moved",
                    "partitions": [
                        {"partition_index": 0, "error_code": 42},
                        {"partition_index": 0, "error_code": 42},
                    ],
                }
            ],
        },
    ),
    "limits: a kind twice, again": Allowed(
        "an entity has one user; Kafka takes the last one",
        {
            "entries": [
                {
                    "error_code": 42,
                    "entity": [
                        {"entity_type": "user", "entity_name": "a"},
                        {"entity_type": "user", "entity_name": "b"},
                    ],
                }
            ]
        },
    ),
    "records deleted: greatest then": Allowed(
        "nodes name the first such record that is still there, Kafka a deleted one",
        {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": -1},
    ),
    "settings changed: no such operation": Allowed(
        _OPERATION, {"responses": [{"error_code": 40, "resource_type": 2, "resource_name": "altered"}]}
    ),
    "settings changed: operation -1": Allowed(
        _OPERATION, {"responses": [{"error_code": 40, "resource_type": 2, "resource_name": "altered"}]}
    ),
    "settings changed: of a broker that is away": Allowed(
        "every node sets the limits of all nodes, also of one that is down; Kafka's brokers only their own",
        {"responses": [{"error_code": 0, "resource_type": 4, "resource_name": "99"}]},
    ),
    "settings told: all resources": Allowed(_NOT_OURS, [0, [[2, "told"], [4, "1"], [4, "2"], [4, "3"]]]),
    "settings told: loggers": Allowed(_NOT_OURS, [0, []]),
    "credentials: no salt": Allowed(_BARE, {"results": [{"user": "bare", "error_code": 93}]}),
    "credentials: no password": Allowed(_BARE, {"results": [{"user": "bare", "error_code": 93}]}),
    "classic groups: sync of another protocol": Allowed(
        _SYNC,
        {"error_code": 0, "protocol_type": "consumer", "protocol_name": "range", "assignment": "6d696e65"},
    ),
    "classic groups: sync of another type": Allowed(
        _SYNC,
        {"error_code": 0, "protocol_type": "consumer", "protocol_name": "range", "assignment": "6d696e65"},
    ),
    "classic groups: an offset of -1": Allowed(
        _NEGATIVE,
        {"topics": [{"name": "groups-read", "partitions": [{"partition_index": 0, "error_code": 1}]}]},
    ),
    "classic groups: an offset of -2": Allowed(
        _NEGATIVE,
        {"topics": [{"name": "groups-read", "partitions": [{"partition_index": 0, "error_code": 1}]}]},
    ),
    "classic groups: fetched by a stranger": Allowed(
        _STRICTER,
        {"topics": [], "error_code": 0, "groups": [{"group_id": "classic", "topics": [], "error_code": 25}]},
    ),
    "classic groups: fetched by an epoch alone": Allowed(
        _STRICTER,
        {"topics": [], "error_code": 0, "groups": [{"group_id": "classic", "topics": [], "error_code": 25}]},
    ),
    "classic groups: deleted of no topic": Allowed(
        "an offset that is not there is as good as deleted",
        {
            "error_code": 0,
            "topics": [{"name": "nowhere", "partitions": [{"partition_index": 0, "error_code": 0}]}],
        },
    ),
    "classic groups: 848 beside it": Allowed(
        "the group exists, and is one of another protocol", [23, 0, False, None]
    ),
    "classic groups: coordinators": Allowed(
        "a group without a name has no coordinator, as it can have no members",
        [["", 24], ["classic", 0], ["classic", 0]],
    ),
    "consumer groups: heartbeat: 0 ms to rebalance": Allowed(
        "nobody can let go of partitions in no time", [42, 0, False, None]
    ),
    "consumer groups: heartbeat: an empty rack": Allowed(
        "an empty rack is none, as in other requests", [0, 1, True, [[0, 1]]]
    ),
    "consumer groups: heartbeat: an empty pattern": Allowed(
        "nodes resolve no patterns: who comes names topics", [42, 0, False, None]
    ),
    "consumer groups: heartbeat: a stranger with epoch 1": Allowed(_UNKNOWN_GROUP, [25, 0, False, None]),
    "consumer groups: heartbeat: a stranger leaves": Allowed(_UNKNOWN_GROUP, [25, 0, False, None]),
    "consumer groups: heartbeat: a strange instance leaves": Allowed(_UNKNOWN_GROUP, [25, 0, False, None]),
    "consumer groups: commit of a stale epoch": Allowed(
        "a commit counts if the partition was given at its epoch or before, as in later releases (KAFKA-19779)",
        {"topics": [{"name": "consumed", "partitions": [{"partition_index": 0, "error_code": 0}]}]},
    ),
    "static consumers: the same comes again": Allowed(
        "a member whose first answer was lost asks again; Kafka ends it", [0, 1, True, [[0, 1]]]
    ),
    "transactions of the first version: not transactional": Allowed(_MIXED, [48, -1]),
    "transactions of the first version: not transactional, without a name": Allowed(_MIXED, [48, -1]),
    "transactions of the first version: end: another id, version 1": Allowed(
        _FENCED, {"error_code": 47, "producer_epoch": -1}
    ),
    "transactions of the first version: end: another id, version 4": Allowed(
        _FENCED, {"error_code": 90, "producer_epoch": -1}
    ),
    "transactions of the second version: committed after that": Allowed(
        "a commit after an abort is told as one after the timeout's abort, which its producer may not know of",
        [90, -1, -1],
    ),
    "transactions with offsets: not added": Allowed(
        "version 3 does not know error 120, with which Kafka answers in some runs instead of 48",
        {"topics": [{"name": "tx3", "partitions": [{"partition_index": 0, "error_code": 48}]}]},
        always=False,
    ),
}
