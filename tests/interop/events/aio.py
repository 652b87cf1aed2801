"""`python -m tests.interop.events.aio SERVERS LOGINS [JOB,...]`: what aiokafka tells a program.

It has no administration of groups, users and elections, and no protocol of KIP-848.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, OffsetAndMetadata, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import for_code

from .leaders import move_leader
from .record import PATIENCE, Heard, Tell, arguments, run

SERVERS, LOGINS, ONLY = arguments()
NOW = time.time_ns() // 1_000_000
REFUSALS = (aiokafka.errors.KafkaError, ValueError, TypeError, AssertionError, TimeoutError)


def told(error: BaseException | None) -> Any:
    """An error by what a program decides by."""
    if error is None:
        return "ok"
    flags = ["retriable"] if getattr(error, "retriable", False) else []
    return [type(error).__name__, *flags]


async def outcome(call: Awaitable[Any], value: Callable[[Any], Any] = lambda result: "ok") -> Any:
    """What a call gives, or the error that it raises."""
    try:
        return value(await asyncio.wait_for(call, PATIENCE))
    except REFUSALS as error:
        return told(error)


async def until(holds: Callable[[], Awaitable[object]], patience: float = PATIENCE) -> bool:
    """Whether it has come true."""
    end = time.monotonic() + patience
    while not await holds():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.05)
    return True


def client(**more: Any) -> dict[str, Any]:
    return {"bootstrap_servers": SERVERS, **more}


def as_user(name: str, password: str = "secret", **more: Any) -> dict[str, Any]:
    login = {"sasl_mechanism": "PLAIN", "sasl_plain_username": name, "sasl_plain_password": password}
    return {**client(**more), "bootstrap_servers": LOGINS, "security_protocol": "SASL_PLAINTEXT", **login}


@asynccontextmanager
async def running(made: Any) -> AsyncIterator[Any]:
    """A client from its start to its end."""
    try:
        await made.start()
        yield made
    finally:
        await (made.close() if isinstance(made, AIOKafkaAdminClient) else made.stop())


def administrator(**given: Any) -> Any:
    return running(AIOKafkaAdminClient(**(given or client())))


def writer(**more: Any) -> Any:
    return running(AIOKafkaProducer(**client(**more)))


def reader(**more: Any) -> Any:
    return running(consumer(**more))


def consumer(**more: Any) -> AIOKafkaConsumer:
    usual = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    return AIOKafkaConsumer(**client(**{**usual, **more}))


async def make(topic: str, partitions: int = 1, **config: str) -> None:
    # Placed, as in Events.java: a topic that is made again has the same leader.
    places = {at: [1 + (at + each) % 3 for each in range(3)] for at in range(partitions)}
    settings = {name.replace("_", "."): value for name, value in config.items()}
    new = NewTopic(topic, -1, -1, replica_assignments=places, topic_configs=settings)
    async with administrator() as admin:
        assert codes(await admin.create_topics([new])) == ["ok"]
    async with reader() as probe:
        asked = [TopicPartition(topic, at) for at in range(partitions)]

        async def is_led() -> bool:
            return await outcome(probe.end_offsets(asked)) == "ok"

        assert await until(is_led)


def codes(answer: Any) -> list[Any]:
    """The errors of an administrator's answer, one for each topic or resource."""
    listed = next(
        getattr(answer, name)
        for name in ("topic_errors", "topic_error_codes", "topic_partition_errors", "resources")
        if hasattr(answer, name)
    )
    return [
        "ok" if not code else told(for_code(code)())
        for code in (next(field for field in each if isinstance(field, int)) for each in listed)
    ]


async def send(
    producer: AIOKafkaProducer, topic: str, values: Iterable[bytes], partition: int = 0
) -> list[Any]:
    """What becomes of each record, in their order."""
    sent: list[Any] = []
    for value in values:
        try:
            given = {"partition": partition, "timestamp_ms": NOW, "headers": [("h", b"1")]}
            sent.append(await asyncio.wait_for(producer.send(topic, value, b"k", **given), PATIENCE))
        except REFUSALS as error:
            sent.append(["send raises", told(error)])
    return [each if isinstance(each, list) else await outcome(each, _where) for each in sent]


def _where(found: Any) -> Any:
    return ["ok", found.partition, found.offset, found.timestamp_type] if found is not None else "ok"


