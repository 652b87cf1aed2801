"""As many connections as descriptors allow: those that end for others, and those that always have room."""

from __future__ import annotations

import errno
import os
import resource
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from insync.transport import Connection, Identity, Limits, TransportError, connect, guests, serve
from insync.transport.guests import IDLE, SILENT, TALKING, Guest, Guests

URL = "mem://guests/server"
MOST = 4


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "allowed", lambda: MOST)
    monkeypatch.setattr(guests, "_everywhere", weakref.WeakSet())
    monkeypatch.setattr(guests, "MOST_ENDED", 1)


def enter(
    place: Guests,
    name: str,
    ended: list[str],
    *,
    known: bool = True,
    spoken: bool = True,
    waits: bool = False,
) -> Guest:
    since = trio.current_time()

    def end(reason: str) -> None:
        ended.append(name)
        place.leave(guest)

    guest = Guest(
        address=name[0],
        end=end,
        is_known=lambda: known,
        has_spoken=lambda: spoken,
        idle=lambda now: 0.0 if waits else now - since,
    )
    place.enter(guest)
    return guest


async def test_strangers_end_before_those_that_are_known_and_crowds_before_single_ones(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The first letter of a name is its address."""
    one, other, ended = Guests("one"), Guests("other"), list[str]()
    enter(one, "a-known", ended)
    await trio.sleep(1)
    enter(other, "b-alone", ended, known=False)
    await trio.sleep(1)
    enter(other, "c-first", ended, known=False)
    await trio.sleep(0.1)
    enter(one, "c-second", ended, known=False)
    await trio.sleep(TALKING)
    for _ in range(2):
        await one.room()
        enter(one, "d-new", ended, waits=True)
    assert ended == ["c-first", "b-alone"], "the crowd, then the oldest stranger"
    await other.room()
    assert ended[2:] == ["c-second"]
    enter(other, "d-new", ended, waits=True)
    await other.room()
    assert ended[3:] == ["a-known"]


@pytest.mark.parametrize(
    ("traits", "seconds"),
    [
        ({"known": False, "spoken": False}, SILENT),
        ({"known": False, "spoken": True}, TALKING),
        ({"known": True}, IDLE),
    ],
)
async def test_nobody_ends_before_its_time(
    autojump_clock: trio.testing.MockClock, traits: dict[str, bool], seconds: float
) -> None:
    place, ended = Guests("one"), list[str]()
    began = trio.current_time()
    for number in range(MOST):
        enter(place, f"a{number}", ended, **traits)
    await place.room()
    assert seconds <= trio.current_time() - began <= seconds + 1
    assert ended == ["a0"]


async def test_a_listener_has_a_bound_of_its_own(autojump_clock: trio.testing.MockClock) -> None:
    small, large, ended = Guests("small", 2), Guests("large"), list[str]()
    enter(large, "large", ended)
    for name in ("first", "second"):
        enter(small, name, ended)
    await trio.sleep(IDLE)
    await large.room()
    assert not ended
    await small.room()
    assert ended == ["first"]


@pytest.mark.parametrize("found", ["none is left", "one of the reserve"])
async def test_what_else_takes_descriptors_counts(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    """The program around a node has its own files and sockets."""
    place, ended = Guests("one"), list[str]()
    enter(place, "only", ended)
    await trio.sleep(IDLE)
    number = [90]

    def open_or_fail(*_: Any) -> int:
        if found == "none is left" and not ended:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return number[0]

    with monkeypatch.context() as patch:
        patch.setattr(guests.resource, "getrlimit", lambda _: (100, 100))
        patch.setattr(guests.os, "open", open_or_fail)
        patch.setattr(guests.os, "close", lambda _: None)
        if found == "none is left":
            number[0] = 10
        await place.room()
    assert ended == ["only"]


def test_the_number_of_guests_goes_by_the_limit_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for soft, most in ((1024, 384), (4096, 1536), (resource.RLIM_INFINITY, float("inf"))):
        with monkeypatch.context() as patch:
            patch.setattr(guests.resource, "getrlimit", lambda _, soft=soft: (soft, soft))
            assert guests.allowed() == most


def answer(request: Any) -> None:
    request.payload.release()
    if request.kind == 1:
        request.reply()


async def served(nursery: trio.Nursery, limits: Limits | None = None) -> Callable[..., Any]:
    await nursery.start(partial(serve, URL, answer, identity=Identity("c", 1, 1), limits=limits))
    return partial(connect, URL, nursery=nursery)


async def test_clients_that_have_shaken_hands_are_bounded_and_nodes_are_let_in(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    come = await served(nursery)
    clients: list[Connection] = [await come(identity=Identity()) for _ in range(MOST)]
    nursery.start_soon(partial(clients[0].request, 2, b"never answered", timeout=60))
    for number in range(2, 2 + MOST):
        node = await come(identity=Identity("c", number, 1))
        assert (await node.request(1, b"", timeout=5)).body == b""
    late = await come(identity=Identity())
    with pytest.raises(TransportError):
        await late.request(1, b"", timeout=5)
    assert not any(client.closed.is_set() for client in clients), "none has been idle for long"
    await trio.sleep(IDLE)
    again = await come(identity=Identity())
    assert (await again.request(1, b"", timeout=5)).body == b""
    assert [client.closed.is_set() for client in clients] == [False, True, False, False]
    nursery.cancel_scope.cancel()


async def test_clients_that_wait_for_room_are_as_few_as_those_that_shake_hands(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """Each has a descriptor meanwhile."""
    come = await served(nursery, Limits(max_half_open=2))
    for _ in range(MOST):
        await come(identity=Identity())
    late: list[Connection] = []

    async def come_late() -> None:
        with suppress(TransportError):
            late.append(await come(identity=Identity()))

    async with trio.open_nursery() as coming:
        for _ in range(6):
            coming.start_soon(come_late)
    await trio.testing.wait_all_tasks_blocked()
    assert sum(not each.closed.is_set() for each in late) <= 2
    node = await come(identity=Identity("c", 2, 1))
    assert (await node.request(1, b"", timeout=5)).body == b""
    nursery.cancel_scope.cancel()
