"""Arguments of the wrong type are refused to who gives them, and cost nobody else the client."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
import trio

import insync.replication.asyncio as bridge
from insync.replication.client import (
    Admin,
    BatchProducer,
    BlockingProducer,
    ClientError,
    Consumer,
    ConsumerSettings,
    InvalidArgumentError,
    InvalidRequestError,
    InvalidSettingError,
    InvalidTopicError,
    PartitionerError,
    Producer,
    ProducerSettings,
    RecordTooLargeError,
    RequestTimeoutError,
    SerializationError,
    UnknownTopicError,
)
from insync.replication.client import _arguments as given
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import Kind

from .fake_cluster import fake_cluster
from .threaded_cluster import threaded_cluster

RECORDS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"topic": None}, InvalidArgumentError, "^topic is None; it must be a string, the topic's name"),
    ({"topic": "a b"}, InvalidTopicError, "not valid"),
    ({"topic": "\ud800"}, InvalidTopicError, "not valid"),
    ({"value": 5}, InvalidArgumentError, "must be bytes or None, not int"),
    ({"value": "text"}, InvalidArgumentError, "must be bytes or None, not str"),
    ({"key": "text"}, InvalidArgumentError, "key must be bytes"),
    ({"headers": [("a", "b")]}, InvalidArgumentError, "headers are a list of pairs"),
    ({"headers": [(b"a", b"b")]}, InvalidArgumentError, "headers are a list of pairs"),
    ({"headers": [("\ud800", b"b")]}, InvalidArgumentError, "headers are a list of pairs"),
    ({"headers": {"a": b"b"}}, InvalidArgumentError, "headers are a list of pairs"),
    ({"headers": iter([("a", b"b")])}, InvalidArgumentError, "headers are a list of pairs"),
    ({"timestamp_ms": "now"}, InvalidArgumentError, "timestamp_ms .* is 'now'; it must be a whole number"),
    ({"timestamp_ms": -5}, InvalidArgumentError, "use 0 or more"),
    ({"timestamp_ms": 2**70}, InvalidArgumentError, "or less"),
    ({"partition": "0"}, InvalidArgumentError, "partition is '0'; it must be a whole number"),
    ({"partition": True}, InvalidArgumentError, "partition is True; it must be a whole number"),
    ({"on_delivery": 3}, InvalidArgumentError, "on_delivery is 3"),
]


@pytest.mark.parametrize(("wrong", "error", "said"), RECORDS)
async def test_a_record_that_cannot_be_is_refused_and_the_producer_goes_on(
    wrong: dict[str, Any], error: type[Exception], said: str
) -> None:
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls, linger_ms=0) as producer:
        await producer.prepare("t")
        arguments = {"topic": "t", "value": b"v"} | wrong
        with pytest.raises(error, match=said):
            await producer.send(**arguments)
        if "headers" not in wrong and "on_delivery" not in wrong:
            taken = ("topic", "timestamp_ms", "partition")
            many = {name: value for name, value in arguments.items() if name in taken}
            keys = [arguments["key"]] if "key" in arguments else None
            with pytest.raises(error, match=said):
                await producer.send_many(values=[arguments["value"]], keys=keys, **many)
        await (await producer.send("t", b"x", headers=[("a", None)], timestamp_ms=0)).wait()
        assert cluster.topics["t"][0].values() == [b"x"]


def test_a_refusal_names_the_argument_and_what_was_given() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^group is 5; it must be a string$"):
        given.text("group", 5)
    assert given.config("config", {"a": 0.5, "b": True, "c": 3, "d": "x"}) == {
        "a": 0.5,
        "b": True,
        "c": 3,
        "d": "x",
    }


def odd(topic: str, key: bytes | None, count: int) -> int:
    if key == b"raise":
        raise RuntimeError("no such key")
    return 7 if key == b"far" else 0


FACES: list[tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = [
    *(({}, wrong, error, said) for wrong, error, said in RECORDS),
    ({}, {"topic": "nope"}, UnknownTopicError, "'nope'"),
    ({}, {"partition": 5}, UnknownTopicError, "partition 5 of topic 't', which has 1"),
    ({"max_request_size": 1000}, {"value": bytes(2000)}, RecordTooLargeError, "max_request_size=1000"),
    ({"buffer_memory": 1000}, {"value": bytes(2000)}, RecordTooLargeError, "buffer_memory=1000"),
    ({"partitioner": odd}, {"key": b"raise"}, PartitionerError, "no such key"),
    ({"partitioner": odd}, {"key": b"far"}, UnknownTopicError, "partition 7"),
    ({"value_serializer": str.encode}, {"value": 5}, SerializationError, "value_serializer refuses 5"),
]


@pytest.mark.parametrize(("options", "wrong", "error", "said"), FACES)
async def test_send_raises_this(options: Any, wrong: Any, error: type[Exception], said: str) -> None:
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls, **options) as producer:
        with pytest.raises(error, match=said):
            await producer.send(**({"topic": "t", "value": b"v"} | wrong))


@pytest.mark.parametrize(("options", "wrong", "error", "said"), FACES)
def test_the_same_call_raises_the_same_in_threads(
    options: Any, wrong: Any, error: type[Exception], said: str
) -> None:
    with threaded_cluster() as cluster, BlockingProducer(cluster.urls, linger_ms=0, **options) as producer:
        with pytest.raises(error, match=said):
            producer.send(**({"topic": "t", "value": b"v"} | wrong))
        assert producer.send("t", "x" if "value_serializer" in options else b"x").result(10).offset == 0


@pytest.mark.parametrize(("options", "wrong", "error", "said"), FACES)
def test_the_same_call_raises_the_same_on_asyncio(
    options: Any, wrong: Any, error: type[Exception], said: str
) -> None:
    async def main(urls: list[str]) -> None:
        async with bridge.Producer(urls, linger_ms=0, **options) as producer:
            with pytest.raises(error, match=said):
                await producer.send(**({"topic": "t", "value": b"v"} | wrong))
            good = "x" if "value_serializer" in options else b"x"
            assert (await producer.send_and_wait("t", good)).offset == 0

    with threaded_cluster() as cluster:
        asyncio.run(main(cluster.urls))


@pytest.mark.parametrize("wrong", ["t", ["t"], [(5, 0)], [("t", "0")], [("t", 0, 1)], [None]])
async def test_what_names_no_partition_is_refused_and_the_consumer_goes_on(wrong: Any) -> None:
    async with fake_cluster(t=1) as cluster:
        async with Producer(cluster.urls) as producer:
            await (await producer.send("t", b"x")).wait()
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            with pytest.raises(InvalidArgumentError, match="names no partition"):
                consumer.assign(wrong)
            consumer.assign([("t", 0)])
            with pytest.raises(InvalidArgumentError, match=f"use {2**63 - 1} or less"):
                consumer.seek(("t", 0), 1 << 63)
            with pytest.raises(InvalidArgumentError, match="timeout_ms is -1; use 0 or more"):
                await consumer.poll(-1)
            assert [each.value for each in await consumer.poll(5000)] == [b"x"]


async def test_a_request_that_no_node_understands_is_not_repeated() -> None:
    def malformed(_: Any, request: Any) -> bool:
        request.fail(ErrorCode.INVALID_REQUEST, "malformed request")
        return True

    async with fake_cluster(t=1) as cluster, Admin(cluster.urls) as admin:
        for node in cluster.nodes:
            node.script(Kind.CREATE_TOPIC, malformed)
        with pytest.raises(InvalidRequestError, match=r"CREATE_TOPIC: INVALID_REQUEST: .*malformed"):
            await admin.create_topic("u")


@pytest.mark.parametrize(
    ("kind", "client", "ask"),
    [
        (Kind.LIST_OFFSETS, Consumer, lambda it: it.end_offsets([("t", 0)])),
        (Kind.READ_INDEX, Admin, lambda it: it.read_index([("t", 0)])),
        (Kind.DELETE_RECORDS, Admin, lambda it: it.delete_records({("t", 0): -1})),
        (Kind.DESCRIBE_PRODUCERS, BatchProducer, lambda it: it.written(7, [("t", 0)])),
    ],
)
async def test_a_question_that_a_leader_does_not_understand_is_not_repeated(
    kind: Kind, client: Any, ask: Any
) -> None:
    """The error is its own, not a group, and comes before the time is over."""

    def malformed(_: Any, request: Any) -> bool:
        request.fail(ErrorCode.INVALID_REQUEST, "malformed request")
        return True

    async with fake_cluster(t=1) as cluster, client(cluster.urls) as opened:
        for node in cluster.nodes:
            node.script(kind, *[malformed] * 100)
        with trio.fail_after(5), pytest.raises(InvalidRequestError, match=kind.name):
            await ask(opened)


def garbage(_: Any, request: Any) -> bool:
    request.reply(b"\xc1 no message")
    return True


async def test_an_answer_that_nobody_understands_is_none_and_others_are_asked() -> None:
    """It must not end the task that keeps the metadata, and the caller's block with it."""
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls, linger_ms=0) as producer:
        for node in cluster.nodes:
            node.script(Kind.METADATA, garbage)
            node.script(Kind.INIT_PRODUCER_ID, garbage)
        with trio.fail_after(5):
            assert (await (await producer.send("t", b"x")).wait()).offset == 0


