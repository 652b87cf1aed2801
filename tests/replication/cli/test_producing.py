"""`insync produce` with headers, times and codecs; `insync consume` from a time or from the last records on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from insync.replication.cli import main
from insync.replication.client import BlockingConsumer
from tests.processes import STEADY, cluster

from .test_topics import insync

BEGIN = int(time.time()) * 1000 - 60_000
"""Recent enough for retention."""


def iso(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()


def lines(count: int, *arguments: str) -> list[dict[str, Any]]:
    """What is read until `count` records have come. 0: until none has come for a while."""
    enough = ("--max-records", str(count)) if count else ("--timeout-ms", "1000")
    done = insync("consume", *arguments, "--json", *enough)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_records_are_written_and_read_as_asked_for(tmp_path: Path) -> None:
    with cluster(tmp_path, 1, *STEADY) as (node,):
        servers = ("--servers", node.endpoint)
        made = insync("topic", "create", "t", "--partitions", "2", "--replication-factor", "1", *servers)
        assert made.returncode == 0, made.stderr
        plain = ("produce", "t", "--partition", "0", *servers)
        old = [*plain, "--timestamp", str(BEGIN), "--compression", "lz4"]
        assert insync(*old, text="a\nb\nc\n").returncode == 0
        headed = ("--header", "source=test", "--header", "empty=", "--key-separator", ":")
        later = ("--timestamp", iso(BEGIN + 1000), *headed)
        assert insync(*plain, *later, text="k:d\ne\n").returncode == 0
        found = lines(5, "t", "--from-beginning", *servers)
        assert [each["value"] for each in found] == ["a", "b", "c", "d", "e"]
        assert [each["timestamp_ms"] for each in found] == [BEGIN] * 3 + [BEGIN + 1000] * 2
        assert [each["key"] for each in found] == [None, None, None, "k", None]
        with BlockingConsumer(node.endpoint) as consumer:
            consumer.assign([("t", 0)])
            consumer.seek(("t", 0), 0)
            (first, second) = consumer.poll_batches(5000)[0].batches
            assert (first.compression, second.compression) == ("lz4", "none")
            consumer.seek(("t", 0), 3)
            assert consumer.poll(5000)[0].headers == (("source", b"test"), ("empty", b""))
        since = lines(2, "t", "--from-time", str(BEGIN + 1), *servers)
        assert [each["value"] for each in since] == ["d", "e"]
        assert lines(0, "t", "--from-time", iso(BEGIN + 2000), *servers) == []
        assert [each["value"] for each in lines(2, "t", "--tail", "2", *servers)] == ["d", "e"]
        assert len(lines(5, "t", "--tail", "100", *servers)) == 5
        assert lines(0, "t", "--tail", "0", *servers) == []
        large = insync(*plain, "--max-request-size", "1000", text="x" * 2000 + "\n")
        assert large.returncode == 1 and "max_request_size=1000" in large.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("produce", "t", "--header", "nameless"), "--header 'nameless' is not a header; give NAME=VALUE"),
        (("produce", "t", "--header", "=x"), "NAME=VALUE"),
        (("produce", "t", "--timestamp", "noon"), "--timestamp 'noon' is not a time"),
        (("produce", "t", "--compression", "rar"), "rar"),
        (("consume", "t", "--from-time", "yesterday"), "--from-time 'yesterday' is not a time"),
        (("consume", "t", "--from-time", "1900-01-01"), "is not a time"),
        (("consume", "t", "--tail", "-1"), "--tail"),
        (("consume", "t", "--tail", "1", "--offset", "2"), "--offset and --tail exclude each other"),
        (
            ("consume", "t", "--from-beginning", "--from-time", "1"),
            "--from-beginning and --from-time exclude",
        ),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_asked(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--servers", "tcp://127.0.0.1:1"]) == 2
    assert said in capsys.readouterr().err


INTERRUPTED = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == "cyclopts":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from insync.replication.cli import main
sys.exit(main(["status"]))
"""


def test_an_interrupt_while_the_command_line_is_imported_leaves_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
