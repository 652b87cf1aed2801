"""Conformance cases: deltas."""

from __future__ import annotations

import random

import trio

from ....transport.patience import PATIENCE
from ...promises import PromiseBrokenError, collect, expect
from .._values import Delete, Delta, Listing, Operation, Put, TooOld
from ..abc import MetadataStore, Session
from ._frame import LONG_MS, Bench, Case, commit, expect_equal

CASES: list[Case] = []
_case = collect(Case, CASES)

_KEYS = ("a", "a/1", "a/2", "a/é", "a0", "b/1", "b/2")
_PREFIXES = ("", "a/", "b/")


async def _delta(bench: Bench, store: MetadataStore, prefix: str, since: int) -> Delta | None:
    """The delta since a recent revision; None only from a store that keeps no history."""
    answer = await store.changes(prefix, since)
    if isinstance(answer, Delta):
        return answer
    expect_equal(type(answer), TooOld, "the answer to `changes`")
    expect(not bench.keeps_history, f"changes since the recent revision {since} are {answer}")
    return None


async def _check(bench: Bench, store: MetadataStore, prefix: str, held: Listing) -> Listing:
    """The held listing and the delta since add up to the present listing, which is returned."""
    while True:
        delta = await _delta(bench, store, prefix, held.revision)
        listing = await store.list(prefix)
        if delta is None or delta.revision == listing.revision:
            break
        expect(delta.revision < listing.revision, f"{delta} is ahead of the listing at {listing.revision}")
    if delta is not None:
        expect(
            all(key.startswith(prefix) for key in (*delta.entries, *delta.deleted)),
            f"the delta of {prefix!r} names other keys: {delta}",
        )
        expect_equal(
            delta.apply(held).entries,
            listing.entries,
            f"the listing of {prefix!r} at {held.revision} and the delta up to {delta.revision}, together",
        )
    return listing


class _History:
    """Random steps through two handles, with a session at each."""

    def __init__(self, seed: int, handles: list[MetadataStore], timeout_ms: int) -> None:
        self.handles = handles
        self.sessions: list[Session] = []
        self._random = random.Random(seed)
        self._timeout_ms = timeout_ms

    async def begin(self) -> None:
        self.sessions = [await handle.open_session(self._timeout_ms) for handle in self.handles]

    async def step(self) -> None:
        number = self._random.randrange(len(self.handles))
        handle = self.handles[number]
        if self._random.random() < 0.1:
            await self.sessions[number].close()
            self.sessions[number] = await handle.open_session(self._timeout_ms)
            return
        keys = self._random.sample(_KEYS, self._random.randint(1, 3))
        await commit(handle, *(self._operation(key) for key in keys), session=self.sessions[number])

    def _operation(self, key: str) -> Operation:
        if self._random.random() < 0.35:
            return Delete(key)
        return Put(key, b"%d" % self._random.randrange(3), ephemeral=self._random.random() < 0.3)


@_case
async def deltas_add_up_to_the_listing(bench: Bench) -> None:
    """A listing and the delta since are the listing now: from any recent revision, under any prefix."""
    async with bench.handle() as one, bench.handle() as two, bench.handle() as reader:
        history = _History(1, [one, two], LONG_MS)
        await history.begin()
        held = {prefix: [await reader.list(prefix)] for prefix in _PREFIXES}
        for number in range(60):
            await history.step()
            prefix = _PREFIXES[number % len(_PREFIXES)]
            listings = held[prefix]
            for listing in (listings[0], listings[number * 7 % len(listings)], listings[-1]):
                newest = await _check(bench, reader, prefix, listing)
            listings.append(newest)


@_case
async def a_delta_shows_what_was_committed_before(bench: Bench) -> None:
    """Once a commit has returned, a delta through any handle has it, and stands at its revision or a later one."""
    async with bench.handle() as one, bench.handle() as two:
        since = (await two.list("d/")).revision
        for number in range(20):
            done = await commit(
                one, Put("d/k", b"%d" % number), *([Delete("d/x")] if number % 2 else [Put("d/x", b"")])
            )
            delta = await _delta(bench, two, "d/", since)
            if delta is None:
                return
            expect(delta.revision >= done.revision, f"{delta} after a commit at revision {done.revision}")
            entry = delta.entries.get("d/k")
            expect(
                entry is not None and entry.value == b"%d" % number,
                f"the delta lacks the put of d/k: {delta}",
            )
            gone = "d/x" in delta.deleted and "d/x" not in delta.entries
            expect(gone == bool(number % 2), f"the delta is wrong about the delete of d/x: {delta}")
            since = delta.revision


