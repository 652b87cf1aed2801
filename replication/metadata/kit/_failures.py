"""Conformance cases: lost connections and answers, large transactions, sessions that die while they write."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import trio

from ....transport.patience import PATIENCE
from ....transport.verdicts import NotTestedError
from ...promises import PromiseBrokenError, collect, expect
from .._values import Committed, Delete, Delta, Entry, Operation, Outcome, Put, Unknown
from ..abc import MetadataStore, Session, Watch
from ..errors import InvalidTransactionError, MetadataError, SessionExpiredError, StoreUnavailableError
from ._frame import Bench, Case, commit, cut, expect_equal, see, value_of

CASES: list[Case] = []
_case = collect(Case, CASES)

_LEAST_CUTS, _MOST_CUTS = 48, 400
_MOMENTS = 16
_GOLDEN = 0.618034
"""Multiples of it, without the whole part, lie evenly wherever one stops."""
_PATIENCE_SECONDS = 8.0 * PATIENCE
"""How long a handle may take until it has found its service again."""


async def _again(call: Callable[[], Awaitable[object]]) -> object:
    """The result of a call once the handle is connected again."""
    with trio.move_on_after(_PATIENCE_SECONDS):
        while True:
            try:
                return await call()
            except StoreUnavailableError:
                await trio.sleep(0.01)
    raise PromiseBrokenError(f"the handle was not connected again within {_PATIENCE_SECONDS:g} s")


@_case
async def no_change_is_lost_over_a_lost_connection(bench: Bench) -> None:
    """A watch shows what was committed around a lost connection, at the latest by a `Resync` when it is back."""
    async with bench.handle() as store, bench.handle() as other, store.watch("w/") as watch:
        await watch.__anext__()
        for number in range(5):
            done = await commit(other, Put("w/before", b"%d" % number))
            await see(bench, watch, done.revision, "a commit before the connection is cut")
            if not await cut(bench, store):
                return
            await _again(partial(commit, other, Put("w/k", b"%d" % number)))
            await _until_seen(store, watch, number)


async def _until_seen(store: MetadataStore, watch: Watch, number: int) -> None:
    with trio.move_on_after(_PATIENCE_SECONDS):
        while True:  # who looks without an event sees it in any case
            await watch.__anext__()
            if await _again(lambda: value_of(store, "w/k")) == b"%d" % number:
                return
    raise PromiseBrokenError(f"no event led to change {number}, committed after the connection was lost")


@_case
async def deltas_go_on_over_a_lost_connection(bench: Bench) -> None:
    """A listing from before a lost connection and the delta after it add up, with what happened in between."""
    async with bench.handle() as store, bench.handle() as other:
        await commit(other, Put("d/kept", b"1"), Put("d/gone", b"1"))
        for number in range(3):
            held = await store.list("d/")
            if not await cut(bench, store):
                return
            change = Put("d/gone", b"") if number % 2 else Delete("d/gone")
            await _again(partial(commit, other, Put("d/kept", b"%d" % number), change))
            delta = await _again(partial(store.changes, "d/", held.revision))
            listing = await store.list("d/")
            if isinstance(delta, Delta):
                expect_equal(
                    delta.apply(held).entries, listing.entries, "the listing before and the delta after it"
                )


@_case
async def a_lost_answer_is_unknown(bench: Bench) -> None:
    """`StoreUnavailableError` of a transaction means that nothing was written; a lost answer makes it `Unknown`."""
    refused: list[str] = []
    lost_answers = 0
    async with bench.handle() as store, bench.handle() as other:
        began = trio.current_time()
        await commit(store, Put("n/first", b"v"))
        usual = trio.current_time() - began
        number = 0
        while number < _LEAST_CUTS or not lost_answers:
            if number == _MOST_CUTS or trio.current_time() > began + _PATIENCE_SECONDS:
                raise NotTestedError(
                    f"none of {number} cuts came between a write and its answer; let `disconnect` cut at once, or "
                    "make the bench's answers slower"
                )
            key = f"n/{number:03}"
            # Some moments later, for answers that come at once, or at every part of the time that a commit takes.
            pause = usual * (number * _GOLDEN % 1) if number % 2 else 0.0
            # The same few moments come again and again: by which of two tasks trio begins is left to chance.
            moments = number // 2 % _MOMENTS
            outcome, was_under_way = await _commit_while_cut(bench, store, key, moments, pause)
            if outcome is None:
                return
            there = await _again(partial(value_of, other, key))
            lost_answers += was_under_way and there is not None
            if isinstance(outcome, StoreUnavailableError):
                refused.append(key)
            elif isinstance(outcome, Committed):
                expect_equal(there, b"v", f"the value of {key}, which was committed")
            await _again(lambda: store.get("n/"))
            number += 1
        written = (await other.list("n/")).entries
        expect(
            not written.keys() & set(refused),
            f"written, though the store said that nothing was: {sorted(written.keys() & set(refused))}",
        )


async def _commit_while_cut(
    bench: Bench, store: MetadataStore, key: str, checkpoints: int, pause: float
) -> tuple[Outcome | StoreUnavailableError | None, bool]:
    """The outcome of a commit when the connection is cut so many moments or seconds later, and whether it was under
    way then. None: there is none to cut."""
    outcomes: list[Outcome | StoreUnavailableError] = []
    has_begun = False

    async def begin() -> None:
        nonlocal has_begun
        has_begun = True
        try:
            outcomes.append(await store.commit([], [Put(key, b"v")]))
        except StoreUnavailableError as error:
            outcomes.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(begin)
        if pause:
            await trio.sleep(pause)
        else:
            for _ in range(checkpoints):
                await trio.lowlevel.checkpoint()
        was_under_way = has_begun and not outcomes
        was_cut = await cut(bench, store)
    return (outcomes[0] if was_cut else None), was_under_way


@_case
async def readers_never_see_half_of_a_large_transaction(bench: Bench) -> None:
    """A reader sees all of a transaction of 11, 101 or 501 operations or nothing, in listings and deltas."""
    async with bench.handle() as writer, bench.handle() as reader:
        for size in (11, 101, 501):
            count = min(size, writer.limits.max_operations or size)
            keys = [f"large/{count}/{number:03}" for number in range(count)]
            await commit(writer, *(Put(key, b"-1") for key in keys))
            async with trio.open_nursery() as nursery:
                done = trio.Event()
                nursery.start_soon(_write_all, writer, keys, done)
                held = await reader.list(f"large/{count}/")
                while not done.is_set():
                    answer = await reader.changes(f"large/{count}/", held.revision)
                    held = (
                        answer.apply(held)
                        if isinstance(answer, Delta)
                        else await reader.list(f"large/{count}/")
                    )
                    _expect_one_transaction(held.entries, count)
                    _expect_one_transaction((await reader.list(f"large/{count}/")).entries, count)


async def _write_all(store: MetadataStore, keys: list[str], done: trio.Event) -> None:
    for number in range(6):
        await commit(store, *(Put(key, b"%d" % number) for key in keys))
    done.set()


def _expect_one_transaction(entries: dict[str, Entry], count: int) -> None:
    seen = {(entry.value, entry.revision) for entry in entries.values()}
    expect(
        len(seen) == 1 and len(entries) == count,
        f"{len(entries)} of {count} keys, of the transactions {seen}",
    )


@_case
async def a_dying_session_never_writes_half(bench: Bench) -> None:
    """The writes of a dying session are whole: persistent and ephemeral keys and deletes, or nothing of them."""
    async with bench.handle() as store, bench.handle() as other:
        session = await store.open_session(bench.short_ms)
        await commit(store, Put("d/start", b"", ephemeral=True), session=session)
        bench.lose(session)
        committed: set[int] = set()
        unclear: set[int] = set()
        number = 0
        with trio.fail_after(bench.short_seconds + bench.late + 5 * PATIENCE):
            while True:
                await commit(other, Put(f"d/old/{number}", b""))
                mixed: list[Operation] = [
                    Put(f"d/persistent/{number}", b""),
                    Put(f"d/ephemeral/{number}", b"", ephemeral=True),
                    Delete(f"d/old/{number}"),
                ]
                try:
                    outcome = await store.commit([], mixed, session=session)
                except SessionExpiredError:
                    if await value_of(other, "d/start") is None:
                        break
                except StoreUnavailableError:
                    pass
                else:
                    (unclear if isinstance(outcome, Unknown) else committed).add(number)
                number += 1
                await trio.sleep(bench.short_seconds / 40)
        keys = (await other.list("d/")).entries.keys()
        for each in range(number + 1):
            halves = f"d/persistent/{each}" in keys, f"d/old/{each}" not in keys
            expect(halves[0] == halves[1], f"transaction {each} was written in part: put, deleted = {halves}")
            if each not in unclear:
                expect_equal(halves[0], each in committed, f"whether transaction {each} was written")
        expect(
            not any("ephemeral" in key for key in keys), "ephemeral keys of a session that is over are there"
        )


@_case
async def a_session_needs_its_event_loop(bench: Bench) -> None:
    """A process whose event loop hangs for longer than the timeout loses its session, whatever its threads do."""
    if not bench.renews_sessions:
        return
    async with bench.handle() as store:
        session = await store.open_session(bench.short_ms)
        await commit(store, Put("e/k", b"", ephemeral=True), session=session)
        time.sleep(bench.short_seconds * 1.5 + bench.late)  # noqa: ASYNC251 - the hang
        await _refused(store, session)
        expect(session.expired.is_set(), "`expired` is not set after the event loop hung")
        with trio.move_on_after(bench.short_seconds + bench.late + 5 * PATIENCE):
            async with store.watch("e/") as watch:
                while await _again(lambda: value_of(store, "e/k")) is not None:
                    await watch.__anext__()
        expect(await value_of(store, "e/k") is None, "the key of a process that hung is still there")


async def _refused(store: MetadataStore, session: Session) -> None:
    with trio.move_on_after(_PATIENCE_SECONDS):
        while True:
            try:
                outcome = await store.commit([], [Put("e/zombie", b"")], session=session)
            except SessionExpiredError:
                return
            except StoreUnavailableError:
                await trio.sleep(0.01)
                continue
            expect(isinstance(outcome, Unknown), f"a session whose event loop hung has written: {outcome}")
    raise PromiseBrokenError("a session whose event loop hung was not refused")


@_case
async def only_errors_of_the_interface_are_raised(bench: Bench) -> None:
    """The store raises nothing but a `MetadataError`, whatever the arguments, and while connections are lost."""
    odd = [".", "..", "/", "//", "a" * 300, "%2F", " ", "\n", "\x7f", "é\U0010ffff", "zookeeper"]
    async with bench.handle() as store:
        for key in odd:
            await commit(store, Put(key, key.encode()))
            expect_equal(await value_of(store, key), key.encode(), f"the value of the key {key!r}")
        expect_equal(sorted((await store.list("")).entries), sorted(odd), "the keys")
        await store.changes("", -1)
        await store.changes("", 1 << 62)
        for number, broken in enumerate(_broken_calls(store)):
            try:
                await broken()
            except InvalidTransactionError:
                continue
            raise PromiseBrokenError(
                f"an argument that breaks the rules was taken: number {number} of the case's"
            )
        for moments in range(1, 7):
            if not await cut(bench, store):
                return
            async with trio.open_nursery() as nursery:
                for call in _calls(store):
                    nursery.start_soon(_harmless, call)
                # After one they may all wait still to begin; after more some are on their way.
                for _ in range(moments):
                    await trio.lowlevel.checkpoint()
                await cut(bench, store)
        await _again(lambda: store.get("k"))


def _broken_calls(store: MetadataStore) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: store.get(""),
        lambda: store.list("\0"),
        lambda: store.changes("\ud800", 0),
        lambda: store.open_session(-5),
        lambda: _watch_once(store, "\0"),
        lambda: store.commit([], [7]),  # type: ignore[list-item]
        lambda: store.commit([None], []),  # type: ignore[list-item]
    ]


def _calls(store: MetadataStore) -> list[Callable[[], Awaitable[object]]]:
    put: list[Operation] = [Put("k", b"")]
    return [
        lambda: store.get("k"),
        lambda: store.list(""),
        lambda: store.changes("", 0),
        lambda: store.commit([], put),
        lambda: _watch_once(store, ""),
    ]


async def _watch_once(store: MetadataStore, prefix: str) -> None:
    async with store.watch(prefix) as watch:
        await watch.__anext__()


async def _harmless(call: Callable[[], Awaitable[object]]) -> None:
    with suppress(MetadataError):
        await call()