async def test_a_cluster_that_nobody_understands_is_told_of() -> None:
    async with fake_cluster(nodes=2, t=1) as cluster:
        for node in cluster.nodes:
            node.script(Kind.METADATA, *[garbage] * 100)
        with trio.fail_after(5), pytest.raises(RequestTimeoutError, match="malformed response"):
            async with Admin(cluster.urls):
                pytest.fail("it was entered")


async def test_an_offset_that_cannot_be_is_not_kept() -> None:
    async with fake_cluster(t=1) as cluster, Admin(cluster.urls) as admin:
        with pytest.raises(InvalidArgumentError, match="offset for t-0 is -5; use 0 or more"):
            await admin.commit_offsets("g", {("t", 0): -5})


@pytest.mark.parametrize("servers", [None, 5, [5], {"tcp://x:1"}])
def test_servers_that_are_no_urls_are_refused(servers: Any) -> None:
    with pytest.raises(InvalidSettingError, match="give URLs such as"):
        Producer(servers)


@pytest.mark.parametrize("made", [Admin, Consumer, Producer, BatchProducer])
def test_settings_are_given_in_one_way(made: Any) -> None:
    """Of two ways one would not count."""
    given = ConsumerSettings() if made is Consumer else ProducerSettings()
    with pytest.raises(InvalidSettingError, match="settings are given, and client_id besides"):
        made("mem://x/y", settings=given, client_id="me")
    with pytest.raises(InvalidSettingError, match=r"settings is a dict; give \w+Settings"):
        made("mem://x/y", settings={"client_id": "me"})


@pytest.mark.parametrize("name", ["client_id", "producer_name"])
def test_a_setting_that_is_a_text_is_one(name: str) -> None:
    with pytest.raises(InvalidSettingError, match=f"{name} is 5; it must be a string"):
        Producer("mem://x/y", **{name: 5})


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("tls_certificate", "tls_key and tls_authorities"),
        ("tls_key", "tls_certificate and tls_authorities"),
        ("tls_authorities", "tls_certificate and tls_key"),
    ],
)
def test_of_the_files_for_tls_those_that_are_missing_are_named(name: str, missing: str) -> None:
    with pytest.raises(InvalidSettingError, match=f"tls files: give {missing} too"):
        Producer("mem://x/y", **{name: "some.pem"})


def test_an_error_of_an_argument_is_what_functions_raise_and_what_clients_raise() -> None:
    assert issubclass(InvalidArgumentError, ClientError)
    assert issubclass(InvalidArgumentError, TypeError) and issubclass(InvalidArgumentError, ValueError)
    assert pickle.loads(pickle.dumps(InvalidArgumentError("x is 5"))).args == ("x is 5",)
