"""Changed code on real nodes: all stopped and started, or one process after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio

from insync.replication import Admin, Consumer, Producer
from insync.replication.state import (
    DivergedError,
    FencedError,
    IdempotencyConflictError,
    MigrationError,
    Replica,
    Replicated,
    ReplicatedCounter,
    ReplicatedDict,
    ReplicatedObject,
    StateClosedError,
    StateVersionError,
    VersionNotRaisedError,
    WrongStateClassError,
    command,
    query,
    replicate,
)
from insync.replication.state._entries import Digest, Open, Raise, decode, encode
from insync.replication.state._raising import RAISED, Raiser
from insync.replication.state._session import Session
from tests.replication.state.shops import BrokenShop, ShopV1, ShopV2, ShopV3, Sum, SumAndCount

PAGE = Path(__file__).parents[3] / "docs" / "replicated-state.md"
OPTIONS: dict[str, Any] = {"digest_every": 5, "keeper_lease_ms": 1000}


def shop(servers: list[str], cls: type[ReplicatedObject], name: str, **options: Any) -> Replicated:
    return replicate(cls, servers, "shop", name=name, **OPTIONS | options)


async def until_version(handle: Replica, version: int) -> None:
    with trio.fail_after(60):
        while handle.state_version < version:
            await handle.moved()


async def test_all_stop_and_start_with_a_new_field(servers: list[str]) -> None:
    async with shop(servers, ShopV1, "one") as one:
        for number in range(12):
            await one.stock("pot", number)
        assert one.state_version == 1
    async with shop(servers, ShopV2, "one") as one, shop(servers, ShopV2, "two") as two:
        assert one.state_version == two.state_version == 2, "nobody with older code is there"
        assert await one.note("x") == 2
        assert await two.all_notes() == ["raised with 66", "x"]
        for number in range(12):
            await two.stock("pot", number + 1)
        with pytest.raises(ValueError, match="cannot be stocked"):
            await one.stock("pot", 0)
        await one.read()
        await two.read()
        assert one.digest() == two.digest()
        await two.snapshot()
    with pytest.raises(StateVersionError, match=r"version 2 of 'Shop'.*version 1: run code") as found:
        async with shop(servers, ShopV1, "one"):
            pass
    assert (found.value.topic_version, found.value.code_version) == (2, 1)
    async with shop(servers, ShopV3, "one") as one:
        assert one.restored_from > 0 and one.state_version == 3
        assert sorted(await one.all_notes()) == ["raised with 66", "x"] and await one.count("pot") == 144


async def test_old_and_new_stand_side_by_side_until_the_last_old_one_leaves(servers: list[str]) -> None:
    async with shop(servers, ShopV1, "old") as old:
        async with shop(servers, ShopV1, "older") as older:
            await older.stock("pot", 5)
            async with shop(servers, ShopV2, "new") as new:
                with pytest.raises(
                    VersionNotRaisedError, match=r"'note' needs version 2.*has version 1.*'old'"
                ):
                    await new.note("early")
                with pytest.raises(VersionNotRaisedError) as found:
                    await new.all_notes()
                assert found.value.waits_for == {"old": 1, "older": 1}
                assert (found.value.needed, found.value.topic_version) == (2, 1) and found.value.retriable
                for number in range(6):
                    await new.stock("pot", -number)
                assert await old.count("pot") == await new.count("pot") == -10
            # Back to the old code, under the same name.
            async with shop(servers, ShopV1, "new") as new:
                assert await new.stock("pot", 10) == 0
        async with shop(servers, ShopV2, "new") as new, shop(servers, ShopV2, "older") as other:
            assert new.state_version == 1
            async with shop(servers, ShopV2, "old") as last:
                # The name of the last old copy has been opened with new code.
                assert last.state_version == 2
                await until_version(new, 2)
                assert await other.note("now") == await new.note("now") - 1
                with pytest.raises(StateVersionError):
                    await old.count("pot")
                with pytest.raises(StateVersionError):
                    await old.stock("pot", 1)
                for each in (new, other, last):
                    await each.read()
                assert new.digest() == other.digest() == last.digest()


class Silent(Session):
    """Of a process that is paused: it answers nothing until it is told to go on."""

    async def join(self) -> None:
        if self.token >= 0 and self.copy.applier.called >= 0:
            await trio.sleep_forever()
        await super().join()


@pytest.mark.parametrize("has_log", [True, False])
async def test_a_copy_that_answers_no_roll_call_is_gone_and_stops_when_it_comes_back(
    servers: list[str], monkeypatch: pytest.MonkeyPatch, has_log: bool
) -> None:
    """It meets the raise in the log, or, where that is deleted, a snapshot of the new version."""
    monkeypatch.setattr("insync.replication.state.replica.Session", Silent)
    async with shop(servers, ShopV1, "paused") as paused:
        monkeypatch.undo()
        await paused.stock("pot", 5)
        assert paused._copy is not None
        async with shop(servers, ShopV2, "new") as new:
            assert new.state_version == 1, "it may answer"
            paused._copy._consumer.pause()
            await until_version(new, 2)
            await new.note("while it was away")
            for _ in range(0 if has_log else 2):
                await new.snapshot()
            assert paused.stale.left == {"pot": 5}  # type: ignore[attr-defined]
            paused._copy._consumer.resume()
            with pytest.raises((StateVersionError, FencedError)):
                await paused.stock("pot", 7)
            with trio.fail_after(60), pytest.raises(StateVersionError, match="state_version = 2"):
                while True:
                    await paused.read()
            assert await new.count("pot") == 5


async def test_a_copy_that_could_not_open_is_in_nobodys_way(
    servers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: Raiser) -> None:
        raise StateClosedError("as the test wants")

    with monkeypatch.context() as patched, pytest.raises(StateClosedError, match="as the test wants"):
        patched.setattr(Raiser, "begin", fails)
        async with shop(servers, ShopV1, "old"):
            pass
    async with shop(servers, ShopV2, "new") as new:
        assert new.state_version == 2


async def test_a_copy_that_answers_stays_in_the_way_and_the_operator_may_raise_nevertheless(
    servers: list[str],
) -> None:
    async with shop(servers, ShopV1, "old") as old, shop(servers, ShopV2, "new") as new:
        assert new._copy is not None
        called: set[int] = set()
        with trio.fail_after(60):
            while len(called) < 3:
                called.add(new._copy.applier.called)
                await new.moved()
        assert new.state_version == 1 and await old.stock("pot", 1) == 1
        await new.raise_version()
        await new.raise_version()
        assert await new.note("x") == 2
        with pytest.raises(StateVersionError):
            await old.stock("pot", 1)


async def test_the_raise_can_be_left_to_the_operator(servers: list[str]) -> None:
    async with shop(servers, ShopV2, "new", raise_version=False) as new:
        with pytest.raises(VersionNotRaisedError, match=r"call raise_version\(\)"):
            await new.note("x")
        async with shop(servers, ShopV1, "old") as old:
            await old.stock("pot", 1)
        await new.raise_version()
        assert await new.all_notes() == ["raised with 1"]


async def test_a_migration_that_fails_is_tried_elsewhere_first_and_stops_nobody(servers: list[str]) -> None:
    async with shop(servers, BrokenShop, "broken") as broken:
        assert broken.state_version == 1 and await broken.stock("pot", 1) == 1
        with pytest.raises(VersionNotRaisedError, match=r"migrate_1_to_2 .*KeyError"):
            await broken.note("x")
        with pytest.raises(MigrationError):
            await broken.raise_version()
        async with shop(servers, ShopV1, "old") as old:
            assert await old.count("pot") == 1
    async with shop(servers, ShopV2, "right") as right:
        assert await right.note("x") == 2


class Unrestorable(ShopV2):
    def set_state(self, state: dict[str, Any]) -> None:
        raise LookupError("not mine")


async def test_a_state_that_cannot_be_restored_stops_the_raise_and_nobody(servers: list[str]) -> None:
    async with shop(servers, Unrestorable, "one") as one:
        assert one.state_version == 1 and await one.stock("pot", 1) == 1
        with pytest.raises(MigrationError, match=r"version 2 .*LookupError\('not mine'\)"):
            await one.raise_version()
        assert await one.stock("pot", 1) == 2


async def test_a_state_machine_is_changed_like_an_object(servers: list[str]) -> None:
    async with Replica(servers, "sum", Sum, name="old") as old:
        await old.submit(b"\x05")
        async with Replica(servers, "sum", SumAndCount, name="new") as new:
            with pytest.raises(VersionNotRaisedError, match="the command needs version 2"):
                await new.submit(b"\x05", since=2)
    async with Replica(servers, "sum", SumAndCount, name="new") as new:
        await new.submit(b"\x06", since=2)
        assert new.machine.state == [11, 1]  # type: ignore[attr-defined]


async def test_another_class_is_refused_and_takes_no_name_from_a_copy_that_fits(servers: list[str]) -> None:
    async with ReplicatedCounter.open(servers, "state", name="one") as one:
        await one.add("x", 1)
        with pytest.raises(WrongStateClassError, match=r"'ReplicatedCounter'.*'ReplicatedDict'"):
            async with ReplicatedDict.open(servers, "state", name="one"):
                pass
        assert await one.add("x", 1) == 2
        await one.snapshot()
        with pytest.raises(WrongStateClassError):
            async with ReplicatedDict.open(servers, "state", name="one"):
                pass
        assert await one.add("x", 1) == 3


async def test_a_renamed_class_keeps_its_name_in_the_log(servers: list[str]) -> None:
    class Shops(ReplicatedObject):
        def __init__(self) -> None:
            self.open = 0

        @command
        def add(self) -> int:
            self.open += 1
            return self.open

    class Stores(Shops):
        state_name = "Shops"

    async with replicate(Shops, servers, "shops") as one:
        await one.add()
    async with replicate(Stores, servers, "shops") as one:
        assert await one.add() == 2


async def test_a_release_without_versions_cannot_open_a_topic_that_was_raised(servers: list[str]) -> None:
    async with shop(servers, ShopV1, "one"), Admin(servers) as admin:
        assert (await admin.describe_config("shop"))["retention_ms"] == -1
    async with shop(servers, ShopV2, "one"), Admin(servers) as admin:
        assert (await admin.describe_config("shop"))["retention_ms"] == RAISED["retention_ms"]


async def test_a_copy_that_told_no_version_is_in_the_way_until_its_name_is_opened_again(
    servers: list[str],
) -> None:
    """So does one of a release without versions, which answers no roll call."""
    async with shop(servers, ShopV1, "one"), Producer(servers) as producer:
        await producer.send_and_wait("shop", encode(Open("before", b"its nonce")), partition=0)
    async with shop(servers, ShopV2, "new") as new:
        assert new.state_version == 1
        with pytest.raises(VersionNotRaisedError, match=r"'before' \(untold\)") as found:
            await new.note("x")
        assert found.value.waits_for == {"before": 0}
        async with shop(servers, ShopV2, "before") as before:
            assert await before.note("x") == 2


async def test_a_field_that_came_without_a_version_is_found_by_digests(servers: list[str]) -> None:
    class Careless(ShopV1):
        def __init__(self) -> None:
            super().__init__()
            self.extra = 0

    async with shop(servers, ShopV1, "one") as one:
        for number in range(12):
            await one.stock("pot", number)
    with trio.fail_after(60), pytest.raises(DivergedError, match="without a new state_version"):
        async with shop(servers, Careless, "one") as one:
            while True:
                await one.stock("pot", 1)


async def test_other_arguments_under_a_key_are_a_conflict_at_every_process(servers: list[str]) -> None:
    async with shop(servers, ShopV1, "one") as one, shop(servers, ShopV1, "two") as two:
        assert await one.stock.once("key", "pot", count=3) == 3
        assert await two.stock.once("key", "pot", count=3) == 3
        for other in (("pot", 4), ("pan", 3)):
            with pytest.raises(IdempotencyConflictError, match=r"'key'.*other arguments"):
                await two.stock.once("key", *other)
        assert await one.stock.once("keys", count=1, item="pan") == 1
        assert await two.stock.once("keys", item="pan", count=1) == 1
        assert await two.count("pot") == 3


async def test_the_example_of_the_page(servers: list[str]) -> None:
    section = PAGE.read_text("utf-8").split("## Changing the code")[1].split("\n## ")[0]
    codes = re.findall(r"```python\n# version (\d)\n(.*?)```", section, re.S)
    assert [number for number, _ in codes] == ["1", "2"]
    classes: list[type[ReplicatedObject]] = []
    for _, code in codes:
        names = {"ReplicatedObject": ReplicatedObject, "command": command, "query": query}
        exec(code, names)
        classes.append(names["Orders"])
    former, latter = classes
    async with replicate(former, servers, "orders", name="old") as old:
        assert await old.stock("pot", 3) == 3
        async with replicate(latter, servers, "orders", name="new") as new:
            assert await new.stock("pot", -1) == 2
            with pytest.raises(VersionNotRaisedError):
                await new.price("pot", 150)
            with pytest.raises(VersionNotRaisedError):
                await new.price_of("pot")
    async with replicate(latter, servers, "orders", name="new") as new:
        assert await new.price_of("pot") == 100
        await new.price("pot", 150)
        assert await new.price_of("pot") == 150 and await new.count("pot") == 2
        with pytest.raises(ValueError, match="-1 cannot be stocked"):
            await new.stock("pot", -1)


async def test_a_handle_that_was_replaced_raises_nothing(servers: list[str]) -> None:
    async with (
        shop(servers, ShopV1, "old") as old,
        shop(servers, ShopV2, "new", raise_version=False) as new,
        shop(servers, ShopV2, "new", raise_version=False) as newer,
    ):
        with pytest.raises(FencedError):
            await new.raise_version()
        assert await old.stock("pot", 1) == 1 and newer.state_version == 1


async def test_a_copy_of_a_release_without_versions_meets_a_digest_that_differs_behind_the_raise(
    servers: list[str],
) -> None:
    """It passes over the raise itself. Copies that know versions do not compare digests of different ones."""
    options: dict[str, Any] = {"raise_version": False}
    async with shop(servers, ShopV2, "one", **options) as one, shop(servers, ShopV2, "two", **options) as two:
        for number in range(12):
            await one.stock("pot", number)
        assert one._copy is not None
        mine = dict(one._copy.digests)
        await one.raise_version()
        end = await two.read()
        async with Consumer(servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([("shop", 0)])
            entries: list[object] = []
            while (consumer.position(("shop", 0)) or 0) < end:
                entries += [decode(record.value) for record in await consumer.poll(500)]
        behind = entries[[isinstance(each, Raise) for each in entries].index(True) :]
        told = [each for each in behind if isinstance(each, Digest) and each.digest[16:]]
        assert [each.offset for each in told] == [max(mine)]
        assert told[0].digest != mine[told[0].offset]
        assert await two.note("it goes on") == 2
