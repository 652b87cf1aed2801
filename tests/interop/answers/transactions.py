"""Transactions of both versions, wrong in every way; what tools are told of them and of producers."""

from __future__ import annotations

from typing import Any

from insync.plugins.kafka.protocol.apis import Api
from insync.replication.core.errors import ErrorCode
from insync.storage.batch import build_batch

from .cluster import Cluster, plain
from .job import Tell

NOW = 1_700_000_000_000
_ANSWERS_OF_OTHERS = 4
"""How often a batch outside of a transaction is sent again if the answer is that for an older client (48, not 120).

A leader of Kafka's asks about several transactions at once, and answers all in the words of the first.
"""


def _batch(
    producer: Any, sequence: int, *, count: int = 1, epoch: int | None = None, transactional: bool = True
) -> bytes:
    return build_batch(
        [b"k"] * count,
        [b"v"] * count,
        timestamps_ms=NOW,
        producer_id=producer[0],
        producer_epoch=producer[1] if epoch is None else epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


class Writer:
    """A transactional id at its coordinator."""

    def __init__(self, cluster: Cluster, name: str, at: str, tell: Tell) -> None:
        self.cluster, self.name, self.at, self.tell = cluster, name, at, tell
        self.id, self.epoch = -1, -1

    @classmethod
    async def of(cls, cluster: Cluster, name: str, tell: Tell) -> Writer:
        made = cls(cluster, name, await cluster.coordinator(name, 1), tell)
        told = await cluster.until(lambda: made.init(), lambda told: told.error_code == 0)
        made.id, made.epoch = told.producer_id, told.producer_epoch
        return made

    async def init(self, timeout: int = 60_000, **more: Any) -> Any:
        values: dict[str, Any] = {"transactional_id": self.name, "transaction_timeout_ms": timeout}
        return await self.cluster.ask(self.at, Api.INIT_PRODUCER_ID, 5, **(values | more))

    async def add(self, *parts: tuple[str, int], version: int = 3, **more: Any) -> Any:
        values: dict[str, Any] = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": self.id,
            "v3_and_below_producer_epoch": self.epoch,
            "v3_and_below_topics": [{"name": name, "partitions": [index]} for name, index in parts],
        }
        return await self.cluster.ask(self.at, Api.ADD_PARTITIONS_TO_TXN, version, **(values | more))

    async def added(self, *parts: tuple[str, int]) -> None:
        """Whether the former transaction is over or not yet: both are asked for until they are added."""
        await self.cluster.until(
            lambda: self.add(*parts),
            lambda told: all(
                each.partition_error_code != 51
                for topic in told.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            ),
        )

    async def end(self, commit: bool, version: int = 4, **more: Any) -> Any:
        values: dict[str, Any] = {
            "transactional_id": self.name,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "committed": commit,
        }
        return await self.cluster.ask(self.at, Api.END_TXN, version, **(values | more))

    async def ended(self, commit: bool, version: int = 4) -> Any:
        told = await self.cluster.until(lambda: self.end(commit, version), lambda told: told.error_code != 51)
        if version >= 5 and not told.error_code:
            self.id, self.epoch = told.producer_id, told.producer_epoch
        return told

    async def repeated(self, commit: bool, before: tuple[int, int]) -> Any:
        """The end of the second version once more, with what the producer had before it."""
        return await self.cluster.until(
            lambda: self.end(commit, 5, producer_id=before[0], producer_epoch=before[1]),
            lambda told: told.error_code != 51,
        )

    async def write(
        self, topic: str, data: bytes, version: int = 11, name: str | None = "", partition: int = 0
    ) -> Any:
        part = {"index": partition, "records": data}
        told = await self.cluster.ask(
            await self.cluster.leader(topic),
            Api.PRODUCE,
            version,
            transactional_id=self.name if name == "" else name,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[{"name": topic, "partition_data": [part]}],
        )
        if isinstance(told, str):
            return told
        (answer,) = told.responses[0].partition_responses
        return [answer.error_code, answer.base_offset]

    @property
    def now(self) -> tuple[int, int]:
        return self.id, self.epoch

    def since(self, told: Any) -> Any:
        """An answer with an id and an epoch, as what has changed."""
        if told.error_code:
            return [told.error_code, told.producer_id, told.producer_epoch]
        return [0, "the same" if told.producer_id == self.id else "another", told.producer_epoch - self.epoch]


