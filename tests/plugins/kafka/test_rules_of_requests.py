"""What handlers refuse, leave out or answer otherwise by a rule, each asked without a node behind it."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from insync.plugins.kafka.client import Client
from insync.plugins.kafka.core.directory import is_legal
from insync.plugins.kafka.handlers import (
    again,
    cluster,
    group_admin,
    group_offsets,
    groups,
    offsets,
    topics,
    transaction_admin,
    transactions,
    users,
)
from insync.plugins.kafka.handlers.table import Refused
from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import KafkaError
from insync.replication.core import messages as m
from insync.replication.core.control.records import PartitionRecord, TopicConfig, TopicRecord
from insync.replication.core.control.view import ClusterView, Versioned
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import groups as gm
from insync.replication.core.messages import transactions as tm
from insync.replication.core.types import PartitionId
from insync.replication.node.requests.authorisation import Operation

INVALID = ErrorCode.INVALID_REQUEST


class Service:
    """Notes what it is asked and answers by `answers`; the store can be read."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []
        self.confirmed = 0

    async def ask(self, client: Any, asked: Any) -> Any:
        self.asked.append(asked)
        return SimpleNamespace(message=self.answers.pop(0))

    async def confirm_view(self) -> None:
        self.confirmed += 1


class Asking(Client):
    """A client with the rights `rights`, of which nobody asks more than handlers do."""

    def __init__(self, service: Service, view: ClusterView, rights: Iterable[Operation]) -> None:
        self.service = service  # type: ignore[assignment]
        self.known, self.rights = view, tuple(rights)
        self.client_id, self.host = "c", "h"

    @property
    def view(self) -> ClusterView:
        return self.known

    def may(self, operation: Operation) -> bool:
        return operation in self.rights


def client_with(*answers: Any, view: ClusterView | None = None, may: Iterable[Operation] = Operation) -> Any:
    """A client whose node answers so; with all rights by default."""
    empty = ClusterView(revision=1, nodes={}, topics={}, partitions={})
    return Asking(Service(*answers), empty if view is None else view, may)


