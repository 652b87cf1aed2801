"""Users of a cluster: made by any client of an admin, known to every node, checked without a word of who exists."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from insync.replication import Admin, BlockingAdmin, Node, NodeSettings
from insync.replication.asyncio import Admin as AsyncioAdmin
from insync.replication.client import (
    AuthorizationError,
    InvalidArgumentError,
    InvalidRequestError,
    UserExistsError,
    UserInfo,
    UserNotFoundError,
)
from insync.replication.core import messages as m
from insync.replication.core import scram
from insync.replication.core.control.view import ClusterView
from insync.replication.metadata import StoreUnavailableError
from insync.replication.node.requests import _users
from insync.replication.node.requests._users import Users
from insync.replication.node.requests.authorisation import CLIENTS, Authoriser, Operation
from insync.replication.node.service import ServiceError
from insync.transport import PeerIdentity


def settings(folder: Path, node_id: int = 1, **options: object) -> NodeSettings:
    return NodeSettings(
        node_id=node_id,
        data_dir=folder / f"n{node_id}",
        store=f"sqlite://{folder}/m.db",
        **options,  # type: ignore[arg-type]
    )


async def test_a_users_life(tmp_path: Path) -> None:
    async with (
        Node(settings(tmp_path)) as node,
        Node(settings(tmp_path, 2)) as other,
        Admin(node.endpoints) as admin,
        Admin(other.endpoints) as there,
    ):
        await admin.create_user("etl", "first", allow=["consume", "produce"], iterations=4096)
        with pytest.raises(UserExistsError, match=r"'etl' exists already.*insync user alter"):
            await admin.create_user("etl", "first")
        (first,) = await admin.list_users()
        assert first == UserInfo(
            name="etl",
            mechanisms={"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096},
            allow=["produce", "consume"],
            mark=first.mark,
        )
        # At once on another node: it reads the store before it says no.
        right = await there.verify_user("etl", "first")
        assert right and right.operations == {"produce", "consume"}
        assert (await there.list_users())[0].mark == first.mark != "", "every node says the same"
        for name, password in (("etl", "second"), ("nobody", "first"), ("etl", ""), ("", "")):
            wrong = await there.verify_user(name, password)
            assert not wrong and wrong.operations == frozenset()
        await there.alter_user("etl", password="second", mechanisms=["SCRAM-SHA-512"])
        assert not await admin.verify_user("etl", "first")
        assert await admin.verify_user("etl", "second")
        (now,) = await there.list_users()
        assert now.mechanisms == {"SCRAM-SHA-512": 8192} and now.allow == ["produce", "consume"]
        assert now.mark != first.mark, "the password is another one"
        await admin.alter_user("etl", allow="any")
        assert (await admin.verify_user("etl", "second")).operations == {"produce", "consume", "admin"}
        await admin.alter_user("etl", allow=[])
        assert (await admin.verify_user("etl", "second")).operations == frozenset()
        await admin.delete_user("etl")
        assert not await there.verify_user("etl", "second")
        assert await admin.list_users() == []
        for gone in (admin.delete_user("etl"), admin.alter_user("etl", allow=["admin"])):
            with pytest.raises(UserNotFoundError, match="no user 'etl'"):
                await gone


async def test_what_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    async with Node(settings(tmp_path)) as node, Admin(node.endpoints) as admin:
        for wrong in (
            {"password": ""},
            {"password": 7},
            {"allow": ["fly"]},
            {"allow": "admin"},
            {"mechanisms": []},
            {"mechanisms": ["PLAIN"]},
            {"iterations": 100},
        ):
            with pytest.raises(InvalidArgumentError):
                await admin.create_user("etl", **{"password": "x", **wrong})  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="without a slash"):
            await admin.create_user("a/b", "x")
        assert await admin.list_users() == []


async def test_users_are_for_admins_alone(tmp_path: Path) -> None:
    rules = ("client=produce+consume",)
    async with Node(settings(tmp_path, allow=rules)) as node, Admin(node.endpoints) as admin:
        for asked in (
            admin.create_user("etl", "x"),
            admin.list_users(),
            admin.delete_user("etl"),
            admin.verify_user("etl", "x"),
        ):
            with pytest.raises(AuthorizationError, match="may not admin"):
                await asked


async def test_all_faces_have_the_same_methods(tmp_path: Path) -> None:
    async with Node(settings(tmp_path)) as node:
        await trio.to_thread.run_sync(_threads, node.endpoints)
        await trio.to_thread.run_sync(_asyncio, node.endpoints)


def _threads(endpoints: list[str]) -> None:
    with BlockingAdmin(endpoints) as admin:
        admin.create_user("etl", "first")
        assert admin.verify_user("etl", "first")
        admin.alter_user("etl", password="second", allow=["admin"])
        assert [each.allow for each in admin.list_users()] == [["admin"]]
        admin.delete_user("etl")
        assert not admin.verify_user("etl", "second")


def _asyncio(endpoints: list[str]) -> None:
    import asyncio

    async def run() -> None:
        async with AsyncioAdmin(endpoints) as admin:
            await admin.create_user("etl", "first")
            assert await admin.verify_user("etl", "first")
            await admin.alter_user("etl", password="second", allow=["admin"])
            assert [each.allow for each in await admin.list_users()] == [["admin"]]
            await admin.delete_user("etl")
            assert not await admin.verify_user("etl", "second")

    asyncio.run(run())


def test_no_file_holds_the_password(tmp_path: Path) -> None:
    async def run() -> None:
        async with Node(settings(tmp_path)) as node, Admin(node.endpoints) as admin:
            await admin.create_user("etl", "correct-horse-battery")
            assert await admin.verify_user("etl", "correct-horse-battery")

    trio.run(run)
    held = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b'"etl"' in path.read_bytes() for path in held), "the user stands in the store"
    assert not any(b"correct-horse" in path.read_bytes() for path in held)


# The rules


def peer(name: str, method: str = "sasl") -> PeerIdentity:
    return PeerIdentity("c", -1, 0, "data", method, name)  # type: ignore[arg-type]


class Known:
    """Users with their rules."""

    def __init__(self, **rules: frozenset[Operation] | None) -> None:
        self.rules = rules

    def exists(self, name: str) -> bool:
        return name in self.rules

    def rule_of(self, name: str) -> frozenset[Operation] | None:
        return self.rules.get(name)


PRODUCE, CONSUME, ADMIN = Operation.PRODUCE, Operation.CONSUME, Operation.ADMIN


@pytest.mark.parametrize(
    ("rules", "name", "method", "may"),
    [
        ((), "free", "sasl", CLIENTS),
        ((), "etl", "sasl", {PRODUCE}),
        ((), "etl", "mtls", {PRODUCE}),
        ((), "none", "sasl", set()),
        ((), "gone", "sasl", set()),
        ((), "gone", "mtls", CLIENTS),
        (("client=consume",), "etl", "sasl", {PRODUCE, CONSUME}),
        (("client=consume",), "free", "sasl", {CONSUME}),
        (("client=consume",), "gone", "sasl", set()),
        (("client/etl=admin",), "etl", "sasl", {PRODUCE, ADMIN}),
    ],
)
def test_the_rule_of_a_user_is_one_more(
    rules: tuple[str, ...], name: str, method: str, may: set[Operation]
) -> None:
    known = Known(free=None, etl=frozenset({PRODUCE}), none=frozenset())
    assert Authoriser(rules, known).allowed(peer(name, method)) == may


# Who exists is not told


class Clocked(Users):
    def __init__(self, view: ClusterView) -> None:
        super().__init__(lambda: view, self._confirmed)
        self.confirmed = 0

    async def _confirmed(self) -> None:
        self.confirmed += 1


def view_with(name: str) -> ClusterView:
    from insync.replication.core.control.records import UserRecord

    kept = {mechanism: scram.derive(mechanism, "right", b"12345678") for mechanism in scram.HASHES}
    return ClusterView(users={name: (UserRecord(name=name, credentials=kept), 1)}, secret="of the cluster")


async def test_a_stranger_looks_as_a_user_does() -> None:
    one, two = Clocked(view_with("etl")), Clocked(view_with("etl"))
    there = await one.credential("etl", "SCRAM-SHA-256")
    made = await one.credential("nobody", "SCRAM-SHA-256")
    assert (len(made.stored_key), made.iterations) == (len(there.stored_key), there.iterations)
    assert made == await two.credential("nobody", "SCRAM-SHA-256"), "on every node, at every time"
    assert one.confirmed == 2, "the store is read for both"
    assert made != await one.credential("nobody", "SCRAM-SHA-512")


async def test_a_stranger_costs_as_much_hashing_as_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    from insync.replication.core.control.records import UserRecord

    kept = {"SCRAM-SHA-512": scram.derive("SCRAM-SHA-512", "right", b"12345678", scram.MOST_ITERATIONS)}
    users = Clocked(
        ClusterView(users={"etl": (UserRecord(name="etl", credentials=kept), 1)}, secret="of the cluster")
    )
    there, made = [await users.credential(name, "SCRAM-SHA-512") for name in ("etl", "nobody")]
    assert (made.iterations, len(made.salt)) == (there.iterations, len(there.salt))
    without = await users.credential("etl", "SCRAM-SHA-256")
    assert without.iterations == (await users.credential("nobody", "SCRAM-SHA-256")).iterations
    hashed: list[tuple[str, int]] = []

    def salted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
        hashed.append((mechanism, iterations))
        return b"0" * 64

    monkeypatch.setattr(scram, "salted_password", salted)
    for name in ("etl", "nobody"):
        assert not await users.verify(name, "wrong")
    assert hashed == [("SCRAM-SHA-512", scram.MOST_ITERATIONS)] * 2


async def test_who_does_not_exist_costs_as_much_hashing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: the same hashes, the same number of iterations."""
    hashed: list[tuple[str, int]] = []
    real = scram.salted_password

    def counted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
        hashed.append((mechanism, iterations))
        return real(mechanism, password, salt, iterations)

    users = Clocked(view_with("etl"))
    monkeypatch.setattr(scram, "salted_password", counted)
    assert await users.verify("etl", "right")
    assert not await users.verify("etl", "wrong")
    assert not await users.verify("nobody", "wrong")
    assert len(hashed) == 3 and len(set(hashed)) == 1
    assert users.confirmed == 3


