"""The folders of a cluster that was killed, or stopped cleanly, and what was acknowledged to its clients.

Every fault of `flips` starts from a copy of them. They hold each kind of small file: several segments with their
indexes and snapshots, several leader epochs, a compacted log, offsets of a group, transactions, a stray log.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Literal
from uuid import uuid4

import attrs
import trio

from insync.replication import Admin, Consumer, Producer
from insync.replication.core.coordination.routing import GROUP_TOPIC, TRANSACTION_TOPIC
from insync.storage.directory import CLEAN_SHUTDOWN
from insync.storage.folder._checkpoints import NAMES
from insync.storage.folder._partition_folder import write_metadata
from tests.processes import NodeProcess, cluster, start_again

from ..history import Place
from ..load import until_async

NODES = (1, 2, 3)
STORE = "meta.db"
THREE, ONE, COMPACTED, TRANSACTED, STRAY = "three", "one", "compacted", "transacted", "stray"
TOPICS = (THREE, ONE, COMPACTED, TRANSACTED)
INTERNAL = (GROUP_TOPIC, TRANSACTION_TOPIC)
GROUP = "readers"
_OPTIONS = tuple(
    part
    for name, value in {
        "offsets_topic_num_partitions": 1,
        "transaction_state_log_num_partitions": 1,
        "log_maintenance_interval_ms": 50,
        "proof_interval_ms": 100,
    }.items()
    for part in ("--set", f"{name}={value}")
)
_SECONDS = 60.0
_RECORDS = 12
_KEYS = 3
_PADDING = 700
"""Bytes of a value: enough for several segments, and an entry in the index of each."""
_SMALL = {"segment_bytes": 6 << 10, "min_insync_replicas": 2}

Ending = Literal["killed", "stopped"]


@attrs.frozen
class Template:
    """Folders of nodes that have ended, with the store beside them.

    acked: value by offset, of the topics that keep every record; `latest`: value by key, of the compacted one.
    strays: values in the stray log. committed: the group's offsets.
    """

    root: Path
    ending: Ending
    acked: dict[Place, dict[int, bytes]] = attrs.field(factory=dict)
    latest: dict[bytes, bytes] = attrs.field(factory=dict)
    strays: int = 0
    committed: dict[Place, int] = attrs.field(factory=dict)


async def make_template(root: Path, ending: Ending) -> Template:
    """Run a cluster of processes until it has all that `Template` says, and end it."""
    await trio.Path(root).mkdir()
    known = Template(root, ending)
    with cluster(root, len(NODES), *_OPTIONS) as nodes:
        async with Admin(_servers(nodes)) as admin:
            await admin.create_topic(THREE, 1, 3, config=_SMALL)
            await admin.create_topic(ONE, assignments=[[each] for each in NODES])
            await admin.create_topic(TRANSACTED, 1, 3, config={"min_insync_replicas": 2})
            compacting = {"cleanup_policy": "compact", "segment_ms": 100, "min_cleanable_dirty_ratio": 0}
            await admin.create_topic(COMPACTED, 1, 3, config={**_SMALL, **compacting})
            await _write(nodes, known, "first")
            await _reach(lambda: _is_whole(admin), "every replica is in sync")
        await _end(nodes, ending)
        _add_stray(root / "node-1")
        for number in NODES:
            start_again(nodes, number, *_OPTIONS)
        async with Admin(_servers(nodes)) as admin:
            await _write(nodes, known, "second")
            await _reach(lambda: _is_whole(admin), "every replica is in sync")
            await _reach(
                partial(_has_checkpoints, root), "every replica is compacted, every checkpoint written"
            )
        await _end(nodes, ending)
        # By processes that end a moment after the nodes.
        await _reach(partial(_is_closed, root / STORE), "the store is closed")
    for each in NODES:
        assert (root / f"node-{each}" / CLEAN_SHUTDOWN).exists() == (ending == "stopped")
    return attrs.evolve(known, strays=_RECORDS)


def _servers(nodes: list[NodeProcess]) -> list[str]:
    return [node.endpoint for node in nodes]


async def _end(nodes: list[NodeProcess], ending: Ending) -> None:
    """Stopped side by side: one alone would wait for others to take over what it leads."""
    if ending == "killed":
        for node in nodes:
            node.kill()
        return
    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(trio.to_thread.run_sync, node.stop)


async def _write(nodes: list[NodeProcess], known: Template, name: str) -> None:
    async with Producer(_servers(nodes), delivery_timeout_ms=60_000) as producer:
        places = [(THREE, 0), *((ONE, each) for each in range(len(NODES)))]
        for topic, partition in places:
            acked = known.acked.setdefault((topic, partition), {})
            for number in range(_RECORDS):
                value = b"%s.%d.%s" % (name.encode(), number, b"x" * _PADDING)
                sent = await producer.send(topic, value, partition=partition)
                acked[(await sent.wait()).offset] = value
        for number in range(4 * _KEYS):
            key, value = b"%d" % (number % _KEYS), b"%s.%d" % (name.encode(), number)
            await (await producer.send(COMPACTED, value, key=key, partition=0)).wait()
            known.latest[key] = value
    acked = known.acked.setdefault((TRANSACTED, 0), {})
    async with Producer(_servers(nodes), transactional_id="worker") as producer:
        for number in range(3):
            async with producer.transaction():
                value = b"%s.%d" % (name.encode(), number)
                sent = await producer.send(TRANSACTED, value, partition=0)
            acked[(await sent.wait()).offset] = value
    await _commit(nodes, known)


async def _commit(nodes: list[NodeProcess], known: Template) -> None:
    reading = {"group_id": GROUP, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    async with Consumer(_servers(nodes), **reading) as consumer:  # type: ignore[arg-type]
        consumer.subscribe([THREE])
        with trio.fail_after(_SECONDS):
            while len(known.acked[THREE, 0]) > (known.committed.get((THREE, 0), 0)):
                if await consumer.poll(200):
                    await consumer.commit()
                    known.committed.update(
                        {(at.topic, at.partition): offset or 0 for at, offset in consumer.positions().items()}
                    )


def _add_stray(folder: Path) -> None:
    """The log of a topic that the store does not know: the node sets it aside."""
    made = folder / f"{STRAY}-0"
    shutil.copytree(folder / f"{ONE}-0", made)
    write_metadata(made, (STRAY, 0), uuid4().hex)


async def _is_whole(admin: Admin) -> bool:
    infos = await admin.describe_topics([*TOPICS, *INTERNAL])
    return all(sorted(part.isr) == sorted(part.replicas) for info in infos for part in info.partitions)


async def _has_checkpoints(root: Path) -> bool:
    await trio.lowlevel.checkpoint()
    return all((root / f"node-{each}" / name).exists() for each in NODES for name in NAMES)


async def _is_closed(store: Path) -> bool:
    await trio.lowlevel.checkpoint()
    return not store.with_name(f"{store.name}-wal").exists()


async def _reach(holds: object, what: str) -> None:
    assert callable(holds)
    if not await until_async(holds, _SECONDS):
        raise RuntimeError(f"not within {_SECONDS:.0f} s: {what}")
