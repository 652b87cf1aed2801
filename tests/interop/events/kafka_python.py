"""`python -m tests.interop.events.kafka_python SERVERS LOGINS [JOB,...]`: what kafka-python tells a program."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from typing import Any

import kafka
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import (
    AlterConfigOp,
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from .leaders import move_leader
from .record import PATIENCE, Heard, Tell, arguments, run, until

SERVERS, LOGINS, ONLY = arguments()
NOW = time.time_ns() // 1_000_000
MS = int(PATIENCE * 1000)
EPOCH = -1
"""Of the leader, beside an offset: not known."""


def told(error: BaseException | None) -> Any:
    """An error by what a program decides by."""
    if error is None:
        return "ok"
    flags = ["retriable"] if getattr(error, "retriable", False) else []
    return [type(error).__name__, *flags]


def outcome(call: Callable[[], Any], value: Callable[[Any], Any] = lambda result: "ok") -> Any:
    """What a call gives, or the error that it raises."""
    try:
        return value(call())
    except (KafkaError, ValueError, TypeError, AssertionError) as error:
        return told(error)


def client(**more: Any) -> dict[str, Any]:
    return {"bootstrap_servers": SERVERS.split(","), **more}


def as_user(name: str, password: str = "secret", **more: Any) -> dict[str, Any]:
    login = {"sasl_mechanism": "PLAIN", "sasl_plain_username": name, "sasl_plain_password": password}
    return {
        **client(**more),
        "bootstrap_servers": LOGINS.split(","),
        "security_protocol": "SASL_PLAINTEXT",
        **login,
    }


def make(topic: str, partitions: int = 1, **config: str) -> KafkaAdminClient:
    admin = KafkaAdminClient(**client())
    # Placed, as in Events.java: a topic that is made again has the same leader.
    places = {at: [1 + (at + each) % 3 for each in range(3)] for at in range(partitions)}
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, replica_assignments=places, topic_configs=settings)])
    specs = {TopicPartition(topic, at): OffsetSpec.LATEST for at in range(partitions)}
    assert until(lambda: outcome(lambda: admin.list_partition_offsets(specs)) == "ok" or time.sleep(0.1))
    return admin


def send(producer: KafkaProducer, topic: str, values: Iterable[bytes], partition: int = 0) -> list[Any]:
    """What becomes of each record, in their order."""
    sent: list[Any] = []
    for value in values:
        try:
            sent.append(producer.send(topic, value, b"k", [("h", b"1")], partition, NOW))
        except (KafkaError, ValueError, TypeError, AssertionError) as error:
            sent.append(["send raises", told(error)])
    return [
        each if isinstance(each, list) else outcome(lambda each=each: each.get(PATIENCE), _where)
        for each in sent
    ]


def _where(found: Any) -> Any:
    return ["ok", found.partition, found.offset, found.timestamp - NOW if found.timestamp > 0 else None]


def write(topic: str, values: Iterable[bytes], partition: int = 0, **more: Any) -> list[Any]:
    with closing(KafkaProducer(**client(**more))) as producer:
        return send(producer, topic, values, partition)


def reader(**more: Any) -> KafkaConsumer:
    usual = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    return KafkaConsumer(**client(**{**usual, **more}))


def read(consumer: KafkaConsumer, count: int, patience: float = PATIENCE) -> list[Any]:
    """Partitions and offsets until so many records, or an error; "nothing more" after a while without either."""
    seen: list[Any] = []

    def is_over() -> bool:
        try:
            found = consumer.poll(200)
        except KafkaError as error:
            seen.append(told(error))
            return True
        seen.extend([each.partition, each.offset] for records in found.values() for each in records)
        return len(seen) >= count

    if not until(is_over, patience):
        seen.append("nothing more")
    return seen


def read_to(consumer: KafkaConsumer, place: TopicPartition, end: int) -> list[Any]:
    """The offsets that come until the position is the end, or an error."""
    seen: list[Any] = []

    def is_over() -> bool:
        try:
            found = consumer.poll(200)
            seen.extend(each.offset for records in found.values() for each in records)
            return bool(consumer.position(place) == end)
        except KafkaError as error:
            seen.append(told(error))
            return True

    if not until(is_over):
        seen.append("nothing more")
    return seen


# Producing


def deliveries(tell: Tell) -> None:
    make("kp-deliveries", 2)
    for name, more in (
        ("idempotent", {}),
        ("acks=all", {"acks": "all", "enable_idempotence": False}),
        ("acks=1", {"acks": 1, "enable_idempotence": False}),
        ("gzip", {"compression_type": "gzip"}),
        ("acks=0", {"acks": 0, "enable_idempotence": False}),
    ):
        heard = write("kp-deliveries", [b"a", b"b", b"c"], 1, **more)
        # Without answers offsets are the places in batches, and what comes together is chance.
        tell(name, [each[:2] for each in heard] if name == "acks=0" else heard)


def refused_records(tell: Tell) -> None:
    make("kp-refused", max_message_bytes="1000")
    tell("too large for the topic", write("kp-refused", [b"x" * 5000]))
    tell("too large, not idempotent", write("kp-refused", [b"x" * 5000], enable_idempotence=False))
    tell("small again", write("kp-refused", [b"x"]))
    tell("too large for the client", write("kp-refused", [b"x" * 2_000_000]))
    tell("no such partition", write("kp-refused", [b"x"], 7, max_block_ms=3000))
    tell("a name that is none", write("a b", [b"x"], max_block_ms=3000))
    more = {"allow_auto_create_topics": False, "max_block_ms": 3000}
    tell("no such topic", write("kp-nowhere", [b"x"], **more))
    make("kp-guarded", min_insync_replicas="3")
    tell("all replicas needed", write("kp-guarded", [b"x"]))
    make("kp-compacted", cleanup_policy="compact")
    tell("compacted, with a key", write("kp-compacted", [b"x"]))
    tell("made by use", write("kp-made-by-use", [b"x"]))


def made_again(tell: Tell) -> None:
    admin, place = make("kp-again"), TopicPartition("kp-again", 0)
    with closing(reader(allow_auto_create_topics=False)) as consumer:
        consumer.assign([place])
        tell("deliveries before", write("kp-again", [b"a", b"b", b"c"]))
        tell("read before", read(consumer, 3))
        admin.delete_topics(["kp-again"])
        until(lambda: "kp-again" not in admin.list_topics() or time.sleep(0.1))
        make("kp-again")
        tell("deliveries after", write("kp-again", [b"d"]))
        with closing(reader()) as fresh_reader:
            fresh_reader.assign([place])
            tell("read by a new consumer", read(fresh_reader, 1))


def another_leader(tell: Tell) -> None:
    make("kp-led")
    with closing(KafkaProducer(**client())) as producer, closing(reader()) as consumer:
        consumer.assign([TopicPartition("kp-led", 0)])
        for turn in range(3):
            tell(f"deliveries {turn}", send(producer, "kp-led", [b"a", b"b", b"c"]))
            tell(f"read {turn}", read(consumer, 3))
            if turn < 2:
                tell(f"moved {turn}", move_leader(SERVERS, "kp-led"))


# Reading


def resets(tell: Tell) -> None:
    admin, place = make("kp-resets"), TopicPartition("kp-resets", 0)
    write("kp-resets", [b"%d" % number for number in range(5)])
    tell(
        "deleted up to",
        outcome(lambda: admin.delete_records({place: 2}), lambda done: done[place]["low_watermark"]),
    )
    for policy in ("earliest", "latest", "none"):
        for offset in (1, 9, -1):
            at = f"{policy}, {'nothing committed' if offset < 0 else f'from {offset}'}"
            with closing(reader(auto_offset_reset=policy, group_id="kp-resets")) as consumer:
                consumer.assign([place])
                if offset >= 0:
                    consumer.seek(place, offset)
                tell(at, read_to(consumer, place, 5))


def look_ups(tell: Tell) -> None:
    make("kp-looks")
    write("kp-looks", [b"a", b"b"])
    place, none = TopicPartition("kp-looks", 0), TopicPartition("kp-looks", 9)
    with closing(reader(allow_auto_create_topics=False)) as consumer:
        tell("beginning", consumer.beginning_offsets([place])[place])
        tell("end", consumer.end_offsets([place])[place])
        for name, when in (("before", 0), ("of the records", NOW), ("after", NOW + 1)):
            found = consumer.offsets_for_times({place: when})[place]
            tell(
                f"for a time {name}", found and [found.offset, found.timestamp - NOW, found.leader_epoch >= 0]
            )
        tell("end of no partition", outcome(lambda: consumer.end_offsets([none], timeout_ms=3000)))
        tell("partitions of no topic", outcome(lambda: consumer.partitions_for_topic("kp-nowhere"), list_of))
        tell("partitions of a bad name", outcome(lambda: consumer.partitions_for_topic("a b"), list_of))
        tell("partitions", outcome(lambda: consumer.partitions_for_topic("kp-looks"), list_of))
        consumer.assign([place])
        (records,) = until_some(consumer).values()
        first = records[0]
        tell("record", [first.key.decode(), first.timestamp_type, first.timestamp - NOW, first.headers[0][0]])
        tell("high watermark", consumer.highwater(place))


def list_of(found: Any) -> Any:
    return found if found is None else sorted(found)


def until_some(consumer: KafkaConsumer) -> Any:
    found: Any = {}
    until(lambda: found.update(consumer.poll(200)) or found)
    return found


def subscriptions(tell: Tell) -> None:
    for name in ("kp-nowhere-at-all", "a b"):
        with closing(reader(group_id="kp-lost", allow_auto_create_topics=False)) as consumer:
            tell(f"{name}", outcome(lambda consumer=consumer, name=name: consumer.subscribe([name])))
            tell(f"{name}, read", read(consumer, 1, 5))
    make("kp-patterns-1")
    write("kp-patterns-1", [b"x"])
    with closing(reader(group_id="kp-patterns")) as consumer:
        consumer.subscribe(pattern="^kp-patterns-[0-9]")
        tell("a pattern", read(consumer, 1))


# Groups


class Member(Heard, kafka.ConsumerRebalanceListener):
    """A member of a group, and what it is told of its partitions."""

    def __init__(self, group: str, **more: Any) -> None:
        super().__init__()
        self.failure: Any = "ok"
        self.consumer = reader(group_id=group, **more)
        self.consumer.subscribe([group], listener=self)

    def poll(self) -> None:
        if self.failure == "ok":
            try:
                self.consumer.poll(100)
            except KafkaError as error:
                self.failure = told(error)


def until_all(holds: Callable[[], object], *members: Member) -> bool:
    """Whether it has come true, while each member polls in a thread of its own.

    `poll` may wait for a rebalance that the other member takes part in only while that polls.
    """
    is_over = threading.Event()

    def keep_polling(member: Member) -> None:
        while not is_over.is_set():
            member.poll()

    threads = [threading.Thread(target=keep_polling, args=(each,)) for each in members]
    for each in threads:
        each.start()
    try:
        return until(lambda: holds() or time.sleep(0.05))
    finally:
        is_over.set()
        for each in threads:
            each.join()


def share(tell: Tell, group: str, assignor: type, by_number: bool) -> None:
    """Two members come, and one goes. by_number: which partitions each has is told, and not only how many."""
    make(group, 4)
    given = {"partition_assignment_strategy": [assignor]}
    first = Member(group, client_id="a", **given)
    until_all(lambda: len(first.held) == 4, first)
    second = Member(group, client_id="b", **given)
    until_all(lambda: len(first.held) == len(second.held) == 2, first, second)
    second.consumer.close()
    until_all(lambda: len(first.held) == 4, first)
    first.consumer.close()
    for name, member in (("first", first), ("second", second)):
        tell(name, member.told if by_number else [[what, len(numbers)] for what, numbers in member.told])


def commits(tell: Tell) -> None:
    admin, place = make("kp-commits", 2), TopicPartition("kp-commits", 0)
    write("kp-commits", [b"a", b"b"])
    member = Member("kp-commits")
    until(lambda: member.poll() or len(member.held) == 2)

    def commit(consumer: KafkaConsumer, offset: int, metadata: str = "", at: TopicPartition = place) -> Any:
        return outcome(lambda: consumer.commit({at: OffsetAndMetadata(offset, metadata, EPOCH)}, 5000))

    tell("waited for", commit(member.consumer, 1, "note"))
    heard: list[Any] = []

    def committed(offsets: Any, answer: Any) -> None:
        heard.append([told(answer if isinstance(answer, BaseException) else None), offsets[place].offset])

    member.consumer.commit_async({place: OffsetAndMetadata(2, "later", EPOCH)}, committed)
    until(lambda: member.poll() or heard)
    tell("callbacks", heard)
    found = member.consumer.committed(place, metadata=True)
    tell("committed", [found.offset, found.metadata])
    tell("nothing committed", member.consumer.committed(TopicPartition("kp-commits", 1)))
    tell("beyond the end", commit(member.consumer, 1000))
    tell("too much metadata", commit(member.consumer, 1, "x" * 5000))
    tell("no such partition", commit(member.consumer, 1, at=TopicPartition("kp-commits", 9)))
    with closing(reader(group_id="kp-commits")) as stranger:
        stranger.assign([place])
        tell("by no member", commit(stranger, 1))
    new = {place: OffsetAndMetadata(1, "", EPOCH)}
    tell("altered under a member", outcome(lambda: admin.alter_group_offsets("kp-commits", new), by_place))
    tell(
        "deleted under a member", outcome(lambda: admin.delete_group_offsets("kp-commits", [place]), by_place)
    )
    tell("group deleted under a member", outcome(lambda: admin.delete_groups(["kp-commits"]), plain))
    described = admin.describe_groups(["kp-commits"])["kp-commits"]
    tell("described", [described["group_state"], described["protocol_data"], len(described["members"])])
    member.consumer.close()
    described = admin.describe_groups(["kp-commits"])["kp-commits"]
    tell("described when it has left", [described["group_state"], len(described["members"])])
    tell("altered, empty", outcome(lambda: admin.alter_group_offsets("kp-commits", new), by_place))
    offsets = admin.list_group_offsets({"kp-commits": [place]})["kp-commits"]
    tell("offsets", [[each.partition, found.offset] for each, found in offsets.items()])
    for when in ("deleted", "deleted again"):
        tell(when, outcome(lambda: admin.delete_groups(["kp-commits"]), plain))


def by_place(found: Any) -> Any:
    """Outcomes by partition."""
    return [[each.partition, plain(result)] for each, result in found.items()]


def plain(found: Any) -> Any:
    """A result without what names a cluster: errors by their classes."""
    if isinstance(found, dict):
        return {str(name): plain(each) for name, each in found.items()}
    if isinstance(found, (list, tuple)):
        return [plain(each) for each in found]
    if isinstance(found, BaseException):
        return told(found)
    if isinstance(found, type):
        return found.__name__
    return found


def fenced_instances(tell: Tell) -> None:
    make("kp-instances")
    first = Member("kp-instances", group_instance_id="one")
    until(lambda: first.poll() or first.held)
    second = Member("kp-instances", group_instance_id="one")
    until(lambda: first.poll() or second.poll() or "ok" not in (first.failure, second.failure), 20)
    tell("first", first.failure)
    tell("second", [second.failure, sorted(second.held)])
    for each in (first, second):
        each.consumer.close()


# Transactions


def transactions(tell: Tell) -> None:
    make("kp-transactions")
    topic, place = "kp-transactions", TopicPartition("kp-transactions", 0)
    producer = KafkaProducer(**client(transactional_id="kp-t-1"))
    tell("before init", outcome(producer.begin_transaction))
    producer.init_transactions()
    tell("record before begin", send(producer, topic, [b"x"]))
    producer.begin_transaction()
    tell("kept", send(producer, topic, [b"kept"]))
    tell("commit", outcome(producer.commit_transaction))
    tell("commit again", outcome(producer.commit_transaction))
    producer.begin_transaction()
    tell("dropped", send(producer, topic, [b"dropped"]))
    tell("abort", outcome(producer.abort_transaction))
    producer.begin_transaction()
    tell("open", send(producer, topic, [b"open"]))
    for isolation in ("read_committed", "read_uncommitted"):
        with closing(reader(isolation_level=isolation)) as consumer:
            consumer.assign([place])
            tell(f"{isolation}, one open", read(consumer, 1 if isolation == "read_committed" else 3))
            tell(f"{isolation}, end", consumer.end_offsets([place])[place])
    rival = KafkaProducer(**client(transactional_id="kp-t-1"))
    rival.init_transactions()
    tell("late", send(producer, topic, [b"late"]))
    tell("commit of the fenced", outcome(producer.commit_transaction))
    tell("abort of the fenced", outcome(producer.abort_transaction))
    tell("begin of the fenced", outcome(producer.begin_transaction))
    rival.begin_transaction()
    tell("of the rival", send(rival, topic, [b"kept, too"]))
    rival.commit_transaction()
    for isolation in ("read_committed", "read_uncommitted"):
        with closing(reader(isolation_level=isolation)) as consumer:
            consumer.assign([place])
            tell(f"{isolation}, all ended", read(consumer, 2 if isolation == "read_committed" else 4))
    slow = KafkaProducer(**client(transactional_id="kp-t-2", transaction_timeout_ms=2_000_000_000))
    tell("a timeout that is too long", outcome(slow.init_transactions))
    for each in (producer, rival, slow):
        each.close(1)


def offsets_of_transactions(tell: Tell) -> None:
    make("kp-offsets")
    write("kp-offsets", [b"a", b"b"])
    place = TopicPartition("kp-offsets", 0)
    member = Member("kp-offsets")
    until(lambda: member.poll() or member.held)
    metadata = member.consumer.group_metadata()
    producer = KafkaProducer(**client(transactional_id="kp-o-1"))
    producer.init_transactions()

    def sent(offset: int) -> Any:
        producer.begin_transaction()
        places = {place: OffsetAndMetadata(offset, "", EPOCH)}
        return outcome(lambda: producer.send_offsets_to_transaction(places, metadata))

    tell("sent by a member", sent(2))
    tell("committed", outcome(producer.commit_transaction))
    tell("found in time", until(lambda: member.consumer.committed(place) == 2 or time.sleep(0.1)))
    member.consumer.close()
    tell("sent by a member that has left", sent(1))
    tell("commit then", outcome(producer.commit_transaction))
    tell("abort then", outcome(producer.abort_transaction))
    producer.close(1)


# Administration


def administration(tell: Tell) -> None:
    admin = make("kp-managed", 2)
    wrong = {
        "exists": NewTopic("kp-managed", 1, 3),
        "bad name": NewTopic("a b", 1, 3),
        "no partitions": NewTopic("kp-none", 0, 3),
        "nine replicas": NewTopic("kp-many", 1, 9),
        "unknown setting": NewTopic("kp-unknown", 1, 3, topic_configs={"no.such.setting": "1"}),
        "bad value": NewTopic("kp-bad", 1, 3, topic_configs={"retention.ms": "soon"}),
        "no such node": NewTopic("kp-placed", replica_assignments={0: [1, 9]}),
    }
    for name, new in wrong.items():
        tell(f"create: {name}", outcome(lambda new=new: admin.create_topics([new])))
    tell(
        "validate only",
        outcome(lambda: admin.create_topics([NewTopic("kp-tried", 1, 3)], validate_only=True)),
    )
    tell("tried", "kp-tried" in admin.list_topics())
    for topic, count in (("kp-managed", 1), ("kp-managed", 2), ("kp-managed", 0), ("kp-nowhere", 3)):
        grow = {topic: NewPartitions(count)}
        tell(f"grow {topic} to {count}", outcome(lambda grow=grow: admin.create_partitions(grow)))
    tell("delete what is not", outcome(lambda: admin.delete_topics(["kp-nowhere"])))
    for name, value in (("no.such.setting", "1"), ("retention.ms", "soon"), ("retention.ms", "1000000")):
        change = ConfigResource(ConfigResourceType.TOPIC, "kp-managed", {name: (AlterConfigOp.SET, value)})
        ((answer,),) = [
            each.values() for each in admin.alter_configs([change], raise_on_unknown=False).values()
        ]
        tell(f"{name}={value}", str(answer).partition(":")[0])  # what follows is for people
    asked = ConfigResource(ConfigResourceType.TOPIC, "kp-managed", ["cleanup.policy", "retention.ms"])

    def is_set() -> bool:
        return _settings_of(admin, asked)["retention.ms"] == "1000000"

    tell("set in time", until(lambda: is_set() or time.sleep(0.1)))
    tell("settings", _settings_of(admin, asked))
    place, nowhere = TopicPartition("kp-managed", 0), TopicPartition("kp-managed", 9)
    tell("delete records beyond the end", outcome(lambda: admin.delete_records({place: 5})))
    tell("delete records of no partition", outcome(lambda: admin.delete_records({nowhere: 5})))
    tell("elect", outcome(lambda: admin.elect_leaders(0, {"kp-managed": [0]})))
    for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST, OffsetSpec.MAX_TIMESTAMP):
        asked_of = partial(admin.list_partition_offsets, {place: spec})
        tell(f"offset, {spec.name}", outcome(asked_of, lambda found: found[place].offset))
    topic = admin.describe_topics(["kp-managed"])[0]
    tell(
        "described",
        sorted([each["partition_index"], len(each["replica_nodes"])] for each in topic["partitions"]),
    )
    tell(
        "no such group",
        outcome(lambda: admin.describe_groups(["kp-nobody"])["kp-nobody"]["group_state"], plain),
    )
    tell(
        "offsets of no group",
        outcome(lambda: admin.list_group_offsets({"kp-nobody": None})["kp-nobody"], len),
    )
    tell("delete no group", outcome(lambda: admin.delete_groups(["kp-nobody"]), plain))
    tell("nodes", len(admin.describe_cluster()["brokers"]))
    (user,) = admin.describe_user_scram_credentials(["nobody"]).values()
    tell("no such user", [bool(user["error"]), user["credential_infos"]])


def _settings_of(admin: KafkaAdminClient, asked: ConfigResource) -> dict[str, Any]:
    (found,) = admin.describe_configs([asked], config_filter="all").values()
    (settings,) = found.values()
    return {name: settings[name]["value"] for name in ("cleanup.policy", "retention.ms")}


# Logins and rights


def rights(tell: Tell) -> None:
    make("kp-rights")
    write("kp-rights", [b"x"])
    place = TopicPartition("kp-rights", 0)
    tell(
        "wrong password",
        outcome(lambda: KafkaAdminClient(**as_user("reader", "wrong"), bootstrap_timeout_ms=5000)),
    )
    for user in ("reader", "writer"):
        with closing(KafkaProducer(**as_user(user, max_block_ms=5000, enable_idempotence=False))) as producer:
            tell(f"{user} writes", send(producer, "kp-rights", [b"y"])[0][:2])
        with closing(KafkaProducer(**as_user(user, transactional_id=f"kp-{user}"))) as producer:
            tell(f"{user} begins transactions", outcome(producer.init_transactions))
        for grouped in (False, True):
            # Whether the group or the topic is told of first would be chance.
            given = {"group_id": f"kp-of-{user}" if grouped else None, "auto_offset_reset": "earliest"}
            with closing(KafkaConsumer(**as_user(user, enable_auto_commit=False, **given))) as consumer:
                if grouped:
                    consumer.subscribe(["kp-rights"])
                else:
                    consumer.assign([place])
                    consumer.seek(place, 0)
                seen = read(consumer, 1)
                tell(f"{user} reads{' in a group' if grouped else ''}", seen[:1])
        with closing(KafkaAdminClient(**as_user(user))) as admin:
            new = NewTopic(f"kp-by-{user}", 1, 3)
            tell(f"{user} creates", outcome(partial(admin.create_topics, [new])))
            tell(f"{user} deletes", outcome(partial(admin.delete_topics, ["kp-rights"])))
            described = outcome(partial(admin.describe_groups, ["kp-of-reader"]), _state)
            tell(f"{user} describes a group", described)


def _state(found: Any) -> Any:
    (group,) = found.values()
    return group["group_state"]


run(
    {
        "deliveries": deliveries,
        "refused records": refused_records,
        "made again": made_again,
        "another leader": another_leader,
        "resets": resets,
        "look-ups": look_ups,
        "subscriptions": subscriptions,
        "group by ranges": lambda tell: share(tell, "kp-ranges", RangePartitionAssignor, True),
        "group, cooperative": lambda tell: share(tell, "kp-cooperative", CooperativeStickyAssignor, False),
        "commits": commits,
        "fenced instances": fenced_instances,
        "transactions": transactions,
        "offsets of transactions": offsets_of_transactions,
        "administration": administration,
        "rights": rights,
    },
    ONLY,
)
