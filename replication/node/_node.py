"""A node: everything of this room put together, for use inside a trio program or as a process of its own."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Self

import trio

from ...storage import StorageError
from ...transport import (
    Identity,
    ReceiveBudget,
    Security,
    ServingGroup,
    TlsFiles,
    TransportError,
    serve,
)
from ...transport.polling import poll_when_expecting
from ..metadata import MetadataError, MetadataStore, SessionExpiredError, open_store, serve_store
from ..metadata.registry import REMOTE
from ..wire import WireError
from .driver import Driver
from .errors import LogDirectoryFailedError, NodeError, NodeStartError
from .gateways import gateways
from .gateways._service import Service
from .log_lines import event
from .logs._directories import Home, Offline, remove_deleted_logs
from .logs._startup_scan import Found, clusters_of
from .operations.http import OperationsServer
from .operations.metrics import Metrics, is_installed
from .requests._handlers import Handlers
from .requests._users import Users
from .requests.authorisation import Authoriser
from .settings import NodeSettings
from .store._claims import Claims, warn_where_no_node_is_let_in
from .store._cluster_state import ClusterState
from .store._registration import Registration, found_or_join
from .store._view_reader import ViewReader

log = logging.getLogger("insync.node")

RENEWALS_PER_TIMEOUT = 4
_ENTRIES = 10
_LAST_NOTE_SECONDS = 1.0
"""A device that hangs must not keep the process: what it notes last makes the next start's judgement finer."""