async def write(topic: str, values: Iterable[bytes], partition: int = 0, **more: Any) -> list[Any]:
    async with writer(**{"acks": "all", **more}) as producer:
        return await send(producer, topic, values, partition)


async def read(consumer: AIOKafkaConsumer, count: int, patience: float = PATIENCE) -> list[Any]:
    """Partitions and offsets until so many records, or an error; "nothing more" after a while without either."""
    seen: list[Any] = []

    async def is_over() -> bool:
        try:
            found = await consumer.getmany(timeout_ms=200)
        except REFUSALS as error:
            seen.append(told(error))
            return True
        seen.extend([each.partition, each.offset] for records in found.values() for each in records)
        return len(seen) >= count

    if not await until(is_over, patience):
        seen.append("nothing more")
    return seen


async def read_to(consumer: AIOKafkaConsumer, place: TopicPartition, end: int) -> list[Any]:
    """The offsets that come until the position is the end, or an error."""
    seen: list[Any] = []

    async def is_over() -> bool:
        try:
            found = await consumer.getmany(timeout_ms=200)
            seen.extend(each.offset for records in found.values() for each in records)
            return bool(await asyncio.wait_for(consumer.position(place), PATIENCE) == end)
        except REFUSALS as error:
            seen.append(told(error))
            return True

    if not await until(is_over):
        seen.append("nothing more")
    return seen


# Producing


async def deliveries(tell: Tell) -> None:
    await make("aio-deliveries", 2)
    for name, more in (
        ("idempotent", {"enable_idempotence": True}),
        ("acks=all", {"acks": "all"}),
        ("acks=1", {"acks": 1}),
        ("gzip", {"compression_type": "gzip"}),
        ("acks=0", {"acks": 0}),
    ):
        tell(name, await write("aio-deliveries", [b"a", b"b", b"c"], 1, **more))


async def refused_records(tell: Tell) -> None:
    await make("aio-refused", max_message_bytes="1000")
    tell("too large for the topic", await write("aio-refused", [b"x" * 5000]))
    tell("too large, idempotent", await write("aio-refused", [b"x" * 5000], enable_idempotence=True))
    tell("small again", await write("aio-refused", [b"x"]))
    tell("too large for the client", await write("aio-refused", [b"x" * 2_000_000]))
    tell("no such partition", await write("aio-refused", [b"x"], 7))
    tell("a name that is none", await write("a b", [b"x"], request_timeout_ms=3000))
    await make("aio-guarded", min_insync_replicas="3")
    tell("all replicas needed", await write("aio-guarded", [b"x"]))
    await make("aio-compacted", cleanup_policy="compact")
    tell("compacted, with a key", await write("aio-compacted", [b"x"]))
    tell("made by use", await write("aio-made-by-use", [b"x"]))


async def made_again(tell: Tell) -> None:
    await make("aio-again")
    place = TopicPartition("aio-again", 0)
    async with reader() as consumer:
        consumer.assign([place])
        tell("deliveries before", await write("aio-again", [b"a", b"b", b"c"]))
        tell("read before", await read(consumer, 3))
    # A reader that still runs would have the topic made at once: aiokafka cannot be told not to.
    async with administrator() as admin:
        await admin.delete_topics(["aio-again"])

        async def is_gone() -> bool:
            return "aio-again" not in await admin.list_topics()

        await until(is_gone)
    await make("aio-again")
    tell("deliveries after", await write("aio-again", [b"d"]))
    async with reader() as fresh:
        fresh.assign([place])
        tell("read by a new consumer", await read(fresh, 1))


async def another_leader(tell: Tell) -> None:
    await make("aio-led")
    async with writer(enable_idempotence=True) as producer, reader() as consumer:
        consumer.assign([TopicPartition("aio-led", 0)])
        for turn in range(3):
            tell(f"deliveries {turn}", await send(producer, "aio-led", [b"a", b"b", b"c"]))
            tell(f"read {turn}", await read(consumer, 3))
            if turn < 2:
                tell(f"moved {turn}", await asyncio.to_thread(move_leader, SERVERS, "aio-led"))


# Reading


async def resets(tell: Tell) -> None:
    await make("aio-resets")
    place = TopicPartition("aio-resets", 0)
    await write("aio-resets", [b"%d" % number for number in range(5)])
    async with administrator() as admin:
        deleted = admin.delete_records({place: RecordsToDelete(before_offset=2)})
        tell("deleted up to", await outcome(deleted, lambda done: list(done.values())))
    for policy in ("earliest", "latest", "none"):
        for offset in (1, 9, -1):
            at = f"{policy}, {'nothing committed' if offset < 0 else f'from {offset}'}"
            async with reader(auto_offset_reset=policy, group_id="aio-resets") as consumer:
                consumer.assign([place])
                if offset >= 0:
                    consumer.seek(place, offset)
                tell(at, await read_to(consumer, place, 5))


