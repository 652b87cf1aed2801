"""The border around stores: whatever a plugin does, its user meets the errors of the interface, and seldom."""

import logging
import math
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from insync.replication.metadata import (
    Changed,
    Committed,
    Delta,
    GuardedStore,
    Listing,
    MemoryHub,
    MemoryStore,
    MetadataStore,
    Missing,
    Put,
    Read,
    Resync,
    Session,
    SessionExpiredError,
    SqliteStore,
    StoreClosedError,
    StoreCorruptError,
    StoreFailedError,
    StoreRefusedError,
    StoreUnavailableError,
    TooOld,
    TransactionTooLargeError,
    Unknown,
    Watch,
    open_store,
)
from insync.replication.metadata._pace import LONGEST_PAUSE
from insync.replication.metadata.guarded import CALL_SECONDS


class ReadTimeout(Exception):
    """As an HTTP client of somebody else raises it."""


class Plugin(MemoryStore):
    """A memory store whose calls first do what a test asks for: raise, or hang."""

    def __init__(self, hub: MemoryHub) -> None:
        super().__init__(hub)
        self.before: Callable[[], Awaitable[None]] | None = None
        self.after: Callable[[], Awaitable[None]] | None = None
        self.in_watch: Callable[[], Awaitable[None]] | None = None
        self.background = trio.Event()

    async def _do(self, function: Callable[[Any], Awaitable[Any]]) -> Any:
        if self.before is not None:
            await self.before()
        result = await function(self)
        if self.after is not None:
            await self.after()
        return result

    async def get(self, key: str) -> Any:
        return await self._do(lambda _: super(Plugin, self).get(key))

    async def list(self, prefix: str) -> Any:
        return await self._do(lambda _: super(Plugin, self).list(prefix))

    async def changes(self, prefix: str, since_revision: int) -> Any:
        return await self._do(lambda _: super(Plugin, self).changes(prefix, since_revision))

    async def commit(self, compares: Any, operations: Any, *, session: Any = None) -> Any:
        return await self._do(lambda _: super(Plugin, self).commit(compares, operations, session=session))

    async def open_session(self, timeout_ms: int) -> Any:
        return await self._do(lambda _: super(Plugin, self).open_session(timeout_ms))

    async def raise_revision(self, floor: int, *, store_id: str | None = None) -> int:
        raised: int = await self._do(lambda _: super(Plugin, self).raise_revision(floor, store_id=store_id))
        return raised

    def watch(self, prefix: str) -> AbstractAsyncContextManager[Watch]:
        return self._watching_also(prefix)

    @asynccontextmanager
    async def _watching_also(self, prefix: str) -> AsyncIterator[Watch]:
        if self.before is not None:
            await self.before()
        async with super().watch(prefix) as watch, trio.open_nursery() as nursery:
            if self.in_watch is not None:
                nursery.start_soon(self.in_watch)
            yield watch
            nursery.cancel_scope.cancel()

    def fail_in_a_task(self) -> None:
        """What a store's own task meets."""

        async def fail() -> None:
            raise ReadTimeout("the read timed out")

        self._live_nursery().start_soon(fail)


@attrs.define
class Scene:
    """A hub, and the handles that were made on it."""

    hub: MemoryHub = attrs.field(factory=MemoryHub)
    made: list[Plugin] = attrs.field(factory=list)

    def make(self) -> MetadataStore:
        self.made.append(Plugin(self.hub))
        return self.made[-1]

    def store(self) -> GuardedStore:
        return GuardedStore(self.make, "the metadata store shaky://host")

    @property
    def plugin(self) -> Plugin:
        return self.made[-1]


async def timeout() -> None:
    raise ReadTimeout("the read timed out")


async def grouped() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timeout)


async def damaged() -> None:
    raise StoreCorruptError("database disk image is malformed")


def reads(store: MetadataStore) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: store.get("k"),
        lambda: store.list(""),
        lambda: store.changes("", 0),
        lambda: store.open_session(1_000),
        lambda: store.raise_revision(0),
    ]


@pytest.mark.parametrize("how", [timeout, grouped])
async def test_foreign_error_of_a_call_is_an_outage_that_names_it(
    how: Callable[[], Awaitable[None]], autojump_clock: MockClock
) -> None:
    scene = Scene()
    async with scene.store() as store:
        scene.plugin.before = how
        for read in reads(store):
            with pytest.raises(StoreUnavailableError) as caught:
                await read()
            for word in (
                "shaky://host",
                "Plugin raised",
                "ReadTimeout: the read timed out",
                "test_guarded.py",
            ):
                assert word in str(caught.value)
            assert caught.value.__cause__ is not None
        with pytest.raises(StoreUnavailableError, match="ReadTimeout"):
            async with store.watch(""):
                raise AssertionError("it is watched")
        scene.plugin.before = None
        assert (await store.get("k")).entry is None


