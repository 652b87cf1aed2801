"""Who says that it is a node must be registered like that, and prove it where clients may do less than nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from insync.replication import Admin, Node, NodeSettings, Producer
from insync.replication.metadata import StoreRefusedError, StoreUnavailableError, open_store
from insync.replication.node import InvalidSettingError, NodeStartError, load_settings
from insync.replication.node.store import _claims
from insync.transport import AuthError, Identity, NotRegisteredError, Security, WrongPeerError, connect

SECRET, NODE_SECRET = b"a secret of clients and nodes", b"a secret of the nodes alone"
TCP = ("tcp://127.0.0.1:0",)


def settings(folder: Path, node_id: int, **options: object) -> NodeSettings:
    base = {"data_dir": folder / f"n{node_id}", "store": f"sqlite://{folder}/meta.db", "listeners": TCP}
    return NodeSettings(node_id=node_id, **{**base, **options})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_claims, "PATIENCE", 0.3)


@pytest.fixture
def secrets(tmp_path: Path) -> dict[str, Path]:
    for name, secret in (("secret", SECRET), ("node-secret", NODE_SECRET)):
        (tmp_path / name).write_bytes(secret)
    return {"secret_file": tmp_path / "secret", "node_secret_file": tmp_path / "node-secret"}


async def replicates(node: Node, topic: str, **known: object) -> None:
    with trio.fail_after(60):
        async with Admin(node.endpoints, **known) as admin:
            await admin.create_topic(topic, partitions=2, replication_factor=2)
        async with Producer(node.endpoints, **known) as producer:
            for partition in (0, 1):
                delivery = await producer.send(topic, b"to both", partition=partition)
                await delivery.wait()


@pytest.mark.parametrize("ahead", [1, 1 << 61])
async def test_a_forged_incarnation_shuts_nobody_out(tmp_path: Path, ahead: int) -> None:
    two = Node(settings(tmp_path, 2))
    async with Node(settings(tmp_path, 1)) as one, two, trio.open_nursery() as nursery:
        await replicates(one, "before")
        forged = Identity(one.cluster_id, 2, two.incarnation + ahead)
        for _ in range(3):
            with pytest.raises(NotRegisteredError, match="node 2 is registered in incarnation"):
                await connect(one.endpoints[0], identity=forged, nursery=nursery)
        await replicates(one, "after")
        true = Identity(one.cluster_id, 2, two.incarnation)
        assert await connect(one.endpoints[0], identity=true, nursery=nursery)
        nursery.cancel_scope.cancel()


async def test_an_older_incarnation_and_an_unknown_node_are_refused(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)):
        pass
    async with Node(settings(tmp_path, 1)) as node, trio.open_nursery() as nursery:
        for identity in (Identity(node_id=1, incarnation=node.incarnation - 1), Identity(node_id=99)):
            with pytest.raises(WrongPeerError, match="registered"):
                await connect(node.endpoints[0], identity=identity, nursery=nursery)
        nursery.cancel_scope.cancel()


async def test_rules_are_not_evaded_by_calling_oneself_a_node(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1, allow=("client=consume",))) as node, trio.open_nursery() as nursery:
        for identity in (Identity(node_id=99), Identity(node_id=1, incarnation=node.incarnation)):
            with pytest.raises(
                NotRegisteredError, match=r"nothing proves that this is node.*node_secret_file"
            ):
                await connect(node.endpoints[0], identity=identity, nursery=nursery)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("listener", "options", "warns"),
    [
        ("tcp://127.0.0.1:0", {"allow": ("client=consume",)}, True),
        ("tcp://127.0.0.1:0", {}, False),
        ("tcp://127.0.0.1:0", {"allow": ("client=consume",), "secret": True}, False),
        ("shm://@", {"allow": ("client=consume",)}, False),
    ],
)
async def test_a_start_says_where_other_nodes_will_be_refused(
    tmp_path: Path,
    secrets: dict[str, Path],
    caplog: pytest.LogCaptureFixture,
    listener: str,
    options: dict[str, object],
    warns: bool,
) -> None:
    given = {**options, **(secrets if options.pop("secret", False) else {})}
    given.pop("secret", None)
    async with Node(settings(tmp_path, 1, listeners=(listener,), **given)):
        said = [each for each in caplog.messages if "cannot prove their identity" in each]
    assert len(said) == warns
    assert all("node_secret_file" in each and "tcp://127.0.0.1:" in each for each in said)


async def test_nodes_prove_by_a_secret_of_their_own(tmp_path: Path, secrets: dict[str, Path]) -> None:
    options = {**secrets, "allow": ("client=consume+produce+admin",)}
    clients = Security(secret=SECRET)
    async with (
        Node(settings(tmp_path, 1, **options)) as one,
        Node(settings(tmp_path, 2, **options)) as two,
        trio.open_nursery() as nursery,
    ):
        await replicates(one, "t", secret_file=secrets["secret_file"])
        claimed = Identity(one.cluster_id, 2, two.incarnation)
        with pytest.raises(AuthError, match="knows the nodes' secret and node 2 does not"):
            await connect(one.endpoints[0], identity=claimed, nursery=nursery, security=clients)
        guessed = Security(secret=SECRET, node_secret=b"not the secret of the nodes")
        with pytest.raises(AuthError, match="the nodes' secrets differ"):
            await connect(one.endpoints[0], identity=claimed, nursery=nursery, security=guessed)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("given", ["rules", "secrets"])
async def test_a_served_store_is_not_written_to_by_who_calls_itself_a_node(
    tmp_path: Path, secrets: dict[str, Path], given: str
) -> None:
    options: dict[str, object] = {"allow": ("client=consume",)} if given == "rules" else dict(secrets)
    security = Security() if given == "rules" else Security(secret=SECRET)
    async with Node(settings(tmp_path, 1, serve_store="tcp://127.0.0.1:0", **options)) as node:
        impostor = open_store(
            node.store_url, security=security, identity=Identity(node_id=99), wait_seconds=0
        )
        with pytest.raises(
            (StoreRefusedError, StoreUnavailableError), match=r"proves|knows the nodes' secret"
        ):
            async with impostor:
                pass


async def test_a_node_joins_by_a_served_store_with_the_nodes_secret(
    tmp_path: Path, secrets: dict[str, Path]
) -> None:
    serving = settings(tmp_path, 1, serve_store="tcp://127.0.0.1:0", allow=("client=consume",), **secrets)
    async with Node(serving) as one, Node(settings(tmp_path, 2, store=one.store_url, **secrets)) as two:
        assert two.cluster_id == one.cluster_id


@pytest.mark.parametrize("name", ["secret", "node_secret"])
def test_no_secret_stands_on_a_command_line(name: str) -> None:
    given = {"node_id": 1, "store": "memory://x", "data_dir": "x"}
    with pytest.raises(InvalidSettingError, match=rf"{name} must not be on the command line.*{name}_file"):
        load_settings(assignments=[f"{name}=0123456789abcdef"], given=given, environment={})


async def test_one_secret_for_both_is_refused(tmp_path: Path, secrets: dict[str, Path]) -> None:
    same = {"secret_file": secrets["secret_file"], "node_secret_file": secrets["secret_file"]}
    with pytest.raises(NodeStartError, match="the nodes' secret is the clients' secret"):
        async with Node(settings(tmp_path, 1, **same)):
            pass
