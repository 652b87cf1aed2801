"""The cluster as a client knows it: nodes, topics and leaders, cached; and the connections to ask them by.

The cache loses against every answer with a higher leader epoch. One task looks: when told that something is
wrong, at once; while a leader is suspected, every 20 to 50 ms; otherwise each `metadata_max_age_ms`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs
import trio

from ....transport import (
    Connection,
    ConnectRefusedError,
    ConnectSlowError,
    NotAuthorisedError,
    RemoteError,
    Security,
    TransportError,
)
from ....transport.repeats import limited
from ... import wire
from ...core import messages as m
from ...core.control.topics import TopicError, check_name
from ...core.errors import ErrorCode
from ...core.types import NO_LEADER, PartitionId, Value
from .._arguments import refused
from .._settings import ClientSettings
from ..admin._pages import whole_metadata
from ..errors import (
    AuthorizationError,
    BootstrapError,
    ClientError,
    MetadataTimeoutError,
    RequestTimeoutError,
    error_for,
)
from ._links import Links

log = limited(logging.getLogger("insync.client"))

_MOST_PARTITIONS = 1 << 20
"""Of one topic; there is a place for each number up to the greatest that a node tells."""
_LOOK_TIMEOUT = 2.0
_LONGEST_REST = 0.5
_QUICK_LOOKS = 100
_QUICK = (0.02, 0.05)
_REFUSED_PATIENCE = 0.5
"""Seconds for which an opening client retries an address that refuses connections."""
_REST_WITHOUT_NEWS = 4
"""Times as long as a look has taken the next one waits if it has found no other leader."""
_AVOIDED = 5.0
"""For how many seconds others are asked rather than a node that did not answer."""
_HEAD_START = 0.05
"""Seconds after which the next node is asked, where all have been silent."""


class Leader(NamedTuple):
    """Leader and leader epoch of a partition; node -1: no leader."""

    node_id: int
    epoch: int


NOBODY = Leader(NO_LEADER, -1)


@attrs.define(eq=False)
class Topic:
    """A topic's partitions and their leaders, by partition number; and its settings, as of the last look."""

    name: str
    topic_id: str
    leaders: list[Leader]
    config: Mapping[str, Value] = attrs.Factory(dict)
    deleted: bool = False
    """There was a topic of the name, and a node that knows says that there is none now."""
    revision: int = 0
    """The newest revision of the metadata store that an answer about it came from; older answers know less."""

    def told(self, revision: int, *, exists: bool) -> None:
        """A node that has read the store up to `revision` says whether it exists.

        One that is behind is not believed: what it does not know may be too new for it, and what it still knows
        may be gone.
        """
        if revision > self.revision or (exists and revision == self.revision):
            self.deleted, self.revision = not exists, revision


