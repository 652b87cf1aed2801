"""The directory, `spark://` and the leash, over real connections."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from insync.plugins.spark.executors import _leash
from insync.plugins.spark.executors._directory import Directory, authorise
from insync.plugins.spark.executors._leash import End, Leash
from insync.plugins.spark.executors._messages import Down, Kind, Report, Told, Up, decode
from insync.transport import (
    ConnectError,
    Connection,
    Identity,
    NotAuthorisedError,
    RemoteError,
    Request,
    Security,
    connect,
    serve,
)

SECURITY = Security(secret=b"0123456789abcdef")


@attrs.define
class Place:
    """A directory that is served, and what it has told."""

    nursery: trio.Nursery
    directory: Directory
    told: list[Told]
    url: str
    scope: trio.CancelScope

    async def dial(self, url: str, node_id: int = -1, security: Security = SECURITY) -> Connection:
        identity = Identity(node_id=node_id)
        return await connect(url, identity=identity, nursery=self.nursery, security=security)

    @property
    def bootstrap(self) -> str:
        return self.url.replace("tcp://", "spark://")

    async def until_told(self, count: int) -> None:
        with trio.fail_after(30):
            while len(self.told) < count:
                await trio.testing.wait_all_tasks_blocked(0.01)


@asynccontextmanager
async def directory() -> AsyncIterator[Place]:
    told: list[Told] = []
    served = Directory(told.append)
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def run(*, task_status: trio.TaskStatus[object]) -> None:
            with scope:
                await serve(
                    "tcp://127.0.0.1:0",
                    served.serve,
                    identity=Identity(),
                    security=SECURITY,
                    authorise=authorise,
                    on_disconnect=served.disconnected,
                    task_status=task_status,
                )

        serving = await nursery.start(run)
        yield Place(nursery, served, told, serving.endpoints[0], scope)
        nursery.cancel_scope.cancel()


async def node(place: Place, slot: int) -> tuple[str, ...]:
    """Something that answers as a node does, and where."""

    def answer(request: Request) -> None:
        request.payload.release()
        request.reply(b"%d" % slot)

    urls: list[str] = []
    for url in ("tcp://127.0.0.1:0", "shm://@"):
        listen = functools.partial(serve, url, answer, identity=Identity("c", slot), security=SECURITY)
        urls += (await place.nursery.start(listen)).endpoints
    return tuple(urls)


async def test_a_client_is_led_to_the_nearest_address_of_a_node_that_reports() -> None:
    async with directory() as place:
        with pytest.raises(ConnectError, match="no node has reported yet"):
            await place.dial(place.bootstrap)
        urls = await node(place, 7)
        leash = Leash(place.url, SECURITY, Report(7, "0", 1, urls), trio.Event())
        place.nursery.start_soon(leash.hold)
        await place.until_told(1)
        connection = await place.dial(place.bootstrap)
        assert connection.peer.node_id == 7 and connection.url.startswith("shm://")
        with await connection.request(3, timeout=5) as response:
            assert response.body == b"7"


async def test_a_node_that_does_not_answer_is_passed_over() -> None:
    async with directory() as place:
        for slot, urls in ((1, ("shm://@insync-nobody-is-here",)), (2, await node(place, 2))):
            place.nursery.start_soon(
                Leash(place.url, SECURITY, Report(slot, "0", slot, urls), trio.Event()).hold
            )
        await place.until_told(2)
        for _ in range(5):
            assert (await place.dial(place.bootstrap)).peer.node_id == 2


async def test_only_who_knows_the_secret_may_look_and_only_nodes_report() -> None:
    async with directory() as place:
        with pytest.raises(ConnectError, match="cannot be asked"):
            await place.dial(place.bootstrap, security=Security(secret=b"another secret!!"))
        client = await place.dial(place.url)
        with pytest.raises(NotAuthorisedError):
            await client.request(Kind.REPORT, b"{}", timeout=5)
        as_node = await place.dial(place.url, node_id=1)
        for kind, body in ((Kind.REPORT, b"nonsense"), (Kind.ORDERS, b""), (77, b"")):
            with pytest.raises(RemoteError):
                await as_node.request(kind, body, timeout=5)
        assert place.told == []


@pytest.mark.parametrize(("keep", "end"), [(True, End.MOVED), (False, End.OVER)])
async def test_a_node_ends_when_it_is_told_to(keep: bool, end: End) -> None:
    report = Report(1, "4", 1, ())
    async with directory() as place:
        ends: list[End] = []

        async def hold() -> None:
            ends.append(await Leash(place.url, SECURITY, report, trio.Event()).hold())

        place.nursery.start_soon(hold)
        await place.until_told(1)
        place.directory.stop(1, "3", keep=not keep)
        place.directory.stop(2, None, keep=not keep)
        place.directory.stop(1, "4", keep=keep)
        await place.until_told(2)
        with trio.fail_after(30):
            while not ends:  # the directory may see the connection's end first
                await trio.testing.wait_all_tasks_blocked(0.01)
        assert ends == [end] and place.told == [Up(report), Down(report)]


async def test_a_lost_executor_is_told_from_a_lost_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_leash, "GRACE_WITHOUT_EXECUTOR_SECONDS", 0.3)
    for driver_lives, expected in ((True, End.EXECUTOR_LOST), (False, End.ORPHANED)):
        async with directory() as place:
            hung_up = trio.Event()
            ends: list[End] = []

            ended = trio.Event()

            async def hold(
                to: str = place.url,
                on: trio.Event = hung_up,
                into: list[End] = ends,
                then: trio.Event = ended,
            ) -> None:
                into.append(await Leash(to, SECURITY, Report(1, "0", 1, ()), on).hold())
                then.set()

            async with trio.open_nursery() as holding:
                holding.start_soon(hold)
                await place.until_told(1)
                if not driver_lives:
                    place.scope.cancel()
                    await place.until_told(2)
                    with trio.move_on_after(1.0):
                        await ended.wait()
                    assert ends == [], "a silent directory was not waited for"
                hung_up.set()
            assert ends == [expected]


async def test_a_directory_that_comes_back_has_its_nodes_again() -> None:
    report = Report(1, "0", 1, ())
    async with directory() as place:
        place.nursery.start_soon(Leash(place.url, SECURITY, report, trio.Event()).hold)
        await place.until_told(1)
        for connection in list(place.directory._members):
            connection.abort("lost")
        await place.until_told(3)
        assert place.told == [Up(report), Down(report), Up(report)]


async def test_what_is_no_address_of_executor_logs() -> None:
    async with directory() as place:
        for url in ("spark://127.0.0.1", "spark://127.0.0.1:1/path", "spark://127.0.0.1:1?x=y"):
            with pytest.raises(ValueError, match="spark://"):
                await place.dial(url)
        with pytest.raises(OSError, match="only finds them"):
            await serve("spark://127.0.0.1:0", lambda request: None, identity=Identity())


def test_values_within_values_without_end_are_no_message() -> None:
    with pytest.raises(ValueError, match="malformed Report"):
        decode(b'{"x":' + b"[" * 100_000, Report)
