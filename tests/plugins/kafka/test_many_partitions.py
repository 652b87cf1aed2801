"""A topic of more partitions than one of insync's own answers describes, by Kafka's clients."""

from __future__ import annotations

from typing import Any

import pytest

from insync.replication import BlockingAdmin
from insync.replication.core.messages import MOST_DESCRIBED

from ...requires import missing
from .conftest import running_cluster

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("kafka")]
PARTITIONS = 2500
PATIENCE = 30.0


@pytest.fixture(scope="module")
def librdkafka() -> Any:
    try:
        import confluent_kafka
    except ImportError:
        missing("no confluent-kafka is installed (extra test)")
    return confluent_kafka


@pytest.mark.slow
def test_all_of_its_partitions_are_described_and_written_to(librdkafka: Any) -> None:
    assert PARTITIONS > MOST_DESCRIBED
    with running_cluster("--nodes", "1") as cluster:
        with BlockingAdmin(cluster.native, request_timeout_ms=120_000) as admin:
            admin.create_topic("wide", partitions=PARTITIONS, replication_factor=1)
        told: list[Any] = []
        producer = librdkafka.Producer({"bootstrap.servers": cluster.servers})
        found = producer.list_topics("wide", PATIENCE).topics["wide"].partitions
        assert sorted(found) == list(range(PARTITIONS))
        assert all(each.error is None and each.leader >= 0 for each in found.values())
        for partition in (0, PARTITIONS - 1):
            producer.produce(
                "wide",
                b"x",
                partition=partition,
                on_delivery=lambda error, message: told.append(error or message.partition()),
            )
        assert producer.flush(PATIENCE) == 0
        assert sorted(told) == [0, PARTITIONS - 1]
