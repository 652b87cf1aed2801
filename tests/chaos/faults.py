"""The faults. Each is injected, is seen to bite, and is taken back."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import permutations
from random import Random

import attrs
import trio

from insync.replication import Producer, ReplicationError
from insync.replication.client import InvalidReplicationFactorError

from . import disk_faults as disk
from .load import PARTITIONS, TOPICS, until, until_async
from .members import LAG_MS, PORT, STALL_MS, Member
from .network import OURS, Network
from .scene import Bite, Fault, Scene

_ALL_ALIVE_SECONDS = 60.0


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
    statuses = await _kill_all(scene)
    started = await _start_all(scene)
    return Bite("all nodes", f"statuses {statuses}" if set(statuses) == {-9} and started else "")


async def _kill_all(scene: Scene) -> list[int]:
    for member in scene.members:
        member.send(signal.SIGKILL)
    return [await member.end(signal.SIGKILL) for member in scene.members]


async def _start_all(scene: Scene) -> bool:
    started: list[bool] = []

    async def start(member: Member) -> None:
        started.append(await member.start())

    async with trio.open_nursery() as nursery:
        for member in scene.members:
            nursery.start_soon(start, member)
    return all(started)


async def kill_before_folders(scene: Scene) -> Bite:
    """SIGKILL of all nodes when a topic stands in the store and nowhere else: it is led by itself all the same."""
    tried: list[str] = []

    async def is_killed() -> bool:
        tried.append(f"new-{scene.random.randrange(1 << 30)}")
        return await _kill_once_it_is_stored(scene, tried[-1])

    if not await until_async(is_killed, _ALL_ALIVE_SECONDS):
        return Bite(f"all nodes, topics {tried}", "")
    topic = tried[-1]
    made = [path for each in scene.members for folder in each.log_dirs for path in folder.glob(f"{topic}-*")]
    started = await _start_all(scene)
    there = await scene.admin.list_topics()
    written = topic in there and await _write_to_all(scene, topic)
    for name in there:
        if name in tried:
            await scene.admin.delete_topic(name)
    evidence = "no node had a folder of it; it was written" if not made and started and written else ""
    found = "" if evidence else f": {len(made)} folders, {started=}, {written=}"
    return Bite(f"all nodes, topic {topic}{found}", evidence)


async def _kill_once_it_is_stored(scene: Scene, topic: str) -> bool:
    """False if it is refused, or not stored before the nodes would give their devices up, and nobody killed: the
    fault before may have cost a node its session, or the cluster its controller, and it may not be back yet.
    """
    with ExitStack() as stack:
        for member in scene.members:
            stack.enter_context(member.suffering("hang", str(member.folder)))
        try:
            with trio.move_on_after(STALL_MS / 2000):
                await scene.admin.create_topic(topic, PARTITIONS, 3, config={"min_insync_replicas": 2})
        except InvalidReplicationFactorError:
            return False
        if not await _is_listed(scene, topic, STALL_MS / 4000):
            return False
        await _kill_all(scene)
    return True


async def _is_listed(scene: Scene, topic: str, seconds: float) -> bool:
    """Whether a node has read in the store, and tells in that time, that there is such a topic."""
    with trio.move_on_after(seconds):
        try:
            return topic in await scene.admin.list_topics()
        except ReplicationError:
            return False
    return False


async def _write_to_all(scene: Scene, topic: str) -> bool:
    """Whether every partition of a topic takes an acks=all write."""
    servers = [member.endpoint for member in scene.members]
    try:
        async with Producer(servers, delivery_timeout_ms=30_000, request_timeout_ms=5_000) as producer:
            for partition in range(PARTITIONS):
                await (await producer.send(topic, b"n:0", partition=partition)).wait()
    except ReplicationError:
        return False
    return True


async def pause(scene: Scene) -> Bite:
    member = await scene.leader()
    member.send(signal.SIGSTOP)
    stopped = await until(member.is_stopped, 2)
    await trio.sleep(scene.store.session_ms / 1000 * scene.random.uniform(1.5, 3))
    member.send(signal.SIGCONT)
    return Bite(f"node {member.number}", "stood still" if stopped else "")


async def starve(scene: Scene) -> Bite:
    """A machine that has no time for the nodes, while a leader dies: each stands still again and again, for a part
    of its session or a little longer.
    """
    victim = await scene.leader()
    session, seen = scene.store.session_ms / 1000, set[int]()

    async def starved(member: Member) -> None:
        while True:
            await trio.sleep(scene.random.uniform(0, 0.3))
            member.send(signal.SIGSTOP)
            try:
                if await until(member.is_stopped, 2):
                    seen.add(member.number)
                await trio.sleep(session * scene.random.choice((0.1, 0.3, 0.7, 1.2)))
            finally:
                member.send(signal.SIGCONT)

    async with trio.open_nursery() as nursery:
        for member in scene.members:
            if member is not victim:
                nursery.start_soon(starved, member)
        await trio.sleep(scene.random.uniform(0, 2))
        status = await victim.end(signal.SIGKILL)
        await trio.sleep(scene.random.uniform(0, 3))
        started = await victim.start()
        if started:
            nursery.start_soon(starved, victim)
        await trio.sleep(4 * session)
        nursery.cancel_scope.cancel()
    bit = status == -signal.SIGKILL and started and seen == {member.number for member in scene.members}
    return Bite(f"all nodes, node {victim.number} killed", f"status {status}, all stood still" if bit else "")


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
    return await _isolated(scene, (await scene.leader()).number)


async def _isolated(scene: Scene, one: int) -> Bite:
    others = [member.number for member in scene.members if member.number != one]
    pairs = [pair for other in others for pair in ((one, other), (other, one))]
    return Bite(f"node {one} from the others", await _cut(scene, pairs, PORT))


async def strand_leader(scene: Scene) -> Bite:
    """A leader that reaches clients, but neither nodes nor the store: it cannot know that others lead."""
    member = await scene.leader()
    with member.suffering("store", "cut") as met:
        bite = await _isolated(scene, member.number)
    return attrs.evolve(
        bite, evidence=bite.evidence and f"{bite.evidence}, {met()} calls failed" if met() else ""
    )


async def lose_packets(scene: Scene) -> Bite:
    """Of the packets between all nodes some are lost, each way."""
    assert scene.network is not None
    percent, lost = await lose_for_a_while(scene.network, scene.members, scene.random)
    return Bite(f"all nodes, {percent} %", f"{lost} packets were lost" if lost else "")


async def lose_for_a_while(net: Network, members: Sequence[Member], dice: Random) -> tuple[int, int]:
    """Which share of the packets between the nodes was to be lost, in percent, and how many were."""
    percent = dice.randint(5, 30)
    for source, target in permutations([member.number for member in members], 2):
        net.lose(source, target, percent)
    await trio.sleep(dice.uniform(3, 8))
    lost = net.lost()
    net.heal()
    return percent, lost


async def spoil_packets(scene: Scene) -> Bite:
    """All that a leader sends is delayed, reordered, doubled, corrupted or lost, also to clients and the store."""
    net, one = scene.network, (await scene.leader()).number
    assert net is not None
    spoiled = net.spoil(one, "delay 20ms 10ms reorder 25% 50% duplicate 1% corrupt 1% loss 3%")
    await trio.sleep(scene.random.uniform(3, 8))
    dropped = net.unspoil(one) if spoiled else 0
    return Bite(f"node {one}", f"{dropped} packets were lost, others spoiled" if dropped else "")


async def cut_store(scene: Scene) -> Bite:
    one = (await scene.leader()).number
    return Bite(f"node {one} from the store", await _cut(scene, [(one, OURS)], scene.store.port))


async def cut_store_file(scene: Scene) -> Bite:
    """A leader cannot use the SQLite file that the others use, nor its lease in it."""
    member = await scene.leader()
    with member.suffering("store", "cut") as met:
        await trio.sleep(scene.random.uniform(0.5, 4) * scene.store.session_ms / 1000)
    return Bite(f"node {member.number}", f"{met()} calls failed" if met() else "")


async def store_away(scene: Scene) -> Bite:
    async with scene.store.away(scene.random.uniform(0.5, 2) * scene.store.session_ms / 1000) as bit:
        pass
    return Bite("the store", "unavailable" if bit else "")


async def clock_jump(scene: Scene) -> Bite:
    """A leader's wall clock is wrong by hours to days, then right again: no session ends of it, no ISR shrinks."""
    member = await scene.leader()
    ahead = scene.random.choice([-1, 1]) * scene.random.uniform(3600, 3 * 86400)
    before = await _epochs(scene)
    with member.suffering("clock_s", str(ahead)) as met:
        await trio.sleep(3 * max(scene.store.session_ms, LAG_MS) / 1000)
    await trio.sleep(scene.store.session_ms / 1000)
    after = await _epochs(scene)
    # Who loses its session, or its place in an ISR, comes back: that makes two changes. A leadership may go back
    # to its preferred replica meanwhile, which is one.
    harm = [f"{place[0]}-{place[1]} changed" for place, epoch in after.items() if epoch > before[place] + 1]
    target = f"node {member.number} by {ahead / 3600:+.1f} h"
    return Bite(target, f"{met()} looks at a wrong clock" if met() else "", ", ".join(harm))


