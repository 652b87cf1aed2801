"""The conformance kit notices stores that break a promise."""

import warnings
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from insync.replication.metadata import (
    Committed,
    Compare,
    Conflict,
    Delta,
    Limits,
    Listing,
    MemoryHub,
    MemoryStore,
    MetadataStore,
    Operation,
    Outcome,
    Put,
    Read,
    Session,
    StoreUnavailableError,
    TooOld,
    TransactionTooLargeError,
    Unknown,
    VersionIs,
    Watch,
    WatchEvent,
)
from insync.replication.metadata._history import History
from insync.replication.metadata.kit._frame import CASE_SECONDS, expect_equal
from insync.replication.metadata.testing import (
    CASES,
    Bench,
    BenchError,
    Case,
    NotTestedWarning,
    PromiseBrokenError,
)
from insync.replication.promises import expect
from insync.transport import patience
from insync.transport.patience import PATIENCE

from .benches import MemoryBench


class ForgetfulCompares(MemoryHub):
    def commit(
        self, compares: Sequence[Compare], operations: Sequence[Operation], session_id: int | None
    ) -> Outcome:
        return super().commit(compares[:1], operations, session_id)


class HalfTransactions(MemoryHub):
    def commit(
        self, compares: Sequence[Compare], operations: Sequence[Operation], session_id: int | None
    ) -> Outcome:
        outcome = super().commit(compares, operations, session_id)
        if isinstance(outcome, Conflict) and operations:
            super().commit([], operations[:1], session_id)
        return outcome


class TornWrites(MemoryHub):
    def commit(
        self, compares: Sequence[Compare], operations: Sequence[Operation], session_id: int | None
    ) -> Outcome:
        outcome: Outcome = super().commit(compares, [], session_id)
        for operation in operations if isinstance(outcome, Committed) else ():
            outcome = super().commit([], [operation], session_id)
        return outcome


class LostVersions(MemoryHub):
    def get(self, key: str) -> Read:
        read = super().get(key)
        if read.entry is not None and read.entry.version > 1:
            return Read(read.revision - 1, read.entry)
        return read


class LooseList(MemoryHub):
    def list(self, prefix: str) -> Listing:
        return super().list(prefix.rstrip("/"))


class ImmortalKeys(MemoryHub):
    def commit(
        self, compares: Sequence[Compare], operations: Sequence[Operation], session_id: int | None
    ) -> Outcome:
        persistent = [Put(op.key, op.value) if isinstance(op, Put) else op for op in operations]
        return super().commit(compares, persistent, session_id)


class UnfencedSessions(MemoryHub):
    def commit(
        self, compares: Sequence[Compare], operations: Sequence[Operation], session_id: int | None
    ) -> Outcome:
        return super().commit(compares, operations, session_id if session_id in self._sessions else None)


class DeafWatches(MemoryHub):
    def _announce(self, keys: Sequence[str]) -> None:
        pass


class WatchesWithoutDeletes(MemoryHub):
    def _announce(self, keys: Sequence[str]) -> None:
        super()._announce([key for key in keys if key in self._entries])


class SleepySessions(MemoryHub):
    def stop_renewing(self, session: Session) -> None:
        pass


class DeltasWithoutDeletes(MemoryHub):
    def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        answer = super().changes(prefix, since_revision)
        return attrs.evolve(answer, deleted=frozenset()) if isinstance(answer, Delta) else answer


class DeltasThatSkipOne(MemoryHub):
    def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        return super().changes(prefix, min(since_revision + 1, self.revision))


class DeltasWithoutSessions(MemoryHub):
    """The keys of a session that ended are gone, and no delta says so."""

    def _end_session(self, session_id: int) -> None:
        history, self._history = self._history, History()
        super()._end_session(session_id)
        self._history = history


class DeltasOfEverything(MemoryHub):
    def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        answer = super().changes(prefix, since_revision)
        return (
            attrs.evolve(answer, entries=super().list(prefix).entries)
            if isinstance(answer, Delta)
            else answer
        )


class DeltasOfAllPrefixes(MemoryHub):
    def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        return super().changes("", since_revision)


class DeltasOfOldValues(MemoryHub):
    """A delta gives the state of the commit before the last, at the revision of the last."""

    def _apply(self, operations: Sequence[Operation], session_id: int | None) -> Committed:
        self._before = dict(self._entries)
        return super()._apply(operations, session_id)

    def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        answer = super().changes(prefix, since_revision)
        if not isinstance(answer, Delta):
            return answer
        entries = {key: self._before[key] for key in answer.entries if key in self._before}
        return attrs.evolve(answer, entries=entries)


