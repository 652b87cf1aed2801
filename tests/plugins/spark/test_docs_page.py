"""What docs/spark.md shows is what runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from insync.plugins.spark._options import CONNECTION_OPTIONS, SERVERS
from insync.replication import BlockingAdmin, BlockingConsumer, BlockingProducer

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()


def patiently(run: Callable[[], None]) -> None:
    """Spark gives the Python worker of a stream 10 s to start and no second chance; a busy machine needs one."""
    from pyspark.errors import StreamingQueryException

    while True:
        try:
            return run()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise


def test_the_examples_run(
    spark: SparkSession,
    servers: str,
    admin: BlockingAdmin,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("sales", "lines", "copy", "numbered"):
        admin.create_topic(name, 2, 1, {"min_insync_replicas": 1})
    with BlockingProducer(servers) as producer:
        producer.send_many("sales", [b"%d teapots" % n for n in range(50)], partition=1).result(30)
    names: dict[str, Any] = {"servers": servers, "folder": str(tmp_path)}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 7
    for block in blocks:
        patiently(partial(exec, compile(block, "spark.md", "exec"), names))
    assert names["spark"] is spark
    out = capsys.readouterr().out
    assert "value='0 teapots', partition=1, offset=0" in out and "\n50\n" in out
    with BlockingConsumer(servers) as consumer:
        for name, count in (("lines", 100), ("copy", 50)):
            assert sum(consumer.end_offsets([(name, 0), (name, 1)]).values()) == count
        # And a marker in each partition, once the transaction has ended.
        assert sum(consumer.end_offsets([("numbered", 0), ("numbered", 1)]).values()) in (50, 51, 52)


def test_every_option_is_told_of(spark: SparkSession) -> None:
    from insync.plugins.spark._sink import WRITE_OPTIONS
    from insync.plugins.spark._source import BATCH_OPTIONS, STREAM_OPTIONS

    for name in (*BATCH_OPTIONS, *STREAM_OPTIONS, *WRITE_OPTIONS, *CONNECTION_OPTIONS, SERVERS):
        assert f"`{name}`" in PAGE, name
