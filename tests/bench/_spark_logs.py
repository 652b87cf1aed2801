"""What Spark reads and writes in its benchmark, by the same calls: our log, and Kafka by Spark's own connector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from insync.replication import BlockingAdmin

from ..interop.kafka import POM, Java, broker, resolve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONNECTOR = Path(__file__).parent / "connector.xml"
SERVERS = "kafka.bootstrap.servers"


@attrs.frozen
class Log:
    """A cluster of one node, as Spark sees it."""

    spark: SparkSession
    format: str
    servers: str
    written_with: Mapping[str, str] = attrs.Factory(dict)

    def create(self, topic: str, partitions: int) -> None:
        """One replica, which alone is all that acks=all waits for."""
        with BlockingAdmin(self.servers) as admin:
            admin.create_topic(topic, partitions, 1, {"min_insync_replicas": 1})

    def delete(self, topic: str) -> None:
        with BlockingAdmin(self.servers) as admin:
            admin.delete_topic(topic)

    def read(self, topic: str) -> DataFrame:
        options = {SERVERS: self.servers, "subscribe": topic}
        return self.spark.read.format(self.format).options(**options).load()

    def stream(self, topic: str, rows: int) -> DataFrame:
        options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(rows)}
        return (
            self.spark.readStream.format(self.format).options(**options).option(SERVERS, self.servers).load()
        )

    def save(self, frame: DataFrame, topic: str) -> None:
        writer = frame.write.format(self.format).mode("append").options(**self.written_with)
        writer.option(SERVERS, self.servers).option("topic", topic).save()


class KafkaLog(Log):
    """A broker of Kafka's own."""

    def create(self, topic: str, partitions: int) -> None:
        from kafka.admin import KafkaAdminClient, NewTopic

        admin = KafkaAdminClient(bootstrap_servers=self.servers)
        try:
            admin.create_topics([NewTopic(topic, partitions, 1)])
        finally:
            admin.close()

    def delete(self, topic: str) -> None:
        from kafka.admin import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=self.servers)
        try:
            admin.delete_topics([topic])
        finally:
            admin.close()


def connector_jars() -> str:
    """For `spark.jars`: the connector and what it needs, from Maven Central."""
    return resolve(CONNECTOR, online=True).replace(":", ",")


@contextmanager
def kafka(spark: SparkSession, place: Path) -> Iterator[KafkaLog]:
    """A broker as operators start it: Java's compiler and collector as they are by default, a heap of 1 GiB."""
    place.mkdir()
    with broker(Java(resolve(POM, online=True), ()), place, heap="1g") as running:
        settings = {"kafka.acks": "all", "kafka.compression.type": "none"}
        yield KafkaLog(spark, "kafka", running.address, settings)
