"""What `insync adopt` leaves that fails, is stopped or is killed, and that it can be repeated."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from insync.replication import BlockingNode
from insync.replication.cli.app import main
from insync.replication.core import store_transaction as tx
from insync.replication.core.control import records as rec
from insync.replication.core.recovery.adoption import Adoption
from insync.replication.metadata import MemoryStore, MetadataError, SqliteStore, Unknown
from insync.replication.node.recovery import _adoption
from insync.storage import adoption, verify

from . import kafka_folder as kafka
from .test_kafka_adoption import command, settings, store_of
from .test_kafka_adoption import folder as folder
from .test_kafka_adoption import made as made


def test_a_store_that_fails_last_leaves_nothing_and_the_run_can_be_repeated(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, seen = SqliteStore.commit, []

    async def failing(self: SqliteStore, compares: Any, operations: Any, **more: Any) -> Any:
        seen.append([each.key for each in operations])
        if rec.CLUSTER_KEY in seen[-1]:
            raise MetadataError("the device is full")
        return await commit(self, compares, operations, **more)

    words = command(tmp_path, folder, more=store_of(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(SqliteStore, "commit", failing)
        assert main(words) == 1
    assert seen[-1] == [rec.CLUSTER_KEY], "the identity alone, after all else"
    assert not (tmp_path / "data-kafka").exists()
    assert main(words) == 0
    assert not verify(tmp_path / "data-kafka").defects


def test_a_copy_that_somebody_took_away_hides_no_failure(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = SqliteStore.commit

    async def failing(self: SqliteStore, compares: Any, operations: Any, **more: Any) -> Any:
        if rec.CLUSTER_KEY in [each.key for each in operations]:
            shutil.rmtree(tmp_path / "data-kafka")
            raise MetadataError("the device is full")
        return await commit(self, compares, operations, **more)

    monkeypatch.setattr(SqliteStore, "commit", failing)
    assert main(command(tmp_path, folder, more=store_of(tmp_path))) == 1
    assert "the device is full" in capsys.readouterr().err


@pytest.mark.parametrize(("took_place", "reachable"), [(True, True), (False, True), (True, False)])
def test_an_outcome_of_the_last_write_that_was_lost_is_looked_up(
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    took_place: bool,
    reachable: bool,
) -> None:
    """Copies are never removed from a store that has taken them."""
    commit, get, lost = SqliteStore.commit, SqliteStore.get, []

    async def losing(self: SqliteStore, compares: Any, operations: Any, **more: Any) -> Any:
        if rec.CLUSTER_KEY not in [each.key for each in operations] or lost:
            return await commit(self, compares, operations, **more)
        lost.append(operations)
        if took_place:
            await commit(self, compares, operations, **more)
        return Unknown("the connection broke")

    async def gone(self: SqliteStore, key: str) -> Any:
        if lost and not reachable:
            raise MetadataError("the store is gone")
        return await get(self, key)

    words = command(tmp_path, folder, more=store_of(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(SqliteStore, "commit", losing)
        patched.setattr(SqliteStore, "get", gone)
        assert main(words) == (0 if reachable else 1)
    assert reachable or "run the command again" in capsys.readouterr().err
    assert (tmp_path / "data-kafka" / "plain-0").exists()
    with BlockingNode(settings(tmp_path, tmp_path / "data-kafka")) as node:
        assert node.cluster_id == kafka.CLUSTER


@pytest.mark.parametrize("last", [False, True])
def test_a_signal_undoes_all_or_comes_too_late(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    commit, sent = SqliteStore.commit, []

    async def signalled(self: SqliteStore, compares: Any, operations: Any, **more: Any) -> Any:
        if not sent and last == (rec.CLUSTER_KEY in [each.key for each in operations]):
            sent.append(os.kill(os.getpid(), signal.SIGTERM))
            await trio.testing.wait_all_tasks_blocked()
        return await commit(self, compares, operations, **more)

    words = command(tmp_path, folder, more=store_of(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(SqliteStore, "commit", signalled)
        assert main(words) == (0 if last else 1)
    assert sent
    if not last:
        assert not (tmp_path / "data-kafka").exists()
        assert main(words) == 0
    assert (tmp_path / "data-kafka" / "plain-0").exists()
    with BlockingNode(settings(tmp_path, tmp_path / "data-kafka")) as node:
        assert node.cluster_id == kafka.CLUSTER


def test_a_run_that_was_killed_is_made_again(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves copies that have their names already, one that has not, and a store without its identity."""
    words = command(tmp_path, folder, more=store_of(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(_adoption.Copies, "__exit__", lambda *_: None)
        patched.setattr(_adoption, "check_store", refused_the_second_time())
        assert main(words) == 1
    staged = tmp_path / "data-kafka.adopting"
    assert (staged / "adopted-from").exists()
    shutil.copytree(staged, tmp_path / "data-kafka")
    (tmp_path / "data-kafka" / "plain-0" / "torn").touch()
    assert main(words) == 0
    assert not staged.exists() and not (tmp_path / "data-kafka" / "plain-0" / "torn").exists()


def refused_the_second_time() -> Any:
    calls = []

    async def check(store: Any) -> None:
        calls.append(store)
        if len(calls) == 2:
            raise MetadataError("gone")

    return check


def test_a_cluster_that_there_is_and_a_folder_in_use_stay(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(tmp_path, folder, more=store_of(tmp_path))
    assert main(words) == 0
    data = tmp_path / "data-kafka"
    with BlockingNode(settings(tmp_path, data)):
        pass
    before = kafka.fingerprint(data)
    assert main(words) == 1
    assert f"belongs to cluster {kafka.CLUSTER}" in capsys.readouterr().err
    (tmp_path / "meta.db").rename(tmp_path / "away.db")
    assert main(words) == 1
    assert "exists already" in capsys.readouterr().err
    assert kafka.fingerprint(data) == before


def test_a_copy_that_is_not_what_was_read_is_refused(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption, "_bridges", lambda seam, epochs: ())
    assert main(command(tmp_path, folder, more=store_of(tmp_path))) == 1
    assert not [each for each in tmp_path.iterdir() if each.name.startswith("data-")]


async def test_every_key_of_many_is_written() -> None:
    """An adoption writes them in portions, of which none leaves one out."""
    producer = rec.ProducerRecord(producer_id=1, producer_epoch=0)
    keys = [f"/{number:03}" for number in range(250)]
    identity = tx.Put(rec.CLUSTER_KEY, rec.ClusterRecord(cluster_id="c", secret="s"))
    planned = Adoption(
        writes=tuple((tx.Absent(key), tx.Put(key, producer)) for key in keys),
        identity=(tx.Absent(rec.CLUSTER_KEY), identity),
        leaders={},
        topics={},
        without_effect=(),
    )
    async with MemoryStore() as store:
        await _adoption.write_store(store, planned, _adoption.Copies([]))
        assert sorted((await store.list("/")).entries) == sorted([*keys, rec.CLUSTER_KEY])