@pytest.mark.parametrize("when", ["before", "after"])
async def test_foreign_error_of_a_transaction_leaves_it_unknown(when: str) -> None:
    """Whether it was written or not: nobody here can tell."""
    scene = Scene()
    async with scene.store() as store:
        setattr(scene.plugin, when, timeout)
        outcome = await store.commit([Missing("k")], [Put("k", b"v")])
        assert isinstance(outcome, Unknown)
        assert "commit of" in outcome.reason and "ReadTimeout" in outcome.reason
        assert scene.hub.revision == (when == "after")


async def test_damage_while_it_is_open_is_an_outage_and_before_it_is_damage(
    autojump_clock: MockClock,
) -> None:
    scene = Scene()
    async with scene.store() as store:
        scene.plugin.before = damaged
        for call in (*reads(store), lambda: store.commit([], [Put("k", b"")])):
            with pytest.raises(StoreUnavailableError, match="malformed"):
                await call()
        assert scene.hub.revision == 0


async def test_errors_of_the_interface_pass_as_they_are() -> None:
    scene = Scene()
    async with scene.store() as store:
        session = await store.open_session(1_000)
        scene.hub.expire(session)
        with pytest.raises(SessionExpiredError):
            await store.commit([], [Put("k", b"")], session=session)

        async def too_large() -> None:
            raise TransactionTooLargeError("it takes 128 operations")

        scene.plugin.before = too_large
        with pytest.raises(TransactionTooLargeError, match="128"):
            await store.commit([], [Put("k", b"")])


async def test_call_that_does_not_return_has_a_deadline(autojump_clock: MockClock) -> None:
    scene = Scene()
    async with scene.store() as store:
        scene.plugin.before = trio.sleep_forever
        began = trio.current_time()
        with pytest.raises(StoreUnavailableError, match="get did not return within 15 s"):
            await store.get("k")
        assert trio.current_time() - began == pytest.approx(CALL_SECONDS)
        outcome = await store.commit([], [Put("k", b"")])
        assert isinstance(outcome, Unknown) and "did not return" in outcome.reason
        with pytest.raises(StoreUnavailableError):
            async with store.watch(""):
                raise AssertionError("it is watched")


