"""`python -m tests.interop.events.librdkafka SERVERS LOGINS [JOB,...]`: what librdkafka tells a program."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import confluent_kafka as ck
from confluent_kafka import admin as ca

from .leaders import move_leader
from .record import PATIENCE, Tell, arguments, run, until

SERVERS, LOGINS, ONLY = arguments()
NOW = time.time_ns() // 1_000_000


def told(error: Any) -> Any:
    """An error by what a program decides by."""
    if error is None:
        return "ok"
    if isinstance(error, ck.KafkaException):
        error = error.args[0]
    if not isinstance(error, ck.KafkaError):
        return type(error).__name__
    flags = {"retriable": error.retriable(), "fatal": error.fatal(), "abort": error.txn_requires_abort()}
    return [error.name(), *(name for name, is_so in flags.items() if is_so)]


def outcome(call: Callable[[], Any], value: Callable[[Any], Any] = lambda result: "ok") -> Any:
    """What a call gives, or the error that it raises."""
    try:
        return value(call())
    except (ck.KafkaException, ValueError, TypeError, RuntimeError) as error:
        return told(error)


def ended(ask: Callable[..., Any], *given: Any, value: Callable[[Any], Any] = lambda result: "ok") -> Any:
    """What an administrator's request for one thing gives, or the error that it ends with."""
    return outcome(lambda: next(iter(ask(*given).values())).result(PATIENCE), value)


