"""Child process of the tests: does with the store of a URL what its lines of stdin say, answers a line for each.

hold TIMEOUT KEY   open a session and put KEY as ephemeral      -> held ID
put KEY VALUE      commit one put                               -> revision R, at T (ns of CLOCK_MONOTONIC)
fence KEY          commit a put of KEY with the session         -> committed | expired
learn              wait until the session has expired           -> learned
count N            raise the key "counter" N times by CAS       -> counted
write              put the pair of keys for ever                -> writing
"""

import sys
import time

import trio

from insync.replication.metadata import (
    Committed,
    MetadataStore,
    Put,
    Session,
    SessionExpiredError,
    StoreUnavailableError,
    VersionIs,
    open_store,
)
from insync.transport import Identity


async def hold(store: MetadataStore, timeout: str, key: str) -> tuple[Session, str]:
    session = await store.open_session(int(timeout))
    await store.commit([], [Put(key, b"held", ephemeral=True)], session=session)
    return session, f"held {session.id}"


async def put(store: MetadataStore, key: str, value: str) -> str:
    outcome = await store.commit([], [Put(key, value.encode())])
    assert isinstance(outcome, Committed)
    return f"revision {outcome.revision} {time.monotonic_ns()}"


async def fence(store: MetadataStore, session: Session, key: str) -> str:
    """What a commit comes to in the end: a connection that ended with the session leaves its fate open at first."""
    while True:
        try:
            outcome = await store.commit([], [Put(key, b"")], session=session)
        except SessionExpiredError:
            return "expired"
        except StoreUnavailableError:
            await trio.sleep(0.01)
            continue
        if isinstance(outcome, Committed):
            return "committed"


async def count(store: MetadataStore, rounds: int) -> str:
    while rounds:
        entry = (await store.get("counter")).entry
        assert entry is not None
        raised = Put("counter", str(int(entry.value) + 1).encode())
        rounds -= isinstance(await store.commit([VersionIs("counter", entry.version)], [raised]), Committed)
    return "counted"


async def write(store: MetadataStore) -> None:
    print("writing", flush=True)
    number = 0
    while True:
        value = str(number).encode()
        await store.commit([], [Put("pair/a", value), Put("pair/b", value)])
        number += 1


async def main(url: str) -> None:
    session: Session | None = None
    async with open_store(url, identity=Identity(node_id=1)) as store:
        print("ready", flush=True)
        while line := (await trio.to_thread.run_sync(sys.stdin.readline)).split():
            answer = ""
            if line[0] == "hold":
                session, answer = await hold(store, *line[1:])
            elif line[0] == "put":
                answer = await put(store, *line[1:])
            elif line[0] == "fence" and session is not None:
                answer = await fence(store, session, line[1])
            elif line[0] == "learn" and session is not None:
                await session.expired.wait()
                answer = "learned"
            elif line[0] == "count":
                answer = await count(store, int(line[1]))
            elif line[0] == "write":
                await write(store)
            print(answer, flush=True)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
