"""Random histories: the SQLite store, the memory store and a plain model of the rules always agree."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from insync.replication.metadata import (
    Committed,
    Compare,
    Conflict,
    Delete,
    Exists,
    MemoryStore,
    MetadataStore,
    Missing,
    Operation,
    Put,
    Session,
    SqliteStore,
    ValueIs,
    VersionIs,
)

KEYS = st.sampled_from(["a", "a/", "a/b", "a/\U0010ffff", "é", "z"])
VALUES = st.sampled_from([b"", b"1", b"\x00\xff"])
COMPARES = st.one_of(
    st.builds(VersionIs, KEYS, st.integers(0, 3)),
    st.builds(Exists, KEYS),
    st.builds(Missing, KEYS),
    st.builds(ValueIs, KEYS, VALUES),
)
OPERATIONS = st.one_of(st.builds(Put, KEYS, VALUES, st.booleans()), st.builds(Delete, KEYS))
TRANSACTIONS = st.tuples(
    st.lists(COMPARES, max_size=2),
    st.lists(OPERATIONS, max_size=4, unique_by=lambda operation: operation.key),
    st.integers(0, 1),
)
STEPS = st.one_of(TRANSACTIONS, st.sampled_from(["end 0", "end 1"]))
State = dict[str, tuple[bytes, int, int, int | None]]


class Model:
    """The rules once more, as plainly as can be: key -> (value, version, revision, session's number)."""

    def __init__(self) -> None:
        self.revision = 0
        self.entries: State = {}

    def commit(self, compares: Sequence[Compare], operations: Sequence[Operation], session: int) -> object:
        for compare in compares:
            if not self.holds(compare):
                return Conflict(compare.key)
        effective = [op for op in operations if isinstance(op, Put) or op.key in self.entries]
        self.revision += bool(effective)
        for operation in effective:
            self.apply(operation, session)
        versions = {op.key: self.entries[op.key][1] for op in effective if isinstance(op, Put)}
        return Committed(self.revision, versions)

    def holds(self, compare: Compare) -> bool:
        value, version, *_ = self.entries.get(compare.key, (None, None))
        tests: dict[type, Callable[[], bool]] = {
            VersionIs: lambda: isinstance(compare, VersionIs) and version == compare.version,
            ValueIs: lambda: isinstance(compare, ValueIs) and value == compare.value,
            Exists: lambda: version is not None,
            Missing: lambda: version is None,
        }
        return tests[type(compare)]()

    def apply(self, operation: Operation, session: int) -> None:
        old = self.entries.pop(operation.key, (b"", 0, 0, None))
        if isinstance(operation, Put):
            owner = session if operation.ephemeral else None
            self.entries[operation.key] = (operation.value, old[1] + 1, self.revision, owner)

    def end(self, session: int) -> None:
        self.revision += 1
        self.entries = {key: entry for key, entry in self.entries.items() if entry[3] != session}


async def listed(store: MetadataStore, sessions: list[Session]) -> tuple[int, list[tuple[str, tuple]]]:
    numbers: dict[int | None, int | None] = {None: None}
    numbers.update((session.id, number) for number, session in enumerate(sessions))
    listing = await store.list("")
    rows = [(k, (e.value, e.version, e.revision, numbers[e.session_id])) for k, e in listing.entries.items()]
    return listing.revision, rows


async def check(store: MetadataStore, steps: list) -> None:
    model = Model()
    async with store:
        sessions: list[Session] = [await store.open_session(60_000) for _ in range(2)]
        for step in steps:
            if isinstance(step, str):
                number = int(step[-1])
                await sessions[number].close()
                sessions[number] = await store.open_session(60_000)
                model.end(number)
            else:
                compares, operations, number = step
                outcome = await store.commit(compares, operations, session=sessions[number])
                assert outcome == model.commit(compares, operations, number)
            assert await listed(store, sessions) == (model.revision, sorted(model.entries.items()))


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=12))
def test_memory_store_follows_the_model(steps: list) -> None:
    trio.run(check, MemoryStore(), steps)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, max_size=12))
def test_sqlite_store_follows_the_model(steps: list) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trio.run(check, SqliteStore(Path(folder) / "meta.db"), steps)
