"""Spark's own Kafka connector at a cluster, batch and streaming both ways: `spark_connector.py SERVERS NAME`.

`INSYNC_SPARK_JARS`: the connector and what it needs. Ends with `done`.
"""

from __future__ import annotations

import os
import sys
import tempfile

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

ROWS = 2000
servers, name = sys.argv[1:3]


def main() -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(f"{name}-{each}", 4, 3) for each in ("in", "out")]).values():
        made.result(30)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", os.environ["INSYNC_SPARK_JARS"])
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    kafka = {"kafka.bootstrap.servers": servers}
    rows = spark.range(ROWS).selectExpr("cast(id % 7 as string) key", "concat('v', id) value")
    rows.write.format("kafka").options(**kafka, topic=f"{name}-in").save()
    read = spark.read.format("kafka").options(**kafka, subscribe=f"{name}-in").load()
    assert read.count() == ROWS
    values = {each.value for each in read.selectExpr("cast(value as string) value").collect()}
    assert values == {f"v{each}" for each in range(ROWS)}
    with tempfile.TemporaryDirectory() as checkpoint:
        for _ in range(2):  # the second goes on where the first has ended
            query = (
                spark.readStream.format("kafka")
                .options(
                    **kafka, subscribe=f"{name}-in", startingOffsets="earliest", maxOffsetsPerTrigger="500"
                )
                .load()
                .selectExpr("key", "value")
                .writeStream.format("kafka")
                .options(**kafka, topic=f"{name}-out", checkpointLocation=checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination(120)
            assert query.exception() is None
            rows.limit(ROWS // 4).write.format("kafka").options(**kafka, topic=f"{name}-in").save()
    out = spark.read.format("kafka").options(**kafka, subscribe=f"{name}-out").load()
    assert out.count() == ROWS + ROWS // 4, out.count()
    spark.stop()
    print("done")


main()
