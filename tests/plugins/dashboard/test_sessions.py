"""Sessions end with all that they opened; and who guesses passwords delays nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import AsyncExitStack
from typing import Any

import attrs
import pytest
from msgspec import structs

pytest.importorskip("nicegui")

from insync.plugins.dashboard import _login, _sessions
from insync.plugins.dashboard._guard import COOKIE, Guard, names
from insync.plugins.dashboard._login import Login, LoginError, PasswordDoor, WrongPasswordError
from insync.plugins.dashboard._sessions import MOST_OF_ALL, MOST_OF_ONE, MOST_SESSIONS, Attempts, Sessions
from insync.replication.client import RequestTimeoutError, UserInfo

HOST = "127.0.0.1:8090"
EVERYTHING = frozenset({"consume", "produce", "admin"})


def within(work: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(run())


async def turns(holds: Callable[[], object]) -> None:
    """Let other tasks of this loop go on until it holds."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0)


@attrs.define(eq=False)
class Socket:
    """A browser's WebSocket, open at the guard, with an application that writes whatever comes."""

    guard: Guard
    sent: list[MutableMapping[str, Any]] = attrs.Factory(list)
    heard: list[MutableMapping[str, Any]] = attrs.Factory(list)
    coming: asyncio.Queue[MutableMapping[str, Any]] = attrs.Factory(asyncio.Queue)

    async def run(self, cookie: str) -> None:
        headers = {"host": HOST, "origin": f"http://{HOST}", "cookie": cookie}
        given = [(name.encode(), value.encode()) for name, value in headers.items()]

        async def send(message: MutableMapping[str, Any]) -> None:
            self.sent.append(message)

        await self.guard({"type": "websocket", "path": "/", "headers": given}, self.coming.get, send)

    @property
    def kinds(self) -> list[str]:
        return [each["type"] for each in self.sent]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})
    # As the library does, which does not know yet that nobody hears it.
    await send({"type": "websocket.send", "text": "what the cluster looks like now"})


async def post(guard: Guard, path: str, cookie: str = "", body: bytes = b"") -> None:
    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(_: MutableMapping[str, Any]) -> None:
        pass

    headers = [(b"host", HOST.encode()), (b"cookie", cookie.encode())]
    await guard({"type": "http", "method": "POST", "path": path, "headers": headers}, receive, send)


def open_guard() -> Guard:
    return Guard(echo, names("127.0.0.1", 8090), PasswordDoor("correct horse"))


def somebody() -> Login:
    return Login(name="somebody", operations=EVERYTHING)