async def ids(cluster: Cluster, tell: Tell) -> None:
    """Producer ids and epochs, and timeouts."""
    writer = await Writer.of(cluster, "ids", tell)
    for title, timeout in (("0", 0), ("-1", -1), ("1", 1), ("900000", 900_000), ("900001", 900_001)):
        other = Writer(cluster, f"ids-{title}", await cluster.coordinator(f"ids-{title}", 1), tell)
        told = await cluster.until(
            lambda other=other, timeout=timeout: other.init(timeout),
            lambda told: told.error_code not in (14, 15, 16),
        )
        tell(f"a timeout of {title} ms", [told.error_code, told.producer_id >= 0, told.producer_epoch])
    told = await writer.init(transactional_id="")
    tell("an empty name", [told.error_code, told.producer_id >= 0])
    told = await cluster.ask(None, Api.INIT_PRODUCER_ID, 5, transactional_id=None, transaction_timeout_ms=-1)
    tell("no name", [told.error_code, told.producer_id >= 0, told.producer_epoch])
    told = await cluster.ask(
        None,
        Api.INIT_PRODUCER_ID,
        5,
        transactional_id=None,
        transaction_timeout_ms=1,
        producer_id=7,
        producer_epoch=3,
    )
    tell("no name, with an id", [told.error_code, told.producer_epoch])

    async def again(title: str, producer_id: int, epoch: int) -> None:
        told = await writer.init(producer_id=producer_id, producer_epoch=epoch)
        tell(title, writer.since(told))
        if not told.error_code:
            writer.id, writer.epoch = told.producer_id, told.producer_epoch

    await again("its own", writer.id, writer.epoch)
    await again("the former epoch, as if repeated", writer.id, writer.epoch - 1)
    await again("an epoch of the future", writer.id, writer.epoch + 5)
    await again("another id", writer.id + 1000, writer.epoch)
    await again("an id without an epoch", writer.id, -1)
    await again("an epoch without an id", -1, 3)
    await again("none", -1, -1)
    await again("an epoch that is over", writer.id, 0)


async def first_version(cluster: Cluster, tell: Tell) -> None:
    await cluster.make("tx1", [[1, 2, 3], [2, 3, 1]])
    writer = await Writer.of(cluster, "first", tell)
    tell("end of nothing", plain(await writer.end(True)))
    tell("abort of nothing", plain(await writer.end(False)))
    told = await writer.write("tx1", _batch(writer.now, 0))
    for _ in range(_ANSWERS_OF_OTHERS):
        if told != [ErrorCode.INVALID_TXN_STATE, -1]:
            break
        told = await writer.write("tx1", _batch(writer.now, 0))
    tell("written without a transaction", told)
    tell("no topic added", plain(await writer.add(("nowhere", 0), ("tx1", 0))))
    tell("no partition added", plain(await writer.add(("tx1", 9))))
    tell("an internal topic added", plain(await writer.add(("__consumer_offsets", 0))))
    tell("nothing added", plain(await writer.add()))
    tell("added", plain(await writer.add(("tx1", 0))))
    tell("added again", plain(await writer.add(("tx1", 0), ("tx1", 1))))
    tell("written", await writer.write("tx1", _batch(writer.now, 0, count=2)))
    tell("written again", await writer.write("tx1", _batch(writer.now, 0, count=2)))
    tell("a gap", await writer.write("tx1", _batch(writer.now, 7)))
    tell("without a name", await writer.write("tx1", _batch(writer.now, 2), name=None))
    tell("with another name", await writer.write("tx1", _batch(writer.now, 2), name="other"))
    tell("not transactional", await writer.write("tx1", _batch(writer.now, 2, transactional=False)))
    tell(
        "not transactional, without a name",
        await writer.write("tx1", _batch(writer.now, 2, transactional=False), name=None),
    )
    tell(
        "of an older epoch",
        await writer.write("tx1", _batch(writer.now, 0, epoch=writer.epoch - 1) if writer.epoch else b""),
    )
    tell("of a newer epoch", await writer.write("tx1", _batch(writer.now, 0, epoch=writer.epoch + 1)))
    for title, more in (
        ("another id", {"producer_id": writer.id + 1000}),
        ("an older epoch", {"producer_epoch": writer.epoch - 1}),
        ("a newer epoch", {"producer_epoch": writer.epoch + 1}),
        ("an empty name", {"transactional_id": ""}),
    ):
        for version in (1, 4):
            tell(f"end: {title}, version {version}", plain(await writer.end(True, version, **more)))
        renamed = {f"v3_and_below_{key}": value for key, value in more.items()}
        for version in (1, 3):
            tell(
                f"add: {title}, version {version}",
                plain(await writer.add(("tx1", 0), version=version, **renamed)),
            )
    tell("committed", plain(await writer.end(True)))
    told = await cluster.until(lambda: writer.end(True), lambda told: told.error_code != 51)
    tell("committed again", plain(told))
    tell("aborted after that", plain(await writer.end(False)))
    await writer.added(("tx1", 0))
    tell("written then", await writer.write("tx1", _batch(writer.now, 2)))
    tell("aborted", plain(await writer.end(False)))
    told = await cluster.until(lambda: writer.end(False), lambda told: told.error_code != 51)
    tell("aborted again", plain(told))
    tell("committed after that", plain(await writer.end(True)))
    tell("written after the end", await writer.write("tx1", _batch(writer.now, 3)))
    for version in (11, 12):
        tell(
            f"written for nobody, version {version}",
            await writer.write("tx1", _batch(writer.now, 3), version, "nobody"),
        )