class DeltasOfTheFuture(MemoryHub):
    def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        return super().changes(prefix, min(since_revision, self.revision))


class DeltasOfHalves(MemoryHub):
    """A delta takes what a transaction changed in two pieces."""

    def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        answer = super().changes(prefix, since_revision)
        if isinstance(answer, Delta) and len(answer.entries) > 1:
            return attrs.evolve(answer, entries=dict(sorted(answer.entries.items())[:1]))
        return answer


class PutsOfTheSameValue(MemoryHub):
    """They raise the version, but not the revision."""

    def _apply(self, operations: Sequence[Operation], session_id: int | None) -> Committed:
        same = [
            isinstance(each, Put)
            and each.key in self._entries
            and self._entries[each.key].value == each.value
            for each in operations
        ]
        before = self.revision
        done = super()._apply(operations, session_id)
        if not all(same):
            return done
        self.revision = before
        return attrs.evolve(done, revision=before)


class VersionsOfMissingKeys(MemoryHub):
    """A key that is missing has version 0."""

    def commit(
        self, compares: Sequence[Compare], operations: Sequence[Operation], session_id: int | None
    ) -> Outcome:
        wrong = [each for each in compares if isinstance(each, VersionIs) and each.version == 0]
        return super().commit([each for each in compares if each not in wrong], operations, session_id)


class ListingsOfBeforeARaise(MemoryHub):
    raised = 0

    def raise_revision(self, floor: int, store_id: str | None) -> int:
        self.raised = super().raise_revision(floor, store_id)
        return self.raised

    def list(self, prefix: str) -> Listing:
        listing = super().list(prefix)
        return attrs.evolve(listing, revision=listing.revision - (listing.revision == self.raised))


class ToldByADeadSession(MemoryHub):
    """The first transactions after a session's end are told as committed, and nothing of them is written."""

    told = 0

    def commit(self, compares: Any, operations: Any, session_id: int | None) -> Outcome:
        if session_id is not None and session_id not in self._sessions and self.told < 3:
            self.told += 1
            return Committed(self.revision, {})
        return super().commit(compares, operations, session_id)


class ForgetfulHistory(MemoryHub):
    def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        return TooOld(self.revision)


class NamelessReads(MemoryHub):
    def list(self, prefix: str) -> Listing:
        return attrs.evolve(super().list(prefix), store_id="")


class NameOfTheDay(MemoryHub):
    """Every reading comes from another store."""

    def get(self, key: str) -> Read:
        self.store_id += "0"
        return super().get(key)


class RaiseThatKeepsTheHistory(MemoryHub):
    def raise_revision(self, floor: int, store_id: str | None) -> int:
        history, self._history = self._history, History()
        raised = super().raise_revision(floor, store_id)
        self._history = history
        return raised


class RaiseToTheFloor(MemoryHub):
    def raise_revision(self, floor: int, store_id: str | None) -> int:
        return super().raise_revision(floor - 1, store_id)


class SilentRaise(MemoryHub):
    def raise_revision(self, floor: int, store_id: str | None) -> int:
        handles, self._handles = self._handles, set()
        raised = super().raise_revision(floor, store_id)
        self._handles = handles
        return raised


class LimitedStore(MemoryStore):
    @property
    def limits(self) -> Limits:
        return Limits(max_operations=100, max_bytes=20_000)


class LimitsThatAreNotHeld(MemoryHub):
    def store(self) -> MemoryStore:
        class Store(LimitedStore):
            async def commit(self, compares: Any, operations: Any, *, session: Any = None) -> Outcome:
                return self.hub.commit(compares, operations, session and session.id)

        return Store(self)


class LimitsThatAreUnavailable(MemoryHub):
    """A store that says of what is too large that it cannot be reached now: callers would try for ever."""

    def store(self) -> MemoryStore:
        class Store(LimitedStore):
            async def commit(self, compares: Any, operations: Any, *, session: Any = None) -> Outcome:
                try:
                    self.limits.check(compares, operations)
                except TransactionTooLargeError as error:
                    raise StoreUnavailableError(str(error)) from error
                return await super().commit(compares, operations, session=session)

        return Store(self)


