"""One connection to ZooKeeper, that is one session of it, as trio code sees it.

Kazoo runs a connection in a thread of its own. `InlineHandler` lets that thread deliver what it reads itself, in
the order in which it was read: a watch that fired is known before any answer that was sent after it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import attrs
import trio
from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    OperationTimeoutError,
    SessionExpiredError,
    ZookeeperError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl

from insync.replication.metadata import StoreUnavailableError

from ._address import ZookeeperAddress

LOST = (ConnectionLoss, ConnectionClosedError, OperationTimeoutError, SessionExpiredError)
"""The errors of an operation whose connection ends."""

_LOOK_SECONDS = 0.01
_HANDSHAKES_PER_TIMEOUT = 3
_FIRST_DELAY_SECONDS = 0.05
_DELAYS_PER_TIMEOUT = 20
_LONGEST_DELAY_SECONDS = 1.0
_SAME_MESSAGE_SECONDS = 10.0

_log = logging.getLogger(__name__)


class _Seldom(logging.Filter):
    """Lets a message through once in a while: a client that seeks a server tells of each attempt, twice."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[object, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        # By the template: the texts of two attempts differ in host and port.
        if now - self._told.get(record.msg, -math.inf) < _SAME_MESSAGE_SECONDS:
            # Kazoo logs as errors the exceptions that it does not expect: none may be missed.
            return record.levelno >= logging.ERROR
        self._told[record.msg] = now
        return True


_kazoo_log = _log.getChild("kazoo")
# One for all connections of the process, which mostly seek the same servers at the same time.
_kazoo_log.addFilter(_Seldom())


class Pulse:
    """Whether the event loop runs: ZooKeeper's pings are sent by a thread, which must not outlive the loop's mind.

    A connection whose loop has not beaten for `patience` seconds stands still, so that its session ends as the
    session of a stopped process would. Until the first beat nobody holds the session yet, and nothing stands still.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._last = math.inf
        self._stopped = False
        # An event and no sleep, and never cleared: `release` ends a wait that has begun, and each later one.
        self._over = threading.Event()

    def beat(self) -> None:
        self._last = time.monotonic()

    def stop(self) -> None:
        """Beat no more, for good: how a session is lost in tests."""
        self._stopped = True

    def release(self) -> None:
        """Let the thread through, whatever comes: it is about to end."""
        self._over.set()

    def wait(self) -> None:
        """In the connection's thread: return while the loop runs, stand still while it does not."""
        while self._stopped or time.monotonic() - self._last > self._patience:
            if self._over.wait(_LOOK_SECONDS):
                return


class _Inline:
    """A queue that is always empty: what is put is done at once, by who puts it."""

    def put(self, function: Callable[[], object]) -> None:
        # The lock of a result may be held here: a function may post to trio, and must not wait for anything. It
        # must not raise either: no worker of kazoo's catches that, and the thread of the connection would end.
        function()


class InlineHandler(SequentialThreadingHandler):
    """Kazoo's threads without the two workers that would reorder events and answers.

    last_contact: when the server was last heard of, by the monotonic clock.
    handshake_seconds: how long a connection may take to be made again. Kazoo would wait for the session's whole
    timeout, so that one handshake without an answer (of a server that just starts, or has just died) would cost it.
    over: whether the ZooKeeper session has ended, for a connection that is to have one only (it has a pulse). Kazoo
    would begin another session, and what was meant for the first would be done in its name; so from then on
    it does not connect.
    """

    def __init__(self, pulse: Pulse | None) -> None:
        super().__init__()
        self.last_contact = time.monotonic()
        self.handshake_seconds = math.inf
        self.over = False
        self._connecting = False
        self._pulse = pulse
        self._wakers: set[int] = set()
        # For both: `Mirror` takes its copy for current when an answer is here and no event has come before it.
        self.callback_queue = self.completion_queue = _Inline()

    # Kazoo's own would start the two workers. Its `stop` puts `_STOP`, which cannot be called, into the queues.
    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def create_socket_pair(self) -> Any:
        pair = super().create_socket_pair()
        self._wakers = {sock.fileno() for sock in pair}
        return pair

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        if self.over:
            # To kazoo a server that cannot be reached: it goes on trying, and here in vain, until `_stop` ends it.
            raise ConnectionRefusedError("the session is over")
        # Before the attempt: what follows it, the answer to the handshake, is waited for in `select`.
        self._connecting = True
        timeout = min(kwargs.pop("timeout"), self.handshake_seconds)
        return super().create_connection(*args, timeout=timeout, **kwargs)

    def state_changed(self, state: str) -> None:
        """In the connection's thread, before it goes on."""
        if state == KazooState.CONNECTED:
            self._connecting = False
        if state == KazooState.LOST and self._pulse is not None:
            self.over = True

    def select(self, read: Any, write: Any, other: Any, timeout: float) -> Any:
        # Kazoo selects before each write, too: a ping that falls due in a long select passes no loop that hangs.
        if self._pulse is not None:
            self._pulse.wait()
        if self._connecting:
            timeout = min(timeout, self.handshake_seconds)
        ready = super().select(read, write, other, timeout)
        # Not the pair by which kazoo wakes its thread, and no writes, which succeed towards a dead server, too.
        if any(sock.fileno() not in self._wakers for sock in ready[0]):
            self.last_contact = time.monotonic()
        return ready