async def _epochs(scene: Scene) -> dict[tuple[str, int], int]:
    """The partition epochs: each rises with every change of leader, ISR or replicas."""
    topics = await scene.admin.describe_topics(list(TOPICS.values()))
    return {
        (topic.name, part.partition): part.partition_epoch for topic in topics for part in topic.partitions
    }


async def reassign(scene: Scene) -> Bite:
    """Move a partition to other nodes, or to the same ones in another order, while it is written."""
    place = TOPICS["all"], scene.random.randrange(PARTITIONS)
    wanted = scene.random.sample([member.number for member in scene.members], 3)

    async def is_taken() -> bool:
        """It is refused while a node is not back yet, whom the fault before may have cost its session."""
        return (await scene.admin.reassign_partitions({place: wanted}))[place] is None

    if not await until_async(is_taken, _ALL_ALIVE_SECONDS):
        return Bite(f"{place[0]}-{place[1]} to {wanted}", "")
    with trio.move_on_after(60):
        await scene.admin.wait_for_reassignments([place[0]])
        (topic,) = await scene.admin.describe_topics([place[0]])
        moved = next(part.replicas for part in topic.partitions if part.partition == place[1]) == wanted
        return Bite(f"{place[0]}-{place[1]} to {wanted}", "it is there" if moved else "")
    return Bite(f"{place[0]}-{place[1]} to {wanted}", "")


