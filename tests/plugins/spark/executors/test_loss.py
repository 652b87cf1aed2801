"""An executor is killed while records are written; the command that repeats it is run once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from insync.plugins.spark import JavaError, SparkMissingError, check_java, check_pyspark
from tests.requires import missing

WITHIN_S = 15.0
"""The command asks for 5; machines that build are busier."""


@pytest.mark.jvm
@pytest.mark.timeout(900)
def test_no_acknowledged_record_is_lost_with_an_executor() -> None:
    try:
        check_pyspark()
        check_java()
    except (SparkMissingError, JavaError) as error:
        missing(str(error))
    command = [sys.executable, "-m", "tests.plugins.spark.executor_loss", "--json", "--within", str(WITHIN_S)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(run.stdout)
    assert (found["ok"], found["lost"], found["task_records_lost"], found["left_by_stop"]) == (True, 0, 0, 0)
    assert found["replicas_read"] == 24 and found["acknowledged"] > 100 and found["task_jobs"] > 0
    [loss] = found["rounds"]
    assert loss["replacement"] != loss["executor"]
    # Of three partitions with two replicas each node has two.
    assert len(loss["pairs_waited_s"]) == 2 and found["acknowledged_by_two"] > 100
    assert min(loss["pairs_waited_s"]) > loss["executor_back_s"], "acknowledged by one replica alone"
