"""The faults. Each is injected, is seen to bite, and is taken back."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import attrs
import trio

from insync.replication import Admin, ReplicationError

from .load import PARTITIONS, TOPICS, until
from .members import PORT, Member
from .network import OURS, Network
from .replica_files import flushed_bytes
from .stores import RunStore

Inject = Callable[["Scene"], Awaitable["Bite"]]


@attrs.frozen
class Bite:
    """Whom a fault met, and the evidence that it did; "" is none."""

    target: str
    evidence: str


@attrs.frozen
class Scene:
    """What faults work on."""

    members: Sequence[Member]
    network: Network | None
    store: RunStore
    admin: Admin
    random: random.Random

    def any_member(self) -> Member:
        return self.random.choice(self.members)

    async def leader(self) -> Member:
        """A node that leads something, if one does."""
        try:
            topics = await self.admin.describe_topics([TOPICS["all"]])
        except ReplicationError:
            return self.any_member()
        leaders = {part.leader for part in topics[0].partitions}
        leading = [member for member in self.members if member.number in leaders]
        return self.random.choice(leading or list(self.members))

    async def controller(self) -> Member:
        number = (await self.admin.describe_cluster()).controller_id
        return next((each for each in self.members if each.number == number), self.members[0])


@attrs.frozen
class Fault:
    """lossy: it takes data from a replica, so it comes alone and only when all replicas are in sync."""

    name: str
    inject: Inject
    lossy: bool = False
    needs_network: bool = False
    needs_store_port: bool = False


async def _kill_and_start(member: Member) -> str:
    status = await member.end(signal.SIGKILL)
    evidence = "ended by SIGKILL" if status == -signal.SIGKILL else ""
    return evidence if await member.start() else ""


async def kill(scene: Scene) -> Bite:
    member = await scene.leader()
    status = await member.end(signal.SIGKILL)
    await trio.sleep(scene.random.uniform(0, 3))
    started = await member.start()
    return Bite(f"node {member.number}", f"status {status}" if status == -9 and started else "")


async def kill_controller(scene: Scene) -> Bite:
    member = await scene.controller()
    return Bite(f"node {member.number}, controller", await _kill_and_start(member))


async def kill_all(scene: Scene) -> Bite:
    for member in scene.members:
        member.send(signal.SIGKILL)
    statuses = [await member.end(signal.SIGKILL) for member in scene.members]
    started: list[bool] = []

    async def start(member: Member) -> None:
        started.append(await member.start())

    async with trio.open_nursery() as nursery:
        for member in scene.members:
            nursery.start_soon(start, member)
    return Bite("all nodes", f"statuses {statuses}" if set(statuses) == {-9} and all(started) else "")


async def pause(scene: Scene) -> Bite:
    member = await scene.leader()
    member.send(signal.SIGSTOP)
    stopped = await until(member.is_stopped, 2)
    await trio.sleep(scene.store.session_ms / 1000 * scene.random.uniform(1.5, 3))
    member.send(signal.SIGCONT)
    return Bite(f"node {member.number}", "stood still" if stopped else "")


async def rolling_restart(scene: Scene) -> Bite:
    statuses = []
    for member in scene.members:
        statuses.append(await member.end(signal.SIGTERM))
        if not await member.start():
            return Bite(f"node {member.number}", "")
    return Bite("each node in turn", f"statuses {statuses}" if set(statuses) == {0} else "")


async def _cut(scene: Scene, pairs: list[tuple[int, int]], port: int) -> str:
    """Cut, wait, heal; the evidence is that a probe of the first pair hangs."""
    assert scene.network is not None
    for source, target in pairs:
        scene.network.cut(source, target)
    bit = await trio.to_thread.run_sync(scene.network.is_cut, *pairs[0], port)
    await trio.sleep(scene.random.uniform(1, 6))
    scene.network.heal()
    return "a connection got no answer" if bit else ""


async def cut_pair(scene: Scene) -> Bite:
    one, two = scene.random.sample([member.number for member in scene.members], 2)
    return Bite(f"nodes {one} and {two}", await _cut(scene, [(one, two), (two, one)], PORT))


async def cut_one_way(scene: Scene) -> Bite:
    one, two = scene.random.sample([member.number for member in scene.members], 2)
    return Bite(f"node {one} to {two}", await _cut(scene, [(one, two)], PORT))


async def isolate(scene: Scene) -> Bite:
    """A leader that reaches the store and the clients, but no other node."""
    one = (await scene.leader()).number
    others = [member.number for member in scene.members if member.number != one]
    pairs = [pair for other in others for pair in ((one, other), (other, one))]
    return Bite(f"node {one} from the others", await _cut(scene, pairs, PORT))


async def cut_store(scene: Scene) -> Bite:
    one = (await scene.leader()).number
    return Bite(f"node {one} from the store", await _cut(scene, [(one, OURS)], scene.store.port))


async def store_away(scene: Scene) -> Bite:
    async with scene.store.away(scene.random.uniform(0.5, 2) * scene.store.session_ms / 1000) as bit:
        pass
    return Bite("the store", "unavailable" if bit else "")


async def slow_disk(scene: Scene) -> Bite:
    member = await scene.leader()
    bitten = member.disk_control.with_suffix(".bitten")
    before = bitten.stat().st_size if bitten.exists() else 0
    member.disk_control.write_text(str(scene.random.choice([20, 100, 400])))
    await trio.sleep(scene.random.uniform(2, 5))
    member.disk_control.unlink()
    delayed = (bitten.stat().st_size if bitten.exists() else 0) - before
    return Bite(f"node {member.number}", f"{delayed} calls delayed" if delayed else "")


async def full_disk(scene: Scene) -> Bite:
    """Fill the small device under a node's second log directory; after a while there is room, and a restart."""
    member = scene.any_member()
    since = member.position()
    ballast = member.folder / "device" / "ballast"
    _fill(ballast)
    bit = await until(lambda: member.said("offline", since), 15)
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
        text = path.read_text()
        other = re.sub(
            r"(?m)^directory\.id=(.).*$",
            lambda found: found[0][:-1] + ("A" if found[0][-1] != "A" else "B"),
            text,
        )
        path.write_text(other)