async def replace_node(scene: Scene) -> Bite:
    """A node joins and gets replicas, another one is drained and leaves, by the commands that operators use."""
    new, old = scene.spares.pop(), scene.any_member()
    scene.members.append(new)
    target = f"node {old.number} by node {new.number}"
    if not await new.start():
        return Bite(target, "")
    staying = ",".join(str(each.number) for each in scene.members if each is not old)
    moved = await until_async(
        lambda: _insync(scene, "reassign", scene.led, "--to-nodes", staying, "--wait"), _ALL_ALIVE_SECONDS
    )
    drained = await until_async(
        lambda: _insync(scene, "drain", str(old.number), "--wait"), _ALL_ALIVE_SECONDS
    )
    emptied = await until(lambda: not old.segments(), _ALL_ALIVE_SECONDS)
    status = await old.end(signal.SIGTERM)
    scene.members.remove(old)
    scene.spares.append(old)
    topics = await scene.admin.describe_topics(await scene.admin.list_topics())
    kept = [topic.name for topic in topics if any(old.number in part.replicas for part in topic.partitions)]
    bit = moved and drained and emptied and status == 0 and not kept
    found = "" if bit else f": {moved=}, {drained=}, {emptied=}, {status=}, {kept=}"
    return Bite(f"{target}{found}", "it has the replicas, the other one had none and left" if bit else "")


async def _insync(scene: Scene, *command: str) -> bool:
    """Whether a command of an operator succeeded."""
    servers = ("--servers", ",".join(member.endpoint for member in scene.members))
    program = (sys.executable, "-m", "insync.replication.cli", *command, *servers)
    with trio.move_on_after(_ALL_ALIVE_SECONDS):
        done = await trio.run_process(program, check=False, capture_stdout=True, capture_stderr=True)
        return done.returncode == 0
    return False


FAULTS: tuple[Fault, ...] = (
    Fault("kill", kill),
    Fault("kill_controller", kill_controller),
    Fault("kill_all", kill_all),
    Fault("kill_before_folders", kill_before_folders),
    Fault("pause", pause),
    Fault("starve", starve),
    Fault("rolling_restart", rolling_restart),
    Fault("cut_pair", cut_pair, needs_network=True),
    Fault("cut_one_way", cut_one_way, needs_network=True),
    Fault("isolate_leader", isolate, needs_network=True),
    Fault("strand_leader", strand_leader, needs_network=True, needs_file=True),
    Fault("lose_packets", lose_packets, needs_network=True),
    Fault("spoil_packets", spoil_packets, needs_network=True, needs_netem=True),
    Fault("cut_store", cut_store, needs_network=True, needs_port=True),
    Fault("store_away", store_away),
    Fault("cut_store_file", cut_store_file, needs_file=True),
    Fault("clock_jump", clock_jump, settled=True),
    Fault("reassign", reassign),
    Fault("replace_node", replace_node, settled=True),
    Fault("slow_disk", disk.slow_disk),
    Fault("full_disk", disk.full_disk),
    Fault("hang", disk.hang),
    Fault("hang_at_stop", disk.hang_at_stop),
    Fault("hang_at_start", disk.hang_at_start),
    Fault("empty_disk", disk.empty_disk, settled=True),
    Fault("torn_tail", disk.torn_tail, settled=True),
    Fault("bit_flip", disk.bit_flip, settled=True),
    Fault("bit_flip_live", disk.bit_flip_live, settled=True),
)
