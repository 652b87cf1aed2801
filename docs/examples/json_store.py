"""A metadata store in one JSON file, for the processes of one machine: slow, simple, and it keeps every promise.

    store = JsonStore("/srv/app/meta.json")   # or by URL, json:///srv/app/meta.json, once `make` is an entry point

Each call takes the lock of a file beside it, reads the whole, and if something changed writes the whole again. What
a store must get right is all here: a transaction is one state or none, sessions end by a clock that all see and are
renewed from the event loop, the history tells what changed, and no exception of the files comes through.
"""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import trio

from insync.replication.metadata import (
    Committed,
    Conflict,
    Delta,
    Entry,
    InvalidStoreUrlError,
    InvalidTransactionError,
    Limits,
    Listing,
    MetadataStore,
    Put,
    Read,
    Session,
    SessionExpiredError,
    StoreClosedError,
    StoreCorruptError,
    StoreUnavailableError,
    TooOld,
    Unknown,
)
from insync.replication.metadata.toolkit import (
    WatchHub,
    check_key,
    check_prefix,
    check_timeout,
    check_transaction,
    holds,
)

HISTORY = 1_000
LOOK_SECONDS = 0.02


class State:
    """What the file holds. Whoever reads it takes away what sessions that are over have left behind."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.swept = False
        self.dead()

    def entry(self, key: str) -> Entry | None:
        found = self.raw["entries"].get(key)
        return None if found is None else Entry(key, bytes.fromhex(found[0]), *found[1:])

    def put(self, key: str, value: bytes, owner: int | None) -> int:
        before = self.raw["entries"].get(key)
        version: int = before[1] + 1 if before else 1
        self.raw["entries"][key] = [value.hex(), version, self.raw["revision"], owner]
        return version

    def changed(self, keys: list[str]) -> None:
        history = self.raw["history"]
        history.append([self.raw["revision"], keys])
        while len(history) > HISTORY:
            self.raw["floor"] = history.pop(0)[0]

    def dead(self, leaving: int | None = None) -> None:
        """A lease counts in the clock of one boot of the machine, which all its processes see."""
        sessions, entries = self.raw["sessions"], self.raw["entries"]
        for name, (boot, deadline) in list(sessions.items()):
            if int(name) == leaving or boot != boot_id() or time.monotonic() >= deadline:
                del sessions[name]
                self.swept = True
                self.raw["revision"] += 1
                keys = [key for key, each in entries.items() if each[3] == int(name)]
                for key in keys:
                    del entries[key]
                self.changed(keys)

    def since(self, revision: int) -> set[str] | None:
        if not self.raw["floor"] <= revision <= self.raw["revision"]:
            return None
        return {key for at, keys in self.raw["history"] if at > revision for key in keys}


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class JsonFile:
    """The file. All of this runs in threads."""

    def __init__(self, path: str) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[State]:
        try:
            with open(self.path + ".lock", "a") as lock:
                fcntl.flock(
                    lock, fcntl.LOCK_EX
                )  # given back when the file is closed, however the process ends
                yield State(self._read())
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorruptError(f"{self.path} is no metadata store of ours: {error}") from error
        except OSError as error:
            raise StoreUnavailableError(f"{self.path} cannot be used: {error}") from error

    def _read(self) -> dict[str, Any]:
        try:
            raw: dict[str, Any] = json.loads(Path(self.path).read_bytes())
            return raw
        except FileNotFoundError:
            fresh = {"id": secrets.token_hex(16), "revision": 0, "floor": 0, "last_session": 0}
            raw = {**fresh, "entries": {}, "sessions": {}, "history": []}
            self.write(State(raw))
            return raw

    def write(self, state: State) -> None:
        """The old file or the new one, whatever happens: a rename has no half."""
        draft = f"{self.path}.draft"
        with open(draft, "w") as file:
            json.dump(state.raw, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self.path)

    def look(self) -> State:
        with self.locked() as state:
            if state.swept:  # a revision that was seen must be there for all: the next reader may find more
                self.write(state)
            return state

    def change(self, function: Callable[[State], Any]) -> Any:
        with self.locked() as state:
            result = function(state)
            self.write(state)
            return result


class JsonSession(Session):
    """Renewed by a task of its store, from the event loop: a loop that hangs loses it."""

    def __init__(self, store: "JsonStore", number: int, timeout_ms: int) -> None:
        self.id, self.timeout_ms, self.store = number, timeout_ms, store
        self.expired = trio.Event()
        self.renewals = trio.CancelScope()

    async def keep(self) -> None:
        with self.renewals:
            renewed = time.monotonic()  # at the earliest: before the file is asked
            while not self.expired.is_set():
                await trio.sleep(self.timeout_ms / 4_000)
                asked = time.monotonic()
                with suppress(StoreUnavailableError, StoreCorruptError):
                    await self.store.run(self.store.file.change, self._renew)
                    renewed = asked
                if time.monotonic() - renewed >= self.timeout_ms / 1_000:
                    self.expired.set()  # nobody says so while the file cannot be used, and it must have ended

    def _renew(self, state: State) -> None:
        if str(self.id) in state.raw["sessions"]:
            state.raw["sessions"][str(self.id)] = lease(self.timeout_ms)
        else:
            trio.from_thread.run_sync(self.expired.set)

    async def close(self) -> None:
        self.renewals.cancel()
        if not self.expired.is_set():
            self.expired.set()
            await self.store.run(self.store.file.change, lambda state: state.dead(leaving=self.id))


def lease(timeout_ms: int) -> list[Any]:
    return [boot_id(), time.monotonic() + timeout_ms / 1_000]


class JsonStore(MetadataStore):
    api_version = (1, 0)

    def __init__(self, path: str) -> None:
        self.file = JsonFile(path)
        self._hub = WatchHub()
        self._sessions: set[JsonSession] = set()
        self._seen = 0
        self._nursery: Any = None
        self._manager: Any = None

    @property
    def limits(self) -> Limits:
        return Limits(max_operations=10_000, max_bytes=16 << 20)

    async def __aenter__(self) -> "JsonStore":
        if self._manager is not None:
            raise StoreClosedError("a handle can be entered once only")
        self._seen = (await trio.to_thread.run_sync(self.file.look)).raw["revision"]
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._nursery.start_soon(self._follow)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._hub.close()
        try:
            with trio.CancelScope(shield=True), suppress(StoreUnavailableError, StoreCorruptError):
                for session in self._sessions:
                    await session.close()
        finally:
            nursery, self._nursery = self._nursery, None
            nursery.cancel_scope.cancel()
            await self._manager.__aexit__(None, None, None)

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._nursery is None:
            raise StoreClosedError("the store is not open; use it inside `async with store:`")
        return await trio.to_thread.run_sync(function, *arguments)

    async def get(self, key: str) -> Read:
        check_key(key)
        state = await self.run(self.file.look)
        return Read(state.raw["revision"], state.entry(key), state.raw["id"])

    async def list(self, prefix: str) -> Listing:
        check_prefix(prefix)
        state = await self.run(self.file.look)
        keys = sorted(key for key in state.raw["entries"] if key.startswith(prefix))
        return Listing(state.raw["revision"], {key: state.entry(key) for key in keys}, state.raw["id"])

    async def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        check_prefix(prefix)
        state = await self.run(self.file.look)
        revision, store_id, keys = state.raw["revision"], state.raw["id"], state.since(since_revision)
        if keys is None:
            return TooOld(revision, store_id)
        chosen = {key: state.entry(key) for key in keys if key.startswith(prefix)}
        there = {key: entry for key, entry in chosen.items() if entry is not None}
        return Delta(revision, there, frozenset(chosen) - there.keys(), store_id)

    async def commit(self, compares: Any, operations: Any, *, session: Session | None = None) -> Any:
        check_transaction(compares, operations, session is not None, self.limits)
        if session is not None and not (isinstance(session, JsonSession) and session.store is self):
            raise InvalidTransactionError(f"session {session.id} was opened by another handle")
        if session is not None and session.expired.is_set():
            raise SessionExpiredError(session.id)

        def transact(state: State) -> Any:
            if session is not None and str(session.id) not in state.raw["sessions"]:
                trio.from_thread.run_sync(session.expired.set)
                raise SessionExpiredError(session.id)
            for compare in compares:
                if not holds(compare, state.entry(compare.key)):
                    return Conflict(compare.key)
            effective = [each for each in operations if isinstance(each, Put) or state.entry(each.key)]
            state.raw["revision"] += bool(effective)
            versions = {}
            for each in effective:
                if isinstance(each, Put):
                    owner = session.id if each.ephemeral and session is not None else None
                    versions[each.key] = state.put(each.key, each.value, owner)
                else:
                    del state.raw["entries"][each.key]
            if effective:
                state.changed([each.key for each in effective])
            return Committed(state.raw["revision"], versions)

        try:
            return await self.run(self.file.change, transact)
        except StoreUnavailableError as error:
            return Unknown(str(error))  # the rename may have taken place: who cannot tell says so

    async def open_session(self, timeout_ms: int) -> JsonSession:
        check_timeout(timeout_ms)

        def add(state: State) -> int:
            state.raw["last_session"] += 1
            state.raw["sessions"][str(state.raw["last_session"])] = lease(timeout_ms)
            number: int = state.raw["last_session"]
            return number

        session = JsonSession(self, await self.run(self.file.change, add), timeout_ms)
        self._sessions.add(session)
        self._nursery.start_soon(session.keep)
        return session

    async def raise_revision(self, floor: int, *, store_id: str | None = None) -> int:
        def lift(state: State) -> int:
            raw = state.raw
            raw["revision"] = raw["floor"] = max(raw["revision"], floor) + 1
            raw["last_session"] = max(raw["last_session"], raw["revision"])
            raw["history"], raw["id"] = [], store_id or raw["id"]
            revision: int = raw["revision"]
            return revision

        revision: int = await self.run(self.file.change, lift)
        return revision

    @asynccontextmanager
    async def watch(self, prefix: str) -> Any:
        check_prefix(prefix)
        async with self._hub.open(prefix, self._look) as watch:
            yield watch

    async def _look(self) -> int:
        """Tell the watches what is new, and return the revision."""
        state = await self.run(self.file.look)
        revision, before, self._seen = state.raw["revision"], self._seen, state.raw["revision"]
        keys = state.since(before)
        if keys is None:
            self._hub.resync(revision)
        elif revision > before:
            self._hub.changed(keys, revision)
        return revision

    async def _follow(self) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            if len(self._hub):
                with suppress(StoreUnavailableError, StoreCorruptError):
                    await self._look()


def make(url: str) -> MetadataStore:
    """For the entry point group `insync.metadata_stores`: json = json_store:make"""
    path = url.removeprefix("json://")
    if not path.startswith("/"):
        raise InvalidStoreUrlError(f"{url!r}: a JSON store's URL is json:///absolute/path")
    return JsonStore(path)