async def test_logins_go_on_without_the_store() -> None:
    class Cut(Users):
        def __init__(self) -> None:
            super().__init__(lambda: view_with("etl"), self._fail)

        async def _fail(self) -> None:
            raise StoreUnavailableError("out of reach")

    assert await Cut().verify("etl", "right")
    assert not await Cut().verify("etl", "wrong")


async def test_a_store_that_does_not_answer_holds_a_login_up_for_a_moment(autojump_clock: object) -> None:
    class Silent(Users):
        def __init__(self) -> None:
            super().__init__(lambda: view_with("etl"), trio.sleep_forever)

    assert (await Silent().credential("etl", "SCRAM-SHA-256")).salt == b"12345678"


async def test_a_flood_of_logins_waits_in_a_short_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_users, "MOST_WAITING", 5)
    users, refused, done = Clocked(view_with("etl")), [], []

    async def log_in() -> None:
        try:
            done.append(await users.verify("etl", "right"))
        except ServiceError as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(log_in)
    assert done and all(done) and 20 - len(done) == len(refused) > 0
    assert len(done) <= _users.AT_ONCE + 6 and "logins wait" in str(refused[0])


async def test_a_flood_is_refused_while_the_store_is_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_users, "MOST_WAITING", 5)
    monkeypatch.setattr(_users, "CONFIRM_SECONDS", 60.0)
    is_read, refused = trio.Event(), []
    users = Users(lambda: view_with("etl"), is_read.wait)

    async def log_in() -> None:
        try:
            await users.verify("etl", "right")
        except ServiceError as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(log_in)
        await trio.testing.wait_all_tasks_blocked()
        assert len(refused) == 20 - 5 - _users.AT_ONCE
        is_read.set()
    assert await users.verify("etl", "right"), "the others have left"


