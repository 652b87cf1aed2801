"""Wrong arguments, for every command: one line that says what is wrong, a status, and no trace of the inside."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App

from insync.replication.cli import app as app_module
from insync.replication.cli import main
from insync.replication.cli.app import build_app

NOBODY = "tcp://127.0.0.1:1"


def leaves(app: App, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command that does something."""
    names = [name for name in app if not name.startswith("-")]
    if not names:
        yield path
    for name in names:
        yield from leaves(app[name], (*path, name))


APP = build_app()
COMMANDS = sorted(path for name in app_module._COMMANDS for path in leaves(APP[name], (name,)))

ARGUMENTS: dict[str, str] = {
    "bench consume": "t",
    "bench produce": "t",
    "config quota": "client_id/etl producer_byte_rate=5",
    "config quotas": "",
    "config set": "t retention_ms=5",
    "config show": "t",
    "consume": "t",
    "drain": "1",
    "elect": "t",
    "group delete": "g --yes",
    "group delete-offsets": "g --topic t --yes",
    "group describe": "g",
    "group list": "",
    "group reset-offsets": "g --to-earliest --yes",
    "health": "",
    "log-dirs": "",
    "produce": "t",
    "reassign": "t --to-nodes 1",
    "status": "",
    "top": "--once",
    "topic create": "t",
    "topic delete": "t --yes",
    "topic delete-records": "t --offset 0=1",
    "topic describe": "t",
    "topic grow": "t --partitions 2",
    "topic list": "",
    "transaction abort": "t 0 --start-offset 0",
    "transaction describe": "etl-1",
    "transaction find-hanging": "",
    "transaction list": "",
    "user alter": "etl --allow-any",
    "user create": f"etl --password-file {__file__}",
    "user delete": "etl",
    "user list": "",
}
"""What each command that talks to a cluster needs, beside the cluster."""

LOCAL = {
    "adopt": "x --check",
    "demo": "",
    "log dump": "x",
    "log recover": "x",
    "log verify": "x",
    "node": "",
    "plugins": "",
    "simulate": "",
    "store ddl": "sqlite:///x",
    "store evidence": "x",
    "store repair": "x --store sqlite://x",
    "stray delete": "x",
    "stray list": "x",
    "stray restore": "x",
    "up": "",
}


