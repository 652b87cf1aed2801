"""What a node tells of Kafka's clients, and that the page names all that a listener offers."""

from __future__ import annotations

import re
from pathlib import Path

from insync.plugins.kafka.core.failures import first_error, name_of
from insync.plugins.kafka.handlers import OFFERED
from insync.plugins.kafka.protocol import message, message_of
from insync.plugins.kafka.protocol.apis import Api
from insync.replication import Admin, Node, NodeSettings
from insync.replication.core.errors import ErrorCode

from ...replication.node.operations.scraping import scrape
from .login.test_sasl import ALL, NAME, PASSWORD, choose, plain, prove
from .test_listener import Metadata, batch, client_of, make, node_at, produce, write

DOCS = Path(__file__).parents[3] / "docs"
ListOffsets = message("ListOffsetsRequest")


def test_the_first_error_is_found_wherever_it_stands() -> None:
    Produced, Topics = message("ProduceResponse"), message("CreateTopicsResponse")
    parts = [Produced.PartitionProduceResponse(error_code=code) for code in (0, 6, 3)]
    topic = Produced.TopicProduceResponse(partition_responses=parts)
    assert first_error(Produced(responses=[topic])) == 6
    assert first_error(Produced(responses=[])) == 0
    assert first_error(Topics(topics=[Topics.CreatableTopicResult(error_code=36)])) == 36
    assert first_error(message("InitProducerIdResponse")(error_code=-1)) == -1
    assert first_error(message("MetadataResponse")()) == 0
    added = message("AddPartitionsToTxnResponse")
    inner = added.AddPartitionsToTxnPartitionResult(partition_error_code=48)
    outer = added.AddPartitionsToTxnTopicResult(results_by_partition=[inner])
    assert first_error(added(results_by_topic_v3_and_below=[outer])) == 48
    names = [name_of(code) for code in (0, 6, 58, 9999)]
    assert names == ["none", "not_leader_or_follower", "sasl_authentication_failed", "9999"]


async def test_requests_are_counted_by_api_and_error(tmp_path: Path) -> None:
    async with node_at(tmp_path, metrics_port=0) as node, client_of(node) as client:
        await make(node)
        await write(client, b"x")
        refused = await client.ask(Api.PRODUCE, 9, produce(batch(b"x"), partition=7))
        assert refused.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for _ in range(3):
            await client.ask(Api.METADATA, 5, Metadata(topics=None))
        told, here = await scrape(node.metrics_address), {"listener": "kafka"}
        for api, error, count in (
            ("produce", "none", 1),
            ("produce", "unknown_topic_or_partition", 1),
            ("metadata", "none", 3),
        ):
            assert told.value("insync_kafka_requests_total", api=api, error=error, **here) == count
        assert told.value("insync_kafka_connections", **here) == 1
        for name, least in (("bytes_in", 60), ("bytes_out", 60), ("request_seconds", 0)):
            assert told.value(f"insync_kafka_{name}_total", api="produce", **here) > least


async def test_logins_are_counted_and_listeners_are_told_apart(tmp_path: Path) -> None:
    settings = NodeSettings(
        node_id=1,
        data_dir=tmp_path / "n",
        store=f"sqlite://{tmp_path}/m.db",
        listeners=("tcp://127.0.0.1:0", f"kafka://127.0.0.1:0?{ALL}&name=secured", "kafka://127.0.0.1:0"),
        metrics_port=0,
    )
    async with Node(settings) as node, Admin(node.endpoints) as admin:
        await admin.create_user(NAME, PASSWORD)
        for password in (PASSWORD, "wrong", "wrong"):
            async with client_of(node) as client:
                await choose(client)
                await prove(client, plain(password=password))
        told = await scrape(node.metrics_address)
        for outcome, count in (("succeeded", 1), ("failed", 2)):
            assert told.value("insync_kafka_logins_total", listener="secured", outcome=outcome) == count
        assert told.value("insync_kafka_connections", listener="kafka") == 0


def test_the_page_names_every_api_and_its_versions() -> None:
    page = (DOCS / "kafka.md").read_text(encoding="utf-8")
    table = page.split("| API | versions |", 1)[1].split("\n\n", 1)[0]
    named: dict[str, str] = {}
    for row in table.splitlines()[2:]:
        apis, versions = (cell.strip() for cell in row.strip("|").split("|"))
        found = re.findall(r"\d+(?:-\d+)?", versions.partition("(")[0])
        assert len(found) == len(apis.split(", ")), row
        named |= dict(zip(apis.split(", "), found, strict=True))
    offered = {}
    for api, (least, most) in OFFERED.ranges.items():
        kind = message_of(api, is_request=True)
        assert kind is not None
        name = kind.TABLE.name.removesuffix("Request")
        offered[name] = f"{least}-{most}" if least < most else f"{least}"
    assert named == offered