class LimitsThatPromiseTooMuch(MemoryHub):
    def store(self) -> MemoryStore:
        class Store(LimitedStore):
            async def commit(self, compares: Any, operations: Any, *, session: Any = None) -> Outcome:
                attrs.evolve(self.limits, max_operations=90, max_bytes=19_000).check(compares, operations)
                return await super().commit(compares, operations, session=session)

        return Store(self)


class DeafAfterAReconnect(MemoryHub):
    """A lost connection loses the next event, and nobody says that there was a gap."""

    deaf = False

    def start_outage(self) -> None:
        self.deaf = True

    def end_outage(self) -> None:
        pass

    def _announce(self, keys: Sequence[str]) -> None:
        if not self.deaf:
            super()._announce(keys)
        self.deaf = False


class DeltasThatForgetAReconnect(MemoryHub):
    """The history begins again with each connection, and nobody says so."""

    def end_outage(self) -> None:
        super().end_outage()
        self._history.restart(0)

    def commit(self, compares: Any, operations: Any, session_id: int | None) -> Outcome:
        history, self._history = self._history, History()
        outcome = super().commit(compares, operations, session_id)
        self._history = history
        return outcome


class LostAnswersAreUnavailable(MemoryHub):
    """An answer that is lost is told as "nothing was written"."""

    cuts = 0

    def start_outage(self) -> None:
        self.cuts += 1

    def end_outage(self) -> None:
        pass

    def store(self) -> MemoryStore:
        class Store(MemoryStore):
            async def commit(self, compares: Any, operations: Any, *, session: Any = None) -> Outcome:
                before = self.hub.cuts  # type: ignore[attr-defined]
                outcome = await super().commit(compares, operations, session=session)
                for _ in range(3):
                    await trio.lowlevel.checkpoint()
                if self.hub.cuts > before:  # type: ignore[attr-defined]
                    raise StoreUnavailableError("the connection was lost")
                return outcome

        return Store(self)


class Distant(MemoryHub):
    """A store whose requests and answers take 3 ms each, and whose connections can be cut meanwhile."""

    cuts = 0
    answers_seconds = 0.003

    def start_outage(self) -> None:
        self.cuts += 1

    def end_outage(self) -> None:
        pass

    def store(self) -> MemoryStore:
        class Store(MemoryStore):
            async def commit(self, compares: Any, operations: Any, *, session: Any = None) -> Outcome:
                hub = self.hub
                assert isinstance(hub, Distant)
                before = hub.cuts
                await trio.sleep(0.003)
                if hub.cuts > before:
                    raise StoreUnavailableError("the request was lost")
                outcome = await super().commit(compares, operations, session=session)
                await trio.sleep(hub.answers_seconds)
                return hub.answer(outcome, hub.cuts > before)

        return Store(self)

    def answer(self, outcome: Outcome, is_lost: bool) -> Outcome:
        return Unknown("the answer was lost") if is_lost else outcome


class UnknownAsUnavailable(Distant):
    def answer(self, outcome: Outcome, is_lost: bool) -> Outcome:
        if is_lost:
            raise StoreUnavailableError("the answer was lost")
        return outcome


class TellsOnceInFiveMilliseconds(MemoryHub):
    """A change that comes sooner after one that was told is never told."""

    told = -1.0

    def _announce(self, keys: Sequence[str]) -> None:
        if trio.current_time() - self.told >= 0.005:
            self.told = trio.current_time()
            super()._announce(keys)


class ForgetsWhileItsReaderReads(MemoryHub):
    """What came since the last event is forgotten when the next one is asked for."""

    seconds = 0.0

    def store(self) -> MemoryStore:
        class Forgetful(Watch):
            def __init__(self, inner: Watch) -> None:
                self.inner, self.is_first = inner, True

            async def __anext__(self) -> WatchEvent:
                if not self.is_first:
                    vars(self.inner).update(_pending=None, _arrived=trio.Event())
                self.is_first = False
                return await self.inner.__anext__()

        class Store(MemoryStore):
            async def get(self, key: str) -> Read:
                hub = self.hub
                assert isinstance(hub, ForgetsWhileItsReaderReads)
                await trio.sleep(hub.seconds)
                read = await super().get(key)
                for _ in range(3):  # the answer is on its way
                    await trio.sleep(hub.seconds)
                return read

            @asynccontextmanager
            async def watch(self, prefix: str) -> AsyncIterator[Watch]:  # type: ignore[override]
                async with super().watch(prefix) as inner:
                    yield Forgetful(inner)

        return Store(self)


