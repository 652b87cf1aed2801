"""Faults of devices: slow, hanging, full, emptied, torn and rotten ones."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import trio

from insync.replication import Consumer, ReplicationError
from insync.replication.client.errors import CorruptMessageError
from insync.storage.folder._proof import PROOF
from insync.storage.folder._sealed import sealed, unsealed

from .load import TOPICS, until, until_async
from .members import STALL_MS, Member
from .replica_files import flushed_bytes
from .scene import Bite, Scene


async def slow_disk(scene: Scene) -> Bite:
    member = await scene.leader()
    with member.suffering("disk_ms", str(scene.random.choice([20, 100, 400]))) as met:
        await trio.sleep(scene.random.uniform(2, 5))
    return Bite(f"node {member.number}", f"{met()} calls delayed" if met() else "")


async def hang(scene: Scene) -> Bite:
    """The device under a log directory of a leader does not get done with anything, until after it was given up."""
    member = await scene.leader()
    since = member.position()
    with member.suffering("hang", str(member.log_dirs[1])) as met:
        given_up = await until(lambda: member.said("state=offline", since), 15)
    status = await member.end(signal.SIGTERM)
    started = await member.start()
    bit = met() and given_up and started and status == 0
    return Bite(f"node {member.number}", f"{met()} calls hung, its directory went offline" if bit else "")


async def hang_at_stop(scene: Scene) -> Bite:
    """A node is asked to stop while a device hangs: others lead what it led, and it ends by itself."""
    member = await scene.leader()
    with member.suffering("hang", str(member.log_dirs[1])) as met:
        await until(lambda: met() > 0, 5)
        member.send(signal.SIGTERM)
        relieved = await until_async(lambda: _leads_nothing(scene, member), 15)
        await trio.sleep(scene.random.uniform(0, 2 * STALL_MS / 1000))
    ended = await until(lambda: not member.alive, 20)
    await member.end(signal.SIGKILL)
    bit = met() and relieved and ended and await member.start()
    return Bite(f"node {member.number}", f"{met()} calls hung, it led nothing and ended" if bit else "")


async def hang_at_start(scene: Scene) -> Bite:
    """A node starts while a device hangs; when that gets going again, so does the node."""
    member = scene.any_member()
    await member.end(scene.random.choice([signal.SIGTERM, signal.SIGKILL]))
    results: list[bool] = []

    async def start() -> None:
        results.append(await member.start())

    async with trio.open_nursery() as nursery:
        with member.suffering("hang", str(member.log_dirs[1])) as met:
            nursery.start_soon(start)
            await until(lambda: met() > 0, 60)
            await trio.sleep(scene.random.uniform(0.5, 2 * STALL_MS / 1000))
    return Bite(f"node {member.number}", f"{met()} calls hung" if met() and results == [True] else "")


async def _leads_nothing(scene: Scene, member: Member) -> bool:
    try:
        topics = await scene.admin.describe_topics(list(TOPICS.values()))
    except ReplicationError:
        return False
    return all(part.leader not in (-1, member.number) for topic in topics for part in topic.partitions)


async def full_disk(scene: Scene) -> Bite:
    """Fill the small device under a node's second log directory; after a while there is room, and a restart."""
    member = scene.any_member()
    since = member.position()
    ballast = member.folder / "device" / "ballast"
    _fill(ballast)
    bit = await until(lambda: member.said("state=offline", since), 15)
    ballast.unlink()
    await member.end(signal.SIGTERM)
    started = await member.start()
    return Bite(f"node {member.number}", "a log directory went offline" if bit and started else "")


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 64):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


_LENGTH_END = 12
"""Where the length of a record batch ends; it counts what follows."""
_COVERED = 21
"""Where what the checksum covers begins. Base offset and leader epoch, before it, are set by the leader."""


async def empty_disk(scene: Scene) -> Bite:
    member = scene.any_member()
    await member.end(signal.SIGKILL)
    member.wipe()
    return Bite(f"node {member.number}", "its folders are new" if await member.start() else "")


async def torn_tail(scene: Scene) -> Bite:
    """As after a power cut: the last bytes are gone or are others, and nothing proves that all is there."""
    member = scene.any_member()
    await member.end(signal.SIGKILL)
    cut = 0
    for path in member.segments():
        # What had been brought to the device cannot be lost like this.
        loose = path.stat().st_size - flushed_bytes(path)
        if loose > 0:
            lose = scene.random.randint(1, min(loose, 5_000))
            os.truncate(path, path.stat().st_size - lose)
            if scene.random.random() < 0.5:
                with path.open("ab") as file:
                    file.write(scene.random.randbytes(scene.random.randint(1, lose)))
            cut += lose
    _forget_proof(member)
    started = await member.start()
    return Bite(f"node {member.number}", f"{cut} bytes lost" if cut and started else "")


