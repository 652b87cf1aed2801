"""The controller: one node, elected through the store, that says who leads and which topics there are.

It is level triggered: whatever happened, it compares the whole view with what should be and writes the
difference, each write fenced by the controller epoch and by the version of every record it replaces. So a
controller that was paused, or elected twice, can change nothing once another has been elected (KAFKA-6082).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import attrs

from . import transitions
from .errors import ErrorCode
from .messages import CreateTopicRequest, CreateTopicResponse
from .records import (
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    ControllerRecord,
    EpochRecord,
    TopicConfig,
    TopicRecord,
    partition_key,
    topic_key,
)
from .topics import TopicError, assign, check_request
from .types import PartitionId
from .view import ClusterView

ELECTIONS_PER_COMMIT = 500


@attrs.frozen(kw_only=True)
class ViewChanged:
    """The store was read."""

    view: ClusterView


@attrs.frozen(kw_only=True)
class CreateTopic:
    """A client's wish, by way of any node. `topic_id` is drawn by the host."""

    request_id: int
    request: CreateTopicRequest
    topic_id: str


@attrs.frozen(kw_only=True)
class CommitDone:
    """What became of the outstanding `Commit`: `committed` at `revision`, or not (`key` conflicted), or unknown."""

    outcome: str
    revision: int = 0
    key: str = ""


@attrs.frozen(kw_only=True)
class SessionLost:
    """Our session in the store has ended: we are nobody's controller."""


ControllerEvent = ViewChanged | CreateTopic | CommitDone | SessionLost


@attrs.frozen(kw_only=True)
class Put:
    """One key to write; `version` is the one it must have now (0: it must not exist)."""

    key: str
    record: object
    version: int
    ephemeral: bool = False


@attrs.frozen(kw_only=True)
class Commit:
    """Write `puts` in one transaction, if every version (and those of `checks`) is as it says.

    Answered by `CommitDone`.
    """

    puts: tuple[Put, ...]
    checks: Mapping[str, int]
    reason: str


@attrs.frozen(kw_only=True)
class ReadView:
    """Read the store again, as soon as it can be read, and tell it by `ViewChanged`, though no watch fired.

    Nothing is written before that.
    """


@attrs.frozen(kw_only=True)
class ReplyCreateTopic:
    request_id: int
    response: CreateTopicResponse


ControllerEffect = Commit | ReadView | ReplyCreateTopic


