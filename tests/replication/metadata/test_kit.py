"""The conformance kit notices stores that break a promise."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from insync.replication.metadata import (
    Committed,
    Compare,
    Conflict,
    Listing,
    MemoryHub,
    MetadataStore,
    Operation,
    Outcome,
    Put,
    Read,
    Session,
)
from insync.replication.metadata.testing import CASES, PromiseBrokenError

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
]


@pytest.mark.parametrize(("hub", "noticed_by"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
async def test_kit_notices_a_broken_store(hub: type[MemoryHub], noticed_by: set[str]) -> None:
    for case in CASES:
        if case.name in noticed_by:
            bench = MemoryBench()
            bench.hub = hub()
            with pytest.raises((PromiseBrokenError, ExceptionGroup)) as caught:
                await case.run(bench)
            assert _has_broken_promise(caught.value)


def _has_broken_promise(error: Any) -> bool:
    if isinstance(error, ExceptionGroup):
        return any(_has_broken_promise(inner) for inner in error.exceptions)
    return isinstance(error, PromiseBrokenError)


def test_every_case_states_its_promise() -> None:
    assert all(case.promise.endswith(".") for case in CASES)
    assert len({case.name for case in CASES}) == len(CASES)


async def test_hung_store_is_cut_off(autojump_clock: MockClock) -> None:
    class Hung(MemoryBench):
        def handle(self) -> MetadataStore:
            store = self.hub.store()
            store.get = _never  # type: ignore[method-assign]
            return store

    with pytest.raises(trio.TooSlowError):
        await CASES[0].run(Hung())


async def _never(key: str) -> Read:
    await trio.sleep_forever()
    raise AssertionError(key)
