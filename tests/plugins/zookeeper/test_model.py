"""Random histories on a real server agree with the plain model; revisions are ZooKeeper's own numbers."""

from itertools import count, pairwise

import attrs
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from insync.plugins.zookeeper import ZookeeperAddress, ZookeeperStore
from insync.plugins.zookeeper._store import ZookeeperStore as Inner
from insync.plugins.zookeeper._transaction import Reading
from insync.replication.metadata import (
    Committed,
    Compare,
    Conflict,
    Delete,
    Exists,
    MetadataStore,
    Missing,
    Operation,
    Put,
    Session,
    ValueIs,
    VersionIs,
)
from tests.replication.metadata.test_model import STEPS, Model

from .server import ZookeeperServer

_numbers = count()


@attrs.define
class Revisions:
    """Which revision of the model is which of ZooKeeper's: one to one, in the same order."""

    known: dict[int, int] = attrs.field(factory=dict)

    def same(self, model: int, real: int) -> bool:
        return self.known.setdefault(model, real) == real

    def ordered(self) -> bool:
        reals = [self.known[model] for model in sorted(self.known)]
        return all(one < two for one, two in pairwise(reals))


async def check(store: MetadataStore, steps: list) -> None:
    model, revisions = Model(), Revisions()
    async with store:
        sessions: list[Session] = [await store.open_session(20_000) for _ in range(2)]
        for step in steps:
            if isinstance(step, str):
                number = int(step[-1])
                owned = any(entry[3] == number for entry in model.entries.values())
                await sessions[number].close()
                sessions[number] = await store.open_session(20_000)
                if owned:
                    model.end(number)
            else:
                compares, operations, number = step
                outcome = await store.commit(compares, operations, session=sessions[number])
                wanted = model.commit(compares, operations, number)
                if isinstance(wanted, Committed):
                    assert isinstance(outcome, Committed), outcome
                    assert dict(outcome.versions) == wanted.versions
                    assert not model.revision or revisions.same(wanted.revision, outcome.revision)
                else:
                    assert outcome == wanted
            await compare(store, sessions, model, revisions)
        assert revisions.ordered()


async def compare(store: MetadataStore, sessions: list[Session], model: Model, revisions: Revisions) -> None:
    numbers: dict[int | None, int | None] = {None: None}
    numbers.update((session.id, number) for number, session in enumerate(sessions))
    listing = await store.list("")
    assert list(listing.entries) == sorted(model.entries)
    for key, (value, version, revision, owner) in model.entries.items():
        entry = listing.entries[key]
        assert (entry.value, entry.version, numbers[entry.session_id]) == (value, version, owner)
        assert revisions.same(revision, entry.revision)
        assert (await store.get(key)).entry == entry
    assert not model.revision or revisions.same(model.revision, listing.revision)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(STEPS, max_size=10))
def test_zookeeper_store_follows_the_model(server: ZookeeperServer, steps: list) -> None:
    address = ZookeeperAddress(server.hosts, f"/model-{next(_numbers)}")
    trio.run(check, ZookeeperStore(address), steps)


class Interrupted(Inner):
    """A store where somebody else commits between the reading and the writing of a transaction."""

    def __init__(self, address: ZookeeperAddress, meanwhile: list[Operation]) -> None:
        super().__init__(address)
        self.meanwhile = meanwhile

    async def _read_now(self, engine: object, keys: set[str]) -> Reading:
        reading = await super()._read_now(engine, keys)  # type: ignore[arg-type]
        steps, self.meanwhile = self.meanwhile, []
        if steps:
            async with ZookeeperStore(self.address) as other:
                session = await other.open_session(20_000)
                for step in steps:
                    assert isinstance(await other.commit([], [step], session=session), Committed)
        return reading


AGAIN: list[tuple[str, list[Operation], Compare]] = [
    ("deleted", [Delete("k")], Exists("k")),
    ("changed", [Put("k", b"new")], ValueIs("k", b"old")),
    ("another node, same version", [Delete("k"), Put("k", b"new")], ValueIs("k", b"old")),
    (
        "taken over as ephemeral",
        [Put("k", b"x", ephemeral=True), Put("k", b"new", ephemeral=True)],
        VersionIs("k", 1),
    ),
    ("created", [Put("m", b"")], Missing("m")),
]


async def test_what_happens_between_reading_and_writing_is_noticed(server: ZookeeperServer) -> None:
    for name, meanwhile, given_ in AGAIN:
        address = ZookeeperAddress(server.hosts, f"/between-{next(_numbers)}")
        async with ZookeeperStore(address) as before:
            await before.commit([], [Put("k", b"old")])
        async with Interrupted(address, list(meanwhile)) as store:
            outcome = await store.commit([given_], [Put("result", b"")])
            assert outcome == Conflict(given_.key), name
            assert (await store.get("result")).entry is None


async def test_harmless_meddling_is_tried_again(server: ZookeeperServer) -> None:
    address = ZookeeperAddress(server.hosts, f"/between-{next(_numbers)}")
    async with Interrupted(address, [Put("other", b""), Put("k", b"1")]) as store:
        outcome = await store.commit([Missing("absent")], [Put("k", b"2")])
        assert isinstance(outcome, Committed)
        assert outcome.versions == {"k": 2}