class Controller:
    """The controller as every node carries it; on most it only waits to be needed."""

    def __init__(self, node_id: int, incarnation: int) -> None:
        self._node_id = node_id
        self._incarnation = incarnation
        self._view = ClusterView()
        self._committing = False
        self._creating: CreateTopic | None = None
        self._wishes: deque[CreateTopic] = deque()
        self._needed_revision = 0
        self._must_look = False
        self._effects: list[ControllerEffect] = []

    @property
    def active(self) -> bool:
        """Whether this node is the controller, as far as the view shows."""
        holder = self._view.controller
        return (
            holder is not None
            and (holder.node_id, holder.incarnation) == (self._node_id, self._incarnation)
            and holder.controller_epoch == self._view.controller_epoch
        )

    def step(self, event: ControllerEvent) -> list[ControllerEffect]:
        """Handle one event; the effects in order. At most one `Commit` is outstanding."""
        self._effects = []
        match event:
            case ViewChanged():
                if event.view.revision >= self._view.revision:
                    self._view = event.view
                self._must_look = False
            case CommitDone():
                self._on_commit_done(event)
            case CreateTopic():
                self._wishes.append(event)
            case SessionLost():
                self._view = attrs.evolve(self._view, controller=None, nodes={})
        self._reconcile()
        done, self._effects = self._effects, []
        return done

    def _on_commit_done(self, event: CommitDone) -> None:
        self._committing = False
        creating, self._creating = self._creating, None
        if event.outcome == "committed":
            self._needed_revision = event.revision
            if creating is not None:
                self._reply(creating, CreateTopicResponse(error=ErrorCode.NONE, topic_id=creating.topic_id))
            return
        # What we believed is not so, or may not be: look again before anything else is written.
        self._must_look = True
        self._effects.append(ReadView())
        if creating is not None:
            # Written or not, the next look tells: an existing topic with our id is ours.
            self._wishes.appendleft(creating)

    def _reconcile(self) -> None:
        if self._committing:
            return
        me = self._view.nodes.get(self._node_id)
        if me is None or me.incarnation != self._incarnation:
            self._refuse_wishes()
        elif self._must_look or self._view.revision < self._needed_revision:
            return
        elif self._view.controller is None:
            self._run_for_office()
        elif self.active:
            if not self._elect_leaders():
                self._create_topics()
        else:
            self._refuse_wishes()

    def _run_for_office(self) -> None:
        epoch = self._view.controller_epoch + 1
        record = ControllerRecord(
            node_id=self._node_id, incarnation=self._incarnation, controller_epoch=epoch
        )
        self._commit(
            Put(key=CONTROLLER_KEY, record=record, version=0, ephemeral=True),
            Put(
                key=CONTROLLER_EPOCH_KEY,
                record=EpochRecord(controller_epoch=epoch),
                version=self._view.controller_epoch_version,
            ),
            reason=f"node {self._node_id} runs for controller at epoch {epoch}",
        )

    def _elect_leaders(self) -> bool:
        """Bring partition records in line with the nodes that are alive; whether there was anything to do."""
        live = self._view.live
        puts = []
        for partition, versioned in self._view.partitions.items():
            record = transitions.elect(versioned.record, live, self._unclean_policy(partition))
            if record is not None:
                record = attrs.evolve(record, controller_epoch=self._view.controller_epoch)
                puts.append(Put(key=partition_key(partition), record=record, version=versioned.version))
                if len(puts) == ELECTIONS_PER_COMMIT:
                    break
        if puts:
            self._commit(*puts, reason=f"{len(puts)} partitions follow the nodes that are alive")
        return bool(puts)

    def _unclean_policy(self, partition: PartitionId) -> str:
        topic = self._view.topics.get(partition.topic)
        return topic.config.unclean_leader_election if topic is not None else transitions.UNCLEAN_WAIT

    def _create_topics(self) -> None:
        while self._wishes and not self._committing:
            wish = self._wishes.popleft()
            existing = self._view.topics.get(wish.request.name)
            if existing is not None and existing.topic_id == wish.topic_id:
                self._reply(wish, CreateTopicResponse(error=ErrorCode.NONE, topic_id=wish.topic_id))
            elif existing is not None:
                self._reply(wish, _exists(wish.request.name))
            else:
                self._create(wish)

    def _create(self, wish: CreateTopic) -> None:
        live = sorted(self._view.nodes)
        try:
            config = check_request(wish.request, live)
        except TopicError as error:
            self._reply(wish, CreateTopicResponse(error=error.code, message=error.message))
            return
        self._creating = wish
        self._commit(*self._topic_puts(wish, config, live), reason=f"create topic {wish.request.name}")

    def _topic_puts(self, wish: CreateTopic, config: TopicConfig, live: list[int]) -> list[Put]:
        request = wish.request
        topic = TopicRecord(
            name=request.name,
            topic_id=wish.topic_id,
            partitions=request.partitions,
            replication_factor=request.replication_factor,
            config=config,
        )
        puts = [Put(key=topic_key(request.name), record=topic, version=0)]
        start = len(self._view.partitions)
        assignment = assign(live, request.partitions, request.replication_factor, start)
        for index, replicas in enumerate(assignment):
            record = transitions.create(
                topic=request.name,
                partition=index,
                topic_id=wish.topic_id,
                replicas=replicas,
                live=live,
                min_insync=config.min_insync_replicas,
            )
            record = attrs.evolve(record, controller_epoch=self._view.controller_epoch)
            puts.append(Put(key=partition_key(record.id), record=record, version=0))
        return puts

    def _refuse_wishes(self) -> None:
        while self._wishes:
            self._reply(
                self._wishes.popleft(),
                CreateTopicResponse(
                    error=ErrorCode.NOT_CONTROLLER, message="this node is not the controller: ask again"
                ),
            )

    def _reply(self, wish: CreateTopic, response: CreateTopicResponse) -> None:
        self._effects.append(ReplyCreateTopic(request_id=wish.request_id, response=response))

    def _commit(self, *puts: Put, reason: str) -> None:
        """Every write checks that nobody has been elected controller since."""
        self._committing = True
        checks = {CONTROLLER_EPOCH_KEY: self._view.controller_epoch_version}
        checks |= {put.key: put.version for put in puts}
        self._effects.append(Commit(puts=puts, checks=checks, reason=reason))


def _exists(name: str) -> CreateTopicResponse:
    return CreateTopicResponse(
        error=ErrorCode.TOPIC_ALREADY_EXISTS,
        message=f"topic {name!r} exists already: choose another name, or use it as it is",
    )
