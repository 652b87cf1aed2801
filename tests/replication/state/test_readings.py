"""What is read in one place and ended in another; and what members of a set become."""

from __future__ import annotations

import enum
from typing import Any

import pytest
import trio
import trio.testing

from insync.replication.client import InvalidArgumentError
from insync.replication.state._faces import Reading
from insync.replication.state.collections import _member

PATIENCE = 20.0


class Silent:
    """A block in which nothing comes."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def __aenter__(self) -> Silent:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.log.append("left")

    async def __anext__(self) -> None:
        await trio.sleep_forever()


async def test_who_reads_ends_before_the_block_is_left() -> None:
    log: list[str] = []
    reading = Reading(Silent(log))
    await reading.begin()

    async def read() -> None:
        with pytest.raises(StopAsyncIteration):
            log.append(str(await reading.next()))
        log.append("read")

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            await reading.end()
    assert sorted(log) == ["left", "read"]


class Colour(enum.StrEnum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Bytes(bytes):
    pass


@pytest.mark.parametrize(("given", "kept"), [(Colour.RED, "red"), (Number.ONE, 1), (Bytes(b"b"), b"b")])
def test_members_are_what_they_stand_for(given: Any, kept: Any) -> None:
    """As they are after their way through the log."""
    member = _member(given)
    assert member == kept and type(member) is type(kept)


@pytest.mark.parametrize("given", [True, None, 1.0, ("a",), bytearray(b"b")])
def test_what_is_no_member_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="member"):
        _member(given)
