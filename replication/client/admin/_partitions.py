"""The admin client's part about single partitions: who leads them and on which nodes they are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import trio

from ...core import messages as m
from ...core.control.draining import drained
from ...core.control.topics import assign
from ...core.errors import ErrorCode
from ...core.types import PartitionId
from ...core.wording import counted
from .. import _arguments as given
from ..connection._client import Client
from ..errors import ServerError, error_for

_POLL = 0.1


@attrs.frozen(kw_only=True)
class Reassignment:
    """A partition that is being moved (KIP-455): `replicas` are the target and then those to be removed."""

    topic: str
    partition: int
    replicas: list[int]
    adding: list[int]
    removing: list[int]
    isr: list[int]

    @property
    def target(self) -> list[int]:
        return [node for node in self.replicas if node not in self.removing]


class Elections(dict[tuple[str, int], ServerError | None]):
    """Outcome of each partition: None, or the reason why not.

    `words`: of those elected uncleanly, who leads from where, and what the other replicas had.
    """

    def __init__(
        self, outcomes: Mapping[tuple[str, int], ServerError | None], words: Mapping[tuple[str, int], str]
    ):
        super().__init__(outcomes)
        self.words = dict(words)


class PartitionAdmin(Client):
    """Elections and reassignments; a part of `Admin`."""

    @abstractmethod
    async def _change(self, request: object, thing: str) -> Any: ...

    @abstractmethod
    async def _metadata(self, topics: list[str] | None, *, quotas: bool = False) -> m.MetadataResponse: ...

    async def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> Elections:
        """Have partitions led by their preferred replicas, the first ones; all partitions by default.

        With `unclean`: give partitions without a leader the most complete of the living replicas. Records that it
        does not have are lost, also acknowledged ones; partitions that have a leader are left as they are.

        Returns for each partition None if it is led as asked, otherwise why not (UnknownTopicError,
        PreferredLeaderNotAvailableError, EligibleLeadersNotAvailableError; with `unclean` also
        ElectionNotNeededError: it has a leader). `words` of the result says what an unclean election did.

        Raises:
          InvalidArgumentError: It is not given as above; nothing was asked for.
          RequestTimeoutError: No controller answered in time.
        """
        pairs = given.some_partitions(partitions)
        named = (
            None
            if pairs is None
            else [m.PartitionName(topic=at.topic, partition=at.partition) for at in pairs]
        )
        request = m.ElectLeadersRequest(unclean=given.flag("unclean", unclean), partitions=named)
        answer: m.ElectLeadersResponse = await self._change(request, "elect leaders")
        fine = (ErrorCode.NONE,) if unclean else (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
        done = [each for each in answer.partitions if each.error == ErrorCode.NONE and each.message]
        words = {(each.topic, each.partition): each.message for each in done}
        return Elections(_outcomes(answer.partitions, fine=fine), words)

    @abstractmethod
    async def _check_room(self, moves: Sequence[m.PartitionReassignment]) -> None: ...

    async def reassign_partitions(
        self, replicas: Mapping[tuple[str, int], Sequence[int] | None], *, check_room: bool = True
    ) -> dict[tuple[str, int], ServerError | None]:
        """Move partitions to other nodes, each given in order of preference; None cancels what is under way.

        Returns as soon as the controller has noted it: the data follows, while the partition stays in use, and
        `list_partition_reassignments` shows what is not finished. Nodes that are to go keep the partition until
        all of the new ones are in sync. A reassignment that is under way for a partition is replaced.

        Returns for each partition None if it was noted, otherwise why not (UnknownTopicError,
        InvalidReplicaAssignmentError, NoReassignmentInProgressError).

        check_room: first compare the sizes of the partitions with what the nodes that get them have free.

        Raises:
          InvalidArgumentError: It is not given as above; nothing was asked for.
          NoDiskRoomError: A node has too little room; nothing was asked for.
          RequestTimeoutError: No controller answered in time.
        """
        wanted = [
            m.PartitionReassignment(
                topic=at.topic,
                partition=at.partition,
                replicas=None if nodes is None else given.numbers(f"the replicas of {at}", nodes),
            )
            for at, nodes in given.by_partition("replicas", replicas)
        ]
        if given.flag("check_room", check_room):
            await self._check_room(wanted)
        request = m.AlterReassignmentsRequest(partitions=wanted)
        answer: m.AlterReassignmentsResponse = await self._change(request, "reassign partitions")
        return _outcomes(answer.partitions, fine=(ErrorCode.NONE,))

    async def list_partition_reassignments(
        self, topics: Iterable[str] | None = None
    ) -> dict[tuple[str, int], Reassignment]:
        """Every move that is under way; what this client has asked for before is taken into account.

        Raises:
          UnknownTopicError: One of the topics that were named does not exist.
        """
        answer = await self._metadata(None if topics is None else given.names("topics", topics))
        found = {}
        for topic in answer.topics:
            if topic.error != ErrorCode.NONE:
                raise error_for(topic.error, f"topic {topic.name!r}")
            for each in topic.partitions:
                if each.adding or each.removing:
                    found[topic.name, each.partition] = Reassignment(
                        topic=topic.name,
                        partition=each.partition,
                        replicas=each.replicas,
                        adding=each.adding,
                        removing=each.removing,
                        isr=each.isr,
                    )
        return found

    async def wait_for_reassignments(self, topics: Iterable[str] | None = None) -> None:
        """Come back when no move is under way any more; cancel it (or give it a deadline) to stop waiting."""
        names = None if topics is None else given.names("topics", topics)
        while True:
            if not await self.list_partition_reassignments(names):
                return
            await trio.sleep(_POLL)

    async def plan_reassignment(
        self, topic: str, nodes: Sequence[int], replication_factor: int | None = None
    ) -> dict[tuple[str, int], list[int]]:
        """An even placement of a topic on these nodes and their racks, for `reassign_partitions`.

        Raises:
          UnknownTopicError: The topic does not exist.
          InvalidReplicationFactorError: There are fewer nodes than replicas, or some are not alive.
        """
        wanted = given.numbers("nodes", nodes)
        if replication_factor is not None:
            replication_factor = given.whole("replication_factor", replication_factor)
        answer = await self._metadata([given.text("topic", topic)])
        (info,) = answer.topics
        if info.error != ErrorCode.NONE:
            raise error_for(info.error, f"topic {topic!r}")
        racks = {node.node_id: node.rack for node in answer.nodes if node.node_id in wanted}
        factor = replication_factor or info.replication_factor
        if not 1 <= factor <= len(racks) or len(racks) < len(set(wanted)):
            raise error_for(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"topic {topic!r}",
                f"{counted(factor, 'replica')} of each partition cannot be on the nodes {wanted}, of which "
                f"{sorted(racks)} are alive: name at least {factor} living nodes",
            )
        placed = assign(racks, len(info.partitions), factor, 0)
        return {(topic, number): list(replicas) for number, replicas in enumerate(placed)}

    async def plan_drain(self, node: int) -> dict[tuple[str, int], list[int]]:
        """Where the replicas of one node can go, for `reassign_partitions`; nothing else moves.

        A successor is in a rack where the partition has no other replica, if there is one, and has few replicas.

        Raises:
          InvalidReplicationFactorError: Some partition has replicas on all other living nodes already.
        """
        node = given.whole("node", node)
        answer = await self._metadata(None)
        replicas = {
            PartitionId(topic.name, each.partition): [n for n in each.replicas if n not in each.removing]
            for topic in answer.topics
            for each in topic.partitions
        }
        plan = drained(replicas, node, {each.node_id: each.rack for each in answer.nodes})
        stuck = [str(partition) for partition, target in plan.items() if target is None]
        if stuck:
            raise error_for(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"node {node}",
                f"{len(stuck)} of its partitions have a replica on every other living node, {stuck[0]} for one: "
                "add a node, or move them to fewer replicas first",
            )
        return {(at.topic, at.partition): target for at, target in plan.items() if target is not None}


def _outcomes(
    results: Iterable[m.PartitionOutcome], *, fine: tuple[ErrorCode, ...]
) -> dict[tuple[str, int], ServerError | None]:
    return {
        (each.topic, each.partition): None
        if each.error in fine
        else error_for(each.error, str(PartitionId(each.topic, each.partition)), each.message)
        for each in results
    }
