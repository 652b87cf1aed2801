"""The controller: one node, elected through the store, that says who leads and which topics there are.

It is level triggered: whatever happened, it compares the whole view with what should be and writes the
difference, each write fenced by the controller epoch and by the version of every record it replaces. So a
controller that was paused, or elected twice, can change nothing once another has been elected (KAFKA-6082).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import attrs
import msgspec
from msgspec import structs

from .. import store_transaction as tx
from ..errors import ErrorCode
from ..types import NO_LEADER, PartitionId
from ..wording import counted
from . import rebalance, transitions
from .admin_requests import (
    AdminRequest,
    Knowledge,
    LogsNeeded,
    Plan,
    Put,
    Response,
    plan,
    refusal,
    replace,
    within,
)
from .elections import (
    POLICIES,
    WAIT,
    AskLogs,
    Elect,
    LogInfo,
    Policy,
    Situation,
    Verdict,
    decide,
)
from .internal_topics import STANDARD, InternalTopic
from .records import (
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    ControllerRecord,
    EpochRecord,
    PartitionRecord,
    partition_key,
)
from .view import ClusterView

CHANGES_PER_COMMIT = 2_000
"""Each commit costs a wait for the store, and every node a reading of it. Stores with limits take fewer."""
UNKNOWN = "unknown"
"""The unknown outcome of a commit that may have been, or may still be, carried out."""


class ViewChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The store was read."""

    view: ClusterView


