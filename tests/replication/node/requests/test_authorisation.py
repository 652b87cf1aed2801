"""What rules let clients do, and that nobody passes for a follower."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import trio

from insync.replication import Admin, Consumer, Node, NodeSettings, Producer, ReplicationError, wire
from insync.replication.client import AuthorizationError, GroupMetadata
from insync.replication.core import messages as m
from insync.replication.metadata import STORE_KINDS
from insync.replication.node import load_settings
from insync.replication.node.errors import InvalidSettingError
from insync.replication.node.requests.authorisation import ALSO, OPERATIONS, Authoriser, Operation, Rule
from insync.transport import Identity, NotAuthorisedError, PeerIdentity, connect

ADMINS = {
    m.Kind.ABORT_TRANSACTION,
    m.Kind.ALTER_CLIENT_QUOTAS,
    m.Kind.ALTER_USER,
    m.Kind.DESCRIBE_USERS,
    m.Kind.VERIFY_USER,
    m.Kind.CREATE_TOPIC,
    m.Kind.DELETE_TOPIC,
    m.Kind.DELETE_RECORDS,
    m.Kind.ALTER_CONFIG,
    m.Kind.CREATE_PARTITIONS,
    m.Kind.ELECT_LEADERS,
    m.Kind.ALTER_PARTITION_REASSIGNMENTS,
    m.Kind.LIST_GROUPS,
    m.Kind.DELETE_GROUPS,
    m.Kind.OFFSET_DELETE,
}


_OF_NODES = {m.Kind.GET_REPLICA_LOG_INFO, m.Kind.IS_SILENT, m.Kind.WRITE_TXN_MARKERS}


def client(name: str = "") -> PeerIdentity:
    return PeerIdentity("c", -1, 0, "data", "mtls", name)


NODE = PeerIdentity("c", 2, 1, "data")


def settings(folder: Path, **options: object) -> NodeSettings:
    return NodeSettings(node_id=1, data_dir=folder / "n", store=f"sqlite://{folder}/m.db", **options)  # type: ignore[arg-type]


def test_without_rules_clients_do_all_but_replicate() -> None:
    ask = Authoriser()
    for kind in m.Kind:
        assert ask(NODE, kind) is None
        assert (ask(client(), kind) is None) == (kind not in _OF_NODES), kind
    for kind in _OF_NODES:
        assert "only nodes may" in (ask(client(), kind) or "")


@pytest.mark.parametrize(
    ("rules", "name", "may"),
    [
        (["client=consume"], "", {"consume"}),
        (["client=consume"], "etl", {"consume"}),
        (["client/etl=produce+consume"], "etl", {"produce", "consume"}),
        (["client/etl=produce"], "", set()),
        (["client/etl=produce"], "etl2", set()),
        (["client/etl*=produce"], "etl2", {"produce"}),
        (["*=admin", "client/etl=produce"], "etl", {"admin", "produce"}),
        (["client/?=admin"], "ab", set()),
        ([" client = consume + admin "], "", {"consume", "admin"}),
    ],
)
def test_rules_add_up_and_the_rest_is_refused(rules: list[str], name: str, may: set[str]) -> None:
    ask, peer = Authoriser(rules), client(name)
    assert {operation.value for operation in ask.allowed(peer)} == may
    for kind in m.Kind:
        needed = OPERATIONS.get(kind, {Operation.ADMIN})
        allowed = all(
            {operation.value for operation in some} & may for some in (needed, ALSO.get(kind, needed))
        )
        assert (ask(peer, kind) is None) == allowed, kind
        assert ask(NODE, kind) is None
    assert ask(peer, 9999) is None if "admin" in may else "may not admin" in (ask(peer, 9999) or "")


@pytest.mark.parametrize(
    ("may", "lacks"),
    [
        ("produce", "admin or consume"),
        ("consume", "produce"),
        ("admin", "produce"),
        ("produce+consume", None),
        ("produce+admin", None),
    ],
)
def test_offsets_in_a_transaction_need_the_rights_of_a_producer_and_of_a_group(
    may: str, lacks: str | None
) -> None:
    ask = Authoriser([f"client={may}"])
    told = ask(client(), m.Kind.TXN_OFFSET_COMMIT)
    assert told is None if lacks is None else f"may not {lacks} here" in (told or "")


def test_every_kind_has_its_operations() -> None:
    """A kind that is not classified is the admins'; whoever adds one decides here that it is."""
    assert set(m.Kind) == (set(OPERATIONS) - STORE_KINDS) | ADMINS
    assert all(OPERATIONS[kind] == {Operation.STORE} for kind in STORE_KINDS)
    assert OPERATIONS[m.Kind.PRODUCE] == {Operation.PRODUCE} and OPERATIONS[m.Kind.FETCH] == {
        Operation.CONSUME
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "client",
        "client=",
        "=produce",
        "node/3=produce",
        "client=fly",
        "client=replicate",
        "client=produce,",
    ],
)
def test_bad_rules_are_refused_by_name(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError, match=r"allow="):
        Rule.parse(text)
    with pytest.raises(InvalidSettingError, match=r"allow="):
        settings(tmp_path, allow=(text,))