async def look_ups(tell: Tell) -> None:
    await make("aio-looks")
    await write("aio-looks", [b"a", b"b"])
    place, none = TopicPartition("aio-looks", 0), TopicPartition("aio-looks", 9)
    async with reader() as consumer:
        tell("beginning", (await consumer.beginning_offsets([place]))[place])
        tell("end", (await consumer.end_offsets([place]))[place])
        for name, when in (("before", 0), ("of the records", NOW), ("after", NOW + 1)):
            found = (await consumer.offsets_for_times({place: when}))[place]
            tell(f"for a time {name}", found and [found.offset, found.timestamp - NOW])
        tell("end of no partition", await outcome(asyncio.wait_for(consumer.end_offsets([none]), 3)))
        consumer.assign([place])
        first = await asyncio.wait_for(consumer.getone(), PATIENCE)
        tell("record", [first.key.decode(), first.timestamp_type, first.timestamp - NOW, first.headers[0][0]])
        tell("high watermark", consumer.highwater(place))


async def subscriptions(tell: Tell) -> None:
    await make("aio-patterns-1")
    await write("aio-patterns-1", [b"x"])
    async with reader(group_id="aio-patterns") as consumer:
        consumer.subscribe(pattern="^aio-patterns-[0-9]")
        tell("a pattern", await read(consumer, 1))


# Groups


class Member(Heard, aiokafka.ConsumerRebalanceListener):
    """A member of a group, and what it is told of its partitions."""

    def __init__(self, group: str, **more: Any) -> None:
        super().__init__()
        self.failure: Any = "ok"
        self.group = group
        self.consumer = consumer(group_id=group, **more)

    async def start(self) -> None:
        self.consumer.subscribe([self.group], listener=self)
        await self.consumer.start()

    async def stop(self) -> None:
        await self.consumer.stop()

    async def poll(self) -> None:
        if self.failure == "ok":
            try:
                await self.consumer.getmany(timeout_ms=100)
            except REFUSALS as error:
                self.failure = told(error)

    async def holds(self, count: int) -> bool:
        await self.poll()
        return len(self.held) == count


async def share(tell: Tell, group: str, assignor: type, by_number: bool) -> None:
    """Two members come, and one goes. by_number: which partitions each has is told, and not only how many."""
    await make(group, 4)
    given = {"partition_assignment_strategy": [assignor]}
    first, second = Member(group, client_id="a", **given), Member(group, client_id="b", **given)

    async def both() -> bool:
        return all([await each.holds(2) for each in (first, second)])

    async with running(first):
        await until(partial(first.holds, 4))
        async with running(second):
            await until(both)
        await until(partial(first.holds, 4))
    for name, member in (("first", first), ("second", second)):
        tell(name, member.told if by_number else [[what, len(numbers)] for what, numbers in member.told])


async def commits(tell: Tell) -> None:
    await make("aio-commits", 2)
    await write("aio-commits", [b"a", b"b"])
    place = TopicPartition("aio-commits", 0)
    async with administrator() as admin, running(Member("aio-commits")) as member:
        await until(partial(member.holds, 2))

        def commit(
            consumer: AIOKafkaConsumer, offset: int, metadata: str = "", at: TopicPartition = place
        ) -> Any:
            return outcome(asyncio.wait_for(consumer.commit({at: OffsetAndMetadata(offset, metadata)}), 5))

        tell("waited for", await commit(member.consumer, 1, "note"))
        tell("committed", await member.consumer.committed(place))
        tell("nothing committed", await member.consumer.committed(TopicPartition("aio-commits", 1)))
        tell("beyond the end", await commit(member.consumer, 1000))
        tell("too much metadata", await commit(member.consumer, 1, "x" * 5000))
        async with reader(group_id="aio-commits") as stranger:
            stranger.assign([place])
            tell("by no member", await commit(stranger, 1))
        listed = await admin.list_consumer_group_offsets("aio-commits")
        tell("listed", sorted([at.partition, each.offset, each.metadata] for at, each in listed.items()))
        (described,) = await admin.describe_consumer_groups(["aio-commits"])
        (_, _, state, kind, protocol, members, *_) = described.groups[0]
        tell("described", [state, kind, protocol, len(members)])