@_case
async def a_delta_costs_what_has_changed(bench: Bench) -> None:
    """A delta names what changed since the listing of the same handle, and nothing else."""
    async with bench.handle() as store, bench.handle() as other:
        await commit(other, *(Put(f"d/{number:02}", b"") for number in range(50)))
        since = (await store.list("d/")).revision
        await commit(other, Put("d/07", b"1"), Delete("d/08"))
        delta = await _delta(bench, store, "d/", since)
        if delta is not None:
            expect_equal(
                (list(delta.entries), set(delta.deleted)), (["d/07"], {"d/08"}), "the keys of the delta"
            )
            nothing = await _delta(bench, store, "d/", delta.revision)
            expect_equal(
                nothing, Delta(delta.revision, {}, frozenset()), "the delta when nothing has changed"
            )


@_case
async def ends_of_sessions_are_in_the_delta(bench: Bench) -> None:
    """A closed session's keys are among the deleted at once, a lost one's as soon as a listing lacks them."""
    async with bench.handle() as store, bench.handle() as other:
        for end in ("close", "lose"):
            session = await store.open_session(LONG_MS if end == "close" else bench.short_ms)
            await commit(store, Put("e/k", b"", ephemeral=True), Put(f"e/{end}", b""), session=session)
            held = await other.list("e/")
            expect("e/k" in held.entries, "the key of a live session is not in the listing")
            if end == "close":
                await session.close()
            else:
                bench.lose(session)
            with trio.fail_after(bench.short_seconds + bench.late + PATIENCE):
                async with other.watch("e/") as watch:
                    while "e/k" in (await _check(bench, other, "e/", held)).entries:
                        await watch.__anext__()


@_case
async def a_revision_that_never_was_is_too_old(bench: Bench) -> None:
    """Since a revision beyond its own, as after a restored backup, a store answers `TooOld`."""
    async with bench.handle() as store:
        done = await commit(store, Put("k", b""))
        answer = await store.changes("", done.revision + 1_000_000)
        expect_equal(answer, TooOld(done.revision), "the changes since a revision that never was")


@_case
async def deltas_go_on_with_another_handle(bench: Bench) -> None:
    """A later handle leads on from what another one has listed, or says `TooOld`."""
    async with bench.handle() as writer:
        history = _History(2, [writer], LONG_MS)
        await history.begin()
        held: Listing | None = None
        for _ in range(6):
            async with bench.handle() as reader:
                if held is not None:
                    answer = await reader.changes("", held.revision)
                    if isinstance(answer, Delta):
                        expect_equal(
                            answer.apply(held), await reader.list(""), "what two handles tell together"
                        )
                held = await reader.list("")
                for _ in range(3):
                    await history.step()
                    held = await _check(bench, reader, "", held)
            await history.step()


@_case
async def deltas_are_whole_while_others_write(bench: Bench) -> None:
    """A reader of deltas sees whole transactions, never goes back, and ends in the newest state."""
    rounds = 60
    async with bench.handle() as reader, bench.handle() as writer, trio.open_nursery() as nursery:
        await commit(writer, Put("w/a", b"-1"), Put("w/b", b"-1"), Put("w/x", b""))
        nursery.start_soon(_write_pairs, writer, rounds)
        held = await reader.list("w/")
        async with reader.watch("w/") as watch:
            with trio.fail_after(15 * PATIENCE):
                while held.entries["w/a"].value != b"%d" % (rounds - 1):
                    await watch.__anext__()
                    held = await _follow(reader, held)


async def _write_pairs(store: MetadataStore, rounds: int) -> None:
    for number in range(rounds):
        other = Put("w/x", b"") if number % 2 else Delete("w/x")
        await commit(store, Put("w/a", b"%d" % number), Put("w/b", b"%d" % number), other)
        if number % 7 == 0:
            await trio.sleep(0.003)


async def _follow(store: MetadataStore, held: Listing) -> Listing:
    answer = await store.changes("w/", held.revision)
    now = answer.apply(held) if isinstance(answer, Delta) else await store.list("w/")
    expect(now.revision >= held.revision, f"the reader went back from {held.revision} to {now.revision}")
    pair = [now.entries[key].value for key in ("w/a", "w/b") if key in now.entries]
    if len(pair) != 2 or pair[0] != pair[1]:
        raise PromiseBrokenError(f"the delta up to {now.revision} shows half a transaction: {pair}")
    expect_equal("w/x" in now.entries, int(pair[0]) % 2 == 1, f"whether w/x is there with the pair {pair}")
    return now
