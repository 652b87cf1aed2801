"""Who gets to see the dashboard: names, origins, the password, and what the command refuses."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nicegui")

from insync.plugins.dashboard import _login, _sessions
from insync.plugins.dashboard._guard import COOKIE, SESSION, Guard, names
from insync.plugins.dashboard._login import PasswordDoor, UserDoor
from insync.plugins.dashboard._sessions import MOST_SESSIONS
from insync.replication.cli import main


async def _behind(scope: Any, receive: Any, send: Any) -> None:
    """What the guard stands before."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"inside"})


def ask(
    guard: Guard,
    path: str = "/",
    *,
    method: str = "GET",
    kind: str = "http",
    body: bytes = b"",
    **headers: str,
) -> tuple[int | str, dict[str, str], bytes]:
    """The status (of a WebSocket: accept or close), the headers and the body of an answer."""
    sent: list[MutableMapping[str, Any]] = []
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": kind, "path": path, "method": method, "headers": given}

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    asyncio.run(guard(scope, receive, send))
    if kind == "websocket":
        return sent[0]["type"].partition(".")[2], {}, b""
    told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], told, sent[1]["body"]


HOST = "127.0.0.1:8090"


def guard(password: str = "") -> Guard:
    door = PasswordDoor(password) if password else None
    return Guard(_behind, names("127.0.0.1", 8090, ("dash.example",)), door)


def test_an_ipv6_address_is_called_in_brackets() -> None:
    assert "[2001:db8::1]:8090" in names("2001:db8::1", 8090)
    assert "2001:db8::1:8090" not in names("2001:db8::1", 8090)


@pytest.mark.parametrize("host", [HOST, "localhost:8090", "[::1]:8090", "dash.example:8090"])
def test_it_is_called_by_its_own_names(host: str) -> None:
    status, headers, body = ask(guard(), host=host)
    assert (status, body) == (200, b"inside")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert ask(guard(), kind="websocket", host=host, origin=f"http://{host}")[0] == "accept"


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({"host": "evil.example:8090"}, "http"),
        ({"host": "127.0.0.1:80"}, "http"),
        ({}, "http"),
        ({"host": HOST, "origin": "http://evil.example"}, "http"),
        ({"host": HOST, "origin": "null"}, "http"),
        ({"host": HOST, "origin": "http://127.0.0.1:9999"}, "websocket"),
        ({"host": HOST}, "websocket"),
        ({"host": "evil.example:8090", "origin": "http://evil.example:8090"}, "websocket"),
    ],
)
def test_pages_of_others_are_refused_before_anything_is_read(headers: dict[str, str], kind: str) -> None:
    status, _, body = ask(guard(), kind=kind, **headers)
    assert status in (403, "close")
    assert b"inside" not in body


def test_a_form_of_another_site_is_refused_and_a_link_from_there_is_not() -> None:
    assert ask(guard(), method="POST", host=HOST, sec_fetch_site="cross-site")[0] == 403
    assert ask(guard(), host=HOST, sec_fetch_site="cross-site")[0] == 200


def test_one_has_to_know_the_password_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sessions, "WRONG_SECONDS", 0.0)
    one = guard("correct horse")
    for path in ("/", "/do", "/_nicegui/x", "/login"):
        status, _, body = ask(one, path, host=HOST)
        assert status == 401 and b"inside" not in body and b'type="password"' in body
    assert ask(one, kind="websocket", host=HOST, origin=f"http://{HOST}")[0] == "close"
    assert ask(one, host=HOST, cookie=f"{COOKIE}=guess")[0] == 401
    assert ask(one, host=HOST, cookie="\x00=;;;")[0] == 401
    wrong = ask(one, "/login", method="POST", body=b"password=correct+hors", host=HOST)
    assert wrong[0] == 401 and b"Wrong password" in wrong[2]
    assert (
        ask(one, "/login", method="POST", body=b"password=correct+horse", host=HOST, origin="http://x")[0]
        == 403
    )
    status, headers, _ = ask(one, "/login", method="POST", body=b"password=correct+horse", host=HOST)
    assert status == 303
    assert "HttpOnly" in headers["set-cookie"] and "SameSite=Strict" in headers["set-cookie"]
    cookie = headers["set-cookie"].partition(";")[0]
    assert ask(one, host=HOST, cookie=cookie)[2] == b"inside"
    assert ask(one, kind="websocket", host=HOST, origin=f"http://{HOST}", cookie=cookie)[0] == "accept"
    assert ask(one, SESSION, host=HOST, cookie=cookie)[0] == 200
    left = ask(one, "/logout", method="POST", host=HOST, cookie=cookie)
    assert left[0] == 303 and ask(one, host=HOST, cookie=cookie)[0] == 401, "one has logged out"
    assert ask(one, SESSION, host=HOST, cookie=cookie)[0] == 401
    for _ in range(MOST_SESSIONS + 5):
        ask(one, "/login", method="POST", body=b"password=correct+horse", host=HOST)
    assert len(one.sessions) == MOST_SESSIONS
    assert ask(one, host=HOST, cookie=cookie)[0] == 401


def test_a_session_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    one = guard("correct horse")
    told = ask(one, "/login", method="POST", body=b"password=correct+horse", host=HOST)[1]["set-cookie"]
    cookie = told.partition(";")[0]
    assert ask(one, host=HOST, cookie=cookie)[0] == 200
    monkeypatch.setattr(_login, "SESSION_SECONDS", -1.0)
    assert ask(one, host=HOST, cookie=cookie)[0] == 401
    assert len(one.sessions) == 0


def test_nobody_logs_in_while_the_cluster_is_silent_and_names_are_shown_as_text() -> None:
    one = Guard(_behind, names("127.0.0.1", 8090, ()), UserDoor(lambda: None))
    status, _, body = ask(one, host=HOST)
    assert status == 401 and b'name="name"' in body
    status, _, body = ask(one, "/login", method="POST", body=b"name=%3Cb%3E&password=x", host=HOST)
    assert (status, b"does not answer" in body, b"<b>" in body) == (401, True, False)


def test_the_command_says_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INSYNC_SERVERS", raising=False)

    def refused(*options: str) -> str:
        assert main(["dashboard", *options]) == 2
        return capsys.readouterr().err

    assert "no servers to ask" in refused()
    short = tmp_path / "password"
    short.write_text("short\n")
    assert "use at least 8" in refused("--servers", "tcp://h:1", "--password-file", str(short))
    short.write_bytes(b"p\xe4ssword\n")
    assert f"{short} is not UTF-8" in refused("--servers", "tcp://h:1", "--password-file", str(short))
    short.write_text("")
    assert "one password is for all" in refused(
        "--servers", "tcp://h:1", "--login", "--password-file", str(short)
    )
    assert "'proxy.example' is neither an address nor a network" in refused(
        "--servers", "tcp://h:1", "--trusted-proxy", "proxy.example"
    )
    assert "has 0 characters" in refused("--servers", "tcp://h:1", "--password-file", str(short))