class Cluster:
    """Metadata cache and connections of one client; `run` must run in a task while it is used."""

    def __init__(
        self,
        bootstrap: Sequence[str],
        settings: ClientSettings,
        nursery: trio.Nursery,
        security: Security,
    ) -> None:
        self.nodes: dict[int, m.NodeInfo] = {}
        self.topics: dict[str, Topic] = {}
        self.links = Links(settings, nursery, security, self._endpoints, self._notify)
        self.listeners: list[Callable[[], None]] = []
        self._settings = settings
        self._bootstrap = list(bootstrap)
        self._topic_names: set[str] = set()
        self._unknown: set[str] = set()
        self._suspects: dict[PartitionId, Leader] = {}
        self._suspect_looks = 0
        self._has_news = False
        """Whether the last look-up found a changed leader."""
        self._silent: dict[int, float] = {}
        """When nodes were last found not to answer."""
        self._wanted = trio.Event()
        self._done = trio.Event()
        self._error: ClientError | None = None
        self._turn = 0
        self._random = random.Random()

    # What is known

    def leader(self, topic: str, partition: int) -> Leader:
        """The leader of a partition as far as known, else `NOBODY`."""
        known = self.topics.get(topic)
        if known is None or not 0 <= partition < len(known.leaders):
            return NOBODY
        return known.leaders[partition]

    async def topic(self, name: str, *, timeout: float) -> Topic:
        """The topic, asked for if it is not known yet.

        Raises:
          InvalidTopicError: No topic can be called so.
          UnknownTopicError: Nodes say that it does not exist (asked twice, of two nodes if there are two).
          MetadataTimeoutError: No node told within `timeout` seconds.
          InvalidArgumentError: The name is not a str.
        """
        if not isinstance(name, str):
            raise refused("topic", name, "it must be a string, the topic's name")
        if name not in self.topics:
            check_topic_name(name)
        denials = 0
        deadline = trio.current_time() + timeout
        self._topic_names.add(name)
        while not self._exists(name):
            try:
                with trio.fail_at(deadline):
                    await self.refresh()
                    denials += name in self._unknown
                    if not self._exists(name) and denials < 2:
                        await trio.sleep(self._random.uniform(*_QUICK))
            except trio.TooSlowError:
                why = f": {self._error}" if self._error is not None else ""
                raise MetadataTimeoutError(
                    f"topic {name!r}: no metadata within {timeout:g} s{why}"
                ) from self._error
            except ClientError as error:
                if not error.retriable:
                    raise
                await trio.sleep(
                    min(self._settings.retry_backoff_ms / 1000, max(0, deadline - trio.current_time()))
                )
            if denials >= 2 and not self._exists(name):
                if name not in self.topics:
                    self._topic_names.discard(name)
                raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r}")
        return self.topics[name]

    async def look_for(self, name: str, topic_id: str) -> None:
        """Look for the topic of that id where another one of the name is known: that may be a former one.

        As in `topic`, two nodes are asked if there are two, since one may be behind. Raises what `refresh` raises.
        """
        denials = 0
        while denials < 2 and self.topics[name].topic_id != topic_id:
            try:
                await self.refresh()
                denials += 1
            except ClientError as error:
                if not error.retriable:
                    raise
                await trio.sleep(self.backoff(1))

    def _exists(self, name: str) -> bool:
        known = self.topics.get(name)
        return known is not None and not known.deleted

    async def check_partition(self, at: PartitionId) -> None:
        """Raise `UnknownTopicError` if a topic that is known has no such partition, as of now: it may have grown.

        Or if it has been deleted since it was asked for. Raises the errors of `refresh`, too, where it has to look.
        """
        if self.topics[at.topic].deleted:
            raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(at), "its topic was deleted")
        if at.partition >= len(self.topics[at.topic].leaders):
            await self.refresh()
        count = len(self.topics[at.topic].leaders)
        if not 0 <= at.partition < count:
            raise error_for(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                str(at),
                f"its topic has the partitions 0 to {count - 1}",
            )

    def watch(self, names: Iterable[str]) -> None:
        """Have these topics looked for, with the rest, from the next look on; one may not exist (yet)."""
        self._topic_names.update(names)

    def named_topics(self) -> tuple[dict[str, str], dict[str, int]]:
        """Of the topics that exist, as far as known: names by id, and numbers of partitions by name."""
        found = [topic for topic in self.topics.values() if not topic.deleted]
        return {each.topic_id: each.name for each in found}, {each.name: len(each.leaders) for each in found}

    # What is told by others

    def suspect(self, topic: str, partition: int, leader: Leader) -> None:
        """`leader` did not answer as the partition's leader: look until there is another or it does."""
        at = PartitionId(topic, partition)
        if self.leader(topic, partition) == leader and self._suspects.get(at) != leader:
            self._suspects[at] = leader
            self._suspect_looks = 0
            self._wanted.set()

    def silent(self, node_id: int) -> None:
        """A node has not answered in time: a look that waits for it would hold up all that need one."""
        self._silent[node_id] = trio.current_time()

    def trust(self, topic: str, partition: int) -> None:
        """The partition's leader answered as such."""
        if self._suspects:
            self._suspects.pop(PartitionId(topic, partition), None)

    def hint(self, topic: str, partition: int, leader: Leader) -> None:
        """A node said in an answer who leads; believed if the epoch is newer and the node known."""
        known = self.topics.get(topic)
        if known is None or leader.node_id not in self.nodes or not 0 <= partition < len(known.leaders):
            return
        if leader.epoch > known.leaders[partition].epoch:
            known.leaders[partition] = leader
            self._clear(PartitionId(topic, partition), leader)
            self._notify()

    def backoff(self, attempt: int) -> float:
        """Seconds to wait before trying for the `attempt`-th time again (1 is the first retry)."""
        first, longest = self._settings.retry_backoff_ms, self._settings.retry_backoff_max_ms
        return min(longest, first * 2 ** min(attempt - 1, 16)) / 1000 * self._random.uniform(0.8, 1.2)

    def quick_backoff(self, attempt: int) -> float:
        """The same where a change of leader is expected any moment."""
        return self._random.uniform(*_QUICK) if attempt <= 20 else self.backoff(attempt - 20)

    def look(self) -> None:
        """Look soon, without waiting for it."""
        self._wanted.set()

    # Asking

    async def refresh(self) -> None:
        """Wait for a look that begins from now on.

        Raises:
          BootstrapError: No node could be reached.
          RequestTimeoutError: Those reached did not answer.
        """
        done = self._done
        self._wanted.set()
        await done.wait()
        if self._error is not None:
            raise self._error

    async def ask(self, kind: m.Kind, request: object, *, timeout: float, node_id: int | None = None) -> Any:
        """One request and its decoded answer, of one node or of any that answers.

        Raises:
          AuthorizationError: The client may not ask for this.
          TransportError: That one node did not answer.
          BootstrapError, RequestTimeoutError: None did.
        """
        if node_id is not None:
            return await self._ask_one(await self.links.get(node_id), kind, request, timeout)
        return await self._ask_any(kind, request, timeout, max(2, len(self.nodes)))

    async def _ask_one(self, connection: Connection, kind: m.Kind, request: object, timeout: float) -> Any:
        try:
            with await connection.request(kind, wire.encode(request), timeout=timeout) as response:
                return wire.decode_response(kind, response.body)
        except NotAuthorisedError as error:
            raise AuthorizationError(str(error)) from error
        except wire.WireError as error:
            # As good as no answer: another node may be of a version that we understand.
            raise TransportError(
                f"{connection.peer}: malformed response: {error}", delivery="maybe"
            ) from error
        except RemoteError as error:
            if error.code == ErrorCode.INVALID_REQUEST:  # asking again, or another node, changes nothing
                raise error_for(error.code, kind.name, error.detail) from error
            raise

    async def _ask_any(self, kind: m.Kind, request: object, timeout: float, tries: int) -> Any:
        error: TransportError | None = None
        for _ in range(tries):
            connection = await self._any_connection()
            try:
                return await self._ask_one(connection, kind, request, timeout)
            except TransportError as failure:
                error = failure
                self.silent(connection.peer.node_id)
        raise RequestTimeoutError(f"{kind.name}: no node answered; last: {error}") from error

    async def _metadata(self, request: object) -> Any:
        """The first answer of any node.

        While one node stands still, others may be slow because of it, and nothing tells which is which: where all
        that we know have been silent, the open connections are asked one after the other, `_HEAD_START` apart.
        """
        timeout = min(_LOOK_TIMEOUT, self._settings.request_timeout_ms / 1000)
        avoided, connections = self._avoided(), self.links.open_connections()
        if len(connections) < 2 or any(each.peer.node_id not in avoided for each in connections):
            return await self._ask_any(m.Kind.METADATA, request, timeout, max(2, len(self.nodes)))
        answers: list[Any] = []
        failures: list[ClientError | TransportError] = []

        async def ask(connection: Connection) -> None:
            try:
                answers.append(await self._ask_one(connection, m.Kind.METADATA, request, timeout))
            except (ClientError, TransportError) as error:
                failures.append(error)
            else:
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for connection in connections:
                nursery.start_soon(ask, connection)
                await trio.sleep(_HEAD_START)
        if answers:
            return answers[0]
        if isinstance(failures[0], ClientError):
            raise failures[0]
        raise RequestTimeoutError(f"METADATA: no node answered; last: {failures[-1]}") from failures[-1]

    async def _any_connection(self) -> Connection:
        """In turn one of the open connections, those of suspected leaders and silent nodes last; else a new one."""
        avoided = self._avoided()
        connections = self.links.open_connections()
        self._turn += 1
        if usable := [c for c in connections if c.peer.node_id not in avoided]:
            return usable[self._turn % len(usable)]
        problems: list[str] = []
        patience = 0.0
        known = sorted(self.nodes, key=lambda node: (node in avoided, self._random.random()))
        for node_id in known:
            try:
                return await self.links.get(node_id)
            except TransportError as error:
                problems.append(f"node {node_id}: {error}")
        for url in self._bootstrap:
            try:
                return await self.links.bootstrap(url)
            except TransportError as error:
                problems.append(f"{url}: {_without(url, str(error))}")
                patience = max(patience, self._patience(error))
        failure = BootstrapError(f"no node could be reached; is one running? ({'; '.join(problems)})")
        failure.patience = patience
        raise failure

    def _avoided(self) -> set[int]:
        """Nodes that left a request open for too long a moment ago, or are suspected not to lead any more."""
        now = trio.current_time()
        avoided = {leader.node_id for leader in self._suspects.values()}
        return avoided | {node_id for node_id, at in self._silent.items() if now - at < _AVOIDED}

    def _patience(self, error: TransportError) -> float:
        """For how long it makes sense to dial an address again.

        Where nobody listens a node may just be starting. Where somebody does, and drops connections or is slow to
        take them, too many clients have come at once.
        """
        if isinstance(error, ConnectRefusedError):
            return min(_REFUSED_PATIENCE, self._settings.connect_timeout_ms / 1000)
        if isinstance(error, ConnectSlowError):
            return self._settings.request_timeout_ms / 1000
        return self._settings.connect_timeout_ms / 1000 if error.retryable else 0.0

    # Looking

    async def run(self) -> None:
        """Keep the cache; ends by cancellation."""
        while True:
            with trio.move_on_at(self._next_look()):
                await self._wanted.wait()
            self._wanted = trio.Event()
            done, self._done = self._done, trio.Event()
            began, self._has_news = trio.current_time(), False
            try:
                await self._look()
                self._error = None
            except ClientError as error:
                self._error = error
            done.set()
            self._notify()
            # Where a look is much work, as with thousands of partitions, others have as much time for theirs; and
            # more where nothing comes of it: a leader that is slow because a follower stands still leads on.
            took = trio.current_time() - began
            await trio.sleep(min(took if self._has_news else took * _REST_WITHOUT_NEWS, _LONGEST_REST))

    def _next_look(self) -> float:
        now = trio.current_time()
        if not self._suspects:
            return now + self._settings.metadata_max_age_ms / 1000
        self._suspect_looks += 1
        if self._suspect_looks <= _QUICK_LOOKS:
            return now + self._random.uniform(*_QUICK)
        return now + self.backoff(self._suspect_looks - _QUICK_LOOKS)

    async def _look(self) -> None:
        names = sorted(self._topic_names)
        request = m.MetadataRequest(topics=names)
        self._apply(await whole_metadata(self._metadata, request))

    def _apply(self, answer: m.MetadataResponse) -> None:
        self.nodes = {node.node_id: node for node in answer.nodes}
        self._unknown.clear()
        for info in answer.topics:
            if info.error == ErrorCode.NONE:
                self._apply_topic(info, answer.revision)
            elif info.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._unknown.add(info.name)
                if info.name in self.topics:
                    self.topics[info.name].told(answer.revision, exists=False)

    def _apply_topic(self, info: m.TopicInfo, revision: int) -> None:
        told = {p.partition: Leader(p.leader, p.leader_epoch) for p in info.partitions}
        if not told or not 0 <= min(told) <= max(told) < _MOST_PARTITIONS:
            log.warning(
                "%s: metadata with %d partitions, the last of number %d, is not used: no topic is like that; ask "
                "whether the nodes are sound",
                info.name,
                len(told),
                max(told, default=-1),
            )
            return
        leaders = [told.get(n, NOBODY) for n in range(max(told) + 1)]
        known = self.topics.get(info.name)
        former = known.leaders if known is not None else None
        if known is None:
            known = self.topics[info.name] = Topic(info.name, info.topic_id, leaders)
        elif known.topic_id != info.topic_id:
            if revision < known.revision:
                return  # a node that is behind still knows a former topic of the name
            known.topic_id, known.leaders = info.topic_id, leaders
        else:
            # A node that is behind must not take us back to a former leader.
            kept = known.leaders + [NOBODY] * (len(leaders) - len(known.leaders))
            known.leaders = [
                max(pair, key=lambda leader: leader.epoch) for pair in zip(leaders, kept, strict=False)
            ]
        self._has_news = self._has_news or known.leaders != former
        known.config = info.config
        known.told(revision, exists=True)
        for partition, leader in enumerate(known.leaders):
            self._clear(PartitionId(info.name, partition), leader)

    def _clear(self, at: PartitionId, leader: Leader) -> None:
        if leader.node_id != NO_LEADER and self._suspects.get(at, leader) != leader:
            del self._suspects[at]

    def _endpoints(self, node_id: int) -> Sequence[str]:
        node = self.nodes.get(node_id)
        return node.endpoints if node is not None else ()

    def _notify(self) -> None:
        for listener in self.listeners:
            listener()


def _without(url: str, text: str) -> str:
    """An error's text without the URL that stands before it, perhaps more than once."""
    while text.startswith(f"{url}: "):
        text = text.removeprefix(f"{url}: ")
    return text


def check_topic_name(name: str) -> None:
    """Raises `InvalidTopicError`, so that an invalid name does not end the task that looks up topics."""
    try:
        check_name(name)
    except TopicError as error:
        raise error_for(error.code, f"topic {name!r}", error.message) from None