def client(**more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": SERVERS, "log_level": 2, **{n.replace("_", "."): v for n, v in more.items()}}


def as_user(name: str, password: str = "secret", **more: Any) -> dict[str, Any]:
    login = {"sasl.mechanism": "PLAIN", "sasl.username": name, "sasl.password": password}
    return {
        **client(**more),
        "bootstrap.servers": LOGINS,
        "security.protocol": "SASL_PLAINTEXT",
        **login,
    }


def make(topic: str, partitions: int = 1, **config: str) -> ca.AdminClient:
    admin = ca.AdminClient(client())
    new = ca.NewTopic(topic, partitions, 3, config={name.replace("_", "."): v for name, v in config.items()})
    admin.create_topics([new])[topic].result(PATIENCE)
    places = [ck.TopicPartition(topic, index) for index in range(partitions)]

    def is_led() -> bool:
        known = admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        return len(known) == partitions and all(each.leader > 0 for each in known.values())

    assert until(is_led)
    # A broker that has just begun to lead refuses look-ups for a moment.
    probe = ck.Consumer(client(group_id="probe"))

    def answers() -> bool:
        with contextlib.suppress(ck.KafkaException):
            return all(probe.get_watermark_offsets(each, timeout=5) == (0, 0) for each in places)
        return False

    assert until(answers)
    probe.close()
    return admin


def write(topic: str, values: Iterable[bytes], partition: int = 0, **more: Any) -> list[Any]:
    """What the deliveries are told, in their order."""
    heard: list[Any] = []

    def on_delivery(error: Any, message: Any) -> None:
        # librdkafka keeps the time at which an attempt ended; the type says whose time a record has.
        heard.append([told(error), message.partition(), message.offset(), message.timestamp()[0]])

    producer = ck.Producer(client(**{"linger_ms": 0, "message_timeout_ms": 60_000, **more}))
    for value in values:
        producer.produce(
            topic, value, b"k", partition, on_delivery=on_delivery, timestamp=NOW, headers=[("h", b"1")]
        )
        producer.poll(0)
    assert producer.flush(PATIENCE) == 0
    return heard


def heard_by(consumer: ck.Consumer, ends: int = 1, patience: float = PATIENCE) -> list[Any]:
    """Records and errors in their order, until so many ends of partitions or one error that is none."""
    seen: list[Any] = []

    def is_over() -> bool:
        message = consumer.poll(0.2)
        if message is None:
            return False
        error = message.error()
        if error is None:
            seen.append(["record", message.partition(), message.offset()])
            return False
        if error.code() == ck.KafkaError._PARTITION_EOF:
            seen.append(["end", message.partition(), message.offset()])
            return sum(each[0] == "end" for each in seen) >= ends
        seen.append(["error", *told(error)])
        return True

    if not until(is_over, patience):
        seen.append(["nothing more"])
    return seen


def records(consumer: ck.Consumer) -> list[Any]:
    """Offsets that have come, and errors that are no ends of partitions."""
    message = consumer.poll(0.2)
    if message is None:
        return []
    error = message.error()
    if error is not None:
        return [] if error.code() == ck.KafkaError._PARTITION_EOF else [told(error)]
    return [message.offset()]


def reader(reset: str = "earliest", **more: Any) -> ck.Consumer:
    usual = {"group_id": "readers", "auto_offset_reset": reset, "enable_partition_eof": True}
    return ck.Consumer(client(**{**usual, "enable_auto_commit": False, **more}))


# Producing


def deliveries(tell: Tell) -> None:
    make("deliveries", 2)
    for name, more in (
        ("idempotent", {"enable_idempotence": True}),
        ("acks=all", {"acks": "all"}),
        ("acks=1", {"acks": "1"}),
        ("acks=0", {"acks": "0"}),
    ):
        tell(name, write("deliveries", [b"a", b"b", b"c"], 1, **more))


def refused_records(tell: Tell) -> None:
    make("refused", 1, max_message_bytes="1000")
    tell("too large for the topic", write("refused", [b"x" * 5000]))
    tell("too large, idempotent", write("refused", [b"x" * 5000], enable_idempotence=True))
    tell("small again", write("refused", [b"x"], enable_idempotence=True))
    tell("too large for the client", outcome(lambda: write("refused", [b"x" * 2_000_000])))
    tell("no such partition", outcome(lambda: write("refused", [b"x"], 7)))
    tell("a name that is none", outcome(lambda: write("a b", [b"x"])))
    more = {"allow_auto_create_topics": False, "message_timeout_ms": 3000}
    tell("no such topic", outcome(lambda: write("nowhere", [b"x"], **more)))
    make("guarded", 1, min_insync_replicas="3")
    tell("all replicas needed", write("guarded", [b"x"]))
    make("compacted", 1, cleanup_policy="compact")
    tell("compacted, with a key", write("compacted", [b"x"]))
    make("unkeyed", 1)
    heard: list[Any] = []
    producer = ck.Producer(client())
    producer.produce("unkeyed", None, None, 0, lambda error, message: heard.append(told(error)))
    producer.flush(PATIENCE)
    tell("neither key nor value", heard)


def made_by_use(tell: Tell) -> None:
    tell("first record", write("made-by-use", [b"x"]))
    known = ca.AdminClient(client()).list_topics("made-by-use", timeout=PATIENCE).topics["made-by-use"]
    tell("partitions", {number: len(each.replicas) for number, each in known.partitions.items()})


def made_again(tell: Tell) -> None:
    admin = make("again")
    heard: list[Any] = []
    producer = ck.Producer(client(linger_ms=0))

    def send(value: bytes) -> None:
        producer.produce(
            "again", value, None, 0, lambda error, message: heard.append([told(error), message.offset()])
        )
        producer.flush(PATIENCE)

    for value in (b"a", b"b", b"c"):
        send(value)
    consumer = reader()
    consumer.assign([ck.TopicPartition("again", 0, 0)])
    tell("read before", heard_by(consumer))
    admin.delete_topics(["again"])["again"].result(PATIENCE)
    until(lambda: "again" not in admin.list_topics(timeout=PATIENCE).topics)
    make("again")
    send(b"d")
    tell("deliveries", heard)
    fresh = reader()
    fresh.assign([ck.TopicPartition("again", 0, 0)])
    tell("read by a new consumer", heard_by(fresh))
    seen: list[Any] = []

    def sees_it() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            seen.append([message.offset(), message.value().decode()])
        return bool(seen)

    until(sees_it)
    tell("read by the old one", seen)
    for each in (consumer, fresh):
        each.close()


def another_leader(tell: Tell) -> None:
    make("led")
    heard: list[Any] = []
    producer = ck.Producer(client(linger_ms=0, enable_idempotence=True))
    consumer = reader()
    consumer.assign([ck.TopicPartition("led", 0, 0)])
    for turn in range(3):
        for _ in range(3):
            producer.produce(
                "led", b"x", None, 0, lambda error, message: heard.append([told(error), message.offset()])
            )
        producer.flush(PATIENCE)
        tell(f"deliveries {turn}", heard[-3:])
        seen: list[Any] = []
        until(lambda seen=seen: seen.extend(records(consumer)) or len(seen) >= 3)
        tell(f"read {turn}", seen)
        if turn < 2:
            tell(f"moved {turn}", move_leader(SERVERS, "led"))
    consumer.close()


# Reading


def ends(tell: Tell) -> None:
    make("ends", 2)
    for partition in range(2):
        write("ends", [b"a", b"b"], partition)
    consumer = reader()
    consumer.assign([ck.TopicPartition("ends", partition, 0) for partition in range(2)])
    seen = heard_by(consumer, ends=2)
    for partition in range(2):
        tell(f"partition {partition}", [each for each in seen if each[1] == partition])
    write("ends", [b"c"], 1)
    tell("one more", heard_by(consumer))
    consumer.seek(ck.TopicPartition("ends", 1, 1))
    tell("after a seek", heard_by(consumer))
    places = [ck.TopicPartition("ends", each) for each in range(2)]
    tell("positions", [each.offset for each in consumer.position(places)])
    tell("watermarks", [list(consumer.get_watermark_offsets(each, timeout=PATIENCE)) for each in places])
    for name, when in (
        ("of the records", NOW),
        ("later", NOW + 1),
        ("before", 0),
        ("end", -1),
        ("start", -2),
    ):
        asked = [ck.TopicPartition("ends", 0, when)]
        tell(
            f"offset for a time: {name}",
            [each.offset for each in consumer.offsets_for_times(asked, timeout=PATIENCE)],
        )
    consumer.assign([ck.TopicPartition("ends", 0, 0)])
    message = consumer.consume(1, PATIENCE)[0]
    tell(
        "record",
        [
            message.key().decode(),
            message.timestamp()[0],
            message.timestamp()[1] - NOW,
            message.headers()[0][0],
            message.leader_epoch() >= 0,
        ],
    )
    tell(
        "no such topic",
        outcome(lambda: consumer.get_watermark_offsets(ck.TopicPartition("no", 0), timeout=9)),
    )
    tell(
        "no such partition",
        outcome(lambda: consumer.get_watermark_offsets(ck.TopicPartition("ends", 9), timeout=9)),
    )
    consumer.close()


def resets(tell: Tell) -> None:
    admin = make("resets")
    write("resets", [b"%d" % number for number in range(5)])
    deleted = admin.delete_records([ck.TopicPartition("resets", 0, 2)])
    tell(
        "deleted up to", [outcome(each.result, lambda done: done.low_watermark) for each in deleted.values()]
    )
    for policy in ("earliest", "latest", "error"):
        for where, offset in (("before the start", 1), ("behind the end", 9), ("at the end", 5)):
            consumer = reader(policy)
            consumer.assign([ck.TopicPartition("resets", 0, offset)])
            tell(f"{policy}, {where}", heard_by(consumer))
            consumer.close()
        consumer = reader(policy, group_id="no-offsets")
        consumer.assign([ck.TopicPartition("resets", 0)])
        tell(f"{policy}, nothing committed", heard_by(consumer))
        consumer.close()


def subscriptions(tell: Tell) -> None:
    consumer = reader(group_id="lost", allow_auto_create_topics=False)
    consumer.subscribe(["nowhere-at-all"])
    tell("no such topic", heard_by(consumer))
    consumer.subscribe(["a b"])
    tell("a name that is none", heard_by(consumer))
    consumer.close()
    make("patterns-1")
    write("patterns-1", [b"x"])
    consumer = reader(group_id="patterns")
    consumer.subscribe(["^patterns-[0-9]"])
    tell("a pattern", heard_by(consumer))
    consumer.close()


# Groups


class Member:
    """A member of a group, and what it is told of its partitions."""

    def __init__(self, group: str, name: str, topic: str, **more: Any) -> None:
        self.told: list[Any] = []
        self.held: set[int] = set()
        self.commits: list[Any] = []
        self.errors: list[Any] = []
        usual = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        settings = client(**{**usual, "group_id": group, "client_id": name, **more})
        settings["error_cb"] = lambda error: self.errors.append(told(error))
        self.consumer = ck.Consumer({**settings, "on_commit": self._committed})
        self.consumer.subscribe(
            [topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    def _assigned(self, _: Any, places: Any) -> None:
        self._hear("assigned", places, self.held.__ior__)

    def _revoked(self, _: Any, places: Any) -> None:
        self._hear("revoked", places, self.held.__isub__)

    def _lost(self, _: Any, places: Any) -> None:
        self._hear("lost", places, self.held.__isub__)

    def _hear(self, what: str, places: Any, change: Callable[[set[int]], Any]) -> None:
        numbers = sorted(each.partition for each in places)
        change(set(numbers))
        if not numbers:
            return
        if self.told[-2:] == [["assigned", numbers], ["revoked", numbers]] and what == "assigned":
            self.told.pop()  # on a slow machine members come together once more, and nothing changes
        else:
            self.told.append([what, numbers])

    def _committed(self, error: Any, places: Any) -> None:
        self.commits.append(
            [told(error), [[each.partition, each.offset, each.metadata, told(each.error)] for each in places]]
        )

    def poll(self) -> None:
        self.consumer.poll(0.1)


def share(tell: Tell, group: str, by_number: bool, **more: Any) -> None:
    """Two members come, and one goes. by_number: which partitions each has is told, and not only how many."""
    make(group, 4)
    first = Member(group, "a", group, **more)
    until(lambda: first.poll() or len(first.held) == 4)
    second = Member(group, "b", group, **more)
    until(lambda: first.poll() or second.poll() or len(first.held) == len(second.held) == 2)
    second.consumer.close()
    until(lambda: first.poll() or len(first.held) == 4)
    first.consumer.close()
    for name, member in (("first", first), ("second", second)):
        tell(name, member.told if by_number else [[what, len(numbers)] for what, numbers in member.told])


def commits(tell: Tell) -> None:
    make("commits", 2)
    write("commits", [b"a", b"b"])
    member = Member("commits", "a", "commits")
    until(lambda: member.poll() or len(member.held) == 2)

    def place(offset: int, partition: int = 0, metadata: str = "", topic: str = "commits") -> Any:
        return ck.TopicPartition(topic, partition, offset, metadata)

    def commit(consumer: ck.Consumer, *places: Any) -> Any:
        return outcome(
            lambda: consumer.commit(offsets=list(places), asynchronous=False),
            lambda result: [[each.partition, each.offset, told(each.error)] for each in result],
        )

    tell("waited for", commit(member.consumer, place(1, 0, "note"), place(0, 1)))
    member.consumer.commit(offsets=[place(2, 0, "later")], asynchronous=True)
    until(lambda: member.poll() or len(member.commits) >= 1)
    tell("callbacks", member.commits)
    found = member.consumer.committed([place(0), place(0, 1)], PATIENCE)
    tell("committed", [[each.offset, each.metadata] for each in found])
    tell("beyond the end", commit(member.consumer, place(1000)))
    tell("no such partition", commit(member.consumer, place(1, 9)))
    tell("no such topic", commit(member.consumer, place(1, 0, "", "nowhere")))
    tell("too much metadata", commit(member.consumer, place(1, 0, "x" * 5000)))
    stranger = ck.Consumer(client(group_id="commits"))
    tell("by no member", commit(stranger, place(1)))
    admin = ca.AdminClient(client())
    group = ck.ConsumerGroupTopicPartitions("commits", [place(0)])
    tell(
        "altered under a member",
        outcome(
            lambda: admin.alter_consumer_group_offsets([group])["commits"].result(PATIENCE),
            lambda result: [told(each.error) for each in result.topic_partitions],
        ),
    )
    tell(
        "deleted under a member",
        outcome(lambda: admin.delete_consumer_groups(["commits"])["commits"].result(PATIENCE)),
    )
    described = admin.describe_consumer_groups(["commits"])["commits"].result(PATIENCE)
    tell("described", [described.state.name, described.partition_assignor, len(described.members)])
    member.consumer.close()
    described = admin.describe_consumer_groups(["commits"])["commits"].result(PATIENCE)
    tell("described when it has left", [described.state.name, len(described.members)])
    tell("by no member, empty", commit(stranger, place(1)))
    stranger.close()
    tell("deleted", outcome(lambda: admin.delete_consumer_groups(["commits"])["commits"].result(PATIENCE)))
    tell(
        "deleted again",
        outcome(lambda: admin.delete_consumer_groups(["commits"])["commits"].result(PATIENCE)),
    )


def fenced_instances(tell: Tell) -> None:
    for protocol in ("classic", "consumer"):
        topic = f"instances-{protocol}"
        make(topic)
        given = {"group_instance_id": "one", "group_protocol": protocol}
        first = Member(topic, "a", topic, **given)
        until(lambda first=first: first.poll() or first.held)
        second = Member(topic, "b", topic, **given)
        until(
            lambda first=first, second=second: first.poll() or second.poll() or first.errors or second.errors,
            20,
        )
        tell(f"{protocol}: first", first.errors)
        tell(f"{protocol}: second", [second.errors, sorted(second.held)])
        for each in (first, second):
            each.consumer.close()


# Transactions


def transactional(name: str, **more: Any) -> ck.Producer:
    return ck.Producer(client(transactional_id=name, **more))


def transactions(tell: Tell) -> None:
    make("transactions")
    heard: list[Any] = []

    def send(producer: ck.Producer, value: bytes) -> Any:
        return outcome(
            lambda: producer.produce(
                "transactions",
                value,
                None,
                0,
                lambda error, message: heard.append([told(error), message.offset()]),
            )
        )

    producer = transactional("t-1")
    tell("before init", outcome(producer.begin_transaction))
    producer.init_transactions(PATIENCE)
    tell("record before begin", send(producer, b"x"))
    producer.begin_transaction()
    send(producer, b"kept")
    tell("commit", outcome(lambda: producer.commit_transaction(PATIENCE)))
    tell("commit again", outcome(lambda: producer.commit_transaction(PATIENCE)))
    producer.begin_transaction()
    send(producer, b"dropped")
    producer.flush(PATIENCE)
    tell("abort", outcome(lambda: producer.abort_transaction(PATIENCE)))
    producer.begin_transaction()
    send(producer, b"open")
    producer.flush(PATIENCE)
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = reader(isolation_level=isolation)
        consumer.assign([ck.TopicPartition("transactions", 0, 0)])
        tell(f"{isolation}, one open", heard_by(consumer))
        tell(
            f"{isolation}, watermarks",
            list(consumer.get_watermark_offsets(ck.TopicPartition("transactions", 0), timeout=9)),
        )
        consumer.close()
    rival = transactional("t-1")
    rival.init_transactions(PATIENCE)
    send(producer, b"late")
    tell("commit of the fenced", outcome(lambda: producer.commit_transaction(PATIENCE)))
    tell("begin of the fenced", outcome(producer.begin_transaction))
    tell("init of the fenced", outcome(lambda: producer.init_transactions(PATIENCE)))
    tell("deliveries", heard)
    rival.begin_transaction()
    send(rival, b"kept, too")
    rival.commit_transaction(PATIENCE)
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = reader(isolation_level=isolation)
        consumer.assign([ck.TopicPartition("transactions", 0, 0)])
        tell(f"{isolation}, all ended", heard_by(consumer))
        consumer.close()
    slow = transactional("t-2", transaction_timeout_ms=2_000_000_000, message_timeout_ms=1000)
    tell("a timeout that is too long", outcome(lambda: slow.init_transactions(PATIENCE)))


def offsets_of_transactions(tell: Tell) -> None:
    make("offsets")
    write("offsets", [b"a", b"b"])
    member = Member("offsets", "a", "offsets")
    until(lambda: member.poll() or member.held)
    metadata = member.consumer.consumer_group_metadata()
    producer = transactional("o-1")
    producer.init_transactions(PATIENCE)
    place = ck.TopicPartition("offsets", 0, 2)
    producer.begin_transaction()
    tell(
        "sent by a member", outcome(lambda: producer.send_offsets_to_transaction([place], metadata, PATIENCE))
    )
    tell("committed", outcome(lambda: producer.commit_transaction(PATIENCE)))
    tell("found", [each.offset for each in member.consumer.committed([place], PATIENCE)])
    member.consumer.close()
    producer.begin_transaction()
    tell(
        "sent by a member that has left",
        outcome(lambda: producer.send_offsets_to_transaction([place], metadata, PATIENCE)),
    )
    tell("commit then", outcome(lambda: producer.commit_transaction(PATIENCE)))
    tell("abort then", outcome(lambda: producer.abort_transaction(PATIENCE)))


# Administration


def _creations() -> dict[str, ca.NewTopic]:
    """Topics that cannot be made."""
    given: list[tuple[str, int, int, dict[str, Any]]] = [
        ("managed", 1, 3, {}),
        ("a b", 1, 3, {}),
        ("..", 1, 3, {}),
        ("x" * 250, 1, 3, {}),
        ("no-partitions", 0, 3, {}),
        ("many-replicas", 1, 9, {}),
        ("no-replicas", 1, 0, {}),
        ("__consumer_offsets", 1, 3, {}),
        ("unknown-setting", 1, 3, {"config": {"no.such.setting": "1"}}),
        ("bad-number", 1, 3, {"config": {"retention.ms": "soon"}}),
        ("bad-range", 1, 3, {"config": {"max.message.bytes": "-5"}}),
        ("bad-word", 1, 3, {"config": {"cleanup.policy": "burn"}}),
    ]
    placed = {"node-twice": [[1, 1]], "no-such-node": [[1, 9]], "uneven": [[1, 2], [1]]}
    return {
        name: ca.NewTopic(name, partitions, replicas, **more) for name, partitions, replicas, more in given
    } | {name: ca.NewTopic(name, len(places), replica_assignment=places) for name, places in placed.items()}


def creations(tell: Tell) -> None:
    admin = make("managed", 2)
    for name, new in _creations().items():
        tell(name[:30], ended(admin.create_topics, [new]))
    for topic, count in (("managed", 1), ("managed", 2), ("managed", 0), ("nowhere", 3)):
        grow = outcome(lambda topic=topic, count=count: ca.NewPartitions(topic, count), lambda made: made)
        if isinstance(grow, ca.NewPartitions):
            grow = ended(admin.create_partitions, [grow])
        tell(f"grow {topic} to {count}", grow)
    tell("delete what is not", ended(admin.delete_topics, ["nowhere"]))


def settings(tell: Tell) -> None:
    admin = make("settings")
    kind = ca.ConfigResource.Type.TOPIC
    for name, value in (
        ("no.such.setting", "1"),
        ("retention.ms", "soon"),
        ("retention.ms", "-5"),
        ("segment.bytes", "0"),
        ("retention.ms", "1000000"),
    ):
        entry = ca.ConfigEntry(name, value, incremental_operation=ca.AlterConfigOpType.SET)
        for topic in ("settings", "nowhere"):
            changed = ca.ConfigResource(kind, topic, incremental_configs=[entry])
            tell(f"{name}={value} of {topic}", ended(admin.incremental_alter_configs, [changed]))
    for topic in ("settings", "nowhere"):
        asked = ca.ConfigResource(kind, topic)
        tell(
            f"of {topic}",
            ended(
                admin.describe_configs,
                [asked],
                value=lambda found: [found[name].value for name in ("retention.ms", "cleanup.policy")],
            ),
        )


def records_and_leaders(tell: Tell) -> None:
    admin = make("kept", 2)
    write("kept", [b"a", b"b", b"c"])
    for topic, partition, offset in (
        ("kept", 0, 0),
        ("kept", 0, 9),
        ("kept", 0, 2),
        ("kept", 0, 1),
        ("kept", 9, 0),
        ("nowhere", 0, 0),
    ):
        place = ck.TopicPartition(topic, partition, offset)
        tell(
            f"delete {topic}-{partition} up to {offset}",
            ended(admin.delete_records, [place], value=lambda result: result.low_watermark),
        )
        if offset in (0, 9):
            tell(
                f"elect {topic}-{partition}, asked at {offset}",
                outcome(
                    lambda place=place: admin.elect_leaders(ck.ElectionType.PREFERRED, [place]).result(
                        PATIENCE
                    ),
                    lambda result: [told(each) for each in result.values()],
                ),
            )
    for topic, partition in (("kept", 0), ("kept", 1), ("nowhere", 0)):
        place = ck.TopicPartition(topic, partition)
        for when, spec in (
            ("earliest", ca.OffsetSpec.earliest()),
            ("latest", ca.OffsetSpec.latest()),
            ("greatest", ca.OffsetSpec.max_timestamp()),
            ("of a time", ca.OffsetSpec.for_timestamp(NOW)),
        ):
            tell(
                f"{when} of {topic}-{partition}",
                ended(
                    admin.list_offsets,
                    {place: spec},
                    value=lambda result: [
                        result.offset,
                        result.timestamp - NOW if result.timestamp > 0 else result.timestamp,
                    ],
                ),
            )
    for name in ("kept", "nowhere"):
        tell(
            f"describe {name}",
            ended(
                admin.describe_topics,
                ck.TopicCollection([name]),
                value=lambda result: [
                    [each.id, len(each.replicas), len(each.isr)] for each in result.partitions
                ],
            ),
        )


def groups_and_users(tell: Tell) -> None:
    admin = ca.AdminClient(client())
    tell(
        "describe no group",
        ended(admin.describe_consumer_groups, ["nobody"], value=lambda found: found.state.name),
    )
    asked = ck.ConsumerGroupTopicPartitions("nobody")
    tell(
        "offsets of no group",
        ended(admin.list_consumer_group_offsets, [asked], value=lambda found: len(found.topic_partitions)),
    )
    tell("delete no group", ended(admin.delete_consumer_groups, ["nobody"]))
    tell("no such user", ended(admin.describe_user_scram_credentials, ["nobody"]))
    mechanism = ca.ScramMechanism.SCRAM_SHA_256
    gone = ca.UserScramCredentialDeletion("nobody", mechanism)
    tell("delete no user", ended(admin.alter_user_scram_credentials, [gone]))
    for count in (10, 50_000, 4096):
        info = ca.ScramCredentialInfo(mechanism, count)
        change = ca.UserScramCredentialUpsertion("made", info, b"password")
        tell(f"a user of {count} iterations", ended(admin.alter_user_scram_credentials, [change]))
    found: Any = None

    def is_there() -> bool:
        nonlocal found
        found = ended(
            admin.describe_user_scram_credentials,
            ["made"],
            value=lambda user: [each.iterations for each in user.scram_credential_infos],
        )
        return found == [4096]

    until(is_there, 20)
    tell("the user, in time", found)


# Logins and rights


def logins(tell: Tell) -> None:
    for name, password in (("reader", "wrong"), ("nobody", "secret")):
        heard: list[Any] = []

        def on_error(error: Any, heard: list[Any] = heard) -> None:
            heard.append(told(error))

        producer = ck.Producer(as_user(name, password) | {"error_cb": on_error})
        until(lambda producer=producer, heard=heard: producer.poll(0.1) or heard)
        tell(f"{name} with {password}", heard[:1])


def rights(tell: Tell) -> None:
    make("rights")
    write("rights", [b"x"])
    for name in ("writer", "reader"):
        _rights_of(name, lambda event, value, name=name: tell(f"{name} {event}", value))


def _rights_of(name: str, tell: Tell) -> None:
    heard: list[Any] = []

    def on_delivery(error: Any, message: Any) -> None:
        heard.append([told(error), message.offset()])

    producer = ck.Producer(as_user(name, message_timeout_ms=20_000))
    producer.produce("rights", b"x", None, 0, on_delivery)
    producer.flush(PATIENCE)
    tell("writes", heard)
    producer = ck.Producer(as_user(name, message_timeout_ms=20_000, enable_idempotence=True))
    producer.produce("rights", b"x", None, 0)
    tell("writes, idempotent", outcome(lambda: producer.flush(PATIENCE)))
    given = {"group_id": f"of-{name}", "auto_offset_reset": "earliest", "enable_partition_eof": True}
    consumer = ck.Consumer(as_user(name, **given))
    consumer.assign([ck.TopicPartition("rights", 0, 0)])
    seen = heard_by(consumer)
    if "GROUP_AUTHORIZATION_FAILED" in seen[-1]:  # whether the group or the topic is told of first is chance
        seen = heard_by(consumer)
    tell("reads", [each for each in seen if each[0] != "record"])
    consumer.close()
    consumer = ck.Consumer(as_user(name, **given))
    consumer.subscribe(["rights"])
    tell("reads in a group", [each for each in heard_by(consumer) if each[0] != "record"])
    consumer.close()
    admin = ca.AdminClient(as_user(name))
    tell("creates a topic", ended(admin.create_topics, [ca.NewTopic(f"by-{name}", 1, 3)]))
    tell("deletes a topic", ended(admin.delete_topics, ["rights"]))
    topic = ca.ConfigResource(ca.ConfigResource.Type.TOPIC, "rights")
    tell("asks for settings", ended(admin.describe_configs, [topic]))
    tell("asks for a group", ended(admin.describe_consumer_groups, ["of-reader"], value=lambda found: "ok"))
    producer = ck.Producer(as_user(name, transactional_id=f"of-{name}"))
    tell("begins transactions", outcome(lambda: producer.init_transactions(PATIENCE)))


run(
    {
        "deliveries": deliveries,
        "refused records": refused_records,
        "made by use": made_by_use,
        "made again": made_again,
        "another leader": another_leader,
        "ends": ends,
        "resets": resets,
        "subscriptions": subscriptions,
        "group by ranges": lambda tell: share(tell, "ranges", True, partition_assignment_strategy="range"),
        "group, cooperative": lambda tell: share(
            tell, "cooperative", False, partition_assignment_strategy="cooperative-sticky"
        ),
        "group of KIP-848": lambda tell: share(tell, "kip-848", False, group_protocol="consumer"),
        "commits": commits,
        "fenced instances": fenced_instances,
        "transactions": transactions,
        "offsets of transactions": offsets_of_transactions,
        "creations": creations,
        "settings": settings,
        "records and leaders": records_and_leaders,
        "groups and users": groups_and_users,
        "logins": logins,
        "rights": rights,
    },
    ONLY,
)