class ForgetsWhileItsReaderReadsAfar(ForgetsWhileItsReaderReads):
    seconds = 0.002


class ForeignErrorsOfLostConnections(LostAnswersAreUnavailable):
    def store(self) -> MemoryStore:
        class Store(MemoryStore):
            async def get(self, key: str) -> Read:
                before = self.hub.cuts  # type: ignore[attr-defined]
                read = await super().get(key)
                await trio.lowlevel.checkpoint()
                if self.hub.cuts > before:  # type: ignore[attr-defined]
                    raise BrokenPipeError("the socket is gone")
                return read

        return Store(self)


class ForeignErrorsOfOddArguments(MemoryHub):
    def store(self) -> MemoryStore:
        class Store(MemoryStore):
            async def list(self, prefix: str) -> Listing:
                if "\0" in prefix:
                    raise ValueError("embedded null byte")
                return await super().list(prefix)

        return Store(self)


def _in_parts(most: int) -> type[MemoryHub]:
    """A store that sends larger transactions in parts of `most`, one after the other."""

    class Parts(MemoryHub):
        def store(self) -> MemoryStore:
            class Store(MemoryStore):
                async def commit(self, compares: Any, operations: Any, *, session: Any = None) -> Outcome:
                    outcome: Outcome = Committed(self.hub.revision, {})
                    versions: dict[str, int] = {}
                    for at in range(0, max(len(operations), 1), most):
                        part = operations[at : at + most]
                        outcome = await super().commit(compares if not at else [], part, session=session)
                        if not isinstance(outcome, Committed):
                            return outcome
                        versions.update(outcome.versions)
                    return Committed(outcome.revision, versions)

            return Store(self)

    Parts.__name__ = f"PartsOf{most}"
    return Parts


class HalfOfADeadSession(MemoryHub):
    """The ephemeral half of a transaction is refused, and the persistent one written."""

    def commit(self, compares: Any, operations: Any, session_id: int | None) -> Outcome:
        if session_id is not None and session_id not in self._sessions:
            persistent = [op for op in operations if isinstance(op, Put) and not op.ephemeral]
            if len(persistent) < len(operations):
                super().commit(compares, persistent, None)
        return super().commit(compares, operations, session_id)


class ThreadedRenewals(MemoryHub):
    """A session that some thread renews, whatever the event loop does: as long as the process has one."""

    renews = True


