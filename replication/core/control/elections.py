"""The unclean election policies: who leads if no remaining replica certainly has everything.

A policy is a pure function of a `Situation`; others than these three are added under the entry point group
`insync.election_policies`, and chosen by the topic setting `unclean_leader_election`. Before any policy is asked:
when ISR and eligible replicas are empty and all of the last known eligible ones are registered again, the most
complete of them leads, or a living replica whose log goes on where theirs ends (KIP-966 plans this for those
alone), so that a cluster heals by itself after losing all power.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import msgspec

from ..epochs import EpochCache
from ..types import NO_EPOCH, EpochEntry
from .records import PartitionRecord

WAIT = "wait"
MOST_COMPLETE = "most_complete"
ANY = "any"
MOST_EPOCHS = 100
"""Of a log's epochs, as it tells them."""
ROUNDS_FOR_ABSENT = 5
"""Rounds of questions for which an election waits for a replica that is not alive. Machines that lose power
together come back one after the other, and the last may be the only one whose device has the last records.
"""


class LogInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A replica's report on its log (KIP-966, GetReplicaLogInfo); true as long as its leader epoch lasts.

    `leader_epoch` is the one that it has entered: in a leaderless one nothing is appended. `last_epoch` is that
    of the last batch, -1 in an empty log. `topic_id`: of which topic of that name; empty if unsaid. `epochs`: the
    latest `MOST_EPOCHS` of the log; nodes of an earlier release say none.
    """

    incarnation: int
    leader_epoch: int
    last_epoch: int
    log_end_offset: int
    topic_id: str = ""
    log_start_offset: int = 0
    epochs: tuple[EpochEntry, ...] = ()

    def is_of(self, topic_id: str) -> bool:
        """Whether it says something about this topic: epochs of another of the same name mean nothing (KIP-516)."""
        return self.topic_id in ("", topic_id)

    @property
    def completeness(self) -> tuple[int, int]:
        """The greater, the more of what was committed is there."""
        return self.last_epoch, self.log_end_offset

    def extends(self, other: LogInfo) -> bool:
        """Whether this log contains all of another one. Logs that have a batch of the same epoch at the same offset
        are equal up to that batch (KIP-101).
        """
        if other.log_end_offset <= self.log_start_offset:
            return True  # nothing is deleted but what was committed
        if other.last_epoch == NO_EPOCH:
            return self.log_end_offset >= other.log_end_offset
        if not self.epochs and self.last_epoch != NO_EPOCH:
            return self.completeness >= other.completeness
        end = EpochCache(self.epochs).end_offset_for(other.last_epoch, self.log_end_offset)
        return end is not None and end.epoch == other.last_epoch and end.end_offset >= other.log_end_offset


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """A partition without a clean leader.

    `live`: incarnation of each living node. `logs`: what replicas told of their logs, each the living process in
    the record's leader epoch. `asked`: a round of questions in this epoch is over that began when all of these
    lived; who has not answered is slow. `rounds`: how many such rounds are over that also asked replicas that do
    not live.
    """

    record: PartitionRecord
    live: Mapping[int, int]
    logs: Mapping[int, LogInfo] = MappingProxyType({})
    asked: bool = False
    rounds: int = 0

    @property
    def living(self) -> list[int]:
        """The replicas that are alive, in assignment order."""
        return [node for node in self.record.replicas if node in self.live]

    def most_complete(self, nodes: Iterable[int]) -> int:
        """Of nodes that told of their logs the one with the greatest (last epoch, LEO), the first of equals.

        The last known eligible ones have all that was committed, as far as their devices kept it. A log that parts
        from the best of theirs, however late its epochs are, is that of a leader whom nobody followed.
        """
        told = list(nodes)
        known = [node for node in told if node in self.record.last_known_elr]
        if known:
            best = max((self.logs[node] for node in known), key=lambda info: info.completeness)
            told = [node for node in told if node in known or self.logs[node].extends(best)]
        return max(told, key=lambda node: self.logs[node].completeness)


class Elect(msgspec.Struct, frozen=True):
    """Let this living replica lead; what it does not have is lost."""

    node: int


class Wait(msgspec.Struct, frozen=True):
    """Nobody leads for now."""


class AskLogs(msgspec.Struct, frozen=True):
    """Ask these replicas what they have, then look again."""

    nodes: tuple[int, ...]


Verdict = Elect | Wait | AskLogs
Policy = Callable[[Situation], Verdict]


def wait(situation: Situation) -> Verdict:
    """No records are given up: the partition waits until an eligible replica is back (Kafka's false)."""
    return Wait()


def most_complete(situation: Situation) -> Verdict:
    """The most complete living replica, of those that answer in time."""
    living = situation.living
    told = [node for node in living if node in situation.logs]
    if told and (situation.asked or len(told) == len(living)):
        return Elect(situation.most_complete(told))
    return AskLogs(tuple(living)) if living else Wait()


def any_(situation: Situation) -> Verdict:
    """The first living replica in assignment order, at once (Kafka's true)."""
    living = situation.living
    return Elect(living[0]) if living else Wait()


POLICIES: Mapping[str, Policy] = MappingProxyType({WAIT: wait, MOST_COMPLETE: most_complete, ANY: any_})
"""Those that are always there."""


def decide(situation: Situation, policy: Policy) -> Verdict:
    """The most complete living replica if the last known eligible ones are all back, else what the policy says.

    The list need not name the longest log: a node that comes back first leaves an ISR that is still large enough,
    and nobody remembers it then.
    """
    record = situation.record
    known = [node for node in record.replicas if node in record.last_known_elr]
    if record.isr or record.elr or not known or any(node not in situation.live for node in known):
        return policy(situation)
    living = situation.living
    told = [node for node in living if node in situation.logs]
    everybody = len(told) == len(living)
    verdict = policy(situation)
    if isinstance(verdict, Wait):
        # A silent replica, or one that is not alive yet, may be the only one whose device has the last records.
        nobody_else = living == list(record.replicas) or situation.rounds >= ROUNDS_FOR_ABSENT
        return Elect(situation.most_complete(told)) if everybody and nobody_else else AskLogs(record.replicas)
    if everybody or (situation.asked and all(node in situation.logs for node in known)):
        return Elect(situation.most_complete(told))
    return verdict if situation.asked else AskLogs(tuple(living))