class Node:
    """One member of a cluster: it hosts replicas of partitions, leads some of them and follows others.

    Use it as an async context manager inside a trio program:

        async with Node(NodeSettings(node_id=1, data_dir="data", store="sqlite:///srv/meta.db")) as node:
            ...

    `endpoints` are the URLs at which insync's clients reach it, `gateway_endpoints` those for clients of other
    protocols, `store_url` what other nodes may be given as their store,
    `metrics_address` (host:port) where it serves metrics and its health, if it was asked to.

    own_process: Run the node in a child process. Code of this process that keeps the interpreter's lock for longer
    than `session_timeout_ms` then costs the node nothing; the object, its errors and its log lines are the same.
    The child stops when this process ends, however it ends. Clients here reach it by `shm://` or `unix://`.

    The body starts when the node is registered and serves. Leaving the block stops it cleanly. If it fails
    meanwhile the body is cancelled and the error raised.

    Raises (on entering):
      NodeError: The node id is in use, the store belongs to another cluster, a setting cannot work; or
        `NodeStartError`, whose cause is the storage, transport or metadata error that tells what is wrong.
    """

    def __init__(self, settings: NodeSettings, *, own_process: bool = False) -> None:
        self.settings = settings
        self.own_process = own_process
        self.node_id = settings.node_id
        self.cluster_id = ""
        self.incarnation = 0
        self.endpoints: list[str] = []
        self.gateway_endpoints: list[str] = []
        self.store_url = settings.store
        self.metrics_address = ""
        self._running: AsyncExitStack | None = None
        self._driver: Driver | None = None
        self._failed: NodeError | None = None
        self._registered = False

    async def __aenter__(self) -> Self:
        try:
            trio.lowlevel.current_trio_token()
        except RuntimeError:
            raise NodeStartError(
                "this Node needs trio, which does not run here: use `insync.replication.asyncio.Node` on asyncio, "
                "and `BlockingNode` with threads"
            ) from None
        self.endpoints, self.gateway_endpoints = [], []
        self._driver, self._failed, self._registered = None, None, False
        self._running = AsyncExitStack()
        run = self._run_child if self.own_process else self._run
        await self._running.enter_async_context(run())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        assert self._running is not None
        return await self._running.__aexit__(exc_type, exc, traceback)

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        try:
            async with AsyncExitStack() as stack:
                await self._start(stack)
                yield
        except BaseExceptionGroup as group:
            error = _single(group)
            if error is group:
                raise
            raise error from error.__cause__
        if self._failed is not None:
            raise self._failed

    @asynccontextmanager
    async def _run_child(self) -> AsyncIterator[None]:
        from .process._own_process import child

        try:
            async with child(self.settings) as facts:
                self.endpoints, self.store_url = facts.endpoints, facts.store_url
                self.gateway_endpoints = facts.gateway_endpoints
                self.cluster_id, self.incarnation = facts.cluster_id, facts.incarnation
                self.metrics_address = facts.metrics_address
                yield
        except BaseExceptionGroup as group:
            error = _single(group)
            if error is group:
                raise
            raise error from error.__cause__

    async def _start(self, stack: AsyncExitStack) -> None:
        """Bring the parts up in order; the stack takes them down in the reverse one."""
        settings = self.settings
        try:
            security = Security.load(
                secret=settings.secret,
                secret_file=settings.secret_file,
                node_secret=settings.node_secret,
                node_secret_file=settings.node_secret_file,
                tls=TlsFiles.given(settings.tls_certificate, settings.tls_key, settings.tls_authorities),
                allow_insecure=settings.allow_insecure,
            )
            operations = OperationsServer()
            if settings.metrics_port is not None:
                self.metrics_address = await _serve_operations(settings, operations, stack)
            store = await stack.enter_async_context(_opened(settings, security))
            operations.waits_for = "its logs"
            held = await trio.to_thread.run_sync(clusters_of, settings.folders)
            self.cluster_id = await found_or_join(store, settings.cluster_id, held)
            found = await trio.to_thread.run_sync(Found.open_directories, settings, self.cluster_id)
            stack.push_async_callback(self._stop_logs, found)
            reader = ViewReader()
            view = reader.read(await reader.ask(store))
            await trio.to_thread.run_sync(found.open_logs, view, self.node_id)
            registration = await Registration.prepare(
                store,
                settings=settings,
                holdings=found.holdings(found.offline),
                write_proofs=found.write_proofs,
            )
            self.incarnation = registration.incarnation
            nursery = await stack.enter_async_context(trio.open_nursery())
            driver = self._driver = Driver(settings, found, self.incarnation, nursery)
            stack.callback(nursery.cancel_scope.cancel)
            stack.callback(driver.directories.fall_silent)
            driver.adopt(found)
            driver.dialler.security = security
            if settings.busy_poll_us:
                polling = await nursery.start(poll_when_expecting, settings.busy_poll_us)
                for home in driver.directories:
                    home.writer.expect = polling.expect
            operations.waits_for = "its registration"
            await self._go_live(stack, store, registration, driver, nursery, operations)
            await trio.to_thread.run_sync(found.settle_restored)
        except (StorageError, TransportError, MetadataError, WireError, OSError) as error:
            raise NodeStartError(f"node {self.node_id} cannot start: {error}") from error

    async def _go_live(
        self,
        stack: AsyncExitStack,
        store: MetadataStore,
        registration: Registration,
        driver: Driver,
        nursery: trio.Nursery,
        operations: OperationsServer,
    ) -> None:
        settings = self.settings
        driver.directories.start()
        identity = Identity(cluster_id=self.cluster_id, node_id=self.node_id, incarnation=self.incarnation)
        driver.dialler.identity = identity
        session = await store.open_session(self._session_timeout_ms(store))
        state = ClusterState(store, driver, session, nursery)
        driver.store = state
        security = driver.dialler.security
        users = Users(lambda: driver.view, state.confirm)
        authoriser = Authoriser(settings.allow, users)
        handlers = Handlers(driver, state, identity, nursery, users, authoriser)
        budget = ReceiveBudget(settings.queued_max_request_bytes)
        service = Service(self.cluster_id, driver, state, handlers, authoriser, users, budget)
        listening = partial(
            serve,
            handler=handlers.serve,
            identity=identity,
            security=security,
            authorise=authoriser,
            budget=budget,
            group=ServingGroup(),
            claims=Claims(lambda: driver.view, demands_proof=bool(settings.allow)),
            on_disconnect=handlers.disconnected,
        )
        for url in settings.listeners:
            try:
                found_gateway = gateways.find(url)
                if found_gateway is None:
                    self.endpoints += (await nursery.start(listening, url)).endpoints
                else:
                    serving = await nursery.start(gateways.serve, *found_gateway, service, security)
                    self.gateway_endpoints += serving.endpoints
            except (OSError, ValueError) as error:
                raise NodeStartError(f"node {self.node_id} cannot listen on {url}: {error}") from error
        if not self.endpoints:
            raise NodeStartError(
                f"node {self.node_id} listens only for other protocols: add a URL for other nodes, "
                "such as tcp://127.0.0.1:0"
            )
        warn_where_no_node_is_let_in(settings.allow, self.endpoints, security)
        if settings.serve_store is not None:
            serving = partial(
                serve_store,
                store,
                settings.serve_store,
                identity=identity,
                security=security,
                authorise=authoriser,
                demands_proof=bool(settings.allow),
            )
            self.store_url = await _serve_store(serving, settings.serve_store, nursery)
        await self._enter(store, registration, state)
        self._registered = True
        await self._note_age(registration, driver, driver.broker.context.registered or 0)
        log.info(
            event(
                "session_changed",
                state="registered",
                cluster=self.cluster_id,
                incarnation=self.incarnation,
                session_timeout_ms=session.timeout_ms,
                why="the node has started",
            )
        )
        nursery.start_soon(driver.timers.run)
        nursery.start_soon(driver.tick_broker)
        nursery.start_soon(driver.directories.watch)
        for home in driver.directories:
            nursery.start_soon(driver.directories.checkpoint, home)
            nursery.start_soon(remove_deleted_logs, home)
        nursery.start_soon(state.follow)
        nursery.start_soon(state.rebalance)
        nursery.start_soon(self._keep_registered, store, registration, state)
        nursery.start_soon(self._tell_offline, registration, state, driver.offline)
        nursery.start_soon(self._count, registration, driver, state)
        nursery.start_soon(self._watch_failure, driver, session.timeout_ms / 1000, nursery)
        operations.begins(Metrics(driver, state), handlers.health)
        stack.callback(operations.ends)
        stack.push_async_callback(self._depart, registration, driver, state)
        await state.ready.wait()

    @property
    def _all_endpoints(self) -> list[str]:
        """The addresses that the registration names: insync's own first."""
        return [*self.endpoints, *self.gateway_endpoints]

    async def _enter(self, store: MetadataStore, registration: Registration, state: ClusterState) -> None:
        """Register for the first time. On a machine that is very busy a session may end before that."""
        for attempts_left in reversed(range(_ENTRIES)):
            patience = state.session.timeout_ms / 1000 + 1
            try:
                state.registered(await registration.enter(state.session, self._all_endpoints, patience))
            except SessionExpiredError:
                if not attempts_left:
                    raise
                log.warning(
                    event("session_changed", state="lost", why="it ended before the node was registered")
                )
                state.session = await store.open_session(self._session_timeout_ms(store))
            else:
                return

    async def _keep_registered(
        self, store: MetadataStore, registration: Registration, state: ClusterState
    ) -> None:
        """A lost session, or a registration that others took out, is renewed: the process is the same."""
        while True:
            await _either(state.session.expired, state.unregistered)
            if state.leaving:
                return
            lost = state.session.expired.is_set()
            why = (
                "its session has expired"
                if lost
                else "its registration is gone: other nodes removed it as dead"
            )
            log.warning(event("session_changed", state="lost" if lost else "unregistered", why=why))
            state.session_lost()
            state.unregistered = trio.Event()
            await self._register_again(store, registration, state)
            if state.leaving:
                return
            state.unregistered = trio.Event()
            log.warning(event("session_changed", state="registered", why="the process has not changed"))
            state.read_again()

    async def _register_again(
        self, store: MetadataStore, registration: Registration, state: ClusterState
    ) -> None:
        """Try until it works or the node leaves. The same reason is told once, however long it lasts."""
        told = ""
        while not state.leaving:
            try:
                if state.session.expired.is_set():
                    state.session = await store.open_session(self._session_timeout_ms(store))
                state.registered(await registration.enter_again(state.session, self._all_endpoints))
            except (MetadataError, WireError) as error:
                if (why := str(error)) != told:
                    log.warning("node %d cannot register: %s", self.node_id, why)
                told = why
                await trio.sleep(self._session_timeout_ms(store) / 1000 / RENEWALS_PER_TIMEOUT)
            else:
                return

    async def _tell_offline(self, registration: Registration, state: ClusterState, offline: Offline) -> None:
        """Have others lead what is in log directories that went offline, though we are alive."""
        while True:
            await offline.changed.wait()
            offline.changed, told = trio.Event(), offline.is_told
            if await self._try_tell_offline(registration, state, offline):
                told.set()
            else:
                offline.changed.set()
                await trio.sleep(state.session.timeout_ms / 1000 / RENEWALS_PER_TIMEOUT)

    async def _try_tell_offline(
        self, registration: Registration, state: ClusterState, offline: Offline
    ) -> bool:
        try:
            return await registration.say_offline(state.session, self._all_endpoints, offline.untrusted)
        except MetadataError as error:
            log.warning("node %d cannot report its offline partitions: %s", self.node_id, error)
            return False

    async def _count(self, registration: Registration, driver: Driver, state: ClusterState) -> None:
        """Have the log directories and the store count on together, as long as the node runs."""
        while True:
            await trio.sleep(self.settings.proof_interval_ms / 1000)
            written = await self._note_age(registration, driver, driver.view.revision)
            try:
                problem = await registration.count(written)
            except MetadataError as error:
                problem = str(error)
            state.counted(problem)

    @staticmethod
    async def _note_age(registration: Registration, driver: Driver, revision: int) -> list[str]:
        """Have the working log directories remember what the store has counted; the ids of those that do."""
        working = [home.directory.directory_id for home in driver.directories.working]
        return await driver.directories.write_proofs(registration.next_proofs(working, revision))

    async def _depart(self, registration: Registration, driver: Driver, state: ClusterState) -> None:
        """Hand over what we lead before anything stops, then leave the cluster.

        A node that fails, or is cancelled with all its tasks, cannot: its session ends and others take over.
        """
        timeout = self.settings.controlled_shutdown_timeout_ms / 1000
        if timeout and self._failed is None and trio.current_effective_deadline() > trio.current_time():
            with trio.move_on_after(timeout) as waiting:
                try:
                    if await registration.say_leaving(state.session, self._all_endpoints):
                        state.read_again()
                        await state.relieved()
                except MetadataError as error:
                    log.warning("node %d stops without handing over: %s", self.node_id, error)
            with trio.move_on_after(_LAST_NOTE_SECONDS):
                await self._note_age(registration, driver, driver.view.revision)
            if waiting.cancelled_caught:
                log.warning(
                    "node %d stops though it leads or is in sync where others could not take over within %g s "
                    "(controlled_shutdown_timeout_ms)",
                    self.node_id,
                    timeout,
                )
        await _end_session(state)

    def _session_timeout_ms(self, store: MetadataStore) -> int:
        return self.settings.session_timeout_ms or store.default_session_timeout_ms

    async def _watch_failure(self, driver: Driver, patience: float, nursery: trio.Nursery) -> None:
        await driver.failed.wait()
        self._failed = driver.failure
        if driver.offline.untrusted:
            # The next process must not take what is left for all that was written.
            with trio.move_on_after(patience):
                await driver.offline.is_told.wait()
        nursery.cancel_scope.cancel()

    async def _stop_logs(self, found: Found) -> None:
        """All that was asked of the logs is done, then they are closed; cleanly, unless one has failed.

        The marker of a clean stop names the process that it vouches for. One that never registered can vouch for
        nothing itself: it leaves its predecessor's marker, or the lack of one, as it was.
        """
        with trio.CancelScope(shield=True):
            if self._driver is None:
                await trio.to_thread.run_sync(found.close)
                return
            await self._driver.directories.stop_threads()
            failures = [await self._close(home) for home in self._driver.directories]
        for failure in filter(None, failures):
            raise failure

    async def _close(self, home: Home) -> LogDirectoryFailedError | None:
        """Let a directory go; one that is offline as far as it can be done at once."""
        assert self._driver is not None
        directory = home.directory
        clean = self._registered or directory.was_clean
        if self._driver.failure is not None or home.failure or home.writer.has_failed:
            clean = False
        close = partial(
            directory.close,
            clean,
            high_watermarks=self._driver.high_watermarks(home.partitions),
            broker_epoch=self.incarnation if self._registered else directory.previous_broker_epoch,
        )
        try:
            with trio.move_on_after(self._driver.directories.patience_to_close(home)) as waiting:
                await trio.to_thread.run_sync(close, abandon_on_cancel=True)
            if waiting.cancelled_caught:
                self._driver.directories.give_up_at_stop(home)
        except StorageError as error:
            if not home.failure:
                return LogDirectoryFailedError(
                    f"log directory {home.path} could not be closed cleanly, so the next start checks all of "
                    f"it: {error}"
                )
        return None