BROKEN: list[tuple[type[MemoryHub], set[str]]] = [
    (ForgetfulCompares, {"commit_is_all_or_nothing", "conflict_names_the_first_failing_compare"}),
    (HalfTransactions, {"commit_is_all_or_nothing", "many_keys_in_one_transaction"}),
    (TornWrites, {"each_put_raises_the_version_by_one", "many_keys_in_one_transaction"}),
    (LostVersions, {"committed_is_visible_to_every_handle"}),
    (LooseList, {"list_is_exact_and_in_key_order"}),
    (ImmortalKeys, {"close_deletes_ephemeral_keys_at_once", "leaving_the_store_ends_its_sessions"}),
    (UnfencedSessions, {"dead_session_cannot_write", "closed_session_cannot_write"}),
    (DeafWatches, {"own_and_foreign_commits_are_seen", "cancelled_wait_loses_no_event"}),
    (WatchesWithoutDeletes, {"own_and_foreign_commits_are_seen"}),
    (SleepySessions, {"lost_session_ends_after_its_timeout"}),
    (DeltasWithoutDeletes, {"deltas_add_up_to_the_listing", "ends_of_sessions_are_in_the_delta"}),
    (DeltasThatSkipOne, {"deltas_add_up_to_the_listing", "a_delta_shows_what_was_committed_before"}),
    (DeltasWithoutSessions, {"deltas_add_up_to_the_listing", "ends_of_sessions_are_in_the_delta"}),
    (DeltasOfEverything, {"a_delta_costs_what_has_changed"}),
    (DeltasOfAllPrefixes, {"deltas_add_up_to_the_listing"}),
    (DeltasOfOldValues, {"a_delta_shows_what_was_committed_before", "deltas_go_on_with_another_handle"}),
    (DeltasOfTheFuture, {"a_revision_that_never_was_is_too_old"}),
    (DeltasOfHalves, {"deltas_are_whole_while_others_write"}),
    (DeafAfterAReconnect, {"no_change_is_lost_over_a_lost_connection"}),
    (DeltasThatForgetAReconnect, {"deltas_go_on_over_a_lost_connection"}),
    (LostAnswersAreUnavailable, {"a_lost_answer_is_unknown"}),
    (UnknownAsUnavailable, {"a_lost_answer_is_unknown"}),
    (TellsOnceInFiveMilliseconds, {"the_last_change_is_never_missed"}),
    (ForgetsWhileItsReaderReads, {"the_last_change_is_never_missed"}),
    (ForgetsWhileItsReaderReadsAfar, {"the_last_change_is_never_missed"}),
    (ForeignErrorsOfLostConnections, {"only_errors_of_the_interface_are_raised"}),
    (ForeignErrorsOfOddArguments, {"only_errors_of_the_interface_are_raised"}),
    (_in_parts(10), {"readers_never_see_half_of_a_large_transaction"}),
    (_in_parts(100), {"readers_never_see_half_of_a_large_transaction"}),
    (_in_parts(500), {"readers_never_see_half_of_a_large_transaction"}),
    (PutsOfTheSameValue, {"each_put_raises_the_version_by_one"}),
    (VersionsOfMissingKeys, {"compares_mean_what_they_say"}),
    (ListingsOfBeforeARaise, {"revision_is_raised_above_what_readers_know"}),
    (ToldByADeadSession, {"a_dying_session_never_writes_half"}),
    (HalfOfADeadSession, {"a_dying_session_never_writes_half"}),
    (ThreadedRenewals, {"a_session_needs_its_event_loop"}),
    (NamelessReads, {"every_reading_names_the_store"}),
    (NameOfTheDay, {"every_reading_names_the_store"}),
    (RaiseThatKeepsTheHistory, {"revision_is_raised_above_what_readers_know"}),
    (RaiseToTheFloor, {"revision_is_raised_above_what_readers_know"}),
    (SilentRaise, {"revision_is_raised_above_what_readers_know"}),
    (LimitsThatAreNotHeld, {"transaction_above_the_limits_is_refused"}),
    (LimitsThatAreUnavailable, {"transaction_above_the_limits_is_refused"}),
    (LimitsThatPromiseTooMuch, {"transaction_within_the_limits_is_taken"}),
    (ForgetfulHistory, {"deltas_add_up_to_the_listing", "a_delta_costs_what_has_changed"}),
]


