"""A cluster with a secret: its nodes and clients know it, nobody else gets in."""

from __future__ import annotations

from pathlib import Path

import pytest

from insync.replication import Admin, Consumer, Node, NodeSettings, Producer
from insync.replication.client import BootstrapError, InvalidSettingError
from insync.replication.node import NodeStartError


def settings(folder: Path, node_id: int, **options: object) -> NodeSettings:
    base = {"data_dir": folder / f"n{node_id}", "store": f"sqlite://{folder}/meta.db"}
    return NodeSettings(node_id=node_id, **{**base, **options})  # type: ignore[arg-type]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("a secret of this cluster\n")
    return path


async def test_nodes_and_clients_with_the_secret_work_and_others_do_not(tmp_path: Path, secret: Path) -> None:
    known = {"secret_file": secret}
    (tmp_path / "other").write_text("the secret of another cluster")
    async with Node(settings(tmp_path, 1, **known)) as node, Node(settings(tmp_path, 2, **known)):
        async with Admin(node.endpoints, **known) as admin:
            await admin.create_topic("t", partitions=1, replication_factor=2)
        async with Producer(node.endpoints, **known) as producer:
            delivery = await producer.send("t", b"in the know")
            await delivery.wait()
        async with Consumer(node.endpoints, auto_offset_reset="earliest", **known) as consumer:
            consumer.assign([("t", 0)])
            assert [r.value for r in await consumer.poll(timeout_ms=5000)] == [b"in the know"]
        for options in ({}, {"secret_file": tmp_path / "other"}):
            with pytest.raises(BootstrapError, match="secret"):
                async with Admin(node.endpoints, **options):
                    pass


async def test_the_environment_can_name_the_secret(
    tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Node(settings(tmp_path, 1, secret_file=secret)) as node:
        monkeypatch.setenv("INSYNC_SECRET_FILE", str(secret))
        async with Admin(node.endpoints):
            pass


async def test_a_program_can_give_the_secret_itself(tmp_path: Path) -> None:
    given = settings(tmp_path, 1, secret="one of this run alone", secret_file=tmp_path / "not-there")
    assert "this run" not in repr(given)
    async with Node(given) as node:
        async with Admin(node.endpoints, secret="one of this run alone"):
            pass
        with pytest.raises(BootstrapError, match="secret"):
            async with Admin(node.endpoints, secret="one of another run"):
                pass
        with pytest.raises(InvalidSettingError):
            Admin(node.endpoints, secret="short")


async def test_a_node_does_not_listen_for_strangers(tmp_path: Path, secret: Path) -> None:
    wide = {"listeners": ("tcp://0.0.0.0:0?contact=127.0.0.1",)}
    with pytest.raises(NodeStartError, match=r"secret_file.*allow_insecure"):
        async with Node(settings(tmp_path, 1, **wide)):
            pass
    for options in ({"secret_file": secret}, {"allow_insecure": True}):
        async with Node(settings(tmp_path, 1, **wide, **options)) as node:
            assert node.endpoints


async def test_a_secret_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(NodeStartError, match="none cannot be read"):
        async with Node(settings(tmp_path, 1, secret_file=tmp_path / "none")):
            pass
    with pytest.raises(InvalidSettingError, match=r"secret_file.*none cannot be read"):
        Admin("tcp://127.0.0.1:1", secret_file=tmp_path / "none")
