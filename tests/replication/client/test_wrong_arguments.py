"""Arguments of the wrong type are refused to who gives them, and cost nobody else the client."""

from __future__ import annotations

from typing import Any

import pytest

from insync.replication.client import (
    Admin,
    BlockingProducer,
    Consumer,
    InvalidRequestError,
    InvalidSettingError,
    InvalidTopicError,
    Producer,
)
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import Kind

from .fake_cluster import fake_cluster
from .threaded_cluster import threaded_cluster

RECORDS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"topic": None}, TypeError, "a topic is named by a text"),
    ({"topic": "a b"}, InvalidTopicError, "not legal"),
    ({"topic": "\ud800"}, InvalidTopicError, "not legal"),
    ({"value": 5}, TypeError, "must be bytes or None, not int"),
    ({"value": "text"}, TypeError, "must be bytes or None, not str"),
    ({"key": "text"}, TypeError, "key must be bytes"),
    ({"headers": [("a", "b")]}, TypeError, "headers are a list of pairs"),
    ({"headers": [(b"a", b"b")]}, TypeError, "headers are a list of pairs"),
    ({"headers": [("\ud800", b"b")]}, TypeError, "headers are a list of pairs"),
    ({"headers": {"a": b"b"}}, TypeError, "headers are a list of pairs"),
    ({"headers": iter([("a", b"b")])}, TypeError, "headers are a list of pairs"),
    ({"timestamp_ms": "now"}, TypeError, "whole number of milliseconds"),
    ({"timestamp_ms": -5}, ValueError, "use 0 or more"),
    ({"timestamp_ms": 2**70}, ValueError, "use 0 or more"),
    ({"on_delivery": 3}, TypeError, "on_delivery is 3"),
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
            many = {name: value for name, value in arguments.items() if name in ("topic", "timestamp_ms")}
            keys = [arguments["key"]] if "key" in arguments else None
            with pytest.raises(error, match=said):
                await producer.send_many(values=[arguments["value"]], keys=keys, **many)
        await (await producer.send("t", b"x", headers=[("a", None)], timestamp_ms=0)).wait()
        assert cluster.topics["t"][0].values() == [b"x"]


@pytest.mark.parametrize(("wrong", "error", "said"), RECORDS)
def test_the_same_of_threads(wrong: dict[str, Any], error: type[Exception], said: str) -> None:
    with threaded_cluster() as cluster, BlockingProducer(cluster.urls, linger_ms=0) as producer:
        with pytest.raises(error, match=said):
            producer.send(**({"topic": "t", "value": b"v"} | wrong)).result(10)
        assert producer.send("t", b"x").result(10).offset == 0


@pytest.mark.parametrize("wrong", ["t", ["t"], [(5, 0)], [("t", "0")], [("t", 0, 1)], [None]])
async def test_what_names_no_partition_is_refused_and_the_consumer_goes_on(wrong: Any) -> None:
    async with fake_cluster(t=1) as cluster:
        async with Producer(cluster.urls) as producer:
            await (await producer.send("t", b"x")).wait()
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            with pytest.raises(TypeError, match="names no partition"):
                consumer.assign(wrong)
            consumer.assign([("t", 0)])
            with pytest.raises(ValueError, match="above all that an offset can be"):
                consumer.seek(("t", 0), 1 << 63)
            with pytest.raises(ValueError, match="timeout_ms is -1"):
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


async def test_an_offset_that_cannot_be_is_not_kept() -> None:
    async with fake_cluster(t=1) as cluster, Admin(cluster.urls) as admin:
        with pytest.raises(InvalidSettingError, match="offset -5 for t-0"):
            await admin.commit_offsets("g", {("t", 0): -5})


@pytest.mark.parametrize("servers", [None, 5, [5], {"tcp://x:1"}])
def test_servers_that_are_no_urls_are_refused(servers: Any) -> None:
    with pytest.raises(InvalidSettingError, match="give URLs such as"):
        Producer(servers)