async def reassign(scene: Scene) -> Bite:
    """Move a partition to other nodes, or to the same ones in another order, while it is written."""
    place = TOPICS["all"], scene.random.randrange(PARTITIONS)
    wanted = scene.random.sample([member.number for member in scene.members], 3)
    outcome = await scene.admin.reassign_partitions({place: wanted})
    if outcome[place] is not None:
        return Bite(f"{place[0]}-{place[1]} to {wanted}", "")
    with trio.move_on_after(60):
        await scene.admin.wait_for_reassignments([place[0]])
        (topic,) = await scene.admin.describe_topics([place[0]])
        moved = next(part.replicas for part in topic.partitions if part.partition == place[1]) == wanted
        return Bite(f"{place[0]}-{place[1]} to {wanted}", "it is there" if moved else "")
    return Bite(f"{place[0]}-{place[1]} to {wanted}", "")


async def bit_flip(scene: Scene) -> Bite:
    """A flipped bit inside a log: the node refuses to start, and names the place; people move it aside."""
    member = scene.any_member()
    await member.end(signal.SIGKILL)
    path = member.segments()[0]
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 1 << scene.random.randrange(8)
    path.write_bytes(raw)
    since = member.position()
    started = await member.start()
    if started:
        return Bite(f"node {member.number}, {path.parent.name} of {len(raw)} bytes", "")
    evidence = f"refused, naming {path.parent.name}" if member.said(path.name, since) else ""
    aside = member.folder / f"aside-{path.parent.name}-{scene.random.randrange(1 << 30)}"
    shutil.move(path.parent, aside)
    return Bite(f"node {member.number}", evidence if await member.start() else "")


FAULTS: tuple[Fault, ...] = (
    Fault("kill", kill),
    Fault("kill_controller", kill_controller),
    Fault("kill_all", kill_all),
    Fault("pause", pause),
    Fault("rolling_restart", rolling_restart),
    Fault("cut_pair", cut_pair, needs_network=True),
    Fault("cut_one_way", cut_one_way, needs_network=True),
    Fault("isolate_leader", isolate, needs_network=True),
    Fault("cut_store", cut_store, needs_network=True, needs_store_port=True),
    Fault("store_away", store_away),
    Fault("slow_disk", slow_disk),
    Fault("full_disk", full_disk),
    Fault("reassign", reassign),
    Fault("empty_disk", empty_disk, lossy=True),
    Fault("torn_tail", torn_tail, lossy=True),
    Fault("bit_flip", bit_flip, lossy=True),
)
