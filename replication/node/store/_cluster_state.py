"""The node's side of the metadata store: the view of it, our registration in it, and every write to it."""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Mapping

import trio
from msgspec import structs

from ... import metadata as store_api
from ... import wire
from ...core import faces
from ...core import store_transaction as tx
from ...core.broker.effects import IsrSettled, LogsGathered, ReadKeys, WriteIsrs
from ...core.broker.events import AskLogs
from ...core.control import records as rec
from ...core.control.admin_requests import Request
from ...core.control.view import ClusterView
from ...core.errors import ErrorCode
from ...core.store_transaction import Committed, Conflict, SessionOver
from ...core.types import PartitionId
from ...metadata import MetadataError, MetadataStore, Session
from .._policies import election_policies
from ..coordination._group_settings import internal_topics
from ..driver import Driver
from ..operations.changes import Changes
from ..operations.history import ChangeHistory
from . import _store
from ._changes_told import ChangesTold
from ._client_state import KeptForClients
from ._isr_writer import IsrWriter
from ._registration import put_back
from ._view_reader import Reading, ViewReader

log = logging.getLogger("insync.node")

CONFIRM_PAUSE = 0.02
"""Seconds between two readings of the store that gateways ask for: names that do not exist must not flood it."""
RETRY_PAUSE = 0.1
MISSED = 3
"""The metadata store does not miss this number of signs of life by coincidence."""
_FOR_LACK_OF_STORE = (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
"""Refusals for which the metadata store may be the cause."""
ADMIN_TIMEOUT = 9.0
"""Seconds after which an ungranted request is answered; the forwarding node waits slightly longer."""
DOUBTFUL_TIMEOUT = 2.0
"""The same while the metadata store takes no writes, so that the cause is told before a client gives up."""


class ClusterState:
    """Follows the store, keeps the node's controller informed, and writes for it and for the replicas."""

    def __init__(self, store: MetadataStore, driver: Driver, session: Session, nursery: trio.Nursery) -> None:
        self.session = session
        self._store = store
        self._driver = driver
        self._nursery = nursery
        self._reader = ViewReader()
        self.history = ChangeHistory()
        self._changes = ChangesTold(self.history, nursery)
        self._store_id = ""
        self.counted_at = trio.current_time()
        """When the store took a write of this node last; it is asked to every `proof_interval_ms`."""
        self.store_problem = ""
        """Why it may not have taken the last one; empty if it has."""
        settings = driver.settings
        driver.broker.context.fits = self._fits
        driver.broker.context.explained = self.explained
        self._controller = faces.Controller(
            settings.node_id,
            driver.incarnation,
            policies=election_policies(),
            imbalance_percentage=settings.leader_imbalance_per_broker_percentage,
            internal=internal_topics(settings),
            fits=self._fits,
            process=uuid.uuid4().hex,
        )
        self._isr = IsrWriter(
            store, driver, lambda: self.session, lambda *task: self._nursery.start_soon(*task)
        )
        self._read_again = trio.Event()
        self._next_request = 0
        self._admin_requests: dict[int, Callable[[faces.Response], None]] = {}
        self.ready = trio.Event()
        self.unregistered = trio.Event()
        """Set when the store shows that our registration is gone."""
        self.leaving = False
        self._applied = trio.Event()
        self.on_view: Callable[[], None] = _nobody
        """Called whenever the view is another one."""
        self._confirming = trio.Lock()
        self._confirmations_begun = self._confirmations_done = 0
        self._confirmed_at = -math.inf
        self._suspects: set[rec.NodeRecord] = set()

    def _fits(self, transaction: tx.Transaction) -> bool:
        return _store.fits(self._store.limits, transaction)

    @property
    def is_controller(self) -> bool:
        return self._controller.active

    @property
    def store_age_ms(self) -> int:
        """Since when the store has taken no write of this node: what the view shows is as old."""
        return int(1000 * (trio.current_time() - self.counted_at))

    @property
    def store_trouble(self) -> str:
        """Since when the store has taken no write of this node, and why; empty: it takes them."""
        age, why = self.store_age_ms, self.store_problem
        if age <= MISSED * self._driver.settings.proof_interval_ms:
            return ""
        taken = f"the metadata store has taken no write of this node for {age / 1000:.0f} s"
        return f"{taken}: {why}" if why else taken

    def explained(self, refusal: str) -> str:
        """A refusal of an admin request, with the cause in front of it if that is the metadata store."""
        trouble = self.store_trouble
        if not trouble:
            return refusal
        return f"node {self._driver.settings.node_id}: {trouble}; see `insync status` ({refusal})"

    def counted(self, problem: str) -> None:
        """The store was asked to take a write."""
        self.store_problem = problem
        if not problem:
            self.counted_at = trio.current_time()

    def grant(self, request: Request, reply: Callable[[faces.Response], None]) -> None:
        """Ask our own controller, as soon as it knows of every node that is there now; `reply` is called once."""
        self._next_request += 1
        answered = trio.Event()

        def answer(response: faces.Response) -> None:
            answered.set()
            if response.error in _FOR_LACK_OF_STORE:
                response = structs.replace(response, message=self.explained(response.message))
            reply(response)

        self._admin_requests[self._next_request] = answer
        admin_request = faces.AdminRequest(
            request_id=self._next_request, request=request, fresh_id=uuid.uuid4().hex
        )
        self._nursery.start_soon(self._grant, admin_request, answered)

    async def _grant(self, admin_request: faces.AdminRequest, answered: trio.Event) -> None:
        kind = type(admin_request.request).__name__
        timeout = DOUBTFUL_TIMEOUT if self.store_trouble else ADMIN_TIMEOUT
        deadline = trio.current_time() + timeout
        try:
            with trio.fail_after(timeout / 2):
                await self._read()
        except (MetadataError, wire.WireError, trio.TooSlowError) as error:
            log.debug("planning %s from a stale view: %s", kind, str(error) or "the store is slow")
        self._step(admin_request)
        with trio.move_on_at(deadline):
            await answered.wait()
        if not answered.is_set():
            log.warning("gave up %s: not granted within %g s", kind, timeout)
            self._step(faces.AdminRequestExpired(request_id=admin_request.request_id))

    def read_again(self) -> None:
        """Have the store read though no watch fired."""
        self._read_again.set()

    async def follow(self) -> None:
        """Read the store when it has changed, or on request."""
        while True:
            try:
                async with self._store.watch("/") as watch, trio.open_nursery() as nursery:
                    nursery.start_soon(self._reread)
                    async for _ in watch:
                        await self._read()
            except* store_api.StoreUnavailableError as errors:
                log.warning("the metadata store is unreachable, retrying: %s", errors.exceptions[0])
                await trio.sleep(RETRY_PAUSE)

    async def _reread(self) -> None:
        while True:
            await self._read_again.wait()
            self._read_again = trio.Event()
            await self._read()

    async def confirm(self) -> None:
        """Return when the view shows a reading of the store that began after this call.

        Raises:
          MetadataError: The store cannot be read.
        """
        wanted = self._confirmations_begun + 1
        async with self._confirming:
            if self._confirmations_done >= wanted:
                return
            await trio.sleep_until(self._confirmed_at + CONFIRM_PAUSE)
            self._confirmed_at = trio.current_time()
            self._confirmations_begun = number = self._confirmations_begun + 1
            await self._read()
            self._confirmations_done = number

    async def _read(self) -> None:
        known = self._driver.view.revision
        reading = await self._reader.ask(self._store)
        answer = reading.answer
        is_older = faces.was_put_back(answer.revision, known)
        if is_older or answer.store_id != (self._store_id or answer.store_id):
            which = "went back to an older state" if is_older else "was replaced by another"
            raise put_back(
                f"the metadata store {which} while node {self._driver.settings.node_id} ran: it is at revision "
                f"{answer.revision}, and was at {known}"
            )
        self._store_id = answer.store_id
        self.apply(reading)

    def registered(self, revision: int) -> None:
        """This process is registered since a revision of the store: what was read before is not told to anybody."""
        self._driver.broker.context.registered = revision

    def apply(self, reading: Reading) -> None:
        """Tell the replicas and the controller what the store holds; older readings are ignored."""
        revision = reading.answer.revision
        may_read = self._driver.broker.assignments.may_read(revision)
        if not may_read or revision < self._driver.view.revision:
            return
        before, view = self._driver.view, self._reader.read(reading)
        self._tell_changes(before, view)
        self._driver.apply(view)
        self._step(faces.ViewChanged(view=view))
        self._applied.set()
        self._applied = trio.Event()
        self.on_view()
        if self._driver.settings.node_id in view.nodes:
            self.ready.set()
        else:
            self.unregistered.set()

    def _tell_changes(self, before: ClusterView, after: ClusterView) -> None:
        """One line for each change that concerns us: of all partitions as the controller, else of ours."""
        holder, me = after.controller, self._driver.settings.node_id
        leads = holder is not None and holder.node_id == me

        def tells(partition: PartitionId) -> bool:
            # Asked when the line is written, which may be long after the log of a deleted partition has gone.
            versioned = after.partitions.get(partition) or before.partitions.get(partition)
            replicas = versioned.record.replicas if versioned is not None else ()
            return leads or partition in self._driver.hosts or me in replicas

        self._changes.tell(Changes(before, after, tells, self._isr.reasons).events())
        self._isr.forget_reasons(after.partitions)

    # Writes

    def suspect(self, node: rec.NodeRecord, reason: str) -> None:
        """A node is gone, for this reason: have it elected away now.

        Its session would end by itself, later. If it lives after all, it registers again; failover is fenced, so
        the suspicion costs an election and nothing else.
        """
        if node not in self._suspects:
            self._suspects.add(node)
            self._nursery.start_soon(self._evict, node, reason)

    async def _evict(self, node: rec.NodeRecord, reason: str) -> None:
        try:
            seen = await _store.get(self._store, rec.node_key(node.node_id), rec.CONTROLLER_KEY)
            transaction = faces.evict(seen, node)
            if transaction is not None and isinstance(
                await _store.commit(self._store, transaction, self.session), Committed
            ):
                log.warning("node %d is gone: %s", node.node_id, reason)
        except (MetadataError, wire.WireError) as error:
            log.warning("node %d is gone, but its registration could not be removed: %s", node.node_id, error)
        self._suspects.discard(node)

    def step_back(self, partition: PartitionId) -> None:
        """Have no election count on this node's copy of a partition: it is damaged, and is to be copied again."""
        self._nursery.start_soon(self._step_back, partition)

    async def _step_back(self, partition: PartitionId) -> None:
        me = self._driver.settings.node_id
        try:
            seen = await _store.get(self._store, rec.partition_key(partition))
            transaction = faces.step_back(seen, me, partition)
            if transaction is not None and isinstance(
                await _store.commit(self._store, transaction, self.session), Committed
            ):
                log.warning("%s: the damaged copy on this node is no longer an eligible leader", partition)
        except (MetadataError, wire.WireError) as error:
            log.warning(
                "%s: cannot remove the damaged copy on this node from the eligible leaders: %s",
                partition,
                error,
            )

    def read_keys(self, effect: ReadKeys) -> None:
        self._isr.read(effect)

    def write_isrs(self, effect: WriteIsrs) -> None:
        self._isr.write(effect)

    def isr_settled(self, effect: IsrSettled) -> None:
        self._isr.settled(effect)

    def _step(self, event: faces.ControllerEvent) -> None:
        for effect in self._controller.step(event):
            match effect:
                case faces.Commit():
                    self._nursery.start_soon(self._commit, effect)
                case faces.ReadView():
                    self.read_again()
                case faces.AskReplicas():
                    self._driver.step(AskLogs(effect))
                case faces.Reply():
                    if effect.response.error == ErrorCode.UNKNOWN_SERVER_ERROR:
                        log.error("refused a request to the controller: %s", effect.response.message)
                    self._admin_requests.pop(effect.request_id)(effect.response)

    def logs_gathered(self, effect: LogsGathered) -> None:
        """Replicas have reported their logs."""
        self._step(faces.LogsTold(logs=effect.logs))

    async def _commit(self, effect: faces.Commit) -> None:
        log.debug("node %d writes: %s", self._driver.settings.node_id, effect.reason)
        # Those of now: the store may show what is written before it says that it is.
        former = self._driver.view.partitions
        try:
            outcome = await _store.commit(self._store, effect.transaction, self.session)
        except (MetadataError, wire.WireError) as error:
            log.warning("node %d could not write: %s", self._driver.settings.node_id, error)
            await trio.sleep(RETRY_PAUSE)
            self._step(faces.CommitDone(outcome="unknown"))
            return
        match outcome:
            case Committed():
                self._count_elections(effect, former)
                done = faces.CommitDone(outcome="committed", revision=outcome.revision)
            case Conflict():
                done = faces.CommitDone(outcome="conflict", key=outcome.key)
            case SessionOver():
                log.warning("node %d could not write: its session has ended", self._driver.settings.node_id)
                await trio.sleep(RETRY_PAUSE)
                done = faces.CommitDone(outcome="unknown")
            case _:
                done = faces.CommitDone(outcome="unknown")
        self._step(done)

    def _count_elections(self, effect: faces.Commit, partitions: Mapping[PartitionId, rec.Versioned]) -> None:
        """partitions: as they were before this was written."""
        counters = self._driver.counters
        for put in effect.puts:
            record = put.record
            if not isinstance(record, rec.PartitionRecord):
                continue
            versioned = partitions.get(record.id)
            former = versioned.record if versioned is not None else None
            if record.leader >= 0 and (former is None or former.leader != record.leader):
                counters.leader_elections += 1
                counters.unclean_leader_elections += record.recovering and not (former and former.recovering)

    async def rebalance(self) -> None:
        """Have the controller look now and then whether leaders are where they should be."""
        settings = self._driver.settings
        if not settings.auto_leader_rebalance_enable:
            return
        while True:
            await trio.sleep(settings.leader_imbalance_check_interval_ms / 1000)
            self._step(faces.RebalanceDue())

    def session_lost(self) -> None:
        self._step(faces.SessionLost())

    async def relieved(self) -> None:
        """Wait until others lead what we led and do without us in the ISRs, as far as there are others."""
        while not self._driver.view.is_relieved(self._driver.settings.node_id):
            await self._applied.wait()

    async def leave(self) -> None:
        """Give the registration back, so that others take over at once."""
        self.leaving = True
        await self.session.close()

    @property
    def kept(self) -> KeptForClients:
        """The state that clients have asked to be kept."""
        return KeptForClients(self._store)

    async def revision(self) -> int:
        """At which the store is, or was a moment ago; raises MetadataError."""
        return (await self._store.get(rec.PRODUCER_IDS_KEY)).revision

    async def producer_ids(self, count: int) -> int:
        """Take `count` producer ids out of the store; the first of them.

        Raises:
          MetadataError: The store could not be written.
        """
        while True:
            entry = (await self._store.get(rec.PRODUCER_IDS_KEY)).entry
            first = wire.decode_record(rec.ProducerIdsRecord, entry.value).next_producer_id if entry else 0
            compare: store_api.Compare = store_api.Missing(rec.PRODUCER_IDS_KEY)
            if entry is not None:
                compare = store_api.VersionIs(rec.PRODUCER_IDS_KEY, entry.version)
            record = wire.encode_record(rec.ProducerIdsRecord(next_producer_id=first + count))
            outcome = await self._store.commit([compare], [store_api.Put(rec.PRODUCER_IDS_KEY, record)])
            if isinstance(outcome, store_api.Committed):
                return first


def _nobody() -> None:
    """Receives views on a node without gateways."""
