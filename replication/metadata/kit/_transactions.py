"""Conformance cases: reads and transactions."""

from __future__ import annotations

import trio

from ...promises import PromiseBrokenError, collect, expect
from .._values import (
    Committed,
    Compare,
    Conflict,
    Delete,
    Entry,
    Exists,
    Missing,
    Operation,
    Put,
    ValueIs,
    VersionIs,
)
from ..abc import MetadataStore
from ..errors import InvalidTransactionError, StoreClosedError
from ._frame import Bench, Case, commit, expect_equal, raising, value_of

CASES: list[Case] = []
_case = collect(Case, CASES)


@_case
async def missing_key_reads_as_none(bench: Bench) -> None:
    """A key that was never put reads as None, and a fresh store lists nothing."""
    async with bench.handle() as store:
        expect((await store.get("absent")).entry is None, "a key that was never put has an entry")
        expect_equal((await store.list("")).entries, {}, "the listing of a fresh store")


@_case
async def put_creates_at_version_one(bench: Bench) -> None:
    """The first put of a key makes version 1, at the revision that the outcome names."""
    async with bench.handle() as store:
        before = (await store.get("k")).revision
        done = await commit(store, Put("k", b"v"))
        expect(done.revision > before, "the revision did not rise")
        expect_equal(dict(done.versions), {"k": 1}, "the versions of the outcome")
        read = await store.get("k")
        expect_equal(read.entry, Entry("k", b"v", 1, done.revision, None), "the entry")
        expect_equal(read.revision, done.revision, "the revision of the read")


@_case
async def each_put_raises_the_version_by_one(bench: Bench) -> None:
    """A put of an existing key adds one to its version, also with the same value, and leaves other keys alone."""
    async with bench.handle() as store:
        first = await commit(store, Put("k", b"same"), Put("other", b"x"))
        entry = (await store.get("k")).entry
        expect_equal(
            entry, Entry("k", b"same", 1, first.revision, None), "the first of two keys put together"
        )
        second = await commit(store, Put("k", b"same"))
        expect_equal(second.versions["k"], 2, "the version after the second put")
        expect(second.revision > first.revision, "the revision did not rise")
        other = (await store.get("other")).entry
        expect_equal(other, Entry("other", b"x", 1, first.revision, None), "a key that was not put")


@_case
async def version_starts_again_after_delete(bench: Bench) -> None:
    """A key that is deleted and put again is at version 1."""
    async with bench.handle() as store:
        await commit(store, Put("k", b"1"))
        await commit(store, Put("k", b"2"))
        await commit(store, Delete("k"))
        expect(await value_of(store, "k") is None, "the deleted key is still there")
        expect_equal((await commit(store, Put("k", b"3"))).versions["k"], 1, "the version after a delete")


@_case
async def commit_is_all_or_nothing(bench: Bench) -> None:
    """If one compare does not hold, no operation takes place and no revision is used."""
    async with bench.handle() as store:
        done = await commit(store, Put("kept", b"1"), Put("taken", b"1"))
        operations: list[Operation] = [Put("new", b"2"), Delete("kept"), Put("taken", b"2")]
        outcome = await store.commit([Exists("kept"), Missing("taken")], operations)
        expect_equal(outcome, Conflict("taken"), "the outcome")
        listing = await store.list("")
        expect_equal(
            {k: e.value for k, e in listing.entries.items()}, {"kept": b"1", "taken": b"1"}, "the store"
        )
        expect_equal(listing.revision, done.revision, "the revision after a conflict")


@_case
async def conflict_names_the_first_failing_compare(bench: Bench) -> None:
    """`Conflict.key` is the key of the first compare, in the caller's order, that does not hold."""
    async with bench.handle() as store:
        await commit(store, Put("a", b"1"), Put("b", b"1"))
        compares: list[Compare] = [VersionIs("a", 1), VersionIs("b", 7), Missing("a")]
        expect_equal(await store.commit(compares, [Put("c", b"")]), Conflict("b"), "the outcome")