async def second_version(cluster: Cluster, tell: Tell) -> None:
    await cluster.make("tx2", [[1, 2, 3], [2, 3, 1]])
    writer = await Writer.of(cluster, "second", tell)
    told = await writer.end(True, 5)
    tell("end of nothing", writer.since(told))
    told = await writer.end(False, 5)
    tell("abort of nothing", writer.since(told))
    if not told.error_code:
        writer.id, writer.epoch = told.producer_id, told.producer_epoch
    told = await cluster.until(
        lambda: writer.write("tx2", _batch(writer.now, 0), 12), lambda told: told[0] != 51
    )
    tell("written", told)
    tell("written again", await writer.write("tx2", _batch(writer.now, 0), 12))
    tell("by version 11 then", await writer.write("tx2", _batch(writer.now, 1), 11))
    tell("a gap", await writer.write("tx2", _batch(writer.now, 5), 12))
    tell("of an older epoch", await writer.write("tx2", _batch(writer.now, 1, epoch=writer.epoch - 1), 12))
    tell("of a newer epoch", await writer.write("tx2", _batch(writer.now, 0, epoch=writer.epoch + 1), 12))
    before = writer.now
    tell("committed", writer.since(await writer.ended(True, 5)))
    tell("epochs", [writer.id == before[0], writer.epoch - before[1]])
    tell("committed again", writer.since(await writer.repeated(True, before)))
    tell("aborted after that", writer.since(await writer.repeated(False, before)))
    tell("written with the epoch before", await writer.write("tx2", _batch(before, 9), 12))
    told = await cluster.until(
        lambda: writer.write("tx2", _batch(writer.now, 0), 12), lambda told: told[0] != 51
    )
    tell("written then", told)
    before = writer.now
    tell("aborted", writer.since(await writer.ended(False, 5)))
    tell("aborted again", writer.since(await writer.repeated(False, before)))
    tell("committed after that", writer.since(await writer.repeated(True, before)))
    tell("a first sequence of 3", await writer.write("tx2", _batch(writer.now, 3), 12))
    tell("end by version 4", writer.since(await writer.end(True, 4)))


async def offsets(cluster: Cluster, tell: Tell) -> None:
    """Offsets of a group within a transaction."""
    await cluster.make("tx3")
    writer = await Writer.of(cluster, "with offsets", tell)
    group = await cluster.coordinator("of offsets")

    async def commit(title: str, version: int = 3, **more: Any) -> None:
        part = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
        values: dict[str, Any] = {
            "transactional_id": "with offsets",
            "group_id": "of offsets",
            "producer_id": writer.id,
            "producer_epoch": writer.epoch,
            "topics": [{"name": "tx3", "partitions": [part]}],
        }

        async def ask() -> Any:
            return await cluster.ask(group, Api.TXN_OFFSET_COMMIT, version, **(values | more))

        told = await cluster.until(
            ask, lambda told: all(p.error_code not in (14, 15, 51) for t in told.topics for p in t.partitions)
        )
        tell(title, plain(told))

    async def add(title: str, **more: Any) -> None:
        values: dict[str, Any] = {
            "transactional_id": "with offsets",
            "group_id": "of offsets",
            "producer_id": writer.id,
            "producer_epoch": writer.epoch,
        }
        told = await cluster.until(
            lambda: cluster.ask(writer.at, Api.ADD_OFFSETS_TO_TXN, 3, **(values | more)),
            lambda told: told.error_code not in (14, 15, 51),
        )
        tell(title, plain(told))

    await commit("not added")
    await add("another epoch", producer_epoch=writer.epoch + 1)
    await add("another id", producer_id=writer.id + 1000)
    await add("no group", group_id="")
    await add("added")
    for version in (3, 4):
        await commit(f"by nobody, version {version}", version)
        await commit(
            f"by a stranger, version {version}",
            version,
            member_id="stranger",
            generation_id_or_member_epoch=1,
        )
        await commit(
            f"by an instance, version {version}", version, member_id="stranger", group_instance_id="nobody"
        )
        await commit(
            f"of generation 3 of nobody, version {version}", version, generation_id_or_member_epoch=3
        )
        await commit(
            f"no topic, version {version}",
            version,
            topics=[
                {
                    "name": "nowhere",
                    "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}],
                }
            ],
        )
        await commit(
            f"a long note, version {version}",
            version,
            topics=[
                {
                    "name": "tx3",
                    "partitions": [
                        {"partition_index": 0, "committed_offset": 1, "committed_metadata": "n" * 5000}
                    ],
                }
            ],
        )
        await commit(f"an older epoch, version {version}", version, producer_epoch=writer.epoch - 1)
    asked = {"group_id": "of offsets", "topics": [{"name": "tx3", "partition_indexes": [0]}]}
    for stable in (False, True):
        told = await cluster.ask(group, Api.OFFSET_FETCH, 8, groups=[asked], require_stable=stable)
        tell(f"fetched while it is open, {stable}", plain(told))
    tell("committed", plain(await writer.end(True)))
    told = await cluster.until(
        lambda: cluster.ask(group, Api.OFFSET_FETCH, 8, groups=[asked], require_stable=True),
        lambda told: told.groups[0].topics[0].partitions[0].error_code == 0,
    )
    tell("fetched then", plain(told))
    await commit("by version 5", 5)
    told = await writer.ended(True, 5)
    tell("ended by version 5", [told.error_code])