def test_rules_come_from_all_sources_of_settings(tmp_path: Path) -> None:
    found = load_settings(
        file=None,
        assignments=("allow=client=consume,client/etl=produce+admin",),
        given={"node_id": 1, "data_dir": str(tmp_path), "store": "memory://x"},
    )
    assert found.allow == ("client=consume", "client/etl=produce+admin")


async def test_clients_are_told_what_they_may_not_do(tmp_path: Path) -> None:
    async with Node(settings(tmp_path)) as node:
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", partitions=1, replication_factor=1)
        async with Producer(node.endpoints) as producer:
            await (await producer.send("t", b"value", partition=0)).wait()
    async with Node(settings(tmp_path, allow=("client=consume",))) as node:
        with trio.fail_after(60):
            async with Admin(node.endpoints) as admin:
                with pytest.raises(AuthorizationError, match=r"client may not admin here.*allow"):
                    await admin.create_topic("u", partitions=1, replication_factor=1)
                with pytest.raises(AuthorizationError, match="may not admin"):
                    await admin.delete_records({("t", 0): -1})
            async with Producer(node.endpoints) as producer:
                delivery = await producer.send("t", b"value", partition=0)
                with pytest.raises(AuthorizationError, match=r"t-0.*may not produce") as caught:
                    await delivery.wait()
                assert caught.value.outcome == "absent" and not caught.value.retriable
            async with Consumer(node.endpoints, auto_offset_reset="earliest") as consumer:
                consumer.assign([("t", 0)])
                assert [record.value for record in await consumer.poll(timeout_ms=5000)] == [b"value"]
    async with Node(settings(tmp_path, allow=("client=produce",))) as node:
        with trio.fail_after(60):
            async with Consumer(node.endpoints, auto_offset_reset="earliest") as consumer:
                consumer.assign([("t", 0)])
                with pytest.raises(AuthorizationError, match="may not consume"):
                    await consumer.poll(timeout_ms=5000)
            async with Consumer(node.endpoints) as consumer:
                consumer.assign([("t", 0)])
                consumer.seek(("t", 0), 0)
                with pytest.raises(AuthorizationError, match="may not consume"):
                    await consumer.poll(timeout_ms=5000)