@pytest.mark.parametrize("how", ["logout", "too many", "its time is over"])
def test_what_a_session_has_open_is_closed_when_it_ends(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        guard = open_guard()
        token = guard.sessions.begin(somebody())
        one, other = Socket(guard), Socket(guard)
        async with asyncio.TaskGroup() as group:
            ends = group.create_task(one.run(f"{COOKIE}={token}"))
            stays = group.create_task(other.run(f"{COOKIE}={guard.sessions.begin(somebody())}"))
            one.coming.put_nowait({"type": "websocket.receive", "text": "a"})
            other.coming.put_nowait({"type": "websocket.receive", "text": "a"})
            await turns(lambda: len(one.sent) == 2 and len(other.sent) == 2)
            if how == "logout":
                await post(guard, "/logout", f"{COOKIE}={token}")
            elif how == "too many":
                for _ in range(MOST_SESSIONS - 1):
                    guard.sessions.begin(somebody())
            else:
                session = guard.sessions.find(token)
                assert session is not None
                session.login.since -= _login.SESSION_SECONDS
                one.coming.put_nowait({"type": "websocket.receive", "text": "b"})
            await ends
            assert one.kinds == ["websocket.accept", "websocket.send", "websocket.close"]
            assert not stays.done() and other.kinds[-1] == "websocket.send", "others stay"
            other.coming.put_nowait({"type": "websocket.disconnect", "code": 1000})

    within(work)


def test_a_quiet_socket_is_closed_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr(_login, "SESSION_SECONDS", 0.05)
        guard = open_guard()
        socket = Socket(guard)
        await socket.run(f"{COOKIE}={guard.sessions.begin(somebody())}")
        assert socket.kinds[-1] == "websocket.close"

    within(work)


@attrs.define
class Cluster:
    """A door of users who are changed by the tests."""

    names = True
    users: dict[str, UserInfo]
    failure: Exception | None = None

    async def enter(self, name: str, password: str) -> Login:
        return Login(name=name, operations=EVERYTHING, user=self.users[name])

    async def changed(self, logins: Collection[Login]) -> Collection[Login]:
        if self.failure is not None:
            raise self.failure
        return [each for each in logins if self.users.get(each.name) != each.user]


def test_sessions_of_users_who_were_deleted_or_changed_end_and_no_others() -> None:
    async def work() -> None:
        known = {name: UserInfo(name=name, mechanisms={}, mark="1") for name in ("a", "b", "c", "d")}
        cluster, sessions = Cluster(known), Sessions()
        token = {name: sessions.begin(await cluster.enter(name, "")) for name in known}
        token["nobody's"] = sessions.begin(somebody())
        await sessions.end_changed(cluster)
        assert len(sessions) == 5
        del known["a"]
        known["b"] = structs.replace(known["b"], allow=["produce"])
        known["c"] = structs.replace(known["c"], mark="2")
        for failure in (RequestTimeoutError("nobody answers"), RuntimeError("the Admin is not open")):
            cluster.failure = failure
            await sessions.end_changed(cluster)
            assert len(sessions) == 5, "while the cluster says nothing, nobody is put out"
        cluster.failure = None
        await sessions.end_changed(cluster)
        assert [name for name, each in token.items() if sessions.find(each) is not None] == ["d", "nobody's"]

    within(work)


@attrs.define
class Listed:
    """What is asked of an administrator before something is done."""

    users: list[UserInfo]

    async def list_users(self) -> list[UserInfo]:
        return self.users


def test_before_something_is_done_the_cluster_is_asked_whether_the_user_still_may() -> None:
    async def work() -> None:
        user = UserInfo(name="ops", mechanisms={}, allow=["admin"], mark="1")
        login = Login(name="ops", operations=frozenset({"consume", "admin"}), user=user)
        await login.check(Listed([user]), "admin")  # type: ignore[arg-type]
        with pytest.raises(LoginError, match="may not produce"):
            await login.check(Listed([user]), "produce")  # type: ignore[arg-type]
        for now in (structs.replace(user, mark="2"), structs.replace(user, allow=["consume"])):
            with pytest.raises(LoginError, match="was changed"):
                await login.check(Listed([now]), "admin")  # type: ignore[arg-type]
        with pytest.raises(LoginError, match="user 'ops' was deleted"):
            await login.check(Listed([]), "admin")  # type: ignore[arg-type]
        await somebody().check(None, "admin")  # who knows the one password is no user

    within(work)


class Checked:
    """A door that counts, and takes one password."""

    names = True

    def __init__(self) -> None:
        self.asked = 0

    async def enter(self, name: str, password: str) -> Login:
        self.asked += 1
        if password != "right":
            raise WrongPasswordError("wrong")
        return somebody()

    async def changed(self, logins: Collection[Login]) -> Collection[Login]:
        return ()


def test_who_guesses_waits_and_nobody_from_elsewhere_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sessions, "WRONG_SECONDS", 3600.0)

    async def work() -> None:
        door, attempts = Checked(), Attempts()
        async with AsyncExitStack() as stack:
            group = await stack.enter_async_context(asyncio.TaskGroup())
            guesses = [
                group.create_task(attempts.enter(door, "10.0.0.1", "ops", f"guess {number}"))
                for number in range(MOST_OF_ONE)
            ]
            await turns(lambda: door.asked)
            with pytest.raises(LoginError, match="Too many"):
                await attempts.enter(door, "10.0.0.1", "somebody else", "right")
            assert await attempts.enter(door, "10.0.0.2", "ops", "right")
            assert door.asked == 2, "of the one who guesses only the first was looked at"
            crowd = [
                group.create_task(attempts.enter(door, f"10.0.1.{number}", "ops", "guess"))
                for number in range(MOST_OF_ALL - MOST_OF_ONE)
            ]
            await turns(lambda: door.asked == 2 + len(crowd))
            with pytest.raises(LoginError, match="Too many"):
                await attempts.enter(door, "10.0.0.2", "ops", "right")
            for task in (*guesses, *crowd):
                task.cancel()
        assert attempts._lines == {} and attempts._under_way == 0

    within(work)


def test_a_wrong_password_of_a_file_is_slow_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(_sessions.asyncio, "sleep", sleep)

    async def work() -> None:
        guard = open_guard()
        await post(guard, "/login", body=b"password=correct+horse")
        assert slept == [] and len(guard.sessions) == 1
        await post(guard, "/login", body=b"password=correct+hors")
        assert slept == [_sessions.WRONG_SECONDS] and len(guard.sessions) == 1

    within(work)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("10.0.0.1", "10.0.0.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("not an address", "", False),
    ],
)
def test_who_has_one_address_of_a_network_has_all_of_it(one: str, other: str, same: bool) -> None:
    assert (_sessions._network(one) == _sessions._network(other)) == same


def test_a_session_whose_time_is_over_is_not_found() -> None:
    sessions, login = Sessions(), somebody()
    token = sessions.begin(login)
    assert sessions.find(token) is not None
    login.since -= _login.SESSION_SECONDS
    assert sessions.find(token) is None and len(sessions) == 0
