"""Members of groups as their callers see them: what each hands out, commits, takes back, and begins at."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ....core.groups import records as r
from ...errors import require
from .facts import NOTHING, Topics
from .log import GroupLog

if TYPE_CHECKING:
    from ...clients.members import Member

Partition = tuple[str, str, int]
"""Group, topic id and partition."""


class Handing:
    """`log_of`: the committed log that keeps a group, None where nothing is promised any more."""

    def __init__(self, topics: Topics, log_of: Callable[[str], GroupLog | None]) -> None:
        self._topics = topics
        self._log_of = log_of
        self.clients: list[Member] = []
        self.processed: dict[Partition, set[int]] = {}
        self.handed = 0

    def handing_out(self, client: Member, partition: r.TopicPartition, offset: int) -> None:
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
                is_bound = self._log_of(client.group) is not None
                require(not is_bound, "G4", f"{partition} at {client} and {other}, offset {offset}")

    def _belongs(self, client: Member) -> bool:
        """Whether a client is a member, and has been since it was answered last, by what is committed."""
        log = self._log_of(client.group)
        if log is None:
            return False
        name = client.membership.member_id
        if log.gone.get((client.group, name), 0.0) >= client.heard_at:
            return False
        stored = log.naive.now.get(r.ClassicGroupKey(client.group))
        if stored is not None:
            return any(each.member_id == name for each in stored[0].members)
        return r.MemberKey(client.group, name) in log.naive.now

    @staticmethod
    def takes_back(client: Member, partitions: frozenset[r.TopicPartition]) -> None:
        """G13: nothing is handed out any more when the caller begins to let go (KAFKA-14196)."""
        served = sorted(partitions & client.serving.keys())
        require(
            not served,
            "G13",
            f"{client.name} still hands out {served}, and is told that it is no longer its own",
        )

    @staticmethod
    def joins(client: Member) -> None:
        """G13: nobody joins again while its caller may still work on what it has lost (KAFKA-16251)."""
        require(not client.is_losing, "G13", f"{client.name} joins before it has lost what it had")

    def done_with(self, client: Member, partition: r.TopicPartition, first: int, end: int) -> None:
        """Its caller has worked on these records."""
        place = client.group, partition.topic_id, partition.partition
        self.processed.setdefault(place, set()).update(range(first, end))

    def begins(self, client: Member, partition: r.TopicPartition, offset: int | None, since: int) -> None:
        """G12: at a commit that was the last one at some time since its position was asked for."""
        log, name = self._log_of(client.group), self._topics.name_of(partition.topic_id)
        if log is None or name is None:
            return
        key = r.OffsetKey(client.group, name, partition.partition)
        legal = {told for told, _ in log.history_since(key, since)}
        if self._topics.was_remade(name):
            legal.add(NOTHING.offset)  # what was committed to another topic of that name is told to nobody
        found = NOTHING.offset if offset is None else offset
        require(found in legal, "G12", f"{client.name} begins {key} at {offset}, may be {legal}")

    def commits_to(self, client: Member, partition: r.TopicPartition, offset: int) -> None:
        """G12: what nobody is done with is not passed."""
        if self._topics.is_ambiguous(partition) or self._log_of(client.group) is None:
            return
        place = client.group, partition.topic_id, partition.partition
        known = self.processed.get(place, set())
        missing = [each for each in range(offset) if each not in known][:3]
        require(
            not missing, "G12", f"{client.name} commits {offset} of {place}, nobody is done with {missing}"
        )
