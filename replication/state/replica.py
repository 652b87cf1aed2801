"""A copy of replicated state in this process, and a handle to change it."""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import trio

from ..client import _arguments as given
from ..client._settings import ClientSettings, ProducerSettings, make_settings
from ..client.admin import Admin
from ..client.consumer import Consumer
from ..client.errors import (
    ClientError,
    InvalidArgumentError,
    InvalidReplicationFactorError,
    RequestTimeoutError,
)
from ..client.producer import Producer
from ..core.types import PartitionId, Value
from ..core.wording import counted
from ._applying import Answer
from ._copy import Change, Copy
from ._entries import MOST_NAME
from ._keeper import Keeper
from ._raising import RAISED, Raiser
from ._session import Session, closed
from .errors import StateError
from .machine import StateMachine
from .objects import raise_answer
from .settings import StateSettings, split

_log = logging.getLogger("insync.state")
CLOSE_SECONDS = 5.0
"""How long leaving a block waits for commands under way, whatever the cluster does."""
_RETRY_SECONDS = 0.25
T = TypeVar("T")
_LOG: dict[str, Value] = {"cleanup_policy": "delete", "retention_ms": -1, "retention_bytes": -1}
_SNAPSHOTS: dict[str, Value] = {"cleanup_policy": "compact", "segment_bytes": 64 << 20}


