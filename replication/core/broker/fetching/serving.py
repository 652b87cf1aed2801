"""The serving side of fetches: a request is answered at once if there is news, and otherwise parked.

A request covers many partitions: those that it names, and those that its session has open (KIP-227). Each replica
decides what it may return; this part collects, waits and answers. Within a session it examines only partitions with
a new question, or with news since the last look, so idle partitions cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import partial
from math import inf, nextafter
from typing import TYPE_CHECKING

from ...errors import ErrorCode
from ...messages import READ_COMMITTED, FetchRequest, FetchResponse
from ...partition.events import Fetch
from ...types import PartitionId, named
from ..context import Context
from ..effects import Answer, Fail, Refuse
from ..events import FetchArrived, Warmed
from .fetch_session import NEW_SESSION, NO_SESSION, SessionCache, SessionRequest
from .gathering import Doubted, Gathering
from .inquiries import Gathered, Inquiry

if TYPE_CHECKING:
    from ...partition.leader import LeaderRole
    from .current_reads import CurrentReads


NEVER = float("-inf")
"""The mark before the first answer."""

QUIET_DELAY = 0.05
"""Seconds for which news of only a high watermark are held back from a follower. While producers write, batches
arrive within this time and take the high watermark along, which saves a request for each. Otherwise the delay is
harmless."""


class Serving:
    """All fetches that this node serves. `seed`: secret random bytes of this process, for session ids."""

    def __init__(self, context: Context, seed: bytes) -> None:
        settings = context.settings
        self._context = context
        self._max_bytes = settings.fetch_max_bytes
        self._cache: SessionCache[PartitionId, Fetch] = SessionCache(
            settings.max_fetch_sessions, seed, idle=settings.fetch_session_idle
        )
        self.sessions: dict[int, Inquiry] = {}
        self._waiting: dict[PartitionId, dict[Inquiry, None]] = {}
        """By partition: the askers with an open question about it, whether or not a request of theirs waits."""
        self._parked: dict[Hashable, Inquiry] = {}
        """Parked requests, by request."""
        self.woken: dict[PartitionId, None] = {}
        """Partitions that may have news for an asker; examined at the end of the driver's turn."""
        self.last_mark = NEVER
        """The mark of each session's last answer. A mark is the clock reading at that moment, raised minimally to
        be unique, because the order of answers and questions counts and not the time."""
        self.current_reads: CurrentReads
        """Set by the part that waits for the proofs of fetches."""
        self._gathering = Gathering(context, lambda partition: self._look_again((partition,)))
        self.throttle = self._gathering.throttle
        self.truncate = self._gathering.truncate
        self.on_followed: Callable[[int, float, Mapping[PartitionId, int]], None] | None = None
        """Called for each follower request that continues from an answer, with the node, the mark of that answer,
        and the partitions with new questions and their leader epochs."""
        self._followers: dict[int, dict[Inquiry, None]] = {}
        """Sessions of followers, by node id."""

    def on_doubt(self, doubted: Doubted) -> None:
        """Set the callback for damage that a follower, a client or a read of this node finds."""
        self._gathering.doubted = doubted

    @property
    def parked(self) -> int:
        """The number of requests that wait for news."""
        return len(self._parked)

    # Requests

    def arrived(self, event: FetchArrived) -> None:
        """Accept a request; it is answered now or later, refused, or withdrawn by the asker."""
        _, request, message, _ = event
        node = message.replica_id
        if node >= 0 and node != event.peer.node_id:
            # A follower's report of its log moves the high watermark: no peer may report for another node.
            self._context.emit(
                Refuse(
                    request,
                    f"{event.peer.principal} is not node {node} and may not replicate as it",
                )
            )
            return
        inquiry = self._inquiry(event)
        if isinstance(inquiry, ErrorCode):
            self._context.emit(Answer(request, FetchResponse(partitions=[], error=inquiry), []))
            return
        assert inquiry.request is None, "a session has one request at a time"
        inquiry.request, inquiry.message = request, message
        final, reads = message.max_wait_ms <= 0 or message.min_bytes <= 0, self.current_reads
        # A current read is proved by a fetch that continues an answer given after the question (decision 55).
        # One that comes too early is answered at once, even with nothing: the next one is the proof.
        if reads.watches and node >= 0 and inquiry.session is not None:
            inquiry.replica_id, inquiry.incarnation = node, message.incarnation
            reads.fetched(inquiry)
            final = final or reads.waits_for(inquiry)
        if message.session_epoch > NEW_SESSION:
            for partition in list(inquiry.news):
                # As most often: a member that has everything goes on, and nothing has to be said to that.
                if not self._context.follow_replica(partition, inquiry.open[partition]):
                    break  # this one and what comes after it are looked at for an answer
                self._hold(inquiry, partition)
        # Tried before it is parked: no event will report news that is there already.
        if self._try_answer(inquiry, final=final):
            return
        self._parked[request] = inquiry
        self._set_timer(inquiry, self._context.now + message.max_wait_ms / 1000)

    def cancelled(self, request: Hashable) -> None:
        """The asker no longer waits. Its session continues with its next request."""
        inquiry = self._parked.get(request)
        if inquiry is not None:
            if inquiry.session is None:
                self._end(inquiry)
            else:
                # Its questions stay open: the next request repeats only the unconfirmed ones (decision 22).
                self._let_go(inquiry)

    def disconnected(self, connection: Hashable) -> None:
        """The connection has ended, and with it its requests and sessions."""
        self._gathering.disconnected(connection)
        self._end_sessions(connection)

    def _inquiry(self, event: FetchArrived) -> Inquiry | ErrorCode:
        """The questions of a request, including the open ones of its session."""
        message, now = event.message, self._context.now
        questions = self._questions(message)
        if message.session_epoch <= NEW_SESSION:
            if message.session_epoch == NEW_SESSION and message.replica_id >= 0:
                return self._begin(event.connection, message.replica_id, questions)
            # Clients get no session: its memory outlives its requests, and a thousand clients could have
            # as many sessions.
            inquiry = Inquiry(None, questions, event.connection)
            self._look_at(inquiry, questions)
            return inquiry
        # By the connection before anything is changed: a session exists for the one that began it, and for nobody
        # else. A stranger's request must not even count as use of it.
        session = self._cache.find(message.session_id, now, event.connection)
        if isinstance(session, ErrorCode):
            return session
        inquiry = self.sessions[session.id]
        withdrawn: tuple[PartitionId, ...] = ()
        if message.forgotten:
            withdrawn = tuple([PartitionId(each.topic, each.partition) for each in message.forgotten])
        # Read first: `accept` takes an answer that was lost out of the count.
        answers = session.answers
        told = message.session_id, message.session_epoch, questions, withdrawn
        changed = session.accept(named(SessionRequest, told))
        if changed is None:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        # Only after `accept`: a request that the session refuses must not cost the one that waits.
        if inquiry.request is not None:
            self._context.emit(
                Fail(
                    inquiry.request,
                    ErrorCode.INVALID_REQUEST,
                    "the session has continued with another request",
                )
            )
            self._let_go(inquiry)
        for partition in withdrawn:
            self._overlook(inquiry, partition)
        self._look_at(inquiry, changed)
        # Only after `accept`: a question that this request withdraws proves nothing any more (decision 54).
        if message.replica_id >= 0:
            self._confirm(inquiry, message, changed, lost=session.answers < answers)
        return inquiry

    def _questions(self, message: FetchRequest) -> dict[PartitionId, Fetch]:
        """The questions of a request to replicas, which may hear them several times before there is an answer.

        Batches that a follower or a client reports as damaged are checked, if this node might have sent them: for a
        client that is the batch at its fetch offset, the one that it cannot read.
        """
        questions: dict[PartitionId, Fetch] = {}
        replica_id, incarnation = message.replica_id, message.incarnation
        read_committed = message.isolation_level == READ_COMMITTED
        for wanted in message.partitions:
            partition = named(PartitionId, (wanted.topic, wanted.partition))
            if wanted.damaged:
                of_client = replica_id < 0
                size = 1 if of_client else wanted.max_bytes
                self._gathering.doubted(partition, wanted.fetch_offset, size, of_client)
            questions[partition] = Fetch(
                replica_id=replica_id,
                incarnation=incarnation,
                leader_epoch=wanted.leader_epoch,
                fetch_offset=wanted.fetch_offset,
                last_fetched_epoch=wanted.last_fetched_epoch,
                high_watermark=wanted.high_watermark,
                log_start_offset=wanted.log_start_offset,
                topic_id=wanted.topic_id,
                read_committed=read_committed,
                max_bytes=wanted.max_bytes,
            )
        return questions

    def _confirm(
        self, inquiry: Inquiry, message: FetchRequest, changed: Collection[PartitionId], *, lost: bool
    ) -> None:
        """A follower continues from an answer: it followed when that was sent, however late its request is."""
        if lost:
            # The follower has not received the last answer, so it proves no more than before.
            inquiry.sent_at = inquiry.confirmed_at
        inquiry.confirmed_at = inquiry.sent_at
        if self.on_followed is not None:
            epochs = {partition: inquiry.open[partition].leader_epoch for partition in changed}
            self.on_followed(message.replica_id, inquiry.confirmed_at, epochs)

    def followed_since(self, node: int, partition: PartitionId, leader_epoch: int) -> float:
        """The latest time at which a node demonstrably followed in this leader epoch, by its open questions.

        A question stays open until it is answered or withdrawn. A follower that changes to another leader withdraws
        it with its next request.
        """
        found = float("-inf")
        for inquiry in self._followers.get(node, ()):
            wanted = inquiry.open.get(partition)
            if wanted is not None and wanted.leader_epoch == leader_epoch:
                found = max(found, inquiry.confirmed_at)
        return found

    def hurry(self, node: int, partition: PartitionId) -> None:
        """Make a follower send a new request, by an answer without news.

        A follower whose request is in transit proves itself by that (`on_followed`), and may be hurried again then.
        """
        for inquiry in list(self._followers.get(node, ())):
            # Without an open question, the next request would prove nothing about this partition.
            if partition in inquiry.open:
                self._try_answer(inquiry, final=True)

    def _begin(self, connection: Hashable, node: int, questions: dict[PartitionId, Fetch]) -> Inquiry:
        """Begin a node's session, which replaces that of the same connection. Without a free slot, serve without
        one.
        """
        # First: it frees the slot of the former session, and later it would end the new one with it.
        self._end_sessions(connection)
        session, evicted = self._cache.begin(questions, self._context.now, connection)
        if evicted is not None:
            former = self.sessions[evicted.id]
            # Noted before `_end` forgets it: the answer has its follower begin another session before a timeout.
            waits = former.request
            self._end(former)
            if waits is not None:
                error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
                self._context.emit(Answer(waits, FetchResponse(partitions=[], error=error), []))
        if session is None:
            inquiry = Inquiry(None, questions, connection)
        else:
            # No copy: `accept` and `answer` open and close questions in the session's own dictionary.
            inquiry = self.sessions[session.id] = Inquiry(session, session.open, connection)
            self._followers.setdefault(node, {})[inquiry] = None
        self._look_at(inquiry, inquiry.open)
        return inquiry

    def _look_at(self, inquiry: Inquiry, partitions: Iterable[PartitionId]) -> None:
        for partition in partitions:
            # Even if there is no news: the replica has to account the question, which may move the high watermark.
            inquiry.news[partition] = None
            # The new question says which high watermark its sender knows by now.
            inquiry.held.pop(partition, None)
            self._waiting.setdefault(partition, {})[inquiry] = None

    def _overlook(self, inquiry: Inquiry, partition: PartitionId) -> None:
        """Close the question about a partition: it has no news until it is asked again."""
        inquiry.news.pop(partition, None)
        inquiry.held.pop(partition, None)
        waiting = self._waiting.get(partition)
        if waiting is not None:
            waiting.pop(inquiry, None)
            # `wake` goes by the keys: an empty entry would have a turn settled for nobody.
            if not waiting:
                del self._waiting[partition]

    def _let_go(self, inquiry: Inquiry) -> None:
        """Remove the parked request of an asker."""
        if inquiry.request is not None:
            self._parked.pop(inquiry.request, None)
            inquiry.request = None
        # The timer stays: to set one for each high watermark would wake the driver each time.
        inquiry.is_quiet = False

    def _end(self, inquiry: Inquiry) -> None:
        self._let_go(inquiry)
        for timer in (inquiry.timer, inquiry.quiet):
            if timer is not None:
                timer.cancel()
        inquiry.timer = inquiry.quiet = None
        for partition in list(inquiry.open):
            self._overlook(inquiry, partition)
        if inquiry.session is not None:
            self.sessions.pop(inquiry.session.id, None)
            self._cache.end(inquiry.session.id)
            for sessions in self._followers.values():
                sessions.pop(inquiry, None)

    def _end_sessions(self, connection: Hashable) -> None:
        for inquiry in [each for each in self.sessions.values() if each.connection is connection]:
            self._end(inquiry)

    # Waiting

    def _set_timer(self, inquiry: Inquiry, expires: float) -> None:
        inquiry.expires = expires
        if inquiry.timer is not None:
            # It comes earlier and is set again then: most requests are answered long before, and cost no timer.
            if inquiry.timer_at <= expires:
                return
            inquiry.timer.cancel()
        inquiry.timer_at = expires
        inquiry.timer = self._context.timers.call_at(expires, partial(self._timer_came, inquiry))

    def _timer_came(self, inquiry: Inquiry) -> None:
        inquiry.timer = None
        if inquiry.request is None:
            return
        if inquiry.expires > inquiry.timer_at:
            self._set_timer(inquiry, inquiry.expires)
        else:
            self._try_answer(inquiry, final=True)

    def _tell_later(self, inquiry: Inquiry) -> None:
        """Send held-back news after a while, even without other news."""
        # The first one sets the time: moved by each further one, it would never come under steady commits.
        if not inquiry.is_quiet:
            inquiry.is_quiet, inquiry.tell_at = True, self._context.now + QUIET_DELAY
            if inquiry.quiet is None:
                self._set_quiet(inquiry)

    def _set_quiet(self, inquiry: Inquiry) -> None:
        inquiry.quiet = self._context.timers.call_at(inquiry.tell_at, partial(self._quiet_over, inquiry))

    def _quiet_over(self, inquiry: Inquiry) -> None:
        inquiry.quiet = None
        if not inquiry.is_quiet:
            return
        # The timer was set for an earlier request of the session.
        if inquiry.tell_at > self._context.now:
            self._set_quiet(inquiry)
        else:
            self._try_answer(inquiry, final=True)

    # News

    def wake(self, partition: PartitionId) -> None:
        """The partition may have news for its askers."""
        # A current read waits for the high watermark even if nobody has an open question.
        if partition in self._waiting or partition in self.current_reads.watches:
            self.woken[partition] = None
            self._context.is_unsettled = True

    def warmed(self, event: Warmed) -> None:
        """Data that was not in memory can be read now."""
        self._gathering.warmed(event)
        self.wake(event.partition)

    def settle(self) -> None:
        """Examine the requests that wait for news of woken partitions.

        This happens at the end of a turn, not at each event, so that one answer covers all appends of a turn.
        """
        # A question that is accounted may move the high watermark, which wakes its partition again. This ends: the
        # same question moves it once.
        while self.woken:
            woken, self.woken = self.woken, {}
            self._look_again(woken)
            for partition in woken if self.current_reads.watches else ():
                self.current_reads.look(partition)

    def _look_again(self, partitions: Iterable[PartitionId]) -> None:
        due: dict[Inquiry, None] = {}
        for partition in partitions:
            waiting = self._waiting.get(partition)
            if not waiting:
                continue
            replica = self._context.replicas.get(partition)
            leader = replica.leader if replica is not None else None
            for inquiry in waiting:
                assert partition in inquiry.open, f"{partition} is waited for, and nobody has asked about it"
                # Also if no request waits: the next one does not repeat the question, and finds the news here.
                inquiry.news[partition] = None
                if inquiry.request is not None and not self._may_wait(inquiry, partition, leader):
                    due[inquiry] = None
        # Only now, because an answer includes the news of every partition that has some, and takes its asker out of
        # `waiting`.
        for inquiry in due:
            self._try_answer(inquiry, final=False)

    def _may_wait(self, inquiry: Inquiry, partition: PartitionId, leader: LeaderRole | None) -> bool:
        """Whether the only possible news for this follower is a high watermark, which is held back then."""
        # A replica that leads no more has an error to tell.
        if leader is None or not leader.has_all(inquiry.open[partition]):
            return False
        message = inquiry.message
        if message is None or message.session_epoch <= NEW_SESSION:
            return False
        if self._hold(inquiry, partition):
            self._tell_later(inquiry)
        return True

    def _hold(self, inquiry: Inquiry, partition: PartitionId) -> bool:
        """There is no news but perhaps a high watermark, which is held back; whether there is."""
        del inquiry.news[partition]
        if inquiry.open[partition].high_watermark < self._context.replicas[partition].log.high_watermark:
            inquiry.held[partition] = None
            return True
        inquiry.held.pop(partition, None)
        return False

    # Answers

    def _try_answer(self, inquiry: Inquiry, *, final: bool) -> bool:
        """Answer if there is enough news; with `final` also without any."""
        request, message = inquiry.request, inquiry.message
        if request is None or message is None:
            return False
        if not final and not inquiry.news:
            if inquiry.held:
                self._tell_later(inquiry)
            return False
        gathered = Gathered(min(message.max_bytes, self._max_bytes))
        if message.isolation_level == READ_COMMITTED:
            gathered.transactions = []
        # A new asker gets everything, so that news also reach peers whose sessions are always short.
        goes_on = message.session_epoch > NEW_SESSION
        self._gathering.gather(inquiry, list(inquiry.news), gathered, hold=goes_on)
        # Nothing is closed yet: what was gathered stays news, and is read again together with what comes.
        if not final and not gathered.urgent and gathered.size < max(1, message.min_bytes):
            if inquiry.held:
                self._tell_later(inquiry)
            return False
        if inquiry.held:
            # After the news: a full answer leaves out high watermarks rather than batches.
            self._gathering.gather(inquiry, list(inquiry.held), gathered, hold=False)
        results, session = gathered.results, inquiry.session
        if session is None:
            self._end(inquiry)
        else:
            self._let_go(inquiry)
            for partition in results:
                # An answered question is closed; partitions without room in this answer stay news for the next.
                self._overlook(inquiry, partition)
            session.answer(results)
            # Above every earlier mark: a current read that comes between two answers of one instant tells
            # them apart.
            self.last_mark = max(self._context.now, nextafter(self.last_mark, inf))
            inquiry.sent_at = self.last_mark
        response = FetchResponse(
            partitions=list(results.values()),
            session_id=session.id if session is not None else NO_SESSION,
            transactions=gathered.transactions,
        )
        self._context.emit(named(Answer, (request, response, gathered.parts)))
        return True