@attrs.define(eq=False)
class Connection:
    """An open connection. Its methods are for trio's thread; `on_state` is called there, in order.

    timeout_ms: of its ZooKeeper session, as the server granted it.
    """

    address: ZookeeperAddress
    client: KazooClient
    handler: InlineHandler
    pulse: Pulse | None
    timeout_ms: int
    _token: trio.lowlevel.TrioToken
    _closed: bool = False

    @classmethod
    async def open(
        cls,
        address: ZookeeperAddress,
        timeout_ms: int,
        connect_seconds: float,
        on_state: Callable[[str], None],
        pulse: Pulse | None = None,
    ) -> Self:
        """Connect. Raises `StoreUnavailableError` after `connect_seconds`."""
        token = trio.lowlevel.current_trio_token()
        handler = InlineHandler(pulse)
        digest = address.credentials
        client = KazooClient(
            address.hosts,
            timeout=timeout_ms / 1000,
            handler=handler,
            connection_retry=_pace(handler, timeout_ms),
            # Both: a node without an ACL is open to everybody, also when a client with credentials makes it.
            auth_data=[("digest", digest)] if digest else None,
            default_acl=[make_digest_acl(*digest.split(":", 1), all=True)] if digest else None,
            logger=_kazoo_log,
        )
        # All three before `start`, whose thread calls them.
        granted = _GrantedTimeout(client, timeout_ms)
        client.add_listener(handler.state_changed)
        client.add_listener(lambda state: _post(token, on_state, state))

        ended = threading.Event()

        def start() -> None:
            try:
                client.start(connect_seconds)
                granted.wait(connect_seconds)
            finally:
                ended.set()

        def stop() -> None:
            ended.wait()
            _stop(client)

        try:
            await trio.to_thread.run_sync(start, abandon_on_cancel=True)
        except trio.Cancelled:
            threading.Thread(target=stop, name="insync-zookeeper-stop", daemon=True).start()
            raise
        # Also the errors of kazoo's own clean-up: a thread that hangs in a name look-up does not end in time.
        except (KazooTimeoutError, KazooException) as error:
            raise StoreUnavailableError(
                f"no ZooKeeper server answers at {address.hosts} within {connect_seconds:g} s; "
                "is one running, and can it be reached from here?"
            ) from error
        # Only now: the first handshake had `connect_seconds`, and no session yet that it could cost.
        handler.handshake_seconds = granted.timeout_ms / 1000 / _HANDSHAKES_PER_TIMEOUT
        return cls(address, client, handler, pulse, granted.timeout_ms, token)

    @property
    def connected(self) -> bool:
        return bool(self.client.state == KazooState.CONNECTED) and not self._closed

    @property
    def over(self) -> bool:
        """Whether its session has ended, of a connection that is to have one only."""
        return self.handler.over

    def post(self, function: Callable[..., object], *args: object) -> None:
        """From any thread: call in trio's."""
        _post(self._token, function, *args)

    def check_connected(self) -> None:
        """Raise `StoreUnavailableError` unless connected: kazoo would keep an operation until it is."""
        if not self.connected:
            raise self.unavailable("the connection is lost")

    def unavailable(self, why: object) -> StoreUnavailableError:
        return StoreUnavailableError(f"ZooKeeper at {self.address.hosts} cannot be used now: {why}")

    async def wait(self, result: IAsyncResult) -> Any:
        """The result of an operation. Raises kazoo's errors as they are."""
        done = trio.Event()
        # A caller that is cancelled leaves the operation to kazoo: it may still take effect.
        result.rawlink(lambda _: self.post(done.set))
        await done.wait()
        return result.get_nowait()

    async def read(self, *results: IAsyncResult) -> list[Any]:
        """The results of several reads, in order; an error that is an answer (no such node) stands for its value.

        Raises `StoreUnavailableError`.
        """
        answers: list[Any] = []
        # All are under way: ZooKeeper answers the requests of one connection in their order.
        for result in results:
            try:
                answers.append(await self.wait(result))
            # These and `LOST` before `ZookeeperError`, from which they derive: they are no answers to a read.
            except (NoAuthError, AuthFailedError) as error:
                raise self.unavailable(f"it refuses these credentials below {self.address.root}") from error
            except LOST as error:
                raise self.unavailable(f"the connection was lost ({type(error).__name__})") from error
            except ZookeeperError as error:
                answers.append(error)
        return answers

    async def close(self) -> None:
        """End the ZooKeeper session, and with it its ephemeral nodes, and the thread."""
        if self._closed:
            return
        # Before the wait: from here on `check_connected` lets no operation in.
        self._closed = True
        if self.pulse is not None:
            # Before `_stop`, which waits for the thread: that may stand still for a loop that hung.
            self.pulse.release()
        # A caller that is cancelled already would end at once, and leave the thread: no later `close` looks again.
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_stop, self.client)

    def abandon(self) -> None:
        """Like `close`, without waiting for it: what is left of the session ends by its timeout."""
        if not self._closed:
            self._closed = True
            if self.pulse is not None:
                self.pulse.release()
            # A daemon: kazoo gives a silent server ten seconds or more, and the process may end before.
            threading.Thread(
                target=_stop, args=(self.client,), name="insync-zookeeper-stop", daemon=True
            ).start()


