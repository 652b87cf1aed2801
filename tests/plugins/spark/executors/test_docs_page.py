"""What docs/spark-executor-logs.md shows is what runs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from insync.plugins.spark import ExecutorLogs

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[4] / "docs" / "spark-executor-logs.md").read_text()


def test_the_examples_run(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    # As a module of its own would be, which tasks get by value.
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        for block in blocks:
            exec(compile(block, "spark-executor-logs.md", "exec"), names)
    finally:
        names["logs"].close()
    assert names["spark"] is spark
    out = capsys.readouterr().out
    assert "3 clicks\n" in out and "{b'line': 100}" in out


def test_every_argument_is_told_of() -> None:
    for name in inspect.signature(ExecutorLogs).parameters:
        assert name == "spark" or f"| `{name}` |" in PAGE, name
