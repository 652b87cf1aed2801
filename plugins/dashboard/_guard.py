"""Access to the dashboard: by which names it may be called, which pages may talk to it, who has logged in.

A browser sends requests for any page that it shows. So a request that names another host (DNS rebinding), or that
another site's page has made (a form, a script, a WebSocket), is refused before anything of it is read.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from html import escape
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

import attrs

from ...transport.urls import bracketed
from ._login import Door, LoginError
from ._sessions import Attempts, Receive, Send, Session, Sessions

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "insync-dashboard"
LOGIN = "insync.login"
SESSION = "/session"
"""A page asks here whether it is still logged in: 200, or 401."""
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
MOST_LOGIN_BYTES = 4096
POLICY = "; ".join(
    (
        "default-src 'self'",
        # The library compiles its templates in the browser.
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "font-src 'self' data:",
        "connect-src 'self' ws: wss:",
        "frame-ancestors 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "object-src 'none'",
    )
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # Not "no-referrer": with it a browser says of a form of ours that it comes from nowhere (Origin: null).
    (b"referrer-policy", b"same-origin"),
)

_LOGIN = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>insync: log in</title>
<style>body{font:16px sans-serif;max-width:22em;margin:15vh auto;padding:0 1em;color:#1b1f24;background:#fff}
input,button{font:inherit;display:block;width:100%;box-sizing:border-box;margin:.3em 0 1em;padding:.5em}
p{color:#a40e26}</style></head><body><h1>insync</h1>REFUSED<form method="post" action="/login">
NAME<label for="password">PASSWORD</label>
<input id="password" name="password" type="password" required autocomplete="current-password"FOCUS>
<button>Log in</button></form></body></html>"""
_NAME = """<label for="name">Name of a user of the cluster</label>
<input id="name" name="name" required autofocus autocomplete="username">
"""


def _login_page(door: Door, refused: str = "") -> str:
    told = f'<p role="alert">{escape(refused)}</p>' if refused else ""
    filled = {
        "REFUSED": told,
        "NAME": _NAME if door.names else "",
        "PASSWORD": "Password" if door.names else "Password of this dashboard",
        "FOCUS": "" if door.names else " autofocus",
    }
    return re.sub("|".join(filled), lambda found: filled[found[0]], _LOGIN)


@attrs.define(eq=False)
class Guard:
    """An ASGI application before another one.

    hosts: the values of the header Host that are answered (name and port).
    door: who may log in; None: nobody has to (the dashboard listens on loopback alone).
    The application finds who has logged in under `LOGIN` in its scope.
    """

    app: App
    hosts: frozenset[str]
    door: Door | None = None
    sessions: Sessions = attrs.Factory(Sessions)
    _attempts: Attempts = attrs.Factory(Attempts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal:
            await _refuse(scope, receive, send, refusal)
        elif self.door is None:
            await self.app(scope, receive, _with_headers(send))
        else:
            await self._behind_the_door(self.door, headers, scope, receive, send)

    async def _behind_the_door(
        self, door: Door, headers: Mapping[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        posted = scope["path"] if scope["type"] == "http" and scope["method"] == "POST" else ""
        token = _token(headers)
        session = self.sessions.find(token)
        if posted == "/logout":
            self.sessions.end(token)
            await _page(_with_headers(send), 303, "", ((b"location", b"/"),))
        elif posted == "/login":
            await self._log_in(door, scope, receive, _with_headers(send))
        elif scope["path"] == SESSION and scope["type"] == "http":
            await _page(_with_headers(send), 401 if session is None else 200, "")
        elif session is not None:
            await self._inside(session, scope, receive, send)
        elif scope["type"] == "websocket":
            await _refuse(scope, receive, send, "log in first")
        else:
            await _page(_with_headers(send), 401, _login_page(door))

    async def _inside(self, session: Session, scope: Scope, receive: Receive, send: Send) -> None:
        scope[LOGIN] = session.login
        if scope["type"] == "websocket":
            receive, send = session.kept_open(receive, send)
        await self.app(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> str:
        host = headers.get("host", "")
        if host not in self.hosts:
            return f"{host!r} is not an address of this dashboard: open the one that it printed"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return "this dashboard refuses requests from pages of other sites"
        # A browser always names the origin of a WebSocket and of a form: without one it is none.
        if origin is None and scope["type"] == "websocket":
            return "a WebSocket request needs an Origin header"
        if headers.get("sec-fetch-site") == "cross-site" and scope.get("method", "GET") != "GET":
            return "this dashboard refuses requests from pages of other sites"
        return ""

    async def _log_in(self, door: Door, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more and len(body) <= MOST_LOGIN_BYTES:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        fields = parse_qs(body[:MOST_LOGIN_BYTES].decode("utf-8", "replace"))
        try:
            given = [fields.get(each, [""])[0] for each in ("name", "password")]
            source = (scope.get("client") or ("",))[0]
            login = await self._attempts.enter(door, source, *given)
        except LoginError as error:
            await _page(send, 401, _login_page(door, str(error)))
            return
        token = self.sessions.begin(login)
        cookie = f"{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict"
        await _page(send, 303, "", ((b"location", b"/"), (b"set-cookie", cookie.encode())))


def _token(headers: Mapping[str, str]) -> str:
    """The token in a browser's cookie; empty if it shows none."""
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return cookie.value if cookie is not None else ""


def names(host: str, port: int, further: Iterable[str] = ()) -> frozenset[str]:
    """The values of Host under which a dashboard at this address is called."""
    known = {bracketed(host), *further, *LOOPBACK}
    return frozenset({f"{name}:{port}" for name in known} | (known if port == 80 else set()))


async def _refuse(scope: Scope, receive: Receive, send: Send, why: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": why[:100]})
        return
    await _page(_with_headers(send), 403, why, media=b"text/plain; charset=utf-8")


async def _page(
    send: Send,
    status: int,
    text: str,
    headers: Iterable[tuple[bytes, bytes]] = (),
    *,
    media: bytes = b"text/html; charset=utf-8",
) -> None:
    body = text.encode()
    told = [(b"content-type", media), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HEADERS]
        await send(message)

    return sending