async def _either(*events: trio.Event) -> None:
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        for event in events:
            nursery.start_soon(wait, event)


async def _end_session(state: ClusterState) -> None:
    """Leave the cluster before anything else stops, so that others lead at once."""
    with trio.move_on_after(1.0, shield=True):
        try:
            await state.leave()
            log.info(event("session_changed", state="ended", why="the node stops"))
        except MetadataError as error:
            log.warning("the session could not be ended, so it lasts until its timeout: %s", error)


def _opened(settings: NodeSettings, security: Security) -> MetadataStore:
    """A handle on the cluster's store, as this node: those who serve one let nodes in."""
    identity = Identity(cluster_id=settings.cluster_id or "", node_id=settings.node_id)
    wait = math.inf if settings.store_wait_ms is None else settings.store_wait_ms / 1000
    return open_store(settings.store, security=security, identity=identity, wait_seconds=wait)


async def _serve_operations(settings: NodeSettings, server: OperationsServer, stack: AsyncExitStack) -> str:
    """Serve metrics and health by HTTP until the stack is left; the address."""
    host, port = settings.metrics_host, settings.metrics_port
    if not is_installed():
        raise NodeStartError(
            f"metrics_port={port} needs the package prometheus-client: pip install 'insync[metrics]'"
        )
    nursery = await stack.enter_async_context(trio.open_nursery())
    stack.callback(nursery.cancel_scope.cancel)
    try:
        at: str = await nursery.start(server.serve, host, port)
    except OSError as error:
        raise NodeStartError(
            f"metrics cannot be served at {host}:{port}: {error.strerror or error}; "
            "give another metrics_port or metrics_host"
        ) from error
    return at


async def _serve_store(serve: Callable[..., Awaitable[None]], url: str, nursery: trio.Nursery) -> str:
    """Serve the store to other nodes; what they are to be given as theirs."""
    try:
        serving = await nursery.start(serve)
    except (OSError, ValueError) as error:
        raise NodeStartError(f"the metadata store cannot be served at {url}: {error}") from error
    return REMOTE + serving.endpoints[0]


def _single(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error of a group of one, so that callers can catch it by its class."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
