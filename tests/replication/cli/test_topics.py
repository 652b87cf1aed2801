"""`insync topic grow`, `delete-records` and `delete`, and `insync config`, on a node of its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from insync.replication.cli import main
from tests.processes import STEADY, cluster


def insync(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "insync.replication.cli", *arguments],
        capture_output=True,
        text=True,
        input=text,
        timeout=60,
    )


@pytest.mark.slow
def test_a_topic_is_changed_and_deleted_by_commands(tmp_path: Path) -> None:
    with cluster(tmp_path, 1, *STEADY) as (node,):
        servers = ("--servers", node.endpoint)
        assert insync("topic", "create", "t", "--replication-factor", "1", *servers).returncode == 0
        assert insync("produce", "t", *servers, text="a\nb\nc\n").returncode == 0
        deleted = insync("topic", "delete-records", "t", "--offset", "0=2", *servers)
        assert deleted.stdout == "t-0 begins at offset 2\n"
        beyond = insync("topic", "delete-records", "t", "--offset", "0=9", *servers)
        assert beyond.returncode != 0
        assert "only committed records" in beyond.stderr
        assert "OUT_OF_RANGE: offset 9" in beyond.stderr and "auto_offset_reset" not in beyond.stderr
        missed = insync("consume", "t", "--offset", "1", "--timeout-ms", "3000", *servers)
        assert missed.returncode == 0
        assert "t-0: offset 1 is out of range, the log holds [2, 3); offsets 1 to 1 are gone" in missed.stderr
        left = ["consume", "t", "--from-beginning", *servers]
        with subprocess.Popen(
            [sys.executable, "-m", "insync.replication.cli", *left],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as reader:
            assert reader.stdout is not None and reader.stderr is not None
            reader.stdout.close()  # as `| head` does, whose user wants to hear nothing of it
            assert (reader.wait(30), reader.stderr.read()) == (1, b"")
        misspelt = insync("config", "set", "t", "retention_msec=5", *servers)
        assert misspelt.stderr.endswith(
            "unknown topic setting 'retention_msec': did you mean retention_ms?\n"
        )
        grown = insync("topic", "grow", "t", "--partitions", "3", "--json", *servers)
        assert json.loads(grown.stdout) == {"topic": "t", "partitions": 3}
        changed = insync("config", "set", "t", "retention_ms=-1", *servers)
        assert "retention_ms=-1\n" in changed.stdout
        shown = insync("config", "show", "t", "--json", *servers)
        assert json.loads(shown.stdout)["retention_ms"] == -1
        reset = insync("config", "set", "t", "--reset", "retention_ms", *servers)
        assert "retention_ms=604800000\n" in reset.stdout
        refused = insync("topic", "delete", "t", *servers)
        assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
        assert insync("topic", "delete", "t", "--yes", *servers).stdout == "deleted topic t\n"
        assert "no topics yet" in insync("topic", "list", *servers).stdout


@pytest.mark.parametrize("offset", ["0", "0=", "x=1", "0=1.5", "=3"])
def test_an_offset_to_delete_up_to_is_written_with_its_partition(
    offset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topic", "delete-records", "t", "--offset", offset, "-s", "tcp://127.0.0.1:1"]) == 2
    assert "PARTITION=OFFSET" in capsys.readouterr().err