class Replica:
    """`async with Replica(servers, "orders", Orders, name="api-1") as orders: await orders.submit(b"...")`.

    Args:
      servers: URLs of some nodes, as a list or comma separated.
      topic: The topic whose log holds the commands; created if absent. Nothing else may write to it.
      machine: Creates the state machine: its class, or a function without arguments.
      partition: The partition to use; see `Shards`.
      partitions: The topic's number of partitions.
      name: The name of the session, at most 200 characters. Opening the same name elsewhere fences this session.
        Default: a unique name.
      settings: All settings; alternatively single settings as keywords (fields of `StateSettings`). Further
        keywords are settings of the clients.

    Raises:
      InvalidSettingError: An unknown setting or an impossible value.
      BootstrapError: On entering the block: no node could be reached.
      RequestTimeoutError: On entering: not within `open_timeout_ms`, for example because there are fewer living
        nodes than replicas are wanted of topics that do not exist yet.
      StateError: On entering: the topic is not the log of a state, or its beginning is lost.

    Leaving the block waits for commands under way, at most 5 seconds.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        topic: str,
        machine: Callable[[], StateMachine],
        *,
        name: str = "",
        partition: int = 0,
        partitions: int | None = None,
        settings: StateSettings | None = None,
        **options: Any,
    ) -> None:
        self.name = given.text("name", name) or f"{socket.gethostname()[:100]}-{id(self):x}-{_unique()}"
        if len(self.name) > MOST_NAME - 56:
            raise InvalidArgumentError(f"name has {len(self.name)} characters; {MOST_NAME - 56} are allowed")
        self.settings, self._options = split(options, settings)
        make_settings(ClientSettings, self._options)
        self._servers = servers
        self._at = PartitionId(given.text("topic", topic), given.whole("partition", partition, least=0))
        self._partitions = None if partitions is None else given.whole("partitions", partitions, least=1)
        self._make = machine
        self._stack = AsyncExitStack()
        self._limit = trio.CancelScope()
        """Around all that is open; its deadline is set when the block is left."""
        self._leaves_by = math.inf
        """When leaving the block has to be over, if that has begun before everything is closed."""
        self._lacks: ClientError | None = None
        """Why it is not open yet: there are fewer nodes than replicas are wanted, or no answer came in time."""
        self._copy: Copy | None = None
        self._session: Session | None = None
        self._keeper: Keeper | None = None
        self._raiser: Raiser | None = None

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        self._limit, self._leaves_by = trio.CancelScope(), math.inf
        self._stack.enter_context(self._limit)
        try:
            await self._open()
        except BaseException as error:
            await self._unwind(type(error), error, error.__traceback__)
            raise
        return self

    async def _open(self) -> None:
        stack, options = self._stack, self._options
        admin = await stack.enter_async_context(Admin(self._servers, **options))
        deadline = trio.current_time() + self.settings.open_timeout_ms / 1000
        with self._until(deadline):
            topic_id = await self._persistently(partial(self._topic, admin))
        producer = await stack.enter_async_context(Producer(self._servers, linger_ms=0, **options))
        consumer = await stack.enter_async_context(
            Consumer(self._servers, auto_offset_reset="none", **options)
        )
        copy = Copy(self._servers, self._at, topic_id, self._make, self.settings, admin, consumer, options)
        largest = ProducerSettings().max_request_size
        session = Session(copy, producer, self.name, self.settings, largest)
        keeper, raiser = Keeper(copy, session, producer), Raiser(copy, session)
        copy.on_applied, copy.on_turn, copy.on_restored = (
            session.on_applied,
            session.on_turn,
            session.on_restored,
        )
        with self._until(deadline):
            await self._persistently(copy.restore)
        nursery = await stack.enter_async_context(Tasks())
        nursery.start_soon(copy.run)
        nursery.start_soon(copy.answer_rounds)
        nursery.start_soon(session.run)
        with self._until(deadline):
            # Code that does not fit the log stops in it, before it takes the name from a copy that does.
            await copy.wait_until(copy.begins_at)
            await session.open()
            stack.push_async_callback(self._close, session, copy)
            await raiser.begin()
        nursery.start_soon(keeper.run)
        nursery.start_soon(raiser.run)
        self._copy, self._session, self._keeper, self._raiser = copy, session, keeper, raiser

    async def _persistently(self, step: Callable[[], Awaitable[T]]) -> T:
        """A step of opening, made again when a request of it had no answer in time: opening has its own limit."""
        while True:
            try:
                return await step()
            except RequestTimeoutError as error:
                _log.warning("%s: not opened yet: %s", self._at, error)
                self._lacks = error
                await trio.sleep(_RETRY_SECONDS)

    @contextmanager
    def _until(self, deadline: float) -> Iterator[None]:
        try:
            with trio.fail_at(deadline):
                yield
        except trio.TooSlowError:
            raise RequestTimeoutError(
                f"{self._at}: not opened within open_timeout_ms={self.settings.open_timeout_ms}"
                + (f"; last: {self._lacks}" if self._lacks is not None else "")
            ) from self._lacks

    async def _topic(self, admin: Admin) -> str:
        name = self._at.topic
        if self.settings.create:
            await self._create(admin)
        topic, snapshots = await admin.describe_topics([name, f"{name}.snapshots"])
        if self._partitions is not None and len(topic.partitions) != self._partitions:
            raise StateError(
                f"topic {name!r} has {counted(len(topic.partitions), 'partition')}, but it was opened with "
                f"{counted(self._partitions, 'shard')}: keys would be looked for where they are not; "
                "open it with as many shards as it has"
            )
        retention = topic.config["retention_ms"]
        if topic.config["cleanup_policy"] != "delete" or retention not in (-1, RAISED["retention_ms"]):
            raise StateError(
                f"topic {name!r} has cleanup_policy={topic.config['cleanup_policy']} and retention_ms="
                f"{retention}, which lose commands: set them to delete and -1"
            )
        if snapshots.config["cleanup_policy"] != "compact":
            raise StateError(
                f"topic {name + '.snapshots'!r} has cleanup_policy={snapshots.config['cleanup_policy']}, which "
                "loses snapshots: set it to compact"
            )
        return topic.topic_id

    async def _create(self, admin: Admin) -> None:
        """Create the topics that are missing, once there are nodes enough."""
        name, partitions = self._at.topic, self._partitions or self._at.partition + 1
        while True:
            factor = self.settings.replication_factor
            if factor is None:
                factor = min(3, max(1, len((await admin.describe_cluster()).nodes)))
            try:
                await admin.create_topic(name, partitions, factor, _LOG, exist_ok=True)
                await admin.create_topic(f"{name}.snapshots", partitions, factor, _SNAPSHOTS, exist_ok=True)
            except InvalidReplicationFactorError as error:
                if self._lacks is None:
                    _log.warning("%s: waits for nodes: %s", self._at, error)
                self._lacks = error
                await trio.sleep(_RETRY_SECONDS)
            else:
                self._lacks = None
                return

    async def _close(self, session: Session, copy: Copy) -> None:
        try:
            await session.close()
        finally:
            # Tasks outside of the block may wait, whatever has ended it.
            copy.stop(closed(f"the copy of {self._at}"))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._unwind(kind, error, traceback)

    async def _unwind(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End session, copy and clients. A producer that is cancelled does not wait for its records."""
        self._limit.deadline = min(self._leaves_by, trio.current_time() + CLOSE_SECONDS)
        await self._stack.__aexit__(kind, error, traceback)

    # Changing

    async def submit(self, command: bytes, *, id: str | None = None, since: int = 1) -> bytes:
        """Have every copy apply a command; returns its answer when this copy has applied it.

        The command is applied once, regardless of failures. After a cancellation its outcome is unknown.

        Args:
          command: The argument of the machine's `apply`.
          id: The caller's own key, of at most 256 characters. Commands with the same key within
            `deduplicate_for_ms`, from any process, count as one command: each gets the answer of the first.
          since: The topic's version from which on the machine knows the command.

        Raises:
          Exception: The machine's exception, if it is a built-in one; otherwise `CommandError`.
          VersionNotRaisedError: The topic's version is below `since`.
          IdempotencyConflictError: Another command had this id first; this one was not applied.
          FencedError: The name was opened elsewhere; the command was not applied.
          CommandTooLargeError: It does not fit into a record.
          StateVersionError: The topic's version was raised above that of this copy's code; the command was not
            applied.
          DivergedError, StateClosedError: This copy has stopped; the outcome of the command is unknown.
        """
        self._require("the command", given.whole("since", since, least=1))
        answer = await self._submit(command, id)
        if answer.error:
            raise_answer(answer.error, answer.data, ())
        return answer.data

    async def _submit(self, command: bytes, id: str | None = None) -> Answer:
        if not isinstance(command, bytes):
            raise given.refused("command", command, "a command is bytes")
        if id is not None and (not isinstance(id, str) or not 0 < len(id) <= MOST_NAME):
            raise given.refused("id", id, f"it must be a string of at most {MOST_NAME} characters")
        if self._session is None:
            raise closed(f"the copy of {self._at}")
        pending = await self._session.submit(command, id)
        self.token = max(self.token, pending.end)
        assert pending.answer is not None
        return pending.answer

    def _require(self, what: str, since: int) -> None:
        if since > self.state_version:
            assert self._raiser is not None
            raise self._raiser.not_raised(what, since)

    @property
    def state_version(self) -> int:
        """The topic's version, by which this copy applies commands: at most the `state_version` of its code."""
        return self._open_copy().applier.version

    async def raise_version(self) -> None:
        """Raise the topic's version to that of this copy's code now, without waiting for any copy.

        Copies with lower versions stop with `StateVersionError`. There is no way back.

        Raises:
          MigrationError: A migration raised an exception on a second machine; nothing has changed.
          FencedError: The name was opened elsewhere; nothing has changed.
        """
        self._open_copy()
        assert self._raiser is not None
        await self._raiser.raise_now()

    token: int = 0
    """The log offset after the last command of this handle, for `wait_until` in another process."""

    # Reading

    async def read(self, *, after: int | None = None) -> int:
        """Bring this copy up to date, so that its machine can be read. Returns the offset that it has reached.

        The copy then contains every command that was acknowledged to any process before this call. With `after`
        (the `token` of a handle) it waits only for the commands of that handle: it asks no leader, and commands of
        other handles may be missing.
        """
        copy = self._open_copy()
        if after is None:
            return await copy.catch_up()
        await copy.wait_until(given.whole("after", after, least=0))
        return copy.applied

    async def wait_until(self, offset: int) -> None:
        """Wait until this copy has applied everything below `offset`."""
        await self._open_copy().wait_until(given.whole("offset", offset, least=0))

    @property
    def machine(self) -> StateMachine:
        """The machine of this copy; only read it. A copy that falls far behind creates a new one."""
        return self._open_copy().applier.machine

    @property
    def applied(self) -> int:
        """This copy has applied everything below this offset."""
        return self._open_copy().applied

    @property
    def lag(self) -> int:
        """Number of records that this copy knows to be committed and has not applied."""
        return self._open_copy().lag

    @property
    def clock_ms(self) -> int:
        """The time of the machine: the greatest timestamp of all applied records, in ms since 1970."""
        return self._open_copy().applier.clock_ms

    @property
    def is_keeper(self) -> bool:
        """Whether this copy currently writes the snapshots."""
        return self._keeper is not None and self._keeper.is_keeper

    @property
    def restored_from(self) -> int:
        """The end offset of the snapshot from which this copy started; 0: it started with the first command."""
        marker = self._open_copy().restored
        return marker.position if marker is not None else 0

    def digest(self) -> bytes:
        """Digest of the whole state, including sessions; equal on copies with the same `applied`."""
        return self._open_copy().applier.digest()

    async def snapshot(self) -> None:
        """Write a snapshot now, even if another copy is responsible for them."""
        self._open_copy()
        assert self._keeper is not None
        await self._keeper.take_snapshot()

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[AsyncIterator[Change]]:
        """Commands as this copy applies them, from now on: `async with r.changes() as changes: async for ...`.

        The iteration raises ChangesLostError if more than 10,000 changes wait to be read, or if this copy falls so
        far behind that it restores its state from a snapshot. Open `changes()` again, then read the state.
        """
        async with self._open_copy().changes() as changes:
            yield changes

    async def moved(self) -> None:
        """Wait until this copy has applied something more."""
        await self._open_copy().moved()

    def _open_copy(self) -> Copy:
        if self._copy is None:
            raise closed(f"the copy of {self._at}")
        self._copy.check()
        return self._copy


class Tasks:
    """A nursery that is cancelled when its block is left."""

    async def __aenter__(self) -> trio.Nursery:
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        return self._nursery

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self._nursery.cancel_scope.cancel()
        # Raise an error of the block itself: a nursery would wrap it in a group.
        is_ours = isinstance(error, trio.Cancelled | BaseExceptionGroup) and not isinstance(error, Exception)
        ours = error if is_ours else None
        await self._manager.__aexit__(
            type(ours) if ours else None, ours, ours.__traceback__ if ours else None
        )
        return None


def _unique() -> str:
    return os.urandom(6).hex()