@pytest.mark.parametrize(("hub", "noticed_by"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
async def test_kit_notices_a_broken_store(
    hub: type[MemoryHub], noticed_by: set[str], autojump_clock: MockClock
) -> None:
    for case in CASES:
        if case.name in noticed_by:
            bench = MemoryBench()
            bench.hub = hub()
            bench.renews_sessions = getattr(hub, "renews", False)
            with pytest.raises(PromiseBrokenError) as caught:
                await case.run(bench)
            promise, seen = str(caught.value).splitlines()[0], str(caught.value).partition("Seen: ")[2]
            assert case.promise.splitlines()[0] in promise and seen
            assert case.name != "the_last_change_is_never_missed" or "no event led from change" in seen


class WithoutHistory(MemoryHub):
    """A store whose `changes` is the one that it inherits."""

    def store(self) -> MemoryStore:
        class Store(MemoryStore):
            changes = MetadataStore.changes

        return Store(self)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_store_that_inherits_its_changes_conforms(case: Case, autojump_clock: MockClock) -> None:
    bench = MemoryBench()
    bench.hub = WithoutHistory()
    bench.keeps_history = False
    await case.run(bench)


def test_every_case_states_its_promise() -> None:
    assert all(case.promise.endswith(".") for case in CASES)
    assert len({case.name for case in CASES}) == len(CASES)


async def test_hung_store_is_cut_off(autojump_clock: MockClock) -> None:
    class Hung(MemoryBench):
        def handle(self) -> MetadataStore:
            store = self.hub.store()
            store.get = _never  # type: ignore[method-assign]
            return store

    seconds = f"{CASE_SECONDS * PATIENCE:g}"
    with pytest.raises(PromiseBrokenError, match=rf"reads as None(?s:.*)not over after {seconds} s"):
        await CASES[0].run(Hung())


async def test_error_that_is_no_promise_of_the_kit_is_told_with_its_place() -> None:
    class Foreign(MemoryHub):
        def get(self, key: str) -> Read:
            return {}[key]  # type: ignore[no-any-return]

    bench = MemoryBench()
    bench.hub = Foreign()
    with pytest.raises(
        PromiseBrokenError, match=r"reads as None(?s:.*)KeyError: 'absent' \(test_kit.py:\d+ in get\)"
    ):
        await CASES[0].run(bench)


async def _never(key: str) -> Read:
    await trio.sleep_forever()
    raise AssertionError(key)


class HeldUp(patience.StandstillWatch):
    """Says of every attempt that the process was held up."""

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.seconds = 1e6


async def test_a_case_is_repeated_in_an_empty_store_if_the_process_was_held_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts: list[list[str]] = []

    async def check(bench: Bench) -> None:
        async with bench.handle() as store:
            attempts.append(list((await store.list("")).entries))
            await store.commit([], [Put(f"k/{number}", b"") for number in range(120)])
            expect(len(attempts) > 1, "the session was not renewed")

    monkeypatch.setattr(patience, "StandstillWatch", HeldUp)
    with pytest.warns(patience.HeldUpWarning, match=r"a_case is repeated(?s:.*)the session was not renewed"):
        await Case("a_case", "It holds.", check).run(MemoryBench())
    assert attempts == [[], []]


@pytest.mark.parametrize(
    ("changed", "warned"),
    [({}, True), ({"has_connections": False}, False)],
    ids=["nothing", "no connections"],
)
async def test_cases_without_a_connection_to_cut_are_not_tested(
    changed: dict[str, object], warned: bool, autojump_clock: MockClock
) -> None:
    bench = type("Uncut", (MemoryBench,), {"disconnect": Bench.disconnect, **changed})()
    told = set()
    for case in CASES:
        with warnings.catch_warnings(record=True, action="always", category=NotTestedWarning) as caught:
            await case.run(bench)
        told |= {case.name for each in caught if str(each.message).startswith(f"{case.name} was not tested")}
        assert all("override `disconnect`" in str(each.message) for each in caught)
        await case.restore(bench)
    cutting = {
        "no_change_is_lost_over_a_lost_connection",
        "deltas_go_on_over_a_lost_connection",
        "a_lost_answer_is_unknown",
        "only_errors_of_the_interface_are_raised",
    }
    assert told == (cutting if warned else set())


class AnswersAtOnce(Distant):
    answers_seconds = 0.0


class Immediate(MemoryHub):
    """No cut comes while a commit is under way."""

    def store(self) -> MemoryStore:
        class Store(MemoryStore):
            async def commit(self, compares: Any, operations: Any, *, session: Any = None) -> Outcome:
                return self.hub.commit(compares, operations, session and session.id)

        return Store(self)


@pytest.mark.parametrize(("hub", "warned"), [(Distant, False), (AnswersAtOnce, True), (Immediate, True)])
async def test_answer_that_no_cut_can_lose_is_not_tested(
    hub: type[MemoryHub], warned: bool, autojump_clock: MockClock
) -> None:
    bench = MemoryBench()
    bench.hub = hub()
    (case,) = (case for case in CASES if case.name == "a_lost_answer_is_unknown")
    with warnings.catch_warnings(record=True, action="always", category=NotTestedWarning) as caught:
        await case.run(bench)
    assert [" cuts came between a write and its answer" in str(each.message) for each in caught] == [
        True
    ] * warned


@pytest.mark.parametrize("seen", ["the kit's", "the store's"])
async def test_text_of_a_failure_is_bounded(seen: str) -> None:
    async def check(bench: Bench) -> None:
        if seen == "the kit's":
            expect_equal(b"x" * 8_400_000, b"", "a value")
        raise StoreUnavailableError("x" * 8_400_000)

    with pytest.raises(PromiseBrokenError) as caught:
        await Case("a_case", "It holds.", check).run(MemoryBench())
    assert str(caught.value).startswith("the store breaks a promise. It holds. (a_case)\nSeen: ")
    for error in (caught.value, caught.value.__cause__ if seen == "the kit's" else None):
        assert len(str(error)) < 5_000
    assert "characters ..." in str(caught.value)


async def test_error_of_the_bench_is_not_the_stores() -> None:
    class Torn(MemoryBench):
        def lose(self, session: Session) -> None:
            raise AttributeError("the session has no such method")

    (case,) = (case for case in CASES if case.name == "lost_session_ends_after_its_timeout")
    with pytest.raises(BenchError, match=r"lost_session(?s:.*)Torn\.lose failed(?s:.*)no such method"):
        await case.run(Torn())