def _forget_proof(member: Member) -> None:
    """Another directory id: who restarts with it cannot show that nothing was lost since it was last registered."""
    for folder in member.log_dirs:
        path = folder / "meta.properties"
        text = unsealed(path.read_bytes())
        assert text is not None
        other = re.sub(
            r"(?m)^directory\.id=(.).*$",
            lambda found: found[0][:-1] + ("A" if found[0][-1] != "A" else "B"),
            text,
        )
        path.write_bytes(sealed(other, comment="#"))
        # Its count would show that it is the folder that the store knows, under another name.
        (folder / PROOF).unlink(missing_ok=True)


async def bit_flip(scene: Scene) -> Bite:
    """A flipped bit inside a log of a node that is down: it starts without that log, and names the place."""
    member = scene.any_member()
    await member.end(signal.SIGKILL)
    path = member.segments()[0]
    _flip(scene, path)
    evidence = await _refuses_log(scene, member, path)
    return Bite(f"node {member.number}", evidence)


async def bit_flip_live(scene: Scene) -> Bite:
    """A flipped bit inside a follower's log while it runs. It is made the leader: nobody is given what is wrong. It
    hears of it from a reader, finds the place, and another replica leads.
    """
    topic = TOPICS["all"]
    member = scene.any_member()
    path = next(each for each in member.segments() if each.parent.name.startswith(f"{topic}-"))
    partition = int(path.parent.name.rpartition("-")[2])
    (info,) = await scene.admin.describe_topics([topic])
    others = [each for each in info.partitions[partition].replicas if each != member.number]
    if info.partitions[partition].leader == member.number:
        await _lead(scene, partition, [*others, member.number])
    _flip(scene, path)
    target = f"node {member.number}, {path.parent.name}"
    since = member.position()
    # On a machine that is very busy it may lose its leadership before the reader comes.
    led = 0
    for _ in range(3):
        if await _lead(scene, partition, [member.number, *others]):
            led += 1
            await _read_until(scene, topic, partition, lambda: member.said("event=log_damaged", since))
        if member.said("event=log_damaged", since):
            return Bite(target, "it was told by a reader, and found the place")
    return Bite(f"{target}, which led {led} times", "")


def _flip(scene: Scene, path: Path) -> None:
    """Another bit, a third into the file, where a checksum covers it: that of a batch covers all behind itself."""
    data = path.read_bytes()
    start, target = 0, len(data) // 3
    while (end := start + _LENGTH_END + int.from_bytes(data[start + 8 : start + _LENGTH_END])) <= target:
        start = end
    position = max(target, start + _COVERED)
    with path.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), bytes((data[position] ^ 1 << scene.random.randrange(8),)), position)


async def _lead(scene: Scene, partition: int, wanted: list[int]) -> bool:
    """Have the first of these lead, by preference; it cannot while it is out of the ISR."""
    topic = TOPICS["all"]
    await scene.admin.reassign_partitions({(topic, partition): wanted})
    await scene.admin.wait_for_reassignments([topic])

    async def leads() -> bool:
        await scene.admin.elect_leaders([(topic, partition)])
        (info,) = await scene.admin.describe_topics([topic])
        return info.partitions[partition].leader == wanted[0]

    return await until_async(leads, 30)


async def _read_until(scene: Scene, topic: str, partition: int, done: Callable[[], bool]) -> None:
    """Read from the beginning, again and again; what is read goes on record. Damage may be told, never given."""
    servers = [member.endpoint for member in scene.members]
    with trio.move_on_after(20):
        while not done():
            with suppress(CorruptMessageError):
                await _read_all(scene, servers, topic, partition, done)


async def _read_all(
    scene: Scene, servers: list[str], topic: str, partition: int, done: Callable[[], bool]
) -> None:
    async with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, partition)])
        (end,) = (await consumer.end_offsets([(topic, partition)])).values()
        expected = 0
        while expected < end and not done():
            for record in await consumer.poll(timeout_ms=200):
                scene.history.see((topic, partition), record.offset, record.value or b"", expected)
                expected = record.offset + 1


async def _refuses_log(scene: Scene, member: Member, path: Path) -> str:
    """The evidence that a node which is down starts without that log; it is copied again by itself."""
    since = member.position()
    if not await member.start():
        return ""
    return f"refused, naming {path.parent.name}" if member.said(path.name, since) else ""
