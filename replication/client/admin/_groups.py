"""The admin client's part about consumer groups: members, committed offsets, and how far behind those are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal, get_args

import attrs
import trio

from ....transport import TransportError
from ...core import messages as m
from ...core.errors import ErrorCode
from ...core.groups.embedded import as_partitions, decode_assignment, decode_subscription
from ...core.kafka.schema import RecordFormatError
from ...core.messages import groups as gm
from ...core.messages.groups import GroupListing
from ...core.types import PartitionId
from .. import _arguments as given
from ..connection._coordinators import Coordinators
from ..connection._offsets import list_offsets
from ..consumer._group import change_offsets, group_offsets
from ..errors import ClientError, RequestTimeoutError, UnknownTopicError, error_for
from ._users import UserAdmin

ResetTo = Literal["earliest", "latest", "offset", "time", "shift"]
_ASK_SECONDS = 5.0


@attrs.frozen(kw_only=True)
class GroupMember:
    """One member: `partitions` are what it has, `target` what it is to have (the same in a classic group)."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    epoch: int = -1
    topics: list[str] = attrs.Factory(list)
    partitions: list[PartitionId] = attrs.Factory(list)
    target: list[PartitionId] = attrs.Factory(list)


@attrs.frozen(kw_only=True)
class GroupPartition:
    """How far a group has got in one partition.

    committed: the offset of the next record to read; None: nothing is committed. end_offset: the high watermark,
    None if its leader does not tell. lag: how many offsets are between them. member_id: who has it, empty: nobody.
    """

    topic: str
    partition: int
    committed: int | None = None
    end_offset: int | None = None
    lag: int | None = None
    member_id: str = ""


@attrs.frozen(kw_only=True)
class GroupDescription:
    """A group: `type` is consumer, classic or simple (offsets without members); `epoch` or generation.

    protocol: the assignor. coordinator: the node that serves the group.
    """

    group: str
    type: str
    state: str
    epoch: int
    protocol: str
    coordinator: int
    members: list[GroupMember]
    partitions: list[GroupPartition]

    @property
    def lag(self) -> int:
        """The lag of all partitions for which it is known."""
        return sum(each.lag or 0 for each in self.partitions)


