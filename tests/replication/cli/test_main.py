"""The command line itself: help, usage errors, one line for each failure, plugins, quick start."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from insync.replication import errors
from insync.replication.cli import app as app_module
from insync.replication.cli import main
from insync.replication.cli.errors import CommandError, UsageError, explain, one_line
from insync.storage import StorageError
from insync.transport import TransportError

COMMANDS = ("demo", "up", "node", "topic", "produce", "consume", "status")


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)
    assert "Kill a leader under load" in shown


@pytest.mark.parametrize(
    "command",
    [
        *([name] for name in COMMANDS if name != "topic"),
        *(["topic", name] for name in ("create", "list", "describe")),
    ],
)
def test_each_command_explains_itself_by_an_example(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Example: insync {' '.join(command)}" in shown or "| insync" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["frobnicate"], "frobnicate"),
        (["demo", "--nodes", "2"], "--nodes"),
        (["demo", "--plant", "nonsense"], "nonsense"),
        (["topic", "create", "t", "--partitions", "0"], "--partitions"),
        (["consume", "t", "--from-beginning", "--offset", "3"], "--from-beginning and --offset"),
        (["topic", "create", "t", "--config", "oops", "-s", "127.0.0.1:1"], "name=value"),
        (["up", "--port", "70000"], "--port"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("insync: ") and err.count("\n") == 1 and said in err


@pytest.mark.parametrize("command", [["topic", "list"], ["status"], ["consume", "t"], ["produce", "t"]])
def test_no_servers_is_said_with_the_remedy(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INSYNC_SERVERS", raising=False)
    assert main(command) == 2
    assert "give --servers tcp://host:port or set INSYNC_SERVERS" in capsys.readouterr().err


def test_a_missing_input_is_named_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--input", str(tmp_path / "nowhere")]) == 1
    err = capsys.readouterr().err
    assert err == (
        f"insync: input {tmp_path}/nowhere: no such file or folder; "
        "give --input a text file or a folder of text files\n"
    )


def test_an_input_of_a_few_lines_is_refused_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "haiku").write_text("one\ntwo\nthree\n")
    assert main(["demo", "--input", str(tmp_path / "haiku")]) == 2
    assert "haiku has 3 lines" in (said := capsys.readouterr().err) and "--records 10 or more" in said


def test_a_folder_to_keep_must_be_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "something").touch()
    assert main(["demo", "--keep", str(tmp_path)]) == 2
    assert f"--keep {tmp_path}: it exists and is not an empty folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failure", "line", "status"),
    [
        (CommandError("no\n  luck"), "no luck", 1),
        (UsageError("no way"), "no way", 2),
        (errors.ReplicationError("not replicated"), "not replicated", 1),
        (StorageError("disk gone"), "disk gone", 1),
        (KeyboardInterrupt(), "interrupted", 130),
        (FileNotFoundError(2, "No such file or directory", "/x"), "/x: No such file or directory", 1),
        (ExceptionGroup("g", [ValueError("bug"), CommandError("ours")]), "ours", 1),
        (BaseExceptionGroup("g", [CommandError("ours"), KeyboardInterrupt()]), "interrupted", 130),
        (ExceptionGroup("g", [ExceptionGroup("h", [CommandError("deep")])]), "deep", 1),
    ],
)
def test_every_failure_is_one_line(failure: BaseException, line: str, status: int) -> None:
    assert explain(failure) == (line, status)


def test_transport_errors_speak_for_themselves() -> None:
    assert issubclass(TransportError, Exception)
    message, status = explain(ZeroDivisionError("bug"))
    assert status == 1
    assert "unexpected ZeroDivisionError: bug" in message and "INSYNC_TRACEBACK=1" in message
    assert one_line(" a\n\tb ") == "a b"


def test_a_traceback_is_shown_on_request_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("INSYNC_TRACEBACK", "1")
    assert main(["demo", "--input", str(tmp_path / "nowhere")]) == 1
    assert "Traceback" in capsys.readouterr().err


def plugin_entry(name: str) -> EntryPoint:
    return EntryPoint(name, f"{__name__}:greet", app_module.COMMANDS_GROUP)


def greet(name: str, /) -> int:
    """Greet somebody."""
    print(f"hello {name}")
    return 7


def test_a_plugin_adds_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def entries(*, group: str) -> list[EntryPoint]:
        return [plugin_entry("greet")] if group == app_module.COMMANDS_GROUP else []

    monkeypatch.setattr(app_module, "entry_points", entries)
    assert main(["greet", "world"]) == 7
    assert capsys.readouterr().out == "hello world\n"
    assert main(["--help"]) == 0
    assert "Greet somebody. (plugin)" in capsys.readouterr().out


def test_a_plugin_that_is_broken_does_not_break_the_overview(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = EntryPoint("broken", f"{__name__}:nothing_there", app_module.COMMANDS_GROUP)
    monkeypatch.setattr(app_module, "entry_points", lambda **_: [broken])
    assert main(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "broken" in shown and "Cannot be loaded" in shown


def test_a_plugin_cannot_take_our_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def entries(**_: Any) -> list[EntryPoint]:
        return [plugin_entry("demo")]

    monkeypatch.setattr(app_module, "entry_points", entries)
    assert main(["status"]) == 2
    assert "insync's own" in capsys.readouterr().err


@pytest.mark.parametrize(("other", "status"), [("another", 2), ("greet", 0)])
def test_two_plugins_cannot_offer_one_command(
    other: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offers = [
        EntryPoint("greet", f"{__name__}:{name}", app_module.COMMANDS_GROUP) for name in ("greet", other)
    ]
    monkeypatch.setattr(app_module, "entry_points", lambda **_: offers)
    assert main(["topic", "--help"]) == status
    said = "several distributions offer the command 'greet'"
    assert (said in capsys.readouterr().err) == (status == 2)


def test_help_loads_neither_trio_nor_the_node() -> None:
    code = (
        "import sys; from insync.replication.cli import main; main(['--help']); "
        "print([m for m in sys.modules if m in ('trio', 'rich.live', 'insync.replication.node')], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