async def test_failures_come_later_and_later_and_are_told_seldom(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller that tries again at once, for ever."""
    scene = Scene()
    async with scene.store() as store:
        scene.plugin.before = timeout
        began, attempts = trio.current_time(), 0
        with pytest.raises(StoreUnavailableError):
            await store.get("k")
        assert trio.current_time() == began, "the first failure is told at once"
        with caplog.at_level(logging.INFO, logger="insync.metadata"), trio.move_on_after(100):
            while attempts < 1_000:
                attempts += 1
                with pytest.raises(StoreUnavailableError):
                    await store.get("k")
        assert attempts <= 100 / LONGEST_PAUSE + 6
        lines = [record.getMessage() for record in caplog.records]
        assert 5 <= len(lines) <= 11
        assert "more since the last line" in lines[-1]
        scene.plugin.before = None
        await store.get("k")
        scene.plugin.before = timeout
        began = trio.current_time()
        with pytest.raises(StoreUnavailableError):
            await store.get("k")
        assert trio.current_time() == began, "a call that works ends the pauses"


async def test_outages_that_the_store_tells_itself_come_later_and_later_too(
    autojump_clock: MockClock,
) -> None:
    scene = Scene()
    async with scene.store() as store:
        scene.hub.start_outage()
        began = trio.current_time()
        for _ in range(10):
            with pytest.raises(StoreUnavailableError, match="outage that a test began"):
                await store.list("")
        assert trio.current_time() - began > 4


async def test_task_of_the_store_that_fails_costs_its_handle_and_another_one_is_made(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    async with scene.store() as store, store.watch("k") as watch:
        assert await watch.__anext__() == Resync(0)
        session = await store.open_session(60_000)
        await store.commit([], [Put("k", b"", ephemeral=True)], session=session)
        scene.plugin.fail_in_a_task()
        with trio.fail_after(20):
            await session.expired.wait()
        with pytest.raises(SessionExpiredError):
            await store.commit([], [Put("k", b"")], session=session)
        with trio.fail_after(20):
            assert isinstance(await watch.__anext__(), Resync | Changed), "the end of the session, or the gap"
            while len(scene.made) < 2:
                await watch.__anext__()
            assert (await store.get("k")).entry is None
        assert isinstance(await store.commit([], [Put("k", b"2")]), Committed)
        assert isinstance(await watch.__anext__(), Changed | Resync)
        assert isinstance(await store.open_session(1_000), type(session))
    assert len(scene.made) == 2
    assert "a task of its own" in caplog.text and "ReadTimeout" in caplog.text


class Detached(Session):
    """A session that learns of nothing."""

    def __init__(self, inner: Session) -> None:
        self.id, self.timeout_ms, self.expired = inner.id, inner.timeout_ms, trio.Event()

    async def close(self) -> None:
        raise ReadTimeout("nobody is there")


async def test_session_of_a_handle_that_failed_is_over_whatever_the_store_says(
    autojump_clock: MockClock,
) -> None:
    class Store(Plugin):
        async def open_session(self, timeout_ms: int) -> Session:
            return Detached(await super().open_session(timeout_ms))

    made: list[Plugin] = []

    def make() -> MetadataStore:
        made.append(Store(MemoryHub()))
        return made[-1]

    async with GuardedStore(make, "the metadata store shaky://host") as store:
        session = await store.open_session(60_000)
        with pytest.raises(StoreUnavailableError, match=r"close of .*ReadTimeout: nobody is there"):
            await session.close()
        sessions = [await store.open_session(60_000) for _ in range(2)]
        made[0].fail_in_a_task()
        with trio.fail_after(5):
            for each in sessions:
                await each.expired.wait()
    await session.close()
    assert session.expired.is_set(), "nobody can say any more that it is not"


async def test_call_under_way_when_the_handle_fails_ends_with_it(autojump_clock: MockClock) -> None:
    scene = Scene()
    outcomes: list[object] = []
    async with scene.store() as store, trio.open_nursery() as nursery:
        plugin = scene.plugin
        plugin.before = trio.sleep_forever

        async def commit() -> None:
            outcomes.append(await store.commit([], [Put("k", b"")]))
            over.set()

        over = trio.Event()
        nursery.start_soon(commit)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        plugin.fail_in_a_task()
        with trio.fail_after(20):
            await over.wait()
        assert isinstance(outcomes[0], Unknown) and "ReadTimeout" in outcomes[0].reason
        assert trio.current_time() - began < 1


async def test_store_that_cannot_be_opened_again_is_tried_with_pauses(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    async with scene.store() as store:
        scene.hub.start_outage()
        scene.plugin.fail_in_a_task()
        await trio.sleep(60)
        assert len(scene.made) < 70
        assert 0 < sum("cannot be opened again yet" in each for each in caplog.messages) < len(scene.made)
        with pytest.raises(StoreUnavailableError, match="ReadTimeout"):
            await store.get("k")
        scene.hub.end_outage()
        await trio.sleep(2)
        assert (await store.get("k")).entry is None


async def test_a_store_that_failed_is_left_at_once_and_a_whole_one_when_it_has_done_its_work(
    autojump_clock: MockClock,
) -> None:
    class Tidy(Plugin):
        tidied = False

        async def __aexit__(self, *error: Any) -> None:
            try:
                await trio.sleep(3)
                self.tidied = True
            finally:
                await super().__aexit__(*error)

    hub = MemoryHub()
    handles: list[Tidy] = []

    def make() -> Tidy:
        handles.append(Tidy(hub))
        return handles[-1]

    async with GuardedStore(make, "shaky://host"):
        began = trio.current_time()
    assert handles[-1].tidied and trio.current_time() == began + 3
    async with GuardedStore(make, "shaky://host"):
        hub.start_outage()
        handles[-1].fail_in_a_task()
        await trio.sleep(60)
        began = trio.current_time()
    assert trio.current_time() == began, "it waited for a pause between two attempts to open it again"


async def test_watch_whose_task_fails_goes_on_with_a_resync(autojump_clock: MockClock) -> None:
    scene = Scene()
    async with scene.store() as store:
        failing = trio.Event()

        async def fail_later() -> None:
            await failing.wait()
            raise ReadTimeout("the stream was cut")

        scene.plugin.in_watch = fail_later
        async with store.watch("k") as watch:
            assert await watch.__anext__() == Resync(0)
            scene.plugin.in_watch = None
            failing.set()
            with trio.fail_after(20):
                assert await watch.__anext__() == Resync(0)
            await store.commit([], [Put("k", b"")])
            assert await watch.__anext__() == Changed("k", 1)


async def test_store_is_left_after_its_user_even_if_that_is_cancelled() -> None:
    """A node that is stopped still has to give its registration back."""
    scene = Scene()
    closed: list[bool] = []
    with trio.CancelScope() as scope:
        async with scene.store() as store:
            session = await store.open_session(60_000)
            scope.cancel()
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked()
                    closed.append(session.expired.is_set())
                    await store.commit([], [Put("bye", b"")], session=session)
                    await session.close()
    assert closed == [False]
    assert session.expired.is_set()
    assert scene.hub.get("bye").entry is not None


async def test_entering_fails_as_the_store_says_or_is_named() -> None:
    class Refusing(Plugin):
        error: Exception = StoreCorruptError("no store of ours")

        async def __aenter__(self) -> Any:
            raise self.error

    class Failing(Refusing):
        error = ReadTimeout("timed out")

    for plugin, expected, text in (
        (Refusing, StoreCorruptError, "no store of ours"),
        (Failing, StoreFailedError, "open of .*Failing raised .*ReadTimeout: timed out"),
    ):
        with pytest.raises(expected, match=text):
            async with GuardedStore(partial(plugin, MemoryHub()), "shaky://host"):
                raise AssertionError("it was entered")


async def test_cancelled_while_it_is_entered() -> None:
    class Slow(Plugin):
        async def __aenter__(self) -> Any:
            await trio.sleep_forever()

    with trio.move_on_after(0.05) as scope:
        async with GuardedStore(lambda: Slow(MemoryHub()), "slow://host"):
            raise AssertionError("it was entered")
    assert scope.cancelled_caught


async def test_after_leaving_every_call_says_so() -> None:
    store = Scene().store()
    async with store:
        session = await store.open_session(1_000)
    for call in (*reads(store), lambda: store.commit([], [])):
        with pytest.raises(StoreClosedError):
            await call()
    await session.close()
    with pytest.raises(StoreClosedError):
        await store.__aenter__()


# real files


async def test_truncated_wal_is_an_outage_with_pauses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The write-ahead log is cut off under the process, and the database is overwritten."""
    path = tmp_path / "meta.db"
    async with open_store(f"sqlite://{path}") as writer, open_store(f"sqlite://{path}") as store:
        for number in range(50):
            await writer.commit([], [Put(f"k{number}", bytes(2_000))])
        for name in ("meta.db", "meta.db-wal"):
            os.truncate(tmp_path / name, 100)
            os.truncate(tmp_path / name, 100_000)
        with caplog.at_level(logging.WARNING), trio.move_on_after(1.5):
            for _ in range(1_000):
                with pytest.raises(StoreUnavailableError):
                    await store.list("")
                outcome: object = None
                try:
                    outcome = await store.commit([], [Put("k", b"")])
                except StoreUnavailableError:
                    continue
                assert isinstance(outcome, Unknown)
            raise AssertionError("a thousand attempts were made in a second and a half")
        assert len(caplog.records) < 10


async def test_full_disk_refuses_and_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with GuardedStore(lambda: SqliteStore(tmp_path / "meta.db"), "sqlite") as store:
        await store.commit([], [Put("k", b"1")])
        database = store.inner._engine.database  # type: ignore[attr-defined]
        worker = store.inner._engine.worker  # type: ignore[attr-defined]
        pages = await worker.run(lambda: database._connection.execute("PRAGMA page_count").fetchone()[0])
        await worker.run(lambda: database._connection.execute(f"PRAGMA max_page_count = {pages}").fetchone())
        with pytest.raises(StoreUnavailableError, match="full"):
            await store.commit([], [Put("large", bytes(100_000))])
        assert (await store.get("large")).entry is None
        await worker.run(lambda: database._connection.execute("PRAGMA max_page_count = 100000").fetchone())
        assert isinstance(await store.commit([], [Put("large", bytes(100_000))]), Committed)


async def test_session_that_a_transaction_finds_over_is_over_to_its_holder() -> None:
    """Also where the store of a plugin says so by the error alone."""

    async def over() -> None:
        raise SessionExpiredError(7)

    scene = Scene()
    async with scene.store() as store:
        session = await store.open_session(60_000)
        scene.plugin.before = over
        with pytest.raises(SessionExpiredError):
            await store.commit([], [Put("k", b"", ephemeral=True)], session=session)
        assert session.expired.is_set()


async def test_limits_that_cannot_be_told_are_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    def limits(self: Plugin) -> Any:
        raise KeyError("no limits")

    scene = Scene()
    async with scene.store() as store:
        monkeypatch.setattr(Plugin, "limits", property(limits))
        with pytest.raises(StoreFailedError, match=r"limits of .*Plugin raised .*KeyError.*no limits"):
            store.limits  # noqa: B018


class Distant(Plugin):
    """A store that a server keeps."""

    is_elsewhere = True
    is_there = True

    async def __aenter__(self) -> Any:
        if not self.is_there:
            raise StoreUnavailableError("nobody answers")
        return await super().__aenter__()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of the store's outages, without their lengths."""
    told = [each.getMessage() for each in caplog.records if each.name == "insync.metadata"]
    return [re.sub("[0-9.]+ s", "N s", each) for each in told]


async def test_entering_waits_for_a_store_elsewhere(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    hub = MemoryHub()
    tries: list[Distant] = []

    def make() -> Distant:
        tries.append(Distant(hub))
        tries[-1].is_there = trio.current_time() - began > 100
        return tries[-1]

    began = trio.current_time()
    async with GuardedStore(make, "the store", wait_seconds=math.inf) as store:
        assert (await store.get("k")).entry is None
    assert 100 < trio.current_time() - began < 102 and len(tries) > 90
    assert lines(caplog) == [
        "the store cannot be used: nobody answers",
        "the store cannot be used (for N s): nobody answers",
        "the store works again, after N s",
    ]


@pytest.mark.parametrize("elsewhere", [True, False])
async def test_entering_ends_with_the_wait_and_waits_for_no_store_of_this_machine(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    monkeypatch.setattr(Distant, "is_there", False)
    monkeypatch.setattr(Distant, "is_elsewhere", elsewhere)
    began = trio.current_time()
    with pytest.raises(StoreUnavailableError, match="nobody answers"):
        await GuardedStore(lambda: Distant(MemoryHub()), "the store", wait_seconds=7).__aenter__()
    assert (trio.current_time() - began >= 7) == elsewhere


async def test_a_wait_for_a_store_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distant, "is_there", False)
    with trio.fail_after(5), trio.move_on_after(0.05) as waiting:
        await GuardedStore(lambda: Distant(MemoryHub()), "the store", wait_seconds=math.inf).__aenter__()
    assert waiting.cancelled_caught


async def test_a_store_that_refuses_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_: Any) -> Any:
        raise StoreRefusedError("not you")

    monkeypatch.setattr(Distant, "__aenter__", refuse)
    with trio.fail_after(5), pytest.raises(StoreRefusedError, match="not you"):
        await GuardedStore(lambda: Distant(MemoryHub()), "the store", wait_seconds=math.inf).__aenter__()


async def test_an_outage_is_told_once_a_minute_and_its_end_when_all_works(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Distant(MemoryHub())

    async def away() -> None:
        raise StoreUnavailableError("nobody answers")

    async with GuardedStore(lambda: plugin, "the store") as store:
        plugin.before = away
        began = trio.current_time()
        while trio.current_time() - began < 130:
            with pytest.raises(StoreUnavailableError):
                await store.get("k")
            with pytest.raises(StoreUnavailableError):
                await store.open_session(1000)
        plugin.before = None
        await store.get("k")
        assert len(lines(caplog)) == 3, "reads work, and writes may not yet"
        await store.commit([], [Put("k", b"v")])
    assert lines(caplog) == [
        "the store cannot be used: nobody answers",
        "the store cannot be used (for N s): nobody answers",
        "the store cannot be used (for N s): nobody answers",
        "the store works again, after N s",
    ]


async def test_outages_that_follow_one_another_are_told_seldom(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Distant(MemoryHub())

    async def away() -> None:
        raise StoreUnavailableError("nobody answers")

    async with GuardedStore(lambda: plugin, "the store") as store:
        for _ in range(100):
            plugin.before = away
            with pytest.raises(StoreUnavailableError):
                await store.get("k")
            plugin.before = None
            await store.get("k")
    assert len(lines(caplog)) == 2


class Nameless(MemoryStore):
    async def get(self, key: str) -> Read:
        return attrs.evolve(await super().get(key), store_id="")

    async def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        return attrs.evolve(await super().changes(prefix, since_revision), store_id="")

    async def list(self, prefix: str) -> Listing:
        return attrs.evolve(await super().list(prefix), store_id="")


@pytest.mark.parametrize(
    "read",
    [lambda store: store.get("k"), lambda store: store.list(""), lambda store: store.changes("", 0)],
    ids=["get", "list", "changes"],
)
@pytest.mark.parametrize(("kind", "warnings"), [(Nameless, 1), (MemoryStore, 0)])
async def test_readings_without_an_identity_are_warned_of_once(
    kind: type[MemoryStore],
    warnings: int,
    read: Callable[[MetadataStore], Awaitable[object]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with GuardedStore(kind, "the store of a test") as store:
        for _ in range(3):
            await read(store)
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(told) == warnings and all("has an empty store_id" in each for each in told)