@_case
async def compares_mean_what_they_say(bench: Bench) -> None:
    """`VersionIs`, `Exists`, `Missing` and `ValueIs` hold exactly as documented; `VersionIs(k, 0)` never does."""
    async with bench.handle() as store:
        await commit(store, Put("k", b"v"))
        holding: list[Compare] = [VersionIs("k", 1), Exists("k"), Missing("none"), ValueIs("k", b"v")]
        failing: list[Compare] = [
            *(VersionIs("k", 2), Missing("k"), ValueIs("k", b"w"), ValueIs("k", b"")),
            *(VersionIs("none", 1), VersionIs("none", 0), Exists("none"), ValueIs("none", b"")),
        ]
        for compare in holding:
            expect(isinstance(await store.commit([compare], []), Committed), f"{compare} does not hold")
        for compare in failing:
            expect_equal(await store.commit([compare], []), Conflict(compare.key), f"{compare}")


@_case
async def compares_see_the_state_before_the_operations(bench: Bench) -> None:
    """A transaction may require that a key is missing and create it."""
    async with bench.handle() as store:
        await commit(store, Put("k", b""), given=(Missing("k"),))
        outcome = await store.commit([Missing("k")], [Put("k", b"")])
        expect_equal(outcome, Conflict("k"), "the second creation")


@_case
async def nothing_changed_raises_no_revision(bench: Bench) -> None:
    """Only compares, or only deletes of missing keys: committed, at the revision that stands."""
    async with bench.handle() as store:
        revision = (await commit(store, Put("k", b""))).revision
        expect_equal(await store.commit([Exists("k")], []), Committed(revision, {}), "a check alone")
        expect_equal(await store.commit([], [Delete("none")]), Committed(revision, {}), "a delete of nothing")
        expect_equal((await store.get("k")).revision, revision, "the revision of a read")


@_case
async def list_is_exact_and_in_key_order(bench: Bench) -> None:
    """A listing has just the keys with the prefix, in the order of code points, whatever the characters."""
    keys = ["a", "a/", "a/1", "a/10", "a/2", "a/\U0010ffff", "a/\U0010ffffz", "a0", "a/é", "b", "é", "A/1"]
    async with bench.handle() as store:
        await commit(store, *(Put(key, key.encode()) for key in keys))
        for prefix in ("", "a", "a/", "a/1", "a/\U0010ffff", "é", "zz"):
            wanted = sorted(key for key in keys if key.startswith(prefix))
            entries = (await store.list(prefix)).entries
            expect_equal(list(entries), wanted, f"the keys under {prefix!r}")
            expect(all(e.key == k and e.value == k.encode() for k, e in entries.items()), "mixed up entries")


@_case
async def values_are_kept_byte_for_byte(bench: Bench) -> None:
    """Values may be empty, hold any byte, and be 256 KiB long."""
    values = {"empty": b"", "zeros": bytes(100), "all": bytes(range(256)), "long": b"\x00\xff" * 131_072}
    async with bench.handle() as store, bench.handle() as other:
        for key, value in values.items():
            await commit(store, Put(key, value))
            expect(await value_of(other, key) == value, f"the value {key!r} came back changed")


@_case
async def many_keys_in_one_transaction(bench: Bench) -> None:
    """A transaction may compare and put 500 keys, within the limits, as a whole or not at all."""
    async with bench.handle() as store:
        keys = [f"partition/{number:03}" for number in range(min(500, store.limits.max_operations or 500))]
        await commit(store, *(Put(key, b"1") for key in keys), given=tuple(Missing(key) for key in keys))
        compares: list[Compare] = [*(VersionIs(key, 1) for key in keys[:-1]), VersionIs(keys[-1], 2)]
        puts: list[Operation] = [Put(key, b"2") for key in keys]
        expect_equal(await store.commit(compares, puts), Conflict(keys[-1]), "the outcome")
        entries = (await store.list("partition/")).entries.values()
        expect(
            len(entries) == len(keys) and all(e.value == b"1" for e in entries),
            "part of the transaction was kept",
        )
        done = await commit(store, *puts, given=tuple(VersionIs(key, 1) for key in keys))
        expect_equal(dict(done.versions), dict.fromkeys(keys, 2), "the versions")


