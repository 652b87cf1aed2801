"""`insync user`: passwords by prompt, file or pipe, never by an argument; and all that can be said wrongly."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from insync.replication import Admin, Node
from insync.replication.cli import main

from ..node.requests.test_users import settings


async def command(*arguments: str, given: str = "") -> tuple[int, str, str]:
    """Status, standard output and error of one command line in a process of its own."""
    done = await trio.run_process(
        [sys.executable, "-m", "insync", "user", *arguments],
        stdin=given.encode(),
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.slow
async def test_a_users_life_by_commands(tmp_path: Path) -> None:
    async with Node(settings(tmp_path)) as node, Admin(node.endpoints) as admin:
        at = ("--servers", node.endpoints[0])
        file = tmp_path / "password"
        file.write_text("by file\r\nand more\n")
        rules = ("--allow", "consume", "--allow", "produce")
        assert await command("list", *at) == (0, "no users yet; see: insync user create --help\n", "")
        made = await command("create", "etl", *rules, "--password-file", str(file), *at)
        assert made == (0, "created user etl\n", "")
        assert (await admin.verify_user("etl", "by file")).operations == {"produce", "consume"}
        status, _, told = await command("create", "etl", *at, given="x\n")
        assert status == 1 and "'etl' exists already" in told
        made = await command("create", "ops", "--mechanism", "SCRAM-SHA-512", *at, given="by pipe\n")
        assert made == (0, "created user ops\n", "")
        assert await admin.verify_user("ops", "by pipe")
        assert (await command("list", *at))[1].splitlines() == [
            "etl: may produce+consume; logs in by SCRAM-SHA-256 (8192), SCRAM-SHA-512 (8192)",
            "ops: may what the nodes' rules allow; logs in by SCRAM-SHA-512 (8192)",
        ]
        listed = json.loads((await command("list", "--json", *at))[1])
        assert listed[1] == {"name": "ops", "allow": None, "mechanisms": {"SCRAM-SHA-512": 8192}}
        assert (await command("alter", "etl", "--password-file", "-", *at, given="new\n"))[0] == 0
        assert await admin.verify_user("etl", "new") and not await admin.verify_user("etl", "by file")
        assert (await command("alter", "etl", "--allow-any", *at))[1] == "changed user etl\n"
        assert (await admin.list_users())[0].allow is None
        assert (await command("delete", "etl", *at))[1] == "deleted user etl\n"
        status, _, told = await command("delete", "etl", *at)
        assert status == 1 and "there is no user 'etl'" in told
        assert [each.name for each in await admin.list_users()] == ["ops"]


@pytest.mark.slow
@pytest.mark.parametrize(("second", "status"), [("typed", 0), ("other", 2)])
async def test_a_password_is_typed_twice_and_not_shown(tmp_path: Path, second: str, status: int) -> None:
    async with Node(settings(tmp_path)) as node, Admin(node.endpoints) as admin:
        master, slave = pty.openpty()
        process = subprocess.Popen(  # noqa: ASYNC220 - trio opens none whose output is a terminal
            [sys.executable, "-m", "insync", "user", "create", "etl", "--servers", node.endpoints[0]],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        try:
            shown = await trio.to_thread.run_sync(_type, master, [b"typed", second.encode()])
            assert await trio.to_thread.run_sync(process.wait, 20) == status
        finally:
            process.kill()
            process.wait()
            os.close(master)
        assert b"typed" not in shown
        assert bool(await admin.verify_user("etl", "typed")) == (status == 0)
        if status:
            assert b"the two passwords differ: nothing was changed" in shown


def _type(master: int, passwords: list[bytes]) -> bytes:
    """Answer each question, and give all that was shown until the end."""
    shown, asked = b"", iter([b"password for etl: ", b"again: "])
    waiting, rest = next(asked), iter(passwords)
    while True:
        try:
            more = os.read(master, 4096)
        except OSError:  # the other end is closed
            return shown
        if not more:
            return shown
        shown += more
        if waiting and shown.endswith(waiting):
            os.write(master, next(rest) + b"\n")
            waiting = next(asked, b"")


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        (["create", "etl", "--servers", "tcp://127.0.0.1:1"], "\n", "standard input has no password"),
        (["create", "etl", "--servers", "tcp://127.0.0.1:1"], "", "or name a file with --password-file"),
        (
            ["create", "etl", "--password-file", "/nowhere", "-s", "tcp://127.0.0.1:1"],
            "",
            "/nowhere: No such file",
        ),
        (["create", "etl", "--allow", "fly", "-s", "tcp://127.0.0.1:1"], "x", "fly"),
        (["alter", "etl", "-s", "tcp://127.0.0.1:1"], "", "say what to change: insync user alter etl"),
        (["alter", "etl", "--allow", "admin", "--allow-any", "-s", "tcp://127.0.0.1:1"], "", "not both"),
    ],
)
def test_what_is_said_wrongly_is_refused_before_anything_is_asked(
    arguments: list[str],
    given: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    assert main(["user", *arguments]) in (1, 2)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("by_pipe", [False, True])
def test_what_is_no_text_is_no_password(
    tmp_path: Path, by_pipe: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, given = tmp_path / "password", b"p\xe4ssword\n"
    file.write_bytes(given)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))
    assert main(["user", "create", "etl", "--password-file", "-" if by_pipe else str(file), "-s", "h:1"]) == 2
    where = "standard input" if by_pipe else str(file)
    assert capsys.readouterr().err == f"insync: {where} is not UTF-8: write the password as UTF-8 text\n"


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
async def test_a_password_that_is_too_long_is_refused_and_not_cut(tmp_path: Path, end: str) -> None:
    async with Node(settings(tmp_path)) as node, Admin(node.endpoints) as admin:
        at = ("--servers", node.endpoints[0])
        status, _, told = await command("create", "long", *at, given="x" * 1025 + end)
        assert status == 1 and "1 to 1024 bytes" in told
        assert await admin.list_users() == []
        assert (await command("create", "etl", *at, given="x" * 1024 + end))[0] == 0
        assert await admin.verify_user("etl", "x" * 1024)