async def fenced_instances(tell: Tell) -> None:
    await make("aio-instances")
    first = Member("aio-instances", group_instance_id="one")
    second = Member("aio-instances", group_instance_id="one")
    async with running(first):
        await until(partial(first.holds, 1))

        async def is_fenced() -> bool:
            await first.poll()
            await second.poll()
            return "ok" not in (first.failure, second.failure)

        async with running(second):
            await until(is_fenced, 15)
        tell("second", [second.failure, sorted(second.held)])


# Transactions


async def transactions(tell: Tell) -> None:
    topic, place = "aio-transactions", TopicPartition("aio-transactions", 0)
    await make(topic)
    async with writer(transactional_id="aio-t-1") as producer:
        tell("record before begin", await send(producer, topic, [b"x"]))
        await producer.begin_transaction()
        tell("kept", await send(producer, topic, [b"kept"]))
        tell("commit", await outcome(producer.commit_transaction()))
        tell("commit again", await outcome(producer.commit_transaction()))
        await producer.begin_transaction()
        tell("dropped", await send(producer, topic, [b"dropped"]))
        tell("abort", await outcome(producer.abort_transaction()))
        await producer.begin_transaction()
        tell("open", await send(producer, topic, [b"open"]))
        for isolation in ("read_committed", "read_uncommitted"):
            async with reader(isolation_level=isolation) as consumer:
                consumer.assign([place])
                tell(
                    f"{isolation}, one open", await read(consumer, 1 if isolation == "read_committed" else 3)
                )
                tell(f"{isolation}, end", (await consumer.end_offsets([place]))[place])
        async with writer(transactional_id="aio-t-1") as rival:
            tell("late", await send(producer, topic, [b"late"]))
            tell("commit of the fenced", await outcome(producer.commit_transaction()))
            await rival.begin_transaction()
            tell("of the rival", await send(rival, topic, [b"kept, too"]))
            await rival.commit_transaction()
    for isolation in ("read_committed", "read_uncommitted"):
        async with reader(isolation_level=isolation) as consumer:
            consumer.assign([place])
            tell(f"{isolation}, all ended", await read(consumer, 2 if isolation == "read_committed" else 4))
    slow = AIOKafkaProducer(**client(transactional_id="aio-t-2", transaction_timeout_ms=2_000_000_000))
    tell("a timeout that is too long", await outcome(asyncio.wait_for(slow.start(), 10)))
    await slow.stop()


async def offsets_of_transactions(tell: Tell) -> None:
    await make("aio-offsets")
    await write("aio-offsets", [b"a", b"b"])
    place = TopicPartition("aio-offsets", 0)
    async with running(Member("aio-offsets")) as member, writer(transactional_id="aio-o-1") as producer:
        await until(partial(member.holds, 1))
        await producer.begin_transaction()
        tell("sent", await outcome(producer.send_offsets_to_transaction({place: 2}, "aio-offsets")))
        tell("committed", await outcome(producer.commit_transaction()))

        async def is_found() -> bool:
            return bool(await member.consumer.committed(place) == 2)

        tell("found in time", await until(is_found))


# Administration