@pytest.mark.parametrize(("may", "is_let"), [("produce", False), ("produce+consume", True)])
async def test_a_producer_moves_the_offsets_of_groups_that_it_may_commit_itself(
    tmp_path: Path, may: str, is_let: bool
) -> None:
    few = {"offsets_topic_num_partitions": 3, "transaction_state_log_num_partitions": 3}
    async with Node(settings(tmp_path, **few)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", partitions=1, replication_factor=1)
        async with Producer(node.endpoints) as producer:
            await (await producer.send("t", b"value", partition=0)).wait()
    async with Node(settings(tmp_path, allow=(f"client={may}",), **few)) as node:
        with trio.fail_after(60):
            async with Producer(node.endpoints, transactional_id="etl") as producer:
                producer.begin()
                moved = producer.send_offsets({("t", 0): 1}, GroupMetadata(group_id="strangers"))
                if is_let:
                    await moved
                    await producer.commit()
                else:
                    with pytest.raises(AuthorizationError, match="may not admin or consume here"):
                        await moved
                    await producer.abort()
    async with Node(settings(tmp_path, **few)) as node, Admin(node.endpoints) as admin:
        found = await admin.group_offsets("strangers")
        assert list(found.values()) == ([1] if is_let else [])
        assert (await admin.describe_transaction("etl")).partitions == []


@pytest.mark.parametrize(("may", "is_let"), [("consume", False), ("consume+admin", True)])
async def test_the_records_of_internal_topics_are_for_admins(tmp_path: Path, may: str, is_let: bool) -> None:
    few = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
    async with Node(settings(tmp_path, **few)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", partitions=1, replication_factor=1)
        async with Producer(node.endpoints, transactional_id="secret") as producer, producer.transaction():
            await producer.send("t", b"value", partition=0)
            await producer.send_offsets({("t", 0): 1}, GroupMetadata(group_id="secret"))
    async with Node(settings(tmp_path, allow=(f"client={may}",), **few)) as node:
        for topic in ("__transaction_state", "__consumer_offsets"):
            with trio.fail_after(60):
                async with Consumer(node.endpoints, auto_offset_reset="earliest") as consumer:
                    consumer.assign([("t", 0), (topic, 0)])
                    if is_let:
                        found: set[str] = set()
                        while topic not in found:
                            found |= {each.topic for each in await consumer.poll(timeout_ms=5000)}
                    else:
                        with pytest.raises(AuthorizationError, match=f"client may not read topic '{topic}'"):
                            while True:
                                await consumer.poll(timeout_ms=5000)


@pytest.mark.parametrize(("may", "is_let"), [("consume", False), ("consume+admin", True)])
async def test_paths_of_the_machine_are_for_admins(tmp_path: Path, may: str, is_let: bool) -> None:
    async with Node(settings(tmp_path)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", partitions=1, replication_factor=1)
    (tmp_path / "bad").write_text("no folder")
    both = NodeSettings(
        node_id=1,
        log_dirs=(tmp_path / "n", tmp_path / "bad"),
        store=f"sqlite://{tmp_path}/m.db",
        allow=(f"client={may}",),
    )
    async with Node(both) as node, Admin(node.endpoints) as admin:
        (health,) = await admin.describe_nodes()
        (report,) = await admin.describe_replicas(["t"])
        (check,) = [each for each in health.checks if each.name == "log_directories"]
        assert not check.ok
        assert (str(tmp_path) in repr((health, report))) == is_let
        assert (report.replicas[0].log_dir == str(tmp_path / "n")) == is_let
        if not is_let:
            assert check.detail == "clients that may admin are told the reason"


@pytest.mark.parametrize("is_node", [False, True])
async def test_only_a_node_fetches_as_that_node(tmp_path: Path, is_node: bool) -> None:
    async with Node(settings(tmp_path)) as node, trio.open_nursery() as nursery:
        identity = Identity(node_id=node.node_id, incarnation=node.incarnation) if is_node else Identity()
        connection = await connect(node.endpoints[0], identity=identity, nursery=nursery)
        request = m.FetchRequest(
            replica_id=2, incarnation=1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, partitions=[]
        )
        with pytest.raises(NotAuthorisedError, match=r"is not node 2"):
            await connection.request(m.Kind.FETCH, wire.encode(request), timeout=5)
        nursery.cancel_scope.cancel()
    assert issubclass(AuthorizationError, ReplicationError)


@pytest.mark.parametrize(("is_node", "time_ms", "heard"), [(False, 1, ()), (True, 1, (1,)), (True, 0, ())])
async def test_a_fetch_tells_the_clock_of_its_sender_alone(
    tmp_path: Path, is_node: bool, time_ms: int, heard: tuple[int, ...]
) -> None:
    """A client that names a node stops no retention there with a clock that is wrong. Most fetches tell no time."""
    async with Node(settings(tmp_path)) as node, trio.open_nursery() as nursery:
        identity = Identity(node_id=node.node_id, incarnation=node.incarnation) if is_node else Identity()
        connection = await connect(node.endpoints[0], identity=identity, nursery=nursery)
        request = m.FetchRequest(
            replica_id=node.node_id,
            incarnation=node.incarnation,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            partitions=[],
            time_ms=time_ms,
        )
        with (
            nullcontext() if is_node else pytest.raises(NotAuthorisedError, match="is not node 1"),
            await connection.request(m.Kind.FETCH, wire.encode(request), timeout=30),
        ):
            pass
        assert node._driver is not None
        assert node._driver.judge_clocks(1).heard == heard
        nursery.cancel_scope.cancel()