@_case
async def committed_is_visible_to_every_handle(bench: Bench) -> None:
    """Once a commit has returned, a read through any handle sees it, at its revision or a later one."""
    async with bench.handle() as one, bench.handle() as two:
        for number in range(20):
            writer, reader = (one, two) if number % 2 else (two, one)
            done = await commit(writer, Put("k", str(number).encode()))
            read = await reader.get("k")
            expect(read.entry is not None and read.entry.value == str(number).encode(), "a stale read")
            expect(read.revision >= done.revision, "a read at an older revision than the commit")


@_case
async def concurrent_compare_and_set_loses_no_update(bench: Bench) -> None:
    """Of several handles that raise one counter by compare-and-set, no update is lost."""
    tasks, rounds = 4, 15
    async with bench.handle() as one, bench.handle() as two:
        await commit(one, Put("counter", b"0"))
        async with trio.open_nursery() as nursery:
            for number in range(tasks):
                nursery.start_soon(_count, one if number % 2 else two, rounds)
        entry = (await one.get("counter")).entry
    expect(entry is not None and int(entry.value) == tasks * rounds, f"updates were lost: {entry}")


async def _count(store: MetadataStore, rounds: int) -> None:
    while rounds:
        entry = (await store.get("counter")).entry
        if entry is None:
            raise PromiseBrokenError("the counter vanished")
        raised = Put("counter", str(int(entry.value) + 1).encode())
        outcome = await store.commit([VersionIs("counter", entry.version)], [raised])
        rounds -= isinstance(outcome, Committed)


@_case
async def listing_is_one_snapshot(bench: Bench) -> None:
    """Two keys that are always written together never differ in a listing."""
    async with bench.handle() as writer, bench.handle() as reader, trio.open_nursery() as nursery:
        await commit(writer, Put("pair/a", b"0"), Put("pair/b", b"0"))
        done = trio.Event()
        nursery.start_soon(_write_pairs, writer, done)
        while not done.is_set():
            entries = (await reader.list("pair/")).entries
            expect_equal(entries["pair/a"].value, entries["pair/b"].value, "the two halves of a pair")


async def _write_pairs(store: MetadataStore, done: trio.Event) -> None:
    for number in range(60):
        await commit(store, *(Put(key, str(number).encode()) for key in ("pair/a", "pair/b")))
    done.set()


@_case
async def malformed_transactions_are_refused(bench: Bench) -> None:
    """Empty keys, NUL, a key changed twice, text values and ephemeral puts without a session are refused."""
    malformed: list[list[Operation]] = [
        [Put("", b"")],
        [Put("a\0b", b"")],
        [Put("k", b"1"), Delete("k")],
        [Put("k", "text")],  # type: ignore[arg-type]
        [Put("k", b"", ephemeral=True)],
    ]
    async with bench.handle() as store:
        for operations in malformed:
            with raising(InvalidTransactionError):
                await store.commit([], operations)
        expect_equal((await store.list("")).entries, {}, "the store after refused transactions")


@_case
async def handle_works_inside_its_block_only(bench: Bench) -> None:
    """Before entering and after leaving, every method raises `StoreClosedError`; entering twice does too."""
    store = bench.handle()
    with raising(StoreClosedError):
        await store.get("k")
    async with store:
        await commit(store, Put("k", b""))
    with raising(StoreClosedError):
        await store.list("")
    with raising(StoreClosedError):
        await store.commit([], [Put("k", b"")])
    with raising(StoreClosedError):
        await store.__aenter__()


@_case
async def data_outlives_its_handle(bench: Bench) -> None:
    """Data that one handle committed is there for the next while some handle stays open."""
    async with bench.handle() as keeper:
        async with bench.handle() as first:
            await commit(first, Put("k", b"v"))
        async with bench.handle() as second:
            expect_equal(await value_of(second, "k"), b"v", "the value")
        expect_equal(await value_of(keeper, "k"), b"v", "the value")