async def test_a_login_that_is_cancelled_leaves_its_place_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_users, "MOST_WAITING", 0)
    monkeypatch.setattr(_users, "CONFIRM_SECONDS", 60.0)
    is_read = trio.Event()
    users = Users(lambda: view_with("etl"), is_read.wait)
    async with trio.open_nursery() as nursery:
        for _ in range(_users.AT_ONCE):
            nursery.start_soon(users.verify, "etl", "right")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ServiceError, match="logins wait"):
            await users.verify("etl", "right")
        nursery.cancel_scope.cancel()
    is_read.set()
    assert await users.verify("etl", "right")


@pytest.mark.parametrize("iterations", [-1, 0, 1 << 30, 1 << 40])
async def test_what_the_store_holds_stops_no_node(iterations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from insync.replication.core.control.records import UserRecord

    hashed: list[int] = []
    monkeypatch.setattr(scram, "salted_password", lambda *given: hashed.append(given[-1]) or b"0" * 32)
    _, sound = scram.made_up("SCRAM-SHA-256", "etl", b"")
    kept = {"SCRAM-SHA-256": attrs.evolve(sound, iterations=iterations), "SCRAM-SHA-9000": sound}
    users = Clocked(ClusterView(users={"etl": (UserRecord(name="etl", credentials=kept), 1)}))
    assert not await users.verify("etl", "right")
    assert hashed == [scram.ITERATIONS], "as if there were no such user"
    assert (await users.credential("etl", "SCRAM-SHA-256")).iterations == scram.ITERATIONS
    (told,) = users.describe(m.DescribeUsersRequest()).users
    assert told == UserInfo(name="etl", mechanisms={}, mark=told.mark)


def test_a_password_that_is_too_long_fits_nothing() -> None:
    long = "x" * scram.LONGEST_PASSWORD
    kept = scram.derive("SCRAM-SHA-256", long, b"12345678")
    assert scram.is_password("SCRAM-SHA-256", kept, long)
    kept = scram.derive("SCRAM-SHA-256", long + "x", b"12345678")
    assert not scram.is_password("SCRAM-SHA-256", kept, long + "x")
    kept = scram.derive("SCRAM-SHA-256", "", b"12345678")
    assert not scram.is_password("SCRAM-SHA-256", kept, long + "x"), "it is not taken for an empty one"