def _stop(client: KazooClient) -> None:
    # In this order: kazoo frees the sockets of a stopped client only.
    try:
        client.stop()
    except KazooException as error:
        # Its thread stands still, perhaps in a look-up of a name, and has the sockets.
        _log.warning("the ZooKeeper session is left to its timeout, for its thread does not end: %s", error)
    else:
        client.close()


def _pace(handler: InlineHandler, timeout_ms: int) -> KazooRetry:
    """How soon a lost connection is tried again: often enough for the session to live through an absence of the
    server that is shorter than its timeout. Kazoo's own pace doubles up to an hour."""
    longest = min(timeout_ms / 1000 / _DELAYS_PER_TIMEOUT, _LONGEST_DELAY_SECONDS)
    return KazooRetry(
        # Without an end: after a last attempt kazoo's thread is over, and nobody starts it again.
        max_tries=-1,
        delay=min(_FIRST_DELAY_SECONDS, longest),
        max_delay=longest,
        # Kazoo refuses any other than its handler's.
        sleep_func=handler.sleep_func,
    )


class _GrantedTimeout:
    """The session timeout that the server grants, which kazoo keeps to itself.

    Kazoo's `_connect` returns the read timeout, two thirds of it; where a release has it no more, we believe in
    what was asked.
    """

    def __init__(self, client: KazooClient, asked_ms: int) -> None:
        self.timeout_ms = asked_ms
        self._noted = threading.Event()
        connection = client._connection
        connect = getattr(connection, "_connect", None)
        if connect is None:
            # Nothing will be noted, and `wait` must not sit out its time.
            self._noted.set()
            return

        def connect_and_note(*args: Any, **kwargs: Any) -> Any:
            timeouts = connect(*args, **kwargs)
            self.timeout_ms = round(timeouts[0] * 3 / 2)
            # Behind the number: trio's thread reads it as soon as this lets it go.
            self._noted.set()
            return timeouts

        connection._connect = connect_and_note

    def wait(self, seconds: float) -> None:
        """Until the server has told it: kazoo says that it is connected before `_connect` returns."""
        self._noted.wait(seconds)


def _post(token: trio.lowlevel.TrioToken, function: Callable[..., object], *args: object) -> None:
    # After `abandon` kazoo's thread may outlive the run: nobody is left to be told.
    with suppress(trio.RunFinishedError):
        token.run_sync_soon(function, *args)
