"""Conformance cases: the store's identity, its revision, the limits of a transaction."""

from __future__ import annotations

from ...promises import collect, expect
from .._values import Committed, Compare, Delta, Missing, Operation, Put, TooOld
from ..abc import MetadataStore
from ..errors import StoreUnsupportedError, TransactionTooLargeError
from ._frame import Bench, Case, commit, expect_equal, raising, see

CASES: list[Case] = []
_case = collect(Case, CASES)

_MOST_OPERATIONS = 2_000
"""As many are tried of a store that takes more."""

_MOST_BYTES = 2 << 20


async def _identities(store: MetadataStore) -> set[str]:
    """The identities that all kinds of readings carry."""
    listing = await store.list("")
    recent, never = (
        await store.changes("", listing.revision),
        await store.changes("", listing.revision + 1_000_000),
    )
    return {(await store.get("k")).store_id, listing.store_id, recent.store_id, never.store_id}


@_case
async def every_reading_names_the_store(bench: Bench) -> None:
    """Every reading carries the identity of the store: never empty, and the same for every handle."""
    async with bench.handle() as one, bench.handle() as two:
        before = await _identities(one)
        expect(
            len(before) == 1 and all(before), f"the identities that readings of one handle carry: {before}"
        )
        await commit(two, Put("k", b""))
        expect_equal(await _identities(two), before, "the identity that another handle reads")
        async with bench.handle() as three:
            expect_equal(await _identities(three), before, "the identity that a later handle reads")


@_case
async def revision_is_raised_above_what_readers_know(bench: Bench) -> None:
    """`raise_revision` leads above the floor, forgets the history, tells watches, and takes an identity over."""
    async with bench.handle() as store, bench.handle() as other, other.watch("") as watch:
        before = await commit(store, Put("k", b"1"), Put("j", b"1"))
        await see(bench, watch, before.revision, "the first commit")
        floor = before.revision + 1_000
        try:
            raised = await store.raise_revision(floor)
        except StoreUnsupportedError:
            return
        expect(raised > floor, f"the revision {raised} is not above {floor}")
        await see(bench, watch, raised, "the revision that was raised")
        for handle in (store, other):
            listing = await handle.list("")
            expect(listing.revision >= raised, f"a listing at {listing.revision} after a raise to {raised}")
            expect_equal(
                {key: e.value for key, e in listing.entries.items()}, {"k": b"1", "j": b"1"}, "the keys"
            )
            expect_equal({e.version for e in listing.entries.values()}, {1}, "the versions after a raise")
            for since in (before.revision, floor):
                answer = await handle.changes("", since)
                expect(
                    isinstance(answer, TooOld), f"changes since {since} after a raise to {raised}: {answer}"
                )
        done = await commit(other, Put("k", b"2"))
        expect(done.revision > raised, f"the commit at {done.revision} after a raise to {raised}")
        expect_equal(done.versions["k"], 2, "the version of the key after a raise")
        delta = await store.changes("", listing.revision)
        expect(
            not isinstance(delta, Delta) or set(delta.entries) == {"k"}, f"the delta after a raise: {delta}"
        )
        again = await store.raise_revision(0, store_id="0123456789abcdef" * 2)
        expect(again > done.revision, "a second raise did not raise the revision")
        for handle in (store, other):
            expect_equal(
                await _identities(handle), {"0123456789abcdef" * 2}, "the identity that was taken over"
            )
        async with bench.handle() as third:
            expect_equal(
                await _identities(third), {"0123456789abcdef" * 2}, "the identity for a later handle"
            )


@_case
async def transaction_within_the_limits_is_taken(bench: Bench) -> None:
    """A transaction within `limits` is committed in whole: as many operations and compares, as many bytes."""
    async with bench.handle() as store:
        limits = store.limits
        count = min(limits.max_operations or _MOST_OPERATIONS, _MOST_OPERATIONS)
        keys = [f"limits/{number:05}/{'é' * 4}" for number in range(count)]
        while limits.max_bytes is not None and _size(store, keys) > limits.max_bytes:
            keys = keys[: len(keys) * 9 // 10]
        compares: list[Compare] = [Missing(key) for key in keys]
        await commit(store, *(Put(key, b"12345678") for key in keys), given=tuple(compares))
        expect_equal(
            len((await store.list("limits/")).entries), len(keys), "the keys of the largest transaction"
        )
        most = min(limits.max_bytes or _MOST_BYTES, _MOST_BYTES)
        await commit(store, Put("bytes", bytes(most - limits.size_of(Put("bytes", b"")))))


def _size(store: MetadataStore, keys: list[str]) -> int:
    return sum(store.limits.size_of(Put(key, b"12345678"), Missing(key)) for key in keys)


@_case
async def transaction_above_the_limits_is_refused(bench: Bench) -> None:
    """A transaction above `limits` raises `TransactionTooLargeError` at once and writes nothing; all goes on."""
    async with bench.handle() as store:
        limits = store.limits
        too_much: list[tuple[list[Compare], list[Operation]]] = []
        if limits.max_operations is not None:
            keys = [f"k{number}" for number in range(limits.max_operations + 1)]
            too_much += [
                ([], [Put(key, b"") for key in keys]),
                ([Missing(key) for key in keys], [Put("k", b"")]),
            ]
        if limits.max_bytes is not None:
            value = bytes(limits.max_bytes // 2)
            too_much.append(([], [Put("a", value), Put("b", value), Put("c", value)]))
        for compares, operations in too_much:
            with raising(TransactionTooLargeError):
                await store.commit(compares, operations)
        expect_equal((await store.list("")).entries, {}, "the store after refused transactions")
        expect(
            isinstance(await store.commit([], [Put("k", b"")]), Committed), "a small commit after a large one"
        )
