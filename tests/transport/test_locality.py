"""Of several addresses of a node: which are tried, in which order, and what is said when one fails."""

from typing import ClassVar

import pytest
import trio

from insync.transport import (
    URL,
    ConnectError,
    ConnectRefusedError,
    Identity,
    ServingGroup,
    WrongPeerError,
    connect_nearest,
    is_as_near,
    nearest_first,
    register,
    serve,
)
from insync.transport._memory import MemoryTransport


class Near(MemoryTransport):
    schemes: ClassVar[tuple[str, ...]] = ("near",)
    preference: ClassVar[int] = 5

    def can_dial(self, endpoint):
        return endpoint.authority != "elsewhere"


@pytest.fixture(autouse=True)
def near_transport():
    register("near", Near, override=True)


async def start(nursery, url, node_id=1, group=None):
    def handler(request):
        request.payload.release()
        request.reply(url.encode())

    async def run(task_status):
        identity = Identity("c", node_id, 1)
        await serve(url, handler, identity=identity, group=group, task_status=task_status)

    await nursery.start(run)


async def asked(connection):
    with await connection.request(1, timeout=5) as response:
        return response.body.decode()


def test_the_preferred_come_first_and_those_elsewhere_not_at_all():
    given = ["mem://n/a", "near://n/a", "mem://n/b", "near://elsewhere/a", "near://n/b"]
    assert nearest_first(given) == ["near://n/a", "near://n/b", "mem://n/a", "mem://n/b"]


def test_what_cannot_be_used_is_passed_over_and_named_if_nothing_is_left():
    unusable = ["nonsense://x", "mem://", "near://elsewhere/a"]
    assert nearest_first([*unusable, "mem://n/a"]) == ["mem://n/a"]
    with pytest.raises(ConnectError) as raised:
        nearest_first(unusable)
    assert all(word in str(raised.value) for word in ("nonsense://", "mem://", "another machine"))
    with pytest.raises(ConnectError, match="none is given"):
        nearest_first([])


def test_what_is_as_near():
    assert is_as_near("mem://n/a", ["mem://n/b", "near://elsewhere/a"])
    assert is_as_near("near://n/a", ["mem://n/b", "near://n/b"])
    assert not is_as_near("mem://n/a", ["mem://n/a", "near://n/b"])
    assert is_as_near("mem://n/a", [])


async def test_the_nearest_is_taken_without_a_word(nursery, caplog):
    for url in ("mem://n/a", "near://n/a"):
        await start(nursery, url)
    connection = await connect_nearest(["mem://n/a", "near://n/a"], identity=Identity(), nursery=nursery)
    assert await asked(connection) == "near://n/a"
    assert caplog.text == ""


async def test_the_next_is_taken_and_one_line_says_why(nursery, caplog):
    await start(nursery, "mem://n/a")
    connection = await connect_nearest(["mem://n/a", "near://n/a"], identity=Identity(), nursery=nursery)
    assert await asked(connection) == "mem://n/a"
    (record,) = caplog.records
    assert "reached at mem://n/a" in record.message and "near://n/a: no listener" in record.message


async def test_another_node_at_the_nearest_address_is_passed_over(nursery, caplog):
    await start(nursery, "mem://n/a")
    await start(nursery, "near://n/a", node_id=2)
    urls = ["mem://n/a", "near://n/a"]
    connection = await connect_nearest(urls, identity=Identity(), expect_node=1, nursery=nursery)
    assert await asked(connection) == "mem://n/a"
    assert "node 1 is wanted" in caplog.text


async def test_an_address_that_never_answers_does_not_take_all_the_time(nursery, autojump_clock):
    await start(nursery, "mem://n/a")
    transport = Near()
    listener = await transport.listen(transport.parse(URL.parse("near://n/silent")))
    began = trio.current_time()
    connection = await connect_nearest(
        ["near://n/silent", "mem://n/a"], identity=Identity(), nursery=nursery, timeout=60
    )
    assert await asked(connection) == "mem://n/a"
    assert trio.current_time() - began == pytest.approx(1, abs=0.1)
    await listener.aclose()


async def test_nobody_is_there_only_if_all_refuse(nursery):
    with pytest.raises(ConnectRefusedError):
        await connect_nearest(["mem://n/a", "near://n/a"], identity=Identity(), nursery=nursery)
    await start(nursery, "near://n/a", node_id=2)
    with pytest.raises(WrongPeerError):
        await connect_nearest(
            ["mem://n/a", "near://n/a"], identity=Identity(), expect_node=1, nursery=nursery
        )


async def test_a_newer_incarnation_replaces_the_older_one_at_all_addresses(nursery):
    """A process that was replaced is out, whichever way it or its successor has come."""
    group = ServingGroup()

    async def join(url, incarnation, lane="data"):
        identity = Identity("c", 5, incarnation)
        return await connect_nearest([url], identity=identity, nursery=nursery, lane=lane)

    await start(nursery, "mem://n/a", group=group)
    await start(nursery, "near://n/a", group=group)
    old, control = await join("mem://n/a", 1), await join("mem://n/a", 1, "control")
    assert await asked(old) == await asked(control) == "mem://n/a"
    await join("near://n/a", 2)
    with trio.fail_after(2):
        await old.closed.wait()
    assert not control.closed.is_set()
    for url in ("mem://n/a", "near://n/a"):
        with pytest.raises(WrongPeerError, match="incarnation"):
            await join(url, 1)