@pytest.fixture(autouse=True)
def no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INSYNC_SERVERS", "INSYNC_TRACEBACK", "INSYNC_NODE_STORE"):
        monkeypatch.delenv(name, raising=False)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The status and the one line on standard error; nothing on the other stream."""
    status = main(list(arguments))
    told = capsys.readouterr()
    assert status in (1, 2), told
    assert told.out == ""
    lines = told.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("insync: "), told.err
    assert "Traceback" not in lines[0] and "unexpected" not in lines[0], lines[0]
    return status, lines[0]


def test_every_command_is_looked_at_here() -> None:
    assert {" ".join(command) for command in COMMANDS} == ARGUMENTS.keys() | LOCAL.keys()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_option_that_does_not_exist_is_named_with_where_to_look(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    needed = (ARGUMENTS | LOCAL)[" ".join(command)]
    status, line = refused(capsys, *command, *needed.split(), "--frobnicate")
    assert status == 2 and "--frobnicate" in line
    assert line.endswith(f"(see: insync {' '.join(command)} --help)")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_tells_what_it_is_for_with_an_example(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Usage: insync {' '.join(command)}" in shown
    assert f"insync {' '.join(command)}" in shown.partition("Example")[2]


@pytest.mark.parametrize(
    ("command", "servers"),
    list(itertools.product(ARGUMENTS, [None, " , ", "smoke://x", "tcp://", "tcp://127.0.0.1:99999", NOBODY])),
)
def test_servers_that_are_none_are_told_of(
    command: str, servers: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    given = () if servers is None else ("--servers", servers)
    status, line = refused(capsys, *command.split(), *ARGUMENTS[command].split(), *given)
    if servers is None or not servers.strip(" ,"):
        assert status == 2 and "give --servers" in line
    elif servers != NOBODY:
        assert status == 2 and f"bootstrap_servers: {servers!r} is not an address" in line
    else:
        assert status == 1 and "no node could be reached" in line and servers in line


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("topic create", "NAME"),
        ("topic create t --partitions x", "--partitions"),
        ("topic create t --config size", "name=value"),
        ("topic create t --replication-factor -1", "--replication-factor"),
        ("topic create t --assignment 1,2 --partitions 3", "leave --partitions out"),
        ("topic create t --assignment 1,2 --replication-factor 3", "leave it out"),
        ("topic create t --assignment 1,2 --assignment 3 --replication-factor 2", "--assignment 3"),
        ("topic delete t", "--yes"),
        ("topic grow t", "--partitions"),
        ("topic grow t --partitions 0", "--partitions"),
        ("topic delete-records t", "--offset"),
        ("topic delete-records t --offset 0", "PARTITION=OFFSET"),
        ("topic delete-records t --offset 0=--1", "PARTITION=OFFSET"),
        ("config set t", "say what to set"),
        ("config set t size", "name=value"),
        ("config quota client_id/etl", "say what to limit"),
        ("config quota client_id/etl producer_byte_rate=fast", "whole number"),
        ("elect --partition 0", "without a topic"),
        ("elect --unclean", "name the topic"),
        ("elect t --partition -1", "--partition"),
        ("reassign t --cancel --to-nodes 1", "choose one"),
        ("reassign --to-nodes 1", "name the topic"),
        ("reassign t --replicas 0", "PARTITION=NODES"),
        ("reassign t --replicas 0=a", "numbers"),
        ("reassign t --to-nodes 1 --throttle 0", "--throttle"),
        ("produce t --acks 2", "--acks"),
        ("produce t --partition -1", "--partition"),
        ("consume t --offset -1", "--offset"),
        ("consume t --partition -1", "--partition"),
        ("consume t --max-records -1", "--max-records"),
        ("consume t --from-beginning --offset 1", "exclude each other"),
        ("health --node one", "--node"),
        ("health --wait -1", "--wait"),
        ("top --interval 0", "--interval"),
        ("bench produce t --records 0", "--records"),
        ("bench produce t --rate 0", "--rate"),
        ("bench produce t --compression-type zip", "Choose from"),
        ("bench consume t --follow", "--seconds or --records"),
        ("node --node-id one", "--node-id"),
        ("node --log-format xml", "--log-format"),
        ("store", "--path"),
        ("store --path x --allow client/etl=produce", "only the operation store"),
        ("up --nodes 0", "--nodes"),
        ("up --port 99999", "--port"),
        ("up --port 1 --transport shm", "no port"),
        ("demo --records 1", "--records"),
        ("log dump", "PATH"),
        ("simulate --seeds x", "0:5000"),
        ("simulate --seeds 5:1", "empty"),
        ("simulate --jobs -1", "--jobs"),
        ("topic frobnicate", "frobnicate"),
        ("frobnicate", "Available commands"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(
    command: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, line = refused(capsys, *command.split())
    assert status == 2 and said in line


NODE = "node --node-id 1 --store memory://misuse --data-dir {folder}/n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("produce t --file {folder}/none --servers tcp://127.0.0.1:1", "none: No such file"),
        ("log dump {folder}/none", "does not exist"),
        ("log verify {folder}/none", "is not a folder"),
        ("log recover {folder}/none", "is not a folder"),
        ("store --path {folder}/none/meta.db", "create it first"),
        ("store ddl sqlite://{folder}/meta.db", "is made without statements"),
        ("store --path {folder}/meta.db --listen smoke://hill", "no transport for smoke://"),
        ("store --path {folder}/meta.db --listen nonsense", "cannot be served at nonsense"),
        ("store --path {folder}/meta.db --listen tcp://127.0.0.1:99999", "a port from 0 to 65535"),
        ("store --path {folder}/meta.db --listen tcp://0.0.0.0:0", "set a secret"),
        ("node", "node_id, store: not set"),
        ("node --config {folder}/none", "cannot be read"),
        ("node --node-id 1 --store memory://misuse", "data_dir"),
        ("node --node-id 1 --store nonsense --data-dir {folder}/n", "not a store URL"),
        (f"{NODE} --set nonsense", "write name=value"),
        (f"{NODE} --set sesion_timeout_ms=5", "did you mean session_timeout_ms?"),
        (f"{NODE} --set session_timeout_ms=soon", "session_timeout_ms='soon': use a whole number"),
        (f"{NODE} --set replica_lag_time_max_ms=1.5", "use a whole number"),
        (f"{NODE} --serve-store nonsense", "cannot be served at nonsense"),
        (f"{NODE} --serve-store tcp://127.0.0.1:99999", "a port from 0 to 65535"),
        (f"{NODE} --set auto_leader_rebalance_enable=maybe", "write true or false"),
        (f"{NODE} --set log_format=xml", "use text or json"),
        (f"{NODE} --set quota_producer_default=0", "use a number above 0"),
        (f"{NODE} --set leader_replication_throttled_rate=0", "use a number above 0"),
        (f"{NODE} --metrics-port 99999", "use a port from 1 to 65535"),
        (f"{NODE} --metrics-port 0 --set metrics_host=nowhere.invalid", "give another metrics_port"),
        (f"{NODE} --allow everybody", "WHO=OPERATION"),
        (f"{NODE} --secret-file {{folder}}/none", "cannot be read"),
        (f"{NODE} --tls-key {{folder}}/none", "tls_certificate"),
        (
            f"{NODE} --listen tls://127.0.0.1:0 --tls-certificate {{folder}}/c --tls-key {{folder}}/k "
            "--tls-authorities {folder}/a",
            "No such file",
        ),
        (f"{NODE} --listen nonsense", "not an address"),
        (f"{NODE} --listen tcp://127.0.0.1:99999", "a port from 0 to 65535"),
        (f"{NODE} --listen tcp://0.0.0.0:0", "set a secret"),
    ],
)
def test_what_cannot_work_names_the_thing_and_the_remedy(
    command: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, line = refused(capsys, *(each.format(folder=tmp_path) for each in command.split()))
    assert status == 1 and said in line


def test_a_server_that_is_no_address_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    _, line = refused(capsys, "status", "--servers", "tcp://hill")
    assert line.count("tcp://hill") == 1 and "expected host:port" in line