async def administration(tell: Tell) -> None:
    await make("aio-managed", 2)
    wrong = {
        "exists": NewTopic("aio-managed", 1, 3),
        "bad name": NewTopic("a b", 1, 3),
        "no partitions": NewTopic("aio-none", 0, 3),
        "nine replicas": NewTopic("aio-many", 1, 9),
        "unknown setting": NewTopic("aio-unknown", 1, 3, topic_configs={"no.such.setting": "1"}),
        "bad value": NewTopic("aio-bad", 1, 3, topic_configs={"retention.ms": "soon"}),
        "no such node": NewTopic("aio-placed", -1, -1, replica_assignments={0: [1, 9]}),
    }
    async with administrator() as admin:
        for name, new in wrong.items():
            tell(f"create: {name}", await outcome(admin.create_topics([new]), codes))
        tried = admin.create_topics([NewTopic("aio-tried", 1, 3)], validate_only=True)
        tell("validate only", await outcome(tried, codes))
        tell("tried", "aio-tried" in await admin.list_topics())
        for topic, count in (("aio-managed", 1), ("aio-managed", 2), ("aio-nowhere", 3)):
            grow = admin.create_partitions({topic: NewPartitions(count)})
            tell(f"grow {topic} to {count}", await outcome(grow, codes))
        tell("delete what is not", await outcome(admin.delete_topics(["aio-nowhere"]), codes))
        for name, value in (("no.such.setting", "1"), ("retention.ms", "soon"), ("retention.ms", "1000000")):
            change = ConfigResource(ConfigResourceType.TOPIC, "aio-managed", {name: value})
            tell(
                f"{name}={value}", await outcome(admin.alter_configs([change]), lambda found: codes(found[0]))
            )
        asked = ConfigResource(ConfigResourceType.TOPIC, "aio-managed", {"retention.ms": None})

        async def is_set() -> bool:
            (found,) = await admin.describe_configs([asked])
            return bool(found.resources[0][4][0][1] == "1000000")

        tell("set in time", await until(is_set))
        place = TopicPartition("aio-managed", 0)
        records = admin.delete_records({place: RecordsToDelete(before_offset=5)})
        tell("delete records beyond the end", await outcome(records))
        (topic,) = await admin.describe_topics(["aio-managed"])
        tell("described", sorted([each["partition"], len(each["replicas"])] for each in topic["partitions"]))
        nobody = admin.describe_consumer_groups(["aio-nobody"])
        tell(
            "no such group",
            await outcome(nobody, lambda found: [*found[0].groups[0][:1], found[0].groups[0][2]]),
        )
        tell("offsets of no group", await outcome(admin.list_consumer_group_offsets("aio-nobody"), len))
        tell("nodes", len((await admin.describe_cluster())["brokers"]))


# Logins and rights


async def rights(tell: Tell) -> None:
    await make("aio-rights")
    await write("aio-rights", [b"x"])
    place = TopicPartition("aio-rights", 0)
    refused = AIOKafkaAdminClient(**as_user("reader", "wrong"))
    tell("wrong password", await outcome(refused.start()))
    await refused.close()
    for user in ("reader", "writer"):
        async with running(AIOKafkaProducer(**as_user(user))) as producer:
            tell(f"{user} writes", (await send(producer, "aio-rights", [b"y"]))[0][:2])
        transactional = AIOKafkaProducer(**as_user(user, transactional_id=f"aio-{user}"))
        tell(f"{user} begins transactions", await outcome(asyncio.wait_for(transactional.start(), 10)))
        await transactional.stop()
        given = as_user(user, auto_offset_reset="earliest", enable_auto_commit=False)
        async with running(AIOKafkaConsumer(**given)) as consumer:
            consumer.assign([place])
            consumer.seek(place, 0)
            tell(f"{user} reads", (await read(consumer, 1))[:1])
            looked = asyncio.wait_for(consumer.end_offsets([place]), 5)
            tell(f"{user} looks up an offset", await outcome(looked))
        grouped = AIOKafkaConsumer("aio-rights", **given, group_id=f"aio-of-{user}")
        tell(f"{user} joins a group", await outcome(asyncio.wait_for(grouped.start(), 10)))
        await grouped.stop()
        async with administrator(**as_user(user)) as admin:
            new = NewTopic(f"aio-by-{user}", 1, 3)
            tell(f"{user} creates", await outcome(admin.create_topics([new]), codes))
            tell(f"{user} deletes", await outcome(admin.delete_topics(["aio-rights"]), codes))


def whole(job: Callable[[Tell], Coroutine[Any, Any, None]]) -> Callable[[Tell], None]:
    """A job in an event loop of its own."""
    return lambda tell: asyncio.run(job(tell))


run(
    {
        "deliveries": whole(deliveries),
        "refused records": whole(refused_records),
        "made again": whole(made_again),
        "another leader": whole(another_leader),
        "resets": whole(resets),
        "look-ups": whole(look_ups),
        "subscriptions": whole(subscriptions),
        "group by ranges": whole(
            lambda tell: share(tell, "aio-ranges", RangePartitionAssignor, by_number=True)
        ),
        "group, sticky": whole(
            lambda tell: share(tell, "aio-sticky", StickyPartitionAssignor, by_number=False)
        ),
        "commits": whole(commits),
        "fenced instances": whole(fenced_instances),
        "transactions": whole(transactions),
        "offsets of transactions": whole(offsets_of_transactions),
        "administration": whole(administration),
        "rights": whole(rights),
    },
    ONLY,
)
