"""`insync pipeline`: every command of docs/pipeline.md runs, and what cannot be is one line."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from insync.plugins.spark.pipeline.command import _as_ours
from insync.replication import BlockingAdmin
from insync.replication.cli import main

from . import data_folders as data

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[4] / "docs" / "pipeline.md").read_text()
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.strip().splitlines()
]
[EXAMPLE] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TOPIC = data.TOPIC


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three data folders, in which the test runs."""
    data.three(tmp_path / "data", {0: data.batches(20)})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(line: str) -> int:
    program, *arguments = shlex.split(line)
    assert program == "insync"
    return main(arguments)


def test_the_page_s_commands(
    spark: SparkSession,
    admin: BlockingAdmin,
    servers: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("INSYNC_SERVERS", servers)
    for topic in (TOPIC, f"{TOPIC}-once"):
        admin.create_topic(topic, 2, 3)
    (here / "orders.csv").write_text("id,customer\n1,ann\n2,bob\n1,ann\n")
    (here / "log.txt").write_text("started\nstopped\n")
    loads = [line for line in COMMANDS if " load " in line]
    said = {}
    for line in loads + [line for line in COMMANDS if line not in loads]:
        assert run(line) == 0, (line, capfd.readouterr())
        said[line] = capfd.readouterr().out.splitlines()[-1]
    last = [said[line] for line in COMMANDS]
    assert last[0].endswith("200 offsets compared: 0 defects, 0 differences")
    assert last[1].startswith("5 records in ")
    assert last[2].startswith("200 records in ")
    assert last[3:5] == [
        "3 records, 90 bytes written to orders",
        "2 records, 14 bytes written to orders",
    ]
    assert last[5] == (
        "5 records, 2 of them without json:id: 1 duplicate, 4 kept; written to topic orders-once"
    )
    assert last[6] == "200 records, 200 of them without sequence: 0 duplicates, 200 kept"
    assert last[7].startswith("topic orders: 5 records, 104 bytes of keys and values, 3 keys; 0 records out")
    assert "<svg" in (here / "orders.html").read_text()
    assert (here / "orders.png").stat().st_size > 1000


def test_the_page_s_example(spark: SparkSession, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(EXAMPLE, "docs/pipeline.md", "exec"), {})
    assert not capsys.readouterr().out
    data.change_record(here / "data" / "node-2", 123)
    with pytest.raises(AssertionError):
        exec(compile(EXAMPLE, "docs/pipeline.md", "exec"), {})
    assert capsys.readouterr().out == "orders 0 123 ('node 2',)\n"


def test_an_audit_that_finds_something(
    spark: SparkSession, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data.flip_bit(here / "data" / "node-3", 57)
    line = "insync pipeline audit data/node-1 data/node-2 data/node-3"
    assert run(line) == 1
    defect, difference, summary = capfd.readouterr().out.splitlines()
    assert defect.startswith("node 3, orders-0, offset 50: CRC-32C does not match (")
    assert difference.startswith("orders-0, offset 50: replicas differ: a batch is missing or unreadable (")
    assert summary.endswith("200 offsets compared: 1 defect, 1 difference")
    assert run(f"{line} --json") == 1
    told = json.loads(capfd.readouterr().out)
    assert (told["ok"], told["defects"][0]["offset"], told["differences"][0]["offset"]) == (False, 50, 50)


@pytest.mark.jvm
@pytest.mark.parametrize(
    ("line", "status", "why"),
    [
        ("audit nowhere", 1, "nowhere is not a node's data folder"),
        ("audit data/node-1 --topic payments", 1, "there is no partition of payments in"),
        ("export orders out", 2, "no servers to ask"),
        ("export payments out --data-dir data/node-1", 1, "there is no partition of payments in"),
        ("load orders", 2, "no files to load"),
        ("load orders f.txt --servers tcp://127.0.0.1:9 --option sep", 2, "give name=value"),
        ("stats orders --servers tcp://127.0.0.1:9", 1, "127.0.0.1:9"),
        ("dedupe orders --data-dir data/node-1 --by colour", 1, "'colour' does not distinguish records"),
        ("stats orders --data-dir data/node-1 --top 0", 2, "--top"),
        ("stats orders --data-dir data/node-1 --plot nowhere/a.png", 1, "there is no folder"),
        ("stats orders --data-dir data/node-1 --html data", 1, "data cannot be written: it is a folder"),
        ("load orders f.txt --servers tcp://127.0.0.1:9", 1, "f.txt does not exist"),
        ("load orders data --value a --servers tcp://127.0.0.1:9", 1, "lines are written as they are"),
        ("load orders data --servers tcp://127.0.0.1:9", 1, "no node could be reached"),
        ("export orders data/node-1/meta.properties --data-dir data/node-1", 1, "cannot be written to"),
        ("dedupe orders --data-dir data/node-1 --to-parquet data", 1, "data exists already"),
        ("dedupe orders --data-dir data/node-1 --to-parquet left", 1, "left over from an unfinished run"),
        ("dedupe orders --data-dir data/node-1 --to-topic once", 1, "are not known: give their servers"),
    ],
)
def test_what_cannot_be_is_one_line_before_spark_starts(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    line: str,
    status: int,
    why: str,
) -> None:
    (here / "left" / "_temporary").mkdir(parents=True)

    def started(master: str) -> NoReturn:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("insync.plugins.spark.pipeline.command._spark", started)
    assert run(f"insync pipeline {line}") == status
    out, err = capfd.readouterr()
    assert out == ""
    [said] = [each for each in err.splitlines() if each.startswith("insync:")]
    assert why in said
    assert "Traceback" not in err


def test_damage_in_an_export_is_one_line(
    spark: SparkSession, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data.flip_bit(here / "data" / "node-1", 57)
    assert run("insync pipeline export orders out --data-dir data/node-1") == 1
    err = capfd.readouterr().err
    [said] = [each for each in err.splitlines() if each.startswith("insync:")]
    assert "offset 50: CRC-32C does not match; insync pipeline audit says what else" in said


def test_what_a_task_meets_is_told_though_it_is_not_ours(spark: SparkSession) -> None:
    """Spark's report begins with a line that says nothing."""

    def broken(batches: object) -> NoReturn:
        raise OverflowError("planted")

    with pytest.raises(Exception) as caught:
        spark.range(1).mapInArrow(broken, "id LONG").collect()
    assert str(_as_ours(caught.value)) == "Spark failed: OverflowError: planted"


def test_without_java(here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("JAVA_HOME", str(here))
    assert run("insync pipeline audit data/node-1") == 1
    said = capfd.readouterr().err
    assert len(said.splitlines()) == 1 and "install Java 17" in said


def test_without_what_the_extra_brings(here: Path) -> None:
    """The command, the demo's step and the package itself can be imported; what is missing is one line."""
    code = (
        "import sys\n"
        "for name in ('pyspark', 'pyarrow', 'pandas', 'numpy', 'matplotlib'): sys.modules[name] = None\n"
        "from insync.plugins.spark.pipeline.demo import SparkStep\n"
        "from insync.replication.cli import main\n"
        "sys.exit(main(['pipeline', 'audit', 'data/node-1']))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert len(ended.stderr.splitlines()) == 1
    assert "pip install 'insync[spark]'" in ended.stderr
