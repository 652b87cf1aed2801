"""Conformance cases: sessions and ephemeral keys."""

from __future__ import annotations

import trio

from ...promises import collect, expect
from .._values import Delete, Exists, Missing, Put, Unknown
from ..abc import MetadataStore, Session
from ..errors import InvalidTransactionError, SessionExpiredError, StoreUnavailableError
from ._frame import LONG_MS, Bench, Case, commit, expect_equal, raising, value_of

CASES: list[Case] = []
_case = collect(Case, CASES)


async def _gone(store: MetadataStore, key: str) -> None:
    """Return when `key` has vanished for `store`."""
    while True:
        if await value_of(store, key) is None:
            return
        await trio.sleep(0.002)


async def _refused(store: MetadataStore, put: Put, session: Session) -> None:
    """A session that is over may not write. The connection may end with it: then nobody knows for a moment."""
    with raising(SessionExpiredError):
        while True:
            try:
                if not isinstance(await store.commit([], [put], session=session), Unknown):
                    return
            except StoreUnavailableError:
                await trio.sleep(0.002)


@_case
async def ephemeral_key_names_its_session(bench: Bench) -> None:
    """An ephemeral key carries its session's id for every reader; ids are never used twice."""
    async with bench.handle() as store, bench.handle() as other:
        first = await store.open_session(LONG_MS)
        await commit(store, Put("e", b"1", ephemeral=True), Put("p", b"1"), session=first)
        entries = (await other.list("")).entries
        expect_equal({k: e.session_id for k, e in entries.items()}, {"e": first.id, "p": None}, "the owners")
        await first.close()
        second = await other.open_session(bench.short_ms)
        expect(second.id != first.id, "a session id was used twice")
        expect_equal(second.timeout_ms, bench.short_ms, "the timeout granted")


@_case
async def close_deletes_ephemeral_keys_at_once(bench: Bench) -> None:
    """Closing a session deletes its ephemeral keys, no others, in one revision; `expired` is set."""
    async with bench.handle() as store, bench.handle() as other:
        one, two = await store.open_session(LONG_MS), await store.open_session(LONG_MS)
        await commit(store, Put("e/1", b"", ephemeral=True), Put("e/2", b"", ephemeral=True), session=one)
        await commit(store, Put("e/3", b"", ephemeral=True), session=two)
        before = await commit(store, Put("p", b""), session=one)
        await one.close()
        listing = await other.list("")
        expect_equal(list(listing.entries), ["e/3", "p"], "the keys left")
        expect(listing.revision > before.revision, "the end of a session raised no revision")
        expect(one.expired.is_set(), "`expired` is not set after close")
        expect(not two.expired.is_set(), "another session ended too")
        await one.close()


@_case
async def renewed_session_lives_on(bench: Bench) -> None:
    """A session whose process runs does not end, however long."""
    async with bench.handle() as store, bench.handle() as other:
        session = await store.open_session(bench.short_ms)
        await commit(store, Put("e", b"", ephemeral=True), session=session)
        with trio.move_on_after(3 * bench.short_seconds):
            await session.expired.wait()
        expect(not session.expired.is_set(), "a renewed session expired")
        expect(await value_of(other, "e") is not None, "the key of a live session vanished")
        await commit(store, Put("p", b""), session=session)


@_case
async def lost_session_ends_after_its_timeout(bench: Bench) -> None:
    """Without renewals the ephemeral keys vanish within timeout + late_seconds, and not much too soon."""
    timeout = bench.short_seconds
    async with bench.handle() as store, bench.handle() as other:
        session = await store.open_session(bench.short_ms)
        await commit(store, Put("e", b"", ephemeral=True), Put("p", b""), session=session)
        bench.lose(session)
        began = trio.current_time()
        with trio.move_on_after(timeout + bench.late):
            await _gone(other, "e")
        expect(await value_of(other, "e") is None, "the key of a lost session is still there")
        expect(trio.current_time() - began > timeout / 2, "the session ended long before its timeout")
        expect(await value_of(other, "p") is not None, "a persistent key vanished with the session")