class GroupAdmin(UserAdmin):
    """Consumer groups; a part of `Admin`."""

    @property
    @abstractmethod
    def _timeout(self) -> float: ...

    _coordinators: Coordinators

    async def list_groups(
        self, states: Iterable[str] | None = None, types: Iterable[str] | None = None
    ) -> list[GroupListing]:
        """All groups, by name; those of certain states (as Stable, Empty) or types (consumer, classic, simple).

        Raises:
          RequestTimeoutError: Not every coordinator has answered within `request_timeout_ms`.
        """
        request = gm.ListGroupsRequest(
            states=[] if states is None else given.names("states", states),
            types=[] if types is None else given.names("types", types),
        )
        answers: list[gm.ListGroupsResponse] = await self._ask_all(m.Kind.LIST_GROUPS, request, "groups")
        found = {each.group: each for answer in answers for each in answer.groups}
        return [found[name] for name in sorted(found)]

    async def _ask_all(self, kind: m.Kind, request: object, what: str) -> list[Any]:
        """The answers of all nodes to one request. After an error it asks all of them again, because a coordinator
        may have moved between two answers.

        Raises:
          RequestTimeoutError: Not every node has answered within `request_timeout_ms`.
        """
        self._check_open()
        last: Exception | None = None
        with trio.move_on_after(self._timeout):
            attempt = 0
            while True:
                answers = []
                try:
                    for node in (await self._metadata([])).nodes:
                        ask = partial(self._cluster.ask, kind, request, timeout=_ASK_SECONDS)
                        answer = await ask(node_id=node.node_id)
                        if answer.error != ErrorCode.NONE:
                            raise error_for(answer.error, f"{what} of node {node.node_id}", answer.message)
                        answers.append(answer)
                    return answers
                except TransportError as error:
                    last = error
                except ClientError as error:
                    if not error.retriable:
                        raise
                    last = error
                attempt += 1
                await trio.sleep(self._cluster.quick_backoff(attempt))
        raise RequestTimeoutError(
            f"list {what}: not every node answered within {self._timeout:g} s; last: {last}"
        ) from last

    async def describe_groups(self, groups: Iterable[str]) -> list[GroupDescription]:
        """Members, committed offsets and lag of these groups, in their order.

        Raises:
          GroupIdNotFoundError: There is no such group.
          RequestTimeoutError: A coordinator has not answered within `request_timeout_ms`.
        """
        names = given.names("groups", groups)
        self._check_open()
        if not names:
            return []
        answer = await self._metadata(None)
        topics = {topic.topic_id: topic.name for topic in answer.topics}
        counts = {topic.name: len(topic.partitions) for topic in answer.topics}
        return [await self._describe(name, topics, counts) for name in names]

    async def _describe(
        self, group: str, topics: Mapping[str, str], counts: Mapping[str, int]
    ) -> GroupDescription:
        told = await self._coordinators.describe(group, timeout=self._timeout)
        thing = f"group {group!r}"
        if told.error != ErrorCode.NONE or told.state == "Dead":
            raise error_for(told.error or ErrorCode.GROUP_ID_NOT_FOUND, thing)
        members = [_member(each, topics) for each in told.members]
        committed = await self.group_offsets(group)
        owners = {at: each.member_id for each in members for at in each.partitions}
        read = {
            PartitionId(topic, number)
            for each in members
            for topic in each.topics
            for number in range(counts.get(topic, 0))
        }
        every = sorted({*committed, *owners, *read})
        ends = await self._ends([at for at in every if at.partition < counts.get(at.topic, 0)])
        coordinator = await self._coordinators.find(group)
        return GroupDescription(
            group=group,
            type=told.type,
            state=told.state,
            epoch=told.epoch,
            protocol=told.protocol,
            coordinator=coordinator.node_id,
            members=members,
            partitions=[_partition(at, committed.get(at), ends.get(at), owners.get(at, "")) for at in every],
        )

    async def _ends(self, partitions: list[PartitionId]) -> dict[PartitionId, int]:
        """High watermarks, as far as leaders tell them soon."""
        try:
            timeout = min(self._timeout, _ASK_SECONDS)
            return await list_offsets(self._cluster, partitions, m.LATEST_TIMESTAMP, timeout=timeout)
        except (RequestTimeoutError, UnknownTopicError):
            return {}

    async def group_offsets(self, group: str) -> dict[PartitionId, int]:
        """A group's committed offsets: of each partition the offset of the next record to read.

        A group that does not exist has committed nothing.
        """
        request = gm.GroupOffsetsRequest(group=given.text("group", group))
        self._check_open()
        return await group_offsets(self._coordinators, request, timeout=self._timeout)

    async def set_group_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets for a group that has no members; its next ones go on there.

        Raises:
          NonEmptyGroupError: The group has members: stop them first.
          RequestTimeoutError: The coordinator has not answered; it may have been carried out.
        """
        named = given.text("group", group)
        wanted = given.offsets("offset", offsets, least=0)
        self._check_open()
        if not wanted:
            return
        request = gm.CommitGroupOffsetsRequest(
            group=named,
            offsets=[
                gm.GroupOffset(topic=at.topic, partition=at.partition, offset=offset)
                for at, offset in wanted.items()
            ],
        )
        await change_offsets(self._coordinators, request, what="set offsets", timeout=self._timeout)

    async def delete_group_offsets(self, group: str, partitions: Iterable[tuple[str, int]]) -> None:
        """Delete a group's committed offsets of these partitions; no member may subscribe to their topics.

        Raises:
          GroupSubscribedToTopicError: Somebody does.
          GroupIdNotFoundError: There is no such group.
        """
        named = given.text("group", group)
        wanted = given.partitions(partitions)
        self._check_open()
        if not wanted:
            return
        request = gm.DeleteGroupOffsetsRequest(
            group=named,
            partitions=[gm.TopicPartitionName(topic=at.topic, partition=at.partition) for at in wanted],
        )
        await change_offsets(self._coordinators, request, what="delete offsets", timeout=self._timeout)

    async def delete_group(self, group: str) -> None:
        """Delete a group that has no members, with all that it has committed.

        Raises:
          NonEmptyGroupError: It has members.
          GroupIdNotFoundError: There is no such group.
        """
        named = given.text("group", group)
        self._check_open()
        request = gm.DeleteGroupRequest(group=named)
        answer = await self._coordinators.ask(named, request, timeout=self._timeout)
        if answer.error != ErrorCode.NONE:
            raise error_for(answer.error, f"group {named!r}", answer.message)

    async def plan_group_reset(
        self,
        group: str,
        to: ResetTo,
        amount: int | None = None,
        *,
        partitions: Iterable[tuple[str, int]] | None = None,
    ) -> dict[PartitionId, int]:
        """Where a group would go on, for `set_group_offsets`; nothing is changed.

        Args:
          to: "earliest" and "latest": the ends of the log; "offset": to `amount`; "time": to the first record of
            `amount`, in ms since 1970, or later; "shift": by `amount` from what is committed. An offset that is not
            in a log becomes the log's nearer end.
          partitions: Which ones; by default all that the group has committed.

        Raises:
          GroupIdNotFoundError: No partitions are given, and nothing is committed.
          UnknownTopicError: A partition does not exist.
        """
        named = given.text("group", group)
        if to not in get_args(ResetTo):
            raise given.refused("to", to, f"it must be one of {', '.join(get_args(ResetTo))}")
        if to in ("offset", "time", "shift"):
            least = -(2**62) if to == "shift" else 0
            amount = given.whole("amount", amount, least=least)
        elif amount is not None:
            raise given.refused("amount", amount, f"leave it out: {to} takes no amount")
        chosen = given.some_partitions(partitions)
        self._check_open()
        committed = await self.group_offsets(named)
        wanted = list(committed) if chosen is None else chosen
        if not wanted:
            raise error_for(
                ErrorCode.GROUP_ID_NOT_FOUND, f"group {named!r}", "it has committed nothing; name partitions"
            )
        if to == "shift":
            wanted = [at for at in wanted if at in committed]
        ask = partial(list_offsets, self._cluster, wanted, timeout=self._timeout)
        starts, ends = await ask(m.EARLIEST_TIMESTAMP), await ask(m.LATEST_TIMESTAMP)
        found: dict[PartitionId, int] = {}
        times = await ask(amount) if to == "time" and amount is not None else {}
        for at in sorted(wanted):
            match to:
                case "earliest":
                    place = starts[at]
                case "latest":
                    place = ends[at]
                case "time":
                    place = times[at] if times[at] >= 0 else ends[at]
                case "shift":
                    place = committed[at] + (amount or 0)
                case _:
                    place = amount or 0
            found[at] = min(max(place, starts[at]), ends[at])
        return found


def _member(told: gm.DescribedMember, topics: Mapping[str, str]) -> GroupMember:
    names, owned, target = told.topics, told.owned, told.target
    has = _named(owned, topics)
    wants = _named(target, topics)
    if told.assignment or told.subscription:
        try:
            has = [
                PartitionId(*each) for each in as_partitions(decode_assignment(told.assignment).partitions)
            ]
            names = list(decode_subscription(told.subscription).topics) if told.subscription else names
        except RecordFormatError:
            # Of another protocol type than consumers have; what it means is its own affair.
            has = []
        wants = has
    return GroupMember(
        member_id=told.member_id,
        instance_id=told.instance_id,
        client_id=told.client_id,
        client_host=told.client_host,
        epoch=told.epoch,
        topics=sorted(names),
        partitions=sorted(has),
        target=sorted(wants),
    )


def _named(lists: Iterable[gm.TopicPartitionList], topics: Mapping[str, str]) -> list[PartitionId]:
    return [
        PartitionId(topics[each.topic_id], number)
        for each in lists
        if each.topic_id in topics
        for number in each.partitions
    ]


def _partition(at: PartitionId, committed: int | None, end: int | None, member_id: str) -> GroupPartition:
    lag = max(0, end - committed) if end is not None and committed is not None else None
    return GroupPartition(
        topic=at.topic,
        partition=at.partition,
        committed=committed,
        end_offset=end,
        lag=lag,
        member_id=member_id,
    )