async def watched(cluster: Cluster, tell: Tell) -> None:
    """What tools are told."""
    await cluster.make("tx4", [[1, 2, 3], [1, 2, 3]])
    writer = await Writer.of(cluster, "watched", tell)

    async def describe(title: str, *names: str) -> None:
        told = await cluster.ask(writer.at, Api.DESCRIBE_TRANSACTIONS, transactional_ids=list(names))
        for each in told.transaction_states:
            each.producer_epoch = 0
        tell(title, plain(told))

    async def listed(title: str, version: int = 1, **more: Any) -> None:
        told = await cluster.ask(writer.at, Api.LIST_TRANSACTIONS, version, **more)
        if not isinstance(told, str):
            told.transaction_states = [
                each for each in told.transaction_states if each.transactional_id == "watched"
            ]
        tell(title, plain(told))

    async def producers(title: str, name: str, *indexes: int) -> None:
        topics = [{"name": name, "partition_indexes": list(indexes)}]
        told = await cluster.ask(await cluster.leader("tx4"), Api.DESCRIBE_PRODUCERS, topics=topics)
        for topic in told.topics:
            for part in topic.partitions:
                for each in part.active_producers:
                    each.producer_epoch -= writer.epoch
                    each.coordinator_epoch = min(each.coordinator_epoch, 0)
        tell(title, plain(told))

    await describe("before it begins", "watched")
    await describe("nobody", "nobody-at-all", "watched", "watched")
    await describe("an empty name", "")
    await describe("nothing")
    await producers("nobody has written", "tx4", 0)
    await writer.added(("tx4", 0), ("tx4", 1))
    await writer.write("tx4", _batch(writer.now, 0, count=3))
    await describe("while it is open", "watched")
    await producers("while it is open", "tx4", 0, 1)
    await producers("no such partition", "tx4", 9, -1)
    await producers("no such topic", "nowhere", 0)
    await producers("a bad name", "a b", 0)
    await producers("no partition", "tx4")
    await producers("a partition twice", "tx4", 0, 0)
    await listed("all")
    await listed("ongoing ones", state_filters=["Ongoing"])
    await listed("empty ones", state_filters=["Empty"])
    await listed("a state that is none", state_filters=["Burning"])
    await listed("a state that is none, and one", state_filters=["Burning", "Ongoing"])
    await listed("in small letters", state_filters=["ongoing"])
    await listed("dead ones", state_filters=["Dead", "PrepareEpochFence"])
    await listed("of its id", producer_id_filters=[writer.id])
    await listed("of another id", producer_id_filters=[writer.id + 1000])
    await listed("long ones", duration_filter=3_600_000)
    await listed("of at least 0 ms", duration_filter=0)
    await listed("of -5 ms", duration_filter=-5)
    await writer.ended(True)
    await cluster.until(
        lambda: cluster.ask(writer.at, Api.DESCRIBE_TRANSACTIONS, transactional_ids=["watched"]),
        lambda told: told.transaction_states[0].transaction_state == "CompleteCommit",
    )
    await describe("when it is over", "watched")
    await producers("when it is over", "tx4", 0)
    await listed("all then", duration_filter=0)
    other = next(each for each in cluster.servers if each != writer.at)
    told = await cluster.ask(other, Api.DESCRIBE_TRANSACTIONS, transactional_ids=["watched"])
    tell("asked of another", [each.error_code for each in told.transaction_states])


JOBS = {
    "producer ids": ids,
    "transactions of the first version": first_version,
    "transactions of the second version": second_version,
    "transactions with offsets": offsets,
    "transactions watched": watched,
}
