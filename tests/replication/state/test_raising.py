"""A copy that tells its version and raises the topic's, at moments that whole copies meet too seldom."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio
import trio.testing

from insync.replication.state import IdempotencyConflictError, StateSettings
from insync.replication.state._applying import Applier
from insync.replication.state._copy import Copy
from insync.replication.state._entries import Call, Close, Commands, Digest, Entry, Join, Open, Raise, encode
from insync.replication.state._raising import Raiser
from insync.replication.state._session import Session
from tests.replication.state.shops import SumAndCount
from tests.replication.state.test_parts import AT, NOWHERE, Producer, Words, parts


def raiser(*told: tuple[str, int | None]) -> tuple[Raiser, Copy, Producer]:
    """Of a copy with version 2, beside sessions with the versions that they have told."""
    made, nobody, producer = StateSettings(keeper_lease_ms=1000), cast(Any, None), Producer()
    copy = Copy(NOWHERE, AT, "topic id", SumAndCount, made, nobody, nobody, {})
    session = Session(copy, cast(Any, producer), "me", made, 1 << 20)
    for name, version in (("me", 2), *told):
        nonce = session.nonce if name == "me" else b"nonce"
        token = take(copy, Open(name, nonce))
        if version is not None:
            take(copy, Join(name, token, "Sum", version))
    session.on_applied([])
    return Raiser(copy, session), copy, producer


def take(copy: Copy, entry: Entry) -> int:
    offset = copy.applier.position
    copy.applier.apply(offset, 1000, encode(entry))
    return offset


async def test_a_silent_copy_has_a_lease_for_its_answer(mock_clock: trio.testing.MockClock) -> None:
    one, copy, _ = raiser(("old", 1))
    assert not one._is_ready(), "nobody has called yet"
    take(copy, Call("me"))
    assert not one._is_ready()
    mock_clock.jump(0.9)
    assert not one._is_ready()
    mock_clock.jump(0.2)
    assert one._is_ready()
    take(copy, Join("old", copy.applier.sessions["old"].token, "Sum", 1))
    assert not one._is_ready(), "it lives"


async def test_a_copy_that_told_no_version_is_never_taken_for_gone(
    mock_clock: trio.testing.MockClock,
) -> None:
    one, copy, _ = raiser(("before", None))
    take(copy, Call("me"))
    assert not one._is_ready()
    mock_clock.jump(1000)
    assert not one._is_ready()
    take(copy, Close("before", copy.applier.sessions["before"].token))
    assert one._is_ready()


async def test_a_copy_is_not_in_its_own_way_when_its_version_was_lost() -> None:
    one, copy, _ = raiser()
    copy.applier.sessions["me"].version = 0
    assert one._is_ready()


async def test_a_copy_that_comes_while_the_migration_is_tried_is_waited_for() -> None:
    one, copy, producer = raiser()

    async def prepare() -> None:
        take(copy, Join("old", take(copy, Open("old", b"nonce")), "Sum", 1))

    one._prepare = prepare  # type: ignore[method-assign]
    await one._raise_if_ready()
    assert producer.sent == []


async def test_a_conflict_that_stands_in_a_snapshot_is_told_like_any_other() -> None:
    copy, session, producer = parts()
    restored = Applier(Words())
    restored.apply(0, 1000, encode(Open("me", session.nonce)))
    restored.apply(1, 1000, encode(Open("other", b"nonce")))
    restored.apply(2, 1000, encode(Commands("other", 1, 0, 0, [b"other"], {0: "key"}, 1000)))
    async with trio.open_nursery() as nursery:

        async def conflicts() -> None:
            with pytest.raises(IdempotencyConflictError, match="'key'"):
                await session.submit(b"mine", "key")
            nursery.cancel_scope.cancel()

        nursery.start_soon(session.run)
        nursery.start_soon(conflicts)
        await trio.testing.wait_all_tasks_blocked()
        restored.apply(3, 1000, producer.sent[0].value)
        copy.applier = restored
        session.on_restored()
        await trio.sleep_forever()


async def test_the_digest_behind_a_raise_is_for_an_offset_of_before_it() -> None:
    """Two copies raise at the same time, and a digest of the new version came between: it is no other one's."""
    one, copy, _ = raiser()
    copy.digests = {1: copy.applier.digest()}
    told: list[Digest] = []

    async def send_once(entry: Entry) -> int:
        if isinstance(entry, Digest):
            told.append(entry)
        elif isinstance(entry, Raise):
            take(copy, entry)
            copy.digests[copy.applier.position] = copy.applier.digest()
        offset = take(copy, entry)
        copy._advance(offset + 1)
        return offset

    one._session.send_once = send_once  # type: ignore[method-assign]
    await one._raise()
    assert copy.applier.version == 2 and [each.offset for each in told] == [1]
    await one._raise()
    assert len(told) == 1, "copies of version 2 know versions"