@_case
async def dead_session_cannot_write(bench: Bench) -> None:
    """A commit with a session that is over writes nothing; it raises `SessionExpiredError`, and `expired` is set.

    With the session its connection may end, so that the outcome of a first attempt is `Unknown`.
    """
    async with bench.handle() as store, bench.handle() as other:
        session = await store.open_session(bench.short_ms)
        await commit(store, Put("e", b"", ephemeral=True), session=session)
        bench.lose(session)
        await _gone(other, "e")
        await _refused(store, Put("p", b""), session)
        expect(session.expired.is_set(), "`expired` is not set after a refused commit")
        expect(await value_of(other, "p") is None, "a dead session wrote")
        await _refused(store, Put("e", b"", ephemeral=True), session)


@_case
async def closed_session_cannot_write(bench: Bench) -> None:
    """A commit with a closed session raises `SessionExpiredError`, even if the compares would not hold."""
    async with bench.handle() as store:
        session = await store.open_session(LONG_MS)
        await session.close()
        with raising(SessionExpiredError):
            await store.commit([Exists("none")], [Put("p", b"")], session=session)
        expect(await value_of(store, "p") is None, "a closed session wrote")


@_case
async def key_of_a_dead_session_counts_as_missing(bench: Bench) -> None:
    """Once a session is over, another one can take its key with `Missing`, and keeps it."""
    async with bench.handle() as store, bench.handle() as other:
        lost, heir = await store.open_session(bench.short_ms), await other.open_session(LONG_MS)
        await commit(store, Put("role", b"lost", ephemeral=True), session=lost)
        bench.lose(lost)
        await _gone(other, "role")
        done = await commit(
            other, Put("role", b"heir", ephemeral=True), given=(Missing("role"),), session=heir
        )
        expect_equal(done.versions["role"], 1, "the version of the key taken over")
        expect_equal(await value_of(store, "role"), b"heir", "the value")


@_case
async def a_put_decides_who_owns_the_key(bench: Bench) -> None:
    """A persistent put over an ephemeral key outlives the session; an ephemeral one over any key does not."""
    async with bench.handle() as store:
        session = await store.open_session(LONG_MS)
        await commit(store, Put("a", b"1", ephemeral=True), Put("b", b"1"), session=session)
        await commit(store, Put("a", b"2"))
        done = await commit(store, Put("b", b"2", ephemeral=True), session=session)
        expect_equal(done.versions["b"], 2, "the version of the key taken over")
        await session.close()
        expect_equal(list((await store.list("")).entries), ["a"], "the keys left")


@_case
async def deleted_ephemeral_key_is_forgotten(bench: Bench) -> None:
    """A key that was ephemeral, was deleted and put again as persistent, does not die with the old session."""
    async with bench.handle() as store:
        session = await store.open_session(LONG_MS)
        await commit(store, Put("k", b"1", ephemeral=True), session=session)
        await commit(store, Delete("k"))
        await commit(store, Put("k", b"2"))
        await session.close()
        expect_equal(await value_of(store, "k"), b"2", "the value")


@_case
async def leaving_the_store_ends_its_sessions(bench: Bench) -> None:
    """A handle that is left closes its sessions, so that their keys are gone at once."""
    async with bench.handle() as other:
        async with bench.handle() as store:
            session = await store.open_session(LONG_MS)
            await commit(store, Put("e", b"", ephemeral=True), session=session)
        expect(session.expired.is_set(), "`expired` is not set")
        expect(await value_of(other, "e") is None, "the key of a closed handle is still there")


@_case
async def session_belongs_to_its_handle(bench: Bench) -> None:
    """A session is used through the handle that opened it; any other refuses it."""
    async with bench.handle() as store, bench.handle() as other:
        session = await store.open_session(LONG_MS)
        with raising(InvalidTransactionError):
            await other.commit([], [Put("e", b"", ephemeral=True)], session=session)
        with raising(InvalidTransactionError):
            await store.open_session(0)
