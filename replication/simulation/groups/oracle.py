"""The invariants of groups, whatever happens: G1 to G15, from what was committed, told and handed out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.groups import records as r
from ..errors import require
from .answers import Answers
from .decisions import Decisions
from .facts import LONGEST_ANSWER, LONGEST_SESSION, MAX_POLL, MAX_SIZE
from .naive import Naive, flat
from .world import LONGEST_DELAY

if TYPE_CHECKING:
    from .brokers import Broker
    from .clients import Client


class Oracle(Decisions, Answers):
    """Knows every node, every client, and the committed log; judges replays and what clients do."""

    # Replay

    def check_replay(self, broker: Broker) -> None:
        """G7: the live state of an active shard is what its log says, compacted or not."""
        machine = broker.shard.machine
        if not broker.shard.active or machine is None or not broker.up:
            return
        naive = Naive().read(broker.items)
        now, undecided = flat(machine.groups.values())  # type: ignore[attr-defined]
        wanted = {key: value for key, (value, _) in naive.now.items()}
        different = [key for key in wanted.keys() | now.keys() if wanted.get(key) != now.get(key)]
        require(not different, "G7", [(key, wanted.get(key), now.get(key)) for key in different[:2]])
        wanted_pending = {key: value for key, (value, _) in naive.undecided.items()}
        require(undecided == wanted_pending, "G7", (undecided, wanted_pending))
        for classic in machine.classics.values():  # type: ignore[attr-defined]
            ids = len(classic.pending) + len(classic.members)
            require(ids <= MAX_SIZE, "GL3", f"{classic.group} has {ids} ids")
        if broker.high_watermark >= len(self.log):
            committed = (
                naive if len(broker.items) == len(self.log) else Naive().read(broker.items[: len(self.log)])
            )
            same = {k: v for k, (v, _) in self.naive.now.items()} == {
                k: v for k, (v, _) in committed.now.items()
            }
            require(same, "G7", "a compaction has changed the meaning of the log")

    def check_silent(self, broker: Broker) -> None:
        """GL1: who has been told nothing for longer than its session lasts, and waits for nothing, is no member."""
        if self.calm_since is None or not broker.shard.active:
            return
        machine: Any = broker.shard.machine
        members = [(state.group, each) for state in machine.groups.values() for each in state.members]
        for classic in machine.classics.values():
            for each in classic.members.values():
                if each.joining is None and each.syncing is None:
                    members.append((classic.group, each.member_id))
        asking = broker.asking()
        # What was sent before the calm may yet arrive, and begins a session though its sender is gone. A new
        # coordinator cannot know who was heard before it had loaded: everybody has a session from then on.
        since = max(self.calm_since + LONGEST_DELAY, broker.active_since)
        for group, member_id in members:
            place = group, member_id
            # Who has just joined is a member as soon as that is written, and is told when it is committed.
            heard = max(self._told.get(place, 0.0), asking.get(place, 0.0), since)
            silent = self._since(heard, broker)
            require(
                silent < LONGEST_SESSION,
                "GL1",
                "{} of {} is a member after {:.2f} s of silence",
                member_id,
                group,
                silent,
            )

    def check_lingering(self, broker: Broker) -> None:
        """GL1: what a member is to let go is another's when its time for that and its session are over."""
        if self.calm_since is None or not broker.shard.active:
            return
        machine: Any = broker.shard.machine
        for state in machine.groups.values():
            for member_id, current in state.currents.items():
                pending, since = self._pending_since.get((state.group, member_id), ((), self.world.now))
                # A new coordinator begins that time again, as it does with the session.
                asked = max(since, self.calm_since, broker.active_since)
                took = self._since(asked, broker)
                right = not current.pending or pending != current.pending or took < MAX_POLL + LONGEST_SESSION
                told = "{} of {} was to let {} go {:.2f} s ago"
                require(right, "GL1", told, member_id, state.group, pending, took)

    def _since(self, moment: float, broker: Broker) -> float:
        """Seconds since then that a broker can hold against a member: a late tick lengthens all sessions.

        A tick that began before `moment` may have been reported after it.
        """
        late = sum(seconds for at, seconds in broker.lateness if at > moment - LONGEST_ANSWER)
        return self.world.now - moment - late

    # Clients

    def handing_out(self, client: Client, partition: r.TopicPartition, offset: int) -> None:
        """G4, G13: nobody else may hand it out now, and this one may."""
        self.handed += 1
        require(
            partition in client.serving, "G13", f"{client.name} hands out {partition} after it was withheld"
        )
        for other in self.clients:
            if other is client or other.group != client.group or not other.up:
                continue
            if partition in other.serving and not other.lease_is_over():
                if (client.classic or other.classic) and not (self._belongs(client) and self._belongs(other)):
                    continue  # one was put out and does not know it; what it commits is refused
                require(False, "G4", f"{partition} at {client.name} and {other.name}, offset {offset}")

    def _belongs(self, client: Client) -> bool:
        """Whether a client is a member, and has been since it was answered last, by what is committed."""
        name = client.membership.member_id
        if self._gone.get((client.group, name), 0.0) >= client.heard_at:
            return False
        stored = self.naive.now.get(r.ClassicGroupKey(client.group))
        if stored is not None:
            return any(each.member_id == name for each in stored[0].members)
        return r.MemberKey(client.group, name) in self.naive.now

    def takes_back(self, client: Client, partitions: frozenset[r.TopicPartition]) -> None:
        """G13: nothing is handed out any more when the caller begins to let go (KAFKA-14196)."""
        served = sorted(partitions & client.serving.keys())
        require(
            not served,
            "G13",
            f"{client.name} still hands out {served}, and is told that it is no longer its own",
        )

    def joins(self, client: Client) -> None:
        """G13: nobody joins again while its caller may still work on what it has lost (KAFKA-16251)."""
        require(not client.is_losing, "G13", f"{client.name} joins before it has lost what it had")

    def done_with(self, client: Client, partition: r.TopicPartition, first: int, end: int) -> None:
        place = client.group, partition.topic_id, partition.partition
        self.processed.setdefault(place, set()).update(range(first, end))

    def begins(self, client: Client, partition: r.TopicPartition, offset: int | None, since: int) -> None:
        """G12: at a commit that was the last one at some time since its position was asked for."""
        names = {view.names[partition.topic_id] for view in self.views if partition.topic_id in view.names}
        for name in names:
            key = r.OffsetKey(client.group, name, partition.partition)
            try:
                self._check_read(key, -1 if offset is None else offset, since)
            except AssertionError as error:
                require(False, "G12", f"{client.name} begins at {offset}: {error}")

    def commits_to(self, client: Client, partition: r.TopicPartition, offset: int) -> None:
        """G12: what nobody is done with is not passed."""
        if self.is_ambiguous(partition):
            return
        place = client.group, partition.topic_id, partition.partition
        known = self.processed.get(place, set())
        missing = [each for each in range(offset) if each not in known][:3]
        require(
            not missing, "G12", f"{client.name} commits {offset} of {place}, nobody is done with {missing}"
        )