# Names


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "x" * 249, "-"])
def test_a_name_that_a_topic_can_have(name: str) -> None:
    assert is_legal(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a\n", "é", "²", "a/b"])
def test_a_name_that_no_topic_can_have(name: str) -> None:
    assert not is_legal(name)


# Groups


async def test_a_group_that_is_named_twice_is_deleted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def done(client: object, request: gm.DeleteGroupRequest) -> Any:
        asked.append(request.group)
        return SimpleNamespace(error=0, message="")

    monkeypatch.setattr(group_admin, "ask", done)
    wanted = message("DeleteGroupsRequest")(groups_names=["b", "a", "b"])
    answer = await group_admin.delete_groups(client_with(), wanted, 2)
    assert asked == ["b", "a"] == [each.group_id for each in answer.results]


@pytest.mark.parametrize(
    ("version", "told"), [(8, KafkaError.UNSUPPORTED_VERSION), (9, ErrorCode.STALE_MEMBER_EPOCH)]
)
@pytest.mark.parametrize("of_all", [True, False])
async def test_a_stale_epoch_is_told_to_whom_knows_the_error(
    version: int, told: int, of_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = ErrorCode.STALE_MEMBER_EPOCH

    async def refused(client: object, request: gm.CommitGroupOffsetsRequest) -> Any:
        part = gm.PartitionError(topic="t", partition=0, error=stale)
        return gm.CommitGroupOffsetsResponse(error=stale if of_all else 0, partitions=[part])

    monkeypatch.setattr(group_offsets, "ask", refused)
    Commit = message("OffsetCommitRequest")
    part = Commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = Commit.OffsetCommitRequestTopic(name="t", partitions=[part])
    answer = await group_offsets.offset_commit(client_with(), Commit(group_id="g", topics=[topic]), version)
    assert [each.error_code for each in answer.topics[0].partitions] == [told]


async def test_keys_of_other_types_have_no_coordinator() -> None:
    Find = message("FindCoordinatorRequest")
    answer = await groups.find_coordinator(client_with(), Find(coordinator_keys=["a", "b"], key_type=2), 4)
    assert [(each.error_code, each.node_id) for each in answer.coordinators] == [(INVALID, -1)] * 2
    assert (await groups.find_coordinator(client_with(), Find(key="a", key_type=2), 3)).error_code == INVALID


@pytest.mark.parametrize(("group", "told"), [("", INVALID), ("g", ErrorCode.INVALID_GROUP_ID)])
async def test_a_member_of_a_group_without_a_name_is_not_understood(
    group: str, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(client: object, request: object) -> Refused:
        return Refused(ErrorCode.INVALID_GROUP_ID, "no")

    monkeypatch.setattr(groups, "ask", refused)
    beat = message("ConsumerGroupHeartbeatRequest")(group_id=group, member_id="m", member_epoch=1)
    assert (await groups.consumer_group_heartbeat(client_with(), beat, 1)).error_code == told


# Offsets


@pytest.mark.parametrize(
    ("time", "since"), [(-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 12), (0, 0), (5, 0)]
)
async def test_an_offset_is_asked_for_as_the_version_can_say_it(time: int, since: int) -> None:
    """Of what is no time, each version knows more; what none knows is refused by all."""
    List = message("ListOffsetsRequest")
    asked = List.ListOffsetsPartition(partition_index=0, timestamp=time, current_leader_epoch=-1)
    request = List(replica_id=-1, topics=[List.ListOffsetsTopic(name="t", partitions=[asked])])
    for version in range(1, 12):
        result = m.ListOffsetsResult(topic="t", partition=0, error=0, offset=3)
        client = client_with(m.ListOffsetsResponse(partitions=[result]))
        answer = await offsets.list_offsets(client, request, version)
        known = version >= since
        (part,) = answer.topics[0].partitions
        assert part.error_code == (0 if known else KafkaError.UNSUPPORTED_VERSION), version
        if not known:
            assert part.offset == -1 and client.service.asked[0].partitions == []


@pytest.mark.parametrize("may", [(), tuple(Operation)])
async def test_no_replica_is_told_where_an_epoch_ends(may: tuple[Operation, ...]) -> None:
    """It asks as a node, by insync's own protocol; and nobody without rights is told."""
    Ends = message("OffsetForLeaderEpochRequest")
    part = Ends.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    topic = Ends.OffsetForLeaderTopic(topic="t", partitions=[part])
    client = client_with(may=may)
    request = Ends(replica_id=1 if may else -1, topics=[topic])
    answer = await offsets.offset_for_leader_epoch(client, request, 4)
    assert answer.topics[0].partitions[0].error_code == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert client.service.asked == []


async def test_records_of_a_partition_that_is_named_twice_are_deleted_once() -> None:
    Delete = message("DeleteRecordsRequest")
    parts = [Delete.DeleteRecordsPartition(partition_index=0, offset=offset) for offset in (3, 5)]
    request = Delete(topics=[Delete.DeleteRecordsTopic(name="t", partitions=parts)], timeout_ms=1000)
    result = m.DeleteRecordsResult(topic="t", partition=0, error=0, low_watermark=5)
    client = client_with(m.DeleteRecordsResponse(partitions=[result]))
    answer = await offsets.delete_records(client, request, 2)
    assert [each.low_watermark for each in answer.topics[0].partitions] == [5]
    assert [each.offset for each in client.service.asked[0].partitions] == [5]


# Topics


def a_view(*names: str, partitions: int = 2) -> ClusterView:
    records = {
        PartitionId(name, index): Versioned(
            PartitionRecord(topic=name, partition=index, topic_id="ab" * 16, replicas=(1,), isr=(1,)), 1
        )
        for name in names
        for index in range(partitions)
    }
    known = {
        name: TopicRecord(
            name=name, topic_id="ab" * 16, partitions=partitions, replication_factor=1, config=TopicConfig()
        )
        for name in names
    }
    return ClusterView(revision=1, nodes={}, topics=known, partitions=records)


async def test_kafkas_log_of_metadata_is_no_topic() -> None:
    Create = message("CreateTopicsRequest")
    wanted = Create.CreatableTopic(name="__cluster_metadata", num_partitions=1, replication_factor=1)
    answer = await topics.create_topics(client_with(), Create(topics=[wanted], timeout_ms=1000), 7)
    assert [each.error_code for each in answer.topics] == [INVALID]


async def test_a_topic_that_is_named_twice_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    async def grown(*_: object) -> Any:
        return SimpleNamespace(error=0, message="")

    monkeypatch.setattr(topics, "ask", grown)
    Grow = message("CreatePartitionsRequest")
    wanted = [
        Grow.CreatePartitionsTopic(name=name, count=count, assignments=None)
        for name, count in (("t", 3), ("u", 3), ("t", 4))
    ]
    client = client_with(view=a_view("t", "u"))
    answer = await topics.create_partitions(client, Grow(topics=wanted, timeout_ms=1000), 3)
    assert [(each.name, each.error_code) for each in answer.results] == [("t", INVALID), ("u", 0)]


async def test_an_election_has_one_of_two_types(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[m.ElectLeadersRequest] = []

    async def elected(client: object, request: m.ElectLeadersRequest, *_: object) -> Any:
        asked.append(request)
        return m.ElectLeadersResponse(error=0, message="", partitions=[])

    monkeypatch.setattr(topics, "ask", elected)
    Elect = message("ElectLeadersRequest")
    named = [Elect.TopicPartitions(topic="t", partitions=[1, 0])]

    async def told(kind: int, version: int) -> tuple[int, list[int]]:
        wanted = Elect(election_type=kind, topic_partitions=named, timeout_ms=1000)
        answer = await topics.elect_leaders(client_with(), wanted, version)
        parts = [part for each in answer.replica_election_results for part in each.partition_result]
        return answer.error_code, [each.error_code for each in parts]

    for kind in (2, -1):
        assert await told(kind, 2) == (INVALID, [INVALID, INVALID])
    assert not asked
    assert await told(2, 0) == (0, []), "version 0 does not say which, and what is not answered is left out"
    await told(0, 2)
    await told(1, 2)
    assert [each.unclean for each in asked] == [False, False, True]


@pytest.mark.parametrize(("of_all", "told"), [(True, [1]), (False, [0, 1])])
async def test_of_all_partitions_those_are_told_that_needed_an_election(
    of_all: bool, told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def elected(client: object, request: m.ElectLeadersRequest, *_: object) -> Any:
        outcomes = [
            m.PartitionOutcome(topic="t", partition=index, error=error, message="")
            for index, error in ((0, ErrorCode.ELECTION_NOT_NEEDED), (1, 0))
        ]
        return m.ElectLeadersResponse(error=0, message="", partitions=outcomes)

    monkeypatch.setattr(topics, "ask", elected)
    Elect = message("ElectLeadersRequest")
    named = None if of_all else [Elect.TopicPartitions(topic="t", partitions=[0, 1])]
    wanted = Elect(election_type=0, topic_partitions=named, timeout_ms=1000)
    answer = await topics.elect_leaders(client_with(), wanted, 2)
    (topic,) = answer.replica_election_results
    assert [each.partition_id for each in topic.partition_result] == told


@pytest.mark.parametrize(
    ("version", "allows", "told"), [(0, False, True), (1, False, False), (1, True, True)]
)
async def test_an_answer_repeats_whether_a_move_may_change_the_factor(
    version: int, allows: bool, told: bool
) -> None:
    wanted = message("AlterPartitionReassignmentsRequest")(topics=[], allow_replication_factor_change=allows)
    answer = await topics.alter_reassignments(client_with(), wanted, version)
    assert answer.allow_replication_factor_change is told


async def test_any_node_says_whether_a_move_is_over() -> None:
    """Of it a client may have heard at another node, so the store is read."""
    client = client_with()
    await topics.list_reassignments(client, message("ListPartitionReassignmentsRequest")(topics=None), 0)
    assert client.service.confirmed == 1


# Pages of topics

Pages = message("DescribeTopicPartitionsRequest")


async def pages(
    names: list[str], cursor: tuple[str, int] | None, *, may: Any = Operation, limit: int = 9
) -> Any:
    client = client_with(view=a_view("s", "t"), may=may)
    client.directory = SimpleNamespace(brokers=lambda view: {}, name_of=lambda view, topic_id: None)
    at = None if cursor is None else Pages.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    request = Pages(
        topics=[Pages.TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=at
    )
    return await cluster.describe_topic_partitions(client, request, 0)


@pytest.mark.parametrize(("names", "cursor"), [(["t"], ("s", 0)), (["t"], ("t", -1))])
async def test_a_page_begins_in_a_topic_that_is_asked_for(names: list[str], cursor: tuple[str, int]) -> None:
    answer = await pages(names, cursor)
    assert [(each.name, each.error_code, each.partitions) for each in answer.topics] == [("t", INVALID, [])]


async def test_a_page_that_begins_behind_a_topic_has_the_next_one() -> None:
    """Such as of one that was deleted and made again, smaller; what is not there takes no room, nor gives any."""
    answer = await pages([], ("s", 7), limit=1)
    found = [(each.name, [part.partition_index for part in each.partitions]) for each in answer.topics]
    assert found == [("s", []), ("t", [0])]
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("t", 1)


@pytest.mark.parametrize(
    ("name", "error"), [("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ("no such", ErrorCode.INVALID_TOPIC)]
)
def test_of_a_topic_that_cannot_be_nobody_is_told_to_ask_again(name: str, error: int) -> None:
    asked = message("MetadataRequest").MetadataRequestTopic(name=name)
    told = cluster._asked(client_with(), asked, 12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert not isinstance(told, str) and told.error_code == error


@pytest.mark.parametrize("may", [Operation.PRODUCE, Operation.CONSUME, Operation.ADMIN])
async def test_topics_are_described_to_whoever_may_use_them(may: Operation) -> None:
    answer = await pages(["t", "none", "no such"], None, may=[may])
    assert [(each.name, each.error_code) for each in answer.topics] == [
        ("no such", ErrorCode.INVALID_TOPIC),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 0),
    ]


# Transactions

Added, Ended, Init = map(message, ("AddPartitionsToTxnRequest", "EndTxnRequest", "InitProducerIdRequest"))


def test_a_transactional_id_is_not_empty() -> None:
    client = client_with()
    for asked in (
        transactions._ask_for_id(client, Init(transactional_id="", producer_id=-1, producer_epoch=-1), 4),
        transactions._ask_to_add(client, Added(v3_and_below_transactional_id=""), 3),
        transactions._ask_to_end(client, Ended(transactional_id=""), 3),
    ):
        assert isinstance(asked, Refused) and asked.error == INVALID


@pytest.mark.parametrize("name", [None, "etl"])
@pytest.mark.parametrize(
    ("ids", "fits"), [((-1, -1), True), ((5, 0), True), ((5, -1), False), ((-1, 0), False)]
)
def test_a_producer_has_an_id_and_an_epoch_or_neither(
    name: str | None, ids: tuple[int, int], fits: bool
) -> None:
    request = Init(transactional_id=name, producer_id=ids[0], producer_epoch=ids[1])
    asked = transactions._ask_for_id(client_with(), request, 4)
    kind = m.InitProducerIdRequest if name is None else tm.InitTransactionsRequest
    assert isinstance(asked, kind if fits else Refused)


@pytest.mark.parametrize("index", [-1, 2])
def test_partitions_that_are_not_there_are_told_to_producers_alone(index: int) -> None:
    topic = Added.AddPartitionsToTxnTopic(name="t", partitions=[index, 1])
    request = Added(
        v3_and_below_transactional_id="etl",
        v3_and_below_producer_id=5,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[topic],
    )
    view = a_view("t")
    asked = transactions._ask_to_add(client_with(view=view), request, 3)
    assert isinstance(asked, transactions._NotAdded)
    assert asked.errors == {("t", index): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    others = client_with(view=view, may=[Operation.CONSUME])
    # The node itself refuses it, whether or not there are such partitions.
    assert isinstance(transactions._ask_to_add(others, request, 3), tm.AddPartitionsRequest)


async def test_a_topic_that_cannot_be_has_no_producers() -> None:
    Producers = message("DescribeProducersRequest")
    wanted = Producers(
        topics=[Producers.TopicRequest(name=name, partition_indexes=[0]) for name in ("t", "a b")]
    )
    results = [
        m.DescribeProducersResult(topic=name, partition=0, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for name in ("t", "a b")
    ]
    client = client_with(m.DescribeProducersResponse(partitions=results))
    answer = await transaction_admin.describe_producers(client, wanted, 0)
    assert [each.partitions[0].error_code for each in answer.topics] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC,
    ]


async def test_what_is_named_again_and_again_does_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four bytes of a request have all partitions of a transaction told, or all producers of a partition."""
    each_has, named = 1_000, 200
    monkeypatch.setattr(again, "MOST_AGAIN", 10 * each_has)
    places = [m.PartitionName(topic="t", partition=index) for index in range(each_has)]
    described = tm.TransactionDescription(transactional_id="a", partitions=places)

    async def told(
        client: object, request: tm.DescribeTransactionsRequest
    ) -> tm.DescribeTransactionsResponse:
        return tm.DescribeTransactionsResponse(transactions=[described])

    monkeypatch.setattr(transaction_admin, "ask", told)
    wanted = message("DescribeTransactionsRequest")(transactional_ids=["a"] * named)
    answer = await transaction_admin.describe_transactions(client_with(), wanted, 0)
    assert [each.error_code for each in answer.transaction_states] == [0] * 11 + [INVALID] * (named - 11)
    assert sum(len(each.topics) for each in answer.transaction_states) == 11
    Producers = message("DescribeProducersRequest")
    wanted = Producers(topics=[Producers.TopicRequest(name="t", partition_indexes=[0] * named)])
    producers = [m.ActiveProducer(producer_id=number, producer_epoch=0) for number in range(each_has)]
    result = m.DescribeProducersResult(topic="t", partition=0, error=0, producers=producers)
    client = client_with(m.DescribeProducersResponse(partitions=[result]))
    (topic,) = (await transaction_admin.describe_producers(client, wanted, 0)).topics
    assert [each.error_code for each in topic.partitions] == [0] * 11 + [INVALID] * (named - 11)
    assert sum(len(each.active_producers) for each in topic.partitions) == 11 * each_has


async def test_each_transactional_id_of_a_question_has_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    async def refused(client: object, request: tm.DescribeTransactionsRequest) -> Refused:
        asked.extend(request.transactional_ids)
        return Refused(ErrorCode.NOT_COORDINATOR, "")

    monkeypatch.setattr(transaction_admin, "ask", refused)
    wanted = message("DescribeTransactionsRequest")(transactional_ids=["a", "", "a"])
    answer = await transaction_admin.describe_transactions(client_with(), wanted, 0)
    other = ErrorCode.NOT_COORDINATOR
    assert [(each.transactional_id, each.error_code) for each in answer.transaction_states] == [
        ("a", other),
        ("", INVALID),
        ("a", other),
    ]
    assert asked == ["a"], "once, and nobody is asked about an id that is empty"


@pytest.mark.parametrize(
    ("states", "unknown", "asks"),
    [
        ([], [], True),
        (["Ongoing", "Odd"], ["Odd"], True),
        (["Odd"], ["Odd"], False),
        (["PrepareEpochFence"], [], False),
        (["PrepareEpochFence", "Ongoing"], [], True),
    ],
)
async def test_transactions_of_states_that_none_is_in_are_none(
    states: list[str], unknown: list[str], asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    async def listed(client: object, request: tm.ListTransactionsRequest) -> Any:
        asked.append(request)
        return tm.ListTransactionsResponse(transactions=[])

    monkeypatch.setattr(transaction_admin, "ask", listed)
    wanted = message("ListTransactionsRequest")(state_filters=states, duration_filter=-1)
    answer = await transaction_admin.list_transactions(client_with(), wanted, 1)
    assert (answer.unknown_state_filters, answer.transaction_states) == (unknown, [])
    assert len(asked) == asks


# Users


def test_a_salted_password_is_not_empty() -> None:
    Alter = message("AlterUserScramCredentialsRequest")
    given = [
        Alter.ScramCredentialUpsertion(
            name="u", mechanism=mechanism, iterations=4096, salt=b"salt", salted_password=password
        )
        for mechanism, password in ((1, bytes(32)), (2, b""))
    ]
    users._change("u", [], given[:1])
    with pytest.raises(users._RefusedError, match="is empty") as refused:
        users._change("u", [], given)
    assert refused.value.code == ErrorCode.UNACCEPTABLE_CREDENTIAL
