"""T11: what a group reads in transactions counts once in what they commit, whoever stands still or is replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from ....core.groups import records as r
from ....core.groups.records import TopicPartition
from ...errors import require
from ..transactions import Intent
from .facts import Topics
from .handing import Partition
from .log import GroupLog

if TYPE_CHECKING:
    from ...clients.members import Member

Ranges = dict[TopicPartition, tuple[int, int]]
"""Of each partition the first offset that was read, and the end."""


@attrs.frozen(eq=False)
class Copy:
    """A transaction that commits what was made of its inputs."""

    intent: Intent
    group: str
    inputs: Ranges


class Inputs:
    """The committed transaction by which each input counts."""

    def __init__(self, topics: Topics, log_of: Callable[[str], GroupLog | None]) -> None:
        self._topics = topics
        self._log_of = log_of
        self._open: list[Copy] = []
        self._by: dict[Partition, dict[int, Intent]] = {}
        self.counted = self.aborted = 0
        """Inputs that count, and transactions that do not."""

    def begun(self, intent: Intent, group: str, inputs: Ranges) -> None:
        """A member begins a transaction for what it has read."""
        self._open.append(Copy(intent, group, inputs))

    def begins(self, member: Member, partition: TopicPartition, offset: int) -> None:
        """Every input below the offset at which a member begins was counted."""
        log = self._log_of(member.group)
        self._settle()
        if log is None or self._is_exempt(log, member.group, partition):
            return
        made = self._by.get((member.group, partition.topic_id, partition.partition), {})
        missing = [each for each in range(offset) if each not in made][:2]
        require(not missing, "T11", f"{member} begins {partition} at {offset}, {missing} count nowhere")

    def _settle(self) -> None:
        """Count those that have ended, as the marker among their group's offsets says."""
        ended = [each for each in self._open if each.intent.outcome is not None]
        self._open = [each for each in self._open if each.intent.outcome is None]
        for each in ended:
            if each.intent.outcome:
                self._count(each)
            else:
                self.aborted += 1

    def _count(self, copy: Copy) -> None:
        log = self._log_of(copy.group)
        for partition, (first, end) in copy.inputs.items():
            if log is None or self._is_exempt(log, copy.group, partition):
                continue
            made = self._by.setdefault((copy.group, partition.topic_id, partition.partition), {})
            twice = [(each, str(made[each])) for each in range(first, end) if each in made][:2]
            require(not twice, "T11", f"{copy.intent} counts {partition} again: {twice}")
            made |= dict.fromkeys(range(first, end), copy.intent)
            self.counted += end - first

    def _is_exempt(self, log: GroupLog, group: str, partition: TopicPartition) -> bool:
        """Offsets that have expired, or are of another topic of that name, promise nothing."""
        name = self._topics.name_of(partition.topic_id)
        key = r.OffsetKey(group, name or "", partition.partition)
        return self._topics.is_ambiguous(partition) or key in log.expired