class CommitDone(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of the outstanding `Commit`: `committed` at `revision`, or not (`key` conflicted), or unknown."""

    outcome: str
    revision: int = 0
    key: str = ""


class LogsTold(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to the outstanding `AskReplicas`, as far as there are any."""

    logs: Mapping[PartitionId, Mapping[int, LogInfo]]


class RebalanceDue(msgspec.Struct, frozen=True, kw_only=True):
    """Time to look whether leaders are where they should be (`leader_imbalance_check_interval_ms`)."""


class SessionLost(msgspec.Struct, frozen=True, kw_only=True):
    """Our session in the store has ended, so this node is not the controller."""


class AdminRequestExpired(msgspec.Struct, frozen=True, kw_only=True):
    """The time of this request is over: unless it has been answered, it is refused now and never begun."""

    request_id: int


ControllerEvent = (
    ViewChanged | AdminRequest | AdminRequestExpired | CommitDone | LogsTold | RebalanceDue | SessionLost
)


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """Write `puts` in one transaction, if every version (and those of `checks`) is as it says.

    Answered by `CommitDone`.
    """

    puts: tuple[Put, ...]
    checks: Mapping[str, int]
    reason: str

    @property
    def transaction(self) -> tx.Transaction:
        """The same value for every writer; it requires that the session of the controller's node lives."""
        return _transaction(self.puts, self.checks)


def _transaction(puts: Sequence[Put], checks: Mapping[str, int]) -> tx.Transaction:
    return tx.Transaction(
        compares=tuple(
            tx.AtVersion(key, version) if version else tx.Absent(key) for key, version in checks.items()
        ),
        puts=tuple(tx.Put(put.key, put.record, put.ephemeral) for put in puts),
    )


class AskReplicas(msgspec.Struct, frozen=True, kw_only=True):
    """Ask nodes what these partitions' logs hold, each in the leader epoch that it is asked for. A node that does
    not live answers if it comes back in time.

    Answered by one `LogsTold`, as soon as all have answered or when `unclean_recovery_timeout_ms` is over. A
    replica that has not entered the epoch yet has not answered.
    """

    partitions: Mapping[PartitionId, tuple[int, ...]]
    leader_epochs: Mapping[PartitionId, int]
    topic_ids: Mapping[PartitionId, str]

    def is_answered(self, partition: PartitionId, info: LogInfo) -> bool:
        """Whether a replica has said what it was asked; else it will, later."""
        of_this_topic = info.is_of(self.topic_ids[partition])
        return of_this_topic and info.leader_epoch >= self.leader_epochs[partition]


class ReadView(msgspec.Struct, frozen=True, kw_only=True):
    """Read the store again, as soon as it can be read, and tell it by `ViewChanged`, though no watch fired.

    Nothing is written before that.
    """


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request; told exactly once for each."""

    request_id: int
    response: Response


ControllerEffect = Commit | AskReplicas | ReadView | Reply


class _Asked(msgspec.Struct, frozen=True):
    """The last round of questions about a partition that is over.

    `processes`: of the replicas that lived when it began. `rounds`: how many alike rounds asked replicas that did
    not live.
    """

    topic_id: str = ""
    leader_epoch: int = -1
    processes: Mapping[int, int] = MappingProxyType({})
    rounds: int = 0


class Controller:
    """The controller as every node carries it; on most it only waits to be needed.

    policies: election policies by name, those of plugins among them.
    imbalance_percentage: how many of the partitions that prefer a node may be led elsewhere before they are
      moved back (`leader_imbalance_per_broker_percentage`).
    fits: whether the metadata store takes a transaction of that size.
    internal: how internal topics are made, by name.
    process: a random text, which only this process has.
    """

    def __init__(
        self,
        node_id: int,
        incarnation: int,
        *,
        policies: Mapping[str, Policy] = POLICIES,
        imbalance_percentage: int = 10,
        fits: Callable[[tx.Transaction], bool] = lambda transaction: True,
        internal: Mapping[str, InternalTopic] = STANDARD,
        process: str = "",
    ) -> None:
        self._node_id = node_id
        self._incarnation = incarnation
        self._policies = policies
        self._imbalance_percentage = imbalance_percentage
        self._fits = fits
        self._internal = internal
        self._process = process
        self._view = ClusterView()
        self._committing = False
        self._unclear = False
        """Whether a commit of ours may still be on its way."""
        self._granting: tuple[AdminRequest, Response] | None = None
        self._admin_requests: deque[AdminRequest] = deque()
        self._needed_revision = 0
        self._must_look = False
        self._rebalance_due = False
        self._unsettled: set[PartitionId] = set()
        """Partitions whose records need not be as they should be; of the others a look has shown that they are."""
        self._questions: dict[PartitionId, AskLogs] = {}
        """The questions to replicas that this step has found necessary."""
        self._asking: AskReplicas | None = None
        self._asking_of: dict[PartitionId, Mapping[int, int]] = {}
        """The processes of the living replicas when it was asked, by node: of a later one it says nothing."""
        self._asks_for: AdminRequest | None = None
        self._may_not_ask: AdminRequest | None = None
        """The request whose questions are under way, and the one whose questions are over."""
        self._asked: dict[PartitionId, _Asked] = {}
        self._logs: dict[PartitionId, dict[int, LogInfo]] = {}
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
        """Handle one event; the effects in order. At most one `Commit` and one `AskReplicas` are outstanding."""
        self._effects, self._questions = [], {}
        match event:
            case ViewChanged():
                if event.view.revision >= self._view.revision:
                    self._look_at(event.view)
                self._must_look = False
            case CommitDone():
                self._on_commit_done(event)
            case AdminRequest():
                self._admin_requests.append(event)
            case AdminRequestExpired():
                self._on_admin_request_expired(event.request_id)
            case LogsTold():
                self._on_logs_told(event)
            case RebalanceDue():
                self._rebalance_due = True
            case SessionLost():
                self._look_at(attrs.evolve(self._view, controller=None, nodes={}, since=-1, changed=None))
        self._reconcile()
        self._ask()
        done, self._effects = self._effects, []
        return done

    def _look_at(self, view: ClusterView) -> None:
        """Take over a view. Living nodes may matter to every partition, a topic's record to those of the topic."""
        before, self._view = self._view, view
        changed = view.differs_from(before)
        if changed is None or view.nodes is not before.nodes or view.unreadable != before.unreadable:
            self._unsettled = set(view.partitions)
            return
        self._unsettled |= changed
        if view.topics is not before.topics:
            others = {name for name, topic in view.topics.items() if topic != before.topics.get(name)}
            self._unsettled |= {each for each in view.partitions if each.topic in others}

    def _on_commit_done(self, event: CommitDone) -> None:
        self._committing = False
        granting, self._granting = self._granting, None
        if event.outcome == "committed":
            self._unclear = False
            self._needed_revision = event.revision
            if granting is not None:
                admin_request, response = granting
                self._reply(admin_request, response, event.revision)
            return
        self._unclear |= event.outcome == UNKNOWN
        # What we believed is not so, or may not be: look again before anything else is written.
        self._must_look = True
        self._effects.append(ReadView())
        if granting is not None:
            # Written or not, the next look tells: what stands there already is not done twice.
            self._admin_requests.appendleft(granting[0])

    def _reconcile(self) -> None:
        if self._committing:
            return
        me = self._view.nodes.get(self._node_id)
        if me is None or me.incarnation != self._incarnation:
            self._refuse_admin_requests()
        elif self._must_look or self._view.revision < self._needed_revision:
            return
        elif self._view.controller is None:
            self._run_for_office()
        elif self.active:
            if not self._elect_leaders() and not self._rebalance():
                self._grant_admin_requests()
        else:
            self._refuse_admin_requests()

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

    # Elections

    def _elect_leaders(self) -> bool:
        """Bring partition records in line with the nodes that are alive; whether there was anything to do."""
        puts = []
        for partition in self._in_order():
            versioned = self._view.partitions.get(partition)
            if versioned is None or partition_key(partition) in self._view.unreadable:
                self._unsettled.discard(partition)
                continue
            live = self._live_for(partition, versioned.record)
            record = self._next_record(partition, versioned.record, live)
            if record is not None:
                puts.append(replace(record, versioned, self._view))
                if len(puts) == CHANGES_PER_COMMIT:
                    break
            elif partition not in self._questions and versioned.record.leader != NO_LEADER:
                self._unsettled.discard(partition)
        puts = self._fitting(puts)
        if puts:
            following = counted(len(puts), "partition follows", "partitions follow")
            self._commit(*puts, reason=f"{following} the nodes that are alive")
        return bool(puts)

    def _in_order(self) -> list[PartitionId]:
        """Partitions that need not be as they should be; first those whose leader is gone, if one commit may not be
        enough: nobody can write to them, while what the others get is in their followers' logs already.
        """
        found = sorted(self._unsettled)
        if len(found) > CHANGES_PER_COMMIT:
            view = self._view
            found.sort(
                key=lambda each: each in view.partitions and view.partitions[each].record.leader in view.nodes
            )
        return found

    def _live_for(self, partition: PartitionId, record: PartitionRecord) -> Mapping[int, int]:
        """The possible leaders; a stopping node is one only while no other replica can take over."""
        live = self._view.live_for(partition)
        if transitions.has_clean_leader(record, live):
            return live
        return self._view.live_for(partition, leaving=True)

    def _next_record(
        self, partition: PartitionId, record: PartitionRecord, live: Mapping[int, int]
    ) -> PartitionRecord | None:
        """The record as it should be, if it is not."""
        if transitions.has_clean_leader(record, live):
            return transitions.elect(record, live) or transitions.finish_reassignment(record)
        verdict = self._verdict(partition, record)
        if isinstance(verdict, Elect):
            return transitions.elect(record, live, verdict.node, self._process)
        # Leaderless first: in that epoch nothing is appended, so what a replica tells of its log stays true.
        leaderless = transitions.elect(record, live)
        if leaderless is None and isinstance(verdict, AskLogs):
            self._questions[partition] = verdict
        return leaderless

    def _verdict(self, partition: PartitionId, record: PartitionRecord) -> Verdict:
        policy = self._policies.get(self._unclean_policy(partition), self._policies[WAIT])
        return decide(self._situation(record), policy)

    def _unclean_policy(self, partition: PartitionId) -> str:
        topic = self._view.topics.get(partition.topic)
        return topic.config.unclean_leader_election if topic is not None else WAIT

    def _situation(self, record: PartitionRecord) -> Situation:
        live = self._live_for(record.id, record)
        logs = {
            node: info
            for node, info in self._logs.get(record.id, {}).items()
            # A later process than the view shows has told of itself before the store did.
            if node in live
            and info.incarnation >= live[node]
            and info.leader_epoch == record.leader_epoch
            and info.is_of(record.topic_id)
        }
        over = self._asked.get(record.id, _Asked())
        asked = (over.topic_id, over.leader_epoch) == (record.topic_id, record.leader_epoch) and all(
            over.processes.get(node, -1) >= live[node] for node in record.replicas if node in live
        )
        return Situation(record=record, live=live, logs=logs, asked=asked, rounds=over.rounds if asked else 0)

    def _ask(self) -> None:
        """Ask all that this step has found, unless questions are out already: their answers bring us back."""
        if not self._questions or self._asking is not None:
            return
        records = {partition: self._view.partitions[partition].record for partition in self._questions}
        self._asking = AskReplicas(
            partitions={partition: asked.nodes for partition, asked in self._questions.items()},
            leader_epochs={partition: record.leader_epoch for partition, record in records.items()},
            topic_ids={partition: record.topic_id for partition, record in records.items()},
        )
        self._asking_of = {
            partition: {node: live[node] for node in record.replicas if node in live}
            for partition, record in records.items()
            for live in (self._live_for(partition, record),)
        }
        self._effects.append(self._asking)

    def _on_logs_told(self, event: LogsTold) -> None:
        asking, self._asking = self._asking, None
        self._may_not_ask, self._asks_for = self._asks_for, None
        if asking is None:
            return
        for partition in asking.partitions:
            live = self._asking_of[partition]
            now = _Asked(asking.topic_ids[partition], asking.leader_epochs[partition], live)
            before = self._asked.get(partition, now)
            rounds = before.rounds if structs.replace(before, rounds=0) == now else 0
            waited = len(asking.partitions[partition]) > len(live)
            self._asked[partition] = structs.replace(now, rounds=rounds + waited)
            # An earlier report of this epoch, by a living process, is still valid.
            self._logs.setdefault(partition, {}).update(event.logs.get(partition, {}))

    def _rebalance(self) -> bool:
        """Give leaderships back to preferred replicas where too many are elsewhere; whether there was anything."""
        if not self._rebalance_due:
            return False
        self._rebalance_due = False
        changes = rebalance.plan(self._view, self._imbalance_percentage)[:CHANGES_PER_COMMIT]
        if changes:
            puts = self._fitting([replace(record, versioned, self._view) for record, versioned in changes])
            self._commit(*puts, reason=f"{len(puts)} leaderships move back to the preferred leaders")
        return bool(changes)

    # Requests

    def _grant_admin_requests(self) -> None:
        while self._admin_requests and not self._committing:
            admin_request = self._admin_requests[0]
            known = Knowledge(
                view=self._view,
                situation=self._situation,
                policies=self._policies,
                internal=self._internal,
                may_ask=admin_request is not self._may_not_ask,
                process=self._process,
            )
            planned = plan(admin_request, known)
            if isinstance(planned, LogsNeeded):
                if self._asking is None:
                    self._questions |= planned.partitions
                    self._asks_for = admin_request
                return
            self._admin_requests.popleft()
            if isinstance(planned, Plan):
                planned = within(admin_request, planned, known, self._takes)
            if isinstance(planned, Plan):
                self._granting = admin_request, planned.response
                self._commit(*planned.puts, reason=planned.reason)
            else:
                self._reply(admin_request, planned, self._view.revision)

    def _takes(self, puts: Sequence[Put]) -> bool:
        """Whether the store takes these at once, with what `_commit` adds to them."""
        fence = Put(key=CONTROLLER_EPOCH_KEY, record=EpochRecord(controller_epoch=2**31), version=1)
        return self._fits(_transaction((*puts, fence), {put.key: put.version for put in (*puts, fence)}))

    def _fitting(self, puts: list[Put]) -> list[Put]:
        """As many of them as the store takes at once; the others follow."""
        while len(puts) > 1 and not self._takes(puts):
            puts = puts[: len(puts) // 2]
        return puts

    def _on_admin_request_expired(self, request_id: int) -> None:
        """Give up a request that cannot be granted in time, as Kafka's controller does past the request's deadline.

        Else it would be granted after whoever asked has given up, over what others have done since.
        """
        late = [each for each in self._admin_requests if each.request_id == request_id]
        self._admin_requests = deque(each for each in self._admin_requests if each.request_id != request_id)
        if self._granting is not None and self._granting[0].request_id == request_id:
            late.append(self._granting[0])
            self._granting = None
        text = (
            "the controller could not finish the request in time, because the metadata store or replicas did not "
            "answer; it may still take effect: check before you repeat it"
        )
        for admin_request in late:
            self._reply(admin_request, refusal(admin_request.request, ErrorCode.REQUEST_TIMED_OUT, text), 0)

    def _refuse_admin_requests(self) -> None:
        text = "this node is not the controller: retry"
        while self._admin_requests:
            admin_request = self._admin_requests.popleft()
            self._reply(admin_request, refusal(admin_request.request, ErrorCode.NOT_CONTROLLER, text), 0)

    def _reply(self, admin_request: AdminRequest, response: Response, revision: int) -> None:
        """`revision` goes along, so that the client believes no node that has not read as far as that."""
        told = structs.replace(response, revision=revision)
        self._effects.append(Reply(request_id=admin_request.request_id, response=told))

    def _commit(self, *puts: Put, reason: str) -> None:
        """Every write checks that nobody has been elected controller since.

        After one whose outcome is unknown the next writes our epoch over itself: with a new version of that key
        what may still be on its way fails. Versions of records would not do, because those of a topic that is made
        anew begin again.
        """
        self._committing = True
        if self._unclear and all(put.key != CONTROLLER_EPOCH_KEY for put in puts):
            epoch = EpochRecord(controller_epoch=self._view.controller_epoch)
            fence = Put(key=CONTROLLER_EPOCH_KEY, record=epoch, version=self._view.controller_epoch_version)
            puts = (*puts, fence)
        checks = {CONTROLLER_EPOCH_KEY: self._view.controller_epoch_version}
        checks |= {put.key: put.version for put in puts}
        self._effects.append(Commit(puts=puts, checks=checks, reason=reason))
